//! Counters of an engine: reconciliations, writes, queues and watches of each kind, and how `/metrics` shows them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use bedplate_process::counter::{By, Label, labels, one, read};
use bedplate_process::family::{Row, count_rows, gauge, gauge_rows};
use bedplate_process::lock::Lock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::waiting::{Durations, Waiting, encode_durations};

/// The kinds that a program reconciles.
pub trait Kinds: Label + fmt::Debug + Eq + Send + Sync {
    /// Names of the metrics.
    const NAMES: Names;
}

/// Names of the metrics of an engine.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// Reconciliations, by kind and result.
    pub reconciles: &'static str,
    /// Writes to the API server, by kind.
    pub writes: &'static str,
    /// Watches that failed and were restarted.
    pub watch_errors: &'static str,
    /// 1 if the program leads.
    pub leader: &'static str,
    /// Objects that wait, by kind.
    pub queue_depth: &'static str,
    /// Waiting time of the oldest object, by kind.
    pub queue_oldest: &'static str,
    /// Time since the last event of a watch, by kind.
    pub watch_age: &'static str,
    /// Duration of one reconciliation, by kind.
    pub reconcile_duration: &'static str,
}

labels! {
    /// Result of one reconciliation.
    pub enum Outcome {
        /// The object is as it must be.
        Done => "done",
        /// The object has changed since it was read. It is reconciled again soon.
        Conflict => "conflict",
        /// The API server is unavailable or busy.
        Retry => "retry",
        /// The API server rejects the write.
        Refused => "rejected",
    }
}

/// The counters. Clones share them.
#[derive(Debug)]
pub struct Counters<K>(Arc<Inner<K>>);

impl<K> Clone for Counters<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
struct Inner<K> {
    kinds: Vec<OfKind<K>>,
    watch_errors: AtomicU64,
    leads: AtomicU64,
    /// Time at which each watch was heard last, by its kind.
    heard: Lock<BTreeMap<&'static str, tokio::time::Instant>>,
}

#[derive(Debug)]
struct OfKind<K> {
    kind: K,
    reconciles: By<Outcome>,
    writes: AtomicU64,
    waiting: Lock<Waiting>,
    durations: Durations,
}

impl<K: Kinds> Default for Counters<K> {
    fn default() -> Self {
        let of_kind = |kind| OfKind {
            kind,
            reconciles: By::default(),
            writes: AtomicU64::default(),
            waiting: Lock::default(),
            durations: Durations::default(),
        };
        let kinds = (0..K::VALUE_COUNT).filter_map(K::at).map(of_kind).collect();
        let (watch_errors, leads, heard) = Default::default();
        Self(Arc::new(Inner { kinds, watch_errors, leads, heard }))
    }
}

impl<K: Kinds> Counters<K> {
    fn of(&self, kind: K) -> &OfKind<K> {
        &self.0.kinds[kind.index()]
    }

    /// Counts a finished reconciliation.
    pub fn reconciled(&self, kind: K, outcome: Outcome) {
        self.of(kind).reconciles.one(outcome);
    }

    /// Records that an object of this full name waits to be reconciled.
    pub(crate) fn waits(&self, kind: K, object: &str) {
        self.waiting(kind).waits(object, Instant::now());
    }

    /// Records that an object of this full name no longer waits: it is being reconciled, or deleted.
    pub(crate) fn taken(&self, kind: K, object: &str) {
        self.waiting(kind).taken(object);
    }

    /// Returns the number of objects of a kind that wait.
    pub fn depth(&self, kind: K) -> usize {
        self.waiting(kind).depth()
    }

    fn waiting(&self, kind: K) -> MutexGuard<'_, Waiting> {
        self.of(kind).waiting.lock()
    }

    /// Records the duration of one reconciliation.
    pub fn took(&self, kind: K, time: Duration) {
        self.of(kind).durations.took(time);
    }

    /// Records that the watch of a kind has sent something.
    pub fn heard(&self, kind: &'static str) {
        let now = tokio::time::Instant::now();
        self.0.heard.lock().insert(kind, now);
    }

    /// Forgets a watch that has ended.
    pub(crate) fn forget_watch(&self, kind: &str) {
        self.0.heard.lock().remove(kind);
    }

    /// Returns the time since the last event of a kind's watch. None: there is no such watch.
    pub fn silent(&self, kind: &str) -> Option<Duration> {
        let heard = self.0.heard.lock();
        heard.get(kind).map(tokio::time::Instant::elapsed)
    }

    /// Counts an object that was written.
    pub fn wrote(&self, kind: K) {
        one(&self.of(kind).writes);
    }

    /// Counts a watch that failed and was restarted.
    pub fn watch_failed(&self) {
        one(&self.0.watch_errors);
    }

    /// Records whether this controller leads.
    pub fn leads(&self, leads: bool) {
        self.0.leads.store(u64::from(leads), Ordering::Relaxed);
    }

    fn encode_queues(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        // The queues of a controller that waits to lead contain everything. That is not a delay.
        let leads = read(&self.0.leads) > 0;
        let of = |value: &dyn Fn(&Waiting) -> u64| -> Vec<Row> {
            let value = |of: &OfKind<K>| if leads { value(&of.waiting.lock()) } else { 0 };
            self.rows(&value)
        };
        let depth = of(&|waiting| waiting.depth().try_into().unwrap_or(u64::MAX));
        let help = "Objects that wait to be reconciled; 0 if this controller does not lead";
        gauge_rows(encoder, K::NAMES.queue_depth, help, depth)?;
        let oldest = of(&|waiting| waiting.oldest(now).as_secs());
        let help = "Waiting time of the oldest object in the queue; 0 if this controller does not lead";
        gauge_rows(encoder, K::NAMES.queue_oldest, help, oldest)?;
        let heard = self.0.heard.lock().clone();
        let ages = heard.iter().map(|(kind, last)| (vec![("kind", *kind)], last.elapsed().as_secs()));
        let help = "Time since the last event or bookmark of a watch";
        gauge_rows(encoder, K::NAMES.watch_age, help, ages)?;
        let each: Vec<_> = self.0.kinds.iter().map(|of| (of.kind.word(), &of.durations)).collect();
        encode_durations(encoder, K::NAMES.reconcile_duration, &each)
    }

    /// Returns a row of each kind.
    fn rows(&self, value: &dyn Fn(&OfKind<K>) -> u64) -> Vec<Row> {
        self.0.kinds.iter().map(|of| (vec![("kind", of.kind.word())], value(of))).collect()
    }
}

impl<K: Kinds> Collector for Counters<K> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let encoder = &mut encoder;
        let of_kind = |of: &OfKind<K>| -> Vec<Row> {
            let kind = of.kind.word();
            of.reconciles
                .all()
                .map(|(result, count)| (vec![("kind", kind), ("result", result)], count))
                .collect()
        };
        let rows = self.0.kinds.iter().flat_map(of_kind);
        count_rows(encoder, K::NAMES.reconciles, "Reconciliations", rows)?;
        let writes = self.rows(&|of| read(&of.writes));
        count_rows(encoder, K::NAMES.writes, "Writes to the API server", writes)?;
        let errors = [(Vec::new(), read(&self.0.watch_errors))];
        let help = "Watches that failed and were restarted";
        count_rows(encoder, K::NAMES.watch_errors, help, errors)?;
        let leads = vec![("", read(&self.0.leads))];
        let help = "1 if this controller leads, otherwise 0";
        gauge(encoder, K::NAMES.leader, help, "", leads)?;
        self.encode_queues(encoder)
    }
}
