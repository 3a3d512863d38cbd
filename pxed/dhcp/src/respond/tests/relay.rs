//! Claims about relays, and about messages from another network.

use super::*;

#[test]
fn through_a_relay_the_answer_goes_back_whole_to_its_port_67() {
    let mut lab = lab();
    let options = [53, 1, 1, 82, 4, 1, 2, 7, 7];
    let offer = read(&lab.send_raw(&message(STRANGER, 0x10, &options)).packet.unwrap());
    assert_eq!(offer.yiaddr, Ipv4Addr::new(10, 8, 0, 100));
    assert_eq!(offer.to, Destination::Routed(SocketAddrV4::new(RELAY, 67)));
    assert_eq!((offer.codes.last(), &offer.options[&82]), (Some(&82), &vec![1, 2, 7, 7]));
    assert_eq!(offer.options[&54], SERVER.octets());
}

#[test]
fn link_selection_server_override_and_source_port_of_a_relay_are_honored() {
    let mut lab = lab();
    lab.arrival.peer = SocketAddrV4::new(RELAY, 6767);
    let options = [53, 1, 1, 82, 14, 5, 4, 10, 7, 0, 0, 11, 4, 10, 7, 0, 254, 19, 0];
    let offer = read(&lab.send_raw(&message(STRANGER, 0x10, &options)).packet.unwrap());
    assert_eq!(offer.yiaddr, POOL, "in the selected link's subnet");
    assert_eq!(offer.to, Destination::Routed(SocketAddrV4::new(RELAY, 6767)));
    assert_eq!((offer.options[&54].as_slice(), offer.source), ([10, 7, 0, 254].as_slice(), SERVER));
    let request =
        [&[53, 1, 3], options.get(3..).unwrap(), &requested(POOL), &[54, 4, 10, 7, 0, 254]].concat();
    assert_eq!(kind(&lab.send_raw(&message(STRANGER, 0x10, &request))), Some(5));
}

#[test]
fn nak_through_a_relay_asks_it_to_broadcast() {
    let options = [&[53, 1, 3], requested(POOL).as_slice()].concat();
    let nak = read(&lab().send_raw(&message(STRANGER, 0x10, &options)).packet.unwrap());
    assert_eq!((nak.kind, nak.broadcast), (6, true));
    assert_eq!(nak.to, Destination::Routed(SocketAddrV4::new(RELAY, 67)));
}

#[test]
fn a_relay_on_a_subnet_that_is_not_ours_is_not_answered() {
    let mut packet = message(STRANGER, 0, &[53, 1, 1]);
    packet[24..28].copy_from_slice(&[172, 16, 0, 1]);
    let response = lab().send_raw(&packet);
    assert_eq!((response.query, response.result), (None, Err(Silence::UnlistedRelay)));
}

#[test]
fn a_giaddr_that_is_no_listed_relay_gets_no_answer() {
    let (attacker, foreign) = (Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(10, 8, 0, 77));
    let circuit: &[u8] = &[82, 3, 1, 1, 7];
    let link: &[u8] = &[82, 6, 5, 4, 10, 7, 0, 0];
    let as_server: &[u8] = &[82, 6, 11, 4, 10, 8, 0, 77];
    let own_port: &[u8] = &[82, 2, 19, 0];
    for (giaddr, source) in [(foreign, foreign), (attacker, attacker), (RELAY, attacker), (foreign, RELAY)] {
        for (kind, more) in
            [1, 3, 4, 7, 8].iter().flat_map(|kind| [circuit, link, as_server, own_port].map(|m| (*kind, m)))
        {
            let mut lab = lab();
            lab.unicast_from(source);
            let options = [&[53, 1, kind], more, &requested(FIXED), b"\x4d\x04iPXE"].concat();
            let mut packet = message(MACHINE, 0, &options);
            packet[24..28].copy_from_slice(&giaddr.octets());
            let response = lab.send_raw(&packet);
            let silent = (Err(Silence::UnlistedRelay), None);
            assert_eq!(
                (response.result, response.packet),
                silent,
                "{giaddr} from {source}, type {kind}, {more:?}"
            );
            assert_eq!((lab.opened_boots(), lab.table.leases().count()), (0, 0));
        }
    }
}

#[test]
fn a_relay_that_sends_from_another_of_its_addresses_has_both_listed() {
    let uplink = Ipv4Addr::new(192, 0, 2, 6);
    let mut lab = lab();
    lab.unicast_from(uplink);
    let packet = relayed(1, &[1, 1, 7], b"\x4d\x04iPXE");
    assert_eq!(lab.send_raw(&packet).result, Err(Silence::UnlistedRelay));
    lab.settings.subnets[1].relays.push("192.0.2.4/30".parse().unwrap());
    let offer = read(&lab.send_raw(&packet).packet.unwrap());
    assert_eq!((offer.to, offer.file.is_empty()), (Destination::Routed(SocketAddrV4::new(RELAY, 67)), false));
}

#[test]
fn a_relay_selects_only_links_whose_subnets_list_it() {
    let mut lab = lab();
    lab.settings.subnets[0].relays.clear();
    assert_eq!(lab.send_raw(&relayed(1, &[5, 4, 10, 7, 0, 0], &[])).result, Err(Silence::UnlistedRelay));
    assert_eq!(kind(&lab.send_raw(&relayed(1, &[5, 4, 10, 8, 0, 0], &[]))), Some(2));
}

