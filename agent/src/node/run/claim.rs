//! Turn of the node's loop on a host of a pool: observe, plan by `plan::claim`, carry one step out, report.
//!
//! The loop acts for claims while the host holds one, or while its Machine is in a pool. Otherwise the ordinary turn decides. A slot of a
//! node that no claim has selected stays with the ordinary turn. Called by `run`.

use std::time::{Duration, Instant};

use bedplate_api::reason::machine::PavedReason;
use bedplate_process::backoff::Backoff;
use bedplate_process::counter::Label as _;
use bedplate_process::exit::chain;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{MAX_STRETCH, NodeLoop, Pause, RETRY_DELAY, TRIAL_POLL_INTERVAL, after, left};
use crate::fault::explained;
use crate::metrics::{METRICS, Went};
use crate::model::Api;
use crate::node::apply::ApplyError;
use crate::node::apply::claim::{ClaimAct, ClaimDone, is_superseded};
use crate::node::claim_record::{ClaimRecord, ClaimStage};
use crate::node::claim_report::{machine_status, paved};
use crate::node::observe_claim::{
    AskedAdmission, CLAIM_SLOT, ClaimSight, WrittenReport, is_for_claims, observe_claim,
};
use crate::node::plan::claim::{ClaimPlan, ClaimReport, ClaimStep, Pending, plan_claim};
use crate::node::report::{Trouble, slot_states};
use crate::node::status_file::Planned;
use crate::plane::NodeStatusReport;

/// Delay after a report that failed.
const REPORT_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Maximum delay between two reads of the Secret: the right to read it exists for a short time only.
const MAX_SECRET_DELAY: Duration = Duration::from_secs(10);
/// Time for which an answer about a configuration counts.
const ADMISSION_INTERVAL: Duration = Duration::from_secs(60);

impl NodeLoop {
    /// Carries out one turn for claims. None: the ordinary turn decides.
    pub(super) async fn advance_claim(&mut self, now: Timestamp) -> Option<Pause> {
        if let Err(error) = self.read_claim_record().await {
            let text = format!("claim.json: {}", explained(&error));
            return Some(self.note_fault(PavedReason::DiskError, text));
        }
        let is_held = self.claim.record().is_some_and(|record| record.stage != ClaimStage::Released);
        // Claims need a cluster: pxed has none.
        let is_standalone = self.parts.home.follows_slot() && !is_held;
        if is_standalone || !is_for_claims(&self.parts.seen(), self.claim.record()) {
            return None;
        }
        self.ask_admission().await;
        let mut sight = match observe_claim(&self.parts, &self.claim, now).await {
            Ok(sight) => sight,
            Err(error) => {
                let text = format!("observe: {}", explained(&error));
                return Some(self.note_fault(error.reason(), text));
            }
        };
        // The time of an ordinary trial is the ordinary turn's.
        if is_held {
            sight.observed.not_counted = self.not_counted(&sight, now);
        }
        let planned = plan_claim(&sight.observed);
        if sight.observed.slot.is_foreign && !is_held {
            if let ClaimPlan::Do(step @ (ClaimStep::Report(_) | ClaimStep::EndRelease)) = &planned {
                self.carry_out_claim(&sight, &planned, step, "foreign").await;
            }
            return None;
        }
        Some(self.follow_claim(&sight, &planned).await)
    }

    async fn follow_claim(&mut self, sight: &ClaimSight, planned: &ClaimPlan) -> Pause {
        let now = sight.observed.now;
        match planned {
            ClaimPlan::Wait { pending, until } => {
                self.trouble = None;
                self.say_claim(sight, planned, None, *until);
                let limits = [
                    until.map(|until| left(now, until).min(MAX_STRETCH)),
                    self.claim.delayed.map(|(_, until)| until.saturating_duration_since(Instant::now())),
                    poll(*pending, sight),
                ];
                limits.into_iter().flatten().min().map_or(Pause::Open, Pause::AtMost)
            }
            ClaimPlan::Do(step) => {
                let key = key(step, sight);
                // The plan itself delays a report that failed.
                let is_delayed = !matches!(step, ClaimStep::Report(_));
                if let Some(until) = self.attempts.held(&key, Instant::now()).filter(|_| is_delayed) {
                    let wait = until.saturating_duration_since(Instant::now());
                    self.say_claim(sight, planned, None, Some(after(now, wait)));
                    return Pause::AtMost(wait);
                }
                self.carry_out_claim(sight, planned, step, &key).await;
                Pause::None
            }
        }
    }

    /// Reads `claim.json` once: no other program writes it.
    async fn read_claim_record(&mut self) -> Result<(), ApplyError> {
        if self.claim.held.is_none() {
            let state = self.parts.slots.places().state.clone();
            let read = tokio::task::spawn_blocking(move || ClaimRecord::read(&state)).await;
            let read = read.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            self.claim.held = Some(read.map_err(|error| ApplyError::Slot(error.into()))?);
        }
        Ok(())
    }

