//! Answers to messages (RFC 2131, 4.3; PXE 2.1): the whole protocol, without sockets, clock or disk.
//!
//! Called by `serve` with the lease table locked; returns an answer as plain data together with the changes that must
//! be on disk before the answer is sent.
//!
//! Pure: time comes in with the message.
//!
//! ```text
//! DISCOVER ------------------------------> OFFER
//! REQUEST  54 ours (SELECTING) ----------> ACK | NAK (authoritative); 54 another's: our offer is open again, silence
//!          50, no ciaddr (INIT-REBOOT) --> ACK | NAK (wrong address, authoritative) | silence (no record)
//!          ciaddr (RENEWING, REBINDING) -> ACK | NAK (another's or wrong address, authoritative)
//! DECLINE  broadcast or relayed ---------> silence; otherwise ignored
//! RELEASE  from ciaddr or relayed -------> silence; otherwise ignored
//! INFORM --------------------------------> ACK without lease
//! proxyDHCP: DISCOVER of a loader -------> OFFER without yiaddr; REQUEST or INFORM on 4011 -> ACK to its sender, after a DISCOVER
//! ```
//!
//! All of it applies to a client that broadcasts on the link of a served interface, or is behind a listed relay. A
//! client that sends only to our address may renew, release and ask for options; it gets no boot data (`origin`).

mod address;
mod link;
mod origin;
mod proxy;
mod reply;
mod request;

use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;

use self::origin::Origin;
use crate::client::{BootAnswer, Client, Clients, Event, KnownClient, Loader, Message, Query};
use crate::lease::{Change, ClientKey, Holder, Seconds, Table};
use crate::settings::{Mode, Settings, Subnet};
use crate::wire::{Malformed, MessageType, Request, reasons};

/// Circumstances in which a message arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Our addresses on the receiving interface, each with its prefix.
    pub addresses: &'a [Ipv4Net],
    /// Our addresses on all served interfaces. No client gets one of them.
    pub own: &'a [Ipv4Addr],
    /// The packet's destination address.
    pub destination: Ipv4Addr,
    /// The sender.
    pub peer: SocketAddrV4,
    /// True if it arrived at the port of the PXE boot server.
    pub boot_server: bool,
    /// Origin of the client's DHCPDISCOVER that was answered within [`DISCOVERED_SECONDS`]. Needed on the boot server port
    /// only.
    pub discovered: Option<Heard>,
}

/// Origin of an answered DHCPDISCOVER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The link of a served interface.
    Link,
    /// A listed relay of this subnet.
    Behind(Ipv4Net),
}

/// Time after a DHCPDISCOVER in which the boot server port answers its client, seconds. Firmware asks there within seconds of
/// the offer; the rest is for one that shows a menu before.
pub(crate) const DISCOVERED_SECONDS: Seconds = 300;

/// Destination of an answer (RFC 2131, 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To everybody on the link.
    Broadcast,
    /// To the client's hardware address and the address that it is being given.
    Hardware(Ipv4Addr),
    /// By the routing table, from the server port.
    Routed(SocketAddrV4),
    /// By the routing table, from the boot server port.
    BootServer(SocketAddrV4),
}

/// An answer, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// For counting.
    pub message: MessageType,
    /// Destination of the packet.
    pub to: Destination,
    /// The client's hardware address.
    pub mac: bedplate_api::id::MacAddress,
    /// Our address that it is sent from.
    pub source: Ipv4Addr,
    /// The DHCP message.
    pub payload: Vec<u8>,
}

/// Result of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The message, for the owner; `None` when it was not even attributed to a subnet.
    pub query: Option<Query>,
    /// Event, or the reason for silence.
    pub result: Result<Event, Silence>,
    /// Packet to send.
    pub packet: Option<Packet>,
    /// Changes that must be on disk before the packet is sent.
    pub changes: Vec<Change>,
    /// Set for an answered DHCPDISCOVER of proxyDHCP, to be remembered for [`Arrival::discovered`].
    pub heard: Option<Heard>,
}

