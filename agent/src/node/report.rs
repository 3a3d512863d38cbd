//! Fields of the Machine's status that describe the node.
//!
//! Pure: observed state and plan in, fields out. Called by `run`.

use bedplate_api::machine::{Applied, Slot, SlotName, SlotState, Time};
use bedplate_api::reason::machine::{NodeReadyReason, PavedReason};

use super::observe::Sight;
use super::plan::is_drained;
use crate::model::{Act, NodeSeen, PerSlot, Plan, SlotSeen, Stage, Step};
use crate::plane::{ConditionReport, NodeStatusReport, Truth};
use crate::slot::paths::letter;

/// Failure of a step: its reason, of a closed set, and the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// Reason of the condition.
    pub(super) reason: PavedReason,
    /// Human-readable message, with the time of the next attempt.
    pub(super) message: String,
}

/// Returns all status fields of the node. `progress` and `trouble` belong to the current step.
pub(super) fn node_status(
    sight: &Sight,
    plan: &Plan,
    progress: Option<&str>,
    trouble: Option<&Trouble>,
) -> NodeStatusReport {
    let slots = &sight.observed.slots;
    let is_drained = is_drained(&sight.observed);
    NodeStatusReport {
        generation: sight.observed.machine.as_ref().and_then(|machine| machine.generation),
        applied: applied(slots),
        slots: slots.iter().map(|(name, seen)| slot(name, seen, is_drained)).collect(),
        claim: None,
        rolled_back: sight.ledger.rolled_back.clone(),
        paved: Some(paved(sight, plan, progress, trouble)),
        node_ready: Some(node_ready(&sight.observed.node)),
    }
}

/// Slots of a host of a pool.
pub(super) fn slot_states(slots: &PerSlot<SlotSeen>) -> Vec<Slot> {
    slots.iter().map(|(name, seen)| slot(name, seen, false)).collect()
}

/// Returns the content of the slot that was applied last.
fn applied(slots: &PerSlot<SlotSeen>) -> Option<Applied> {
    let of = |(slot, seen): (SlotName, &SlotSeen)| {
        let record = seen.record.as_ref()?;
        let Stage::Applied { node_uid, since } = &record.stage else { return None };
        let applied = Applied {
            name: record.version.name.clone(),
            version: record.version.version,
            slot: Some(slot),
            image_digest: Some(record.image_digest),
            node_uid: Some(node_uid.clone()),
            time: Some(Time(*since)),
        };
        Some((record.generation, *since, applied))
    };
    let last = slots.iter().filter_map(of).max_by_key(|(generation, since, _)| (*generation, *since));
    last.map(|(.., applied)| applied)
}

/// Reports a slot. The controller releases a drained Machine once none of its slots runs or is being emptied: a slot counts as being emptied until
/// its keys, Secrets and data are removed from the disk.
fn slot(name: SlotName, seen: &SlotSeen, is_drained: bool) -> Slot {
    let state = match (&seen.record, seen.runs) {
        (_, true) => SlotState::Running,
        (None, false) if seen.has_trash => SlotState::Emptying,
        (None, false) => SlotState::Empty,
        (Some(_), false) if is_drained => SlotState::Emptying,
        (Some(record), false) => match record.stage {
            Stage::Preparing => SlotState::Preparing,
            Stage::Prepared | Stage::Trial { .. } | Stage::Applied { .. } | Stage::Retired => {
                SlotState::Prepared
            }
            Stage::Failed { .. } => SlotState::Failed,
        },
    };
    let record = seen.record.as_ref();
    Slot {
        name,
        configuration_name: record.map(|record| record.version.name.clone()),
        version: record.map(|record| record.version.version),
        image_digest: record.map(|record| record.image_digest),
        state,
    }
}

fn paved(
    sight: &Sight,
    plan: &Plan,
    progress: Option<&str>,
    trouble: Option<&Trouble>,
) -> ConditionReport<PavedReason> {
    let slots = &sight.observed.slots;
    let on_trial = slots.iter().any(|(_, slot)| {
        slot.record.as_ref().is_some_and(|record| matches!(record.stage, Stage::Trial { .. }))
    });
    let running = applied(slots).and_then(|applied| applied.slot).filter(|_| !on_trial);
    let runs = running.is_some_and(|slot| slots[slot].runs);
    let (reason, mut message) = match (trouble, plan) {
        (Some(trouble), _) => (trouble.reason, trouble.message.clone()),
        (None, Plan::Do(step)) => (doing(&step.act), describe(step)),
        (None, Plan::Wait(wait)) => (wait.reason, wait.message.clone()),
    };
    if let Some(progress) = progress {
        message = format!("{message}: {progress}");
    }
    if let Some(why) = last_failure(sight, plan).filter(|_| trouble.is_none()) {
        message = format!("{message}; {why}");
    }
    if let Some(stuck) = &sight.stuck {
        message = format!("{message}; {stuck}");
    }
    let status = if runs { Truth::True } else { Truth::False };
    // A step that runs while the node is healthy is not a reason for a failed condition.
    let is_harmless = matches!(plan, Plan::Do(step) if step.act != Act::RenewKubelet);
    let reason = if runs && trouble.is_none() && is_harmless { PavedReason::Applied } else { reason };
    ConditionReport { status, reason, message }
}

