//! Phase and conditions `Ready` and `Stalled` of a Machine, derived from its other conditions.
//!
//! Pure. The summary is for display: programs read the conditions, not the phase (H1). Called by bedplate-controller, and by pxed if
//! standalone. The first condition in a machine's life that is not met gives phase, reason and message:
//!
//! ```text
//! deleted, paused -> MAC address -> power -> boot, enrollment -> claim, or selection -> node -> Ready
//! ```
//! `Stalled` is True while a user must act on the reason of `Ready`, by the table of reasons, unless the Machine is paused. Otherwise the condition is
//! absent.
//!
//! A host that a claim holds is Ready when it has joined the cluster of its claimant: its Node is in that cluster, and the claimant checks
//! it. It stays Ready while its agent reports no fault.

use bedplate_api::claim::ClaimState;
use bedplate_api::condition::{Conditions as _, set_derived, set_ready};
use bedplate_api::machine::{
    Applied, Condition, Machine, MachineStatus, PROVIDER_MANUAL, PROVIDER_PXE, Phase, Selected,
    condition_type,
};
use bedplate_api::reason::machine::{
    BootedReason, EnrolledReason, NodeReadyReason, PavedReason, PoweredOnReason, ReadyReason,
};
use bedplate_api::reason::{self, Actor, ConditionReason, Reason};
use bedplate_api::version::version_name;
use jiff::Timestamp;

use crate::claim::{Held, held};

/// Facts about the Machine's Node that its status does not have. Only a program with access to the API server knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// Cause, if the Node is not Ready by its own status.
    pub not_ready: Option<String>,
    /// Version for which a rolling update drains the Node (`<configuration>-v<N>`).
    pub drained_for: Option<String>,
    /// Version and cause of the last turn that failed.
    pub failed_turn: Option<(String, String)>,
}

/// Program that derives the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// bedplate-controller, in a cluster.
    Cluster,
    /// pxed, without a cluster.
    Standalone,
}

/// A reason of `Ready` with its message.
pub type Cause<'a> = (&'a str, &'a str);

/// Phase, and status, reason and message of `Ready` and `Stalled`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The phase. `Ready` if and only if condition `Ready` is True.
    pub phase: Phase,
    /// Reason of `Ready`.
    pub reason: String,
    /// Message of `Ready`.
    pub message: String,
    /// Party that must act. None if no action is needed, or if a newer program has written the reason.
    pub actor: Option<Actor>,
    /// Type of the condition that is not met. None if other fields decide.
    pub condition: Option<String>,
}

impl Summary {
    /// Returns true if condition `Ready` is True.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Writes phase, `Ready`, `Stalled` and the generation from which they were derived.
    pub fn write(&self, status: &mut MachineStatus, generation: Option<i64>, now: Timestamp) {
        set_ready(status, self.is_ready(), &self.reason, &self.message, generation, now);
        // A user has paused it: that is not a failure.
        let is_paused = self.reason == ReadyReason::Paused.as_str();
        if self.actor == Some(Actor::User) && !is_paused {
            let derived = (self.reason.as_str(), self.message.as_str());
            set_derived(status, condition_type::STALLED, true, derived, generation, now);
        } else {
            status.conditions.retain(|condition| condition.type_ != condition_type::STALLED);
        }
        status.phase = Some(self.phase);
        status.observed_generation = generation;
    }
}

fn summary<R: ConditionReason>(phase: Phase, reason: R, message: impl Into<String>) -> Summary {
    shown(phase, (R::TYPE, reason.as_str()), message.into())
}

fn of(phase: Phase, condition: &Condition) -> Summary {
    let type_ = condition.type_.clone();
    Summary {
        condition: Some(type_.clone()),
        ..shown(phase, (&type_, &condition.reason), condition.message.clone())
    }
}

/// Makes the summary with this reason of a condition of this type.
fn shown(phase: Phase, (type_, reason): (&str, &str), message: String) -> Summary {
    let remedy = reason::of_condition(type_, reason).and_then(|row| row.remedy);
    let actor = remedy.map(|remedy| remedy.actor);
    Summary { phase, reason: reason.to_owned(), message, actor, condition: None }
}

/// Derives the summary. `status`: the status that is about to be written. `node`: facts about the Machine's Node, if it was read. `blocked`:
/// why a due selection is not made.
pub fn summarize(
    plane: Plane,
    machine: &Machine,
    status: &MachineStatus,
    node: &NodeFacts,
    blocked: Option<Cause<'_>>,
) -> Summary {
    let case = Case { plane, machine, status, node, blocked };
    let steps = [
        Case::deleting,
        Case::paused,
        Case::duplicate,
        Case::power,
        Case::boot,
        Case::claim,
        Case::selection,
        Case::rolled_back,
        Case::node,
    ];
    steps.iter().find_map(|step| step(&case)).unwrap_or_else(|| case.ready())
}

struct Case<'a> {
    plane: Plane,
    machine: &'a Machine,
    status: &'a MachineStatus,
    node: &'a NodeFacts,
    blocked: Option<Cause<'a>>,
}

