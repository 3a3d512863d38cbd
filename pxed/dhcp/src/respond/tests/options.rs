//! Claims about the contents of an answer and its destination.

use super::*;

const PXE: &[u8] = b"\x3c\x09PXEClient";
const HTTP: &[u8] = b"\x3c\x0aHTTPClient";

/// Makes option 55.
fn parameters(codes: &[u8]) -> Vec<u8> {
    [&[55, u8::try_from(codes.len()).unwrap()], codes].concat()
}

#[test]
fn rfc2131_4_3_1_an_option_outside_the_parameter_list_is_not_sent() {
    for (loader, codes) in [(PXE, &[53, 54, 51, 58, 59, 1][..]), (HTTP, &[53, 54, 51, 58, 59, 1, 67, 60])] {
        let offer = read(&lab().send(MACHINE, 1, &[loader, &parameters(&[1])]).packet.unwrap());
        assert_eq!(offer.codes, codes);
    }
}

#[test]
fn a_boot_file_too_long_for_its_field_is_sent_in_option_67() {
    for (length, in_option) in [(11, false), (126, false), (127, false), (128, true), (129, true)] {
        let mut lab = lab();
        let file = "f".repeat(length);
        lab.rack.file = Some(file.clone());
        let server = read(&lab.send(MACHINE, 1, &[PXE, &parameters(&[1])]).packet.unwrap());
        lab.settings.mode = Mode::Proxy;
        let proxy = read(&lab.send(MACHINE, 1, &[PXE]).packet.unwrap());
        for offer in [server, proxy] {
            let option = offer.options.get(&67).map(Vec::as_slice);
            assert_eq!(option, in_option.then_some(file.as_bytes()), "{length}");
            assert_eq!(offer.file, if in_option { "" } else { file.as_str() }, "{length}");
        }
    }
}

#[test]
fn proxy_sends_options_66_and_67_on_request_and_a_url_always() {
    for (loader, list, codes) in [
        (PXE, None, &[53, 54, 60][..]),
        (PXE, Some(&[1, 3][..]), &[53, 54, 60]),
        (PXE, Some(&[66]), &[53, 54, 66, 60]),
        (PXE, Some(&[67]), &[53, 54, 67, 60]),
        (HTTP, None, &[53, 54, 67, 60]),
        (HTTP, Some(&[66, 67]), &[53, 54, 66, 67, 60]),
    ] {
        let mut lab = lab();
        lab.settings.mode = Mode::Proxy;
        let list = list.map(parameters).unwrap_or_default();
        let offer = read(&lab.send(MACHINE, 1, &[loader, &list]).packet.unwrap());
        assert_eq!(offer.codes, codes, "{list:?}");
    }
}

#[test]
fn nameservers_of_a_machine_replace_those_of_its_subnet() {
    let mut lab = lab();
    let subnets = [192, 0, 2, 53];
    assert_eq!(read(&lab.send(MACHINE, 1, &[]).packet.unwrap()).options[&6], subnets);
    lab.rack.nameservers = vec![[10, 7, 0, 53].into(), [10, 7, 0, 54].into()];
    assert_eq!(read(&lab.send(MACHINE, 1, &[]).packet.unwrap()).options[&6], [10, 7, 0, 53, 10, 7, 0, 54]);
    assert_eq!(read(&lab.send(STRANGER, 1, &[]).packet.unwrap()).options[&6], subnets);
}

#[test]
fn rfc3021_a_subnet_of_two_addresses_has_no_broadcast_address() {
    for (prefix, last, broadcast) in [(30, 2, Some(vec![10, 7, 0, 3])), (31, 0, None)] {
        let mut lab = lab();
        let address = Ipv4Addr::new(10, 7, 0, last);
        lab.settings.subnets[0].network = Ipv4Net::new_assert(Ipv4Addr::new(10, 7, 0, 0), prefix);
        lab.settings.subnets[0].ranges.clear();
        lab.rack.fixed.lock().unwrap().insert(MACHINE, address);
        let offer = read(&lab.send(MACHINE, 1, &[]).packet.unwrap());
        assert_eq!((offer.yiaddr, offer.options.get(&28)), (address, broadcast.as_ref()), "/{prefix}");
    }
}

