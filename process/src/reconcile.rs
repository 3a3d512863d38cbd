//! One loop of a program: waits for changes, takes turns, retries with backoff,
//! gives a liveness pulse, ends at shutdown.
//!
//! ```text
//!            start             Idle: until a change
//!              |               At: until a change or the time
//!   change ──► turn ─► Turn ───┤
//!   due ───────┘               Retry: until the backoff is over, or an urgent change
//! ```
//!
//! A loop implements [`Reconcile`]; [`Task`] owns the rest. The pulse beats before each turn and while the
//! task waits, so a turn that hangs is named by the watchdog. A failure is logged when its text changes, not
//! at each retry. Called by `run` of each program.
//!
//! ```
//! use std::time::Duration;
//! use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
//! use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
//! use tokio::{sync::watch, time::Instant};
//! use tokio_util::sync::CancellationToken;
//!
//! struct Mirror {
//!     source: watch::Receiver<u64>,
//!     copy: u64,
//! }
//!
//! impl Reconcile for Mirror {
//!     type Event = ();
//!
//!     async fn changed(&mut self) -> Option<()> {
//!         self.source.changed().await.ok() // None ends the task
//!     }
//!
//!     async fn turn(&mut self, _: Activation<()>) -> Turn {
//!         let observed = *self.source.borrow_and_update();
//!         if observed == 13 {
//!             return Turn::Retry("13 is not a valid number".into());
//!         }
//!         self.copy = observed;
//!         Turn::At(Instant::now() + Duration::from_secs(60))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let shutdown = CancellationToken::new();
//! let liveness = Liveness::new(shutdown.clone());
//! let (sender, source) = watch::channel(1);
//! let mut mirror = Mirror { source, copy: 0 };
//! drop(sender); // The task ends after its first turn.
//! Task::new(liveness.part("mirror", SILENCE_TIMEOUT)).run(&mut mirror, shutdown).await;
//! assert_eq!(mirror.copy, 1);
//! # }
//! ```

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::BoxError;
use crate::backoff::Backoff;
use crate::exit::chain;
use crate::liveness::Pulse;

/// Delays between retries.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Cause of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation<E> {
    /// The task has started.
    Start,
    /// A wake source has changed.
    Changed(E),
    /// The time of [`Turn::At`] was reached, or the end of a backoff.
    Due,
}

/// Result of a turn: when the next one is.
#[derive(Debug)]
pub enum Turn {
    /// Next turn on a change.
    Idle,
    /// Next turn at this time, or earlier on a change. A time in the past means immediately.
    At(Instant),
    /// Next turn after the backoff. Changes wait until then, unless they are urgent.
    Retry(BoxError),
}

/// Implementation of one loop.
pub trait Reconcile: Send {
    /// Data of a change; `()` where the loop reads what it needs itself.
    type Event: Send;

    /// Waits for the next change. `None`: no more can come, and the task ends. Must be cancel safe, and must return a change that arrived
    /// before the call and was not read since.
    fn changed(&mut self) -> impl Future<Output = Option<Self::Event>> + Send;

    /// Waits for a change that ends a backoff early. There is none by default.
    fn urgent(&mut self) -> impl Future<Output = Option<Self::Event>> + Send {
        std::future::pending()
    }

    /// Takes one turn. It is dropped at shutdown, at any await, unless the task finishes its turns.
    fn turn(&mut self, activation: Activation<Self::Event>) -> impl Future<Output = Turn> + Send;
}

/// Cause of the end of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The shutdown token was cancelled.
    Shutdown,
    /// The sources of changes have ended.
    Source,
}

/// Runs one loop.
pub struct Task {
    pulse: Pulse,
    finishes_turns: bool,
}

impl Task {
    /// Makes a task whose turns take less time than the pulse may be silent. It logs under the name of the pulse.
    pub fn new(pulse: Pulse) -> Self {
        Self { pulse, finishes_turns: false }
    }

    /// Finishes the running turn at shutdown. The first turn always runs.
    #[must_use]
    pub fn finishing_turns(self) -> Self {
        Self { finishes_turns: true, ..self }
    }

