//! Subnet of a client, and the server's address on its link.
//!
//! Pure.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::{Arrival, Silence};
use crate::client::KnownClient;
use crate::settings::{Mode, Settings, Subnet, is_host};
use crate::wire::Request;

/// Network location of a client.
pub(super) struct Place<'a> {
    /// The subnet as configured; `None` only for proxyDHCP, which needs none.
    pub(super) subnet: Option<&'a Subnet>,
    /// Further subnets on the same link.
    pub(super) others: Vec<&'a Subnet>,
    /// The network.
    pub(super) network: Ipv4Net,
    /// Our address, for everything that the client fetches from us.
    pub(super) server: Ipv4Addr,
    /// Server address for the client (option 54): our own, unless a relay overrides it (RFC 5107).
    pub(super) server_id: Ipv4Addr,
}

/// Finds the client's subnet, of a message whose sender `origin` accepts. The order is: the relay's link selection
/// (RFC 3527), the relay's address, the present address of a client without a relay, the receiving interface's own subnets.
/// Such a client may be routed to us.
pub(super) fn locate<'a>(
    settings: &'a Settings,
    request: &Request<'_>,
    arrival: &Arrival<'_>,
) -> Result<Place<'a>, Silence> {
    let by_override = request.relay_information.as_ref().and_then(|i| i.server_override);
    let link = request.relayed_link();
    let has_address = request.client_address.filter(|_| arrival.is_unicast());
    let subnets: Vec<&Subnet> = match (link, has_address) {
        (Some(address), _) | (None, Some(address)) => settings.subnet_of(address).into_iter().collect(),
        (None, None) => {
            let local =
                |subnet: &&Subnet| arrival.addresses.iter().any(|own| subnet.network.contains(&own.addr()));
            settings.subnets.iter().filter(local).collect()
        }
    };
    let within =
        |network: &Ipv4Net| arrival.addresses.iter().map(Ipv4Net::addr).find(|own| network.contains(own));
    let first = subnets.first().copied();
    let own = arrival
        .called_by()
        .or_else(|| first.and_then(|subnet| within(&subnet.network)))
        .or_else(|| arrival.addresses.first().map(Ipv4Net::addr));
    let server = own.ok_or(Silence::NoServerAddress)?;
    let server_id = by_override.unwrap_or(server);
    let network = match first {
        Some(subnet) => subnet.network,
        None if settings.mode == Mode::Proxy || arrival.boot_server => {
            foreign_network(link.or(has_address), arrival)
        }
        None => return Err(Silence::NoSubnet),
    };
    Ok(Place { subnet: first, others: subnets.into_iter().skip(1).collect(), network, server, server_id })
}

/// Returns true if an address belongs to one host of the known networks: an answer to a network or broadcast address
/// would reach all hosts there.
pub(super) fn can_be_sent_to(settings: &Settings, arrival: &Arrival<'_>, address: Ipv4Addr) -> bool {
    let configured = settings.subnets.iter().map(|subnet| subnet.network);
    let mut networks = configured.chain(arrival.addresses.iter().copied());
    !networks.any(|network| network.contains(&address) && !is_host(network, address))
}

/// Returns the network of a client whose addresses another server assigns.
fn foreign_network(link: Option<Ipv4Addr>, arrival: &Arrival<'_>) -> Ipv4Net {
    let own = arrival.addresses.iter().find(|own| link.is_none_or(|link| own.contains(&link)));
    match (own, link) {
        (Some(own), _) => own.trunc(),
        (None, Some(link)) => Ipv4Net::from(link),
        (None, None) => Ipv4Net::default(),
    }
}

/// Chooses among several subnets on a link: the one of a Machine's fixed address, then the one of the client's own
/// address, then the first with a pool.
pub(super) fn subnet_for<'a>(
    first: &'a Subnet,
    others: &[&'a Subnet],
    known: Option<&KnownClient>,
    request: &Request<'_>,
) -> &'a Subnet {
    let all = || std::iter::once(first).chain(others.iter().copied());
    let fixed = |subnet: &&Subnet| {
        known.is_some_and(|known| known.addresses.iter().any(|a| subnet.network.contains(&a.addr())))
    };
    let own = |subnet: &&Subnet| {
        [request.client_address, request.requested].iter().flatten().any(|a| subnet.network.contains(a))
    };
    all()
        .find(fixed)
        .or_else(|| all().find(own))
        .or_else(|| all().find(|subnet| !subnet.ranges.is_empty()))
        .unwrap_or(first)
}

impl Arrival<'_> {
    fn is_own(&self, address: Ipv4Addr) -> bool {
        self.addresses.iter().any(|own| own.addr() == address)
    }

    /// Returns true if the packet was sent to one address only.
    pub(super) fn is_unicast(&self) -> bool {
        // All zeros were broadcast once (RFC 1122, 3.3.6), and Linux still takes them for it.
        let everybody = |own: &Ipv4Net| own.contains(&self.destination) && !is_host(*own, self.destination);
        !self.destination.is_broadcast()
            && !self.destination.is_unspecified()
            && !self.addresses.iter().any(everybody)
    }

    /// Our address, if the client or relay called us by it.
    fn called_by(&self) -> Option<Ipv4Addr> {
        Some(self.destination).filter(|address| self.is_unicast() && !address.is_multicast())
    }

    /// Returns true if option 54 names this server: by any address of the interface, by the address that was called,
    /// or by the relay's server override (RFC 5107).
    pub(super) fn is_us(&self, server_id: Ipv4Addr, request: &Request<'_>) -> bool {
        let by_relay = request.relay_information.as_ref().and_then(|i| i.server_override);
        self.is_own(server_id) || self.called_by() == Some(server_id) || by_relay == Some(server_id)
    }
}
