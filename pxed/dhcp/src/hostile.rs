//! Trials of the pure rooms with whatever octets one likes; they panic when a promise is broken.
//!
//! Called by the fuzz targets and by the property tests, so that a machine without a fuzzer runs the same trials. Not
//! part of the server.
//!
//! Pure.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use bedplate_api::id::MacAddress;
use ipnet::Ipv4Net;

use crate::client::{BootAnswer, Client, Clients, Event, KnownClient, Loader, Query};
use crate::lease::{Holder, LeaseState, Table};
use crate::respond::{Arrival, Heard, Response, respond};
use crate::settings::{AddressRange, Mode, Ports, Settings, Subnet};
use crate::wire::{MessageType, decode, option};

/// Any octets as a packet: decoding ends, and what it gives is consistent.
pub fn packet(data: &[u8]) {
    if let Ok(request) = decode(data) {
        assert!(request.mac.is_unicast());
        assert!(request.architectures.len() <= data.len());
        assert_ne!(request.client_address, Some(Ipv4Addr::UNSPECIFIED));
        assert!(request.client_id.as_ref().is_none_or(|id| (2..=255).contains(&id.len())));
    }
}

/// A sequence of messages against one server. `data`: one octet of settings, then for each message one octet of
/// circumstances, one of client, one of header, a length, and that many octets of options.
pub fn conversation(data: &[u8]) {
    let Some((&flags, mut rest)) = data.split_first() else { return };
    let settings = settings(flags);
    let mut trial = Trial { table: Table::default(), now: 1_000_000, given: HashMap::new() };
    trial.table.configure(&settings.subnets);
    while let Some((&[circumstance, client, header, length], after)) = rest.split_first_chunk() {
        let (options, after) = after.split_at(after.len().min(length.into()));
        rest = after;
        let packet = message(client, header, options);
        trial.step(&settings, circumstance, &packet);
    }
}

struct Trial {
    table: Table,
    now: u64,
    given: HashMap<Ipv4Addr, (Holder, u64)>,
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);

fn settings(flags: u8) -> Settings {
    let subnet = |third: u8| Subnet {
        network: Ipv4Net::new_assert(Ipv4Addr::new(10, third, 0, 0), 24),
        ranges: AddressRange::new(Ipv4Addr::new(10, third, 0, 8), Ipv4Addr::new(10, third, 0, 11))
            .into_iter()
            .collect(),
        routers: vec![Ipv4Addr::new(10, third, 0, 1)],
        nameservers: vec![Ipv4Addr::new(10, third, 0, 1); usize::from(flags >> 4)],
        domain: Some("rack.example".into()),
        ntp_servers: Vec::new(),
        reserve: 0,
        lease_seconds: 600,
        relays: vec![Ipv4Net::from(RELAY)],
    };
    Settings {
        mode: if flags & 1 == 0 { Mode::Server } else { Mode::Proxy },
        interfaces: vec!["rack".into()],
        authoritative: flags & 2 == 0,
        subnets: vec![subnet(7), subnet(8)],
        ports: Ports::default(),
    }
}

/// A sound header around `options`, which END follows.
pub fn message(client: u8, header: u8, options: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 240];
    packet[..4].copy_from_slice(&[1, 1, 6, 0]);
    packet[4..8].copy_from_slice(&[1, 2, 3, client]);
    packet[10] = header & 0x80;
    if header & 1 != 0 {
        packet[12..16].copy_from_slice(&[10, 7, 0, 8 + (header >> 1 & 7)]);
    }
    if header & 0x10 != 0 {
        packet[24..28].copy_from_slice(&RELAY.octets());
    }
    packet[28..34].copy_from_slice(&[0x52, 0x54, 0, 0, 0, client]);
    packet[236..].copy_from_slice(&[99, 130, 83, 99]);
    packet.extend_from_slice(options);
    packet.push(option::END);
    packet
}

