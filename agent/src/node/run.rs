//! The node's loop: observe, plan, carry one step out, report.
//!
//! ```text
//!   cluster changed ─┐
//!   a slot's unit ───┼─► observe ─► plan ─┬─ Do(step) ─► apply ─┐
//!   timer ───────────┘      ▲             └─ Wait ─► sleep ─────┤
//!                           └───────────────────────────────────┘
//! ```
//! The idle loop does not poll, with one exception: a control plane for which another version
//! is selected asks etcd each minute, because etcd does not report changes of its members.
//! During a trial the loop polls each second, because the trial's progress is inside the
//! slot. Called by `service`, concurrently with the loop that enrolls and reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_api::reason::machine::PavedReason;
use bedplate_process::exit::chain;
use bedplate_process::liveness::{Beat, Pulse};
use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::apply::{ApplyError, allow_again, forget_left_access, take_back_left};
use super::attempt::{Attempts, key};
use super::effects::Parts;
use super::observe::{Probed, Sight, observe, on_trial, watched};
use super::observe_claim::ClaimMemory;
use super::plan::{is_timed, plan};
use super::report::{Trouble, describe, node_status};
use super::status_file::{NodeStanding, Planned};
use super::trial::TrialTime;
use crate::bus::Changes;
use crate::fault::explained;
use crate::metrics::{METRICS, Went};
use crate::model::{Act, Annotations, Api, Plan, Record, Stage, Step};
use crate::plane::{ConditionReport, NodeStatusReport, Seen, Truth};
use crate::slot::paths::service;
use confirm::apply_confirmed;

/// Poll interval during a trial.
const TRIAL_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum sleep before an event at a wall-clock time, because the clock may be set meanwhile.
const MAX_STRETCH: Duration = Duration::from_secs(30);
/// Delay before the next turn after a failed observation, and before the next
/// subscription to systemd's changes.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Reasons of a wait that no change ends: the node is polled.
const POLLED: [PavedReason; 2] = [PavedReason::Joining, PavedReason::CheckingHealth];

/// State of the loop between two turns. All of it can be lost.
pub(crate) struct NodeLoop {
    parts: Parts,
    run_directory: PathBuf,
    wake: Arc<Notify>,
    seen: watch::Receiver<Seen>,
    changes: Option<Changes>,
    probed: Option<Probed>,
    trial: TrialTime,
    attempts: Attempts,
    trouble: Option<(String, Trouble)>,
    /// Facts about the claim of the host.
    claim: ClaimMemory,
    /// True if the last write of the version's annotations failed.
    not_annotated: bool,
    standing: NodeStanding,
    /// Last report to the cluster.
    reported: Option<NodeStatusReport>,
    /// An image may take an hour: its progress is a sign that the step moves.
    beat: Beat,
}

/// Pause after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// The next turn.
    None,
    /// Sleep until the next change, limited by this time.
    AtMost(Duration),
    /// Sleep until the next change.
    Open,
}

impl NodeLoop {
    /// Creates the loop over these parts. `wake` starts a turn; state is written to `run_directory`.
    pub(crate) fn new(parts: Parts, run_directory: PathBuf, wake: Arc<Notify>) -> Self {
        let seen = parts.decider.seen();
        let standing = NodeStanding::read(&run_directory).ok().flatten().unwrap_or_default();
        let trial = TrialTime::read(&run_directory);
        Self {
            parts,
            run_directory,
            wake,
            seen,
            changes: None,
            probed: None,
            trial,
            attempts: Attempts::default(),
            trouble: None,
            claim: ClaimMemory::default(),
            not_annotated: false,
            standing,
            reported: None,
            beat: Beat::unwatched(),
        }
    }

    /// Runs until `shutdown`. Jobs of systemd continue after that.
    pub(crate) async fn run(mut self, pulse: Pulse, shutdown: CancellationToken) {
        self.beat = pulse.handle();
        let turns = async {
            take_back_left(&self.parts).await;
            forget_left_access(&self.parts);
            Task::new(pulse).run(&mut self, shutdown.clone()).await;
        };
        tokio::select! {
            () = turns => {}
            () = shutdown.cancelled() => {}
        }
    }