    /// Takes turns until `shutdown`, or until no more changes can come.
    pub async fn run<R: Reconcile>(self, reconciler: &mut R, shutdown: CancellationToken) -> Ended {
        let mut activation = Activation::Start;
        let mut failures = Failures::default();
        loop {
            self.pulse.beat();
            let turn = tokio::select! {
                biased;
                () = shutdown.cancelled(), if !self.finishes_turns => return Ended::Shutdown,
                turn = reconciler.turn(activation) => turn,
            };
            let is_retry = matches!(turn, Turn::Retry(_));
            let due = self.settle(turn, &mut failures);
            let change =
                async { if is_retry { reconciler.urgent().await } else { reconciler.changed().await } };
            activation = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ended::Shutdown,
                event = change => match event {
                    Some(event) => Activation::Changed(event),
                    None => return Ended::Source,
                },
                () = until(due) => Activation::Due,
                never = self.pulse.beating() => match never {},
            };
        }
    }

    /// Logs a failure that is new, and returns the time of the next turn.
    fn settle(&self, turn: Turn, failures: &mut Failures) -> Option<Instant> {
        let task = self.pulse.name();
        let error = match turn {
            Turn::Idle | Turn::At(_) => {
                if failures.count > 0 {
                    tracing::info!(task, failures = failures.count, "turn succeeded after failures");
                    *failures = Failures::default();
                }
                return if let Turn::At(time) = turn { Some(time) } else { None };
            }
            Turn::Retry(error) => chain(error.as_ref()),
        };
        let is_new = failures.add(&error);
        let delay = BACKOFF.delay(failures.count, rand::random());
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        if is_new {
            tracing::warn!(task, error, delay_ms, "turn failed, retrying");
        } else {
            tracing::debug!(task, error, delay_ms, failures = failures.count, "turn failed again, retrying");
        }
        Instant::now().checked_add(delay)
    }
}

/// Failures in a row.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<String>,
}

impl Failures {
    /// Counts a failure. Returns true if its text differs from the one before.
    fn add(&mut self, error: &str) -> bool {
        self.count = self.count.saturating_add(1);
        let is_new = self.last.as_deref() != Some(error);
        self.last = Some(error.to_owned());
        is_new
    }
}