impl Trial {
    fn step(&mut self, settings: &Settings, circumstance: u8, packet: &[u8]) {
        self.now += u64::from(circumstance >> 4) * 45;
        let Ok(request) = decode(packet) else { return };
        let own = [Ipv4Net::new_assert(SERVER, 24)];
        let foreign = Ipv4Addr::new(10, 7, 0, 77);
        let source = match request.relay {
            Some(_) if circumstance & 4 == 0 => RELAY,
            Some(_) | None => request.client_address.filter(|_| circumstance & 4 == 0).unwrap_or(foreign),
        };
        let arrival = Arrival {
            addresses: &own,
            own: &[SERVER],
            destination: if circumstance & 1 == 0 { Ipv4Addr::BROADCAST } else { SERVER },
            peer: SocketAddrV4::new(source, 68),
            boot_server: circumstance & 2 != 0,
            discovered: (circumstance & 8 != 0).then_some(Heard::Link),
        };
        let Ok(response) = respond(settings, &TenMachines, &mut self.table, &request, &arrival, self.now)
        else {
            return;
        };
        self.check_packet(settings, &response, request.mac);
        self.check_promises(&response);
        self.check_table();
    }

    /// Checks that the reply is a message that a strict client accepts.
    fn check_packet(&self, settings: &Settings, response: &Response, mac: MacAddress) {
        let Some(packet) = &response.packet else { return };
        let payload = packet.payload.as_slice();
        assert!((300..=1472).contains(&payload.len()), "{} octets", payload.len());
        assert_eq!((payload[0], packet.mac), (2, mac));
        let yours = Ipv4Addr::new(payload[16], payload[17], payload[18], payload[19]);
        let proxied = settings.mode == Mode::Proxy;
        assert!(!proxied || yours.is_unspecified(), "a proxy gives no address");
        let leases = matches!(response.result, Ok(Event::Offered(_) | Event::Acknowledged(_)));
        if leases && !yours.is_unspecified() {
            let query = response.query.as_ref().expect("an answer has a query");
            assert!(query.subnet.contains(&yours), "{yours} outside of {}", query.subnet);
            assert!(yours != SERVER && yours != query.subnet.broadcast());
        }
        // As a client would read it: only `op` keeps our own strict reader from it.
        let mut mirrored = payload.to_vec();
        mirrored[0] = 1;
        let read = decode(&mirrored).expect_err("only clients' types are taken");
        assert_eq!(read, crate::wire::Malformed::ServerMessage);
    }

    /// An acknowledged address belongs to one client until its time has passed or it gave it back.
    fn check_promises(&mut self, response: &Response) {
        match response.result {
            Ok(Event::Acknowledged(address)) if !response.changes.is_empty() => {
                let lease = self.table.get(address).expect("an acknowledged lease is known").clone();
                assert_eq!(lease.state, LeaseState::Bound);
                let before = self.given.insert(address, (lease.holder.clone(), lease.until));
                if let Some((holder, until)) = before {
                    assert!(holder == lease.holder || until <= self.now, "{address} given twice");
                }
            }
            Ok(Event::Released(address) | Event::Declined(address)) => {
                self.given.remove(&address);
            }
            Ok(_) | Err(_) => {}
        }
        for change in &response.changes {
            if let crate::lease::Change::Remove(address) = change {
                self.given.remove(address);
            }
        }
        let message = response.packet.as_ref().map(|packet| packet.message);
        assert!(
            message.is_none_or(|m| { matches!(m, MessageType::Offer | MessageType::Ack | MessageType::Nak) })
        );
    }

    fn check_table(&self) {
        check(&self.table);
    }
}

/// No client has two leases in a subnet, and the table finds each running lease by its client.
pub fn check(table: &Table) {
    let mut holders = HashMap::new();
    for lease in table.leases().filter(|lease| lease.state == LeaseState::Bound) {
        let other = holders.insert(&lease.holder, lease.address);
        assert_eq!(other, None, "{:?} has two leases", lease.holder);
        assert_eq!(table.of(&lease.holder).map(|l| l.address), Some(lease.address));
        assert!(lease.holder.network.contains(&lease.address));
    }
}

