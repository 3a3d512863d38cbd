//! Encoded packets are parsed again; known octets are frozen; no input makes a parser panic.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use proptest::prelude::*;

use super::{
    completion::Completion,
    header::{self, Packet, PayloadKind},
    message::{APPLICATION, Request, RequestMessage, Response, ResponseMessage},
    open::{Algorithms, OpenRequest, OpenResponse, Opened},
    rakp::{Challenge, Proof, Rakp1, Rakp2, Status},
    rmcp::{self, Rmcp},
};

/// Everything that reads octets, given the same octets.
fn parse_all(input: &[u8]) {
    let _ = rmcp::parse(input);
    if let Ok(Packet::Plus(plus)) = header::parse(input) {
        for length in [0, 12, 16, usize::MAX] {
            let _ = plus.split_code(length);
        }
    }
    let _ = (OpenRequest::parse(input), OpenResponse::parse(input));
    let _ = (Rakp1::parse(input), Rakp2::parse(input), Proof::parse(input));
    let _ = (RequestMessage::parse(input), ResponseMessage::parse(input));
}

#[test]
fn get_channel_authentication_capabilities_is_encoded_as_by_ipmitool() {
    let request = Request::new(APPLICATION, 0x38, &[0x8e, 0x04]);
    let message = RequestMessage { sequence: 0, request }.encode();
    let datagram = rmcp::ipmi(&header::encode_plain(&message).unwrap());
    let frozen = [
        0x06, 0x00, 0xff, 0x07, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0x09, 0x20, 0x18, 0xc8, 0x81, 0x00, 0x38, 0x8e,
        0x04, 0xb5,
    ];
    assert_eq!(datagram, frozen);
}

#[test]
fn a_ping_is_asf_and_its_pong_is_read() {
    let ping = [6, 0, 0xff, 6, 0, 0, 0x11, 0xbe, 0x80, 7, 0, 0];
    assert_eq!(rmcp::parse(&ping), Ok(Rmcp::Ping { tag: 7 }));
    assert_eq!(rmcp::parse(&rmcp::pong(9)), Ok(Rmcp::Pong { tag: 9, ipmi: true }));
    assert_eq!(rmcp::pong(9).len(), 28);
}

#[test]
fn every_completion_code_and_rakp_status_keeps_its_number() {
    for number in 0..=255 {
        assert_eq!(Completion::from_number(number).number(), number);
        assert!(!Completion::from_number(number).to_string().is_empty());
        assert_eq!(Status::from_number(number).map_or(0, Status::number), number);
        assert_eq!(PayloadKind::from_number(number).number(), number & 0x3f);
    }
}

#[test]
fn a_message_with_a_wrong_checksum_is_refused() {
    let request = Request::new(APPLICATION, 1, &[]);
    let message = RequestMessage { sequence: 5, request }.encode();
    for at in 0..message.len() {
        let mut wrong = message.clone();
        wrong[at] ^= 0x10;
        assert!(RequestMessage::parse(&wrong).is_err(), "octet {at}");
    }
}

#[test]
fn a_refusal_that_ends_after_its_status_is_read() {
    let refused = OpenResponse { tag: 1, console: 0, outcome: Err(Status::AuthenticationAlgorithm) };
    assert_eq!(OpenResponse::parse(&[1, 4]), Ok(refused));
    assert_eq!(Rakp2::parse(&[2, 0x0d]), Ok(Rakp2 { tag: 2, console: 0, outcome: Err(Status::Name) }));
    assert!(OpenResponse::parse(&[1]).is_err() && Proof::parse(&[1, 0]).is_err());
}

#[test]
fn the_code_covers_a_multiple_of_four_octets() {
    for length in 0..32 {
        let mut packet = header::encode_covered(PayloadKind::Ipmi, 1, 2, &vec![0; length]).unwrap();
        assert_eq!(packet.len() % 4, 0);
        let covered = packet.clone();
        packet.extend_from_slice(&[0xaa; 12]);
        let Ok(Packet::Plus(plus)) = header::parse(&packet) else { panic!("no RMCP+") };
        assert_eq!(plus.split_code(12), Ok((&covered[..], &[0xaa; 12][..])));
    }
}

proptest! {
    #[test]
    fn no_octets_make_a_parser_panic(input in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&input);
    }

    #[test]
    fn no_octets_behind_a_good_header_make_a_parser_panic(input in prop::collection::vec(any::<u8>(), 0..100), kind: u8) {
        parse_all(&[&[6, kind][..], &input].concat());
        parse_all(&[&rmcp::IPMI_HEADER[..], &[6, kind], &input].concat());
    }

    #[test]
    fn requests_and_responses_are_read_as_written(
        sequence in 0_u8..64, function in 0_u8..32, lun in 0_u8..4, command: u8, completion: u8,
        data in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let request = Request { function: function * 2, lun, command, data: data.clone(), once: false };
        let message = RequestMessage { sequence, request };
        prop_assert_eq!(RequestMessage::parse(&message.encode()), Ok(message));
        let response = Response { completion: Completion::from_number(completion), data };
        let message = ResponseMessage { sequence, function: function * 2, lun, command, response };
        prop_assert_eq!(ResponseMessage::parse(&message.encode()), Ok(message));
    }

    #[test]
    fn session_messages_are_read_as_written(
        tag: u8, console: u32, managed: u32, random: [u8; 16], guid: [u8; 16], status in 1_u8..=255, role: u8,
        privilege in 0_u8..16, code in prop::collection::vec(any::<u8>(), 0..33),
        user in prop::collection::vec(any::<u8>(), 0..17), algorithm in 0_u8..64,
    ) {
        let algorithms = Algorithms { authentication: algorithm, integrity: 1, confidentiality: 2 };
        let open = OpenRequest { tag, privilege, console, algorithms };
        prop_assert_eq!(OpenRequest::parse(&open.encode()), Ok(open));
        let refused = Status::from_number(status).unwrap();
        for outcome in [Ok(Opened { privilege, managed, algorithms }), Err(refused)] {
            let opened = OpenResponse { tag, console, outcome };
            prop_assert_eq!(OpenResponse::parse(&opened.encode()), Ok(opened));
        }
        let rakp1 = Rakp1 { tag, managed, random, role, user: &user };
        let octets = rakp1.encode();
prop_assert_eq!(Rakp1::parse(&octets), Ok(rakp1));
        for outcome in [Ok(Challenge { random, guid, code: &code }), Err(refused)] {
            let rakp2 = Rakp2 { tag, console, outcome };
            let octets = rakp2.encode();
prop_assert_eq!(Rakp2::parse(&octets), Ok(rakp2));
        }
        for outcome in [Ok(&code[..]), Err(refused)] {
            let proof = Proof { tag, session: managed, outcome };
            let octets = proof.encode();
prop_assert_eq!(Proof::parse(&octets), Ok(proof));
        }
    }

    #[test]
    fn headers_are_read_as_written(session: u32, sequence: u32, payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let packet = header::encode_plain(&payload).unwrap();
        prop_assert!(matches!(header::parse(&packet), Ok(Packet::Plain(plain)) if plain.payload == payload));
        let packet = header::encode_covered(PayloadKind::Sol, session, sequence, &payload).unwrap();
        let Ok(Packet::Plus(plus)) = header::parse(&packet) else { panic!("no RMCP+") };
        prop_assert!(plus.encrypted && plus.authenticated && plus.kind == PayloadKind::Sol);
        prop_assert_eq!((plus.session, plus.sequence, plus.payload), (session, sequence, &payload[..]));
    }
}