impl Case<'_> {
    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.condition(type_)
    }

    fn is_true(&self, type_: &str) -> bool {
        self.status.is_true(type_)
    }

    fn unmet(&self, type_: &str) -> Option<&Condition> {
        self.condition(type_).filter(|condition| condition.status == "False")
    }

    fn deleting(&self) -> Option<Summary> {
        self.machine.metadata.deletion_timestamp.as_ref()?;
        let finalizers = self.machine.metadata.finalizers.as_deref().unwrap_or_default();
        let message = match (self.condition(condition_type::DRAINED), finalizers) {
            (Some(drained), _) => drained.message.clone(),
            (None, []) => "the Machine is being deleted".to_owned(),
            (None, held) => format!("the Machine is being deleted; its finalizers are {}", held.join(", ")),
        };
        Some(summary(Phase::Deleting, ReadyReason::Deleting, message))
    }

    fn paused(&self) -> Option<Summary> {
        let message = "spec.paused is set; no program changes the machine";
        self.machine.spec.paused.then(|| summary(Phase::Paused, ReadyReason::Paused, message))
    }

    fn duplicate(&self) -> Option<Summary> {
        let booted = self.unmet(condition_type::BOOTED)?;
        (booted.reason == BootedReason::DuplicateMacAddress).then(|| of(Phase::Failed, booted))
    }

    fn power(&self) -> Option<Summary> {
        let off = self.unmet(condition_type::POWERED_ON)?;
        let phase = match PoweredOnReason::parse(&off.reason) {
            Some(PoweredOnReason::PoweringOn) => Phase::PoweringOn,
            Some(PoweredOnReason::PowerOnAttemptsExhausted) => Phase::Failed,
            Some(_) | None => Phase::Pending,
        };
        Some(of(phase, off))
    }

    /// Returns the summary of a host that is booting or enrolling.
    fn boot(&self) -> Option<Summary> {
        if self.is_true(condition_type::ENROLLED) {
            return None;
        }
        let boot = self.status.boot.as_ref();
        let powered = self.condition(condition_type::POWERED_ON);
        // Any host can send packets with the MAC address of a running server. Only the server's own agent fetches the seed.
        let is_seeded = boot.is_some_and(|boot| boot.seed_time.is_some());
        if let Some(found) = powered.filter(|c| !is_seeded && c.reason == PoweredOnReason::FoundRunning) {
            return Some(of(Phase::Pending, found));
        }
        let is_booting = boot.is_some_and(|boot| boot.stage.is_some());
        let phase = if is_booting { Phase::Booting } else { Phase::Pending };
        // A machine whose BMC is unreachable cannot be powered on, so it does not boot.
        let is_unknown = powered.is_some_and(|condition| condition.status == "Unknown");
        // A host whose enrollment is refused does not continue, whatever its boot reports.
        let is_refused = |enrolled: &&Condition| {
            enrolled.reason == EnrolledReason::SeedRequestedTwice
                || enrolled.reason == EnrolledReason::HeardElsewhere
        };
        let first = self
            .unmet(condition_type::BMC_REACHABLE)
            .filter(|_| !is_booting && is_unknown)
            .or_else(|| self.unmet(condition_type::ENROLLED).filter(is_refused))
            .or_else(|| self.unmet(condition_type::BOOTED))
            .or_else(|| self.unmet(condition_type::ENROLLED));
        Some(match first {
            Some(condition) => of(phase, condition),
            None => summary(
                phase,
                EnrolledReason::AwaitingEnrollment,
                self.unheard(powered.is_some() || is_booting),
            ),
        })
    }

    /// Returns the message for a host that has neither booted nor enrolled.
    fn unheard(&self, is_powered: bool) -> String {
        let (name, site) =
            (self.machine.metadata.name.as_deref().unwrap_or_default(), &self.machine.spec.site);
        match self.machine.spec.provider.as_str() {
            PROVIDER_PXE if is_powered => "waiting for the host to boot and to enroll".to_owned(),
            PROVIDER_PXE if self.plane == Plane::Standalone => "waiting for its first DHCP packet".to_owned(),
            PROVIDER_PXE => format!("no pxed instance of site {site} has reported this Machine"),
            PROVIDER_MANUAL => {
                format!("waiting for an agent to enroll; `bedplate machine token {name}` creates its token")
            }
            other => {
                format!("waiting for external provider {other} to enroll the host")
            }
        }
    }

    /// Returns the summary of a host that a claim holds, even if its MachineClaim is missing.
    fn claim(&self) -> Option<Summary> {
        let Held { state, .. } = held(&self.machine.spec, self.status)?;
        let paved = self.unmet(condition_type::PAVED);
        let unmet_or = |phase, reason: PavedReason, message: &str| match paved {
            Some(condition) => of(phase, condition),
            None => summary(phase, reason, message),
        };
        Some(match state {
            Some(ClaimState::Releasing) => {
                unmet_or(Phase::Releasing, PavedReason::Releasing, "the host is being released")
            }
            Some(ClaimState::Wiping) => {
                unmet_or(Phase::Releasing, PavedReason::Wiping, "the host is booting to be wiped")
            }
            Some(ClaimState::Failed) => unmet_or(
                Phase::Failed,
                PavedReason::BootstrapFailed,
                "the claim failed on the host; the host stays claimed until its release",
            ),
            Some(ClaimState::Joined) => self.joined(paved),
            Some(ClaimState::Bootstrapping) => {
                unmet_or(Phase::Claimed, PavedReason::Bootstrapping, "the slot of the claim is starting")
            }
            Some(ClaimState::Preparing | ClaimState::Unknown | ClaimState::Released) | None => {
                let message = "a claim holds the host; waiting for its agent to start the claim";
                match paved {
                    Some(condition) => of(Phase::Claimed, condition),
                    None => summary(Phase::Claimed, ReadyReason::AwaitingAgent, message),
                }
            }
        })
    }

    /// Returns the summary of a host that has joined the cluster of its claimant.
    fn joined(&self, paved: Option<&Condition>) -> Summary {
        match paved.or_else(|| self.unmet(condition_type::NODE_READY)) {
            Some(condition) => of(Phase::Degraded, condition),
            None => summary(Phase::Ready, ReadyReason::Joined, ""),
        }
    }

    fn selection(&self) -> Option<Summary> {
        if let Some(pending) =
            self.condition(condition_type::CONFIGURATION_PENDING).filter(|c| c.status == "True")
        {
            return Some(of(Phase::ConfigurationPending, pending));
        }
        if let Some((reason, message)) = self.blocked {
            let phase = match (&self.status.applied, self.is_running()) {
                (_, true) => Phase::Degraded,
                (Some(_), false) => Phase::Repaving,
                (None, false) => Phase::Paving,
            };
            return Some(shown(phase, (condition_type::READY, reason), message.to_owned()));
        }
        let message = "the host is enrolled; waiting for the selection of a version";
        let is_open = self.status.selected.is_none();
        is_open.then(|| summary(Phase::Enrolled, PavedReason::NoVersionSelected, message))
    }

    fn rolled_back(&self) -> Option<Summary> {
        let (back, selected) = (self.status.rolled_back.as_ref()?, self.status.selected.as_ref()?);
        (back.from.key() == selected.key())
            .then(|| summary(Phase::RolledBack, ReadyReason::RolledBack, back.message.clone()))
    }

    fn node(&self) -> Option<Summary> {
        let status = self.status;
        let is_applied = status.applied.is_some() && status.node_ref.is_some();
        let paved = self.unmet(condition_type::PAVED);
        // An unreachable agent does not report the Node. Its report of the paving is more specific than the Node.
        if let Some(why) = self.node.not_ready.as_ref().filter(|_| is_applied)
            && (self.is_running() || paved.is_none())
        {
            return Some(summary(Phase::Degraded, NodeReadyReason::NodeNotReady, why.clone()));
        }
        if self.is_running() {
            // The message does not name the Pods: they change with each eviction.
            return self.node.drained_for.as_ref().map(|next| {
                let message = format!(
                    "the Node is being drained for {next}; see `kubectl describe node` for the remaining Pods"
                );
                summary(Phase::Updating, ReadyReason::Updating, message)
            });
        }
        let (selected, applied) = (status.selected.as_ref(), status.applied.as_ref());
        let is_same = selected.map(Selected::key) == applied.map(Applied::key);
        let is_selected = is_same && status.node_ref.is_some();
        let phase = match (&status.applied, is_selected) {
            (Some(_), true) => Phase::Degraded,
            (Some(_), false) => Phase::Repaving,
            (None, _) => Phase::Paving,
        };
        let first = paved.or_else(|| self.unmet(condition_type::NODE_READY));
        Some(match first {
            Some(condition) => of(phase, condition),
            None => summary(phase, ReadyReason::AwaitingAgent, "waiting for the agent to create the node"),
        })
    }

    fn ready(&self) -> Summary {
        summary(Phase::Ready, ReadyReason::Ready, self.next_version())
    }

    /// Returns true if a node runs, and the agent reports it as Ready.
    fn is_running(&self) -> bool {
        self.is_true(condition_type::NODE_READY)
            && self.status.node_ref.is_some()
            && self.status.applied.is_some()
    }

    /// Returns the state of the next version of a Machine that is Ready. Empty if no other version is selected.
    fn next_version(&self) -> String {
        let (Some(next), Some(runs)) = (&self.status.selected, &self.status.applied) else {
            return String::new();
        };
        let (next, runs) = (next.key(), runs.key());
        if next == runs {
            return String::new();
        }
        let (next, runs) = (version_name(next.0, next.1), version_name(runs.0, runs.1));
        if let Some((_, why)) = self.node.failed_turn.as_ref().filter(|(version, _)| *version == next) {
            return format!("{runs} is running; the update to {next} failed: {why}");
        }
        match self.condition(condition_type::PAVED).filter(|paved| paved.reason != PavedReason::Applied) {
            Some(paved) => format!("{runs} is running; {next} is not prepared: {}", paved.message),
            None => format!("{runs} is running; {next} is paved after the Node is deleted"),
        }
    }
}

#[cfg(test)]
mod tests;
