//! Pure: an operation with a selector, without a cluster: which of its Machines' operations begin now, and what they amount to
//! (docs/rules.md, O3). In a cluster this is the controller's.
//!
//! ```text
//! targets (fixed when it is taken) --at most maxParallel unfinished--> children --all ended, or failureLimit--> Complete | Failed
//! ```
//!
//! Callers: `local_plan`.

use std::collections::BTreeMap;

use bedplate_api::id::MachineName;
use bedplate_api::machine::Time;
use bedplate_api::operation::{
    MachineOperation, MachineOperationStatus, MachineRef, OperationCounts, OperationState,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// On a child: its parent's name, and its Machine's.
const PARENT: &str = "bedplate.dev/parent";
const MACHINE: &str = "bedplate.dev/machine";
/// Failed Machines that a message names; more are only counted.
const NAMED: usize = 8;

/// Whether a selector matches labels, as an API server has it.
pub(super) fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let wanted = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    wanted.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|requirement| holds(requirement, labels.get(&requirement.key)))
}

fn holds(requirement: &LabelSelectorRequirement, found: Option<&String>) -> bool {
    let among = |value: &String| requirement.values.iter().flatten().any(|wanted| wanted == value);
    match requirement.operator.as_str() {
        "In" => found.is_some_and(among),
        "NotIn" => !found.is_some_and(among),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        // No other is known: it matches nothing.
        _ => false,
    }
}

/// What a Machine's operation is called.
pub(super) fn child_name(parent: &str, machine: &MachineName) -> String {
    format!("{parent}-{machine}")
}

/// The operation of one Machine.
pub(super) fn child(parent: &MachineOperation, machine: &MachineName) -> MachineOperation {
    let name = parent.metadata.name.as_deref().unwrap_or_default();
    let mut child = MachineOperation::new(&child_name(name, machine), parent.spec.clone());
    let labels = [(PARENT, name), (MACHINE, machine.as_str())];
    child.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let spec = &mut child.spec;
    spec.machine_ref = Some(MachineRef { name: machine.clone() });
    (spec.machine_selector, spec.max_parallel, spec.failure_limit) = (None, None, None);
    spec.ttl_seconds_after_finished = None;
    child
}

/// How far a child is; none: it was not begun.
pub(super) type Progress = Option<OperationState>;

/// What to do with a parent now.
#[derive(Debug, PartialEq)]
pub(super) struct Fan {
    /// Machines whose operation begins now.
    pub(super) start: Vec<MachineName>,
    /// The parent's status once they have.
    pub(super) status: MachineOperationStatus,
}

/// Plans; at most `room` begin.
pub(super) fn plan(
    parent: &MachineOperation,
    targets: &[(MachineName, Progress)],
    room: usize,
    now: Timestamp,
) -> Fan {
    let number = |limit: Option<i32>| limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(0));
    let count =
        |state: OperationState| targets.iter().filter(|(_, progress)| *progress == Some(state)).count();
    let (complete, failed) = (count(OperationState::Complete), count(OperationState::Failed));
    let begun = targets.iter().filter(|(_, progress)| progress.is_some()).count();
    let running = begun.saturating_sub(complete).saturating_sub(failed);
    let is_stopped = failed >= number(parent.spec.failure_limit);
    let most =
        if is_stopped { 0 } else { number(parent.spec.max_parallel).saturating_sub(running).min(room) };
    let waiting = targets.iter().filter(|(_, progress)| progress.is_none());
    let start: Vec<MachineName> = waiting.take(most).map(|(name, _)| name.clone()).collect();
    let unbegun = targets.len().saturating_sub(begun);
    let is_over = running == 0 && start.is_empty() && (unbegun == 0 || is_stopped);
    let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let in_progress = count(OperationState::InProgress);
    let counts = OperationCounts {
        total: small(targets.len()),
        pending: small(targets.len() - complete - failed - in_progress),
        in_progress: small(in_progress),
        complete: small(complete),
        failed: small(failed),
    };
    let before = parent.status.clone().unwrap_or_default();
    let (state, reason, message) = match (is_over, targets.is_empty(), failed) {
        (_, true, _) => (
            OperationState::Complete,
            "NothingMatched",
            "no Machine of this site matches the selector".to_owned(),
        ),
        (false, ..) => (OperationState::InProgress, "InProgress", String::new()),
        (true, _, 0) => (OperationState::Complete, "AllComplete", format!("done on {complete} Machines")),
        (true, ..) => (OperationState::Failed, "MachinesFailed", failure(targets, failed, unbegun)),
    };
    let ended = state != OperationState::InProgress;
    let status = MachineOperationStatus {
        state: Some(state),
        start_time: before.start_time.or(Some(Time(now))),
        completion_time: ended.then_some(Time(now)),
        reason: ended.then(|| reason.to_owned()),
        message: ended.then_some(message),
        counts: Some(counts),
        ..MachineOperationStatus::default()
    };
    Fan { start, status }
}

