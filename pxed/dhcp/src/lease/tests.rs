//! Claims about the lease table.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn network() -> Ipv4Net {
    "10.7.0.0/24".parse().unwrap()
}

fn table(range: &str) -> Table {
    let mut table = Table::default();
    table.configure(&[subnet(range)]);
    table
}

fn subnet(range: &str) -> Subnet {
    Subnet {
        network: network(),
        ranges: vec![range.parse().unwrap()],
        reserve: 0,
        routers: Vec::new(),
        nameservers: Vec::new(),
        domain: None,
        ntp_servers: Vec::new(),
        lease_seconds: 600,
        relays: Vec::new(),
    }
}

fn mac(number: u8) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, number])
}

fn holder(number: u8) -> Holder {
    Holder { network: network(), key: ClientKey::Mac(mac(number)) }
}

fn take(table: &mut Table, number: u8, now: Seconds) -> Option<Ipv4Addr> {
    let address = table.allocate(network(), |_| true)?;
    table.offer(address, holder(number), mac(number), now);
    table.bind(address, holder(number), mac(number), None, now, 600);
    Some(address)
}

#[test]
fn a_pool_gives_each_address_once_and_then_says_that_it_is_full() {
    let mut table = table("10.7.0.10-10.7.0.12");
    let given: Vec<_> = (0..4).map(|number| take(&mut table, number, 0)).collect();
    let octets: Vec<_> = given.iter().map(|a| a.map(|a| a.octets()[3])).collect();
    assert_eq!(octets, [Some(10), Some(11), Some(12), None]);
    assert_eq!(table.usage()[0].bound, 3);
}

#[test]
fn an_expired_address_goes_first_to_the_one_free_for_longest() {
    let mut table = table("10.7.0.10-10.7.0.12");
    for number in 0..3 {
        take(&mut table, number, u64::from(number)).unwrap();
    }
    table.release(Ipv4Addr::new(10, 7, 0, 12), &holder(2), 50).unwrap();
    table.expire(601);
    let next: Vec<_> = (7..10).filter_map(|number| take(&mut table, number, 601)).collect();
    let octets: Vec<_> = next.iter().map(|a| a.octets()[3]).collect();
    assert_eq!(octets, [12, 10, 11]);
}

#[test]
fn a_returning_client_is_remembered_until_its_address_is_needed() {
    let mut table = table("10.7.0.10-10.7.0.11");
    let first = take(&mut table, 1, 0).unwrap();
    table.expire(10_000);
    assert_eq!(table.of(&holder(1)).map(|l| (l.address, l.state)), Some((first, LeaseState::Free)));
    take(&mut table, 2, 10_000).unwrap();
    assert!(table.of(&holder(1)).is_some());
    assert_eq!(take(&mut table, 3, 10_000), Some(first));
    assert_eq!(table.of(&holder(1)), None);
}

#[test]
fn an_offer_lapses_and_an_offer_on_a_lease_does_not_shorten_it() {
    let mut table = table("10.7.0.10-10.7.0.10");
    let address = table.allocate(network(), |_| true).unwrap();
    table.offer(address, holder(1), mac(1), 0);
    assert_eq!(table.allocate(network(), |_| true), None);
    table.expire(OFFER_SECONDS);
    assert_eq!(take(&mut table, 2, OFFER_SECONDS), Some(address));
    table.offer(address, holder(2), mac(2), 61);
    assert_eq!(table.get(address).map(|l| (l.state, l.until)), Some((LeaseState::Bound, 660)));
}

#[test]
fn repeated_offer_lasts_from_the_repetition() {
    let mut table = table("10.7.0.10-10.7.0.11");
    let address = table.allocate(network(), |_| true).unwrap();
    table.offer(address, holder(1), mac(1), 1000);
    table.offer(address, holder(1), mac(1), 1030);
    table.expire(1030 + OFFER_SECONDS - 1);
    assert_eq!(table.get(address).map(|lease| lease.state), Some(LeaseState::Offered));
    assert!(!table.is_open_to(address, &holder(2)));
    table.expire(1030 + OFFER_SECONDS);
    assert_eq!(table.get(address).map(|lease| lease.state), Some(LeaseState::Free));
}

#[test]
fn repeated_offer_does_not_count_as_free_time() {
    let mut table = table("10.7.0.10-10.7.0.11");
    let offered = table.allocate(network(), |_| true).unwrap();
    table.offer(offered, holder(1), mac(1), 0);
    let leased = take(&mut table, 2, 0).unwrap();
    table.offer(offered, holder(1), mac(1), 10);
    table.release(leased, &holder(2), 20).unwrap();
    table.expire(10 + OFFER_SECONDS);
    assert_eq!(table.allocate(network(), |_| true), Some(leased), "it has been free for longest");
}

