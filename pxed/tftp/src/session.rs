//! Pure: one transfer, from the answer to its request until its end. No socket, no clock; the driver tells it what came and when.
//!
//! ```text
//!   start ──options agreed──▶ Offered ──ACK 0──▶ Sending ──ACK of the last block──▶ Over(Complete)
//!     │                          │                 ▲ │
//!     └──no options──────────────┼─────────────────┘ │   ACK inside the window: next window from there, not sooner than
//!                                │                   │   half a round trip after the last one
//!                                │                   │   ACK of what was acknowledged before: nothing (window 1)
//!                                ├──client's ERROR───┼──▶ Over(ClientAborted)
//!                                ├──client silent────┼──▶ Over(TimedOut)
//!                                └──stop─────────────┴──▶ Over(Stopped)
//! ```
//!
//! A client is silent when the attempts are spent, or when it has not answered its request's first packet within [`Retry::unheard`].
//!
//! Blocks are counted from 1 without end (`u64`); their wire number is the count modulo 65536, so that files beyond 65,535 blocks
//! roll over to 0. A duplicate ACK never sends anything again by itself in lock-step (the Sorcerer's Apprentice, RFC 1123 4.2.3.1);
//! with a window it may mean a lost first block (RFC 7440 section 4) and counts once, after half a round trip.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use crate::{content::Outcome, negotiate::Agreed, wire};

/// Retransmission intervals and limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// First wait, until the round trip is known; the client's `timeout` option replaces it.
    pub initial: Duration,
    /// The least wait, however fast the client answers.
    pub least: Duration,
    /// The longest wait; each wait without progress doubles up to it.
    pub most: Duration,
    /// Maximum number of retransmissions of the same blocks before the transfer is aborted.
    pub attempts: u32,
    /// Lifetime of a transfer whose client has not answered yet. The source of a request can be forged, so no option extends it.
    pub unheard: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(1),
            least: Duration::from_millis(250),
            most: Duration::from_secs(8),
            attempts: 6,
            unheard: Duration::from_secs(10),
        }
    }
}

/// Data to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// The option acknowledgement.
    Offer,
    /// These blocks, first and one past the last.
    Blocks(u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Offered,
    Sending,
    Over(Outcome),
}

/// One transfer.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    block_size: u64,
    window: u64,
    length: u64,
    last: u64,
    /// The highest block acknowledged.
    acknowledged: u64,
    /// The highest block of the current window that was sent.
    sent: u64,
    retry: Retry,
    /// The wait asked for by the client.
    asked_wait: Option<Duration>,
    attempts: u32,
    /// The client has answered.
    heard: bool,
    /// Time of the last new ACK, or of the start.
    progressed_at: Instant,
    /// End of the transfer if the client has not answered by then.
    unheard_until: Instant,
    /// A duplicate ACK was answered since the last progress.
    repeated: bool,
    /// True if the deadline is the time to resume after an early ACK inside the window.
    resuming: bool,
    /// Time at which the current window was first sent; its round trip is measured only if it was not sent twice
    /// (Karn).
    sent_at: Instant,
    measurable: bool,
    round_trip: Option<Duration>,
    deadline: Instant,
}

impl Session {
    /// A transfer of `length` bytes, and its first packet.
    pub fn start(agreed: &Agreed, length: u64, retry: Retry, now: Instant) -> (Self, Transmit) {
        let block_size = u64::from(agreed.block_size.max(1));
        // A file that fills its last block exactly ends with an empty one (RFC 1350 section 6).
        let last = length.checked_div(block_size).unwrap_or(0).saturating_add(1);
        let mut session = Self {
            phase: Phase::Offered,
            block_size,
            window: u64::from(agreed.window.max(1)),
            length,
            last,
            acknowledged: 0,
            sent: 0,
            retry,
            asked_wait: agreed.timeout,
            attempts: 0,
            heard: false,
            progressed_at: now,
            unheard_until: now.checked_add(retry.unheard).unwrap_or(now),
            repeated: false,
            resuming: false,
            sent_at: now,
            measurable: true,
            round_trip: None,
            deadline: now,
        };
        let first = if agreed.acknowledged.is_empty() {
            session.phase = Phase::Sending;
            session.send_window(now)
        } else {
            session.begin_wait(now);
            Transmit::Offer
        };
        (session, first)
    }

    /// An ACK came.
    pub fn acknowledge(&mut self, number: u16, now: Instant) -> Option<Transmit> {
        match self.phase {
            Phase::Over(_) => None,
            Phase::Offered if number == 0 => {
                self.phase = Phase::Sending;
                self.heard(now);
                self.progress(now);
                Some(self.send_window(now))
            }
            Phase::Offered => None,
            Phase::Sending => self.acknowledge_blocks(number, now),
        }
    }

    fn acknowledge_blocks(&mut self, number: u16, now: Instant) -> Option<Transmit> {
        let ahead = u64::from(number.wrapping_sub(wire_number(self.acknowledged)));
        let block = self.acknowledged.saturating_add(ahead);
        if block > self.sent {
            return None; // A delayed old block: modulo 65536 its number is far ahead.
        }
        if ahead == 0 {
            return self.duplicate(now);
        }
        self.heard(now);
        let early = self.is_early(now);
        let whole = block == self.sent;
        self.acknowledged = block;
        if block == self.last {
            self.phase = Phase::Over(Outcome::Complete);
            return None;
        }
        if whole || !early {
            self.progress(now);
            return Some(self.send_window(now));
        }
        // A client that acknowledges each block sends more ACKs of this window; going back at each would repeat a window each time.
        // A client that lost a block waits for it. Nothing new may be sent before that block (RFC 7440 section 4), so wait.
        self.attempts = 0;
        self.repeated = false;
        self.resuming = true;
        self.deadline = self.deadline.min(self.sent_at.checked_add(self.early_time()).unwrap_or(now));
        None
    }