fn failure(targets: &[(MachineName, Progress)], failed: usize, unbegun: usize) -> String {
    let names = targets.iter().filter(|(_, progress)| *progress == Some(OperationState::Failed));
    let names: Vec<&str> = names.take(NAMED).map(|(name, _)| name.as_str()).collect();
    let more = if failed > names.len() { ", ..." } else { "" };
    let mut message = format!("failed on {failed} of {} Machines: {}{more}", targets.len(), names.join(", "));
    if unbegun > 0 {
        message.push_str(&format!("; not begun on {unbegun} because of failureLimit"));
    }
    message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parent(more: &serde_json::Value) -> MachineOperation {
        let mut spec = json!({ "operationName": "powerOn", "ttlSecondsAfterFinished": 9,
            "machineSelector": { "matchLabels": { "rack": "1" } } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": "all" }, "spec": spec,
        }))
        .unwrap()
    }

    const PENDING: Progress = Some(OperationState::Pending);
    const DONE: Progress = Some(OperationState::Complete);
    const FAILED: Progress = Some(OperationState::Failed);

    /// Names of those that begin, and the parent's state and reason.
    fn run(more: &serde_json::Value, progress: &[Progress]) -> (Vec<String>, Option<OperationState>, String) {
        let name = |n: usize| format!("m{n}").parse().unwrap();
        let targets: Vec<_> = progress.iter().enumerate().map(|(n, p)| (name(n), *p)).collect();
        let fan = plan(&parent(more), &targets, 100, Timestamp::UNIX_EPOCH);
        let start = fan.start.iter().map(ToString::to_string).collect();
        (start, fan.status.state, fan.status.reason.unwrap_or_default())
    }

    #[test]
    fn o3_no_more_than_max_parallel_run_and_none_begins_after_the_failure_limit() {
        use OperationState::{Complete, Failed, InProgress};
        let two = json!({ "maxParallel": 2, "failureLimit": 1 });
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (progress, start, state, reason) in [
            (&[None, None, None][..], &["m0", "m1"][..], InProgress, ""),
            (&[PENDING, PENDING, None], &[], InProgress, ""),
            (&[DONE, PENDING, None], &["m2"], InProgress, ""),
            (&[FAILED, PENDING, None], &[], InProgress, ""),
            (&[FAILED, DONE, None], &[], Failed, "MachinesFailed"),
            (&[DONE, DONE, DONE], &[], Complete, "AllComplete"),
            (&[], &[], Complete, "NothingMatched"),
        ] {
            assert_eq!(run(&two, progress), (names(start), Some(state), reason.to_owned()), "{progress:?}");
        }
        assert_eq!(run(&json!({}), &[None, None, FAILED]).0, ["m0", "m1"], "no limits");
    }

    #[test]
    fn a_child_is_the_parents_operation_for_one_machine_and_does_not_go_by_itself() {
        let child = child(&parent(&json!({ "maxParallel": 1 })), &"m1".parse().unwrap());
        assert_eq!(child.metadata.name.as_deref(), Some("all-m1"));
        assert_eq!(child.metadata.labels.as_ref().unwrap()[PARENT], "all");
        let spec = serde_json::to_value(&child.spec).unwrap();
        assert_eq!(spec, json!({ "operationName": "powerOn", "machineRef": { "name": "m1" } }));
    }

    #[test]
    fn selectors_match_as_on_an_api_server() {
        let labels = BTreeMap::from([("rack".to_owned(), "1".to_owned())]);
        for (selector, expected) in [
            (json!({ "matchLabels": { "rack": "1" } }), true),
            (json!({ "matchLabels": { "rack": "1", "row": "2" } }), false),
            (
                json!({ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["1", "2"] }] }),
                true,
            ),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "NotIn", "values": ["1"] }] }), false),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "NotIn", "values": ["1"] }] }), true),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "DoesNotExist" }] }), true),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "Exists" }] }), false),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "Gt", "values": ["0"] }] }), false),
        ] {
            assert_eq!(
                matches(&serde_json::from_value(selector.clone()).unwrap(), &labels),
                expected,
                "{selector}"
            );
        }
    }
}
