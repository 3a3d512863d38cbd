//! Claims about the client's states and its place: refusals, declined and released addresses, DHCPINFORM.

use super::*;
use crate::lease::{DECLINED_FIXED_SECONDS, DECLINED_SECONDS};

const SECOND: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 101);
const THIRD: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 102);

#[test]
fn rfc2131_4_3_2_init_reboot_without_a_record_of_the_client_is_ignored() {
    let mut lab = lab();
    assert_eq!(lab.lease(STRANGER), POOL);
    lab.arrival.peer = SocketAddrV4::new(POOL, 68);
    assert_eq!(lab.send_from(STRANGER, 7, POOL).result, Ok(Event::Released(POOL)));
    lab.arrival.peer = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
    let other = lab.send(STRANGER + 1, 3, &[&requested(POOL)]);
    assert_eq!((other.result, other.packet), (Err(Silence::NoRecord), None), "another client's record");
    assert_eq!(kind(&lab.send(STRANGER, 3, &[&requested(POOL)])), Some(5), "its own record");
}

#[test]
fn rfc2131_4_3_2_init_reboot_is_refused_if_another_address_is_known() {
    assert_eq!(kind(&lab().send(MACHINE, 3, &[&requested(POOL)])), Some(6), "a fixed address, no lease");
    let mut lab = lab();
    assert_eq!(lab.lease(STRANGER), POOL);
    assert_eq!(kind(&lab.send(STRANGER, 3, &[&requested(SECOND)])), Some(6), "a lease, no fixed address");
}

#[test]
fn rfc2131_4_3_2_rebinding_of_a_wrong_address_is_refused() {
    for (client, address, reserve) in [
        (STRANGER, Ipv4Addr::new(192, 168, 1, 5), 0),
        (STRANGER, Ipv4Addr::new(10, 7, 0, 255), 0),
        (STRANGER, THIRD, 1),
        (MACHINE, Ipv4Addr::new(10, 7, 0, 50), 0),
        (MACHINE, POOL, 0),
    ] {
        let mut lab = lab();
        lab.settings.subnets[0].reserve = reserve;
        assert_eq!(kind(&lab.send_from(client, 3, address)), Some(6), "{client} {address}");
    }
}

#[test]
fn a_machine_may_have_a_pool_address_only_while_its_fixed_one_is_held() {
    let by_name = [requested(SECOND), server_id(SERVER)].concat();
    for (held, answer) in [(false, 6), (true, 5)] {
        let mut lab = lab();
        if held {
            assert_eq!(lab.lease(STRANGER), POOL);
        }
        lab.rack.fixed.lock().unwrap().insert(FLOATING, POOL);
        assert_eq!(kind(&lab.send(FLOATING, 3, &[&by_name])), Some(answer), "held: {held}");
    }
}

#[test]
fn rfc2131_4_3_3_a_fixed_address_is_declined_for_a_shorter_time() {
    for (client, fixed, seconds) in [
        (MACHINE, None, DECLINED_FIXED_SECONDS),
        (FLOATING, None, DECLINED_SECONDS),
        // Another client holds the Machine's fixed address, so the Machine has a pool address.
        (FLOATING, Some(POOL), DECLINED_SECONDS),
        (STRANGER, None, DECLINED_SECONDS),
    ] {
        let mut lab = lab();
        assert_eq!(lab.lease(STRANGER + 1), POOL);
        if let Some(fixed) = fixed {
            lab.rack.fixed.lock().unwrap().insert(client, fixed);
        }
        let address = lab.lease(client);
        let response = lab.send(client, 4, &[&requested(address)]);
        let until = lab.now + seconds;
        assert!(
            matches!(response.changes.as_slice(), [Change::Put(lease)] if lease.address == address && lease.until == until),
            "{client} {fixed:?}: {:?}",
            response.changes
        );
    }
}

#[test]
fn rfc2131_4_3_4_a_release_that_names_another_server_is_ignored() {
    for (server, result) in
        [(SERVER, Ok(Event::Released(POOL))), (Ipv4Addr::new(10, 7, 0, 2), Err(Silence::OtherServer))]
    {
        let mut lab = lab();
        assert_eq!(lab.lease(STRANGER), POOL);
        lab.arrival.peer = SocketAddrV4::new(POOL, 68);
        let mut packet = message(STRANGER, 0, &[&[53, 1, 7], server_id(server).as_slice()].concat());
        packet[12..16].copy_from_slice(&POOL.octets());
        let response = lab.send_raw(&packet);
        assert_eq!((response.result.clone(), response.changes.len()), (result, response.result.iter().len()));
    }
}

#[test]
fn rfc2131_4_3_5_inform_without_ciaddr_is_answered_at_its_source() {
    let mut lab = lab();
    let source = Ipv4Addr::new(10, 7, 0, 77);
    lab.arrival.peer = SocketAddrV4::new(source, 68);
    let response = lab.send(STRANGER, 8, &[]);
    assert_eq!(response.result, Ok(Event::Acknowledged(source)));
    assert_eq!(response.packet.unwrap().to, Destination::Routed(SocketAddrV4::new(source, 68)));
}

#[test]
fn trust_6_a_unicast_message_without_ciaddr_is_not_answered() {
    for kind in [1, 3, 7, 8] {
        let mut lab = lab();
        lab.unicast_from(Ipv4Addr::new(10, 7, 0, 77));
        let response = lab.send(STRANGER, kind, &[]);
        assert_eq!((response.result, response.packet), (Err(Silence::NotOnLink), None), "type {kind}");
    }
}

#[test]
fn a_message_from_no_subnet_is_not_attributed_to_a_client() {
    let mut lab = lab();
    lab.settings.subnets.clear();
    for client in [MACHINE, STRANGER, OUTSIDER] {
        let response = lab.send(client, 1, &[]);
        assert_eq!((response.query, response.result), (None, Err(Silence::NoSubnet)), "{client}");
    }
}

#[test]
fn a_new_client_is_placed_in_the_first_subnet_of_its_link_with_a_pool() {
    let mut lab = lab();
    lab.arrival.addresses =
        Box::leak(Box::new([Ipv4Net::new_assert(SERVER, 24), Ipv4Net::new_assert(RELAY, 24)]));
    assert_eq!(lab.lease(STRANGER), POOL);
    lab.settings.subnets[0].ranges.clear();
    assert_eq!(lab.lease(STRANGER + 1), Ipv4Addr::new(10, 8, 0, 100));
}