    /// Observes, plans, and carries one step out.
    async fn advance(&mut self) -> Pause {
        self.seen.mark_unchanged();
        let now = Timestamp::now();
        if let Some(pause) = self.advance_claim(now).await {
            return pause;
        }
        let mut sight = match observe(&self.parts, self.probed.as_ref(), now).await {
            Ok(sight) => sight,
            Err(error) => {
                return self.note_fault(error.reason(), format!("observe: {}", explained(&error)));
            }
        };
        let trial = on_trial(&sight.observed.slots);
        let api = if is_timed(&sight.observed) { Api::Live } else { Api::Away };
        sight.observed.not_counted = self.trial.look(trial, api, now, Instant::now());
        if let Err(error) = self.trial.write(&self.run_directory) {
            tracing::warn!(%error, "failed to store the elapsed time of a trial");
        }
        if sight.observed.annotations == Annotations::Due && self.not_annotated {
            sight.observed.annotations = Annotations::Failing;
        }
        match self.forgive(&sight).await {
            Ok(false) => {}
            Ok(true) => return Pause::None,
            Err(error) => self.note_error(&chain(&error), Some(RETRY_DELAY)),
        }
        let planned = plan(&sight.observed);
        let look = trial.map(|_| TRIAL_POLL_INTERVAL);
        match planned {
            Plan::Wait(ref wait) => {
                self.trouble = None;
                self.say(&sight, &planned, None, wait.until);
                let until = wait.until.map(|until| left(now, until).min(MAX_STRETCH));
                // Every other change wakes this loop.
                let look = look.filter(|_| POLLED.contains(&wait.reason));
                match (until, look) {
                    (Some(until), Some(look)) => Pause::AtMost(until.min(look)),
                    (Some(one), None) | (None, Some(one)) => Pause::AtMost(one),
                    (None, None) => Pause::Open,
                }
            }
            Plan::Do(ref step) => {
                let template = template(&sight, step);
                let key = key(step, &template);
                if let Some(until) = self.attempts.held(&key, Instant::now()) {
                    let wait = until.saturating_duration_since(Instant::now());
                    let next = after(now, wait);
                    self.say(&sight, &planned, None, Some(next));
                    return Pause::AtMost(look.map_or(wait, |look| wait.min(look)));
                }
                self.carry_out(&sight, &planned, step, &key).await;
                Pause::None
            }
        }
    }

    /// A version that failed here may be tried again once another one is selected.
    async fn forgive(&self, sight: &Sight) -> Result<bool, ApplyError> {
        let observed = &sight.observed;
        let selected = observed.machine.as_ref().filter(|machine| machine.ours && observed.api == Api::Live);
        let Some(selected) = selected.and_then(|machine| machine.selected.as_ref()) else { return Ok(false) };
        let other = observed.refused.iter().find(|refused| *refused != selected);
        let Some(other) = other else { return Ok(false) };
        allow_again(&self.parts, other).await?;
        Ok(true)
    }

    async fn carry_out(&mut self, sight: &Sight, planned: &Plan, step: &Step, key: &str) {
        self.say(sight, planned, None, None);
        let started = Instant::now();
        let (reported, mut progress) = watch::channel(None);
        let say = move |text: String| {
            reported.send_replace(Some(text));
        };
        let (cancel, now) = (CancellationToken::new(), Timestamp::now());
        // An image may take an hour: the node is looked after meanwhile.
        let node = running_node(sight).filter(|_| matches!(step.act, Act::PrepareSlot { .. }));
        if node.is_some() {
            self.watch_units().await;
        }
        let parts = self.parts.clone();
        let applying = apply_confirmed(&parts, step, sight, now, &cancel, &say);
        tokio::pin!(applying);
        let result = loop {
            tokio::select! {
                // The progress of a step is reported before the step is canceled.
                biased;
                result = &mut applying => break result,
                Ok(()) = progress.changed() => {
                    self.beat.beat();
                    let text = progress.borrow().clone();
                    self.say(sight, planned, text.as_deref(), None);
                }
                kept = next_change(&mut self.changes), if node.is_some() && !cancel.is_cancelled() => {
                    if !kept {
                        self.changes = None;
                    }
                    if let Some(node) = &node && has_ended(&self.parts, *node).await {
                        cancel.cancel();
                    }
                }
                changed = self.seen.changed(), if !cancel.is_cancelled() => {
                    if changed.is_err() || is_superseded(&self.parts.seen(), step) {
                        cancel.cancel();
                    }
                }
            }
        };
        self.settle(sight, planned, step, key, started, result);
    }

