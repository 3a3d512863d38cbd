//! Parts of `run` that programs which reconcile share: the writer of Events, the candidate for the Lease, readiness, and the end.
//!
//! ```text
//! Draining    reconcilers start nothing new and finish their writes, while this process still holds the Lease
//! LastWrites  the Events of these writes are written; the Lease is released: another process leads
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use bedplate_process::events::EventWriter;
use bedplate_process::health::{Health, Readiness};
use bedplate_process::lease::{Candidate, Tenure};
use bedplate_process::liveness::{Liveness, Pulse, SILENCE_TIMEOUT};
use bedplate_process::shutdown::{Shutdown, Stage, Stages};
use bedplate_process::tasks::{DrainTasksError, Tasks};
use tokio::sync::watch::Receiver;

use crate::counters::{Counters, Kinds};

/// Maximum duration of the writes that reconcilers have started. A write that takes longer is aborted by the release of the Lease.
const WRITES_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum duration of the last Events and of the release of the Lease. More than each of them takes.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(5);

/// Spawns the writer of Events. It ends after those that publish.
pub fn write_events(writer: EventWriter, (tasks, liveness, stages): (&Tasks, &Liveness, &Stages)) {
    let (pulse, stop) = (liveness.part("events", SILENCE_TIMEOUT), stages.token(Stage::LastWrites));
    tasks.spawn_until(Stage::LastWrites, "events", async move {
        writer.run(pulse, stop).await;
        Ok::<_, Infallible>(())
    });
}

/// Spawns the candidate for the Lease, which takes part once everything was read. It releases the Lease after the writes of the reconcilers.
pub fn elect(
    candidate: Candidate,
    started: Receiver<bool>,
    (tasks, liveness, stages): (&Tasks, &Liveness, &Stages),
) {
    let (pulse, stop) = (liveness.part("lease", SILENCE_TIMEOUT), stages.token(Stage::LastWrites));
    let task = candidate.run(is_set(started), || {}, pulse, stop);
    tasks.spawn_until(Stage::LastWrites, "lease", async move {
        task.await;
        Ok::<_, Infallible>(())
    });
}

/// Queues every object each time this process starts to lead. `lost`: called at each end of the leadership. Never ends.
pub async fn queue_when_leading<K: Kinds, Q: Future<Output = ()> + Send>(
    mut tenure: Tenure,
    counters: &Counters<K>,
    queue_all: impl Fn() -> Q + Sync,
    lost: impl Fn() + Sync,
) {
    loop {
        while !tenure.leads() {
            tenure.changed().await;
        }
        counters.leads(true);
        let queued = async {
            queue_all().await;
            std::future::pending::<()>().await;
        };
        // Concurrently: a queue may be full until the tenure is lost and regained. All is queued again then.
        tokio::select! {
            () = tenure.lost() => {}
            () = queued => {}
        }
        counters.leads(false);
        lost();
    }
}

/// Waits until this is true. Never ends if it no longer can be.
async fn is_set(mut flag: Receiver<bool>) {
    if flag.wait_for(|is_set| *is_set).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends the program.
///
/// # Errors
/// The first failure of a task, or that parts were late.
pub async fn shut_down(mut shutdown: Shutdown) -> Result<(), DrainTasksError> {
    for (stage, limit) in [(Stage::Draining, WRITES_TIMEOUT), (Stage::LastWrites, LAST_WRITES_TIMEOUT)] {
        shutdown.enter(stage);
        shutdown.tasks(stage, limit).await;
    }
    shutdown.finish()
}

/// Spawns a task that cannot fail. Only a panic in it stops the program.
pub fn infallible(tasks: &Tasks, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(name, async move {
        task.await;
        Ok::<_, Infallible>(())
    });
}

/// Runs a loop that waits for other loops of this program only. The pulse beats for as long as it waits.
pub async fn beating(task: impl Future<Output = ()>, pulse: Pulse) {
    tokio::select! {
        () = task => {}
        never = pulse.beating() => match never {},
    }
}

/// Health of a program that reconciles: ready once its stores are synced, whether it leads or not.
pub struct ReconcilerHealth {
    /// Pulses of the loops.
    pub liveness: Liveness,
    /// True once the stores are synced.
    pub started: Receiver<bool>,
    /// Tenure of this process.
    pub tenure: Tenure,
}

impl Health for ReconcilerHealth {
    fn readiness(&self) -> Readiness {
        if !*self.started.borrow() {
            return Readiness { ready: false, reasons: vec!["caches are not synced yet".to_owned()] };
        }
        // A process that waits for the Lease can take over, so it is ready.
        let leads = if self.tenure.leads() {
            "this controller leads"
        } else {
            "this controller is waiting for the Lease"
        };
        Readiness { ready: true, reasons: vec![leads.to_owned()] }
    }

    fn liveness(&self) -> Result<(), String> {
        self.liveness.check()
    }
}
