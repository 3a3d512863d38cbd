//! The loop of operations without a cluster: stores what was not stored, ends operations that no agent carries out, forgets those whose time is
//! over.

use std::time::Duration;

use bedplate_process::liveness::Pulse;
use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::Record;
use super::{LocalOperations, agents};
use crate::power::OperationUpdate;

/// Interval between two checks for operations to forget, or to store again.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

impl LocalOperations {
    /// Reports the known operations, then ends and forgets operations whose time is over, until `shutdown`.
    pub(crate) async fn run(self, pulse: Pulse, shutdown: CancellationToken) {
        let generation = self.inner.store.generation();
        let mut tidier = Tidier { operations: self, generation, started: Instant::now() };
        Task::new(pulse).run(&mut tidier, shutdown).await;
    }
}

/// The loop.
struct Tidier {
    operations: LocalOperations,
    /// Changes when the store's file was replaced.
    generation: watch::Receiver<u64>,
    started: Instant,
}

/// Change that the loop follows.
#[derive(Debug)]
enum Event {
    /// An operation that was made for a selector has changed.
    WentOn,
    /// The store's file was replaced by an empty one.
    NewStore,
}

impl Tidier {
    async fn report(&self) {
        let known = {
            let state = self.operations.lock();
            let there = |record: &&Record| !state.memory.gone.contains_key(record.name());
            state.memory.records.values().filter(there).filter_map(Record::to_carry_out).collect()
        };
        self.operations.tell(OperationUpdate::Set(known)).await;
    }

    async fn tidy(&self) {
        if self.operations.lock().due {
            self.operations.settle().await;
        }
        // An agent may have finished an operation while pxed was down, and must be able to report it first.
        if self.started.elapsed() >= agents::AGENT_GRACE_PERIOD {
            self.operations.expire(Timestamp::now()).await;
        }
        self.operations.fan_out().await;
        let expired = self.operations.lock().expired(Timestamp::now());
        if !expired.is_empty() {
            self.operations.forget(expired).await;
        }
    }
}

impl Reconcile for Tidier {
    type Event = Event;

    async fn changed(&mut self) -> Option<Event> {
        tokio::select! {
            () = self.operations.inner.went_on.notified() => Some(Event::WentOn),
            Ok(()) = self.generation.changed() => Some(Event::NewStore),
        }
    }

    async fn turn(&mut self, activation: Activation<Event>) -> Turn {
        match activation {
            Activation::Start => self.report().await,
            Activation::Changed(Event::NewStore) => {
                self.operations.write_again().await;
                self.tidy().await;
            }
            Activation::Changed(Event::WentOn) | Activation::Due => self.tidy().await,
        }
        Turn::At(Instant::now() + TIDY_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use bedplate_process::liveness::{DISK_PATIENCE, Liveness};

    use super::super::tests::Rig;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_that_do_not_move_are_named_by_the_watchdog() {
        let rig = Rig::new();
        let (operations, mut updates) = rig.open(false);
        let shutdown = CancellationToken::new();
        let liveness = Liveness::new(shutdown.clone());
        let pulse = liveness.part("operations", DISK_PATIENCE);
        let task = tokio::spawn(operations.clone().run(pulse, shutdown.clone()));
        assert_eq!(updates.recv().await.unwrap(), OperationUpdate::Set(Vec::new()));
        tokio::time::sleep(DISK_PATIENCE * 3).await;
        assert_eq!(liveness.check(), Ok(()), "nothing to do");
        let held = operations.inner.taking.lock().await;
        tokio::time::sleep(DISK_PATIENCE + TIDY_INTERVAL * 2).await;
        assert!(liveness.check().unwrap_err().starts_with("operations sent no pulse"));
        drop(held);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(liveness.check(), Ok(()));
        shutdown.cancel();
        task.await.unwrap();
    }
}