    /// Notes how a step went.
    fn settle(
        &mut self,
        sight: &Sight,
        planned: &Plan,
        step: &Step,
        key: &str,
        started: Instant,
        result: Result<(), ApplyError>,
    ) {
        let (name, slot) = (step.act.name(), crate::slot::paths::letter(step.slot));
        let version = version(sight, step);
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let (Step { slot, act: Act::ProbeSandbox }, Some(since)) = (step, trial_since(sight, step)) {
            let failure = result.as_ref().err().map(|error| explained(error));
            self.probed = Some(Probed { slot: *slot, since, failure });
        }
        if matches!(step.act, Act::AnnotateNode { .. }) {
            self.not_annotated = result.is_err();
        }
        self.attempts.tried(key, Instant::now(), rand::random());
        count(step, &result, started.elapsed());
        match result {
            Ok(()) => {
                tracing::info!(step = name, slot, version, duration_ms, result = "done", "node step");
                self.trouble = None;
            }
            Err(ApplyError::Superseded(why)) => {
                tracing::info!(step = name, slot, version, duration_ms, result = why, "node step");
            }
            Err(error) => {
                let text = explained(&error);
                let times = self.attempts.times(key);
                let wait = self.attempts.held(key, Instant::now());
                let wait = wait.map(|until| until.saturating_duration_since(Instant::now()));
                let wait_ms = wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
                tracing::warn!(
                    step = name,
                    slot,
                    version,
                    duration_ms,
                    times,
                    wait_ms,
                    error = text,
                    result = "failed",
                    "node step"
                );
                let message = format!("{}: {text}", describe(step));
                self.trouble = error.reason().map(|reason| (key.to_owned(), Trouble { reason, message }));
                self.note_error(&format!("{name} slot {slot}: {text}"), wait);
                self.say(sight, planned, None, self.standing.next_try);
            }
        }
    }

    /// Reports the state: to the cluster, and in the file.
    fn say(&mut self, sight: &Sight, planned: &Plan, progress: Option<&str>, next_try: Option<Timestamp>) {
        let trouble = match planned {
            Plan::Do(step) => {
                let key = key(step, &template(sight, step));
                self.trouble.as_ref().filter(|(of, _)| *of == key).map(|(_, trouble)| trouble)
            }
            Plan::Wait(_) => None,
        };
        let node = node_status(sight, planned, progress, trouble);
        METRICS.node(sight.observed.api, &node.slots);
        let before = self.standing.clone();
        self.standing.refused.clone_from(&sight.ledger.refused);
        self.standing.rolled_back.clone_from(&sight.ledger.rolled_back);
        self.standing.failures = sight.ledger.failures;
        let plan = Planned::from(planned);
        self.stand(plan, &sight.seen, node, sight.observed.now, (progress, next_try), &before);
    }

    /// Publishes the state of the node. `before`: content of the file.
    fn stand(
        &mut self,
        plan: Planned,
        seen: &Seen,
        node: NodeStatusReport,
        now: Timestamp,
        (progress, next_try): (Option<&str>, Option<Timestamp>),
        before: &NodeStanding,
    ) {
        let standing = &mut self.standing;
        if standing.plan.step != plan.step || standing.plan.wait != plan.wait {
            standing.since = Some(now);
            let what = plan.step.as_deref().or(plan.wait.as_deref()).unwrap_or_default();
            tracing::info!(plan = what, why = plan.message, "node plan");
        }
        standing.plan = plan;
        standing.progress = progress.map(str::to_owned);
        standing.seen = seen.describe();
        standing.slots.clone_from(&node.slots);
        standing.next_try = next_try;
        self.reported = Some(node.clone());
        self.parts.report_node(node);
        if *before != self.standing {
            self.write_standing();
        }
    }

    /// Reports that the host cannot be observed. The rest of the report stays,
    /// because it may still be correct.
    fn note_fault(&mut self, reason: PavedReason, text: String) -> Pause {
        self.note_error(&text, Some(RETRY_DELAY));
        if let Some(reported) = &mut self.reported {
            reported.paved = Some(ConditionReport { status: Truth::Unknown, reason, message: text });
            self.parts.report_node(reported.clone());
        }
        Pause::AtMost(RETRY_DELAY)
    }

    fn note_error(&mut self, text: &str, wait: Option<Duration>) {
        if self.standing.last_error.as_deref() != Some(text) {
            tracing::warn!(error = text, "node loop failed to observe the host, retrying");
        }
        let now = Timestamp::now();
        self.standing.last_error = Some(text.to_owned());
        self.standing.last_error_time = Some(now);
        self.standing.next_try = wait.map(|wait| after(now, wait));
        self.write_standing();
    }

    fn write_standing(&self) {
        if let Err(error) = self.standing.write(&self.run_directory) {
            tracing::warn!(%error, "failed to write the node status file");
        }
    }

