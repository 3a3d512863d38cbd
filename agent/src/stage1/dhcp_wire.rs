//! DHCPv4 messages as a client with one interface needs them (RFC 2131, RFC 2132, RFC 3442): encode and decode.
//!
//! Pure: bytes in, bytes out. Every option is read separately, so a broken one does not hide the others. No
//! renewal: the host's own DHCP client takes over within seconds. Called by `dhcp_session`.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::Ipv4Addr;

use bedplate_api::id::MacAddress;

const MAGIC: [u8; 4] = [99, 130, 83, 99];
const OPTIONS_AT: usize = 240;
/// RFC 1542, 2.1: relays may drop shorter messages.
const MIN_LENGTH: usize = 300;
const FLAG_BROADCAST: u16 = 0x8000;

/// Messages of the client: the two that lead to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// DHCPDISCOVER.
    Discover,
    /// DHCPREQUEST in state SELECTING.
    Select {
        /// The offered address.
        address: Ipv4Addr,
        /// The server that offered it.
        server: Ipv4Addr,
    },
}

/// The kinds of answer that a client in these states understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// DHCPOFFER.
    Offer,
    /// DHCPACK.
    Ack,
    /// DHCPNAK.
    Nak,
}

/// A server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Kind of the message.
    pub kind: Kind,
    /// The server (option 54).
    pub server: Ipv4Addr,
    /// Offered or granted lease; meaningless in a NAK.
    pub lease: Lease,
}

/// The configuration that a lease brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The host's address.
    pub address: Ipv4Addr,
    /// Length of the network's prefix in bits (option 1; 32 if absent).
    pub prefix: u8,
    /// Routes as network, prefix length and gateway: option 121 if present,
    /// otherwise the first router as default route.
    pub routes: Vec<(Ipv4Addr, u8, Ipv4Addr)>,
    /// Name servers (option 6), at most 3.
    pub nameservers: Vec<Ipv4Addr>,
    /// Domain name (option 15), if it is one.
    pub domain: Option<String>,
    /// Seconds that the lease lasts (option 51).
    pub seconds: Option<u32>,
}

/// The message `request` from `mac` in transaction `xid`; `elapsed` seconds after the first of the transaction.
pub(crate) fn encode(request: Request, xid: u32, mac: MacAddress, elapsed: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MIN_LENGTH);
    bytes.extend([1, 1, 6, 0]);
    bytes.extend(xid.to_be_bytes());
    bytes.extend(elapsed.to_be_bytes());
    bytes.extend(FLAG_BROADCAST.to_be_bytes());
    bytes.extend([0; 16]);
    bytes.extend(mac.octets());
    bytes.resize(OPTIONS_AT.saturating_sub(MAGIC.len()), 0);
    bytes.extend(MAGIC);
    match request {
        Request::Discover => option(&mut bytes, 53, &[1]),
        Request::Select { address, server } => {
            option(&mut bytes, 53, &[3]);
            option(&mut bytes, 50, &address.octets());
            option(&mut bytes, 54, &server.octets());
        }
    }
    let [a, b, c, d, e, f] = mac.octets();
    option(&mut bytes, 61, &[1, a, b, c, d, e, f]);
    option(&mut bytes, 57, &1472_u16.to_be_bytes());
    option(&mut bytes, 55, &[121, 1, 3, 6, 15, 51]);
    bytes.push(255);
    bytes.resize(bytes.len().max(MIN_LENGTH), 0);
    bytes
}

fn option(bytes: &mut Vec<u8>, code: u8, value: &[u8]) {
    bytes.extend([code, u8::try_from(value.len()).unwrap_or(0)]);
    bytes.extend(value);
}

/// The answer to transaction `xid` of `mac`, or `None` for everything else that may arrive on the port.
pub(crate) fn decode(bytes: &[u8], xid: u32, mac: MacAddress) -> Option<Reply> {
    let fixed: &[u8; OPTIONS_AT] = bytes.first_chunk()?;
    let own = fixed.starts_with(&[2, 1, 6])
        && fixed.get(4..8) == Some(&xid.to_be_bytes())
        && fixed.get(28..34) == Some(&mac.octets())
        && fixed.ends_with(&MAGIC);
    if !own {
        return None;
    }
    let mut options = Options::default();
    options.read(bytes.get(OPTIONS_AT..)?);
    match options.overload {
        1 => options.read(fixed.get(108..236)?),
        2 => options.read(fixed.get(44..108)?),
        3 => {
            options.read(fixed.get(108..236)?);
            options.read(fixed.get(44..108)?);
        }
        _ => {}
    }
    let address = Ipv4Addr::from(*fixed.get(16..)?.first_chunk::<4>()?);
    let kind = options.kind?;
    if kind != Kind::Nak && (address.is_unspecified() || address.is_broadcast() || address.is_multicast()) {
        return None;
    }
    Some(Reply { kind, server: options.server?, lease: options.into_lease(address) })
}

