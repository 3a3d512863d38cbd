//! Origin of a message, and the messages that may come from it. No other module of this crate decides which senders are trusted.
//!
//! A MAC address and `giaddr` are fields that any sender can set. So the sender's place decides: the link of a served
//! interface, a relay that the configuration lists, or anywhere else, from where a client may only keep what it has. A message
//! to our address alone does not prove the link: routers forward it, and its source address can be forged.
//!
//! Pure.

use std::net::Ipv4Addr;

use super::link::can_be_sent_to;
use super::{Arrival, Silence};
use crate::client::Clients;
use crate::settings::Settings;
use crate::wire::{MessageType, RelayInformation, Request};

/// Sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A host on the link of the receiving interface.
    Link,
    /// A listed relay, for a client on the link of its subnet.
    Relay,
    /// A host that sent to our address alone, from any network. It gets no boot data.
    Routed,
}

/// Finds the origin of a message, and refuses a message that must not come from it.
pub(super) fn origin(
    settings: &Settings,
    clients: &dyn Clients,
    request: &Request<'_>,
    arrival: &Arrival<'_>,
) -> Result<Origin, Silence> {
    if let Some(relay) = request.relay {
        return relay_origin(settings, clients, request, arrival, relay);
    }
    // Without giaddr a switch on the link may add a circuit ID (RFC 3046, 2.1.1), but nothing that directs the answer.
    if request.relay_information.as_ref().is_some_and(RelayInformation::directs_answer) {
        return Err(Silence::UnlistedRelay);
    }
    // The boot server port has a condition of its own.
    if arrival.boot_server {
        return Ok(Origin::Link);
    }
    // RFC 2131, 4.3.2 and 4.4.4: a client that knows the server's address sends from the address that it has.
    if arrival.is_unicast() && request.client_address.is_some_and(|own| own != *arrival.peer.ip()) {
        return Err(Silence::ForeignSource);
    }
    if arrival.is_on_link() { Ok(Origin::Link) } else { routed(request) }
}

/// Checks the relay of a message. The list must name `giaddr`, to which the answer goes, and the UDP source: a relay may send from another of its
/// addresses (RFC 1542, 4.1.1), and `giaddr` alone is a field that any host can set. The list is the operator's, and Machines have other authors:
/// an address of both is not believed.
fn relay_origin(
    settings: &Settings,
    clients: &dyn Clients,
    request: &Request<'_>,
    arrival: &Arrival<'_>,
    relay: Ipv4Addr,
) -> Result<Origin, Silence> {
    if !can_be_sent_to(settings, arrival, relay) {
        return Err(Silence::NoSubnet);
    }
    let subnet = request.relayed_link().and_then(|link| settings.subnet_of(link));
    let addresses = [relay, *arrival.peer.ip()];
    if !subnet.is_some_and(|subnet| addresses.iter().all(|address| subnet.has_relay(*address))) {
        return Err(Silence::UnlistedRelay);
    }
    if addresses.iter().any(|address| clients.owner(*address).is_some()) {
        return Err(Silence::RelayIsMachine);
    }
    Ok(Origin::Relay)
}

/// A client that is known by its source address only may extend a lease, release it and ask for options. RFC 2131, 4.4.4, lets
/// a client that knows the server's address send DHCPDISCOVER there, and has it broadcast if there is no answer.
fn routed(request: &Request<'_>) -> Result<Origin, Silence> {
    let has_address = request.client_address.is_some();
    match request.message {
        MessageType::Request if has_address && request.server_id.is_none() => Ok(Origin::Routed),
        MessageType::Release | MessageType::Inform if has_address => Ok(Origin::Routed),
        MessageType::Decline => Err(Silence::NotBroadcast),
        MessageType::Discover
        | MessageType::Request
        | MessageType::Release
        | MessageType::Inform
        | MessageType::Offer
        | MessageType::Ack
        | MessageType::Nak => Err(Silence::NotOnLink),
    }
}

