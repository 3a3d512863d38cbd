//! Reads a client's message, strictly: what is not sound is refused with its reason, what is optional and unsound is
//! passed over.
//!
//! Pure: bytes in, a [`Request`] or a [`Malformed`] out.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;
use std::net::Ipv4Addr;

use bedplate_api::id::MacAddress;
use uuid::Uuid;

use super::{COOKIE, HEADER_OCTETS, Malformed, MessageType, option};
use crate::client::Loader;

const BOOTREQUEST: u8 = 1;
const ETHERNET: u8 = 1;
/// RFC 1542, 4.1.1: a relay discards what has more; so do we.
const MAX_HOPS: u8 = 16;
/// Positions of `sname` and `file` (RFC 2131, figure 1).
const SNAME: std::ops::Range<usize> = 44..108;
const FILE: std::ops::Range<usize> = 108..236;
/// Length of a client identifier: type and at least one octet (RFC 2132, 9.14). Longer ones cannot be represented and
/// are not needed.
const CLIENT_ID_LENGTH: std::ops::RangeInclusive<usize> = 2..=255;

/// A client's message. Nothing in it is proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Option 53.
    pub message: MessageType,
    /// `chaddr`
    pub mac: MacAddress,
    /// `xid`
    pub transaction: u32,
    /// The broadcast bit of `flags`.
    pub broadcast: bool,
    /// `ciaddr`
    pub client_address: Option<Ipv4Addr>,
    /// `giaddr`
    pub relay: Option<Ipv4Addr>,
    /// Option 50.
    pub requested: Option<Ipv4Addr>,
    /// Option 54.
    pub server_id: Option<Ipv4Addr>,
    /// Option 51, seconds.
    pub lease_seconds: Option<u32>,
    /// Option 57, octets.
    pub max_size: Option<u16>,
    /// Option 55, in the client's order; absent means that it leaves the choice to us.
    pub parameters: Option<Cow<'a, [u8]>>,
    /// Option 61.
    pub client_id: Option<Cow<'a, [u8]>>,
    /// Option 60.
    pub vendor_class: Option<Cow<'a, [u8]>>,
    /// Option 12.
    pub host_name: Option<Cow<'a, [u8]>>,
    /// Option 97, whole.
    pub machine_id: Option<Cow<'a, [u8]>>,
    /// Option 93.
    pub architectures: Vec<u16>,
    /// Option 82.
    pub relay_information: Option<RelayInformation<'a>>,
    /// PXE_BOOT_ITEM of option 43: type and layer.
    pub boot_item: Option<[u8; 4]>,
    /// Program that asks.
    pub loader: Loader,
}

impl Request<'_> {
    /// Option 97 as a UUID: type 0 and 16 octets (RFC 4578, 2.3). Firmware and iPXE send the octets as they lie in SMBIOS,
    /// the first three fields with the low octet first (SMBIOS 3.7, 7.2.1): read so, it is what DMI and the label say.
    pub fn uuid(&self) -> Option<Uuid> {
        let (&kind, value) = self.machine_id.as_deref()?.split_first()?;
        if kind == 0 { Uuid::from_slice_le(value).ok() } else { None }
    }

    /// Returns an address on the link that a relayed client is on: the link selection (RFC 3527), otherwise `giaddr`. None
    /// without a relay.
    pub(crate) fn relayed_link(&self) -> Option<Ipv4Addr> {
        let relay = self.relay?;
        let selected = self.relay_information.as_ref().and_then(|information| information.link);
        Some(selected.unwrap_or(relay))
    }
}

/// Relay agent information (RFC 3046).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayInformation<'a> {
    /// The whole option, to be echoed.
    pub raw: Cow<'a, [u8]>,
    /// Sub-option 5: the link that the client is on (RFC 3527).
    pub link: Option<Ipv4Addr>,
    /// Sub-option 11: what the client shall take for the server (RFC 5107).
    pub server_override: Option<Ipv4Addr>,
    /// Sub-option 19: answers go to the port that the relay sent from (RFC 8357).
    pub source_port: bool,
}

impl RelayInformation<'_> {
    /// Returns true if it says more than where the client is plugged in: which subnet it is given, which server it believes,
    /// or where the answer goes.
    pub(crate) fn directs_answer(&self) -> bool {
        self.link.is_some() || self.server_override.is_some() || self.source_port
    }
}

