//! Questions for the addresses of a name, and their answers (RFC 1035, RFC 3596).
//!
//! Each record of the kind that was asked for counts, wherever aliases led to it. Parsing is by bounds-checked reads only.
//!
//! Pure: bytes in, bytes out. Called by `query`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Port of name servers.
pub(super) const PORT: u16 = 53;
/// Octets of a message before its question (RFC 1035, 4.1.1).
const HEADER_BYTES: usize = 12;
/// Maximum number of addresses kept per name.
const MAX_ADDRESSES: usize = 16;

/// Type of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Addresses of IPv4.
    A,
    /// Addresses of IPv6.
    Aaaa,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
        }
    }
}

/// Answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Addresses; at least one.
    Found(Vec<IpAddr>),
    /// The name does not exist, or has no address of that kind.
    Absent,
    /// The server cannot answer; another one may.
    Refused,
    /// The answer does not fit into a packet, and what fits has no address.
    Cut,
}

/// The question for the addresses of `name`; `None` if it is not a host name.
pub(super) fn encode_question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let name = name.strip_suffix('.').unwrap_or(name);
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        bytes.push(length);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend(kind.number().to_be_bytes());
    bytes.extend([0, 1]);
    (bytes.len() <= 272).then_some(bytes)
}

/// Decodes the answer to the message `question` of [`encode_question`]; `None` if these bytes are something else.
///
/// ID and question must be those that were sent (RFC 5452, 9.1). Letter case of the name does not count (RFC 4343, 3).
pub(super) fn decode_answer(question: &[u8], kind: Kind, bytes: &[u8]) -> Option<Answer> {
    let word = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let (flags, questions, answers) = (word(2)?, word(4)?, word(6)?);
    let same_id = bytes.get(..2)? == question.get(..2)?;
    let same_question = questions == 1
        && bytes.get(HEADER_BYTES..question.len())?.eq_ignore_ascii_case(question.get(HEADER_BYTES..)?);
    if flags & 0x8000 == 0 || !same_id || !same_question {
        return None;
    }
    match flags & 0x000f {
        0 => {}
        3 => return Some(Answer::Absent),
        _ => return Some(Answer::Refused),
    }
    let is_cut = flags & 0x0200 != 0;
    match records(kind, bytes, question.len(), answers) {
        Some(found) if !found.is_empty() => Some(Answer::Found(found)),
        _ if is_cut => Some(Answer::Cut),
        found => found.map(|_| Answer::Absent),
    }
}

/// The addresses of this kind in `count` records from `at` on; `None` if there are fewer records.
fn records(kind: Kind, bytes: &[u8], mut at: usize, count: u16) -> Option<Vec<IpAddr>> {
    let word = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let mut found = Vec::new();
    for _ in 0..count {
        at = skip_name(bytes, at)?;
        let (number, class, length) = (word(at)?, word(at.checked_add(2)?)?, word(at.checked_add(8)?)?);
        at = at.checked_add(10)?;
        let end = at.checked_add(usize::from(length))?;
        let data = bytes.get(at..end)?;
        if class == 1 && number == kind.number() && found.len() < MAX_ADDRESSES {
            found.push(address(kind, data)?);
        }
        at = end;
    }
    Some(found)
}

