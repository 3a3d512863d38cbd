//! Pure: the conditions of a Machine, with upstream's types and reasons.
//!
//! `BootstrapConfigReady` and `InfrastructureReady` mirror the referenced objects (`mirrored`), `NodeReady` and `NodeHealthy` show the Node
//! (`node_condition`), `Ready` sums them up with the readiness gates, and `Available` follows `Ready` after `minReadySeconds`. What cannot be
//! read at present keeps its last condition, so that a restart writes nothing. Called by `status`.

use std::time::Duration;

use bedplate_api::cluster::full::condition_type;
use bedplate_api::cluster::full::machine::MachineStatus;
use bedplate_api::condition::{ConditionState, set_derived};
use bedplate_api::reason::Reason;
use bedplate_api::reason::core::{
    BootstrapConfigReadyReason, InfrastructureReadyReason, MachineAvailableReason, MachineDeletingReason,
    MachineNodeReadyReason, MachineReadyReason, NodeHealthyReason,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::plan::Observed;
use super::status::Deleting;
use super::{mirrored, node_condition, up_to_date};
use crate::core::merge::{self, Merged};
use crate::core::report;

/// Time after which the summary shows that a deletion takes long.
const LONG_DELETION: SignedDuration = SignedDuration::from_mins(15);

/// Condition without its type and generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Status of the condition.
    pub state: ConditionState,
    /// The reason.
    pub reason: String,
    /// The message.
    pub message: String,
    /// Time at which the mirrored condition changed. None: the present time.
    pub since: Option<Timestamp>,
}

impl Line {
    /// Returns the line of a reason, whose status follows from it.
    pub fn of<R: Reason + Into<ConditionState>>(reason: R, message: impl Into<String>) -> Self {
        Self {
            state: reason.into(),
            reason: reason.as_str().to_owned(),
            message: message.into(),
            since: None,
        }
    }
}

/// Returns a condition of a status.
pub fn get<'a>(status: &'a MachineStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Sets the conditions of a Machine that is not paused. Returns the delay until one changes by the time alone.
pub(crate) fn set_all(
    status: &mut MachineStatus,
    observed: &Observed,
    deleting: Option<&Deleting>,
) -> Option<Duration> {
    let unsupported = fields_supported(observed);
    set(status, observed, condition_type::FIELDS_SUPPORTED, unsupported);
    let deletion = deleting.map_or_else(
        || not_deleting(observed),
        |deleting| Line::of(deleting.reason, deleting.message.clone()),
    );
    set(status, observed, condition_type::DELETING, deletion);
    if let Some(line) = mirrored::bootstrap(observed, status) {
        set(status, observed, condition_type::BOOTSTRAP_CONFIG_READY, line);
    }
    if let Some(line) = mirrored::infrastructure(observed, status) {
        set(status, observed, condition_type::INFRASTRUCTURE_READY, line);
    }
    let (lines, grace) = node_condition::lines(observed, status);
    if let Some((ready, healthy)) = lines {
        set(status, observed, condition_type::NODE_READY, ready);
        set(status, observed, condition_type::NODE_HEALTHY, healthy);
    }
    if let Some(line) = up_to_date::line(observed) {
        set(status, observed, condition_type::UP_TO_DATE, line);
    }
    let ready = ready(observed, status);
    set(status, observed, condition_type::READY, ready);
    let (available, wait) = available(observed, status);
    set(status, observed, condition_type::AVAILABLE, available);
    [grace, wait, until_long(observed)].into_iter().flatten().min()
}

/// Returns `Deleting` of a Machine that is not deleted. Without the finalizer its deletion would do nothing.
fn not_deleting(observed: &Observed) -> Line {
    match observed.refusal(condition_type::DELETING) {
        // Not True, the state of the reason: the Machine is not deleted.
        Some(text) => {
            Line { state: ConditionState::Unknown, ..Line::of(MachineDeletingReason::InternalError, text) }
        }
        None => Line::of(MachineDeletingReason::NotDeleting, ""),
    }
}

fn set(status: &mut MachineStatus, observed: &Observed, type_: &str, line: Line) {
    let Line { state, reason, message, since } = line;
    let generation = observed.machine.metadata.generation;
    set_derived(status, type_, state, (&reason, &message), generation, since.unwrap_or(observed.now));
}

fn fields_supported(observed: &Observed) -> Line {
    let (reason, message) = report::fields_supported(&*observed.machine, "remove them");
    Line::of(reason, message)
}

