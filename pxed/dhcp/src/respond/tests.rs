//! Claims about answers, by the states of RFC 2131, 4.3.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Mutex;

use bedplate_api::id::MacAddress;

use super::*;
use crate::hostile::message;
use crate::lease::LeaseState;
use crate::settings::Ports;
use crate::wire::{decode, option};

mod assignment;
mod loader;
mod options;
mod relay;
mod states;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const FIXED: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 20);
const POOL: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 100);
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
/// A Machine with the fixed address [`FIXED`].
const MACHINE: u8 = 1;
/// A Machine without fixed address.
const FLOATING: u8 = 2;
/// Not a Machine; discovered.
const STRANGER: u8 = 100;
/// Not a Machine; not served.
const OUTSIDER: u8 = 200;

#[derive(Default)]
struct Rack {
    fixed: Mutex<HashMap<u8, Ipv4Addr>>,
    boots: Mutex<Vec<Query>>,
    /// Name servers of each Machine.
    nameservers: Vec<Ipv4Addr>,
    /// Boot file of every loader, in place of the loader's own.
    file: Option<String>,
}

impl Clients for Rack {
    fn client(&self, query: &Query) -> Client {
        let number = query.mac.octets()[5];
        if number >= STRANGER {
            return Client::Unknown { discovery: number < OUTSIDER };
        }
        let fixed = self.fixed.lock().unwrap().get(&number).copied();
        Client::Known(KnownClient {
            machine: format!("node-{number}").parse().unwrap(),
            addresses: fixed.into_iter().map(|a| Ipv4Net::new(a, 24).unwrap()).collect(),
            gateway: Some(Ipv4Addr::new(10, 7, 0, 254)),
            nameservers: self.nameservers.clone(),
        })
    }

    fn boot(&self, query: &Query) -> Option<BootAnswer> {
        self.boots.lock().unwrap().push(query.clone());
        let file = match query.loader {
            Loader::None => return None,
            Loader::Pxe | Loader::Http | Loader::Ipxe if self.file.is_some() => self.file.clone()?,
            Loader::Pxe => "snponly.efi".into(),
            Loader::Http => "http://10.7.0.1:8067/b/1/loader/ipxe.efi".into(),
            Loader::Ipxe => "http://10.7.0.1:8067/b/1/script.ipxe".into(),
        };
        Some(BootAnswer { next_server: SERVER, file })
    }

    fn owner(&self, address: Ipv4Addr) -> Option<MacAddress> {
        let fixed = self.fixed.lock().unwrap();
        let owner = fixed.iter().find(|(_, a)| **a == address).map(|(number, _)| *number);
        owner.map(|number| MacAddress::new([0x52, 0x54, 0, 0, 0, number]))
    }

    fn observe(&self, _: &Query, _: &Event) {}
}

/// A server, its table and its clock.
struct Lab {
    settings: Settings,
    rack: Rack,
    table: Table,
    now: Seconds,
    arrival: Arrival<'static>,
}

fn own() -> &'static [Ipv4Net] {
    static OWN: std::sync::OnceLock<[Ipv4Net; 1]> = std::sync::OnceLock::new();
    OWN.get_or_init(|| [Ipv4Net::new_assert(SERVER, 24)])
}

fn lab() -> Lab {
    let subnet = |third: u8| Subnet {
        network: Ipv4Net::new_assert(Ipv4Addr::new(10, third, 0, 0), 24),
        ranges: vec![format!("10.{third}.0.100-10.{third}.0.102").parse().unwrap()],
        reserve: 0,
        routers: vec![Ipv4Addr::new(10, third, 0, 1)],
        nameservers: vec![Ipv4Addr::new(192, 0, 2, 53)],
        domain: Some("rack.example".into()),
        ntp_servers: Vec::new(),
        lease_seconds: 3600,
        relays: vec![Ipv4Net::from(RELAY)],
    };
    let settings = Settings {
        mode: Mode::Server,
        interfaces: vec!["rack".into()],
        authoritative: true,
        subnets: vec![subnet(7), subnet(8)],
        ports: Ports::default(),
    };
    let rack = Rack::default();
    rack.fixed.lock().unwrap().insert(MACHINE, FIXED);
    let mut table = Table::default();
    table.configure(&settings.subnets);
    let arrival = Arrival {
        addresses: own(),
        own: &[SERVER],
        destination: Ipv4Addr::BROADCAST,
        peer: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68),
        boot_server: false,
        discovered: None,
    };
    Lab { settings, rack, table, now: 1000, arrival }
}

