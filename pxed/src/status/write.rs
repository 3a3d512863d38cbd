//! Writer of changed statuses to the store and to the plane's [`StatusSink`].
//!
//! One task drives the `queue`; at most [`MAX_WRITES`] writes run concurrently with it, each with a deadline, so that
//! a slow API server delays only writes. Spawned by `run`; at shutdown the changed statuses are written once more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::machine::MachineStatus;
use bedplate_process::liveness::Pulse;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::project::{Part, Parts};
use super::queue::{Outcome, Queue};
use super::{Kept, StatusRegistry};
use crate::store::{Change, Store, Table};

/// Maximum number of concurrent writes.
const MAX_WRITES: usize = 16;
/// Maximum duration of one request of a write.
pub(crate) const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Timeout of the last writes at shutdown.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Result of a write to the sink.
#[derive(Debug)]
pub enum WriteOutcome {
    /// The sink has the status. The boot's part as the object has it, if several pxed can write it.
    Written(Option<Box<MachineStatus>>),
    /// The object has the boot of another pxed, whose word counts ([`site_boot`](super::site_boot)).
    TakenOver(Box<MachineStatus>),
    /// The Machine was deleted, or another one has its name.
    Gone,
    /// The sink rejects this status permanently: its schema does not allow it.
    Rejected(String),
    /// The sink is unavailable or busy, or does not allow the write now.
    Later(String),
    /// The sink is not connected yet. The source of Machines logs the cause.
    NotConnected,
}

/// The plane's side of statuses. They are in the store in addition.
#[async_trait]
pub trait StatusSink: Send + Sync {
    /// Writes a part of pxed's fields of a Machine's status.
    async fn write(&self, machine: &MachineName, kept: &Kept, part: Part) -> WriteOutcome;
}

/// Counters since start, for metrics.
#[derive(Debug, Default)]
pub struct WriteCounters {
    /// Statuses written.
    pub written: AtomicU64,
    /// Writes that will be tried again.
    pub retried: AtomicU64,
    /// Writes that were refused for good.
    pub refused: AtomicU64,
    /// Machines whose status the writer has taken and not written yet.
    waiting: AtomicU64,
}

impl WriteCounters {
    /// Returns the number of Machines whose status is not written yet.
    pub fn unwritten(&self, registry: &StatusRegistry) -> u64 {
        // In this order: the writer counts what it takes before it takes it.
        let changed = registry.changed_machines();
        changed.saturating_add(self.waiting.load(Ordering::Relaxed))
    }
}

/// The task's parts.
pub struct Writer {
    registry: StatusRegistry,
    store: Store,
    sink: Arc<dyn StatusSink>,
    counters: Arc<WriteCounters>,
    /// Questions of [`Statuses::idle`] that arrive.
    questions: mpsc::Receiver<oneshot::Sender<()>>,
    /// Questions that are not answered yet.
    waiting: Vec<oneshot::Sender<()>>,
}

/// Waits for the writer. Clones share it.
#[derive(Debug, Clone)]
pub struct Statuses(mpsc::Sender<oneshot::Sender<()>>);

impl Statuses {
    /// Waits until no status has to be written: the store and the sink have all of them. Ends immediately if the
    /// writer has ended.
    pub async fn idle(&self) {
        let (answer, idle) = oneshot::channel();
        if self.0.send(answer).await.is_ok() {
            let _ = idle.await;
        }
    }
}

/// A Machine, how its write ended, and the parts that are still to be written.
type Done = (MachineName, Outcome, Parts);

/// Pending writes: Machines with their times and parts.
#[derive(Default)]
struct Work {
    queue: Queue,
    parts: HashMap<MachineName, Parts>,
}

impl Work {
    fn mark(&mut self, name: &MachineName, parts: Parts) {
        let before = self.parts.entry(name.clone()).or_default();
        *before = before.and(parts);
    }

    fn forget(&mut self, name: &MachineName) {
        self.queue.forget(name);
        self.parts.remove(name);
    }