/// Returns `Ready`: the summary of the other conditions.
fn ready(observed: &Observed, status: &MachineStatus) -> Line {
    let gates = &observed.machine.spec.readiness_gates;
    if gates.iter().any(|gate| gate.condition_type == condition_type::READY) {
        let text = "readiness gate Ready waits for itself; remove it from spec.readinessGates";
        return Line::of(MachineReadyReason::InternalError, text);
    }
    let shown = observed.is_deleting().then(|| short_deleting(observed, status)).flatten();
    let own = [
        condition_type::DELETING,
        condition_type::BOOTSTRAP_CONFIG_READY,
        condition_type::INFRASTRUCTURE_READY,
        condition_type::NODE_HEALTHY,
        condition_type::HEALTH_CHECK_SUCCEEDED,
    ];
    let part = |type_: &'static str| {
        let condition = shown.as_ref().filter(|shown| shown.type_ == type_).or_else(|| get(status, type_));
        merge::Part {
            type_,
            condition,
            is_negative: type_ == condition_type::DELETING,
            is_info: is_info(observed, condition),
        }
    };
    // Without a health check the last condition is missing.
    let own_parts = own.into_iter().map(part);
    let own_parts = own_parts
        .filter(|part| part.condition.is_some() || part.type_ != condition_type::HEALTH_CHECK_SUCCEEDED);
    let gate_parts =
        gates.iter().filter(|gate| !own.contains(&gate.condition_type.as_str())).map(|gate| merge::Part {
            type_: &gate.condition_type,
            condition: get(status, &gate.condition_type),
            is_negative: gate.is_negative(),
            is_info: false,
        });
    let parts: Vec<merge::Part<'_>> = own_parts.chain(gate_parts).collect();
    let (merged, message) = merge::summary(&parts);
    let reason = match merged {
        Merged::Normal => MachineReadyReason::Ready,
        Merged::Issue => MachineReadyReason::NotReady,
        Merged::Unknown => MachineReadyReason::ReadyUnknown,
    };
    Line::of(reason, message)
}

/// Returns true if a condition is expected: while a Machine is deleted its objects go before it, and `Deleting` of one that is not deleted says
/// nothing about its state.
fn is_info(observed: &Observed, condition: Option<&Condition>) -> bool {
    let Some(condition) = condition else { return false };
    if !observed.is_deleting() {
        return condition.type_ == condition_type::DELETING;
    }
    let gone: &[&str] = match condition.type_.as_str() {
        condition_type::BOOTSTRAP_CONFIG_READY => &[
            BootstrapConfigReadyReason::ObjectDeleted.as_str(),
            BootstrapConfigReadyReason::ObjectDoesNotExist.as_str(),
        ],
        condition_type::INFRASTRUCTURE_READY => &[
            InfrastructureReadyReason::ObjectDeleted.as_str(),
            InfrastructureReadyReason::ObjectDoesNotExist.as_str(),
        ],
        condition_type::NODE_HEALTHY => {
            &[NodeHealthyReason::NodeDeleted.as_str(), MachineNodeReadyReason::NodeDoesNotExist.as_str()]
        }
        _ => &[],
    };
    gone.contains(&condition.reason.as_str())
}

/// Returns `Deleting` with a short message: owners group their Machines by it.
fn short_deleting(observed: &Observed, status: &MachineStatus) -> Option<Condition> {
    let condition = get(status, condition_type::DELETING)?;
    let since = observed.machine.metadata.deletion_timestamp.as_ref()?.0;
    let long = if observed.now.duration_since(since) > LONG_DELETION { " for more than 15m" } else { "" };
    let message = format!("Machine is being deleted{long}, stage: {}", condition.reason);
    Some(Condition { message, ..condition.clone() })
}

fn until_long(observed: &Observed) -> Option<Duration> {
    let since = observed.machine.metadata.deletion_timestamp.as_ref()?.0;
    positive(LONG_DELETION.saturating_sub(observed.now.duration_since(since)))
}

fn available(observed: &Observed, status: &MachineStatus) -> (Line, Option<Duration>) {
    let ready = get(status, condition_type::READY).filter(|ready| ready.status == "True");
    let Some(ready) = ready else { return (Line::of(MachineAvailableReason::NotReady, ""), None) };
    let seconds = observed.machine.spec.min_ready_seconds.unwrap_or(0).max(0);
    let passed = observed.now.duration_since(ready.last_transition_time.0);
    match left(SignedDuration::from_secs(seconds.into()), passed) {
        None => (Line::of(MachineAvailableReason::Available, ""), None),
        wait => (Line::of(MachineAvailableReason::WaitingForMinReadySeconds, ""), wait),
    }
}

/// Returns the rest of a time of which a part has passed. None if all of it has passed.
pub fn left(time: SignedDuration, passed: SignedDuration) -> Option<Duration> {
    positive(time.saturating_sub(passed))
}

fn positive(duration: SignedDuration) -> Option<Duration> {
    duration.is_positive().then(|| duration.unsigned_abs())
}

#[cfg(test)]
mod tests;