impl Arrival<'_> {
    /// Returns true if the packet proves that its sender is on the interface's link: routers forward neither the limited
    /// broadcast nor a packet without a source address (RFC 1812, 5.3.5.1 and 5.3.7). A source address of the link proves
    /// nothing: a host of another network can forge it, and a boot is opened whether the answer reaches that host or not.
    fn is_on_link(&self) -> bool {
        self.destination.is_broadcast() || self.peer.ip().is_unspecified()
    }

    /// Returns true if the address is in one of the interface's networks.
    pub(super) fn is_neighbor(&self, address: Ipv4Addr) -> bool {
        self.addresses.iter().any(|own| own.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bedplate_api::id::MacAddress;
    use ipnet::Ipv4Net;

    use super::*;
    use crate::client::{BootAnswer, Client, Event, KnownClient, Query};
    use crate::hostile::message;
    use crate::lease::Table;
    use crate::respond::{Heard, Response, respond};
    use crate::settings::{Mode, Ports, Subnet};
    use crate::wire::decode;

    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
    const DIRECTED: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 255);
    /// A pool address that no client has.
    const NEIGHBOR: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 102);
    const IPXE: &[u8] = b"\x4d\x04iPXE\x3c\x09PXEClient";
    const DISCOVER: u8 = 1;
    const REQUEST: u8 = 3;
    const INFORM: u8 = 8;

    /// One Machine without a fixed address, and the number of boots that were opened for it.
    #[derive(Default)]
    struct OneMachine(AtomicUsize);

    impl Clients for OneMachine {
        fn client(&self, _: &Query) -> Client {
            Client::Known(KnownClient {
                machine: "node-1".parse().unwrap(),
                addresses: Vec::new(),
                gateway: None,
                nameservers: Vec::new(),
            })
        }

        fn boot(&self, _: &Query) -> Option<BootAnswer> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Some(BootAnswer { next_server: SERVER, file: "snponly.efi".into() })
        }

        fn owner(&self, _: Ipv4Addr) -> Option<MacAddress> {
            None
        }

        fn observe(&self, _: &Query, _: &Event) {}
    }

    struct Site {
        settings: Settings,
        machine: OneMachine,
        table: Table,
    }

    impl Site {
        fn new(mode: Mode) -> Self {
            let subnet = Subnet {
                network: "10.7.0.0/24".parse().unwrap(),
                ranges: vec!["10.7.0.100-10.7.0.102".parse().unwrap()],
                reserve: 0,
                routers: Vec::new(),
                nameservers: Vec::new(),
                domain: None,
                ntp_servers: Vec::new(),
                lease_seconds: 3600,
                relays: Vec::new(),
            };
            let settings = Settings {
                mode,
                interfaces: vec!["rack".into()],
                authoritative: true,
                subnets: vec![subnet],
                ports: Ports::default(),
            };
            let mut table = Table::default();
            table.configure(&settings.subnets);
            Self { settings, machine: OneMachine::default(), table }
        }

        /// Sends a message of the Machine from `source`, which is its `ciaddr` if `has_address`.
        fn send(
            &mut self,
            (source, has_address): (Ipv4Addr, bool),
            destination: Ipv4Addr,
            options: &[u8],
        ) -> Response {
            let mut packet = message(1, 0, &[options, IPXE].concat());
            if has_address {
                packet[12..16].copy_from_slice(&source.octets());
            }
            let arrival = Arrival {
                addresses: &[Ipv4Net::new_assert(SERVER, 24)],
                own: &[SERVER],
                destination,
                peer: SocketAddrV4::new(source, 68),
                boot_server: false,
                discovered: None::<Heard>,
            };
            let request = decode(&packet).unwrap();
            respond(&self.settings, &self.machine, &mut self.table, &request, &arrival, 1000).unwrap()
        }

        fn boots(&self) -> usize {
            self.machine.0.load(Ordering::Relaxed)
        }

        fn leased(&self) -> Vec<Ipv4Addr> {
            self.table.leases().map(|lease| lease.address).collect()
        }
    }

    #[test]
    fn trust_6_a_unicast_discover_from_an_address_of_the_link_opens_no_boot() {
        let requested: &[u8] = &[50, 4, 10, 7, 0, 102];
        let by_name: &[u8] = &[54, 4, 10, 7, 0, 1];
        let messages =
            [(DISCOVER, Vec::new()), (REQUEST, requested.to_vec()), (REQUEST, [requested, by_name].concat())];
        for mode in [Mode::Server, Mode::Proxy] {
            for (kind, more) in &messages {
                let options = [&[53, 1, *kind], more.as_slice()].concat();
                // Routers may forward a directed broadcast (RFC 2644).
                for destination in [SERVER, DIRECTED] {
                    let mut site = Site::new(mode);
                    let response = site.send((NEIGHBOR, false), destination, &options);
                    let silent = (Err(Silence::NotOnLink), None);
                    assert_eq!((response.result, response.packet), silent, "{mode:?} {kind} {destination}");
                    assert_eq!((site.boots(), site.leased()), (0, Vec::new()));
                }
            }
            let mut site = Site::new(mode);
            let discover = site.send((NEIGHBOR, false), Ipv4Addr::BROADCAST, &[53, 1, DISCOVER]);
            assert!(discover.packet.is_some(), "a client on the link broadcasts it");
            assert_eq!(site.boots(), 1);
        }
    }

    #[test]
    fn trust_6_a_forged_renewal_of_a_neighbor_moves_no_lease() {
        let mut site = Site::new(Mode::Server);
        let new = (Ipv4Addr::UNSPECIFIED, false);
        site.send(new, Ipv4Addr::BROADCAST, &[53, 1, DISCOVER]);
        let own = site.leased()[0];
        let [.., last] = own.octets();
        let take = [53, 1, REQUEST, 54, 4, 10, 7, 0, 1, 50, 4, 10, 7, 0, last];
        assert_eq!(site.send(new, Ipv4Addr::BROADCAST, &take).result, Ok(Event::Acknowledged(own)));
        let boots = site.boots();
        for destination in [SERVER, DIRECTED] {
            let forged = site.send((NEIGHBOR, true), destination, &[53, 1, REQUEST]);
            assert_eq!((forged.result, forged.packet), (Err(Silence::NoRecord), None), "{destination}");
            assert_eq!(site.leased(), [own]);
        }
        let renewed = site.send((own, true), SERVER, &[53, 1, REQUEST]);
        assert_eq!(renewed.result, Ok(Event::Acknowledged(own)));
        assert_eq!(site.boots(), boots, "a host that renews does not boot");
        let rebound = site.send((NEIGHBOR, true), Ipv4Addr::BROADCAST, &[53, 1, REQUEST]);
        assert_eq!(rebound.result, Ok(Event::Acknowledged(NEIGHBOR)), "a lost lease is taken up on the link");
    }

    #[test]
    fn trust_6_a_unicast_inform_gets_options_and_opens_no_boot() {
        for (mode, result) in
            [(Mode::Server, Ok(Event::Acknowledged(NEIGHBOR))), (Mode::Proxy, Err(Silence::NoBoot))]
        {
            let mut site = Site::new(mode);
            let unicast = site.send((NEIGHBOR, true), SERVER, &[53, 1, INFORM]);
            assert_eq!((unicast.result, site.boots()), (result, 0), "{mode:?}");
            // PXE 2.1, 2.2.3: discovery by broadcast goes to port 67, discovery by unicast to port 4011.
            let broadcast = site.send((NEIGHBOR, true), Ipv4Addr::BROADCAST, &[53, 1, INFORM]);
            assert_eq!((broadcast.result.is_ok(), site.boots()), (true, 1), "{mode:?}");
        }
    }
}