    fn settle(&mut self, done: Result<Done, tokio::task::JoinError>) {
        // A write does not panic; if one did, its Machine is written again with the next change.
        if let Ok((name, outcome, rest)) = done {
            if rest != Parts::default() {
                self.mark(&name, rest);
            }
            self.queue.done(&name, outcome, Instant::now(), rand::random());
        }
    }
}

impl Writer {
    /// Makes the writer of this registry's statuses, and the handle that waits for it.
    pub fn new(
        registry: StatusRegistry,
        store: Store,
        sink: Arc<dyn StatusSink>,
        counters: Arc<WriteCounters>,
    ) -> (Self, Statuses) {
        let (sender, questions) = mpsc::channel(1);
        let waiting = Vec::new();
        (Self { registry, store, sink, counters, questions, waiting }, Statuses(sender))
    }

    /// Writes until `shutdown`, then what is left.
    pub async fn run(mut self, pulse: Pulse, shutdown: CancellationToken) {
        let mut work = Work::default();
        let mut writes: JoinSet<Done> = JoinSet::new();
        loop {
            self.collect(&mut work).await;
            self.start_writes(&mut work, &mut writes);
            if writes.is_empty() && work.queue.waiting() == 0 {
                for answer in self.waiting.drain(..) {
                    // A caller that has stopped waiting needs no answer.
                    let _ = answer.send(());
                }
            }
            let wait = work.queue.next_due().filter(|_| writes.len() < MAX_WRITES);
            tokio::select! {
                () = shutdown.cancelled() => break,
                never = pulse.beating() => match never {},
                () = self.registry.changed() => {}
                Some(question) = self.questions.recv() => {
                    self.waiting.push(question);
                    work.queue.hurry(Instant::now());
                }
                Some(done) = writes.join_next() => work.settle(done),
                () = until(wait) => {}
            }
        }
        // Writes that the API server rejects now are in the store, and are repeated after the next start.
        let last = self.write_the_rest(work, writes);
        if tokio::time::timeout(LAST_WRITES, last).await.is_err() {
            tracing::warn!("status writes postponed to the next start");
        }
    }

    /// Collects changes: into the store immediately, and into the queue.
    async fn collect(&self, work: &mut Work) {
        // Counted as one until the number is known.
        self.counters.waiting.fetch_add(1, Ordering::Relaxed);
        let (changed, gone) = self.registry.take_changes();
        gone.iter().for_each(|name| work.forget(name));
        self.forget(&gone).await;
        let now = Instant::now();
        for (name, parts) in &changed {
            work.mark(name, *parts);
            work.queue.mark(name, now);
        }
    }

    /// Deletes in one commit: thousands may be deleted together, and each commit waits for the disk.
    async fn forget(&self, gone: &[MachineName]) {
        // A Machine that was re-created in the meantime has a status that is kept.
        let gone = gone.iter().filter(|name| self.registry.kept(name).is_none());
        let deletes: Vec<Change> =
            gone.map(|name| Change::Delete(Table::Status, name.as_str().as_bytes().to_vec())).collect();
        let machines = deletes.len();
        if machines > 0
            && let Err(error) = self.store.write(deletes).await
        {
            tracing::warn!(machines, %error, "failed to remove statuses of deleted machines");
        }
    }