/// Returns the failure, with the end of its log, after which the plan delays the next trial.
fn last_failure(sight: &Sight, plan: &Plan) -> Option<String> {
    let Plan::Wait(wait) = plan else { return None };
    let records = || sight.observed.slots.iter().filter_map(|(_, slot)| slot.record.as_ref());
    let failed = || {
        records().find_map(|record| match &record.stage {
            Stage::Failed { reason } => Some(reason.as_str()),
            _ => None,
        })
    };
    match wait.reason {
        PavedReason::BackOff => {
            let last = sight.ledger.last_failure.as_deref();
            last.or_else(failed).map(|why| format!("last failure: {why}"))
        }
        // An applyConfiguration may have filled the slot with another version.
        PavedReason::VersionRejected => {
            let back = sight.ledger.rolled_back.as_ref().map(|back| back.message.as_str());
            back.or_else(failed).map(|why| format!("failure: {why}"))
        }
        _ => None,
    }
}

fn node_ready(node: &NodeSeen) -> ConditionReport<NodeReadyReason> {
    let (status, reason, message) = match node {
        NodeSeen::Unknown => {
            (Truth::Unknown, NodeReadyReason::NodeStatusUnknown, "the Node was not read yet")
        }
        NodeSeen::Absent => {
            (Truth::False, NodeReadyReason::NodeNotFound, "no Node has the name of this Machine")
        }
        NodeSeen::Present { ready_since: None, .. } => {
            (Truth::False, NodeReadyReason::NodeNotReady, "the Node is not Ready")
        }
        NodeSeen::Present { ready_since: Some(_), .. } => {
            (Truth::True, NodeReadyReason::NodeReady, "the Node is Ready")
        }
    };
    ConditionReport { status, reason, message: message.to_owned() }
}

/// Describes a step for users.
pub(super) fn describe(step: &Step) -> String {
    let slot = letter(step.slot);
    match &step.act {
        Act::PrepareSlot { version } => {
            format!("prepares {} in slot {slot}", version.version_name())
        }
        Act::BeginTrial => format!("slot {slot} becomes the node"),
        Act::RestartTrial => {
            format!("continues the trial in slot {slot} with a new deadline")
        }
        Act::StopSlot => format!("stops slot {slot}"),
        Act::StartSlot => format!("starts slot {slot}"),
        Act::ProbeSandbox => format!("starts a Pod sandbox in slot {slot}"),
        Act::Commit { .. } => format!("slot {slot} is the node"),
        Act::LeaveCluster => {
            format!("removes the etcd member of slot {slot} from its cluster before the slot stops")
        }
        Act::Retire => format!("slot {slot} is no longer the node"),
        Act::Fail { reason, back_to: Some(_), .. } => {
            format!("slot {slot} did not become the node, the former slot runs again: {reason}")
        }
        Act::Fail { reason, back_to: None, .. } => format!("slot {slot} did not become the node: {reason}"),
        Act::Abandon => format!("empties slot {slot}, which is no longer needed"),
        Act::RenewKubelet => {
            format!("kubelet certificate expired in slot {slot}; the agent requests a new one as at the join")
        }
        Act::AnnotateNode { .. } => format!("writes the version's annotations to the Node of slot {slot}"),
        Act::AdoptNode { .. } => format!("adopts the Node that slot {slot} registered again"),
    }
}

fn doing(act: &Act) -> PavedReason {
    match act {
        Act::PrepareSlot { .. } => PavedReason::Preparing,
        Act::BeginTrial | Act::RestartTrial | Act::StartSlot => PavedReason::Starting,
        Act::StopSlot | Act::LeaveCluster => PavedReason::Stopping,
        Act::ProbeSandbox => PavedReason::CheckingHealth,
        Act::Commit { .. } | Act::Retire | Act::AnnotateNode { .. } | Act::AdoptNode { .. } => {
            PavedReason::Applied
        }
        Act::Fail { .. } => PavedReason::HealthGateFailed,
        Act::RenewKubelet => PavedReason::KubeletCertificateExpired,
        Act::Abandon => PavedReason::ClearingSlot,
    }
}