/// Reads one message.
///
/// # Errors
/// The first [`Malformed`] that was found.
pub fn decode(packet: &[u8]) -> Result<Request<'_>, Malformed> {
    let (header, tail) = packet.split_at_checked(HEADER_OCTETS).ok_or(Malformed::TooShort)?;
    let octet = |at: usize| header.get(at).copied().unwrap_or_default();
    if octet(0) != BOOTREQUEST {
        return Err(Malformed::NotARequest);
    }
    if (octet(1), octet(2)) != (ETHERNET, 6) {
        return Err(Malformed::HardwareType);
    }
    if octet(3) > MAX_HOPS {
        return Err(Malformed::Hops);
    }
    if header.get(236..) != Some(&COOKIE) {
        return Err(Malformed::Cookie);
    }
    let mac = MacAddress::new(array(header, 28));
    if !mac.is_unicast() {
        return Err(Malformed::HardwareAddress);
    }
    let client_address = host_address(array(header, 12)).ok_or(Malformed::ClientAddress)?;
    let relay = host_address(array(header, 24)).ok_or(Malformed::RelayAddress)?;
    let options = Options::read(header, tail)?;
    let message = message_type(&options)?;
    let vendor_class = options.get(option::VENDOR_CLASS);
    Ok(Request {
        message,
        mac,
        transaction: u32::from_be_bytes(array(header, 4)),
        broadcast: octet(10) & 0x80 != 0,
        client_address,
        relay,
        requested: options.address(option::REQUESTED_ADDRESS).map_err(|()| Malformed::RequestedAddress)?,
        server_id: options.address(option::SERVER_ID).map_err(|()| Malformed::ServerIdentifier)?,
        lease_seconds: options.fixed(option::LEASE_TIME).map(u32::from_be_bytes),
        max_size: options.fixed(option::MAX_SIZE).map(u16::from_be_bytes),
        parameters: options.get(option::PARAMETERS),
        client_id: options.get(option::CLIENT_ID).filter(|id| CLIENT_ID_LENGTH.contains(&id.len())),
        host_name: options.get(option::HOST_NAME),
        machine_id: options.get(option::MACHINE_ID),
        architectures: architectures(&options),
        relay_information: options.get(option::RELAY_INFORMATION).map(relay_information),
        boot_item: options.get(option::VENDOR_SPECIFIC).and_then(|v| fixed_sub(&v, option::pxe::BOOT_ITEM)),
        loader: loader(&options, vendor_class.as_deref()),
        vendor_class,
    })
}

/// Returns octets of the header; in bounds for every offset that is used here.
fn array<const OCTET_COUNT: usize>(header: &[u8], at: usize) -> [u8; OCTET_COUNT] {
    header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; OCTET_COUNT])
}

/// Returns `Some(None)` for 0.0.0.0, `None` for an address that no host can have.
fn host_address(octets: [u8; 4]) -> Option<Option<Ipv4Addr>> {
    let address = Ipv4Addr::from(octets);
    if address.is_unspecified() {
        Some(None)
    } else if matches!(octets, [0 | 224..=255, ..]) {
        // "This network" (RFC 1122, 3.2.1.3), groups, and class E with the broadcast address.
        None
    } else {
        Some(Some(address))
    }
}

fn message_type(options: &Options<'_>) -> Result<MessageType, Malformed> {
    let value = options.get(option::MESSAGE_TYPE).ok_or(Malformed::NoMessageType)?;
    let [code] = *value else { return Err(Malformed::MessageType) };
    match MessageType::from_code(code).ok_or(Malformed::MessageType)? {
        MessageType::Offer | MessageType::Ack | MessageType::Nak => Err(Malformed::ServerMessage),
        client @ (MessageType::Discover
        | MessageType::Request
        | MessageType::Decline
        | MessageType::Release
        | MessageType::Inform) => Ok(client),
    }
}

fn architectures(options: &Options<'_>) -> Vec<u16> {
    let value = options.get(option::ARCHITECTURE).unwrap_or_default();
    let (pairs, _) = value.as_chunks::<2>();
    pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect()
}

fn loader(options: &Options<'_>, vendor_class: Option<&[u8]>) -> Loader {
    let says_ipxe = options.get(option::USER_CLASS).is_some_and(|classes| names_ipxe(&classes));
    match vendor_class {
        _ if says_ipxe || options.has(option::IPXE) => Loader::Ipxe,
        Some(class) if class.starts_with(b"HTTPClient") => Loader::Http,
        Some(class) if class.starts_with(b"PXEClient") => Loader::Pxe,
        Some(_) | None => Loader::None,
    }
}

