//! The loop: takes the Machine's operations, one at a time, and writes how they go. `plan` decides, this does it.
//!
//! What is written to the object or noted on disk comes before what it announces; whoever is killed in between leaves it to the next
//! agent. A stop interrupts what may be begun again, and waits for an answer that is being written. Called by `service`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_process::exit::chain;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::apply::Configuration;
use super::kubelet::NodeApi;
use super::ledger::{Ledger, View, WriteOperationError};
use super::note::{Note, Notes, outdated};
use super::order::{Order, Task};
use super::plan::{
    Finish, Next, Observed, Standing, choose, cleaned_until, is_ours, later, next, overtaking,
};
use super::progress::{self, End, executor};
use crate::bus::{BusError, Machines, Power, Units};
use crate::metrics::METRICS;
use crate::service::plan::back_off;

/// Before something is tried again that did not work and may.
pub(super) const AGAIN: Duration = Duration::from_secs(2);
/// The longest wait between two writes that nobody takes.
const MOST: Duration = Duration::from_secs(60);
/// Between two looks at what is awaited.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// Between two messages about one operation.
const TELL: SignedDuration = SignedDuration::from_secs(10);
/// After a stop so long for an answer that is being written.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Tells the time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What operations are carried out with.
#[derive(Clone)]
pub struct Parts {
    /// Our Machine, whose name is the Node's too.
    pub machine: MachineName,
    /// The kernel's boot id.
    pub boot_id: String,
    /// The time.
    pub clock: Clock,
    /// Where status is written.
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
    /// The selected version, and what runs.
    pub configuration: Arc<dyn Configuration>,
    /// Where captures are kept: `/var/lib/bedplate/captures`.
    pub captures: PathBuf,
}

/// How an effect has ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The operation is over.
    End(End),
    /// The end of this boot was asked for, and accepted.
    Accepted,
    /// Ready for the act itself; or nothing was done, and it may be tried again at once.
    Ready,
    /// Nothing was done: try again later. Why, for a person.
    Later(String),
    /// The agent stops, or nobody wants it any more.
    Interrupted,
}

/// An operation that is under way.
pub(super) struct Running {
    pub(super) object: Arc<MachineOperation>,
    /// This process has asked for the end of this boot, and it was accepted.
    accepted: bool,
    /// Nothing of it is done, it waits for something else.
    waits: bool,
    /// How it ends, once that is known.
    finish: Option<Finish>,
    told: Timestamp,
}

impl Running {
    fn of(object: Arc<MachineOperation>) -> Self {
        Self { object, accepted: false, waits: false, finish: None, told: Timestamp::MIN }
    }
}

/// Carries operations out.
pub(super) struct Runner {
    pub(super) parts: Parts,
    pub(super) views: watch::Receiver<View>,
    pub(super) shutdown: CancellationToken,
    notes: Vec<Note>,
    /// UIDs of what was ended here, as long as it is seen as it was before.
    ended: BTreeSet<String>,
    pub(super) running: Option<Running>,
    /// The Node may be cordoned for an operation that nobody carries out any more: see `sweep`.
    pub(super) sweep: bool,
    /// Writes in a row that found nobody to take them, and until when none is tried.
    unwritten: u32,
    write_again: Option<Instant>,
}

