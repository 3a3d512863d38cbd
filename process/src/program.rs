//! Context in which the parts of a program are made: its tasks, its liveness pulses and the stages of its end.
//!
//! Parts are made one by one, and run once all of them are: [`Program::start`]. Called by the program's `run`.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::BoxError;
use crate::liveness::{Liveness, Pulse};
use crate::reconcile::{Reconcile, Task};
use crate::shutdown::{Stage, Stages};
use crate::tasks::Tasks;

/// The context. Cheap to clone.
#[derive(Clone)]
pub struct Program {
    /// The tasks.
    pub tasks: Tasks,
    /// The liveness pulses.
    pub liveness: Liveness,
    /// The stages of the end.
    pub stages: Stages,
}

impl Program {
    /// Makes a program that drains once `shutdown` is cancelled. Its tasks wait for [`Self::start`].
    pub fn new(shutdown: CancellationToken) -> Self {
        let liveness = Liveness::new(shutdown.clone());
        Self { tasks: Tasks::held(shutdown.clone()), liveness, stages: Stages::new(shutdown) }
    }

    /// Starts the tasks.
    pub fn start(&self) {
        self.tasks.start();
    }

    /// Adds a loop that ends when `stage` is reached and may be silent for `patience`. A panic stops the program.
    pub fn run<F>(
        &self,
        name: &'static str,
        stage: Stage,
        patience: Duration,
        task: impl FnOnce(Pulse, CancellationToken) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = task(self.liveness.part(name, patience), self.stages.token(stage));
        self.tasks.spawn_until(stage, name, async move {
            task.await;
            Ok::<_, Infallible>(())
        });
    }

    /// Adds a loop of turns.
    pub fn reconcile<R>(&self, name: &'static str, stage: Stage, patience: Duration, mut reconciler: R)
    where
        R: Reconcile + 'static,
    {
        self.run(name, stage, patience, |pulse, stop| async move {
            Task::new(pulse).run(&mut reconciler, stop).await;
        });
    }

    /// Adds a task that ends when `stage` is reached. An error stops the program.
    pub fn try_run<F, E>(&self, name: &'static str, stage: Stage, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.tasks.spawn_until(stage, name, task(self.stages.token(stage)));
    }
}
