//! Counters for metrics and tests. Labels are closed sets.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{content::Outcome, gate::Limited, wire::Malformed};

/// Reason why a well-formed packet got no transfer. A closed set: the label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// The name is invalid, or leads out of the served set.
    Name,
    /// The owner knows no such file.
    NotFound,
    /// The owner does not allow it.
    AccessViolation,
    /// The owner, or the system (files open), is at a limit.
    Busy,
    /// A limit of requests or transfers was met.
    Limit(Limited),
    /// A write request.
    Write,
    /// netascii was asked for something too long to be text.
    Netascii,
    /// Sent to the request port, but belongs to no transfer.
    Stray,
    /// Packet of another sender at a transfer's port.
    Stranger,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::Name,
        Self::NotFound,
        Self::AccessViolation,
        Self::Busy,
        Self::Limit(Limited::Rate),
        Self::Limit(Limited::ClientSessions),
        Self::Limit(Limited::Sessions),
        Self::Limit(Limited::Clients),
        Self::Write,
        Self::Netascii,
        Self::Stray,
        Self::Stranger,
    ];

    /// The metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::NotFound => "not_found",
            Self::AccessViolation => "access_violation",
            Self::Busy => "busy",
            Self::Limit(Limited::Rate) => "rate",
            Self::Limit(Limited::ClientSessions) => "client_sessions",
            Self::Limit(Limited::Sessions) => "sessions",
            Self::Limit(Limited::Clients) => "clients",
            Self::Write => "write",
            Self::Netascii => "netascii",
            Self::Stray => "no_transfer",
            Self::Stranger => "other_sender",
        }
    }
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Complete, Self::ClientAborted, Self::TimedOut, Self::Stopped];

    /// The metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientAborted => "client_aborted",
            Self::TimedOut => "timed_out",
            Self::Stopped => "stopped",
        }
    }
}

/// The running counts, shared by the workers.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    repeated_requests: AtomicU64,
    shared: AtomicU64,
    opened: AtomicU64,
    blocks: AtomicU64,
    acknowledged_bytes: AtomicU64,
    retransmissions: AtomicU64,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    refusals: [AtomicU64; Refusal::ALL.len()],
    malformed: [AtomicU64; Malformed::ALL.len()],
}

/// The counts at a moment. All but `active` only grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Read requests, well formed.
    pub requests: u64,
    /// Read requests that came again for a transfer that was open.
    pub repeated_requests: u64,
    /// Packets admitted by the shared allowance, because the table of client addresses was full.
    pub shared: u64,
    /// Transfers opened.
    pub opened: u64,
    /// Transfers at this moment.
    pub active: u64,
    /// DATA packets sent, repeated ones too.
    pub blocks: u64,
    /// Bytes that clients acknowledged, of ended transfers.
    pub acknowledged_bytes: u64,
    /// Times an answer was sent again because its time was up.
    pub retransmissions: u64,
    /// Transfers ended, by outcome.
    pub outcomes: Vec<(Outcome, u64)>,
    /// Packets that got no transfer, by reason.
    pub refusals: Vec<(Refusal, u64)>,
    /// Malformed packets, by reason.
    pub malformed: Vec<(Malformed, u64)>,
}

impl Snapshot {
    /// Transfers that ended so.
    pub fn outcome(&self, wanted: Outcome) -> u64 {
        self.outcomes.iter().find(|(outcome, _)| *outcome == wanted).map_or(0, |(_, count)| *count)
    }

    /// Packets refused for this reason.
    pub fn refusal(&self, wanted: Refusal) -> u64 {
        self.refusals.iter().find(|(refusal, _)| *refusal == wanted).map_or(0, |(_, count)| *count)
    }

    /// Packets malformed in this way.
    pub fn malformed(&self, wanted: Malformed) -> u64 {
        self.malformed.iter().find(|(malformed, _)| *malformed == wanted).map_or(0, |(_, count)| *count)
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn add_labeled<T: PartialEq>(labels: &[T], counters: &[AtomicU64], label: &T) {
    for (_, counter) in labels.iter().zip(counters).filter(|(known, _)| *known == label) {
        add(counter, 1);
    }
}

fn read_labeled<T: Copy>(labels: &[T], counters: &[AtomicU64]) -> Vec<(T, u64)> {
    labels.iter().zip(counters).map(|(label, counter)| (*label, counter.load(Ordering::Relaxed))).collect()
}

impl Counters {
    pub(crate) fn request(&self) {
        add(&self.requests, 1);
    }

    pub(crate) fn repeated_request(&self) {
        add(&self.repeated_requests, 1);
    }

    pub(crate) fn shared(&self) {
        add(&self.shared, 1);
    }

    pub(crate) fn opened(&self) {
        add(&self.opened, 1);
    }

    pub(crate) fn blocks(&self, count: u64) {
        add(&self.blocks, count);
    }

    pub(crate) fn retransmission(&self) {
        add(&self.retransmissions, 1);
    }

    pub(crate) fn ended(&self, outcome: Outcome, bytes: u64) {
        add(&self.acknowledged_bytes, bytes);
        add_labeled(&Outcome::ALL, &self.outcomes, &outcome);
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        add_labeled(&Refusal::ALL, &self.refusals, &refusal);
    }

    pub(crate) fn malformed(&self, malformed: Malformed) {
        add_labeled(&Malformed::ALL, &self.malformed, &malformed);
    }

    pub(crate) fn snapshot(&self, active: usize) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            requests: read(&self.requests),
            repeated_requests: read(&self.repeated_requests),
            shared: read(&self.shared),
            opened: read(&self.opened),
            active: active as u64,
            blocks: read(&self.blocks),
            acknowledged_bytes: read(&self.acknowledged_bytes),
            retransmissions: read(&self.retransmissions),
            outcomes: read_labeled(&Outcome::ALL, &self.outcomes),
            refusals: read_labeled(&Refusal::ALL, &self.refusals),
            malformed: read_labeled(&Malformed::ALL, &self.malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_counted_and_distinct() {
        let counters = Counters::default();
        Refusal::ALL.into_iter().for_each(|refusal| counters.refused(refusal));
        Malformed::ALL.into_iter().for_each(|malformed| counters.malformed(malformed));
        Outcome::ALL.into_iter().for_each(|outcome| counters.ended(outcome, 10));
        let snapshot = counters.snapshot(2);
        assert!(snapshot.refusals.iter().all(|(_, count)| *count == 1), "{snapshot:?}");
        assert!(snapshot.malformed.iter().all(|(_, count)| *count == 1), "{snapshot:?}");
        assert!(snapshot.outcomes.iter().all(|(_, count)| *count == 1), "{snapshot:?}");
        assert_eq!((snapshot.acknowledged_bytes, snapshot.active), (40, 2));
        let labels: std::collections::BTreeSet<_> =
            Refusal::ALL.iter().map(|refusal| refusal.label()).collect();
        assert_eq!(labels.len(), Refusal::ALL.len());
    }
}
