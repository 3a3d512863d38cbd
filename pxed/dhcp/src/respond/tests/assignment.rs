//! Claims about the choice of an address: fixed, pool, reserve and subnet.

use super::*;

#[test]
fn full_pool_is_said_to_be_full() {
    let mut lab = lab();
    for number in 0..3 {
        lab.lease(STRANGER + number);
    }
    assert_eq!(lab.send(STRANGER + 3, 1, &[]).result, Err(Silence::PoolExhausted));
    assert_eq!(kind(&lab.send(MACHINE, 1, &[])), Some(2), "a fixed address needs no pool");
}

#[test]
fn machine_is_its_hardware_address_and_a_stranger_its_client_id() {
    let mut lab = lab();
    let offer =
        |lab: &mut Lab, client, id: &[u8]| read(&lab.send(client, 1, &[&[61, 2], id]).packet.unwrap()).yiaddr;
    let (a, b) = (offer(&mut lab, FLOATING, &[0, 1]), offer(&mut lab, FLOATING, &[0, 2]));
    assert_eq!(a, b);
    let (a, b) = (offer(&mut lab, STRANGER, &[0, 1]), offer(&mut lab, STRANGER, &[0, 2]));
    assert_ne!(a, b);
}

#[test]
fn fixed_address_held_by_another_is_free_after_its_refused_renewal() {
    let mut lab = lab();
    let held = lab.lease(STRANGER);
    lab.rack.fixed.lock().unwrap().insert(FLOATING, held);
    let offer = read(&lab.send(FLOATING, 1, &[]).packet.unwrap());
    assert_ne!(offer.yiaddr, held);
    assert_eq!(kind(&lab.send_from(STRANGER, 3, held)), Some(6), "its holder is sent away");
    lab.now += 3600;
    assert_eq!(lab.lease(FLOATING), held);
}

#[test]
fn fixed_addresses_are_never_given_from_the_pool() {
    for client in [STRANGER, FLOATING] {
        for options in [vec![], requested(POOL)] {
            let mut lab = lab();
            lab.rack.fixed.lock().unwrap().insert(MACHINE, POOL);
            let offer = read(&lab.send(client, 1, &[&options]).packet.unwrap());
            assert_ne!(offer.yiaddr, POOL, "{client} {options:?}");
            assert_eq!(lab.lease(MACHINE), POOL);
        }
    }
}

#[test]
fn a_machine_without_a_fixed_address_in_its_subnet_gets_no_pool_address() {
    // The address is in no subnet of ours, or in another subnet than the client boots in.
    for third in [9, 8] {
        let mut lab = lab();
        let held = lab.lease(FLOATING);
        lab.rack.fixed.lock().unwrap().insert(FLOATING, Ipv4Addr::new(10, third, 0, 20));
        let by_name = [requested(held), server_id(SERVER)].concat();
        for (state, response) in [
            ("discover", lab.send(FLOATING, 1, &[])),
            ("selecting", lab.send(FLOATING, 3, &[&by_name])),
            ("init-reboot", lab.send(FLOATING, 3, &[&requested(held)])),
        ] {
            assert_eq!(
                (response.result, response.packet),
                (Err(Silence::FixedOutside), None),
                "{third}: {state}"
            );
            assert_eq!(response.query.unwrap().subnet.to_string(), "10.7.0.0/24", "{third}: {state}");
        }
        assert_eq!(
            kind(&lab.send_from(FLOATING, 3, held)),
            Some(5),
            "{third}: a host that runs keeps its address"
        );
        lab.rack.fixed.lock().unwrap().insert(FLOATING, Ipv4Addr::new(10, 7, 0, 20));
        assert_eq!(kind(&lab.send(FLOATING, 1, &[])), Some(2), "{third}: corrected");
    }
}

#[test]
fn subnets_on_one_link_are_distinguished_by_the_clients_address() {
    let mut lab = lab();
    lab.arrival.addresses = Box::leak(Box::new([
        Ipv4Net::new_assert(SERVER, 24),
        Ipv4Net::new_assert(Ipv4Addr::new(10, 8, 0, 1), 24),
    ]));
    lab.rack.fixed.lock().unwrap().insert(FLOATING, Ipv4Addr::new(10, 8, 0, 50));
    let offer = read(&lab.send(FLOATING, 1, &[]).packet.unwrap());
    assert_eq!((offer.yiaddr, offer.options[&3].as_slice()), ([10, 8, 0, 50].into(), &[10, 7, 0, 254][..]));
    assert_eq!(kind(&lab.send_from(STRANGER, 3, Ipv4Addr::new(10, 8, 0, 101))), Some(5));
}