#[derive(Default)]
struct Options {
    kind: Option<Kind>,
    server: Option<Ipv4Addr>,
    prefix: Option<u8>,
    routers: Vec<Ipv4Addr>,
    classless: Vec<u8>,
    nameservers: Vec<Ipv4Addr>,
    domain: Option<String>,
    seconds: Option<u32>,
    overload: u8,
}

impl Options {
    fn read(&mut self, mut bytes: &[u8]) {
        while let [code, rest @ ..] = bytes {
            match code {
                0 => bytes = rest,
                255 => return,
                _ => {
                    let Some((length, rest)) = rest.split_first() else { return };
                    let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else { return };
                    self.take(*code, value);
                    bytes = rest;
                }
            }
        }
    }

    fn take(&mut self, code: u8, value: &[u8]) {
        match (code, value) {
            (1, value) => {
                let mask = value.first_chunk().map(|b| u32::from_be_bytes(*b));
                let contiguous =
                    mask.filter(|m| m.leading_ones().checked_add(m.trailing_zeros()) == Some(32));
                self.prefix = contiguous.and_then(|m| u8::try_from(m.leading_ones()).ok());
            }
            (3, value) => self.routers = addresses(value),
            (6, value) => self.nameservers = addresses(value),
            (15, value) => self.domain = domain(value),
            (51, value) => self.seconds = value.first_chunk().map(|b| u32::from_be_bytes(*b)),
            (52, [overload]) => self.overload = *overload,
            (53, [2]) => self.kind = Some(Kind::Offer),
            (53, [5]) => self.kind = Some(Kind::Ack),
            (53, [6]) => self.kind = Some(Kind::Nak),
            (54, value) => self.server = addresses(value).first().copied(),
            (121, value) => self.classless.extend(value),
            _ => {}
        }
    }

    fn into_lease(self, address: Ipv4Addr) -> Lease {
        let mut routes = classless_routes(&self.classless);
        if routes.is_empty() {
            routes.extend(self.routers.first().map(|router| (Ipv4Addr::UNSPECIFIED, 0, *router)));
        }
        let mut nameservers = self.nameservers;
        nameservers.truncate(3);
        Lease {
            address,
            prefix: self.prefix.unwrap_or(32),
            routes,
            nameservers,
            domain: self.domain,
            seconds: self.seconds,
        }
    }
}

fn addresses(value: &[u8]) -> Vec<Ipv4Addr> {
    let (groups, _rest) = value.as_chunks::<4>();
    groups.iter().map(|group| Ipv4Addr::from(*group)).filter(|a| !a.is_unspecified()).collect()
}

/// A name that may stand in resolv.conf; trailing NULs, which some servers send, are cut.
fn domain(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0').trim_end_matches('.');
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || b == b'_';
    (!text.is_empty() && text.bytes().all(fits)).then(|| text.to_owned())
}