#[test]
fn ciaddr_directs_only_the_answer_to_a_renewal() {
    let by_name = [requested(FIXED), server_id(SERVER)].concat();
    for (kind, options, to) in [
        (1, &[][..], Destination::Hardware(FIXED)),
        (3, &by_name, Destination::Hardware(FIXED)),
        (3, &[], Destination::Routed(SocketAddrV4::new(FIXED, 68))),
    ] {
        let mut packet = message(MACHINE, 0, &[&[53, 1, kind], options].concat());
        packet[12..16].copy_from_slice(&FIXED.octets());
        let answer = read(&lab().send_raw(&packet).packet.unwrap());
        assert_eq!((answer.yiaddr, answer.to), (FIXED, to), "type {kind}, {options:?}");
    }
}

#[test]
fn an_inform_through_a_relay_is_answered_by_broadcast_behind_it() {
    let address = Ipv4Addr::new(10, 8, 0, 77);
    for (header, giaddr, broadcast, to) in [
        (0, RELAY, true, SocketAddrV4::new(RELAY, 67)),
        (0x80, RELAY, true, SocketAddrV4::new(RELAY, 67)),
        (0, Ipv4Addr::UNSPECIFIED, false, SocketAddrV4::new(address, 68)),
        (0x80, Ipv4Addr::UNSPECIFIED, true, SocketAddrV4::new(address, 68)),
    ] {
        let mut packet = message(FLOATING, header, &[53, 1, 8]);
        packet[12..16].copy_from_slice(&address.octets());
        packet[24..28].copy_from_slice(&giaddr.octets());
        let ack = read(&lab().send_raw(&packet).packet.unwrap());
        assert_eq!((ack.broadcast, ack.to), (broadcast, Destination::Routed(to)), "{header} {giaddr}");
    }
}

#[test]
fn proxy_answers_an_inform_at_the_address_of_a_host_only() {
    for (address, to) in [
        (FIXED, Some(Destination::Routed(SocketAddrV4::new(FIXED, 68)))),
        (Ipv4Addr::new(10, 7, 0, 0), None),
        (Ipv4Addr::new(10, 7, 0, 255), None),
    ] {
        let mut lab = lab();
        lab.settings.mode = Mode::Proxy;
        let mut packet = message(MACHINE, 0, &[&[53, 1, 8], PXE].concat());
        packet[12..16].copy_from_slice(&address.octets());
        let response = lab.send_raw(&packet);
        let result = if to.is_some() { Ok(Event::ProxyAnswered) } else { Err(Silence::NoSubnet) };
        assert_eq!((response.result, response.packet.map(|p| p.to)), (result, to), "{address}");
    }
}

#[test]
fn an_answer_names_the_address_that_was_called_and_leaves_from_its_own() {
    let second = Ipv4Addr::new(10, 7, 0, 2);
    // An address of another interface: the client keeps it as server identifier, but no packet leaves from it on this link.
    let elsewhere = Ipv4Addr::new(192, 0, 2, 1);
    for (called, source) in [(SERVER, SERVER), (second, second), (elsewhere, SERVER)] {
        let mut lab = lab();
        lab.lease(MACHINE);
        lab.arrival.addresses =
            Box::leak(Box::new([Ipv4Net::new_assert(SERVER, 24), Ipv4Net::new_assert(second, 24)]));
        lab.unicast_from(FIXED);
        lab.arrival.destination = called;
        let ack = read(&lab.send_from(MACHINE, 3, FIXED).packet.unwrap());
        assert_eq!((ack.kind, ack.options[&54].as_slice(), ack.source), (5, &called.octets()[..], source));
    }
}

#[test]
fn a_query_carries_mode_vendor_class_and_host_name() {
    for mode in [Mode::Server, Mode::Proxy] {
        let mut lab = lab();
        lab.settings.mode = mode;
        let query = lab.send(MACHINE, 1, &[PXE, b"\x0c\x02\x68\xff"]).query.unwrap();
        let text = (query.vendor_class.as_str(), query.host_name.as_deref());
        assert_eq!(text, ("PXEClient", Some("h\u{fffd}")), "{mode:?}");
        assert_eq!(query.proxy, mode == Mode::Proxy);
    }
}