/// An answer as its client reads it.
#[derive(Debug)]
struct Read {
    kind: u8,
    yiaddr: Ipv4Addr,
    siaddr: Ipv4Addr,
    ciaddr: Ipv4Addr,
    file: String,
    broadcast: bool,
    codes: Vec<u8>,
    options: HashMap<u8, Vec<u8>>,
    to: Destination,
    source: Ipv4Addr,
}

fn read(packet: &Packet) -> Read {
    let bytes = &packet.payload;
    let address = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
    let mut options = HashMap::<u8, Vec<u8>>::new();
    let mut codes = Vec::new();
    let mut at = 240;
    while bytes[at] != 255 {
        let (code, length) = (bytes[at], usize::from(bytes[at + 1]));
        options.entry(code).or_default().extend(&bytes[at + 2..at + 2 + length]);
        codes.push(code);
        at += 2 + length;
    }
    let file: Vec<u8> = bytes[108..236].iter().copied().take_while(|b| *b != 0).collect();
    Read {
        kind: options[&53][0],
        yiaddr: address(16),
        siaddr: address(20),
        ciaddr: address(12),
        file: String::from_utf8(file).unwrap(),
        broadcast: bytes[10] & 0x80 != 0,
        codes,
        options,
        to: packet.to,
        source: packet.source,
    }
}

impl Lab {
    /// Sends a packet. A message with `giaddr` comes from [`RELAY`] unless the test names another sender.
    fn send_raw(&mut self, packet: &[u8]) -> Response {
        let request = decode(packet).unwrap();
        let mut arrival = self.arrival;
        if request.relay.is_some() && arrival.peer.ip().is_unspecified() {
            arrival.peer = SocketAddrV4::new(RELAY, 67);
        }
        respond(&self.settings, &self.rack, &mut self.table, &request, &arrival, self.now).unwrap()
    }

    /// Sends the following messages from this address to the server's own.
    fn unicast_from(&mut self, source: Ipv4Addr) {
        self.arrival.destination = SERVER;
        self.arrival.peer = SocketAddrV4::new(source, 68);
    }

    fn opened_boots(&self) -> usize {
        self.rack.boots.lock().unwrap().len()
    }

    fn send(&mut self, client: u8, kind: u8, options: &[&[u8]]) -> Response {
        self.send_raw(&message(client, 0, &[&[53, 1, kind], options.concat().as_slice()].concat()))
    }

    /// With `ciaddr`.
    fn send_from(&mut self, client: u8, kind: u8, address: Ipv4Addr) -> Response {
        let mut packet = message(client, 0, &[53, 1, kind]);
        packet[12..16].copy_from_slice(&address.octets());
        self.send_raw(&packet)
    }

    /// Makes a lease in the subnet of [`RELAY`].
    fn lease_behind_relay(&mut self, client: u8) -> Ipv4Addr {
        let offer = read(&self.send_raw(&message(client, 0x10, &[53, 1, 1])).packet.unwrap());
        let options = [&[53, 1, 3][..], &requested(offer.yiaddr), &server_id(SERVER)].concat();
        let ack = read(&self.send_raw(&message(client, 0x10, &options)).packet.unwrap());
        assert_eq!((ack.kind, ack.yiaddr), (5, offer.yiaddr));
        ack.yiaddr
    }

    fn lease(&mut self, client: u8) -> Ipv4Addr {
        let offer = read(&self.send(client, 1, &[]).packet.unwrap());
        let ack =
            read(&self.send(client, 3, &[&requested(offer.yiaddr), &server_id(SERVER)]).packet.unwrap());
        assert_eq!((ack.kind, ack.yiaddr), (5, offer.yiaddr));
        ack.yiaddr
    }
}

