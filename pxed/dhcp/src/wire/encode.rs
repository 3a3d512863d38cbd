//! Writes an answer: at least 300 octets, at most what the client takes, option 82 last.
//!
//! Pure: a [`Reply`] in, bytes out.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::Ipv4Addr;

use bedplate_api::id::MacAddress;

use super::{COOKIE, HEADER_OCTETS, MessageType, option};

/// RFC 1542, 2.1: a BOOTP message has 300 octets or more; some clients drop shorter ones.
const MIN_LENGTH: usize = 300;
/// IP and UDP headers, which option 57 and the 576 of RFC 2131, 2 include.
const IP_UDP_HEADER_OCTETS: usize = 28;
const DEFAULT_SIZE: u16 = 576;
/// Maximum IP packet size of Ethernet.
const LARGEST_SIZE: u16 = 1500;
const FILE_LENGTH: usize = 128;
const SNAME_LENGTH: usize = 64;

/// A message to a client, as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Option 53.
    pub message: MessageType,
    /// `xid`
    pub transaction: u32,
    /// The broadcast bit of `flags`.
    pub broadcast: bool,
    /// `ciaddr`
    pub client_address: Ipv4Addr,
    /// `yiaddr`
    pub your_address: Ipv4Addr,
    /// `siaddr`
    pub next_server: Ipv4Addr,
    /// `giaddr`
    pub relay: Ipv4Addr,
    /// `chaddr`
    pub mac: MacAddress,
    /// `file`, at most 127 octets.
    pub file: Vec<u8>,
    /// Options after 53, in the order of their importance, without 82. If they do not fit, `file` and `sname` are
    /// used, and then the last inessential ones are omitted.
    pub options: Vec<(u8, Vec<u8>)>,
    /// Option 82, echoed as the last one (RFC 3046, 2.2).
    pub relay_information: Option<Vec<u8>>,
}

/// Returns true for options without which the answer would be wrong; the others may be omitted if there is no space.
const fn is_essential(code: u8) -> bool {
    matches!(
        code,
        option::SUBNET_MASK
            | option::LEASE_TIME
            | option::MESSAGE_TYPE
            | option::SERVER_ID
            | option::VENDOR_CLASS
            | option::CLIENT_ID
            | option::BOOT_FILE
            | option::MACHINE_ID
            | option::VENDOR_SPECIFIC
            | option::IPXE
    )
}

/// The message's octets, or `None` when what must be in it is larger than `max_size` (option 57) allows.
pub fn encode(reply: &Reply, max_size: Option<u16>) -> Option<Vec<u8>> {
    let size = max_size.unwrap_or(DEFAULT_SIZE).clamp(DEFAULT_SIZE, LARGEST_SIZE);
    let limit = usize::from(size).saturating_sub(IP_UDP_HEADER_OCTETS);
    let placed = place(reply, limit.saturating_sub(HEADER_OCTETS))?;
    let mut out = Vec::with_capacity(limit);
    header(&mut out, reply, &placed);
    write_option(&mut out, option::MESSAGE_TYPE, &[reply.message.code()]);
    if placed.overload != 0 {
        write_option(&mut out, option::OVERLOAD, &[placed.overload]);
    }
    placed.main.iter().for_each(|(code, value)| write_option(&mut out, *code, value));
    if let Some(raw) = &reply.relay_information {
        write_option(&mut out, option::RELAY_INFORMATION, raw);
    }
    out.push(option::END);
    out.resize(out.len().max(MIN_LENGTH), option::PAD);
    Some(out)
}

type Borrowed<'a> = (u8, &'a [u8]);

/// Places of the options.
struct Placed<'a> {
    main: Vec<Borrowed<'a>>,
    file: Vec<Borrowed<'a>>,
    sname: Vec<Borrowed<'a>>,
    overload: u8,
}

/// Octets of an option with its headers, one per 255 octets of value (RFC 3396).
fn encoded_length(value: &[u8]) -> usize {
    value.len().saturating_add(value.len().div_ceil(255).max(1).saturating_mul(2))
}

fn total(options: &[Borrowed<'_>]) -> usize {
    options.iter().fold(0, |sum, (_, value)| sum.saturating_add(encoded_length(value)))
}

fn place(reply: &Reply, room: usize) -> Option<Placed<'_>> {
    let main: Vec<Borrowed<'_>> = reply.options.iter().map(|(c, v)| (*c, v.as_slice())).collect();
    let mut placed = Placed { main, file: Vec::new(), sname: Vec::new(), overload: 0 };
    let tail = reply.relay_information.as_deref().map_or(0, encoded_length);
    // Option 53 and END.
    let room = room.checked_sub(4)?.checked_sub(tail)?;
    if total(&placed.main) <= room {
        return Some(placed);
    }
    let room = room.checked_sub(3)?;
    let mut file_room = if reply.file.is_empty() { FILE_LENGTH.saturating_sub(1) } else { 0 };
    let mut sname_room = SNAME_LENGTH.saturating_sub(1);
    for index in (0..placed.main.len()).rev() {
        if total(&placed.main) <= room {
            break;
        }
        let Some(&(code, value)) = placed.main.get(index) else { break };
        let length = encoded_length(value);
        // A client reads `file` and `sname` last, and the router may stay: the subnet mask must precede it (RFC 2132, 3.3).
        let movable = !matches!(code, option::SERVER_ID | option::SUBNET_MASK);
        if movable && length <= file_room {
            file_room = file_room.saturating_sub(length);
            placed.file.push(placed.main.remove(index));
        } else if movable && length <= sname_room {
            sname_room = sname_room.saturating_sub(length);
            placed.sname.push(placed.main.remove(index));
        }
    }
    while total(&placed.main) > room {
        let last = placed.main.iter().rposition(|(code, _)| !is_essential(*code))?;
        placed.main.remove(last);
    }
    placed.overload = u8::from(!placed.file.is_empty()) | (u8::from(!placed.sname.is_empty()) << 1);
    Some(placed)
}

fn header(out: &mut Vec<u8>, reply: &Reply, placed: &Placed<'_>) {
    // op BOOTREPLY, htype Ethernet, hlen 6, hops 0
    out.extend_from_slice(&[2, 1, 6, 0]);
    out.extend_from_slice(&reply.transaction.to_be_bytes());
    out.extend_from_slice(&[0, 0, if reply.broadcast { 0x80 } else { 0 }, 0]);
    for address in [reply.client_address, reply.your_address, reply.next_server, reply.relay] {
        out.extend_from_slice(&address.octets());
    }
    out.extend_from_slice(&reply.mac.octets());
    out.extend_from_slice(&[0; 10]);
    field(out, &[], &placed.sname, SNAME_LENGTH);
    field(out, &reply.file, &placed.file, FILE_LENGTH);
    out.extend_from_slice(&COOKIE);
}

/// `sname` or `file`: text or options, padded with zeros.
fn field(out: &mut Vec<u8>, text: &[u8], options: &[Borrowed<'_>], length: usize) {
    let end = out.len().saturating_add(length);
    if options.is_empty() {
        out.extend(text.iter().take(length.saturating_sub(1)));
    } else {
        options.iter().for_each(|(code, value)| write_option(out, *code, value));
        out.push(option::END);
    }
    out.resize(end, 0);
}

/// One option, split where it is longer than 255 octets (RFC 3396, 4).
fn write_option(out: &mut Vec<u8>, code: u8, value: &[u8]) {
    let mut write = |chunk: &[u8]| {
        out.push(code);
        out.push(u8::try_from(chunk.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(chunk);
    };
    if value.is_empty() {
        write(&[]);
    }
    value.chunks(255).for_each(write);
}
