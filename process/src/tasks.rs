//! The program's tasks. Each has a name, a failed one stops the program, and
//! the end waits for all with a deadline.
//!
//! Does not restart anything: a service that can continue after a fault does so
//! itself. Called by the program's `run`.

use std::{collections::BTreeMap, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::BoxError;
use crate::lock::Lock;
use crate::shutdown::Stage;

/// The tasks of a program. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: CancellationToken,
    abandon: CancellationToken,
    /// Cancelled when the tasks may run.
    started: CancellationToken,
    /// Number of running tasks by the stage in which they end, and name.
    running: watch::Sender<Running>,
    failure: Arc<Lock<Option<DrainTasksError>>>,
}

type Running = BTreeMap<(Stage, &'static str), usize>;

/// Failures at the end of the tasks.
#[derive(Debug, thiserror::Error)]
pub enum DrainTasksError {
    /// A task gave an error; it was the first.
    #[error("{task} failed")]
    Failed {
        /// The task.
        task: &'static str,
        /// Error of the task.
        source: BoxError,
    },
    /// A task panicked; it was the first.
    #[error("{task} panicked: {message}")]
    Panicked {
        /// The task.
        task: &'static str,
        /// Panic message.
        message: String,
    },
    /// The deadline passed; the rest was abandoned.
    #[error("not finished within {} s: {}", deadline.as_secs(), tasks.join(", "))]
    Deadline {
        /// Timeout that passed.
        deadline: Duration,
        /// Names of the abandoned tasks.
        tasks: Vec<&'static str>,
    },
    /// Parts missed the deadline of their step.
    #[error("stopped before these parts had ended: {}", parts.join(", "))]
    Late {
        /// Their names.
        parts: Vec<&'static str>,
    },
}

impl Tasks {
    /// Creates an empty set of tasks. A failing task cancels `shutdown`.
    pub fn new(shutdown: CancellationToken) -> Self {
        let tasks = Self::held(shutdown);
        tasks.start();
        tasks
    }

    /// Like [`Self::new`], but the tasks wait for [`Self::start`]: a program that cannot bind a socket must not have served a client.
    pub fn held(shutdown: CancellationToken) -> Self {
        Self {
            tracker: TaskTracker::new(),
            shutdown,
            abandon: CancellationToken::new(),
            started: CancellationToken::new(),
            running: watch::Sender::default(),
            failure: Arc::default(),
        }
    }

    /// Starts the tasks.
    pub fn start(&self) {
        self.started.cancel();
    }

    /// Runs `task` in the background. It must end after the shutdown token, or earlier with `Ok` when its work is done.
    /// An error or a panic stops the program; [`Self::drain`] returns it.
    pub fn spawn<F, E>(&self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.spawn_until(Stage::Draining, name, task);
    }

    /// Like [`Self::spawn`], but the task ends in this stage.
    pub fn spawn_until<F, E>(&self, stage: Stage, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.running.send_modify(|running| *running.entry((stage, name)).or_default() += 1);
        let tasks = self.clone();
        self.tracker.spawn(async move {
            let abandon = tasks.abandon.clone();
            let run = async {
                tasks.started.cancelled().await;
                AssertUnwindSafe(task).catch_unwind().await
            };
            let ended = abandon.run_until_cancelled(run).await;
            let failure = match ended {
                None | Some(Ok(Ok(()))) => None,
                Some(Ok(Err(error))) => Some(DrainTasksError::Failed { task: name, source: error.into() }),
                Some(Err(panic)) => {
                    Some(DrainTasksError::Panicked { task: name, message: panic_message(panic.as_ref()) })
                }
            };
            tasks.record_end(stage, name, failure);
        });
    }

    fn record_end(&self, stage: Stage, name: &'static str, failure: Option<DrainTasksError>) {
        if let Some(failure) = failure {
            tracing::error!(task = name, "task failed, stopping");
            self.failure.lock().get_or_insert(failure);
            self.shutdown.cancel();
        }
        self.running.send_modify(|running| {
            if let Some(count) = running.get_mut(&(stage, name)) {
                *count = count.saturating_sub(1);
            }
            running.retain(|_, count| *count > 0);
        });
    }

    /// The names of the tasks that run.
    pub fn running(&self) -> Vec<&'static str> {
        self.running_until(Stage::Done)
    }

    /// Returns the names of the running tasks that end in this stage or earlier.
    pub(crate) fn running_until(&self, stage: Stage) -> Vec<&'static str> {
        self.running.borrow().keys().filter(|(ends, _)| *ends <= stage).map(|(_, name)| *name).collect()
    }

    /// Waits for the end of the tasks that end in this stage or earlier ones.
    pub fn ended(&self, stage: Stage) -> impl Future<Output = ()> + Send + use<> {
        self.wait(move |ends, _| ends <= stage)
    }

    /// Waits for the end of the task of this name.
    pub fn ended_task(&self, name: &'static str) -> impl Future<Output = ()> + Send + use<> {
        self.wait(move |_, running| running == name)
    }

    fn wait<F>(&self, is_expected: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Fn(Stage, &'static str) -> bool + Send + Sync + 'static,
    {
        let mut running = self.running.subscribe();
        async move {
            let all_ended = |running: &Running| !running.keys().any(|(ends, name)| is_expected(*ends, name));
            // The sender is dropped with the last task.
            let _ = running.wait_for(all_ended).await;
        }
    }

    /// Abandons the tasks that still run, at their next await.
    ///
    /// # Errors
    /// The first failure of a task, or that these parts were late.
    pub(crate) fn abandon(&self, late: Vec<&'static str>) -> Result<(), DrainTasksError> {
        self.abandon.cancel();
        match self.failure.lock().take() {
            Some(failure) => Err(failure),
            None if late.is_empty() => Ok(()),
            None => Err(DrainTasksError::Late { parts: late }),
        }
    }

    /// Cancels the shutdown token and waits until all tasks have ended, at most `deadline`, and no longer
    /// once `hurry` is canceled. Tasks that still run are abandoned at their next await.
    ///
    /// # Errors
    /// The first failure of a task, otherwise the tasks that did not end in time.
    pub async fn drain(&self, deadline: Duration, hurry: CancellationToken) -> Result<(), DrainTasksError> {
        self.shutdown.cancel();
        self.tracker.close();
        let waited = tokio::select! {
            waited = tokio::time::timeout(deadline, self.tracker.wait()) => waited.is_ok(),
            () = hurry.cancelled() => false,
        };
        let late = self.running();
        self.abandon.cancel();
        if let Some(failure) = self.failure.lock().take() {
            return Err(failure);
        }
        if waited { Ok(()) } else { Err(DrainTasksError::Deadline { deadline, tasks: late }) }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> (Tasks, CancellationToken) {
        let shutdown = CancellationToken::new();
        (Tasks::new(shutdown.clone()), shutdown)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn drain_waits_for_running_work() {
        let (tasks, shutdown) = new();
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mark = done.clone();
        tasks.spawn("transfer", async move {
            shutdown.cancelled().await;
            tokio::task::yield_now().await;
            mark.store(true, std::sync::atomic::Ordering::SeqCst);
            Ok::<_, BoxError>(())
        });
        tasks.drain(LONG, CancellationToken::new()).await.expect("drained");
        assert!(done.load(std::sync::atomic::Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn drain_gives_up_at_its_deadline_and_names_who_was_late() {
        let (tasks, _shutdown) = new();
        tasks.spawn("stuck", std::future::pending::<Result<(), BoxError>>());
        let error = tasks.drain(LONG, CancellationToken::new()).await.expect_err("late");
        assert_eq!(error.to_string(), "not finished within 60 s: stuck");
    }

    #[tokio::test]
    async fn hurry_ends_the_drain_at_once() {
        let (tasks, _shutdown) = new();
        tasks.spawn("stuck", std::future::pending::<Result<(), BoxError>>());
        let hurry = CancellationToken::new();
        hurry.cancel();
        assert!(tasks.drain(LONG, hurry).await.is_err());
    }

    #[tokio::test]
    async fn failing_task_stops_the_program_and_is_the_reason() {
        let (tasks, shutdown) = new();
        tasks.spawn("dhcp", async { Err::<(), BoxError>("address in use".into()) });
        shutdown.cancelled().await;
        let error = tasks.drain(LONG, CancellationToken::new()).await.expect_err("failed");
        assert_eq!(crate::exit::chain(&error), "dhcp failed: address in use");
    }

    #[tokio::test]
    async fn panicking_task_stops_the_program_and_is_the_reason() {
        let (tasks, shutdown) = new();
        tasks.spawn("http", async {
            assert!(std::hint::black_box(false), "boom");
            Ok::<_, BoxError>(())
        });
        shutdown.cancelled().await;
        let error = tasks.drain(LONG, CancellationToken::new()).await.expect_err("panicked");
        assert_eq!(error.to_string(), "http panicked: boom");
    }
}
