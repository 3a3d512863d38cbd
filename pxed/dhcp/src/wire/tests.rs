//! Claims about messages on the wire; dhcproto, written by others, reads what we write.

use dhcproto::Decoder;
use dhcproto::v4::{Decodable, DhcpOption, Message, OptionCode};

use super::*;
use crate::client::Loader;
use crate::hostile::message;

const DISCOVER: [u8; 3] = [53, 1, 1];

fn with(options: &[u8]) -> Vec<u8> {
    message(1, 0, &[&DISCOVER, options].concat())
}

fn changed(at: usize, value: u8) -> Vec<u8> {
    let mut packet = with(&[]);
    packet[at] = value;
    packet
}

#[test]
fn each_fault_has_its_reason() {
    let unterminated = |options: &[u8]| {
        let mut packet = with(options);
        packet.pop();
        packet
    };
    let cases = [
        (with(&[])[..239].to_vec(), Malformed::TooShort),
        (Vec::new(), Malformed::TooShort),
        (changed(0, 2), Malformed::NotARequest),
        (changed(1, 6), Malformed::HardwareType),
        (changed(2, 16), Malformed::HardwareType),
        (changed(3, 17), Malformed::Hops),
        (changed(12, 224), Malformed::ClientAddress),
        (changed(24, 255), Malformed::RelayAddress),
        (changed(28, 0x53), Malformed::HardwareAddress),
        (changed(236, 0), Malformed::Cookie),
        (message(1, 0, &[]), Malformed::NoMessageType),
        (message(1, 0, &[53, 0]), Malformed::MessageType),
        (message(1, 0, &[53, 2, 1, 1]), Malformed::MessageType),
        (message(1, 0, &[53, 1, 99]), Malformed::MessageType),
        (message(1, 0, &[53, 1, 5]), Malformed::ServerMessage),
        (with(&[50, 3, 1, 2, 3]), Malformed::RequestedAddress),
        (with(&[54, 0]), Malformed::ServerIdentifier),
        (with(&[52, 1, 4]), Malformed::Overload),
        (with(&[52, 1, 1]), Malformed::NoEnd),
        (with(&[12, 200, 1]), Malformed::OptionTruncated),
        (unterminated(&[12]), Malformed::OptionTruncated),
        (unterminated(&[12, 1, 1]), Malformed::NoEnd),
    ];
    for (index, (packet, reason)) in cases.iter().enumerate() {
        assert_eq!(decode(packet).unwrap_err(), *reason, "case {index}");
    }
}

#[test]
fn one_bad_option_does_not_hide_those_after_it() {
    let packet = with(&[
        12, 2, 0xff, 0xfe, 57, 1, 1, 93, 3, 0, 7, 9, 61, 1, 1, 60, 9, b'P', b'X', b'E', b'C', b'l', b'i',
        b'e', b'n', b't',
    ]);
    let request = decode(&packet).unwrap();
    assert_eq!(request.host_name.as_deref(), Some([0xff, 0xfe].as_slice()));
    assert_eq!((request.max_size, request.client_id), (None, None));
    assert_eq!(request.architectures, [7]);
    assert_eq!(request.loader, Loader::Pxe);
}

#[test]
fn several_architectures_are_all_read() {
    assert_eq!(decode(&with(&[93, 4, 0, 7, 0, 16])).unwrap().architectures, [7, 16]);
}

#[test]
fn options_in_file_and_sname_count_and_instances_are_joined_in_order() {
    let mut packet = with(&[60, 3, b'P', b'X', b'E', 52, 1, 3]);
    packet[108..117].copy_from_slice(&[60, 4, b'C', b'l', b'i', b'e', 93, 2, 0]);
    packet[117..119].copy_from_slice(&[7, 255]);
    packet[44..49].copy_from_slice(&[60, 2, b'n', b't', 255]);
    let request = decode(&packet).unwrap();
    assert_eq!(request.vendor_class.as_deref(), Some(b"PXEClient".as_slice()));
    assert_eq!((request.architectures, request.loader), (vec![7], Loader::Pxe));
}

#[test]
fn a_loader_is_known_by_what_it_says() {
    let cases: [(&[u8], Loader); 6] = [
        (&[], Loader::None),
        (b"\x3c\x04udhc", Loader::None),
        (b"\x3c\x14PXEClient:Arch:00007", Loader::Pxe),
        (b"\x3c\x15HTTPClient:Arch:00016", Loader::Http),
        (b"\x3c\x09PXEClient\x4d\x04iPXE", Loader::Ipxe),
        (b"\x3c\x09PXEClient\xaf\x03\xb1\x01\x01", Loader::Ipxe),
    ];
    for (options, loader) in cases {
        assert_eq!(decode(&with(options)).unwrap().loader, loader, "{options:?}");
    }
}