    /// Subscribes to systemd's changes. Returns the delay before the next attempt if that fails.
    async fn watch_units(&mut self) -> Option<Duration> {
        if self.changes.is_some() {
            return None;
        }
        let units = watched().ok()?;
        match self.parts.units.changes(&units).await {
            Ok(changes) => {
                self.changes = Some(changes);
                // Changes before the subscription were not reported: the loop observes again.
                Some(Duration::ZERO)
            }
            Err(error) => {
                self.note_error(&chain(&error), Some(RETRY_DELAY));
                Some(RETRY_DELAY)
            }
        }
    }
}

impl Reconcile for NodeLoop {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        tokio::select! {
            kept = next_change(&mut self.changes) => {
                if !kept {
                    self.changes = None;
                }
            }
            () = self.wake.notified() => {}
            // The sender is gone, because the process ends.
            changed = self.seen.changed() => if changed.is_err() { std::future::pending().await },
        }
        Some(())
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let limit = match self.advance().await {
            Pause::None => return Turn::At(Instant::now().into()),
            Pause::AtMost(limit) => Some(limit),
            Pause::Open => None,
        };
        let again = self.watch_units().await;
        let limit = [limit, again].into_iter().flatten().min();
        limit.map_or(Turn::Idle, |limit| Turn::At((Instant::now() + limit).into()))
    }
}

/// The slot that is the node and runs.
fn running_node(sight: &Sight) -> Option<SlotName> {
    SlotName::ALL.into_iter().find(|slot| {
        let seen = &sight.observed.slots[*slot];
        seen.runs && matches!(&seen.record, Some(Record { stage: Stage::Applied { .. }, .. }))
    })
}

/// Returns true if systemd reports that the slot does not run.
async fn has_ended(parts: &Parts, slot: SlotName) -> bool {
    let Ok(unit) = service(slot).parse() else { return false };
    parts.units.state(&unit).await.is_ok_and(|state| state.active.is_down())
}

/// Waits until a unit has changed. Returns false if the subscription ended.
/// Waits forever without a subscription.
async fn next_change(changes: &mut Option<Changes>) -> bool {
    match changes {
        Some(changes) => changes.next().await.is_ok(),
        None => std::future::pending().await,
    }
}

/// Counts a step in the metrics.
fn count(step: &Step, result: &Result<(), ApplyError>, took: Duration) {
    let went = match result {
        Ok(()) => Went::Done,
        Err(ApplyError::Superseded(_)) => Went::Pending,
        Err(_) => Went::Failed,
    };
    METRICS.step(step.act.label(), went, took);
    if let (Act::Fail { back_to, .. }, Went::Done) = (&step.act, went) {
        METRICS.gate_failed(back_to.is_some());
    }
}

fn after(time: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    time.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

fn left(now: Timestamp, until: Timestamp) -> Duration {
    // Never zero: the plan has decided that the time has not come yet.
    Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO).max(Duration::from_millis(10))
}

fn trial_since(sight: &Sight, step: &Step) -> Option<Timestamp> {
    match sight.observed.slots[step.slot].record.as_ref()?.stage {
        Stage::Trial { since, .. } => Some(since),
        _ => None,
    }
}

/// Returns the version of a step: the next one, otherwise the one in the slot.
fn template(sight: &Sight, step: &Step) -> String {
    let of_slot = || sight.observed.slots[step.slot].record.as_ref().map(|r| r.template.clone());
    let to_come = || sight.observed.version.as_ref().map(|version| version.template.clone());
    let of = if matches!(step.act, Act::PrepareSlot { .. }) { to_come() } else { of_slot() };
    of.unwrap_or_default()
}

fn version(sight: &Sight, step: &Step) -> String {
    let of_slot = || sight.observed.slots[step.slot].record.as_ref().map(|r| r.version.clone());
    let of = if let Act::PrepareSlot { version } = &step.act { Some(version.clone()) } else { of_slot() };
    of.as_ref().map(VersionRef::version_name).unwrap_or_default()
}

/// Returns true if a long step became obsolete meanwhile.
fn is_superseded(seen: &Seen, step: &Step) -> bool {
    let Act::PrepareSlot { version } = &step.act else { return false };
    if seen.api != Api::Live {
        return false;
    }
    let Some(machine) = seen.machine_facts() else { return true };
    let held = !machine.ours || machine.paused || machine.deleting || machine.claimed_by.is_some();
    held || machine.selected.as_ref() != Some(version)
}

mod claim;
mod confirm;
#[cfg(test)]
mod tests;