#[test]
fn offer_of_another_address_frees_the_offered_one() {
    let mut table = table("10.7.0.10-10.7.0.11");
    let first = table.allocate(network(), |_| true).unwrap();
    table.offer(first, holder(1), mac(1), 0);
    let second = table.allocate(network(), |_| true).unwrap();
    table.offer(second, holder(1), mac(1), 1);
    assert_eq!(table.allocate(network(), |_| true), Some(first));
    assert_eq!(table.of(&holder(1)).map(|lease| lease.address), Some(second));
}

#[test]
fn declined_address_is_not_offered_until_its_time_has_passed() {
    let mut table = table("10.7.0.10-10.7.0.10");
    let address = take(&mut table, 1, 0).unwrap();
    assert!(table.decline(address, &holder(2), 0, 100).is_none());
    table.decline(address, &holder(1), 0, 100).unwrap();
    assert!(!table.is_open_to(address, &holder(1)));
    assert_eq!(take(&mut table, 2, 0), None);
    table.expire(100);
    assert_eq!(take(&mut table, 2, 100), Some(address));
}

#[test]
fn a_client_that_is_leased_another_address_loses_the_one_before() {
    let mut table = table("10.7.0.10-10.7.0.20");
    let old = take(&mut table, 1, 0).unwrap();
    let fixed = Ipv4Addr::new(10, 7, 0, 200);
    table.offer(fixed, holder(1), mac(1), 5);
    assert_eq!(table.of(&holder(1)).map(|l| l.address), Some(old), "the lease in use stays");
    let changes = table.bind(fixed, holder(1), mac(1), None, 6, 600);
    assert!(matches!(changes.as_slice(), [Change::Remove(a), Change::Put(_)] if *a == old));
    assert_eq!(table.get(old).map(|l| l.state), Some(LeaseState::Free));
    crate::hostile::check(&table);
}

#[test]
fn lease_starts_when_it_is_bound_and_a_renewal_keeps_its_start() {
    let mut table = table("10.7.0.10-10.7.0.11");
    let address = table.allocate(network(), |_| true).unwrap();
    let bind = |table: &mut Table, number, now| {
        table.bind(address, holder(number), mac(number), None, now, 600);
        table.get(address).map(|lease| (lease.since, lease.until)).unwrap()
    };
    table.offer(address, holder(1), mac(1), 100);
    assert_eq!(bind(&mut table, 1, 105), (105, 705), "not with its offer");
    assert_eq!(bind(&mut table, 1, 300), (105, 900), "renewed");
    table.expire(900);
    assert_eq!(bind(&mut table, 2, 1000), (1000, 1600), "another client's former lease");
}

#[test]
fn lease_is_released_by_its_holder_alone_and_once() {
    let mut table = table("10.7.0.10-10.7.0.11");
    let address = take(&mut table, 1, 0).unwrap();
    assert_eq!(table.release(address, &holder(2), 10), None);
    assert_eq!(table.get(address).map(|lease| lease.state), Some(LeaseState::Bound));
    assert!(table.release(address, &holder(1), 10).is_some());
    assert_eq!(table.release(address, &holder(1), 20), None);
    assert_eq!(table.get(address).map(|lease| lease.since), Some(10), "free since then");
}

#[test]
fn quarantine_starts_with_the_decline_and_leaves_the_clients_lease() {
    let mut table = table("10.7.0.10-10.7.0.11");
    let leased = take(&mut table, 1, 0).unwrap();
    let offered = table.allocate(network(), |_| true).unwrap();
    table.offer(offered, holder(1), mac(1), 40);
    table.decline(offered, &holder(1), 50, 100).unwrap();
    let quarantined = table.get(offered).unwrap();
    assert_eq!((quarantined.state, quarantined.since, quarantined.until), (LeaseState::Declined, 50, 150));
    assert_eq!(table.of(&holder(1)).map(|lease| lease.address), Some(leased));
    table.decline(leased, &holder(1), 60, 100).unwrap();
    assert_eq!(table.of(&holder(1)), None);
}

