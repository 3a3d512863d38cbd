//! Keys agree on both sides, what is sealed is opened, whatever was touched is refused. That they are the right keys, `ipmitool` and
//! `ipmi_sim` tell.

#![allow(clippy::indexing_slicing)]

use proptest::prelude::*;

use super::*;
use crate::wire::header::{Packet, parse};

fn exchange(suite: Suite) -> Exchange {
    Exchange {
        suite,
        console: 0x0102_0304,
        managed: 0x0506_0708,
        console_random: [1; 16],
        managed_random: [2; 16],
        guid: [3; 16],
        role: 0x14,
        user: UserName::new("admin").unwrap(),
    }
}

fn password(text: &str) -> Password {
    Password::new(&SecretString::from(text)).unwrap()
}

fn plus(packet: &[u8]) -> Plus<'_> {
    match parse(packet) {
        Ok(Packet::Plus(plus)) => plus,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_password_of_twenty_octets_is_taken_and_of_more_is_refused() {
    assert!(Password::new(&SecretString::from("12345678901234567890")).is_ok());
    let refused = |text: &str| Password::new(&SecretString::from(text)).err();
    assert_eq!(refused("123456789012345678901"), Some(CheckPasswordError::TooLong));
    assert_eq!(refused("a\0b"), Some(CheckPasswordError::Zero));
    assert!(UserName::new("12345678901234567").is_err());
}

#[test]
fn secrets_are_not_printed() {
    let secret = password("hunter2");
    let keys = exchange(Suite::Sha256).keys(&secret);
    assert_eq!(format!("{secret:?} {keys:?}"), "Password(..) Keys(Sha256, ..)");
}

#[test]
fn another_password_gives_other_proofs_and_keys() {
    for suite in [Suite::Sha1, Suite::Sha256] {
        let (exchange, right, wrong) = (exchange(suite), password("right"), password("wrong"));
        assert!(!same(exchange.managed_proof(&right).as_ref(), exchange.managed_proof(&wrong).as_ref()));
        assert!(!same(exchange.console_proof(&right).as_ref(), exchange.console_proof(&wrong).as_ref()));
        let packet = exchange.keys(&right).seal(PayloadKind::Ipmi, 1, 1, b"payload", [9; 16]).unwrap();
        assert_eq!(exchange.keys(&wrong).open(&plus(&packet)), Err(OpenPacketError::Code));
    }
}

#[test]
fn only_suites_3_and_17_exist() {
    let all: Vec<u8> = (0..64)
        .flat_map(|a| (0..64).map(move |i| (a, i)))
        .flat_map(|(authentication, integrity)| {
            (0..4).map(move |confidentiality| Algorithms { authentication, integrity, confidentiality })
        })
        .filter_map(|algorithms| Suite::of(algorithms).map(Suite::number))
        .collect();
    assert_eq!(all, [3, 17]);
}

#[test]
fn a_wrong_pad_under_a_right_code_is_refused() {
    let keys = exchange(Suite::Sha256).keys(&password("right"));
    for pad in [[1, 2, 2, 3], [0, 0, 0, 40]] {
        let mut octets = vec![7; 12];
        octets.extend_from_slice(&pad);
        let key = EncryptingKey::cbc(keys.cipher_key().unwrap()).unwrap();
        key.less_safe_encrypt(&mut octets, EncryptionContext::Iv128(FixedLength::from([0; 16]))).unwrap();
        let payload = [&[0; 16][..], &octets].concat();
        let mut packet = encode_covered(PayloadKind::Ipmi, 1, 1, &payload).unwrap();
        let code = keys.code(&packet);
        packet.extend_from_slice(&code.as_ref()[..16]);
        assert_eq!(keys.open(&plus(&packet)), Err(OpenPacketError::Payload));
    }
}

proptest! {
    #[test]
    fn sealed_packet_is_opened_and_modified_one_is_not(
        payload in prop::collection::vec(any::<u8>(), 0..70), vector: [u8; 16], at: prop::sample::Index, bit in 0_u32..8, sha1: bool,
    ) {
        let suite = if sha1 { Suite::Sha1 } else { Suite::Sha256 };
        let keys = exchange(suite).keys(&password("right"));
        let mut packet = keys.seal(PayloadKind::Ipmi, 7, 8, &payload, vector).unwrap();
        prop_assert_eq!(keys.open(&plus(&packet)), Ok(payload));
        let at = at.index(packet.len());
        packet[at] ^= 1 << bit;
        if let Ok(Packet::Plus(touched)) = parse(&packet) {
            prop_assert!(keys.open(&touched).is_err());
        }
    }
}