fn requested(address: Ipv4Addr) -> Vec<u8> {
    [&[50, 4], address.octets().as_slice()].concat()
}

/// A message that [`RELAY`] passed on, with `information` as option 82.
fn relayed(kind: u8, information: &[u8], more: &[u8]) -> Vec<u8> {
    let length = u8::try_from(information.len()).unwrap();
    let mut packet = message(FLOATING, 0, &[&[53, 1, kind, 82, length], information, more].concat());
    packet[24..28].copy_from_slice(&RELAY.octets());
    packet
}

fn server_id(address: Ipv4Addr) -> Vec<u8> {
    [&[54, 4], address.octets().as_slice()].concat()
}

fn kind(response: &Response) -> Option<u8> {
    response.packet.as_ref().map(|packet| read(packet).kind)
}

#[test]
fn discover_of_a_machine_is_offered_its_fixed_address_by_link_unicast() {
    let offer = read(&lab().send(MACHINE, 1, &[]).packet.unwrap());
    assert_eq!((offer.kind, offer.yiaddr, offer.ciaddr), (2, FIXED, Ipv4Addr::UNSPECIFIED));
    assert_eq!((offer.to, offer.source), (Destination::Hardware(FIXED), SERVER));
    assert_eq!(offer.options[&54], SERVER.octets());
    assert_eq!(offer.options[&1], [255, 255, 255, 0]);
    assert_eq!(offer.options[&3], [10, 7, 0, 254], "the Machine's own gateway");
    assert_eq!(offer.options[&12], b"node-1");
    let seconds = |code: u8| u32::from_be_bytes(offer.options[&code].as_slice().try_into().unwrap());
    assert_eq!((seconds(51), seconds(58), seconds(59)), (3600, 1800, 3150));
}

#[test]
fn broadcast_flag_is_honored_and_repeated() {
    let offer = read(&lab().send_raw(&message(MACHINE, 0x80, &[53, 1, 1])).packet.unwrap());
    assert_eq!((offer.to, offer.broadcast), (Destination::Broadcast, true));
}

#[test]
fn offer_changes_nothing_on_disk_and_ack_writes_the_lease() {
    let mut lab = lab();
    assert_eq!(lab.send(MACHINE, 1, &[]).changes, []);
    let ack = lab.send(MACHINE, 3, &[&requested(FIXED), &server_id(SERVER)]);
    assert!(
        matches!(ack.changes.as_slice(), [Change::Put(lease)] if lease.address == FIXED && lease.until == 4600)
    );
    assert_eq!(ack.result, Ok(Event::Acknowledged(FIXED)));
}

#[test]
fn unknown_machine_gets_nothing_unless_discovery_is_on() {
    for kind in [1, 3, 4, 7, 8] {
        let response = lab().send(OUTSIDER, kind, &[&requested(POOL)]);
        assert_eq!((response.result, response.packet), (Err(Silence::UnknownClient), None));
    }
    assert_eq!(lab().lease(STRANGER), POOL);
}

#[test]
fn selecting_another_server_opens_our_offer_again_in_silence() {
    let mut lab = lab();
    lab.send(STRANGER, 1, &[]);
    assert_eq!(lab.table.get(POOL).map(|l| l.state), Some(LeaseState::Offered));
    let response = lab.send(STRANGER, 3, &[&requested(POOL), &server_id(Ipv4Addr::new(10, 7, 0, 2))]);
    assert_eq!((response.result, response.packet), (Err(Silence::OtherServer), None));
    assert_eq!(lab.table.get(POOL).map(|l| l.state), Some(LeaseState::Free));
}

#[test]
fn selecting_an_address_that_is_anothers_is_refused() {
    let mut lab = lab();
    assert_eq!(lab.lease(STRANGER), POOL);
    let response = lab.send(STRANGER + 1, 3, &[&requested(POOL), &server_id(SERVER)]);
    assert_eq!(kind(&response), Some(6));
}

