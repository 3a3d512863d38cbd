//! Any datagram to either side of an IPMI session: parsed as everything that it might be.
//!
//! Looks for panics, and for messages that are not read as they were written.

#![no_main]

use bedplate_ipmi::wire::{
    header::{self, Packet},
    message::{RequestMessage, ResponseMessage},
    open::{OpenRequest, OpenResponse},
    rakp::{Proof, Rakp1, Rakp2},
    rmcp::{self, Rmcp},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(Rmcp::Ipmi(packet)) = rmcp::parse(input) else { return };
    let payload = match header::parse(packet) {
        Ok(Packet::Plain(plain)) => plain.payload,
        Ok(Packet::Plus(plus)) => {
            let _ = (plus.split_code(12), plus.split_code(16));
            plus.payload
        }
        Err(_) => return,
    };
    if let Ok(message) = RequestMessage::parse(payload) {
        assert_eq!(RequestMessage::parse(&message.encode()), Ok(message));
    }
    if let Ok(message) = ResponseMessage::parse(payload) {
        assert_eq!(ResponseMessage::parse(&message.encode()), Ok(message));
    }
    let _ = (OpenRequest::parse(payload), OpenResponse::parse(payload));
    let _ = (Rakp1::parse(payload), Rakp2::parse(payload), Proof::parse(payload));
});