/// Waits until a time, or for ever.
pub async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::liveness::{Liveness, SILENCE_TIMEOUT};

    type Take = Box<dyn FnMut(Activation<u32>) -> Turn + Send>;

    /// A loop that records the activation and the second of each turn.
    struct Recorder {
        changes: mpsc::UnboundedReceiver<u32>,
        urgent: mpsc::UnboundedReceiver<u32>,
        start: Instant,
        turns: mpsc::UnboundedSender<(Activation<u32>, u64)>,
        take: Take,
        hangs: bool,
    }

    impl Reconcile for Recorder {
        type Event = u32;

        async fn changed(&mut self) -> Option<u32> {
            self.changes.recv().await
        }

        async fn urgent(&mut self) -> Option<u32> {
            self.urgent.recv().await
        }

        async fn turn(&mut self, activation: Activation<u32>) -> Turn {
            let elapsed = self.start.elapsed() + Duration::from_millis(500);
            let _ = self.turns.send((activation, elapsed.as_secs()));
            if self.hangs {
                std::future::pending::<()>().await;
            }
            (self.take)(activation)
        }
    }

    struct Running {
        changes: mpsc::UnboundedSender<u32>,
        urgent: mpsc::UnboundedSender<u32>,
        turns: mpsc::UnboundedReceiver<(Activation<u32>, u64)>,
        liveness: Liveness,
        shutdown: CancellationToken,
        task: tokio::task::JoinHandle<Ended>,
    }

    impl Running {
        fn start(hangs: bool, take: impl FnMut(Activation<u32>) -> Turn + Send + 'static) -> Self {
            Self::with(Task::finishing_turns, hangs, Box::new(take))
        }

        fn with(adjust: impl Fn(Task) -> Task, hangs: bool, take: Take) -> Self {
            let (changes, receiver) = mpsc::unbounded_channel();
            let (urgent, urgent_receiver) = mpsc::unbounded_channel();
            let (sender, turns) = mpsc::unbounded_channel();
            let shutdown = CancellationToken::new();
            let liveness = Liveness::new(shutdown.clone());
            let task = adjust(Task::new(liveness.part("recorder", SILENCE_TIMEOUT)));
            let (start, token) = (Instant::now(), shutdown.clone());
            let mut recorder =
                Recorder { changes: receiver, urgent: urgent_receiver, start, turns: sender, take, hangs };
            let task = tokio::spawn(async move { task.run(&mut recorder, token).await });
            Self { changes, urgent, turns, liveness, shutdown, task }
        }

        async fn turn(&mut self) -> (Activation<u32>, u64) {
            self.turns.recv().await.expect("a turn")
        }
    }

    fn after(seconds: u64) -> Turn {
        Turn::At(Instant::now() + Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn turns_follow_changes_and_times() {
        let mut running = Running::start(false, |activation| match activation {
            Activation::Start => after(10),
            Activation::Due | Activation::Changed(_) => Turn::Idle,
        });
        assert_eq!(running.turn().await, (Activation::Start, 0));
        assert_eq!(running.turn().await, (Activation::Due, 10));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(running.liveness.check(), Ok(()), "an idle task beats");
        running.changes.send(7).unwrap();
        assert_eq!(running.turn().await, (Activation::Changed(7), 3610));
        running.shutdown.cancel();
        assert_eq!(running.task.await.unwrap(), Ended::Shutdown);
    }

    #[tokio::test(start_paused = true)]
    async fn change_comes_before_the_time_of_the_next_turn() {
        let mut running = Running::start(false, |_| after(10));
        running.turn().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        running.changes.send(7).unwrap();
        assert_eq!(running.turn().await, (Activation::Changed(7), 4));
        assert_eq!(running.turn().await, (Activation::Due, 14));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_wait_longer_each_time_and_only_urgent_changes_end_the_wait() {
        let mut running = Running::start(false, |activation| match activation {
            Activation::Start | Activation::Due => Turn::Retry("unreachable".into()),
            Activation::Changed(_) => Turn::Idle,
        });
        running.changes.send(7).unwrap();
        let mut waits = Vec::new();
        let mut last = Instant::now();
        for _ in 0..9 {
            assert_ne!(running.turn().await.0, Activation::Changed(7));
            waits.push(last.elapsed().as_secs_f64());
            last = Instant::now();
        }
        for (wait, base) in waits[1..].iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]) {
            assert!((base * 0.74..=base * 1.26).contains(wait), "{waits:?}");
        }
        running.urgent.send(8).unwrap();
        assert_eq!(running.turn().await.0, Activation::Changed(8));
        assert!(last.elapsed() < Duration::from_secs(1));
        assert_eq!(running.turn().await.0, Activation::Changed(7), "it was kept");
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_turn_is_named_by_the_watchdog_and_dropped_at_shutdown() {
        let mut running = Running::with(|task| task, true, Box::new(|_| Turn::Idle));
        running.turn().await;
        assert_eq!(running.liveness.check(), Ok(()));
        tokio::time::sleep(SILENCE_TIMEOUT + Duration::from_secs(1)).await;
        let error = running.liveness.check().unwrap_err();
        assert!(error.starts_with("recorder sent no pulse"), "{error}");
        running.shutdown.cancel();
        assert_eq!(running.task.await.unwrap(), Ended::Shutdown);
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_finishes_its_turns_is_not_interrupted_by_shutdown() {
        let mut running = Running::start(true, |_| Turn::Idle);
        running.turn().await;
        running.shutdown.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(3600), &mut running.task).await;
        assert!(ended.is_err(), "its turn continues");
        running.task.abort();
    }

    #[tokio::test]
    async fn task_ends_with_its_source_and_a_dead_task_is_named() {
        let running = Running::start(false, |_| Turn::Idle);
        drop(running.changes);
        assert_eq!(running.task.await.unwrap(), Ended::Source);
        assert_eq!(running.liveness.check(), Err("recorder has ended".to_owned()));
    }

    #[test]
    fn failure_is_logged_when_its_text_changes() {
        let mut failures = Failures::default();
        let logged = ["a", "a", "b", "b", "a"].map(|error| failures.add(error));
        assert_eq!((logged, failures.count), ([true, false, true, false, true], 5));
    }
}
