//! Pure: a reading client, packet in, answer out (RFC 1350, 7440). No socket, no timer: for simulated networks and for load.
//!
//! Strict where a server could go wrong: it counts every block and refuses what it did not ask for.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::wire::{self, AskedOption, DEFAULT_BLOCK_SIZE, Packet};

/// Result of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reaction<'a> {
    /// Nothing to do.
    Nothing,
    /// Send this ACK.
    Acknowledge([u8; 4]),
    /// The next block; send the ACK if there is one.
    Block {
        /// The content.
        content: &'a [u8],
        /// The ACK to send.
        acknowledge: Option<[u8; 4]>,
        /// True for the last block.
        last: bool,
    },
    /// The server refused, with this code.
    Refused(u16),
    /// The server did what it may not.
    Violation(&'static str),
}

/// A transfer as the client sees it.
#[derive(Debug, Clone)]
pub struct Client {
    asked: Vec<AskedOption>,
    answered: bool,
    block_size: usize,
    window: u64,
    transfer_size: Option<u64>,
    /// The highest block received in order.
    received: u64,
    /// Blocks in order since the last ACK.
    unacknowledged: u64,
    /// The gap at hand was answered.
    gap_answered: bool,
    done: bool,
}

impl Client {
    /// A client that will ask for these options.
    pub fn new(asked: &[AskedOption]) -> Self {
        Self {
            asked: asked.to_vec(),
            answered: false,
            block_size: DEFAULT_BLOCK_SIZE.into(),
            window: 1,
            transfer_size: None,
            received: 0,
            unacknowledged: 0,
            gap_answered: false,
            done: false,
        }
    }

    /// The request.
    pub fn request(&self, name: &str) -> Vec<u8> {
        wire::read_request(name, &self.asked)
    }

    /// A packet came from the server's port.
    pub fn receive<'a>(&mut self, packet: &'a [u8]) -> Reaction<'a> {
        match wire::parse(packet) {
            Ok(Packet::OptionAcknowledge(options)) => self.agree(&options),
            Ok(Packet::Data(number, content)) => self.data(number, content),
            Ok(Packet::Error(code)) => Reaction::Refused(code),
            Ok(Packet::Read(_) | Packet::Write | Packet::Acknowledge(_)) => {
                Reaction::Violation("not a server's packet")
            }
            Err(_) => Reaction::Violation("malformed packet"),
        }
    }

    fn agree(&mut self, options: &[AskedOption]) -> Reaction<'static> {
        if self.received > 0 {
            return Reaction::Nothing; // Repeated, and late.
        }
        for option in options {
            let kind =
                |asked: &&AskedOption| std::mem::discriminant(*asked) == std::mem::discriminant(option);
            let Some(asked) = self.asked.iter().find(kind) else {
                return Reaction::Violation("option that was not asked for");
            };
            match (*option, *asked) {
                (AskedOption::BlockSize(given), AskedOption::BlockSize(most))
                    if given <= most && given >= 8 =>
                {
                    self.block_size = usize::try_from(given).unwrap_or(usize::MAX);
                }
                (AskedOption::WindowSize(given), AskedOption::WindowSize(most))
                    if given <= most && given > 0 =>
                {
                    self.window = given;
                }
                (AskedOption::Timeout(given), AskedOption::Timeout(asked)) if given == asked => {}
                (AskedOption::TransferSize(given), _) => self.transfer_size = Some(given),
                _ => return Reaction::Violation("option value that was not asked for"),
            }
        }
        self.answered = true;
        Reaction::Acknowledge(wire::acknowledge(0))
    }

    fn data<'a>(&mut self, number: u16, content: &'a [u8]) -> Reaction<'a> {
        let next = self.received.saturating_add(1);
        if content.len() > self.block_size {
            return Reaction::Violation("block longer than agreed");
        }
        if self.done || number != wire_number(next) {
            return self.out_of_order(number);
        }
        self.received = next;
        self.answered = true;
        self.gap_answered = false;
        self.done = content.len() < self.block_size;
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        let whole = self.unacknowledged >= self.window;
        let acknowledge = (whole || self.done).then(|| self.acknowledge());
        Reaction::Block { content, acknowledge, last: self.done }
    }

    /// A block repeated or one lost before it. The last block come again is answered again (its ACK was lost), the first sign of a gap
    /// is; other repetitions say nothing.
    fn out_of_order(&mut self, number: u16) -> Reaction<'static> {
        let behind = wire_number(self.received).wrapping_sub(number);
        if u64::from(behind) < self.window.saturating_mul(2) || self.window == 1 || self.done {
            let answered_before = behind == 0 && self.unacknowledged == 0 && self.received > 0;
            return if answered_before {
                Reaction::Acknowledge(self.acknowledge())
            } else {
                Reaction::Nothing
            };
        }
        if self.gap_answered {
            return Reaction::Nothing;
        }
        self.gap_answered = true;
        Reaction::Acknowledge(self.acknowledge())
    }

    fn acknowledge(&mut self) -> [u8; 4] {
        self.unacknowledged = 0;
        wire::acknowledge(wire_number(self.received))
    }

    /// Nothing came for a while: what to send again; `None`: the request itself.
    pub fn again(&mut self) -> Option<[u8; 4]> {
        self.gap_answered = false;
        (self.answered && !self.done).then(|| self.acknowledge())
    }

    /// Returns true if the last block was received.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Blocks received in order.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The size the server named.
    pub fn transfer_size(&self) -> Option<u64> {
        self.transfer_size
    }

    /// The block size in force, in bytes.
    pub fn block_size(&self) -> usize {
        self.block_size
    }
}

fn wire_number(block: u64) -> u16 {
    crate::session::wire_number(block)
}
