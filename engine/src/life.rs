//! Parts of `run` that programs which reconcile share: the writer of Events, and readiness.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bedplate_process::events::EventWriter;
use bedplate_process::health::{Health, Readiness};
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::{Liveness, PATIENCE};
use bedplate_process::shutdown::Stage;
use bedplate_process::tasks::Tasks;
use tokio_util::sync::CancellationToken;

/// Maximum time that the writer of Events waits for those that publish. It needs the rest of the time for the drain.
pub const PUBLISHERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Spawns the writer of Events. It ends after those that publish.
pub fn write_events(
    writer: EventWriter,
    (tasks, liveness, shutdown): (&Tasks, &Liveness, &CancellationToken),
) {
    let (pulse, stop) = (liveness.part("events", PATIENCE), CancellationToken::new());
    let (publishers, shutdown) = (tasks.ended(Stage::Draining), shutdown.clone());
    tasks.spawn_until(Stage::LastWrites, "events", async move {
        let stopping = async {
            shutdown.cancelled().await;
            let _ = tokio::time::timeout(PUBLISHERS_TIMEOUT, publishers).await;
            stop.cancel();
        };
        tokio::join!(writer.run(pulse, stop.clone()), stopping);
        Ok::<_, Infallible>(())
    });
}

/// Spawns a task that cannot fail. Only a panic in it stops the program.
pub fn infallible(tasks: &Tasks, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(name, async move {
        task.await;
        Ok::<_, Infallible>(())
    });
}

/// Health of a program that reconciles: ready once its stores are synced, whether it leads or not.
pub struct ReconcilerHealth {
    /// Pulses of the loops.
    pub liveness: Liveness,
    /// Set when the stores are synced.
    pub started: Arc<OnceLock<()>>,
    /// Tenure of this process.
    pub tenure: Tenure,
}

impl Health for ReconcilerHealth {
    fn readiness(&self) -> Readiness {
        if self.started.get().is_none() {
            return Readiness {
                ready: false,
                reasons: vec!["the cluster's objects are being read".to_owned()],
            };
        }
        // A process that waits for the Lease can take over, so it is ready.
        let leads = if self.tenure.leads() { "this controller leads" } else { "it waits to lead" };
        Readiness { ready: true, reasons: vec![leads.to_owned()] }
    }

    fn liveness(&self) -> Result<(), String> {
        self.liveness.check()
    }
}
