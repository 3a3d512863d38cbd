//! Claims about boot information for firmware and loaders, also in proxy mode and on port 4011.

use super::*;

#[test]
fn firmware_pxe_gets_file_and_its_uuid_but_no_hint_to_port_4011() {
    let uuid = [&[97, 17, 0], [7; 16].as_slice()].concat();
    let offer = read(&lab().send(MACHINE, 1, &[b"\x3c\x09PXEClient", &uuid]).packet.unwrap());
    assert_eq!((offer.file.as_str(), offer.siaddr), ("snponly.efi", SERVER));
    assert_eq!(offer.options[&97].len(), 17);
    assert_eq!(
        (offer.options[&66].as_slice(), offer.options[&67].as_slice()),
        (&b"10.7.0.1"[..], &b"snponly.efi"[..])
    );
    assert!(!offer.options.contains_key(&60));
}

#[test]
fn uefi_http_boot_gets_its_class_and_a_url_in_option_67_asked_for_or_not() {
    let offer = read(&lab().send(MACHINE, 1, &[b"\x3c\x0aHTTPClient", &[55, 1, 1]]).packet.unwrap());
    assert_eq!(offer.options[&60], b"HTTPClient");
    assert_eq!(offer.options[&67], b"http://10.7.0.1:8067/b/1/loader/ipxe.efi");
}

#[test]
fn ipxe_gets_the_option_not_to_wait_for_a_proxy() {
    let offer = read(&lab().send(MACHINE, 1, &[b"\xaf\x03\xb1\x01\x01"]).packet.unwrap());
    assert_eq!(offer.options[&option::IPXE], [176, 1, 1]);
    assert_eq!(offer.file, "http://10.7.0.1:8067/b/1/script.ipxe");
}

#[test]
fn no_boot_decision_is_made_for_a_client_that_does_not_netboot() {
    let mut lab = lab();
    lab.send(MACHINE, 1, &[]);
    assert!(lab.rack.boots.lock().unwrap().is_empty());
    lab.send(MACHINE, 1, &[b"\xaf\x00"]);
    assert_eq!(lab.rack.boots.lock().unwrap().len(), 1);
}

#[test]
fn proxy_offers_boot_information_to_loaders_and_nothing_to_others() {
    let mut lab = lab();
    lab.settings.mode = Mode::Proxy;
    let offer = read(&lab.send(MACHINE, 1, &[b"\x3c\x09PXEClient"]).packet.unwrap());
    assert_eq!((offer.kind, offer.yiaddr, offer.to), (2, Ipv4Addr::UNSPECIFIED, Destination::Broadcast));
    assert_eq!((offer.options[&60].as_slice(), offer.file.as_str()), (&b"PXEClient"[..], "snponly.efi"));
    assert!([1, 3, 51, 58, 59].iter().all(|code| !offer.options.contains_key(code)));
    let http = read(&lab.send(MACHINE, 1, &[b"\x3c\x0aHTTPClient"]).packet.unwrap());
    assert_eq!(http.options[&60], b"HTTPClient");
    assert_eq!(lab.send(MACHINE, 1, &[]).result, Err(Silence::NotALoader));
    let request = lab.send(MACHINE, 3, &[b"\x3c\x09PXEClient", &requested(POOL), &server_id(SERVER)]);
    assert_eq!(request.result, Err(Silence::NotOurs));
    assert_eq!(lab.send(OUTSIDER, 1, &[b"\x3c\x09PXEClient"]).result, Err(Silence::UnknownClient));
    assert_eq!(lab.table.leases().count(), 0);
}

#[test]
fn proxy_needs_no_subnet_of_its_own() {
    let mut lab = lab();
    lab.settings.mode = Mode::Proxy;
    lab.settings.subnets.clear();
    let response = lab.send(MACHINE, 1, &[b"\x3c\x09PXEClient"]);
    assert_eq!(response.query.map(|q| q.subnet), Some("10.7.0.0/24".parse().unwrap()));
    assert!(response.packet.is_some());
}

/// Makes a request of firmware on port 4011.
fn boot_server_request(client: u8) -> Vec<u8> {
    message(client, 0, b"\x35\x01\x03\x4d\x04iPXE\x3c\x09PXEClient")
}

#[test]
fn trust_6_a_request_on_4011_from_another_network_opens_no_boot() {
    let outside = Ipv4Addr::new(192, 0, 2, 9);
    let behind = Heard::Behind("10.8.0.0/24".parse().unwrap());
    for mode in [Mode::Server, Mode::Proxy] {
        for (source, discovered) in [
            (outside, None),
            (FIXED, None),
            (outside, Some(Heard::Link)),
            (outside, Some(behind)),
            (FIXED, Some(behind)),
            (Ipv4Addr::new(10, 8, 0, 50), Some(Heard::Link)),
        ] {
            let mut lab = lab();
            lab.settings.mode = mode;
            lab.unicast_from(source);
            (lab.arrival.boot_server, lab.arrival.discovered) = (true, discovered);
            let response = lab.send_raw(&boot_server_request(MACHINE));
            let silent = (Err(Silence::NotDiscovered), None);
            assert_eq!((response.result, response.packet), silent, "{mode:?} {source} {discovered:?}");
            assert_eq!(lab.opened_boots(), 0);
        }
    }
}

#[test]
fn an_answered_discover_opens_the_boot_server_port_to_its_client() {
    let mut lab = lab();
    lab.settings.mode = Mode::Proxy;
    let pxe = b"\x3c\x09PXEClient";
    assert_eq!(lab.send(MACHINE, 1, &[pxe]).heard, Some(Heard::Link));
    assert_eq!(lab.send(MACHINE, 1, &[]).heard, None, "not a loader");
    assert_eq!(lab.send(OUTSIDER, 1, &[pxe]).heard, None);
    let heard = lab.send_raw(&relayed(1, &[1, 1, 7], pxe)).heard;
    assert_eq!(heard, Some(Heard::Behind("10.8.0.0/24".parse().unwrap())));
    lab.unicast_from(Ipv4Addr::new(10, 8, 0, 50));
    (lab.arrival.boot_server, lab.arrival.discovered) = (true, heard);
    assert_eq!(kind(&lab.send_raw(&boot_server_request(MACHINE))), Some(5));
}

#[test]
fn boot_server_answers_its_sender_and_repeats_the_boot_item() {
    let mut lab = lab();
    lab.settings.mode = Mode::Proxy;
    (lab.arrival.boot_server, lab.arrival.discovered) = (true, Some(Heard::Link));
    lab.arrival.destination = SERVER;
    lab.arrival.peer = SocketAddrV4::new(FIXED, 4011);
    let mut packet =
        message(MACHINE, 0, b"\x35\x01\x03\x3c\x09PXEClient\x2b\x07\x47\x04\x00\x01\x00\x00\xff");
    packet[12..16].copy_from_slice(&FIXED.octets());
    let response = lab.send_raw(&packet);
    let ack = read(response.packet.as_ref().unwrap());
    assert_eq!((ack.kind, ack.to), (5, Destination::BootServer(lab.arrival.peer)));
    assert_eq!((ack.yiaddr, ack.ciaddr), (Ipv4Addr::UNSPECIFIED, FIXED));
    assert_eq!(ack.options[&43], [71, 4, 0, 1, 0, 0, 255]);
    assert_eq!((response.result, response.changes.len()), (Ok(Event::ProxyAnswered), 0));
}
