//! Any packet to the TFTP request port: parsed, its name checked, its options agreed on, a session driven by the rest of the input.
//!
//! Looks for panics and for sessions that break their own bounds.

#![no_main]

use std::time::{Duration, Instant};

use bedplate_tftp::{
    client::Client,
    name,
    negotiate::{Grant, MAX_WINDOW, negotiate},
    session::{Retry, Session, Transmit},
    wire::{self, AskedOption, Packet},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // A client must stand anything a server may send.
    let _ = Client::new(&[AskedOption::BlockSize(1468), AskedOption::WindowSize(16)]).receive(input);
    let Ok(Packet::Read(request)) = wire::parse(input) else { return };
    if let Ok(name) = name::check(request.name) {
        assert!(!name.starts_with('/') && !name.split('/').any(|part| part == ".." || part.is_empty()));
    }
    let length = input.len() as u64 * 1000;
    let grant = Grant { block_size: 1468, window: MAX_WINDOW };
    let agreed = negotiate(&request.options, length, grant);
    assert!((8..=1468).contains(&agreed.block_size) && (1..=MAX_WINDOW).contains(&agreed.window));
    let mut now = Instant::now();
    let (mut session, mut transmit) = {
        let (session, first) = Session::start(&agreed, length, Retry::default(), now);
        (session, Some(first))
    };
    for byte in input {
        if let Some(Transmit::Blocks(first, end)) = transmit {
            assert!(first < end && end - first <= u64::from(agreed.window));
            assert!(session.payload(end - 1).end <= length);
        }
        now += Duration::from_millis(u64::from(*byte));
        transmit = match byte % 4 {
            0 => session.elapse(now),
            1 => session.request_repeated(now),
            _ => session.acknowledge(u16::from(*byte >> 2), now),
        };
    }
    assert!(session.acknowledged_bytes() <= length);
});