#[test]
fn without_authority_no_state_gets_a_nak() {
    let mut lab = lab();
    assert_eq!(lab.lease(STRANGER), POOL);
    lab.settings.authoritative = false;
    let outside = Ipv4Addr::new(192, 168, 1, 5);
    let by_name = server_id(SERVER);
    let responses = [
        ("selecting, another's", lab.send(STRANGER + 1, 3, &[&requested(POOL), &by_name])),
        ("selecting, outside", lab.send(STRANGER + 1, 3, &[&requested(outside), &by_name])),
        ("selecting, not its fixed one", lab.send(MACHINE, 3, &[&requested(POOL), &by_name])),
        ("init-reboot", lab.send(STRANGER, 3, &[&requested(outside)])),
        ("renewing", lab.send_from(STRANGER, 3, FIXED)),
    ];
    for (state, response) in responses {
        let silent = (Err(Silence::NotAuthoritative), None);
        assert_eq!((response.result, response.packet), silent, "{state}");
    }
    let right = lab.send(STRANGER, 3, &[&requested(POOL), &by_name]);
    assert_eq!(kind(&right), Some(5), "what it may have it gets");
}

#[test]
fn a_request_that_fits_no_state_is_malformed() {
    let mut lab = lab();
    for options in
        [vec![53, 1, 3], vec![53, 1, 3, 54, 4, 10, 7, 0, 1], vec![53, 1, 4], vec![53, 1, 7], vec![53, 1, 8]]
    {
        let packet = message(MACHINE, 0, &options);
        let request = decode(&packet).unwrap();
        let result = respond(&lab.settings, &lab.rack, &mut lab.table, &request, &lab.arrival, 0);
        assert_eq!(result.unwrap_err(), Malformed::NoState, "{options:?}");
    }
}

#[test]
fn init_reboot_knows_right_wrong_and_unknown() {
    let wrong_net = Ipv4Addr::new(192, 168, 1, 5);
    let mut lab = lab();
    assert_eq!(kind(&lab.send(MACHINE, 3, &[&requested(FIXED)])), Some(5));
    assert_eq!(kind(&lab.send(MACHINE, 3, &[&requested(POOL)])), Some(6), "not its fixed address");
    assert_eq!(kind(&lab.send(STRANGER, 3, &[&requested(wrong_net)])), Some(6), "not this network");
    let unknown = lab.send(STRANGER, 3, &[&requested(POOL)]);
    assert_eq!((unknown.result, unknown.packet), (Err(Silence::NoRecord), None));
    lab.lease(STRANGER);
    assert_eq!(kind(&lab.send(STRANGER, 3, &[&requested(POOL)])), Some(5));
    lab.settings.authoritative = false;
    let silent = lab.send(STRANGER, 3, &[&requested(wrong_net)]);
    assert_eq!((silent.result, silent.packet), (Err(Silence::NotAuthoritative), None));
}

#[test]
fn nak_goes_to_everybody_and_carries_nothing_of_a_lease() {
    let options: &[&[u8]] = &[&requested(Ipv4Addr::new(192, 168, 1, 5)), &[61, 3, 0, 9, 9]];
    let nak = read(&lab().send(STRANGER, 3, options).packet.unwrap());
    assert_eq!((nak.kind, nak.to), (6, Destination::Broadcast));
    assert_eq!((nak.yiaddr, nak.ciaddr, nak.siaddr), ([0; 4].into(), [0; 4].into(), [0; 4].into()));
    assert_eq!(nak.codes, [53, 54, 56, 61]);
}

#[test]
fn renewing_extends_the_lease_and_answers_the_client_directly() {
    let mut lab = lab();
    let address = lab.lease(STRANGER);
    lab.now += 1800;
    lab.unicast_from(address);
    let response = lab.send_from(STRANGER, 3, address);
    let ack = read(response.packet.as_ref().unwrap());
    assert_eq!((ack.kind, ack.yiaddr, ack.ciaddr), (5, address, address));
    assert_eq!(ack.to, Destination::Routed(SocketAddrV4::new(address, 68)));
    assert!(
        matches!(response.changes.as_slice(), [Change::Put(l)] if l.until == lab.now + 3600 && l.since == 1000)
    );
}

