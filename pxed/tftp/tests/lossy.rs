//! Whole transfers between the session and the client over a simulated network that loses, repeats and overtakes packets.
//!
//! No socket and no waiting: time is a number. Every run follows from its seed.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use bedplate_tftp::{
    client::{Client, Reaction},
    content::Outcome,
    negotiate::{Grant, negotiate},
    session::{Retry, Session, Transmit},
    wire::{self, AskedOption, Packet},
};
use proptest::prelude::*;

/// Faults of the network, each in percent.
#[derive(Debug, Clone, Copy)]
struct Weather {
    lost: u64,
    repeated: u64,
    late: u64,
}

/// SplitMix64: small, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ToClient(Vec<u8>),
    ToServer(Vec<u8>),
    ServerTimer,
    ClientTimer(u64),
}

struct Simulation {
    start: Instant,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    order: u64,
    dice: Dice,
    weather: Weather,
    content: Vec<u8>,
    session: Session,
    offer: Vec<u8>,
    client: Client,
    received: Vec<u8>,
    data_packets: u64,
    client_patience: u64,
}

const CLIENT_WAIT: Duration = Duration::from_secs(2);

impl Simulation {
    fn new(seed: u64, weather: Weather, length: usize, options: &[AskedOption]) -> Self {
        let mut dice = Dice(seed);
        let content: Vec<u8> = (0..length).map(|_| dice.roll().to_le_bytes()[0]).collect();
        let start = Instant::now();
        let agreed = negotiate(options, length as u64, Grant { block_size: 1468, window: 64 });
        let retry = Retry { attempts: 30, unheard: Duration::from_secs(3600), ..Retry::default() };
        let (session, first) = Session::start(&agreed, length as u64, retry, start);
        let mut simulation = Self {
            start,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            order: 0,
            dice,
            weather,
            content,
            session,
            offer: wire::option_acknowledge(&agreed.acknowledged),
            client: Client::new(options),
            received: Vec::new(),
            data_packets: 0,
            client_patience: 0,
        };
        simulation.server_sends(Some(first));
        simulation.arm_client();
        simulation
    }

    fn at(&self) -> Instant {
        self.start + self.now
    }

    fn push(&mut self, after: Duration, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + after, self.order, event)));
    }

    fn network(&mut self, make: impl Fn() -> Event) {
        let copies = 1 + u64::from(self.dice.percent(self.weather.repeated));
        for _ in 0..copies {
            if self.dice.percent(self.weather.lost) {
                continue;
            }
            let late = if self.dice.percent(self.weather.late) { self.dice.roll() % 20_000 } else { 0 };
            self.push(Duration::from_micros(200 + late), make());
        }
    }

    fn server_sends(&mut self, transmit: Option<Transmit>) {
        match transmit {
            Some(Transmit::Offer) => {
                let offer = self.offer.clone();
                self.network(|| Event::ToClient(offer.clone()));
            }
            Some(Transmit::Blocks(first, end)) => {
                let resumed = self.session.payload(first).start;
                let acknowledged = self.session.acknowledged_bytes();
                assert_eq!(resumed, acknowledged, "RFC 7440: sending resumes after the acknowledged block");
                for block in first..end {
                    let range = self.session.payload(block);
                    let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
                    let packet = [&self.session.header(block), &self.content[range]].concat();
                    self.data_packets += 1;
                    self.network(|| Event::ToClient(packet.clone()));
                }
            }
            None => {}
        }
        if self.session.outcome().is_none() {
            let wait = self.session.deadline().saturating_duration_since(self.at());
            self.push(wait, Event::ServerTimer);
        }
    }

    fn client_sends(&mut self, packet: [u8; 4]) {
        self.network(|| Event::ToServer(packet.to_vec()));
        self.arm_client();
    }

    fn arm_client(&mut self) {
        self.client_patience += 1;
        self.push(CLIENT_WAIT, Event::ClientTimer(self.client_patience));
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::ToServer(packet) => {
                let Ok(Packet::Acknowledge(number)) = wire::parse(&packet) else {
                    panic!("client sends ACKs only")
                };
                let transmit = self.session.acknowledge(number, self.at());
                self.server_sends(transmit);
            }
            Event::ServerTimer => {
                if let Some(transmit) = self.session.elapse(self.at()) {
                    self.server_sends(Some(transmit));
                }
            }
            Event::ClientTimer(patience) if patience == self.client_patience => {
                if let Some(packet) = self.client.again() {
                    self.client_sends(packet);
                } else {
                    let transmit = self.session.request_repeated(self.at());
                    self.server_sends(transmit);
                    self.arm_client();
                }
            }
            Event::ClientTimer(_) => {}
            Event::ToClient(packet) => match self.client.receive(&packet) {
                Reaction::Nothing => {}
                Reaction::Acknowledge(packet) => self.client_sends(packet),
                Reaction::Block { content, acknowledge, .. } => {
                    self.received.extend_from_slice(content);
                    if let Some(packet) = acknowledge {
                        self.client_sends(packet);
                    }
                }
                Reaction::Refused(code) => panic!("refused with {code}"),
                Reaction::Violation(what) => panic!("{what}"),
            },
        }
    }

    /// Runs to the end; gives how the server saw it.
    fn run(&mut self) -> Option<Outcome> {
        while self.session.outcome().is_none() {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            assert!(at < Duration::from_secs(100_000), "the transfer goes on for ever");
            self.now = at.max(self.now);
            self.step(event);
        }
        self.session.outcome()
    }
}

