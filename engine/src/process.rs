//! Process of a program that reconciles, from its signals to the last write of its end. Called by `run`.

use std::sync::Arc;

use bedplate_process::exit::Failure;
use bedplate_process::health::{self, Health};
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::notify::Notifier;
use bedplate_process::shutdown::{Shutdown, Stages};
use bedplate_process::signals::Signals;
use bedplate_process::tasks::Tasks;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::life::shut_down;

/// The process.
pub struct Process {
    signals: Signals,
    notifier: Notifier,
    /// Tasks of the program.
    pub tasks: Tasks,
    /// Pulses of the program.
    pub liveness: Liveness,
    /// Stages of its end.
    pub stages: Stages,
}

impl Process {
    /// Installs the handlers of signals.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub fn start() -> Result<Self, Failure> {
        let signals = Signals::install()?;
        let shutdown = signals.shutdown();
        let (tasks, liveness) = (Tasks::new(shutdown.clone()), Liveness::new(shutdown.clone()));
        let notifier = Notifier::from_environment();
        Ok(Self { signals, notifier, tasks, liveness, stages: Stages::new(shutdown) })
    }

    /// Returns the parts in which loops run.
    pub fn running(&self) -> (&Tasks, &Liveness, &Stages) {
        (&self.tasks, &self.liveness, &self.stages)
    }

    /// Spawns the server of health and metrics, and the watchdog of systemd.
    pub fn serve(&self, listener: TcpListener, health: impl Health + 'static, registry: Registry) {
        let (pulse, shutdown) = (self.liveness.part("health", SILENCE_TIMEOUT), self.signals.shutdown());
        let served = health::serve(listener, Arc::new(health), Arc::new(registry), pulse, shutdown.clone());
        self.tasks.spawn("health", served);
        let liveness = self.liveness.clone();
        self.notifier.spawn_watchdog(&self.tasks, shutdown, move || liveness.check());
    }

    /// Waits for SIGTERM, and ends the program.
    ///
    /// # Errors
    /// The first failure of a task, or that parts were late.
    pub async fn finish(mut self) -> Result<(), Failure> {
        self.notifier.ready("running");
        // The program has no configuration to read again.
        while self.signals.reload_requested().await {}
        self.notifier.stopping("finishing writes");
        Ok(shut_down(Shutdown::new(self.tasks, self.stages, self.signals.hurry())).await?)
    }
}
