//! Event counters: plain atomics by closed sets of labels, for the owner to export.
//!
//! Counts only; called by `serve` on the packet path.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::respond::Silence;
use crate::wire::{Malformed, MessageType, reasons};

reasons! {
    /// Problem around a message rather than in it.
    Trouble {
        /// The committer's queue is full: an answer that needs the disk was not sent.
        CommitQueueFull => "commit_queue_full",
        /// The lease could not be written: its answer was not sent.
        CommitFailed => "commit_failed",
        /// The kernel refused to send.
        SendFailed => "send_failed",
        /// The interface vanished or could not be opened again.
        InterfaceLost => "interface_lost",
    }
}

/// Counters since the start. Reading them takes no lock.
#[derive(Debug, Default)]
pub struct Counters {
    received: [AtomicU64; MessageType::ALL.len()],
    sent: [AtomicU64; MessageType::ALL.len()],
    malformed: [AtomicU64; Malformed::ALL.len()],
    silences: [AtomicU64; Silence::ALL.len()],
    troubles: [AtomicU64; Trouble::ALL.len()],
    commits: AtomicU64,
    committed_changes: AtomicU64,
}

fn position(message: MessageType) -> usize {
    usize::from(message.code()) - 1
}

fn add(counters: &[AtomicU64], index: usize, count: u64) {
    if let Some(counter) = counters.get(index) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

fn read(counters: &[AtomicU64], index: usize) -> u64 {
    counters.get(index).map_or(0, |counter| counter.load(Ordering::Relaxed))
}

impl Counters {
    /// Sound messages that arrived, by type; those of servers stay 0.
    pub fn received(&self, message: MessageType) -> u64 {
        read(&self.received, position(message))
    }

    /// Messages that left, by type; those of clients stay 0.
    pub fn sent(&self, message: MessageType) -> u64 {
        read(&self.sent, position(message))
    }

    /// Packets dropped because they are not sound.
    pub fn malformed(&self, reason: Malformed) -> u64 {
        read(&self.malformed, reason.index())
    }

    /// Sound messages that were not answered.
    pub fn silence(&self, reason: Silence) -> u64 {
        read(&self.silences, reason.index())
    }

    /// Trouble of our own.
    pub fn trouble(&self, reason: Trouble) -> u64 {
        read(&self.troubles, reason.index())
    }

    /// Transactions on disk.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Leases written by them.
    pub fn committed_changes(&self) -> u64 {
        self.committed_changes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_received(&self, message: MessageType) {
        add(&self.received, position(message), 1);
    }

    pub(crate) fn add_sent(&self, message: MessageType) {
        add(&self.sent, position(message), 1);
    }

    pub(crate) fn add_malformed(&self, reason: Malformed) {
        add(&self.malformed, reason.index(), 1);
    }

    pub(crate) fn add_silence(&self, reason: Silence) {
        add(&self.silences, reason.index(), 1);
    }

    pub(crate) fn add_trouble(&self, reason: Trouble, count: u64) {
        add(&self.troubles, reason.index(), count);
    }

    pub(crate) fn add_commit(&self, changes: u64) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.committed_changes.fetch_add(changes, Ordering::Relaxed);
    }
}