fn options() -> impl Strategy<Value = Vec<AskedOption>> {
    let block = prop::option::of(prop_oneof![Just(8_u64), 8..2000_u64, Just(65_464)]);
    let window = prop::option::of(prop_oneof![1..80_u64, Just(16)]);
    (block, window).prop_map(|(block, window)| {
        let block = block.map(AskedOption::BlockSize);
        block.into_iter().chain(window.map(AskedOption::WindowSize)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn content_arrives_whole_over_any_network(
        seed: u64,
        lost in 0..30_u64,
        repeated in 0..30_u64,
        late in 0..50_u64,
        length in prop_oneof![0..20_000_usize, (0..30_usize).prop_map(|blocks| blocks * 512)],
        options in options(),
    ) {
        let mut simulation = Simulation::new(seed, Weather { lost, repeated, late }, length, &options);
        prop_assert_eq!(simulation.run(), Some(Outcome::Complete));
        prop_assert!(simulation.client.is_done());
        prop_assert_eq!(&simulation.received, &simulation.content);
    }

    #[test]
    fn repeating_network_does_not_make_an_apprentice_of_the_server(seed: u64, options in options()) {
        // Every packet arrives twice, for a hundred rounds: a server that answers each duplicate doubles every window for good.
        let mut simulation =
            Simulation::new(seed, Weather { lost: 0, repeated: 100, late: 0 }, 100_000, &options);
        prop_assert_eq!(simulation.run(), Some(Outcome::Complete));
        let blocks = simulation.client.received();
        prop_assert!(simulation.data_packets <= blocks + 64, "{} packets for {blocks} blocks", simulation.data_packets);
    }

    #[test]
    fn clean_network_carries_each_block_once(seed: u64, length in 0..100_000_usize, options in options()) {
        let mut simulation =
            Simulation::new(seed, Weather { lost: 0, repeated: 0, late: 0 }, length, &options);
        prop_assert_eq!(simulation.run(), Some(Outcome::Complete));
        prop_assert_eq!(simulation.data_packets, simulation.client.received());
    }
}

#[test]
fn file_beyond_65535_blocks_rolls_over() {
    let length = 8 * 70_000 + 3;
    let mut simulation = Simulation::new(
        1,
        Weather { lost: 1, repeated: 1, late: 1 },
        length,
        &[AskedOption::BlockSize(8), AskedOption::WindowSize(16)],
    );
    assert_eq!(simulation.run(), Some(Outcome::Complete));
    assert!(simulation.received == simulation.content);
}

#[test]
fn session_of_a_dead_client_ends() {
    let mut simulation = Simulation::new(1, Weather { lost: 100, repeated: 0, late: 0 }, 1000, &[]);
    assert_eq!(simulation.run(), Some(Outcome::TimedOut));
}