#[test]
fn all_zeros_and_a_networks_own_address_are_not_ours() {
    for destination in [[0, 0, 0, 0], [10, 7, 0, 0], [10, 7, 0, 255]] {
        let mut lab = lab();
        lab.arrival.destination = destination.into();
        let offer = read(&lab.send(MACHINE, 1, &[]).packet.unwrap());
        assert_eq!((offer.options[&54].as_slice(), offer.source), (SERVER.octets().as_slice(), SERVER));
    }
}

#[test]
fn inform_from_an_address_that_is_no_hosts_of_ours_is_not_answered() {
    for address in [[192, 0, 2, 1], [10, 7, 0, 0], [10, 7, 0, 255], SERVER.octets()] {
        let response = lab().send_from(MACHINE, 8, address.into());
        assert_eq!((response.result, response.packet), (Err(Silence::NoSubnet), None), "{address:?}");
    }
    assert_eq!(kind(&lab().send_from(MACHINE, 8, Ipv4Addr::new(10, 7, 0, 33))), Some(5));
}

#[test]
fn client_with_a_machines_fixed_address_gets_a_nak() {
    assert_eq!(kind(&lab().send_from(STRANGER, 3, FIXED)), Some(6), "renewing");
    assert_eq!(kind(&lab().send(STRANGER, 3, &[&requested(FIXED)])), Some(6), "after a reboot");
    let mut lab = lab();
    lab.settings.authoritative = false;
    assert_eq!(lab.send_from(STRANGER, 3, FIXED).result, Err(Silence::NotAuthoritative));
}

#[test]
fn pxeds_own_address_as_a_fixed_one_is_not_replaced_by_a_pool_address() {
    let mut lab = lab();
    lab.rack.fixed.lock().unwrap().insert(MACHINE, SERVER);
    let by_name = [requested(SERVER), server_id(SERVER)].concat();
    for response in [lab.send(MACHINE, 1, &[]), lab.send(MACHINE, 3, &[&by_name])] {
        assert_eq!((response.result, response.packet), (Err(Silence::FixedOutside), None));
    }
}

#[test]
fn pxeds_address_on_another_interface_is_not_given_to_a_machine_either() {
    let other = Ipv4Addr::new(10, 7, 0, 101);
    let mut lab = lab();
    lab.arrival.own = Box::leak(Box::new([SERVER, other]));
    lab.rack.fixed.lock().unwrap().insert(MACHINE, other);
    let by_name = [requested(other), server_id(SERVER)].concat();
    for response in [lab.send(MACHINE, 1, &[]), lab.send(MACHINE, 3, &[&by_name])] {
        assert_eq!((response.result, response.packet), (Err(Silence::FixedOutside), None));
    }
    assert_eq!(lab.send_from(MACHINE, 8, other).result, Err(Silence::NoSubnet), "nor as its own by INFORM");
    lab.rack.fixed.lock().unwrap().remove(&MACHINE);
    let leased = [lab.lease(STRANGER), lab.lease(STRANGER + 1)];
    assert_eq!(leased, [POOL, Ipv4Addr::new(10, 7, 0, 102)], "nor by the pool");
}

#[test]
fn unknown_machines_that_fill_the_pool_leave_the_reserve_to_machines() {
    let mut lab = lab();
    let reserved = Ipv4Addr::new(10, 7, 0, 102);
    lab.settings.subnets[0].reserve = 1;
    assert_eq!((lab.lease(STRANGER), lab.lease(STRANGER + 1)), (POOL, Ipv4Addr::new(10, 7, 0, 101)));
    assert_eq!(lab.send(STRANGER + 2, 1, &[]).result, Err(Silence::PoolExhausted));
    assert_eq!(
        lab.send(STRANGER + 2, 1, &[&requested(reserved)]).result,
        Err(Silence::PoolExhausted),
        "asked for by name"
    );
    assert_eq!(kind(&lab.send(STRANGER + 1, 3, &[&requested(reserved), &server_id(SERVER)])), Some(6));
    assert_eq!(lab.lease(FLOATING), reserved);
}

#[test]
fn the_reserve_is_the_end_of_the_last_ranges() {
    let mut subnet = lab().settings.subnets.remove(0);
    subnet.ranges =
        ["10.7.0.100-10.7.0.102", "10.7.0.10-10.7.0.11"].map(|range| range.parse().unwrap()).to_vec();
    for (reserve, expected) in [
        (0, &[][..]),
        (1, &[11]),
        (3, &[10, 11, 102]),
        (5, &[10, 11, 100, 101, 102]),
        (u64::MAX, &[10, 11, 100, 101, 102]),
    ] {
        subnet.reserve = reserve;
        let found: Vec<u8> =
            (0..=255).filter(|last| subnet.is_reserved(Ipv4Addr::new(10, 7, 0, *last))).collect();
        assert_eq!(found, expected, "{reserve}");
    }
}
