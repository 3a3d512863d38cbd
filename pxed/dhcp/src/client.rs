//! Callbacks of the DHCP engine to its owner: the identity of a client, its boot answer, and reports of events.
//!
//! The engine owns packets, addresses and leases; the owner (pxed) owns machines, boots and policy.

use std::net::Ipv4Addr;

use bedplate_api::id::{MacAddress, MachineName};
use ipnet::Ipv4Net;
use uuid::Uuid;

/// Kind of program that sent the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loader {
    /// An operating system or anything else that does not ask to netboot.
    None,
    /// Firmware PXE (option 60 `PXEClient`).
    Pxe,
    /// UEFI HTTP boot (option 60 `HTTPClient`).
    Http,
    /// iPXE (option 175 or user class `iPXE`), whatever started it.
    Ipxe,
}

/// Type of the DHCP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// DHCPDISCOVER.
    Discover,
    /// DHCPREQUEST in any of its four states, or a PXE boot server request (port 4011).
    Request,
    /// DHCPINFORM.
    Inform,
    /// DHCPDECLINE: the client found its address in use.
    Decline,
    /// DHCPRELEASE: the client releases its address.
    Release,
}

/// A decoded request, as far as its owner needs it. Nothing in it is proven: a MAC address can be forged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Client hardware address.
    pub mac: MacAddress,
    /// Transaction id.
    pub transaction: u32,
    /// Message type.
    pub message: Message,
    /// Program that asks.
    pub loader: Loader,
    /// Every architecture of option 93 (RFC 4578, 2.1; IANA "Processor Architecture Types"), in the client's order.
    pub architectures: Vec<u16>,
    /// Machine identifier (option 97, type 0).
    pub uuid: Option<Uuid>,
    /// Option 60 as text, lossy.
    pub vendor_class: String,
    /// Option 12 as text, lossy.
    pub host_name: Option<String>,
    /// The subnet the client is on.
    pub subnet: Ipv4Net,
    /// Our own address that this client can reach.
    pub server: Ipv4Addr,
    /// The relay that passed the packet on.
    pub relay: Option<Ipv4Addr>,
    /// True if another server assigns the addresses (proxyDHCP).
    pub proxy: bool,
}

/// Client as the owner knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// A Machine of ours.
    Known(KnownClient),
    /// Not a Machine; served from the pool only while `discovery` is on.
    Unknown {
        /// True if unknown clients get an address and a discovery image.
        discovery: bool,
    },
    /// Silence, with the reason (a closed set of words, used as a metric label): for instance two Machines claim this address.
    Refused(&'static str),
}

/// A Machine's network settings for the interface that asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownClient {
    /// The Machine; its name is handed out as host name.
    pub machine: MachineName,
    /// Fixed addresses with their prefix; the first one inside the client's subnet is used. Empty: from the pool.
    pub addresses: Vec<Ipv4Net>,
    /// Overrides the subnet's router.
    pub gateway: Option<Ipv4Addr>,
    /// Overrides the subnet's name servers unless empty.
    pub nameservers: Vec<Ipv4Addr>,
}

/// Boot data for a client that netboots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootAnswer {
    /// `siaddr` and option 66: server of the loader.
    pub next_server: Ipv4Addr,
    /// Boot file: a TFTP name, or an `http://` URL for iPXE and UEFI HTTP boot.
    pub file: String,
}

/// Event of a client, reported after it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A request arrived.
    Received,
    /// An offer left.
    Offered(Ipv4Addr),
    /// An acknowledgement left, its lease on disk.
    Acknowledged(Ipv4Addr),
    /// A proxyDHCP or boot server answer left.
    ProxyAnswered,
    /// The client got a NAK because its address is not valid here.
    Refused(Ipv4Addr),
    /// No address is free in the client's subnet.
    PoolExhausted,
    /// The client found its address in use; it is quarantined.
    Declined(Ipv4Addr),
    /// The client gave its address back.
    Released(Ipv4Addr),
}

/// Callbacks to the owner. All methods are called on the packet path: they must return immediately, without I/O and
/// without a lock that is held over I/O. `client`, `boot` and `owner` are called while the lease table is locked:
/// they must not call the [`crate::Server`] back.
pub trait Clients: Send + Sync + 'static {
    /// Returns the identity of a client.
    fn client(&self, query: &Query) -> Client;

    /// Returns the boot data; `None` if the client does not netboot now. Called only for [`Loader`]s other than
    /// `None`, once per packet; a transaction's REQUEST should get the same answer as its DISCOVER.
    fn boot(&self, query: &Query) -> Option<BootAnswer>;

    /// Returns the owner of a fixed address, if a Machine names it: a pool never assigns such an address to another
    /// client. Called for every address that is about to be offered, so it must take constant time.
    fn owner(&self, address: Ipv4Addr) -> Option<MacAddress> {
        let _ = address;
        None
    }

    /// Tells what happened.
    fn observe(&self, query: &Query, event: &Event);
}