    /// An ACK of what is acknowledged already.
    fn duplicate(&mut self, now: Instant) -> Option<Transmit> {
        if self.window == 1 || self.repeated || self.is_early(now) {
            return None;
        }
        self.repeated = true;
        self.measurable = false;
        Some(self.send_window(now))
    }

    /// Returns true if an ACK is too early to answer the last transmission.
    fn is_early(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.sent_at) < self.early_time()
    }

    fn early_time(&self) -> Duration {
        self.round_trip.map_or(Duration::ZERO, |round_trip| fraction(round_trip, 2))
    }

    /// Ends the transfer immediately after an ERROR of the client, without an answer (RFC 1350 section 7).
    pub fn abort(&mut self) {
        self.end(Outcome::ClientAborted);
    }

    /// Ends the transfer because its client is silent.
    pub(crate) fn time_out(&mut self) {
        self.end(Outcome::TimedOut);
    }

    /// The server stops.
    pub fn stop(&mut self) {
        self.end(Outcome::Stopped);
    }

    fn end(&mut self, outcome: Outcome) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(outcome);
        }
    }

    /// Time went by: sends again what is unanswered, or gives the client up.
    pub fn elapse(&mut self, now: Instant) -> Option<Transmit> {
        if matches!(self.phase, Phase::Over(_)) || now < self.deadline {
            return None;
        }
        if !self.heard && now >= self.unheard_until {
            self.time_out();
            return None;
        }
        if !self.resuming {
            if self.attempts >= self.retry.attempts {
                self.phase = Phase::Over(Outcome::TimedOut);
                return None;
            }
            self.attempts = self.attempts.saturating_add(1);
        }
        self.measurable = false;
        Some(self.again(now))
    }

    /// The request came once more before any answer to it: its answer was lost, or is under way. Sends it again at most once.
    pub fn request_repeated(&mut self, now: Instant) -> Option<Transmit> {
        if matches!(self.phase, Phase::Over(_)) || self.has_progressed() || self.repeated {
            return None;
        }
        self.repeated = true;
        self.measurable = false;
        Some(self.again(now))
    }

    fn again(&mut self, now: Instant) -> Transmit {
        if self.phase == Phase::Offered {
            self.begin_wait(now);
            return Transmit::Offer;
        }
        self.send_window(now)
    }

    /// The network took nothing from `block` on (buffers full): as if not sent, and soon tried again.
    pub fn unsent(&mut self, block: u64, now: Instant) {
        self.sent = block.saturating_sub(1).max(self.acknowledged);
        self.measurable = false;
        self.deadline = now.checked_add(Duration::from_millis(5)).unwrap_or(now);
    }

    fn heard(&mut self, now: Instant) {
        self.heard = true;
        self.progressed_at = now;
    }

    fn progress(&mut self, now: Instant) {
        if self.measurable {
            let sample = now.saturating_duration_since(self.sent_at);
            self.round_trip = Some(
                self.round_trip
                    .map_or(sample, |old| fraction(old.saturating_mul(7).saturating_add(sample), 8)),
            );
        }
        self.attempts = 0;
        self.repeated = false;
        self.measurable = true;
    }

    /// The whole window after the last acknowledged block.
    fn send_window(&mut self, now: Instant) -> Transmit {
        let first = self.acknowledged.saturating_add(1);
        let end = first.saturating_add(self.window).min(self.last.saturating_add(1));
        self.sent = end.saturating_sub(1);
        self.begin_wait(now);
        Transmit::Blocks(first, end)
    }

    fn begin_wait(&mut self, now: Instant) {
        self.sent_at = now;
        self.resuming = false;
        let first = self.asked_wait.unwrap_or_else(|| {
            let estimate =
                self.round_trip.map(|round_trip| round_trip.saturating_mul(4).max(self.retry.least));
            estimate.map_or(self.retry.initial, |estimate| estimate.min(self.retry.initial))
        });
        let factor = 1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        let wait = first.saturating_mul(factor).min(self.retry.most.max(first));
        self.deadline = now.checked_add(wait).unwrap_or(now);
        if !self.heard {
            self.deadline = self.deadline.min(self.unheard_until);
        }
    }

    /// Time at which [`Self::elapse`] is due.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the result of a finished transfer.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Over(outcome) => Some(outcome),
            Phase::Offered | Phase::Sending => None,
        }
    }

    /// Returns true if the client has answered.
    pub(crate) fn has_progressed(&self) -> bool {
        self.heard
    }

    /// Time of the last new ACK, or of the start. Repeated ACKs and other packets do not count.
    pub(crate) fn progressed_at(&self) -> Instant {
        self.progressed_at
    }

    /// The smoothed round trip, once measured.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Bytes acknowledged.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged.saturating_mul(self.block_size).min(self.length)
    }

    /// Returns the range of a block in the content.
    pub fn payload(&self, block: u64) -> Range<u64> {
        let begin = block.saturating_sub(1).saturating_mul(self.block_size).min(self.length);
        begin..begin.saturating_add(self.block_size).min(self.length)
    }

    /// The header of a block.
    pub fn header(&self, block: u64) -> [u8; wire::DATA_HEADER] {
        wire::data_header(wire_number(block))
    }
}

fn fraction(time: Duration, divisor: u32) -> Duration {
    time.checked_div(divisor).unwrap_or(time)
}

/// The block number on the wire: 0 follows 65535.
pub(crate) fn wire_number(block: u64) -> u16 {
    let [.., high, low] = block.to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