reasons! {
    /// Reason why a valid message is not answered.
    Silence {
        /// No subnet of ours is where the client is.
        NoSubnet => "no_subnet",
        /// `giaddr` or the sender is not a relay that the client's subnet lists, or relay options came without a relay.
        UnlistedRelay => "unlisted_relay",
        /// `giaddr` or the sender is listed as a relay, and it is also a fixed address of a Machine: that host could pose as any client.
        RelayIsMachine => "relay_is_machine",
        /// Neither broadcast on the link of the interface nor sent by a relay, and not from a client that keeps its address.
        NotOnLink => "not_on_link",
        /// The boot server port was asked without a DHCPDISCOVER before, or from another network than that came from.
        NotDiscovered => "not_discovered",
        /// The Machine has fixed addresses, and none of them is in the subnet that it asks from.
        FixedOutside => "fixed_outside",
        /// The receiving interface has no address that the client could call us by.
        NoServerAddress => "no_server_address",
        /// Not a Machine, and discovery is off.
        UnknownClient => "unknown_client",
        /// The owner refused to serve it.
        ClientRefused => "client_refused",
        /// The client chose another server.
        OtherServer => "other_server",
        /// The server does not know the lease that the client names.
        NoRecord => "no_record",
        /// The client's address is wrong, but the server must not report it.
        NotAuthoritative => "not_authoritative",
        /// No address is free.
        PoolExhausted => "pool_exhausted",
        /// The client speaks of an address that it does not hold.
        NotHeld => "not_held",
        /// DHCPDECLINE that was neither broadcast nor relayed (RFC 2131, 4.4.4).
        NotBroadcast => "not_broadcast",
        /// DHCPRELEASE, or a unicast message with `ciaddr`, that came neither from `ciaddr` nor through a relay (RFC 2131,
        /// 4.4.4).
        ForeignSource => "foreign_source",
        /// proxyDHCP answers loaders only.
        NotALoader => "not_a_loader",
        /// The machine does not netboot now.
        NoBoot => "no_boot",
        /// A message that another server answers in this mode or on this port.
        NotOurs => "not_ours",
        /// The required part of the answer is larger than the client accepts.
        ReplyTooLarge => "reply_too_large",
    }
}

/// Request with the client's identity and place.
struct Asked<'a> {
    settings: &'a Settings,
    clients: &'a dyn Clients,
    request: &'a Request<'a>,
    arrival: &'a Arrival<'a>,
    origin: Origin,
    subnet: Option<&'a Subnet>,
    query: &'a Query,
    known: Option<&'a KnownClient>,
    holder: Holder,
    /// Option 54.
    server_id: Ipv4Addr,
    now: Seconds,
}

/// Decision about a request; `respond` builds the packet.
enum Decision {
    Offer(Ipv4Addr),
    Ack(Ipv4Addr, Vec<Change>),
    /// The address that is refused.
    Nak(Ipv4Addr),
    Inform,
    Proxy(MessageType, BootAnswer),
    Released(Ipv4Addr, Vec<Change>),
    Declined(Ipv4Addr, Vec<Change>),
}

/// Answers one message.
///
/// # Errors
/// [`Malformed`] when options 50, 54 and `ciaddr` fit no state of a client.
pub fn respond(
    settings: &Settings,
    clients: &dyn Clients,
    table: &mut Table,
    request: &Request<'_>,
    arrival: &Arrival<'_>,
    now: Seconds,
) -> Result<Response, Malformed> {
    table.expire(now);
    let silent = |query, silence| Response {
        query,
        result: Err(silence),
        packet: None,
        changes: Vec::new(),
        heard: None,
    };
    let trusted = origin::origin(settings, clients, request, arrival);
    let located = trusted.and_then(|origin| Ok((origin, link::locate(settings, request, arrival)?)));
    let (origin, place) = match located {
        Ok(located) => located,
        Err(silence) => return Ok(silent(None, silence)),
    };
    let mut query = make_query(settings, request, &place);
    let known = match clients.client(&query) {
        Client::Known(known) => Some(known),
        Client::Unknown { discovery: true } => None,
        Client::Unknown { discovery: false } => return Ok(silent(Some(query), Silence::UnknownClient)),
        Client::Refused(_) => return Ok(silent(Some(query), Silence::ClientRefused)),
    };
    let subnet = place.subnet.map(|first| link::subnet_for(first, &place.others, known.as_ref(), request));
    if let Some(subnet) = subnet {
        query.subnet = subnet.network;
    }
    let holder = Holder { network: query.subnet, key: client_key(request, known.as_ref()) };
    let asked = Asked {
        settings,
        clients,
        request,
        arrival,
        origin,
        subnet,
        query: &query,
        known: known.as_ref(),
        holder,
        server_id: place.server_id,
        now,
    };
    let (result, packet, changes) = match decide(&asked, table)? {
        Ok(decision) => asked.carry_out(decision),
        Err(silence) => (Err(silence), None, Vec::new()),
    };
    let offered =
        settings.mode == Mode::Proxy && request.message == MessageType::Discover && packet.is_some();
    let heard = offered.then_some(match origin {
        Origin::Relay => Heard::Behind(query.subnet),
        Origin::Link | Origin::Routed => Heard::Link,
    });
    Ok(Response { query: Some(query), result, packet, changes, heard })
}