#[test]
fn usage_counts_each_state_in_the_pool_of_its_address() {
    let mut table = Table::default();
    let mut other = subnet("10.8.0.10-10.8.0.19");
    other.network = "10.8.0.0/24".parse().unwrap();
    other.reserve = 5;
    table.configure(&[subnet("10.7.0.10-10.7.0.19"), other.clone()]);
    let next = |table: &mut Table, number| {
        let address = table.allocate(other.network, |_| true).unwrap();
        let holder = Holder { network: other.network, key: ClientKey::Mac(mac(number)) };
        table.offer(address, holder.clone(), mac(number), 0);
        (address, holder)
    };
    for number in 0..3 {
        next(&mut table, number);
    }
    for number in 10..12 {
        let (address, holder) = next(&mut table, number);
        table.decline(address, &holder, 0, 100).unwrap();
    }
    let (leased, client) = next(&mut table, 20);
    table.bind(leased, client, mac(20), None, 0, 600);
    // A fixed address is in no pool.
    let fixed = Ipv4Addr::new(10, 7, 0, 200);
    table.bind(fixed, holder(30), mac(30), None, 0, 600);
    let used = |network: Ipv4Net, bound, offered, declined| PoolUsage {
        network,
        size: 10,
        bound,
        offered,
        declined,
    };
    assert_eq!(table.usage(), [used(network(), 0, 0, 0), used(other.network, 1, 3, 2)]);
    // It does not get into a pool when it comes free, either.
    table.release(fixed, &holder(30), 10).unwrap();
    let pool = std::iter::from_fn(|| table.allocate(network(), |_| true)).take(20);
    assert_eq!(pool.filter(|address| *address == fixed).count(), 0);
}

#[test]
fn leases_from_disk_are_in_force_again() {
    let mut before = table("10.7.0.10-10.7.0.12");
    take(&mut before, 1, 0).unwrap();
    take(&mut before, 2, 500).unwrap();
    let mut after = Table::default();
    before.leases().cloned().for_each(|lease| after.restore(lease));
    after.configure(&[subnet("10.7.0.10-10.7.0.12")]);
    after.expire(700);
    assert_eq!(after.of(&holder(1)).map(|l| l.state), Some(LeaseState::Free));
    assert_eq!(after.of(&holder(2)).map(|l| l.state), Some(LeaseState::Bound));
    let octets: Vec<_> = (3..6).map(|n| take(&mut after, n, 700).map(|a| a.octets()[3])).collect();
    assert_eq!(octets, [Some(12), Some(10), None]);
}

/// A client may have a lease on one address and a former one on another. The order on disk is by address, not by time.
#[test]
fn lease_in_force_wins_over_a_former_one_in_any_order_on_disk() {
    let lease = |last: u8, number: u8, state, since| Lease {
        address: Ipv4Addr::new(10, 7, 0, last),
        holder: holder(number),
        mac: mac(number),
        machine: None,
        state,
        since,
        until: since + 600,
    };
    let mut leases = [
        lease(10, 1, LeaseState::Free, 50),
        lease(11, 1, LeaseState::Bound, 100),
        lease(12, 2, LeaseState::Free, 20),
        lease(13, 3, LeaseState::Free, 30),
    ];
    for _ in 0..2 {
        let mut table = Table::default();
        leases.iter().cloned().for_each(|lease| table.restore(lease));
        table.configure(&[subnet("10.7.0.10-10.7.0.13")]);
        assert_eq!(
            table.of(&holder(1)).map(|l| (l.address.octets()[3], l.state)),
            Some((11, LeaseState::Bound))
        );
        assert_eq!(
            table.of(&holder(2)).map(|l| (l.address.octets()[3], l.state)),
            Some((12, LeaseState::Free))
        );
        // The address that is free for the longest time is used first.
        let octets: Vec<_> = (4..8).map(|n| take(&mut table, n, 700).map(|a| a.octets()[3])).collect();
        assert_eq!(octets, [Some(12), Some(13), Some(10), None]);
        leases.reverse();
    }
}

#[test]
fn states_have_the_names_that_the_socket_shows() {
    let states = [LeaseState::Offered, LeaseState::Bound, LeaseState::Declined, LeaseState::Free];
    assert_eq!(states.map(LeaseState::label), ["offered", "bound", "declined", "free"]);
}

#[test]
fn a_pool_of_sixteen_million_addresses_costs_only_what_is_used() {
    let mut table = Table::default();
    let mut large = subnet("10.0.0.1-10.255.255.254");
    large.network = "10.0.0.0/8".parse().unwrap();
    table.configure(&[large.clone()]);
    for number in 0..5000_u32 {
        let address = table.allocate(large.network, |_| true).unwrap();
        let key = ClientKey::Id(number.to_be_bytes().to_vec().into());
        table.bind(address, Holder { network: large.network, key }, mac(1), None, 0, 60);
    }
    table.expire(60);
    assert_eq!(
        table.usage()[0],
        PoolUsage { network: large.network, size: 16_777_214, bound: 0, offered: 0, declined: 0 }
    );
}