#[test]
fn a_machine_identifier_is_the_uuid_of_smbios_and_only_with_type_0() {
    // As SeaBIOS and iPXE sent it for a machine whose UUID is 6d5a8b1e-0000-4000-8000-525400bed04d.
    let sent = [0x1e, 0x8b, 0x5a, 0x6d, 0, 0, 0, 0x40, 0x80, 0, 0x52, 0x54, 0, 0xbe, 0xd0, 0x4d];
    let option = |kind: u8| [&[97, 17, kind], sent.as_slice()].concat();
    let (plain, other) = (with(&option(0)), with(&option(1)));
    assert_eq!(
        decode(&plain).unwrap().uuid().map(|u| u.to_string()),
        Some("6d5a8b1e-0000-4000-8000-525400bed04d".into())
    );
    assert_eq!(decode(&other).unwrap().uuid(), None);
}

#[test]
fn relay_sub_options_are_read_and_the_rest_kept_whole() {
    let raw = [1, 2, 9, 9, 5, 4, 10, 9, 0, 0, 11, 4, 10, 9, 0, 1, 19, 0, 7, 200];
    let packet = with(&[&[82, u8::try_from(raw.len()).unwrap()], raw.as_slice()].concat());
    let information = decode(&packet).unwrap().relay_information.unwrap();
    assert_eq!(information.raw.as_ref(), raw);
    assert_eq!(information.link, Some([10, 9, 0, 0].into()));
    assert_eq!(information.server_override, Some([10, 9, 0, 1].into()));
    assert!(information.source_port);
}

fn reply(options: Vec<(u8, Vec<u8>)>) -> Reply {
    Reply {
        message: MessageType::Offer,
        transaction: 0x0102_0304,
        broadcast: true,
        client_address: [0, 0, 0, 0].into(),
        your_address: [10, 7, 0, 100].into(),
        next_server: [10, 7, 0, 1].into(),
        relay: [0, 0, 0, 0].into(),
        mac: "52:54:00:00:00:01".parse().unwrap(),
        file: b"snponly.efi".to_vec(),
        options,
        relay_information: None,
    }
}

fn read(bytes: &[u8]) -> Message {
    Message::decode(&mut Decoder::new(bytes)).unwrap()
}

#[test]
fn a_short_answer_is_padded_to_300_octets_and_reads_back() {
    let bytes = encode(&reply(vec![(option::SERVER_ID, vec![10, 7, 0, 1])]), None).unwrap();
    assert_eq!(bytes.len(), 300);
    let message = read(&bytes);
    assert_eq!(message.xid(), 0x0102_0304);
    assert_eq!(message.yiaddr(), std::net::Ipv4Addr::new(10, 7, 0, 100));
    assert_eq!(message.siaddr(), std::net::Ipv4Addr::new(10, 7, 0, 1));
    assert_eq!(message.fname(), Some(b"snponly.efi\0".as_slice()));
    assert_eq!(message.opts().msg_type(), Some(dhcproto::v4::MessageType::Offer));
    assert!(message.flags().broadcast());
}

#[test]
fn option_53_is_first_and_option_82_last() {
    let mut reply = reply(vec![(option::SERVER_ID, vec![10, 7, 0, 1]), (option::CLIENT_ID, vec![1, 2])]);
    reply.relay_information = Some(vec![1, 1, 7]);
    let bytes = encode(&reply, None).unwrap();
    assert_eq!(bytes[240..243], [53, 1, 2]);
    assert_eq!(bytes[243..258], [54, 4, 10, 7, 0, 1, 61, 2, 1, 2, 82, 3, 1, 1, 7]);
    assert_eq!(bytes[258], 255);
}

#[test]
fn a_value_over_255_octets_is_split_and_joined_again() {
    let url = format!("http://10.7.0.1/{}", "x".repeat(300)).into_bytes();
    let bytes = encode(&reply(vec![(option::BOOT_FILE, url.clone())]), Some(1500)).unwrap();
    let first = bytes.iter().skip(243).take(2).copied().collect::<Vec<_>>();
    assert_eq!(first, [67, 255]);
    let mut mirrored = bytes;
    (mirrored[0], mirrored[242]) = (1, 1);
    assert!(decode(&mirrored).is_ok());
    assert_eq!(read(&mirrored).opts().get(OptionCode::BootfileName), Some(&DhcpOption::BootfileName(url)));
}