/// See the module's head of `lease` for why a known Machine is its hardware address.
fn client_key(request: &Request<'_>, known: Option<&KnownClient>) -> ClientKey {
    match (known, request.client_id.as_deref()) {
        (None, Some(id)) => ClientKey::Id(id.into()),
        (Some(_), _) | (None, None) => ClientKey::Mac(request.mac),
    }
}

fn make_query(settings: &Settings, request: &Request<'_>, place: &link::Place<'_>) -> Query {
    Query {
        mac: request.mac,
        transaction: request.transaction,
        message: match request.message {
            MessageType::Request => Message::Request,
            MessageType::Inform => Message::Inform,
            MessageType::Decline => Message::Decline,
            MessageType::Release => Message::Release,
            // The others never come from a client: decode refuses them.
            MessageType::Discover | MessageType::Offer | MessageType::Ack | MessageType::Nak => {
                Message::Discover
            }
        },
        loader: request.loader,
        architectures: request.architectures.clone(),
        uuid: request.uuid(),
        vendor_class: request.vendor_class.as_deref().map(text).unwrap_or_default(),
        host_name: request.host_name.as_deref().map(text),
        subnet: place.network,
        server: place.server,
        relay: request.relay,
        proxy: settings.mode == Mode::Proxy,
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn decide(asked: &Asked<'_>, table: &mut Table) -> Result<Result<Decision, Silence>, Malformed> {
    if asked.arrival.boot_server {
        return Ok(proxy::boot_server(asked));
    }
    if asked.settings.mode == Mode::Proxy {
        return Ok(proxy::proxy(asked));
    }
    let Some(subnet) = asked.subnet else { return Ok(Err(Silence::NoSubnet)) };
    match asked.request.message {
        MessageType::Discover => Ok(address::choose(asked, subnet, table).map(|address| {
            table.offer(address, asked.holder.clone(), asked.request.mac, asked.now);
            Decision::Offer(address)
        })),
        MessageType::Request => request::request(asked, subnet, table),
        MessageType::Decline => request::decline(asked, table),
        MessageType::Release => request::release(asked, table),
        MessageType::Inform => request::inform(asked),
        MessageType::Offer | MessageType::Ack | MessageType::Nak => Err(Malformed::ServerMessage),
    }
}

type Outcome = (Result<Event, Silence>, Option<Packet>, Vec<Change>);

impl Asked<'_> {
    /// Returns what the client boots. A boot is opened only for a client whose place is proven: its link, or a listed relay.
    fn boot(&self) -> Option<BootAnswer> {
        match self.request.loader {
            _ if self.origin == Origin::Routed => None,
            Loader::None => None,
            Loader::Pxe | Loader::Http | Loader::Ipxe => self.clients.boot(self.query),
        }
    }

    fn carry_out(&self, decision: Decision) -> Outcome {
        let lease = |message, address, event, changes| {
            let packet = self.lease_reply(message, address, self.boot().as_ref());
            (event, packet, changes)
        };
        let (event, packet, changes) = match decision {
            Decision::Offer(address) => {
                lease(MessageType::Offer, Some(address), Event::Offered(address), Vec::new())
            }
            Decision::Ack(address, changes) => {
                lease(MessageType::Ack, Some(address), Event::Acknowledged(address), changes)
            }
            Decision::Inform => {
                let address = self.request.client_address.unwrap_or(*self.arrival.peer.ip());
                lease(MessageType::Ack, None, Event::Acknowledged(address), Vec::new())
            }
            Decision::Nak(address) => (Event::Refused(address), self.nak(), Vec::new()),
            Decision::Proxy(message, boot) => {
                (Event::ProxyAnswered, self.proxy_reply(message, &boot), Vec::new())
            }
            Decision::Released(address, changes) => return (Ok(Event::Released(address)), None, changes),
            Decision::Declined(address, changes) => return (Ok(Event::Declined(address)), None, changes),
        };
        match packet {
            Some(packet) => (Ok(event), Some(packet), changes),
            // Nothing is written for an answer that cannot be sent: the client never learns of the lease.
            None => (Err(Silence::ReplyTooLarge), None, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests;
