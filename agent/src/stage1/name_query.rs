//! Looks up the IPv4 address of a name (RFC 1035): the static binary has no resolver of its own before the root is there.
//!
//! One question to each name server that DHCP named, over UDP; the answer's first A record counts, wherever aliases led
//! to it. Parsing is by bounds-checked reads only. Called by `http`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);

/// The address of `name`, asked from each of `servers` twice.
pub fn resolve(name: &str, servers: &[Ipv4Addr]) -> Option<Ipv4Addr> {
    servers.iter().chain(servers).find_map(|server| ask(name, *server))
}

fn ask(name: &str, server: Ipv4Addr) -> Option<Ipv4Addr> {
    // A fresh port of the kernel's choosing for each question; the connected socket takes answers of this server only.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((server, 53)).ok()?;
    socket.set_read_timeout(Some(TIMEOUT)).ok()?;
    let id = socket.local_addr().ok()?.port();
    socket.send(&encode_question(id, name)?).ok()?;
    let mut buffer = [0; 1500];
    let length = socket.recv(&mut buffer).ok()?;
    decode_answer(id, buffer.get(..length)?)
}

/// The question for the A record of `name`; `None` if it is not a host name.
pub fn encode_question(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        bytes.push(length);
        bytes.extend(label.bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    (bytes.len() <= 272).then_some(bytes)
}

/// The first A record in the answer to question `id`.
pub fn decode_answer(id: u16, bytes: &[u8]) -> Option<Ipv4Addr> {
    let word = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let is_answer = word(0)? == id && word(2)? & 0x800f == 0x8000;
    let (questions, answers) = (word(4)?, word(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = skip_name(bytes, at)?.checked_add(4)?;
    }
    for _ in 0..answers {
        at = skip_name(bytes, at)?;
        let (kind, class, length) = (word(at)?, word(at.checked_add(2)?)?, word(at.checked_add(8)?)?);
        at = at.checked_add(10)?;
        if (kind, class, length) == (1, 1, 4) && is_answer {
            return Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?));
        }
        at = at.checked_add(usize::from(length))?;
    }
    None
}

/// The position after the name at `at`: labels up to an empty one, or a pointer (RFC 1035, 4.1.4).
fn skip_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return at.checked_add(1),
            length if length & 0xc0 == 0xc0 => return at.checked_add(2),
            length if length & 0xc0 == 0 => at = at.checked_add(usize::from(length))?.checked_add(1)?,
            _ => return None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn answer(id: u16, flags: u16, records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = encode_question(id, "pxe.rack.example").unwrap();
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        bytes[7] = u8::try_from(records.len()).unwrap();
        records.iter().for_each(|record| bytes.extend(*record));
        bytes
    }

    const CNAME: &[u8] = &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 4, 1, b'x', 0xc0, 16];
    const A: &[u8] = &[1, b'x', 0xc0, 16, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 10, 7, 0, 1];

    #[test]
    fn the_first_address_behind_aliases_counts() {
        assert_eq!(decode_answer(7, &answer(7, 0x8180, &[CNAME, A])), Some(Ipv4Addr::new(10, 7, 0, 1)));
    }

    #[test]
    fn what_is_not_the_answer_is_nothing() {
        for bytes in [
            answer(8, 0x8180, &[A]),
            answer(7, 0x0100, &[A]),
            answer(7, 0x8183, &[A]),
            answer(7, 0x8180, &[CNAME]),
        ] {
            assert_eq!(decode_answer(7, &bytes), None);
        }
        let whole = answer(7, 0x8180, &[CNAME, A]);
        for cut in 0..whole.len() {
            assert_eq!(decode_answer(7, &whole[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn only_host_names_are_asked_for() {
        let long = "a".repeat(64);
        for name in ["", "a..b", &long] {
            assert_eq!(encode_question(1, name), None, "{name}");
        }
    }
}