    fn start_writes(&self, work: &mut Work, writes: &mut JoinSet<Done>) {
        let now = Instant::now();
        while writes.len() < MAX_WRITES
            && let Some(name) = work.queue.take(now)
        {
            let mut parts = work.parts.remove(&name).unwrap_or_default();
            // Another pxed leads: what this one would say of power is not its to say, now or later.
            parts.power &= self.registry.writes_power();
            let Some(kept) = self.registry.kept(&name) else {
                work.queue.done(&name, Outcome::Settled, now, 0.0);
                continue;
            };
            let write = Write {
                name,
                kept,
                parts,
                registry: self.registry.clone(),
                store: self.store.clone(),
                sink: self.sink.clone(),
                counters: self.counters.clone(),
            };
            writes.spawn(write.carry_out());
        }
        let waiting = work.queue.waiting().saturating_add(writes.len());
        self.counters.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// Writes what is dirty, also what became so during a write; what fails has its turn after the next start.
    async fn write_the_rest(&self, mut work: Work, mut writes: JoinSet<Done>) {
        self.collect(&mut work).await;
        loop {
            work.queue.hurry(Instant::now());
            self.start_writes(&mut work, &mut writes);
            match writes.join_next().await {
                None => return,
                Some(Ok((name, Outcome::Retry, _))) => work.forget(&name),
                Some(done) => work.settle(done),
            }
        }
    }
}

/// One write of one status.
struct Write {
    name: MachineName,
    kept: Kept,
    /// The parts that the sink does not have yet.
    parts: Parts,
    registry: StatusRegistry,
    store: Store,
    sink: Arc<dyn StatusSink>,
    counters: Arc<WriteCounters>,
}

impl Write {
    async fn carry_out(mut self) -> Done {
        let outcome = match self.keep().await {
            Outcome::Settled => self.send().await,
            Outcome::Retry => Outcome::Retry,
        };
        let counter = match outcome {
            Outcome::Settled => &self.counters.written,
            Outcome::Retry => &self.counters.retried,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        (self.name, outcome, self.parts)
    }

    async fn keep(&self) -> Outcome {
        let Ok(bytes) = serde_json::to_vec(&self.kept) else { return Outcome::Settled };
        let put = Change::Put(Table::Status, self.name.as_str().as_bytes().to_vec(), bytes);
        match self.store.write(vec![put]).await {
            Ok(()) => Outcome::Settled,
            // The writer of the store has logged why.
            Err(_) => Outcome::Retry,
        }
    }

    async fn send(&mut self) -> Outcome {
        let mut outcome = Outcome::Settled;
        for part in Part::ALL {
            if !self.parts.has(part) {
                continue;
            }
            match self.send_part(part).await {
                Outcome::Settled => match part {
                    Part::Boot => self.parts.boot = false,
                    Part::Power => self.parts.power = false,
                },
                Outcome::Retry => outcome = Outcome::Retry,
            }
        }
        outcome
    }

    async fn send_part(&self, part: Part) -> Outcome {
        let write = tokio::time::timeout(WRITE_DEADLINE, self.sink.write(&self.name, &self.kept, part));
        let written = match part {
            Part::Boot => Some(write.await),
            Part::Power => self.registry.while_it_writes_power(write).await,
        };
        // Another pxed leads: power is not this one's to write, now or later.
        let Some(written) = written else { return Outcome::Settled };
        match written {
            Ok(WriteOutcome::Written(there)) => {
                if let Some(there) = there {
                    self.registry.wrote_boot(&self.name, &self.kept.uid, &there);
                }
                Outcome::Settled
            }
            Ok(WriteOutcome::TakenOver(there)) => {
                tracing::debug!(machine = %self.name, "continuing a boot of another pxed");
                self.registry.take_over_boot(&self.name, &self.kept, &there, Timestamp::now());
                Outcome::Settled
            }
            Ok(WriteOutcome::Gone) => {
                tracing::debug!(machine = %self.name, "status not written, the Machine was deleted");
                Outcome::Settled
            }
            Ok(WriteOutcome::Rejected(error)) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                tracing::error!(machine = %self.name, error, "API server rejected the status, not retried");
                Outcome::Settled
            }
            Ok(WriteOutcome::NotConnected) => Outcome::Retry,
            Ok(WriteOutcome::Later(error)) => {
                tracing::warn!(machine = %self.name, error, "failed to write a status, retrying");
                Outcome::Retry
            }
            Err(_) => {
                tracing::warn!(machine = %self.name, "status write timed out, retrying");
                Outcome::Retry
            }
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
