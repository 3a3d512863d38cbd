//! Stages of a program's end, and the order in which it waits for its parts.
//!
//! ```text
//! Serving --stop signal, failed task--> Draining --> LastWrites --> Done
//! ```
//!
//! A part waits for the token of the stage in which it ends. [`Shutdown`] enters the stages one by one and waits for what ends in each. A
//! step that is late is logged once, with the names of the parts, and the order continues: a later step must not lose its turn. Called by
//! the program's `run`, which has the order in one place.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::tasks::{DrainTasksError, Tasks};

/// Stage of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The program takes new work.
    Serving,
    /// The program takes no new work, and finishes its current work.
    Draining,
    /// The program writes the results of its finished work.
    LastWrites,
    /// Only the writer of results runs.
    Done,
}

/// The stages that are reached. Clones share them.
#[derive(Debug, Clone)]
pub struct Stages {
    draining: CancellationToken,
    last_writes: CancellationToken,
    done: CancellationToken,
}

impl Stages {
    /// Makes the stages of a program that serves until `draining` is cancelled.
    pub fn new(draining: CancellationToken) -> Self {
        Self { draining, last_writes: CancellationToken::new(), done: CancellationToken::new() }
    }

    /// Returns a token that is cancelled when `stage` is reached. No part waits for [`Stage::Serving`].
    pub fn token(&self, stage: Stage) -> CancellationToken {
        match stage {
            Stage::Serving | Stage::Draining => self.draining.clone(),
            Stage::LastWrites => self.last_writes.clone(),
            Stage::Done => self.done.clone(),
        }
    }

    fn enter(&self, stage: Stage) {
        for reached in [Stage::Draining, Stage::LastWrites, Stage::Done] {
            if reached <= stage {
                self.token(reached).cancel();
            }
        }
    }
}

/// Ends a program.
#[derive(Debug)]
pub struct Shutdown {
    tasks: Tasks,
    stages: Stages,
    hurry: CancellationToken,
    late: Vec<&'static str>,
}

impl Shutdown {
    /// Starts the end of a program. Once `hurry` is cancelled, steps that may take long are no longer waited for.
    pub fn new(tasks: Tasks, stages: Stages, hurry: CancellationToken) -> Self {
        Self { tasks, stages, hurry, late: Vec::new() }
    }

    /// Enters a stage.
    pub fn enter(&self, stage: Stage) {
        tracing::debug!(?stage, "shutdown stage reached");
        self.stages.enter(stage);
    }

    /// Waits for one step.
    pub async fn step(&mut self, name: &'static str, limit: Duration, step: impl Future<Output = ()>) {
        if tokio::time::timeout(limit, step).await.is_err() {
            self.late(vec![name], limit);
        }
    }

    /// Waits for the end of the tasks that end in this stage or earlier ones.
    pub async fn tasks(&mut self, stage: Stage, limit: Duration) {
        let (ended, hurry) = (self.tasks.ended(stage), self.hurry.clone());
        let deadline = Instant::now() + limit;
        let in_time = tokio::select! {
            ended = timeout_at(deadline, ended) => ended.is_ok(),
            () = hurry.cancelled(), if stage == Stage::Draining => false,
        };
        if !in_time {
            self.late(self.tasks.running_until(stage), limit);
        }
    }

    fn late(&mut self, names: Vec<&'static str>, limit: Duration) {
        let new: Vec<_> = names.into_iter().filter(|name| !self.late.contains(name)).collect();
        if !new.is_empty() {
            let late = new.join(", ");
            tracing::warn!(late, limit_seconds = limit.as_secs(), "shutdown step not finished in time");
            self.late.extend(new);
        }
    }

    /// Abandons the tasks that still run.
    ///
    /// # Errors
    /// The first failure of a task, or that parts were late. Their names were logged.
    pub fn finish(self) -> Result<(), DrainTasksError> {
        self.tasks.abandon(self.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoxError;
    use crate::lock::Lock;
    use std::sync::Arc;

    struct Program {
        tasks: Tasks,
        stages: Stages,
        ended: Arc<Lock<Vec<&'static str>>>,
    }

    impl Program {
        fn new() -> Self {
            let stages = Stages::new(CancellationToken::new());
            Self { tasks: Tasks::new(stages.token(Stage::Draining)), stages, ended: Arc::default() }
        }

        /// Runs a task that ends this long after its stage is reached.
        fn spawn(&self, name: &'static str, stage: Stage, after: Duration) {
            let (reached, ended) = (self.stages.token(stage), self.ended.clone());
            self.tasks.spawn_until(stage, name, async move {
                reached.cancelled().await;
                tokio::time::sleep(after).await;
                ended.lock().push(name);
                Ok::<_, BoxError>(())
            });
        }

        fn end(&self, hurry: &CancellationToken) -> Shutdown {
            Shutdown::new(self.tasks.clone(), self.stages.clone(), hurry.clone())
        }
    }

    const SHORT: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(10);

    async fn end(mut shutdown: Shutdown) -> Result<(), DrainTasksError> {
        for stage in [Stage::Draining, Stage::LastWrites, Stage::Done] {
            shutdown.enter(stage);
            shutdown.tasks(stage, LIMIT).await;
        }
        shutdown.finish()
    }

    #[tokio::test(start_paused = true)]
    async fn stage_is_reached_when_the_tasks_of_the_one_before_have_ended() {
        let program = Program::new();
        program.spawn("writer", Stage::Done, Duration::ZERO);
        program.spawn("boots", Stage::LastWrites, Duration::ZERO);
        program.spawn("http", Stage::Draining, SHORT);
        end(program.end(&CancellationToken::new())).await.expect("in time");
        assert_eq!(*program.ended.lock(), ["http", "boots", "writer"]);
    }

    #[tokio::test(start_paused = true)]
    async fn late_task_is_named_once_and_later_stages_have_their_time() {
        let program = Program::new();
        program.spawn("http", Stage::Draining, 5 * LIMIT);
        program.spawn("boots", Stage::LastWrites, SHORT);
        let start = Instant::now();
        let error = end(program.end(&CancellationToken::new())).await.expect_err("late");
        assert_eq!(error.to_string(), "stopped before these parts had ended: http");
        assert_eq!(*program.ended.lock(), ["boots"]);
        assert!(start.elapsed() < 5 * LIMIT, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn second_signal_ends_the_wait_for_running_work_alone() {
        let program = Program::new();
        program.spawn("http", Stage::Draining, LIMIT / 2);
        program.spawn("boots", Stage::LastWrites, SHORT);
        let hurry = CancellationToken::new();
        hurry.cancel();
        assert!(end(program.end(&hurry)).await.is_err());
        assert_eq!(program.ended.lock()[..1], ["boots"]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_task_is_the_result_of_a_shutdown() {
        let program = Program::new();
        program.tasks.spawn("dhcp", async { Err::<(), BoxError>("address in use".into()) });
        program.stages.token(Stage::Draining).cancelled().await;
        let error = end(program.end(&CancellationToken::new())).await.expect_err("failed");
        assert_eq!(crate::exit::chain(&error), "dhcp failed: address in use");
    }
}