/// Carries operations out until `shutdown`.
pub async fn run(parts: Parts, views: watch::Receiver<View>, shutdown: CancellationToken) {
    let Some(mut runner) = Runner::begin(parts, views, shutdown.clone()).await else { return };
    loop {
        let again = runner.turn().await;
        if shutdown.is_cancelled() {
            break;
        }
        let pause = async {
            match again {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            changed = runner.views.changed() => if changed.is_err() { break },
            () = shutdown.cancelled() => break,
        }
    }
    runner.last_words().await;
}

impl Runner {
    /// Reads the notes; until that works nothing is done.
    async fn begin(parts: Parts, views: watch::Receiver<View>, shutdown: CancellationToken) -> Option<Self> {
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
                        sweep: true,
                        unwritten: 0,
                        write_again: None,
                    });
                }
                Err(error) => tracing::warn!(error = chain(&error), "cannot read the notes on operations"),
            }
            tokio::select! {
                () = sleep(AGAIN * 15) => {}
                () = shutdown.cancelled() => return None,
            }
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.parts.clock)()
    }

    /// One act; when the next one is due, none: when something changes.
    pub(super) async fn turn(&mut self) -> Option<Duration> {
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
                    "an operation is taken"
                );
                self.write(&object, status).await
            }
            Next::Begin(order, deadline) => self.carry_out(&order, deadline).await,
            Next::Inspect(order, deadline) => {
                let begun = note.map_or(deadline, |note| note.begun);
                let outcome = self.inspect(&order, begun, deadline).await;
                self.settle(deadline, outcome).await
            }
            Next::AwaitEnd(until) => {
                let left = until.duration_since(self.now());
                Some(Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(10)))
            }
            Next::Finish(finish) => self.finish(finish).await,
        }
    }

    /// Which operation is under way: the one that was, as long as it is there and not over; else the next.
    fn look(&mut self, view: &View) {
        let machine = self.parts.machine.as_str();
        if let Some(running) = &self.running {
            let uid = &running.object.metadata.uid;
            let seen = view.operations.iter().find(|one| one.metadata.uid == *uid);
            let gone = view.complete && seen.is_none_or(|seen| !is_ours(seen, machine));
            // Of a Machine that is another host's by now nothing is begun, and of what was not begun nothing goes on.
            let lost = view.standing == Standing::Unknown && !running.accepted && running.finish.is_none();
            // What somebody else has ended, or taken away, is not ended by us; what is only seen late is.
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
                "an operation under way was ended or removed by somebody else"
            );
            self.running = None;
        }
        let uid = |one: &MachineOperation| one.metadata.uid.clone().unwrap_or_default();
        self.ended.retain(|ended| view.operations.iter().any(|one| uid(one) == *ended));
        let open: Vec<_> =
            view.operations.iter().filter(|one| !self.ended.contains(&uid(one))).cloned().collect();
        self.running = choose(&open, machine, view.standing).map(Arc::clone).map(Running::of);
    }

    /// Whether the operation under way is still wanted: nobody has removed or ended it.
    pub(super) fn is_wanted(&self) -> bool {
        let Some(running) = &self.running else { return false };
        let view = self.views.borrow();
        let seen = view.operations.iter().find(|one| one.metadata.uid == running.object.metadata.uid);
        !view.complete || seen.is_some_and(|seen| is_ours(seen, self.parts.machine.as_str()))
    }

    async fn carry_out(&mut self, order: &Order, deadline: Timestamp) -> Option<Duration> {
        let prepared = match &order.task {
            Task::Reboot(drain) | Task::Shutdown(drain) => self.prepare_power(*drain, deadline).await,
            Task::RestartService { unit, place } => self.prepare_restart(unit, *place).await,
            Task::PacketCapture(capture) => self.prepare_capture(capture).await,
            Task::ApplyConfiguration { disruption } => self.apply(*disruption, deadline).await,
        };
        if !matches!(prepared, Outcome::Ready) {
            return self.settle(deadline, prepared).await;
        }
        let object = Arc::clone(&self.running.as_ref()?.object);
        // Nobody else has ended it meanwhile: this write would be refused.
        let again = self.write(&object, progress::under_way(object.status.as_ref(), "begun")).await;
        if again != Some(Duration::ZERO) {
            return again;
        }
        if let Err(error) = self.note_begun().await {
            let why = format!(
                "the agent's note cannot be kept, and without it nothing is begun: {}",
                chain(&error)
            );
            return self.settle(deadline, Outcome::Later(why)).await;
        }
        let outcome = self.act(order, deadline).await;
        self.settle(deadline, outcome).await
    }

    /// The act itself. A stop does not wait for what takes long: the next agent looks what came of it.
    async fn act(&mut self, order: &Order, deadline: Timestamp) -> Outcome {
        let shutdown = self.shutdown.clone();
        match &order.task {
            Task::Reboot(_) => self.reboot().await,
            Task::Shutdown(_) => self.shut_down().await,
            Task::RestartService { unit, place } => tokio::select! {
                outcome = self.restart(unit, *place, deadline) => outcome,
                () = shutdown.cancelled() => Outcome::Interrupted,
            },
            Task::PacketCapture(capture) => tokio::select! {
                outcome = self.capture(capture) => outcome,
                () = shutdown.cancelled() => Outcome::Interrupted,
            },
            Task::ApplyConfiguration { .. } => Outcome::Ready,
        }
    }

    async fn inspect(&mut self, order: &Order, begun: Timestamp, deadline: Timestamp) -> Outcome {
        match &order.task {
            Task::RestartService { unit, place } => self.inspect_restart(unit, *place, begun, deadline).await,
            Task::PacketCapture(_) => self.inspect_capture(deadline).await,
            // The plan asks for no other.
            Task::Reboot(_) | Task::Shutdown(_) | Task::ApplyConfiguration { .. } => Outcome::Interrupted,
        }
    }

    /// Goes on after an effect.
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
                Some(AGAIN)
            }
            Outcome::Interrupted => Some(AGAIN),
        }
    }

    /// Says what is being done or awaited, not too often.
    pub(super) async fn tell(&mut self, message: &str) {
        let now = self.now();
        let Some(running) = &mut self.running else { return };
        let object = Arc::clone(&running.object);
        let same = object.status.as_ref().is_some_and(|status| status.message.as_deref() == Some(message));
        if same || (running.told <= now && now < later(running.told, TELL)) {
            return;
        }
        running.told = now;
        self.write(&object, progress::under_way(object.status.as_ref(), message)).await;
    }

    /// Writes a status; zero if it was written, else when to look again.
    pub(super) async fn write(
        &mut self,
        object: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Option<Duration> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let held = self.write_again.and_then(|again| again.checked_duration_since(Instant::now()));
        if let Some(left) = held.filter(|left| !left.is_zero() && !self.shutdown.is_cancelled()) {
            return Some(left);
        }
        let written = self.parts.ledger.write(object, status).await;
        self.write_again = None;
        let running =
            self.running.as_mut().filter(|running| running.object.metadata.uid == object.metadata.uid);
        match written {
            Ok(object) => {
                self.unwritten = 0;
                if let Some(running) = running {
                    running.object = object;
                }
                return Some(Duration::ZERO);
            }
            Err(WriteOperationError::Conflict(now)) => {
                tracing::debug!(
                    operation = name,
                    "an operation was written by somebody else: looking at it anew"
                );
                if let Some(running) = running {
                    running.object = Arc::from(now);
                }
            }
            Err(error @ WriteOperationError::Later(_)) => {
                self.unwritten = self.unwritten.saturating_add(1);
                let wait = back_off(self.unwritten.saturating_add(1), MOST, rand::random());
                self.write_again = Some(Instant::now() + wait);
                let wait_seconds = wait.as_secs();
                tracing::warn!(
                    operation = name,
                    error = chain(&error),
                    wait_seconds,
                    "an operation waits to be written"
                );
                return Some(wait);
            }
            Err(error @ (WriteOperationError::Gone | WriteOperationError::Refused(_))) => {
                tracing::warn!(operation = name, error = chain(&error), "an operation cannot be written");
                self.running = None;
                return Some(AGAIN * 15);
            }
        }
        Some(AGAIN)
    }

    /// Whether a note says that this operation has shut the host down.
    pub(super) fn has_shut_down(&self, uid: &str) -> bool {
        let end = self.notes.iter().find(|note| note.uid == uid).and_then(|note| note.end.as_ref());
        end.is_some_and(|end| end.complete && end.reason == progress::SHUT_DOWN)
    }

    /// Whether a note says that the operation under way was begun.
    pub(super) fn is_begun(&self) -> bool {
        let uid = self.running.as_ref().and_then(|running| running.object.metadata.uid.as_deref());
        self.notes.iter().any(|note| Some(note.uid.as_str()) == uid)
    }

    /// Notes that the operation under way is begun. One that is noted stays as it is.
    pub(super) async fn note_begun(&mut self) -> std::io::Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        if self.is_begun() {
            return Ok(());
        }
        let metadata = &running.object.metadata;
        let note = Note {
            uid: metadata.uid.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            boot_id: self.parts.boot_id.clone(),
            begun: self.now(),
            end: None,
        };
        self.keep(note).await
    }

    /// Keeps a note, on disk and here.
    async fn keep(&mut self, note: Note) -> std::io::Result<()> {
        self.parts.notes.put(&note).await?;
        self.notes.retain(|known| known.uid != note.uid);
        self.notes.push(note);
        Ok(())
    }

    /// Ends an operation: the Node is given free, the end is noted, then it is told.
    async fn finish(&mut self, finish: Finish) -> Option<Duration> {
        let running = self.running.as_mut()?;
        let object = Arc::clone(&running.object);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        running.finish = Some(finish.clone());
        let Finish { mut end, uncordon } = finish;
        if let Some(until) = uncordon
            && let Err(why) = self.uncordon(&uid).await
        {
            if self.now() < until && !self.shutdown.is_cancelled() {
                self.tell(&format!("{}; the Node is not given free yet: {why}", end.message)).await;
                return Some(AGAIN);
            }
            let node = &self.parts.machine;
            end.message =
                format!("{}; the Node may still be cordoned ({why}): `kubectl uncordon {node}`", end.message);
            if end.complete {
                end = End::failed("NotUncordoned", end.message);
            }
        }
        if let Some(running) = &mut self.running {
            running.finish = Some(Finish::plain(end.clone()));
        }
        if let Some(known) = self.notes.iter().find(|note| note.uid == uid && note.end.is_none()).cloned()
            && let Err(error) = self.keep(Note { end: Some(end.clone()), ..known }).await
        {
            tracing::warn!(
                operation = object.metadata.name,
                error = chain(&error),
                "the end of an operation is not noted"
            );
        }
        let by = executor(self.parts.machine.as_str());
        let status = progress::ended(object.status.as_ref(), &end, &by, self.now());
        let written = self.write(&object, status).await;
        if written == Some(Duration::ZERO) {
            tracing::info!(
                operation = object.metadata.name,
                kind = object.spec.operation_name,
                complete = end.complete,
                reason = end.reason,
                message = end.message,
                "an operation has ended"
            );
            METRICS.operation(&object.spec.operation_name, end.complete);
            self.running = None;
            self.ended.insert(uid);
        }
        written
    }

    /// Those that are not begun because the Machine is paused say so.
    async fn tell_paused(&mut self, view: &View) {
        if view.standing != Standing::Paused {
            return;
        }
        for operation in &view.operations {
            let observed = Observed {
                now: self.now(),
                machine: self.parts.machine.as_str(),
                boot_id: &self.parts.boot_id,
                standing: view.standing,
                operation,
                note: None,
                accepted: false,
            };
            if let Next::Wait { reason, message } = next(&observed) {
                self.write(operation, progress::waits(operation.status.as_ref(), reason, &message)).await;
            }
        }
    }

    /// Removes notes whose objects are gone for long.
    async fn forget(&mut self, view: &View) {
        if !view.complete || self.notes.is_empty() {
            return;
        }
        let open = view.operations.iter().filter_map(|one| one.metadata.uid.as_deref());
        let objects: Vec<&str> = open.chain(view.ended.keys().map(String::as_str)).collect();
        for uid in outdated(&self.notes, &objects, self.now()) {
            match self.parts.notes.remove(&uid).await {
                Ok(()) => self.notes.retain(|note| note.uid != uid),
                Err(error) => {
                    tracing::warn!(uid, error = chain(&error), "a note on an operation is not removed");
                }
            }
        }
    }

    /// The host goes down: what is known is told, if that is quick.
    async fn last_words(&mut self) {
        let said = tokio::time::timeout(LAST_WORDS, async {
            while self.running.as_ref().is_some_and(|running| running.finish.is_some() || running.accepted) {
                match self.turn().await {
                    Some(Duration::ZERO) => {}
                    Some(pause) if pause <= AGAIN => sleep(pause).await,
                    Some(_) | None => break,
                }
            }
        });
        if said.await.is_err() {
            tracing::debug!("an operation's end is told by the next agent");
        }
    }
}

/// The end of an operation that a bus would not do.
pub(super) fn bus_end(error: &BusError) -> End {
    let reason = match error {
        BusError::Away { .. } | BusError::NoAccess { .. } | BusError::NotALeader { .. } => "DBusUnavailable",
        BusError::NoAnswer { .. } | BusError::JobHangs { .. } => "TimedOut",
        BusError::NoUnit { .. } => "ServiceNotFound",
        BusError::NoService { .. } => "NotSupported",
        BusError::Inhibited { .. } => "Inhibited",
        BusError::Refused { .. } => "Refused",
        BusError::Unexpected { .. } => "ProtocolError",
    };
    End::failed(reason, chain(error))
}

/// Before an act: trouble that may pass is waited for, any other is the end.
pub(super) fn before_act(error: &BusError) -> Outcome {
    if error.is_transient() { Outcome::Later(chain(error)) } else { Outcome::End(bus_end(error)) }
}
