//! Counters of an engine: reconciliations, writes, queues and watches of each kind, and how `/metrics` shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use bedplate_process::counter::{Label, labels};
use bedplate_process::family::{LabelSet, register, register_family, register_gauges};
use bedplate_process::lock::Lock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::waiting::Waiting;

/// Upper bounds of the histogram of durations, in seconds. One more bucket is above all.
const DURATION_BOUNDS_SECONDS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

/// The kinds that a program reconciles.
pub trait Kinds: Label + LabelSet {
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
    pub enum Outcome in "result" {
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
    reconciles: Family<(K, Outcome), Counter>,
    writes: Family<K, Counter>,
    durations: Family<K, Histogram>,
    watch_errors: Counter,
    leader: Gauge,
    /// Queue of each kind.
    waiting: Box<[Lock<Waiting>]>,
    /// Time at which each watch was heard last, by its kind.
    heard: Lock<BTreeMap<&'static str, tokio::time::Instant>>,
}

impl<K: Kinds> Default for Counters<K> {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(DURATION_BOUNDS_SECONDS);
        let durations = Family::new_with_constructor(histogram);
        let waiting = K::all().map(|_| Lock::default()).collect();
        let (reconciles, writes, watch_errors, leader, heard) = Default::default();
        Self(Arc::new(Inner { reconciles, writes, durations, watch_errors, leader, waiting, heard }))
    }
}

impl<K: Kinds> Counters<K> {
    /// Counts a finished reconciliation.
    pub fn reconciled(&self, kind: K, outcome: Outcome) {
        self.0.reconciles.get_or_create(&(kind, outcome)).inc();
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
        self.0.waiting[kind.index()].lock()
    }

    /// Records the duration of one reconciliation.
    pub fn took(&self, kind: K, time: Duration) {
        self.0.durations.get_or_create(&kind).observe(time.as_secs_f64());
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
        self.0.writes.get_or_create(&kind).inc();
    }

    /// Counts a watch that failed and was restarted.
    pub(crate) fn watch_failed(&self) {
        self.0.watch_errors.inc();
    }

    /// Records whether this controller leads.
    pub fn leads(&self, leads: bool) {
        self.0.leader.set(i64::from(leads));
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let (names, all) = (K::NAMES, &self.0);
        register_family(registry, names.reconciles, "Reconciliations", &all.reconciles);
        register_family(registry, names.writes, "Writes to the API server", &all.writes);
        let help = "Watches that failed and were restarted";
        register(registry, names.watch_errors, help, all.watch_errors.clone());
        let help = "1 if this controller leads, otherwise 0";
        register(registry, names.leader, help, all.leader.clone());
        let help = "Objects that wait to be reconciled; 0 if this controller does not lead";
        self.register_queues(registry, names.queue_depth, help, |waiting| waiting.depth() as u64);
        let help = "Waiting time of the oldest object in the queue; 0 if this controller does not lead";
        let oldest = |waiting: &Waiting| waiting.oldest(Instant::now()).as_secs();
        self.register_queues(registry, names.queue_oldest, help, oldest);
        let (help, counters) = ("Time since the last event or bookmark of a watch", self.clone());
        register_gauges(registry, names.watch_age, help, move || {
            let heard = counters.0.heard.lock().clone();
            heard.into_iter().map(|(kind, last)| (vec![("kind", kind)], last.elapsed().as_secs()))
        });
        let help = "Duration of one reconciliation, including its writes";
        register_family(registry, names.reconcile_duration, help, &all.durations);
    }

    /// Adds a value of each queue. It is read at a scrape: an age grows without a change, and all queues show 0 once the tenure ends.
    fn register_queues(
        &self,
        registry: &mut Registry,
        name: &'static str,
        help: &'static str,
        value: fn(&Waiting) -> u64,
    ) {
        let counters = self.clone();
        register_gauges(registry, name, help, move || {
            // The queues of a controller that waits to lead contain everything. That is not a delay.
            let leads = counters.0.leader.get() > 0;
            let value = |kind: K| if leads { value(&counters.waiting(kind)) } else { 0 };
            K::all().map(|kind| (vec![("kind", kind.word())], value(kind))).collect::<Vec<_>>()
        });
    }
}
