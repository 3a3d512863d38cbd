//! One life of the controller: all of it but the election, in a runtime of its own. Its tenure begins when it has read everything, as with a
//! lease, and has no end: so a new one need not wait for the old one's.
//!
//! Its death is that of SIGKILL. The gate is its only way out, and is closed for ever before the runtime is dropped: no started
//! request continues (a forwarded one was answered before), none that a destructor might make gets through, none hears an answer. Nothing
//! that it knew is handed to the next: stores, queues, its waits and its counts of failures are values of that runtime's tasks. It writes no
//! file and starts no process.

use std::sync::Arc;
use std::time::Duration;

use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Liveness;
use bedplate_process::shutdown::Stages;
use bedplate_process::tasks::Tasks;
use bedplate_reconciler::metrics::Metrics;
use bedplate_reconciler::reach::RegistryReach;
use bedplate_reconciler::run;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gate::Gate;

pub(crate) struct Life {
    gate: Arc<Gate>,
    runtime: Option<Runtime>,
    /// Cancelled by a task that failed, or panicked.
    pub(crate) failed: CancellationToken,
}

impl Life {
    pub(crate) fn begin(gate: &Arc<Gate>) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let shutdown = CancellationToken::new();
        let (own, failed) = (gate.clone(), shutdown.clone());
        runtime.spawn(async move {
            let (tasks, liveness) = (Tasks::new(shutdown.clone()), Liveness::new(shutdown.clone()));
            let (leads, tenure) = watch::channel(None);
            let (client, tenure) = (own.client(), Tenure::new(tenure));
            let stages = Stages::new(shutdown.clone());
            let running = (&tasks, &liveness, &stages);
            let (mut started, _news) = run::begin(
                &client,
                (&tenure, "faults"),
                &Metrics::default(),
                running,
                RegistryReach::default(),
            );
            if started.wait_for(|started| *started).await.is_err() {
                return;
            }
            leads.send_replace(Some(Instant::now() + Duration::from_secs(86_400)));
            std::future::pending::<()>().await;
        });
        Self { gate: gate.clone(), runtime: Some(runtime), failed }
    }
}

/// Its death.
impl Drop for Life {
    fn drop(&mut self) {
        self.gate.close();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
