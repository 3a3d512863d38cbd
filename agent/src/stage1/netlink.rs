//! The three rtnetlink requests that stage-1 sends (rtnetlink(7)), and the kernel's answer to one.
//!
//! Pure: values in, bytes out; host byte order, attributes padded to 4. IPv4 only. Called by `link`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::Ipv4Addr;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_DHCP: u8 = 16;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const RTNH_F_ONLINK: u32 = 4;

/// One change of the kernel's network state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Sets the interface up.
    Up {
        /// Interface index.
        index: u32,
    },
    /// Addition of an address. An existing one is kept.
    Address {
        /// Interface index.
        index: u32,
        /// The address.
        address: Ipv4Addr,
        /// Length of its network's prefix in bits.
        prefix: u8,
    },
    /// Removal of an address of an earlier lease.
    NoAddress {
        /// Interface index.
        index: u32,
        /// The address.
        address: Ipv4Addr,
        /// Length of its network's prefix in bits.
        prefix: u8,
    },
    /// Addition or replacement of a route. Gateway 0.0.0.0 means "on the link".
    Route {
        /// Interface index.
        index: u32,
        /// Network that is reached; 0.0.0.0/0 is the default route.
        network: Ipv4Addr,
        /// Length of the network's prefix in bits.
        prefix: u8,
        /// Next hop, which may be outside of the interface's network.
        gateway: Ipv4Addr,
    },
}

/// The request for `change`, asking for an acknowledgement.
pub(crate) fn encode(change: Change, sequence: u32) -> Vec<u8> {
    let (kind, flags, body) = match change {
        Change::Up { index } => {
            let mut body = vec![0; 4];
            body.extend(index.to_ne_bytes());
            body.extend(IFF_UP.to_ne_bytes());
            body.extend(IFF_UP.to_ne_bytes());
            (RTM_NEWLINK, 0, body)
        }
        Change::Address { index, address, prefix } => {
            (RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, address_body(index, address, prefix))
        }
        Change::NoAddress { index, address, prefix } => {
            (RTM_DELADDR, 0, address_body(index, address, prefix))
        }
        Change::Route { index, network, prefix, gateway } => {
            (RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, route_body(index, network, prefix, gateway))
        }
    };
    let length = u32::try_from(body.len().saturating_add(16)).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(body.len().saturating_add(16));
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(body);
    message
}

fn address_body(index: u32, address: Ipv4Addr, prefix: u8) -> Vec<u8> {
    let mut body = vec![AF_INET, prefix, 0, RT_SCOPE_UNIVERSE];
    body.extend(index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, address.octets());
    attribute(&mut body, IFA_ADDRESS, address.octets());
    if prefix < 31 {
        let hosts = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
        attribute(&mut body, IFA_BROADCAST, (address.to_bits() | hosts).to_be_bytes());
    }
    body
}

fn route_body(index: u32, network: Ipv4Addr, prefix: u8, gateway: Ipv4Addr) -> Vec<u8> {
    let on_link = gateway.is_unspecified();
    let scope = if on_link { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
    let mut body = vec![AF_INET, prefix, 0, 0, RT_TABLE_MAIN, RTPROT_DHCP, scope, RTN_UNICAST];
    body.extend(if on_link { 0 } else { RTNH_F_ONLINK }.to_ne_bytes());
    if prefix > 0 {
        attribute(&mut body, RTA_DST, network.octets());
    }
    attribute(&mut body, RTA_OIF, index.to_ne_bytes());
    if !on_link {
        attribute(&mut body, RTA_GATEWAY, gateway.octets());
    }
    body
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: [u8; 4]) {
    body.extend(8_u16.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}

/// The kernel's answer to request `sequence`: 0 or a negative errno; `None` if the bytes are not that answer.
pub(crate) fn acknowledgement(bytes: &[u8], sequence: u32) -> Option<i32> {
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let answered = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
    let code = i32::from_ne_bytes(*bytes.get(16..)?.first_chunk()?);
    (kind == NLMSG_ERROR && answered == sequence).then_some(code)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn every_request_says_its_own_length() {
        let address = Ipv4Addr::new(10, 7, 0, 9);
        for (change, length) in [
            (Change::Up { index: 2 }, 32),
            (Change::Address { index: 2, address, prefix: 24 }, 48),
            (Change::Address { index: 2, address, prefix: 32 }, 40),
            (Change::NoAddress { index: 2, address, prefix: 24 }, 48),
            (Change::Route { index: 2, network: Ipv4Addr::UNSPECIFIED, prefix: 0, gateway: address }, 44),
            (Change::Route { index: 2, network: address, prefix: 32, gateway: Ipv4Addr::UNSPECIFIED }, 44),
        ] {
            let bytes = encode(change, 1);
            assert_eq!(bytes.len(), length, "{change:?}");
            assert_eq!(u32::from_ne_bytes(*bytes.first_chunk().unwrap()) as usize, length);
        }
    }

    #[test]
    fn broadcast_is_the_last_address_of_the_network() {
        let bytes = encode(Change::Address { index: 1, address: Ipv4Addr::new(10, 7, 1, 9), prefix: 23 }, 1);
        assert_eq!(bytes.last_chunk(), Some(&[10, 7, 1, 255]));
    }

    #[test]
    fn only_the_answer_to_the_own_request_counts() {
        let mut answer = vec![0; 20];
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        answer[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        answer[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        assert_eq!(acknowledgement(&answer, 7), Some(-17));
        assert_eq!(acknowledgement(&answer, 8), None);
        assert_eq!(acknowledgement(&answer[..19], 7), None);
    }
}
