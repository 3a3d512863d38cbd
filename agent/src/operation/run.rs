//! Loop that takes the Machine's operations and carries out the decisions of `plan`. It runs one at a time,
//! except during a drain (`concurrent`). `report` writes their progress.
//!
//! A note on disk or a write to the object precedes the act that it announces. If
//! the agent is killed in between, the next agent continues. A stop interrupts
//! repeatable steps, and waits for a pending write. Called by `service`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::operation::MachineOperation;
use bedplate_process::exit::chain;
use bedplate_process::liveness::{Beat, Pulse};
use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::apply::Configuration;
use super::journal::file::{Note, Notes};
use super::ledger::{Ledger, View};
use super::outcome::Outcome;
use super::parameters::{Order, Task as Work};
use super::plan::{
    Finish, Next, Observed, Standing, choose, cleaned_until, is_ours, is_started, next, overtaking,
    runs_concurrently,
};
use super::progress::{self, executor};
use crate::bus::{Machines, Power, Units};
use crate::kubelet::client::NodeApi;

/// Delay before a retry.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Poll interval of a pending state.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Interfaces that operations use.
#[derive(Clone)]
pub struct Parts {
    /// Our Machine, whose name is the Node's too.
    pub machine: MachineName,
    /// The kernel's boot id.
    pub boot_id: String,
    /// The time.
    pub clock: Clock,
    /// Destination of status writes.
    pub ledger: Arc<dyn Ledger>,
    /// Our own notes.
    pub notes: Arc<dyn Notes>,
    /// systemd of the host.
    pub units: Arc<dyn Units>,
    /// Slots that run.
    pub machines: Arc<dyn Machines>,
    /// Reboot and power off.
    pub power: Arc<dyn Power>,
    /// Our Node and its Pods.
    pub node: Arc<dyn NodeApi>,
    /// The selected and the running version.
    pub configuration: Arc<dyn Configuration>,
    /// Directory of captures: `/var/lib/bedplate/captures`.
    pub captures: PathBuf,
}

/// An operation that is under way.
pub(super) struct Running {
    pub(super) object: Arc<MachineOperation>,
    /// True if this process requested the end of this boot, and systemd accepted it.
    pub(super) accepted: bool,
    /// True if the operation is not started, because it waits for another condition.
    waits: bool,
    /// End of the operation, once it is known.
    pub(super) finish: Option<Finish>,
    /// Last report of this process on it.
    pub(super) report: Option<Report>,
}

/// Report on an operation under way.
pub(super) struct Report {
    pub(super) at: Timestamp,
    text: String,
}

impl Report {
    pub(super) fn of(text: &str, at: Timestamp) -> Self {
        Self { at, text: text.to_owned() }
    }

    pub(super) fn is_same(&self, text: &str) -> bool {
        self.text == text
    }
}

impl Running {
    fn of(object: Arc<MachineOperation>) -> Self {
        Self { object, accepted: false, waits: false, finish: None, report: None }
    }
}

/// Runner of operations.
pub(super) struct Runner {
    pub(super) parts: Parts,
    pub(super) views: watch::Receiver<View>,
    pub(super) shutdown: CancellationToken,
    pub(super) notes: Vec<Note>,
    /// UIDs of operations that this process has finished, while their former state is observed.
    pub(super) ended: BTreeSet<String>,
    pub(super) running: Option<Running>,
    /// Set on a loop that takes only operations allowed during a drain; it
    /// takes no more once this is canceled.
    pub(super) concurrent: Option<CancellationToken>,
    /// True if the Node may be cordoned for an operation that is no longer carried out: see `sweep`.
    pub(super) sweep: bool,
    /// Number of failed writes in a row.
    pub(super) unwritten: u32,
    pub(super) write_again: Option<Instant>,
    /// Pulse for long acts that have their own deadline.
    pub(super) beat: Beat,
}

/// Carries operations out until `shutdown`.
pub async fn run(parts: Parts, views: watch::Receiver<View>, pulse: Pulse, shutdown: CancellationToken) {
    let Some(mut runner) = Runner::begin(parts, views, &pulse, shutdown.clone()).await else { return };
    // A stop waits for an answer that is being written.
    Task::new(pulse).finishing_turns().run(&mut runner, shutdown).await;
    runner.last_words().await;
}

impl Reconcile for Runner {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        self.views.changed().await.ok()
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        self.advance().await.map_or(Turn::Idle, |pause| Turn::At(Instant::now() + pause))
    }
}

/// Waits for this time, or forever.
pub(super) async fn pause(length: Option<Duration>) {
    match length {
        Some(length) => sleep(length).await,
        None => std::future::pending().await,
    }
}

