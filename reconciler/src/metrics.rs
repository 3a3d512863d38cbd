//! What the controller counts, and how `/metrics` shows it. Labels are closed sets: no Machine's name.

mod rollout;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use bedplate_process::family::{Row, count_rows, gauge, gauge_rows};
use bedplate_process::lock::Lock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use self::rollout::Turns;
pub use self::rollout::{Eviction, Turn};
use crate::engine::queue::{Durations, Waiting};

/// What is reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// MachineConfigurations and their versions.
    Configuration,
    /// Versions whose configuration is gone.
    Version,
    /// Machines and their Nodes.
    Machine,
    /// Certificate signing requests.
    Request,
    /// MachineOperations.
    Operation,
    /// Rolling updates of MachineConfigurations.
    Rollout,
    /// Machines that are drained before they go.
    Deletion,
    /// Images that versions name by a tag.
    Image,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Configuration,
        Self::Version,
        Self::Machine,
        Self::Request,
        Self::Operation,
        Self::Rollout,
        Self::Deletion,
        Self::Image,
    ];

    /// As it stands in a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "MachineConfiguration",
            Self::Version => "MachineConfigurationVersion",
            Self::Machine => "Machine",
            Self::Request => "CertificateSigningRequest",
            Self::Operation => "MachineOperation",
            Self::Rollout => "Rollout",
            Self::Deletion => "Deletion",
            Self::Image => "Image",
        }
    }
}

/// How one reconciliation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As it ought to be.
    Done,
    /// What was read is not what is there any more; it is tried again soon.
    Conflict,
    /// The API server is away or busy.
    Retry,
    /// The API server will not have it.
    Refused,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Done, Self::Conflict, Self::Retry, Self::Refused];

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Conflict => "conflict",
            Self::Retry => "retry",
            Self::Refused => "refused",
        }
    }
}

/// The counters; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Counters(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reconciles: [[AtomicU64; Outcome::ALL.len()]; Kind::ALL.len()],
    writes: [AtomicU64; Kind::ALL.len()],
    watch_errors: AtomicU64,
    leads: AtomicU64,
    turns: Turns,
    waiting: [Lock<Waiting>; Kind::ALL.len()],
    durations: [Durations; Kind::ALL.len()],
    /// When each watch was heard last, by its kind.
    heard: Lock<BTreeMap<&'static str, tokio::time::Instant>>,
}

impl Counters {
    /// One reconciliation has ended.
    pub fn reconciled(&self, kind: Kind, outcome: Outcome) {
        self.0.reconciles[kind as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// An object waits to be looked at.
    pub fn waits(&self, kind: Kind, object: &str) {
        self.waiting(kind).waits(object, Instant::now());
    }

    /// An object does not wait any more: it is being looked at, or gone.
    pub fn taken(&self, kind: Kind, object: &str) {
        self.waiting(kind).taken(object);
    }

    /// How many objects of a kind wait.
    pub fn depth(&self, kind: Kind) -> usize {
        self.waiting(kind).depth()
    }

    fn waiting(&self, kind: Kind) -> MutexGuard<'_, Waiting> {
        self.0.waiting[kind as usize].lock()
    }

    /// One look has taken so long.
    pub fn took(&self, kind: Kind, time: Duration) {
        self.0.durations[kind as usize].took(time);
    }

    /// The watch of a kind has said something.
    pub fn heard(&self, kind: &'static str) {
        let now = tokio::time::Instant::now();
        self.0.heard.lock().insert(kind, now);
    }

    /// How long the watch of a kind has said nothing; none: there is no such watch.
    pub fn silent(&self, kind: &str) -> Option<Duration> {
        let heard = self.0.heard.lock();
        heard.get(kind).map(tokio::time::Instant::elapsed)
    }

    /// One object was written.
    pub fn wrote(&self, kind: Kind) {
        self.0.writes[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A step of a rolling update was done, or failed.
    pub fn turned(&self, turn: Turn, done: bool) {
        self.0.turns.turned(turn, done);
    }

    /// A Pod was asked to end.
    pub fn evicted(&self, eviction: Eviction) {
        self.0.turns.evicted(eviction);
    }

    /// A watch has failed; it begins anew by itself.
    pub fn watch_failed(&self) {
        self.0.watch_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this controller leads.
    pub fn leads(&self, leads: bool) {
        self.0.leads.store(u64::from(leads), Ordering::Relaxed);
    }
}

impl Counters {
    fn encode_queues(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        // Who waits to lead has everything in its queues: that is no delay.
        let leads = self.0.leads.load(Ordering::Relaxed) > 0;
        let of = |value: &dyn Fn(&Waiting) -> u64| {
            Kind::ALL.map(|kind| {
                let value = if leads { value(&self.waiting(kind)) } else { 0 };
                (vec![("kind", kind.as_str())], value)
            })
        };
        let depth = of(&|waiting| waiting.depth().try_into().unwrap_or(u64::MAX));
        let help = "Objects that wait to be reconciled; 0 if this controller does not lead";
        gauge_rows(encoder, "bedplate_controller_queue_depth", help, depth)?;
        let oldest = of(&|waiting| waiting.oldest(now).as_secs());
        let help = "Waiting time of the oldest object in the queue; 0 if this controller does not lead";
        gauge_rows(encoder, "bedplate_controller_queue_oldest_seconds", help, oldest)?;
        let heard = self.0.heard.lock().clone();
        let ages = heard.iter().map(|(kind, last)| (vec![("kind", *kind)], last.elapsed().as_secs()));
        let help = "Time since the last event or bookmark of a watch";
        gauge_rows(encoder, "bedplate_controller_watch_age_seconds", help, ages)?;
        let each = Kind::ALL.map(|kind| (kind.as_str(), &self.0.durations[kind as usize]));
        crate::engine::queue::encode_durations(encoder, &each)
    }
}

impl Collector for Counters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut rows: Vec<Row> = Vec::new();
        for kind in Kind::ALL {
            for outcome in Outcome::ALL {
                let labels = vec![("kind", kind.as_str()), ("result", outcome.as_str())];
                rows.push((labels, read(&self.0.reconciles[kind as usize][outcome as usize])));
            }
        }
        let help = "Reconciliations";
        count_rows(&mut encoder, "bedplate_controller_reconciles", help, rows)?;
        let writes =
            Kind::ALL.map(|kind| (vec![("kind", kind.as_str())], read(&self.0.writes[kind as usize])));
        count_rows(&mut encoder, "bedplate_controller_writes", "Writes to the API server", writes)?;
        let errors = [(Vec::new(), read(&self.0.watch_errors))];
        count_rows(
            &mut encoder,
            "bedplate_controller_watch_errors",
            "Watches that failed and were restarted",
            errors,
        )?;
        let leads = vec![("", read(&self.0.leads))];
        gauge(
            &mut encoder,
            "bedplate_controller_leader",
            "1 if this controller leads, otherwise 0",
            "",
            leads,
        )?;
        self.0.turns.encode(&mut encoder)?;
        self.encode_queues(&mut encoder)
    }
}