#[test]
fn overflowing_options_move_to_sname_or_are_omitted_unless_essential() {
    let filler = |code: u8, length: usize| (code, vec![b'a'; length]);
    let options = vec![
        (option::SERVER_ID, vec![10, 7, 0, 1]),
        filler(option::DOMAIN_NAME, 200),
        filler(option::MESSAGE, 120),
        filler(option::HOST_NAME, 30),
        (option::CLIENT_ID, vec![1; 20]),
    ];
    let bytes = encode(&reply(options), None).unwrap();
    assert!(bytes.len() <= 548);
    let mut mirrored = bytes;
    (mirrored[0], mirrored[242]) = (1, 1);
    let read = decode(&mirrored).unwrap();
    assert_eq!(read.client_id.as_deref(), Some([1; 20].as_slice()));
    assert_eq!(read.host_name.as_deref(), Some([b'a'; 30].as_slice()), "in sname");
    assert_eq!(mirrored[243..246], [52, 1, 2]);
}

#[test]
fn file_is_overloaded_only_while_it_names_nothing() {
    let long = || {
        vec![
            (option::SERVER_ID, vec![10, 7, 0, 1]),
            (option::DOMAIN_NAME, vec![b'd'; 200]),
            (option::CLIENT_ID, vec![1; 100]),
        ]
    };
    let mut free = reply(long());
    free.file.clear();
    let bytes = encode(&free, None).unwrap();
    assert_eq!(bytes[243..246], [52, 1, 1]);
    let bytes = encode(&reply(long()), None).unwrap();
    assert_eq!(&bytes[108..119], b"snponly.efi");
    assert_eq!(read(&bytes).opts().get(OptionCode::DomainName), None, "omitted instead");
}

#[test]
fn rfc2132_3_3_subnet_mask_stays_first_if_options_are_overloaded() {
    // Sizes at which the mask or the router, or both, leave the options field for `file` or `sname`.
    for (routers, filler) in (1..=40).flat_map(|routers| (0..=280).step_by(7).map(move |f| (routers, f))) {
        let mut reply = reply(vec![
            (option::SERVER_ID, vec![10, 7, 0, 1]),
            (option::CLIENT_ID, vec![1; filler]),
            (option::SUBNET_MASK, vec![255, 255, 255, 0]),
            (option::ROUTER, vec![10; routers * 4]),
        ]);
        reply.file.clear();
        let Some(mut bytes) = encode(&reply, None) else { continue };
        (bytes[0], bytes[242]) = (1, 1);
        let order = option_codes(&bytes);
        let place = |wanted: u8| order.iter().position(|code| *code == wanted);
        let mask = place(option::SUBNET_MASK).expect("the mask is essential");
        assert!(place(option::ROUTER).is_none_or(|router| mask < router), "{routers} {filler}: {order:?}");
    }
}

/// Codes in the order in which a client reads them: options field, `file`, `sname` (RFC 2131, 4.1).
fn option_codes(packet: &[u8]) -> Vec<u8> {
    let walk = |mut rest: &[u8]| {
        let mut codes = Vec::new();
        while let [code, length, after @ ..] = rest {
            match *code {
                option::END => break,
                option::PAD => rest = &rest[1..],
                code => {
                    codes.push(code);
                    rest = &after[usize::from(*length)..];
                }
            }
        }
        codes
    };
    let main = walk(&packet[240..]);
    let overload =
        packet[240..].windows(3).take(6).find(|w| w[..2] == [option::OVERLOAD, 1]).map_or(0, |w| w[2]);
    let file = if overload & 1 == 0 { Vec::new() } else { walk(&packet[108..236]) };
    let sname = if overload & 2 == 0 { Vec::new() } else { walk(&packet[44..108]) };
    [main, file, sname].concat()
}

#[test]
fn an_answer_whose_essentials_do_not_fit_is_none() {
    let huge = vec![(option::BOOT_FILE, vec![b'x'; 700])];
    assert_eq!(encode(&reply(huge.clone()), None), None);
    assert!(encode(&reply(huge), Some(1500)).is_some());
    let mut relayed = reply(Vec::new());
    relayed.relay_information = Some(vec![0; 1600]);
    assert_eq!(encode(&relayed, Some(u16::MAX)), None);
}

#[test]
fn ipxe_is_known_by_its_user_class_in_either_form_and_among_others() {
    let loader = |class: &[u8]| {
        let packet = with(&[&[77, u8::try_from(class.len()).unwrap()], class].concat());
        decode(&packet).unwrap().loader
    };
    for class in [b"iPXE".as_slice(), b"\x04iPXE", b"\x03lab\x04iPXE", b"\x04iPXE\x03lab"] {
        assert_eq!(loader(class), Loader::Ipxe, "{}", class.escape_ascii());
    }
    for class in [b"".as_slice(), b"iPXE2", b"\x05iPXE2", b"\x09iPXE", b"\x00\x03iPX", b"xiPXE"] {
        assert_eq!(loader(class), Loader::None, "{}", class.escape_ascii());
    }
}