impl Runner {
    /// Reads the notes. No operation starts before that succeeds.
    async fn begin(
        parts: Parts,
        views: watch::Receiver<View>,
        pulse: &Pulse,
        shutdown: CancellationToken,
    ) -> Option<Self> {
        loop {
            match parts.notes.read().await {
                Ok(notes) => {
                    return Some(Self {
                        parts,
                        views,
                        shutdown,
                        notes,
                        ended: BTreeSet::new(),
                        running: None,
                        concurrent: None,
                        sweep: true,
                        unwritten: 0,
                        write_again: None,
                        beat: pulse.handle(),
                    });
                }
                Err(error) => tracing::warn!(error = chain(&error), "failed to read the notes on operations"),
            }
            tokio::select! {
                () = sleep(RETRY_DELAY * 15) => {}
                () = shutdown.cancelled() => return None,
                never = pulse.beating() => match never {},
            }
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.parts.clock)()
    }

    /// Carries out one act. Returns the delay before the next one; none: on the next change.
    pub(super) async fn advance(&mut self) -> Option<Duration> {
        let had = self.running.is_some();
        let again = self.act_once().await;
        if had && self.running.is_none() {
            self.sweep = true;
            return again.or(Some(Duration::ZERO));
        }
        again
    }

    async fn act_once(&mut self) -> Option<Duration> {
        let view = self.views.borrow_and_update().clone();
        self.forget(&view).await;
        self.tell_paused(&view).await;
        self.look(&view);
        let Some(running) = self.running.as_ref() else { return self.sweep(&view).await };
        if let Some(finish) = running.finish.clone() {
            return self.finish(finish).await;
        }
        let object = Arc::clone(&running.object);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let note = self.notes.iter().find(|note| note.uid == uid).cloned();
        let observed = Observed {
            now: self.now(),
            machine: self.parts.machine.as_str(),
            boot_id: &self.parts.boot_id,
            standing: view.standing,
            operation: &object,
            note: note.as_ref(),
            accepted: running.accepted,
        };
        match next(&observed) {
            Next::Ignore => {
                self.running = None;
                self.ended.insert(uid);
                None
            }
            Next::Wait { reason, message } => {
                self.running = None;
                self.write(&object, progress::waits(object.status.as_ref(), reason, &message)).await
            }
            Next::Take => {
                let by = executor(self.parts.machine.as_str());
                let now = self.now();
                let status = progress::taken(object.status.as_ref(), &by, &self.parts.boot_id, now);
                tracing::info!(
                    operation = object.metadata.name,
                    kind = object.spec.operation_name,
                    "operation taken"
                );
                self.write(&object, status).await
            }
            Next::Begin(order, deadline) => self.carry_out(&order, deadline).await,
            Next::Inspect(order, deadline) => {
                let started = note.map_or(deadline, |note| note.started);
                let outcome = self.inspect(&order, started, deadline).await;
                self.settle(deadline, outcome).await
            }
            Next::AwaitEnd(until) => {
                let left = until.duration_since(self.now());
                Some(Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(10)))
            }
            Next::Finish(finish) => self.finish(finish).await,
        }
    }

    /// Updates the current operation: the same one while it exists and is not
    /// finished, otherwise the next one.
    fn look(&mut self, view: &View) {
        self.leave_what_waits(view);
        let machine = self.parts.machine.as_str();
        if let Some(running) = &self.running {
            let uid = &running.object.metadata.uid;
            let seen = view.operations.iter().find(|one| one.metadata.uid == *uid);
            let gone = view.complete && seen.is_none_or(|seen| !is_ours(seen, machine));
            // If the Machine belongs to another host by now, no operation starts,
            // and one that was not started is dropped.
            let lost = view.standing == Standing::Unknown && !running.accepted && running.finish.is_none();
            // An operation that another writer ended or deleted is not ended
            // here; one that is only seen late is.
            if !gone && !lost {
                let before = overtaking(&view.operations, machine, view.standing, &running.object);
                let known = |one: &MachineOperation| {
                    self.ended.iter().any(|uid| one.metadata.uid.as_ref() == Some(uid))
                };
                if let Some(before) = before.filter(|one| running.waits && !known(one)).map(Arc::clone) {
                    self.running = Some(Running::of(before));
                }
                return;
            }
            tracing::info!(
                operation = running.object.metadata.name,
                lost,
                "current operation was finished or deleted by another writer"
            );
            self.running = None;
        }
        let uid = |one: &MachineOperation| one.metadata.uid.clone().unwrap_or_default();
        self.ended.retain(|ended| view.operations.iter().any(|one| uid(one) == *ended));
        // After the drain, the concurrent loop continues only operations that were taken before.
        let goes_on = |one: &MachineOperation| match &self.concurrent {
            None => true,
            Some(drained) => runs_concurrently(one) && (is_started(one) || !drained.is_cancelled()),
        };
        let open = view.operations.iter().filter(|one| !self.ended.contains(&uid(one)) && goes_on(one));
        let open: Vec<_> = open.cloned().collect();
        self.running = choose(&open, machine, view.standing).map(Arc::clone).map(Running::of);
    }

    /// Drops an operation of the concurrent loop that was selected and not taken before the drain ended.
    fn leave_what_waits(&mut self, view: &View) {
        let over = self.concurrent.as_ref().is_some_and(CancellationToken::is_cancelled);
        let Some(running) = self.running.as_ref().filter(|running| over && running.finish.is_none()) else {
            return;
        };
        let uid = &running.object.metadata.uid;
        let seen = view.operations.iter().find(|one| one.metadata.uid == *uid);
        if !is_started(&running.object) && !seen.is_some_and(|seen| is_started(seen)) {
            self.running = None;
        }
    }

    /// Returns true if the current operation was not deleted or ended by another writer.
    pub(super) fn is_wanted(&self) -> bool {
        let Some(running) = &self.running else { return false };
        let view = self.views.borrow();
        let seen = view.operations.iter().find(|one| one.metadata.uid == running.object.metadata.uid);
        !view.complete || seen.is_some_and(|seen| is_ours(seen, self.parts.machine.as_str()))
    }

    async fn carry_out(&mut self, order: &Order, deadline: Timestamp) -> Option<Duration> {
        let prepared = match &order.task {
            Work::Reboot(drain) | Work::Shutdown(drain) => self.prepare_power(*drain, deadline).await,
            Work::RestartService { unit, place } => self.prepare_restart(unit, *place).await,
            Work::PacketCapture(capture) => self.prepare_capture(capture).await,
            Work::ApplyConfiguration { disruption } => self.apply(*disruption, deadline).await,
        };
        if !matches!(prepared, Outcome::Ready) {
            return self.settle(deadline, prepared).await;
        }
        let object = Arc::clone(&self.running.as_ref()?.object);
        // This write is refused if another writer ended the operation meanwhile.
        let again = self.write(&object, progress::under_way(object.status.as_ref(), "started")).await;
        if again != Some(Duration::ZERO) {
            return again;
        }
        if let Err(error) = self.note_started().await {
            let why = format!(
                "failed to store the agent's note, so the operation does not start: {}",
                chain(&error)
            );
            return self.settle(deadline, Outcome::Later(why)).await;
        }
        let outcome = self.act(order, deadline).await;
        self.settle(deadline, outcome).await
    }

    /// Carries out the act. A stop of the agent does not wait for a long act, and the next agent inspects its
    /// result.
    async fn act(&mut self, order: &Order, deadline: Timestamp) -> Outcome {
        let (shutdown, beat) = (self.shutdown.clone(), self.beat.clone());
        match &order.task {
            Work::Reboot(_) => self.reboot().await,
            Work::Shutdown(_) => self.shut_down().await,
            Work::RestartService { unit, place } => tokio::select! {
                outcome = self.restart(unit, *place, deadline) => outcome,
                () = shutdown.cancelled() => Outcome::Interrupted,
                never = beat.beating() => match never {},
            },
            Work::PacketCapture(capture) => tokio::select! {
                outcome = self.capture(capture) => outcome,
                () = shutdown.cancelled() => Outcome::Interrupted,
                never = beat.beating() => match never {},
            },
            Work::ApplyConfiguration { .. } => Outcome::Ready,
        }
    }

    async fn inspect(&mut self, order: &Order, started: Timestamp, deadline: Timestamp) -> Outcome {
        match &order.task {
            Work::RestartService { unit, place } => {
                self.inspect_restart(unit, *place, started, deadline).await
            }
            Work::PacketCapture(_) => self.inspect_capture(deadline).await,
            // The plan selects no other task.
            Work::Reboot(_) | Work::Shutdown(_) | Work::ApplyConfiguration { .. } => Outcome::Interrupted,
        }
    }

    /// Continues after an effect.
    async fn settle(&mut self, deadline: Timestamp, outcome: Outcome) -> Option<Duration> {
        match outcome {
            Outcome::End(end) => {
                let status = self.running.as_ref().and_then(|running| running.object.status.as_ref());
                let uncordon = progress::is_cordoned(status).then(|| cleaned_until(deadline));
                self.finish(Finish { end, uncordon }).await
            }
            Outcome::Accepted => {
                if let Some(running) = &mut self.running {
                    running.accepted = true;
                }
                Some(Duration::ZERO)
            }
            Outcome::Ready => Some(Duration::ZERO),
            Outcome::Later(why) => {
                if let Some(running) = &mut self.running {
                    running.waits = true;
                }
                self.tell(&why).await;
                Some(RETRY_DELAY)
            }
            Outcome::Interrupted => Some(RETRY_DELAY),
        }
    }
}
