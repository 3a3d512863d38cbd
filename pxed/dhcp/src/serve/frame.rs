//! Ethernet, IPv4 and UDP headers of an answer to a client that has no address yet and so cannot be asked by ARP.
//!
//! Pure. Payloads are at most 1472 octets (`wire::encode` sees to that).

use std::net::Ipv4Addr;

/// Octets before the payload.
pub(super) const HEADER_OCTETS: usize = ETHERNET_OCTETS + IP_OCTETS + UDP_OCTETS;
const ETHERNET_OCTETS: usize = 14;
const IP_OCTETS: usize = 20;
const UDP_OCTETS: usize = 8;

/// Addresses and ports of one frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) from_mac: [u8; 6],
    pub(super) to_mac: [u8; 6],
    pub(super) from: Ipv4Addr,
    pub(super) to: Ipv4Addr,
    pub(super) from_port: u16,
    pub(super) to_port: u16,
}

/// The 42 octets that go before `payload`, both checksums included.
pub(super) fn header(addresses: &Addresses, payload: &[u8]) -> [u8; HEADER_OCTETS] {
    let udp_length = u16::try_from(UDP_OCTETS + payload.len()).unwrap_or(u16::MAX);
    let ip_length = udp_length.saturating_add(20);
    let mut ip = [0_u8; IP_OCTETS];
    // Version 4, 5 words; DSCP CS6 as network control; not to be fragmented; 64 hops; UDP.
    ip[..2].copy_from_slice(&[0x45, 0xc0]);
    ip[2..4].copy_from_slice(&ip_length.to_be_bytes());
    ip[6..10].copy_from_slice(&[0x40, 0, 64, 17]);
    ip[12..16].copy_from_slice(&addresses.from.octets());
    ip[16..20].copy_from_slice(&addresses.to.octets());
    let sum = fold(sum_words(&ip, 0));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());

    let mut udp = [0_u8; UDP_OCTETS];
    udp[..2].copy_from_slice(&addresses.from_port.to_be_bytes());
    udp[2..4].copy_from_slice(&addresses.to_port.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    let pseudo = sum_words(&ip[12..20], u32::from(udp_length) + 17);
    let checksum = match fold(sum_words(payload, sum_words(&udp, pseudo))) {
        // RFC 768: 0 would mean that there is none.
        0 => u16::MAX,
        checksum => checksum,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());

    let mut out = [0_u8; HEADER_OCTETS];
    out[..6].copy_from_slice(&addresses.to_mac);
    out[6..12].copy_from_slice(&addresses.from_mac);
    out[12..14].copy_from_slice(&[0x08, 0x00]);
    out[14..34].copy_from_slice(&ip);
    out[34..].copy_from_slice(&udp);
    out
}

/// Adds big-endian words; 64 KiB of them cannot overflow 32 bits.
fn sum_words(bytes: &[u8], start: u32) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let words: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    start + words + last
}

/// RFC 1071: the complement of the one's complement sum.
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_verify_to_zero() {
        let addresses = Addresses {
            from_mac: [2, 0, 0, 0, 0, 1],
            to_mac: [2, 0, 0, 0, 0, 2],
            from: Ipv4Addr::new(10, 7, 0, 1),
            to: Ipv4Addr::BROADCAST,
            from_port: 67,
            to_port: 68,
        };
        for length in [0, 1, 299, 300, 1472] {
            let payload: Vec<u8> = (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let header = header(&addresses, &payload);
            assert_eq!(fold(sum_words(&header[14..34], 0)), 0);
            let udp_length = u32::try_from(payload.len() + 8).unwrap();
            let pseudo = sum_words(&header[26..34], 17 + udp_length);
            assert_eq!(fold(sum_words(&payload, sum_words(&header[34..], pseudo))), 0);
        }
    }
}