/// Decodes the routes of RFC 3442: width, significant octets of the network, router. Entries after a broken
/// one are dropped.
fn classless_routes(mut value: &[u8]) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
    let mut routes = Vec::new();
    while let Some((width, rest)) = value.split_first() {
        let significant = usize::from(width.div_ceil(8));
        let Some((octets, rest)) = rest.split_at_checked(significant).filter(|_| *width <= 32) else { break };
        let Some((router, rest)) = rest.split_first_chunk::<4>() else { break };
        let mut network = [0; 4];
        network.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        routes.push((Ipv4Addr::from(network), *width, Ipv4Addr::from(*router)));
        value = rest;
    }
    routes
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub(super) mod tests {
    use super::*;

    pub(crate) const MAC: MacAddress = MacAddress::new([0x52, 0x54, 0, 0, 0, 1]);

    /// A server's answer with these options after the fixed part.
    pub(crate) fn answer(xid: u32, mac: MacAddress, address: [u8; 4], options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 1, 6, 0];
        bytes.extend(xid.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend(address);
        bytes.extend([0; 8]);
        bytes.extend(mac.octets());
        bytes.resize(236, 0);
        bytes.extend(MAGIC);
        bytes.extend(options);
        bytes
    }

    pub(crate) const OFFER: [u8; 9] = [53, 1, 2, 54, 4, 10, 7, 0, 1];

    #[test]
    fn messages_are_long_enough_and_ask_for_broadcast() {
        let select =
            Request::Select { address: Ipv4Addr::new(10, 7, 0, 9), server: Ipv4Addr::new(10, 7, 0, 1) };
        for request in [Request::Discover, select] {
            let bytes = encode(request, 0x0102_0304, MAC, 3);
            assert_eq!(bytes.len(), MIN_LENGTH);
            assert_eq!(&bytes[..12], &[1, 1, 6, 0, 1, 2, 3, 4, 0, 3, 0x80, 0]);
            assert_eq!(&bytes[28..34], &MAC.octets());
            assert_eq!(&bytes[236..240], &MAGIC);
        }
        let bytes = encode(select, 1, MAC, 0);
        assert_eq!(&bytes[240..255], &[53, 1, 3, 50, 4, 10, 7, 0, 9, 54, 4, 10, 7, 0, 1]);
    }

    #[test]
    fn a_lease_is_read_whole() {
        let mut options = OFFER.to_vec();
        options.extend([0, 1, 4, 255, 255, 254, 0, 3, 4, 10, 7, 0, 1, 6, 8, 10, 7, 0, 1, 10, 7, 0, 2]);
        options.extend(b"\x0f\x0drack.example\0");
        options.extend([51, 4, 0, 0, 14, 16, 255]);
        let reply = decode(&answer(7, MAC, [10, 7, 0, 9], &options), 7, MAC).unwrap();
        assert_eq!((reply.kind, reply.server), (Kind::Offer, Ipv4Addr::new(10, 7, 0, 1)));
        assert_eq!(
            reply.lease,
            Lease {
                address: Ipv4Addr::new(10, 7, 0, 9),
                prefix: 23,
                routes: vec![(Ipv4Addr::UNSPECIFIED, 0, Ipv4Addr::new(10, 7, 0, 1))],
                nameservers: vec![Ipv4Addr::new(10, 7, 0, 1), Ipv4Addr::new(10, 7, 0, 2)],
                domain: Some("rack.example".to_owned()),
                seconds: Some(3600),
            }
        );
    }

    #[test]
    fn a_broken_option_hides_no_other() {
        let mut options = vec![15, 2, 0xff, 0xfe, 1, 2, 255, 255, 51, 1, 9];
        options.extend(OFFER);
        let reply = decode(&answer(7, MAC, [10, 7, 0, 9], &options), 7, MAC).unwrap();
        assert_eq!((reply.lease.domain, reply.lease.prefix, reply.lease.seconds), (None, 32, None));
    }

    #[test]
    fn classless_routes_replace_the_router() {
        let mut options = OFFER.to_vec();
        options.extend([3, 4, 10, 7, 0, 1, 121, 14, 0, 10, 7, 0, 2, 24, 10, 8, 0, 10, 7, 0, 3, 33, 9]);
        let reply = decode(&answer(7, MAC, [10, 7, 0, 9], &options), 7, MAC).unwrap();
        assert_eq!(
            reply.lease.routes,
            [
                (Ipv4Addr::UNSPECIFIED, 0, Ipv4Addr::new(10, 7, 0, 2)),
                (Ipv4Addr::new(10, 8, 0, 0), 24, Ipv4Addr::new(10, 7, 0, 3))
            ]
        );
    }

    #[test]
    fn overloaded_fields_are_read_too() {
        let mut bytes = answer(7, MAC, [10, 7, 0, 9], &[53, 1, 5, 52, 1, 1, 255]);
        bytes[108..114].copy_from_slice(&[54, 4, 10, 7, 0, 1]);
        assert_eq!(decode(&bytes, 7, MAC).unwrap().server, Ipv4Addr::new(10, 7, 0, 1));
    }

    #[test]
    fn other_packets_are_not_an_answer() {
        let good = answer(7, MAC, [10, 7, 0, 9], &OFFER);
        assert!(decode(&good, 7, MAC).is_some());
        assert_eq!(decode(&good, 8, MAC), None);
        assert_eq!(decode(&good, 7, MacAddress::new([2; 6])), None);
        assert_eq!(decode(&answer(7, MAC, [0; 4], &OFFER), 7, MAC), None);
        assert_eq!(decode(&answer(7, MAC, [10, 7, 0, 9], &[53, 1, 2]), 7, MAC), None);
        for cut in 0..good.len() {
            let _ = decode(&good[..cut], 7, MAC);
        }
    }
}
