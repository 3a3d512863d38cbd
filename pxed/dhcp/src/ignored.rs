//! A client whose message was ignored because of where it came from, and what an operator can do about it.
//!
//! Pure: data and its text. Made by `respond`, kept by the server, shown by `bedplate explain` and in the log.

use std::net::Ipv4Addr;

use bedplate_api::id::MacAddress;
use ipnet::Ipv4Net;

use crate::client::{Clients, Query};
use crate::lease::Seconds;
use crate::respond::{Arrival, Silence};
use crate::settings::Settings;
use crate::wire::Request;

/// One ignored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ignored {
    /// Cause.
    pub reason: Silence,
    /// `giaddr`
    pub relay: Option<Ipv4Addr>,
    /// UDP source address.
    pub source: Ipv4Addr,
    /// Configured subnet that the relay asked for, or that the client is in. None: no configured subnet has its link.
    pub network: Option<Ipv4Net>,
    /// True if that subnet lists `giaddr`.
    pub relay_is_listed: bool,
    /// True if that subnet lists the UDP source.
    pub source_is_listed: bool,
    /// Listed address of the relay that is a fixed address of a Machine, and that Machine's hardware address.
    pub machine: Option<(Ipv4Addr, MacAddress)>,
    /// Time of arrival.
    pub at: Seconds,
}

impl Ignored {
    /// Returns the entry for a message with this outcome. None: the outcome needs no advice.
    pub(crate) fn new(
        reason: Silence,
        (settings, clients): (&Settings, &dyn Clients),
        request: &Request<'_>,
        arrival: &Arrival<'_>,
        query: Option<&Query>,
        at: Seconds,
    ) -> Option<Self> {
        let is_about_origin = matches!(
            reason,
            Silence::UnlistedRelay
                | Silence::RelayIsMachine
                | Silence::NotOnLink
                | Silence::NotDiscovered
                | Silence::FixedOutside
        );
        if !is_about_origin {
            return None;
        }
        let source = *arrival.peer.ip();
        let subnet = request.relayed_link().and_then(|link| settings.subnet_of(link));
        let is_listed = |address| subnet.is_some_and(|subnet| subnet.has_relay(address));
        let client = query.map(|query| query.subnet).filter(|_| reason == Silence::FixedOutside);
        let addresses =
            request.relay.into_iter().chain([source]).filter(|_| reason == Silence::RelayIsMachine);
        let machine = addresses.filter_map(|address| Some((address, clients.owner(address)?))).next();
        Some(Self {
            reason,
            relay: request.relay,
            source,
            network: client.or(subnet.map(|subnet| subnet.network)),
            relay_is_listed: request.relay.is_some_and(is_listed),
            source_is_listed: is_listed(source),
            machine,
            at,
        })
    }

    /// Returns the missing `relays` entries, as TOML.
    fn missing(&self) -> String {
        let relay = self.relay.filter(|_| !self.relay_is_listed);
        let source = Some(self.source).filter(|source| !self.source_is_listed && self.relay != Some(*source));
        let quoted: Vec<_> =
            relay.into_iter().chain(source).map(|address| format!("\"{address}\"")).collect();
        format!("relays = [{}]", quoted.join(", "))
    }

    /// Returns cause and remedy as one line.
    pub fn advice(&self) -> String {
        let source = self.source;
        match (self.reason, self.relay) {
            (Silence::UnlistedRelay, Some(relay)) => {
                let list = self.missing();
                let remedy = match self.network {
                    Some(network) => format!("add {list} to the [[dhcp.subnet]] of {network}"),
                    None => format!("add a [[dhcp.subnet]] with the network of its clients and {list}"),
                };
                format!("relay {relay} (sender {source}) is not listed; if it is your relay, {remedy}")
            }
            (Silence::RelayIsMachine, _) => {
                let network = self.network.map_or("the subnet".to_owned(), |network| network.to_string());
                let address = match self.machine {
                    Some((address, mac)) => format!(
                        "{address} is in the relays of {network}, and it is the fixed address of {mac}"
                    ),
                    None => format!("a relay of {network} has a fixed address of a Machine"),
                };
                format!(
                    "{address}: that host could pose as any client of the subnet; remove the address from relays in \
                     [[dhcp.subnet]], or from spec.pxe.interfaces[].addresses"
                )
            }
            (Silence::UnlistedRelay, None) => format!(
                "sender {source} set relay options (82, sub-option 5, 11 or 19) without a relay address; \
                 only a listed relay may set them"
            ),
            (Silence::NotDiscovered, _) => format!(
                "sender {source} asked the boot server port without a DHCPDISCOVER in the last minutes; \
                 pxed must receive the DHCPDISCOVER on a served interface or from a listed relay"
            ),
            (Silence::FixedOutside, _) => {
                let network = self.network.map_or("the subnet".to_owned(), |network| network.to_string());
                format!(
                    "no fixed address of the Machine is a host address of {network}, from which it asks, \
                     other than pxed's own; add an address of {network} to spec.pxe.interfaces[].addresses, \
                     or connect the interface to the network of its addresses"
                )
            }
            (reason, _) => format!(
                "message from {source} was neither broadcast on the link of a served interface nor sent by a relay ({}); \
                 send it through a listed relay",
                reason.label()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignored(reason: Silence) -> Ignored {
        Ignored {
            reason,
            relay: Some([10, 8, 0, 1].into()),
            source: [10, 7, 0, 2].into(),
            network: Some("10.8.0.0/24".parse().unwrap()),
            relay_is_listed: false,
            source_is_listed: false,
            machine: None,
            at: 0,
        }
    }

    #[test]
    fn advice_names_the_relay_and_exactly_the_addresses_that_are_missing() {
        let both = ignored(Silence::UnlistedRelay);
        assert_eq!(
            both.advice(),
            "relay 10.8.0.1 (sender 10.7.0.2) is not listed; if it is your relay, \
             add relays = [\"10.8.0.1\", \"10.7.0.2\"] to the [[dhcp.subnet]] of 10.8.0.0/24"
        );
        let sender = Ignored { relay_is_listed: true, ..both };
        assert!(sender.advice().contains("add relays = [\"10.7.0.2\"] to"), "{}", sender.advice());
        let same = Ignored { source: [10, 8, 0, 1].into(), ..both };
        assert!(same.advice().contains("add relays = [\"10.8.0.1\"] to"), "{}", same.advice());
        let elsewhere = Ignored { network: None, ..both };
        assert!(elsewhere.advice().contains("add a [[dhcp.subnet]] with the network of its clients"));
    }

    #[test]
    fn each_cause_has_advice_of_its_own() {
        let forged = Ignored { relay: None, ..ignored(Silence::UnlistedRelay) };
        for (ignored, part) in [
            (forged, "without a relay address"),
            (
                ignored(Silence::RelayIsMachine),
                "a relay of 10.8.0.0/24 has a fixed address of a Machine: that host could",
            ),
            (ignored(Silence::NotDiscovered), "without a DHCPDISCOVER"),
            (
                ignored(Silence::FixedOutside),
                "add an address of 10.8.0.0/24 to spec.pxe.interfaces[].addresses",
            ),
            (ignored(Silence::NotOnLink), "(not_on_link); send it through a listed relay"),
        ] {
            assert!(ignored.advice().contains(part), "{}", ignored.advice());
        }
    }
}