/// Clients 0 to 9 are Machines, those below 5 with a fixed address within the pool; others are discovered.
struct TenMachines;

impl Clients for TenMachines {
    fn client(&self, query: &Query) -> Client {
        let number = query.mac.octets()[5];
        match format!("m{number}").parse() {
            Ok(machine) if number < 10 => Client::Known(KnownClient {
                machine,
                addresses: fixed(number).into_iter().map(|a| Ipv4Net::new_assert(a, 24)).collect(),
                gateway: None,
                nameservers: Vec::new(),
            }),
            _ if number >= 250 => Client::Refused("refused"),
            _ => Client::Unknown { discovery: number < 200 },
        }
    }

    fn boot(&self, query: &Query) -> Option<BootAnswer> {
        let file = match query.loader {
            Loader::None | Loader::Pxe => "snponly.efi".into(),
            Loader::Http | Loader::Ipxe => format!("http://{SERVER}/{}", "x".repeat(300)),
        };
        Some(BootAnswer { next_server: SERVER, file })
    }

    fn owner(&self, address: Ipv4Addr) -> Option<MacAddress> {
        (0..5)
            .find(|number| fixed(*number) == Some(address))
            .map(|number| MacAddress::new([0x52, 0x54, 0, 0, 0, number]))
    }

    fn observe(&self, _: &Query, _: &Event) {}
}

fn fixed(number: u8) -> Option<Ipv4Addr> {
    (number < 5).then(|| Ipv4Addr::new(10, 7, 0, 11 + number))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Options that make most messages mean something.
    fn options() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop_oneof![Just(1_u8), Just(3), Just(4), Just(7), Just(8)];
        let address = (7_u8..9, 6_u8..18).prop_map(|(third, last)| [10, third, 0, last]);
        let one = prop_oneof![
            address.clone().prop_map(|a| [&[50, 4], a.as_slice()].concat()),
            Just([&[54, 4], SERVER.octets().as_slice()].concat()),
            address.prop_map(|a| [&[54, 4], a.as_slice()].concat()),
            (2_u8..5).prop_map(|n| vec![61, 2, 0, n]),
            Just(b"\x3c\x09PXEClient".to_vec()),
            Just(b"\x3c\x0aHTTPClient".to_vec()),
            Just(b"\xaf\x00".to_vec()),
            Just(vec![82, 6, 5, 4, 10, 7, 0, 0]),
            Just(vec![57, 2, 5, 220]),
            vec(any::<u8>(), 0..40)
                .prop_map(|list| { [&[55, u8::try_from(list.len()).unwrap()], list.as_slice()].concat() }),
            vec(any::<u8>(), 0..6),
        ];
        (kind, vec(one, 0..6)).prop_map(|(kind, parts)| [vec![53, 1, kind], parts.concat()].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_octets_are_read_or_refused(data in vec(any::<u8>(), 0..700)) {
            packet(&data);
        }

        #[test]
        fn a_sound_message_cut_or_changed_anywhere_is_read_or_refused(
            options in options(), cut in 0_usize..400, at in 0_usize..400, value: u8,
        ) {
            let mut data = message(1, 0, &options);
            data.truncate(data.len().saturating_sub(cut / 4));
            if let Some(octet) = data.get_mut(at) {
                *octet = value;
            }
            packet(&data);
        }

        #[test]
        fn no_conversation_gives_an_address_twice_or_breaks_an_answer(
            flags in prop_oneof![Just(0_u8), Just(2), Just(0xf0), any::<u8>()],
            messages in vec((0_u8..64, 0_u8..14, any::<u8>(), options()), 1..60),
        ) {
            let mut data = vec![flags];
            for (circumstance, client, header, options) in messages {
                let length = u8::try_from(options.len()).unwrap_or(u8::MAX);
                data.extend([circumstance & !2, client, header, length]);
                data.extend(options.iter().take(length.into()));
            }
            conversation(&data);
        }

        #[test]
        fn any_octets_make_a_conversation(data in vec(any::<u8>(), 0..900)) {
            conversation(&data);
        }
    }
}