/// iPXE writes its user class plainly; RFC 3004 wants a length before it, and allows several.
fn names_ipxe(mut classes: &[u8]) -> bool {
    if classes == b"iPXE" {
        return true;
    }
    while let Some((&length, rest)) = classes.split_first() {
        let Some((class, rest)) = rest.split_at_checked(length.into()) else { return false };
        if class == b"iPXE" {
            return true;
        }
        classes = rest;
    }
    false
}

fn relay_information(raw: Cow<'_, [u8]>) -> RelayInformation<'_> {
    let address = |code| fixed_sub::<4>(&raw, code).map(Ipv4Addr::from).filter(|a| !a.is_unspecified());
    let link = address(option::relay::LINK_SELECTION);
    let server_override = address(option::relay::SERVER_OVERRIDE);
    let source_port = sub_options(&raw).any(|(code, _)| code == option::relay::SOURCE_PORT);
    RelayInformation { raw, link, server_override, source_port }
}

fn fixed_sub<const OCTET_COUNT: usize>(value: &[u8], wanted: u8) -> Option<[u8; OCTET_COUNT]> {
    sub_options(value).find(|(code, _)| *code == wanted).and_then(|(_, v)| v.try_into().ok())
}

/// Sub-options up to the first that does not fit.
fn sub_options(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&code, after) = rest.split_first()?;
        let (&length, after) = after.split_first()?;
        let (value, after) = after.split_at_checked(length.into())?;
        rest = after;
        Some((code, value))
    })
}

/// All options of a message, each instance as it lies in the packet.
struct Options<'a> {
    parts: Vec<(u8, &'a [u8])>,
}

impl<'a> Options<'a> {
    /// Walks the options field, then `file`, then `sname` where option 52 says so (RFC 2131, 4.1).
    fn read(header: &'a [u8], tail: &'a [u8]) -> Result<Self, Malformed> {
        let mut options = Self { parts: Vec::with_capacity(24) };
        options.walk(tail)?;
        let overload = match options.get(option::OVERLOAD).as_deref() {
            None => 0,
            Some([value @ 1..=3]) => *value,
            Some(_) => return Err(Malformed::Overload),
        };
        if overload & 1 != 0 {
            options.walk(header.get(FILE).unwrap_or_default())?;
        }
        if overload & 2 != 0 {
            options.walk(header.get(SNAME).unwrap_or_default())?;
        }
        Ok(options)
    }

    fn walk(&mut self, mut rest: &'a [u8]) -> Result<(), Malformed> {
        loop {
            let (&code, after) = rest.split_first().ok_or(Malformed::NoEnd)?;
            match code {
                option::PAD => rest = after,
                option::END => return Ok(()),
                _ => {
                    let (&length, after) = after.split_first().ok_or(Malformed::OptionTruncated)?;
                    let (value, after) =
                        after.split_at_checked(length.into()).ok_or(Malformed::OptionTruncated)?;
                    self.parts.push((code, value));
                    rest = after;
                }
            }
        }
    }

    fn has(&self, code: u8) -> bool {
        self.parts.iter().any(|(c, _)| *c == code)
    }

    /// An option's value, its instances joined in their order (RFC 3396, 5).
    fn get(&self, code: u8) -> Option<Cow<'a, [u8]>> {
        let mut instances = self.parts.iter().filter(|(c, _)| *c == code).map(|(_, value)| *value);
        let first = instances.next()?;
        let Some(second) = instances.next() else { return Some(Cow::Borrowed(first)) };
        let mut joined = [first, second].concat();
        instances.for_each(|value| joined.extend_from_slice(value));
        Some(Cow::Owned(joined))
    }

    fn fixed<const OCTET_COUNT: usize>(&self, code: u8) -> Option<[u8; OCTET_COUNT]> {
        self.get(code)?.as_ref().try_into().ok()
    }

    /// An address that must be one if it is there; 0.0.0.0 counts as absent.
    fn address(&self, code: u8) -> Result<Option<Ipv4Addr>, ()> {
        let Some(value) = self.get(code) else { return Ok(None) };
        let octets: [u8; 4] = value.as_ref().try_into().map_err(|_| ())?;
        Ok(Some(Ipv4Addr::from(octets)).filter(|a| !a.is_unspecified()))
    }
}