#[test]
fn rebinding_of_a_lost_lease_is_taken_up_again_and_of_anothers_refused() {
    let mut lab = lab();
    assert_eq!(kind(&lab.send_from(STRANGER, 3, POOL)), Some(5), "free, and of our pool");
    assert_eq!(kind(&lab.send_from(STRANGER + 1, 3, POOL)), Some(6));
    let outside = lab.send_from(STRANGER, 3, Ipv4Addr::new(10, 7, 0, 50));
    assert_eq!(outside.result, Err(Silence::NoRecord), "nothing of ours");
}

#[test]
fn renewing_through_a_router_is_placed_by_the_clients_address() {
    let mut lab = lab();
    let address = lab.lease_behind_relay(STRANGER);
    lab.unicast_from(address);
    let ack = read(&lab.send_from(STRANGER, 3, address).packet.unwrap());
    assert_eq!((ack.kind, ack.yiaddr), (5, address));
    assert_eq!(ack.options[&3], [10, 8, 0, 1]);
}

#[test]
fn renewing_through_a_router_opens_no_boot_and_needs_a_lease_on_record() {
    let mut lab = lab();
    let address = lab.lease_behind_relay(FLOATING);
    lab.unicast_from(address);
    let mut packet = message(FLOATING, 0, b"\x35\x01\x03\x3c\x09PXEClient");
    packet[12..16].copy_from_slice(&address.octets());
    let ack = read(&lab.send_raw(&packet).packet.unwrap());
    assert_eq!((ack.kind, ack.file.as_str(), ack.options.get(&67)), (5, "", None));
    let free = Ipv4Addr::new(10, 8, 0, 102);
    lab.unicast_from(free);
    for client in [FLOATING, STRANGER] {
        let response = lab.send_from(client, 3, free);
        assert_eq!((response.result, response.packet), (Err(Silence::NoRecord), None), "{client}");
    }
    assert_eq!(
        lab.table.get(address).map(|lease| lease.state),
        Some(LeaseState::Bound),
        "the lease is as it was"
    );
    assert_eq!(lab.opened_boots(), 0);
}

#[test]
fn a_client_asking_for_less_time_gets_less_and_for_more_gets_ours() {
    for (asked, given) in [(600_u32, 600_u32), (1, 60), (u32::MAX, 3600)] {
        let option = [&[51, 4], asked.to_be_bytes().as_slice()].concat();
        let offer = read(&lab().send(MACHINE, 1, &[&option]).packet.unwrap());
        assert_eq!(offer.options[&51], given.to_be_bytes());
    }
}

#[test]
fn declined_address_is_quarantined_and_the_next_one_offered() {
    let mut lab = lab();
    let address = lab.lease(STRANGER);
    let foreign = lab.send(STRANGER + 1, 4, &[&requested(address), &server_id(SERVER)]);
    assert_eq!(foreign.result, Err(Silence::NotHeld));
    let response = lab.send(STRANGER, 4, &[&requested(address), &server_id(SERVER)]);
    assert_eq!((&response.result, &response.packet), (&Ok(Event::Declined(address)), &None));
    assert!(matches!(response.changes.as_slice(), [Change::Put(l)] if l.state == LeaseState::Declined));
    assert_ne!(lab.lease(STRANGER), address);
}

#[test]
fn rfc2131_4_4_4_decline_is_taken_by_broadcast_or_relay_only() {
    let mut lab = lab();
    let address = lab.lease(STRANGER);
    lab.arrival.destination = SERVER;
    lab.arrival.peer = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 9), 68);
    let forged = lab.send(STRANGER, 4, &[&requested(address), &server_id(SERVER)]);
    assert_eq!((forged.result, forged.changes.len()), (Err(Silence::NotBroadcast), 0));
    assert_eq!(lab.table.get(address).map(|lease| lease.state), Some(LeaseState::Bound));
    lab.arrival.peer = SocketAddrV4::new(address, 68);
    assert_eq!(kind(&lab.send_from(STRANGER, 3, address)), Some(5), "the lease is still renewed");

    lab.arrival.peer = SocketAddrV4::new(RELAY, 67);
    let through_relay = [&[53, 1, 1], &[82, 6, 5, 4, 10, 7, 0, 0][..]].concat();
    assert_eq!(kind(&lab.send_raw(&message(STRANGER, 0x10, &through_relay))), Some(2));
    let decline = [&[53, 1, 4, 82, 6, 5, 4, 10, 7, 0, 0], requested(address).as_slice()].concat();
    let relayed = lab.send_raw(&message(STRANGER, 0x10, &decline));
    assert_eq!(relayed.result, Ok(Event::Declined(address)));
}