    /// Time of a bootstrap that does not count: its slot was not started yet, or the clock leapt.
    fn not_counted(&mut self, sight: &ClaimSight, now: Timestamp) -> jiff::SignedDuration {
        let bootstrap = sight
            .observed
            .record
            .as_ref()
            .filter(|record| matches!(record.stage, ClaimStage::Bootstrapping { .. }));
        let trial = bootstrap.map(|record| (CLAIM_SLOT, record.since));
        let counts = if sight.observed.slot.runs { Api::Live } else { Api::Away };
        let not_counted = self.trial.look(trial, counts, now, Instant::now());
        if let Err(error) = self.trial.write(&self.run_directory) {
            tracing::warn!(%error, "failed to store the time of a bootstrap");
        }
        not_counted
    }

    /// Asks whether the configuration of the claim may be run for its claimant, while nothing of the claim has run.
    async fn ask_admission(&mut self) {
        let seen = self.parts.seen();
        let is_preparing = |record: &ClaimRecord| record.stage == ClaimStage::Preparing;
        let Some(claim) = seen.claim.present().filter(|_| self.claim.record().is_some_and(is_preparing))
        else {
            return;
        };
        let (name, namespace) = (&claim.spec.configuration_ref.name, &claim.spec.claimant.namespace);
        let is_known = self.claim.admission.as_ref().is_some_and(|asked| {
            (&asked.configuration, &asked.namespace) == (name, namespace)
                && asked.asked.elapsed() < ADMISSION_INTERVAL
        });
        if is_known || seen.api != Api::Live {
            return;
        }
        match self.parts.decider.configuration_allows(name, namespace).await {
            Ok(is_allowed) => {
                let (configuration, namespace) = (name.clone(), namespace.clone());
                let asked = Instant::now();
                self.claim.admission = Some(AskedAdmission { configuration, namespace, is_allowed, asked });
            }
            Err(error) => self.note_error(&explained(&error), Some(RETRY_DELAY)),
        }
    }

    async fn carry_out_claim(
        &mut self,
        sight: &ClaimSight,
        planned: &ClaimPlan,
        step: &ClaimStep,
        key: &str,
    ) {
        self.say_claim(sight, planned, None, None);
        let started = Instant::now();
        let (sender, mut progress) = watch::channel(None);
        let say = move |text: String| {
            sender.send_replace(Some(text));
        };
        let cancel = CancellationToken::new();
        let memory = std::mem::take(&mut self.claim);
        let parts = self.parts.clone();
        let (now, cancel_step) = (Timestamp::now(), &cancel);
        let act = ClaimAct { parts: &parts, sight, memory: &memory, now, cancel: cancel_step, say: &say };
        let result = {
            let applying = act.apply(step);
            tokio::pin!(applying);
            loop {
                tokio::select! {
                    // The progress of a step is reported before the step is canceled.
                    biased;
                    result = &mut applying => break result,
                    Ok(()) = progress.changed() => {
                        self.beat.beat();
                        let text = progress.borrow().clone();
                        self.stand_claim(sight, &memory, planned, text.as_deref(), None);
                    }
                    changed = self.seen.changed(), if !cancel.is_cancelled() => {
                        if changed.is_err() || is_superseded(&self.parts.seen(), &sight.seen) {
                            cancel.cancel();
                        }
                    }
                }
            }
        };
        self.claim = memory;
        self.settle_claim(sight, planned, step, key, started, result);
    }

    /// Notes how a step went.
    fn settle_claim(
        &mut self,
        sight: &ClaimSight,
        planned: &ClaimPlan,
        step: &ClaimStep,
        key: &str,
        started: Instant,
        result: Result<ClaimDone, ApplyError>,
    ) {
        let (name, duration_ms) = (step.label().word(), started.elapsed().as_millis());
        let limit = if *step == ClaimStep::RenderUserData { MAX_SECRET_DELAY } else { Duration::MAX };
        self.attempts.tried_within(key, Instant::now(), rand::random(), limit);
        let went = match &result {
            Ok(ClaimDone::Pending(_)) | Err(ApplyError::Superseded(_)) => Went::Pending,
            Ok(_) => Went::Done,
            Err(_) => Went::Failed,
        };
        METRICS.step(step.label(), went, started.elapsed());
        if let ClaimStep::Report(report) = step {
            self.note_report(sight, report, result.is_ok());
        }
        let times = self.attempts.times(key);
        match result {
            Ok(ClaimDone::Pending(why)) => {
                // It is asked again and again: one line is enough.
                if times == 1 {
                    tracing::info!(step = name, why, result = "pending", "claim step");
                }
                let reason = while_pending(step);
                self.trouble = Some((key.to_owned(), Trouble { reason, message: why }));
                self.say_claim(sight, planned, None, None);
            }
            Ok(done) => {
                tracing::info!(step = name, duration_ms, result = "done", "claim step");
                self.remember(done);
                self.trouble = None;
            }
            Err(ApplyError::Superseded(why)) => {
                tracing::info!(step = name, duration_ms, result = why, "claim step");
            }
            Err(error) => {
                let text = chain(&error);
                tracing::warn!(
                    step = name,
                    duration_ms,
                    times,
                    error = text,
                    result = "failed",
                    "claim step"
                );
                let message = format!("{}: {text}", step.describe());
                self.trouble = error.reason().map(|reason| (key.to_owned(), Trouble { reason, message }));
                let wait = self.attempts.held(key, Instant::now());
                let wait = wait.map(|until| until.saturating_duration_since(Instant::now()));
                self.note_error(&format!("{name}: {text}"), wait);
                self.say_claim(sight, planned, None, self.standing.next_try);
            }
        }
    }