fn address(kind: Kind, data: &[u8]) -> Option<IpAddr> {
    match kind {
        Kind::A => <[u8; 4]>::try_from(data).ok().map(|octets| Ipv4Addr::from(octets).into()),
        Kind::Aaaa => <[u8; 16]>::try_from(data).ok().map(|octets| Ipv6Addr::from(octets).into()),
    }
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

    fn answer(id: u16, kind: Kind, flags: u16, records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = encode_question(id, "pxe.rack.example", kind).unwrap();
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        bytes[7] = u8::try_from(records.len()).unwrap();
        records.iter().for_each(|record| bytes.extend(*record));
        bytes
    }

    fn question(kind: Kind) -> Vec<u8> {
        encode_question(7, "pxe.rack.example", kind).unwrap()
    }

    #[test]
    fn rfc5452_answer_must_echo_the_question() {
        let sound = answer(7, Kind::A, 0x8180, &[A]);
        let decoded = |bytes: &[u8]| decode_answer(&question(Kind::A), Kind::A, bytes);
        let changed = |at: usize, octet: u8| {
            let mut bytes = sound.clone();
            bytes[at] = octet;
            bytes
        };
        assert_eq!(decoded(&sound), Some(Answer::Found(vec![[10, 7, 0, 1].into()])));
        assert_eq!(decoded(&changed(13, b'P')), decoded(&sound), "letter case does not count");
        let end = question(Kind::A).len();
        // Name, type, class, and no question or two.
        for bytes in [
            changed(13, b'x'),
            changed(12, 4),
            changed(end - 3, 28),
            changed(end - 1, 3),
            changed(5, 0),
            changed(5, 2),
        ] {
            assert_eq!(decoded(&bytes), None);
        }
        // Errors and denials need the question too.
        for flags in [0x8183, 0x8182, 0x8185] {
            let mut other = answer(7, Kind::A, flags, &[]);
            other[13] = b'x';
            assert_eq!(decoded(&other), None, "{flags:x}");
        }
    }

    const CNAME: &[u8] = &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 4, 1, b'x', 0xc0, 16];
    const A: &[u8] = &[1, b'x', 0xc0, 16, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 10, 7, 0, 1];
    const AAAA: &[u8] =
        &[0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 9, 0, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

    #[test]
    fn every_address_behind_aliases_counts_that_was_asked_for() {
        let found =
            |kind, records: &[&[u8]]| decode_answer(&question(kind), kind, &answer(7, kind, 0x8180, records));
        let v4: IpAddr = [10, 7, 0, 1].into();
        let v6: IpAddr = "fd00::7".parse().unwrap();
        assert_eq!(found(Kind::A, &[CNAME, A, A, AAAA]), Some(Answer::Found(vec![v4, v4])));
        assert_eq!(found(Kind::Aaaa, &[CNAME, A, AAAA]), Some(Answer::Found(vec![v6])));
    }

    #[test]
    fn absent_name_differs_from_a_server_failure() {
        let says = |flags, records: &[&[u8]]| {
            decode_answer(&question(Kind::A), Kind::A, &answer(7, Kind::A, flags, records))
        };
        assert_eq!(says(0x8183, &[]), Some(Answer::Absent));
        assert_eq!(says(0x8180, &[CNAME]), Some(Answer::Absent));
        for flags in [0x8182, 0x8185] {
            assert_eq!(says(flags, &[]), Some(Answer::Refused), "{flags:x}");
        }
    }

    #[test]
    fn cut_answer_without_an_address_differs_from_an_absent_one() {
        let says = |records: &[&[u8]]| {
            decode_answer(&question(Kind::A), Kind::A, &answer(7, Kind::A, 0x8380, records))
        };
        let v4: IpAddr = [10, 7, 0, 1].into();
        assert_eq!(says(&[A, CNAME]), Some(Answer::Found(vec![v4])));
        for records in [&[][..], &[CNAME], &[&CNAME[..9]]] {
            assert_eq!(says(records), Some(Answer::Cut));
        }
    }

    #[test]
    fn other_packets_are_not_an_answer() {
        for bytes in [answer(8, Kind::A, 0x8180, &[A]), answer(7, Kind::A, 0x0100, &[A])] {
            assert_eq!(decode_answer(&question(Kind::A), Kind::A, &bytes), None);
        }
        for (kind, record) in [(Kind::A, A), (Kind::Aaaa, AAAA)] {
            let whole = answer(7, kind, 0x8180, &[CNAME, record]);
            for cut in 0..whole.len() {
                assert_eq!(decode_answer(&question(kind), kind, &whole[..cut]), None, "{cut}");
            }
        }
    }

    #[test]
    fn only_host_names_are_asked_for() {
        let long = "a".repeat(64);
        for name in ["", "a..b", "a..", &long] {
            assert_eq!(encode_question(1, name, Kind::A), None, "{name}");
        }
        assert_eq!(encode_question(1, "a.b.", Kind::A), encode_question(1, "a.b", Kind::A));
    }
}