#[test]
fn rfc2131_4_4_4_release_is_taken_from_ciaddr_or_relay_only() {
    let mut lab = lab();
    let address = lab.lease(STRANGER);
    for peer in [Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::UNSPECIFIED] {
        lab.arrival.peer = SocketAddrV4::new(peer, 68);
        let forged = lab.send_from(STRANGER, 7, address);
        assert_eq!((forged.result, forged.changes.len()), (Err(Silence::ForeignSource), 0), "{peer}");
        assert_eq!(lab.table.get(address).map(|lease| lease.state), Some(LeaseState::Bound));
    }
    let mut relayed = message(STRANGER, 0x10, &[53, 1, 7, 82, 6, 5, 4, 10, 7, 0, 0]);
    relayed[12..16].copy_from_slice(&address.octets());
    assert_eq!(lab.send_raw(&relayed).result, Ok(Event::Released(address)));
}

#[test]
fn released_lease_is_open_to_others_and_remembered_for_its_client() {
    let mut lab = lab();
    let address = lab.lease(STRANGER);
    lab.arrival.peer = SocketAddrV4::new(address, 68);
    let response = lab.send_from(STRANGER, 7, address);
    assert_eq!((response.result, response.packet), (Ok(Event::Released(address)), None));
    assert_ne!(lab.lease(STRANGER + 1), address);
    assert_eq!(lab.lease(STRANGER), address);
}

#[test]
fn inform_gives_options_but_no_address_and_no_time() {
    let mut lab = lab();
    lab.unicast_from(Ipv4Addr::new(10, 7, 0, 77));
    let response = lab.send_from(STRANGER, 8, Ipv4Addr::new(10, 7, 0, 77));
    assert_eq!(response.changes, []);
    let ack = read(&response.packet.unwrap());
    assert_eq!((ack.kind, ack.yiaddr), (5, Ipv4Addr::UNSPECIFIED));
    assert_eq!(ack.to, Destination::Routed("10.7.0.77:68".parse().unwrap()));
    assert!([51, 58, 59].iter().all(|code| !ack.options.contains_key(code)));
    assert!(ack.options.contains_key(&6));
}

#[test]
fn parameters_come_in_the_clients_order_and_only_those() {
    let offer = read(&lab().send(MACHINE, 1, &[&[55, 4, 15, 6, 1, 3]]).packet.unwrap());
    assert_eq!(offer.codes, [53, 54, 51, 58, 59, 15, 6, 1, 3]);
}

#[test]
fn rfc2132_3_3_subnet_mask_comes_before_the_router() {
    let lists: [&[u8]; 6] = [&[3, 1], &[3], &[15, 3, 6, 1], &[3, 3, 1, 3, 1], &[1, 3], &[6, 3, 15]];
    for list in lists {
        let option = [&[55, u8::try_from(list.len()).unwrap()], list].concat();
        let offer = read(&lab().send(MACHINE, 1, &[&option]).packet.unwrap());
        let place = |code| offer.codes.iter().position(|found| *found == code);
        assert!(place(1).unwrap() < place(3).unwrap(), "{list:?}: {:?}", offer.codes);
        assert_eq!(offer.codes.iter().filter(|code| [1, 3].contains(*code)).count(), 2, "{list:?}");
    }
    let offer = read(&lab().send(MACHINE, 1, &[&[55, 5, 15, 3, 6, 1, 28]]).packet.unwrap());
    assert_eq!(offer.codes, [53, 54, 51, 58, 59, 15, 1, 3, 6, 28], "the rest keeps the client's order");
}

#[test]
fn client_identifier_is_echoed() {
    let offer = read(&lab().send(MACHINE, 1, &[&[61, 3, 0, 7, 7]]).packet.unwrap());
    assert_eq!(offer.options[&61], [0, 7, 7]);
}