#[test]
fn client_without_access_to_the_reserve_does_not_scan_it() {
    let mut table = Table::default();
    let mut large = subnet("10.0.0.1-10.255.255.254");
    large.network = "10.0.0.0/8".parse().unwrap();
    large.reserve = 16_777_212;
    table.configure(&[large.clone()]);
    let looks = std::cell::Cell::new(0);
    let unknown = |table: &mut Table| {
        table.allocate_unreserved(large.network, |address| {
            looks.set(looks.get() + 1);
            !large.is_reserved(address)
        })
    };
    for last in [1, 2] {
        assert_eq!(unknown(&mut table), Some(Ipv4Addr::new(10, 0, 0, last)));
    }
    for _ in 0..3 {
        assert_eq!(unknown(&mut table), None);
    }
    assert_eq!(looks.get(), 2);
    assert_eq!(table.allocate(large.network, |_| true), Some(Ipv4Addr::new(10, 0, 0, 3)), "a Machine has it");
    assert_eq!(table.usage()[0].size, 16_777_214);
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Take(u8),
    Renew(u8),
    Release(u8),
    Decline(u8),
    Withdraw(u8),
    Offer(u8),
    Wait(u16),
    Reconfigure(bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0_u8..12).prop_map(Act::Take),
        3 => (0_u8..12).prop_map(Act::Offer),
        2 => (0_u8..12).prop_map(Act::Renew),
        1 => (0_u8..12).prop_map(Act::Release),
        1 => (0_u8..12).prop_map(Act::Decline),
        1 => (0_u8..12).prop_map(Act::Withdraw),
        2 => (0_u16..700).prop_map(Act::Wait),
        1 => any::<bool>().prop_map(Act::Reconfigure),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_an_address_has_one_client_and_lies_in_its_range(acts in vec(act(), 1..200)) {
        let mut table = table("10.7.0.10-10.7.0.17");
        let mut now = 0;
        let mut bound: HashMap<Ipv4Addr, (u8, Seconds)> = HashMap::new();
        for act in acts {
            table.expire(now);
            bound.retain(|_, (_, until)| *until > now);
            match act {
                Act::Take(number) => {
                    let had = table.of(&holder(number)).map(|l| l.address);
                    let had = had.filter(|a| table.is_open_to(*a, &holder(number)));
                    let Some(address) = had.or_else(|| table.allocate(network(), |_| true)) else { continue };
                    prop_assert!(bound.get(&address).is_none_or(|(owner, _)| *owner == number));
                    table.bind(address, holder(number), mac(number), None, now, 600);
                    bound.retain(|_, (owner, _)| *owner != number);
                    bound.insert(address, (number, now + 600));
                }
                Act::Offer(number) => {
                    if let Some(address) = table.allocate(network(), |_| true) {
                        prop_assert!(!bound.contains_key(&address));
                        table.offer(address, holder(number), mac(number), now);
                    }
                }
                Act::Renew(number) => {
                    let held = bound.iter().find(|(_, (owner, _))| *owner == number).map(|(a, _)| *a);
                    if let Some(address) = held {
                        prop_assert!(table.is_open_to(address, &holder(number)));
                        table.bind(address, holder(number), mac(number), None, now, 600);
                        bound.insert(address, (number, now + 600));
                    }
                }
                Act::Release(number) => {
                    let held = table.of(&holder(number)).map(|l| l.address);
                    if let Some(address) = held && table.release(address, &holder(number), now).is_some() {
                        bound.remove(&address);
                    }
                }
                Act::Decline(number) => {
                    let held = table.of(&holder(number)).map(|l| l.address);
                    if let Some(address) = held && table.decline(address, &holder(number), now, 90).is_some() {
                        bound.remove(&address);
                    }
                }
                Act::Withdraw(number) => table.withdraw(&holder(number), now),
                Act::Wait(seconds) => now += u64::from(seconds),
                Act::Reconfigure(small) => {
                    table.configure(&[subnet(if small { "10.7.0.10-10.7.0.12" } else { "10.7.0.10-10.7.0.17" })]);
                }
            }
            table.expire(now);
            bound.retain(|_, (_, until)| *until > now);
            crate::hostile::check(&table);
            for lease in table.leases() {
                prop_assert!((10..=17).contains(&lease.address.octets()[3]));
            }
            let running = table.leases().filter(|l| l.state == LeaseState::Bound).count();
            prop_assert_eq!(running, bound.len());
        }
    }
}