#[test]
fn options_that_direct_an_answer_are_a_relays_and_a_circuit_is_a_switchs() {
    for information in [&[5, 4, 10, 8, 0, 0][..], &[11, 4, 10, 7, 0, 66], &[19, 0]] {
        let mut lab = lab();
        let option = [&[82, u8::try_from(information.len()).unwrap()], information].concat();
        let response = lab.send(MACHINE, 1, &[&option, b"\x4d\x04iPXE"]);
        assert_eq!(
            (response.result, lab.opened_boots()),
            (Err(Silence::UnlistedRelay), 0),
            "{information:?}"
        );
    }
    let offer = read(&lab().send(MACHINE, 1, &[&[82, 3, 1, 1, 7]]).packet.unwrap());
    assert_eq!(offer.options[&82], [1, 1, 7]);
}

#[test]
fn trust_6_a_message_from_another_network_opens_no_boot() {
    let attacker = Ipv4Addr::new(192, 0, 2, 9);
    for own in [None, Some(attacker), Some(Ipv4Addr::new(10, 8, 0, 102)), Some(FIXED)] {
        for kind in [1, 3, 4, 7, 8] {
            for more in [&[][..], &server_id(SERVER), &requested(FIXED)] {
                let mut lab = lab();
                lab.unicast_from(attacker);
                let mut packet =
                    message(MACHINE, 0, &[&[53, 1, kind], b"\x4d\x04iPXE".as_slice(), more].concat());
                packet[12..16].copy_from_slice(&own.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
                let request = decode(&packet).unwrap();
                let response =
                    respond(&lab.settings, &lab.rack, &mut lab.table, &request, &lab.arrival, lab.now);
                let packet = response.ok().and_then(|response| response.packet);
                assert_eq!(packet, None, "type {kind} with {own:?} and {more:?}");
                assert_eq!((lab.opened_boots(), lab.table.leases().count()), (0, 0));
            }
        }
    }
}

#[test]
fn inform_of_another_network_gets_options_and_no_boot_data() {
    let mut lab = lab();
    let address = Ipv4Addr::new(10, 8, 0, 77);
    lab.unicast_from(address);
    let mut packet = message(MACHINE, 0, b"\x35\x01\x08\x4d\x04iPXE");
    packet[12..16].copy_from_slice(&address.octets());
    let ack = read(&lab.send_raw(&packet).packet.unwrap());
    assert_eq!((ack.kind, ack.file.as_str(), ack.options.get(&67)), (5, "", None));
    assert_eq!(lab.opened_boots(), 0);
    lab.settings.mode = Mode::Proxy;
    assert_eq!(lab.send_raw(&packet).result, Err(Silence::NoBoot));
}

#[test]
fn relay_server_override_changes_option_54_and_no_boot_address() {
    let mut lab = lab();
    lab.arrival.destination = SERVER;
    let pxe = [&[60, 9], b"PXEClient".as_slice()].concat();
    let offer = read(&lab.send_raw(&relayed(1, &[11, 4, 10, 8, 0, 1], &pxe)).packet.unwrap());
    assert_eq!(offer.options[&54], RELAY.octets());
    assert_eq!(offer.source, SERVER);
    assert_eq!(lab.rack.boots.lock().unwrap()[0].server, SERVER, "TFTP and HTTP are here, not at the relay");
}

#[test]
fn a_relay_with_a_networks_or_broadcast_address_is_not_answered() {
    for relay in [[10, 8, 0, 0], [10, 8, 0, 255], [10, 7, 0, 255]] {
        let mut packet = relayed(1, &[], &[]);
        packet[24..28].copy_from_slice(&relay);
        let response = lab().send_raw(&packet);
        assert_eq!((response.result, response.packet), (Err(Silence::NoSubnet), None), "{relay:?}");
    }
}

#[test]
fn trust_6_fixed_address_of_a_machine_is_not_a_relay() {
    let uplink = Ipv4Addr::new(10, 8, 0, 2);
    let boots = |lab: &mut Lab, source| {
        lab.unicast_from(source);
        (lab.send_raw(&relayed(1, &[1, 1, 7], b"\x4d\x04iPXE")), lab.opened_boots())
    };
    // The address that the answer goes to, and the address that the message comes from.
    for (address, source) in [(RELAY, RELAY), (RELAY, uplink), (uplink, uplink)] {
        let mut lab = lab();
        lab.settings.subnets[1].relays.push(Ipv4Net::from(uplink));
        lab.rack.fixed.lock().unwrap().insert(MACHINE, address);
        let (response, opened) = boots(&mut lab, source);
        assert_eq!((response.result, response.packet), (Err(Silence::RelayIsMachine), None), "{address}");
        assert_eq!((opened, lab.table.leases().count()), (0, 0), "{address}");
        lab.rack.fixed.lock().unwrap().insert(MACHINE, FIXED);
        let (response, opened) = boots(&mut lab, source);
        assert_eq!((kind(&response), opened), (Some(2), 1), "{address}: the Machine has another address");
    }
}

#[test]
fn trust_6_relay_that_is_a_machine_is_named_with_its_remedy() {
    let mut lab = lab();
    lab.unicast_from(RELAY);
    lab.rack.fixed.lock().unwrap().insert(MACHINE, RELAY);
    let packet = relayed(1, &[], &[]);
    let request = decode(&packet).unwrap();
    let (settings, clients): (_, &dyn Clients) = (&lab.settings, &lab.rack);
    let ignored = |reason| {
        crate::ignored::Ignored::new(reason, (settings, clients), &request, &lab.arrival, None, 0).unwrap()
    };
    assert_eq!(
        ignored(Silence::RelayIsMachine).advice(),
        "10.8.0.1 is in the relays of 10.8.0.0/24, and it is the fixed address of 52:54:00:00:00:01: that host could pose \
         as any client of the subnet; remove the address from relays in [[dhcp.subnet]], or from \
         spec.pxe.interfaces[].addresses"
    );
    assert_eq!(ignored(Silence::UnlistedRelay).machine, None);
}