    fn remember(&mut self, done: ClaimDone) {
        match done {
            ClaimDone::Recorded(record) => self.claim.held = Some(Some(record)),
            ClaimDone::Fetched(template, image) => self.claim.fetched = Some((template, image)),
            ClaimDone::Refused(id, refused) => self.claim.refused = Some((id, refused)),
            ClaimDone::Done | ClaimDone::Pending(_) => {}
        }
    }

    fn note_report(&mut self, sight: &ClaimSight, report: &ClaimReport, is_written: bool) {
        if is_written {
            let claim = sight.seen.claim.present();
            self.claim.delayed = None;
            self.claim.written = Some(WrittenReport {
                claim_uid: claim.and_then(|claim| claim.metadata.uid.clone()),
                before: claim.and_then(|claim| crate::node::claim_report::reported(claim.status.as_ref()?)),
                report: report.clone(),
            });
            return;
        }
        let times = self.claim.delayed.map_or(0, |(times, _)| times).saturating_add(1);
        self.claim.delayed = Some((times, Instant::now() + REPORT_BACKOFF.delay(times, rand::random())));
    }

    fn say_claim(
        &mut self,
        sight: &ClaimSight,
        planned: &ClaimPlan,
        progress: Option<&str>,
        next_try: Option<Timestamp>,
    ) {
        let memory = std::mem::take(&mut self.claim);
        self.stand_claim(sight, &memory, planned, progress, next_try);
        self.claim = memory;
    }

    /// Reports the state of the claim: to the cluster, and in the file.
    fn stand_claim(
        &mut self,
        sight: &ClaimSight,
        memory: &crate::node::observe_claim::ClaimMemory,
        planned: &ClaimPlan,
        progress: Option<&str>,
        next_try: Option<Timestamp>,
    ) {
        let trouble = match planned {
            ClaimPlan::Do(step) => {
                let key = key(step, sight);
                self.trouble.as_ref().filter(|(of, _)| *of == key).map(|(_, trouble)| trouble)
            }
            ClaimPlan::Wait { .. } => None,
        };
        let why = (sight.problem.as_deref().or(sight.stuck.as_deref()), trouble);
        let paved = paved(memory.record(), planned, sight.observed.slot.runs, progress, why);
        let plan = match planned {
            ClaimPlan::Do(step) => {
                let (step, message) = (Some(step.label().word().to_owned()), paved.message.clone());
                Planned { step, slot: Some(CLAIM_SLOT), message, ..Planned::default() }
            }
            ClaimPlan::Wait { until, .. } => {
                let wait = Some(paved.reason.as_str().to_owned());
                Planned { wait, message: paved.message.clone(), until: *until, ..Planned::default() }
            }
        };
        let machine = sight.seen.machine.as_ref();
        let node = NodeStatusReport {
            generation: machine.and_then(|machine| machine.metadata.generation),
            slots: slot_states(&sight.slots),
            paved: Some(paved),
            claim: memory.record().map(machine_status),
            ..NodeStatusReport::default()
        };
        METRICS.node(sight.observed.api, &node.slots);
        let before = self.standing.clone();
        self.stand(plan, &sight.seen, node, sight.observed.now, (progress, next_try), &before);
    }
}

/// Returns the maximum delay before the next turn. None: each change wakes the loop.
fn poll(pending: Pending, sight: &ClaimSight) -> Option<Duration> {
    let is_bootstrapping = sight
        .observed
        .record
        .as_ref()
        .is_some_and(|record| matches!(record.stage, ClaimStage::Bootstrapping { .. }));
    match pending {
        Pending::UserData | Pending::Sentinel | Pending::Kubelet | Pending::Node | Pending::ProviderId
            if is_bootstrapping =>
        {
            Some(TRIAL_POLL_INTERVAL)
        }
        Pending::Version => Some(RETRY_DELAY),
        Pending::RefusedClaim => Some(ADMISSION_INTERVAL),
        _ => None,
    }
}

/// Reason of `Paved` while a step waits for something outside of the agent.
fn while_pending(step: &ClaimStep) -> PavedReason {
    match step {
        ClaimStep::EmptySlots => PavedReason::Releasing,
        ClaimStep::RequestWipe { .. } => PavedReason::Wiping,
        _ => PavedReason::Preparing,
    }
}

/// Key of a step in the count of attempts.
fn key(step: &ClaimStep, sight: &ClaimSight) -> String {
    let record = sight.observed.record.as_ref();
    let id = record.map(|record| record.provider_id.as_str()).unwrap_or_default();
    format!("{} {id}", step.label().word())
}
