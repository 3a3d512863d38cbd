//! Pure: an operation with a selector: the operations of its Machines that start now, and their summary (docs/design/rules.md, O3).
//!
//! ```text
//! targets (fixed when it is taken) --at most maxParallel unfinished--> children --all ended, or failureLimit--> Complete | Failed
//! ```
//! The parent's `status.machines` has the state of each Machine. A finished Machine stays finished, even if its child is deleted.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_api::id::MachineName;
use bedplate_api::machine::Time;
use bedplate_api::operation::{
    MachineOperation, MachineOperationStatus, MachineRef, OperationCounts, OperationMachines, OperationState,
};
use bedplate_api::reason::operation::FanOutOutcome;
use jiff::Timestamp;

use crate::operation::{End, ended};

/// Label of a child: the name of its parent.
pub const PARENT: &str = "bedplate.dev/parent";
/// Label of an operation of one Machine: the name of that Machine (O5).
pub const MACHINE: &str = "bedplate.dev/machine";
/// Label for the site of the operation's Machine.
pub const SITE: &str = "bedplate.dev/site";
/// Label of an operation with a selector, with an empty value. Programs that carry operations out watch those without this label.
pub const CHILDREN: &str = "bedplate.dev/children";
/// Maximum number of failed Machines that a message names. Others are counted.
const MAX_NAMED_MACHINES: usize = 8;
/// Maximum number of characters of an object's name, and of a label's value.
const MAX_NAME_CHARACTERS: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// Returns the name of the operation of one Machine.
pub fn child_name(parent: &MachineOperation, machine: &MachineName) -> String {
    let (name, uid) = named(parent);
    let plain = format!("{name}-{machine}");
    if plain.len() <= MAX_NAME_CHARACTERS {
        return plain;
    }
    // The name of another parent may have the same start. The UID distinguishes them.
    let rest = uid.len() + machine.as_str().len() + 2;
    let short: String = name.chars().take(MAX_NAME_CHARACTERS.saturating_sub(rest)).collect();
    format!("{}-{uid}-{machine}", short.trim_end_matches(['-', '.']))
}

/// Returns the value of a child's parent label: the parent's name, or its UID if the name is too long for a
/// label.
pub fn parent_label(name: &str, uid: &str) -> String {
    if name.len() <= MAX_LABEL_BYTES { name.to_owned() } else { uid.to_owned() }
}

fn named(operation: &MachineOperation) -> (&str, &str) {
    let metadata = &operation.metadata;
    (metadata.name.as_deref().unwrap_or_default(), metadata.uid.as_deref().unwrap_or_default())
}

/// Returns the operation of one Machine.
pub fn child(parent: &MachineOperation, machine: &MachineName) -> MachineOperation {
    let (name, uid) = named(parent);
    let mut child = MachineOperation::new(&child_name(parent, machine), parent.spec.clone());
    let labels = [(PARENT, parent_label(name, uid)), (MACHINE, machine.to_string())];
    child.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value)).into());
    let spec = &mut child.spec;
    spec.machine_ref = Some(MachineRef { name: machine.clone() });
    (spec.machine_selector, spec.max_parallel, spec.failure_limit) = (None, None, None);
    spec.ttl_seconds_after_finished = None;
    child
}

/// State of a child. `None` if the child has not started.
pub type Progress = Option<OperationState>;

/// Returns the state of each Machine by name. Started children come from `known`; `seen` covers them and
/// children that may have started.
pub fn standing(
    known: &OperationMachines,
    seen: impl Fn(&MachineName) -> Progress,
) -> Vec<(MachineName, Progress)> {
    let started = |name: &MachineName| seen(name).or(Some(OperationState::Pending));
    let mut all = BTreeMap::new();
    all.extend(known.not_started.iter().map(|name| (name.clone(), seen(name))));
    all.extend(known.started.iter().map(|name| (name.clone(), started(name))));
    all.extend(known.complete.iter().map(|name| (name.clone(), Some(OperationState::Complete))));
    all.extend(known.failed.iter().map(|name| (name.clone(), Some(OperationState::Failed))));
    all.into_iter().collect()
}

/// Observed state at the time of planning.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Maximum number of children that may start now.
    pub room: usize,
    /// True if the parent was deleted, or its manifest is gone. No further child starts.
    pub stopped: bool,
    /// The time.
    pub time: Timestamp,
}

/// Actions for a parent now.
#[derive(Debug, PartialEq)]
pub struct Fan {
    /// Machines whose operation starts now.
    pub start: Vec<MachineName>,
    /// Status of the parent after these have started.
    pub status: MachineOperationStatus,
}

/// Decides which children start now and whether the parent is finished (O3).
pub fn plan(parent: &MachineOperation, targets: &[(MachineName, Progress)], now: Now) -> Fan {
    let number = |limit: Option<i32>| limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(0));
    let count =
        |state: OperationState| targets.iter().filter(|(_, progress)| *progress == Some(state)).count();
    let (complete, failed) = (count(OperationState::Complete), count(OperationState::Failed));
    let started = targets.iter().filter(|(_, progress)| progress.is_some()).count();
    let running = started.saturating_sub(complete).saturating_sub(failed);
    let is_stopped = now.stopped || failed >= number(parent.spec.failure_limit);
    let most =
        if is_stopped { 0 } else { number(parent.spec.max_parallel).saturating_sub(running).min(now.room) };
    let waiting = targets.iter().filter(|(_, progress)| progress.is_none());
    let start: Vec<MachineName> = waiting.take(most).map(|(name, _)| name.clone()).collect();
    let not_started = targets.len().saturating_sub(started);
    let is_over = running == 0 && start.is_empty() && (not_started == 0 || is_stopped);
    let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let in_progress = count(OperationState::InProgress) + count(OperationState::Unknown);
    let counts = OperationCounts {
        total: small(targets.len()),
        pending: small(targets.len() - complete - failed - in_progress),
        in_progress: small(in_progress),
        complete: small(complete),
        failed: small(failed),
    };
    let before = parent.status.clone().unwrap_or_default();
    let outcome = match (is_over, targets.is_empty(), failed) {
        (_, true, _) => Some((FanOutOutcome::NothingMatched, "no Machine matches the selector".to_owned())),
        (false, ..) => None,
        (true, _, 0) if not_started == 0 => {
            Some((FanOutOutcome::AllComplete, format!("completed on {complete} Machines")))
        }
        (true, _, 0) => Some((FanOutOutcome::Canceled, format!("not started on {not_started} Machines"))),
        (true, ..) => Some((FanOutOutcome::MachinesFailed, failure(targets, failed, not_started, now))),
    };
    let status = MachineOperationStatus {
        state: Some(OperationState::InProgress),
        start_time: before.start_time.or(Some(Time(now.time))),
        counts: Some(counts),
        machines: Some(machines(targets, &start)),
        ..MachineOperationStatus::default()
    };
    let status = match outcome {
        None => status,
        Some((outcome, message)) => {
            let complete = matches!(outcome, FanOutOutcome::NothingMatched | FanOutOutcome::AllComplete);
            let end = End { complete, reason: outcome.as_str(), message: &message };
            ended(status, end, parent.metadata.generation, now.time)
        }
    };
    Fan { start, status }
}

/// Returns the Machines by state after those in `start` have started.
fn machines(targets: &[(MachineName, Progress)], start: &[MachineName]) -> OperationMachines {
    let (mut machines, start) = (OperationMachines::default(), start.iter().collect::<BTreeSet<_>>());
    for (name, progress) in targets {
        let list = match progress {
            None if start.contains(name) => &mut machines.started,
            None => &mut machines.not_started,
            Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) => {
                &mut machines.started
            }
            Some(OperationState::Complete) => &mut machines.complete,
            Some(OperationState::Failed) => &mut machines.failed,
        };
        list.push(name.clone());
    }
    machines
}

fn failure(targets: &[(MachineName, Progress)], failed: usize, not_started: usize, now: Now) -> String {
    let names = targets.iter().filter(|(_, progress)| *progress == Some(OperationState::Failed));
    let names: Vec<&str> = names.take(MAX_NAMED_MACHINES).map(|(name, _)| name.as_str()).collect();
    let more = if failed > names.len() { ", ..." } else { "" };
    let mut message = format!("failed on {failed} of {} Machines: {}{more}", targets.len(), names.join(", "));
    if not_started > 0 {
        let why = if now.stopped { "" } else { " because of failureLimit" };
        message.push_str(&format!("; not started on {not_started}{why}"));
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

    const NOW: Now = Now { room: 100, stopped: false, time: Timestamp::UNIX_EPOCH };
    #[test]
    fn operation_in_a_state_of_a_later_version_counts_as_running() {
        let target = ("a".parse().unwrap(), Some(OperationState::Unknown));
        let Fan { start, status } = plan(&parent(&json!({ "maxParallel": 1 })), &[target], NOW);
        assert_eq!((start, status.state), (Vec::new(), Some(OperationState::InProgress)));
        assert_eq!(status.counts.unwrap().in_progress, 1);
        assert_eq!(status.machines.unwrap().started.len(), 1);
    }

    const PENDING: Progress = Some(OperationState::Pending);
    const DONE: Progress = Some(OperationState::Complete);
    const FAILED: Progress = Some(OperationState::Failed);

    /// Returns the names of the started Machines, and state and reason of the parent.
    fn run(more: &serde_json::Value, progress: &[Progress]) -> (Vec<String>, Option<OperationState>, String) {
        let name = |n: usize| format!("m{n}").parse().unwrap();
        let targets: Vec<_> = progress.iter().enumerate().map(|(n, p)| (name(n), *p)).collect();
        let fan = plan(&parent(more), &targets, NOW);
        let start = fan.start.iter().map(ToString::to_string).collect();
        (start, fan.status.state, fan.status.reason.unwrap_or_default())
    }

    #[test]
    fn o3_max_parallel_holds_and_no_child_starts_after_the_failure_limit() {
        use OperationState::{Complete, Failed, InProgress};
        let two = json!({ "maxParallel": 2, "failureLimit": 1 });
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (progress, start, state, reason) in [
            (&[None, None, None][..], &["m0", "m1"][..], InProgress, ""),
            (&[PENDING, PENDING, None], &[], InProgress, ""),
            (&[DONE, PENDING, None], &["m2"], InProgress, ""),
            (&[FAILED, PENDING, None], &[], InProgress, ""),
            (&[FAILED, DONE, None], &[], Failed, FanOutOutcome::MachinesFailed.as_str()),
            (&[DONE, DONE, DONE], &[], Complete, FanOutOutcome::AllComplete.as_str()),
            (&[], &[], Complete, FanOutOutcome::NothingMatched.as_str()),
        ] {
            assert_eq!(run(&two, progress), (names(start), Some(state), reason.to_owned()), "{progress:?}");
        }
        assert_eq!(run(&json!({}), &[None, None, FAILED]).0, ["m0", "m1"], "no limits");
    }

    #[test]
    fn child_repeats_its_parent_for_one_machine_and_has_no_ttl() {
        let child = child(&parent(&json!({ "maxParallel": 1 })), &"m1".parse().unwrap());
        assert_eq!(child.metadata.name.as_deref(), Some("all-m1"));
        assert_eq!(child.metadata.labels.as_ref().unwrap()[PARENT], "all");
        let spec = serde_json::to_value(&child.spec).unwrap();
        assert_eq!(spec, json!({ "operationName": "powerOn", "machineRef": { "name": "m1" } }));
    }

    #[test]
    fn o3_one_that_is_stopped_begins_no_more_and_is_over_when_what_runs_is() {
        let name = |n: usize| format!("m{n}").parse().unwrap();
        let stopped = Now { stopped: true, ..NOW };
        for (progress, state, reason) in [
            ([DONE, PENDING, None], OperationState::InProgress, None),
            ([DONE, DONE, None], OperationState::Failed, Some(FanOutOutcome::Canceled.as_str())),
            ([DONE, FAILED, None], OperationState::Failed, Some(FanOutOutcome::MachinesFailed.as_str())),
            ([DONE, DONE, DONE], OperationState::Complete, Some(FanOutOutcome::AllComplete.as_str())),
        ] {
            let targets: Vec<_> = progress.iter().enumerate().map(|(n, p)| (name(n), *p)).collect();
            let fan = plan(&parent(&json!({})), &targets, stopped);
            assert_eq!((fan.start.len(), fan.status.state), (0, Some(state)), "{progress:?}");
            assert_eq!(fan.status.reason.as_deref(), reason, "{progress:?}");
        }
    }

    #[test]
    fn o3_failed_parent_names_failed_and_counts_unstarted_machines() {
        let message = |progress: &[Progress], stopped| {
            let name = |n: usize| format!("m{n}").parse().unwrap();
            let targets: Vec<_> = progress.iter().enumerate().map(|(n, p)| (name(n), *p)).collect();
            let parent = parent(&json!({ "failureLimit": 1 }));
            plan(&parent, &targets, Now { stopped, ..NOW }).status.message
        };
        for (progress, stopped, expected) in [
            (vec![FAILED, DONE], false, "failed on 1 of 2 Machines: m0"),
            (
                vec![DONE, FAILED, None],
                false,
                "failed on 1 of 3 Machines: m1; not started on 1 because of failureLimit",
            ),
            (vec![DONE, FAILED, None], true, "failed on 1 of 3 Machines: m1; not started on 1"),
            (vec![FAILED; 8], false, "failed on 8 of 8 Machines: m0, m1, m2, m3, m4, m5, m6, m7"),
            (vec![FAILED; 9], false, "failed on 9 of 9 Machines: m0, m1, m2, m3, m4, m5, m6, m7, ..."),
        ] {
            assert_eq!(message(&progress, stopped).as_deref(), Some(expected));
        }
        assert_eq!(message(&[FAILED, PENDING], false), None, "not finished");
    }

    #[test]
    fn o3_start_time_is_set_once_and_completion_time_at_the_end() {
        let later = Timestamp::from_second(60).unwrap();
        let mut parent = parent(&json!({}));
        let target = |progress| vec![("m0".parse().unwrap(), progress)];
        let first = plan(&parent, &target(None), NOW).status;
        let times = |status: &MachineOperationStatus| {
            (
                status.start_time.as_ref().map(|time| time.0),
                status.completion_time.as_ref().map(|time| time.0),
            )
        };
        assert_eq!(times(&first), (Some(NOW.time), None));
        parent.status = Some(first);
        let last = plan(&parent, &target(DONE), Now { time: later, ..NOW }).status;
        assert_eq!(times(&last), (Some(NOW.time), Some(later)));
    }

    #[test]
    fn a_childs_name_is_one_also_if_its_parents_is_as_long_as_it_may_be() {
        let mut long = parent(&json!({}));
        let (machine, uid) = ("m".repeat(63), "0b5f0d9c-5b0e-4d3c-9f0a-0c6f8a1d2e3f");
        long.metadata.uid = Some(uid.to_owned());
        // 152 characters are left for the parent's name, and no label ends with a hyphen.
        for (labels, kept) in [(150, format!("{}.b", "a".repeat(150))), (151, "a".repeat(151))] {
            long.metadata.name = Some(format!("{}.{}", "a".repeat(labels), "b".repeat(252 - labels)));
            let name = child_name(&long, &machine.parse().unwrap());
            assert_eq!(name, format!("{kept}-{uid}-{machine}"));
            assert!(name.len() <= 253, "{name}");
        }
        let child = child(&long, &machine.parse().unwrap());
        assert_eq!(child.metadata.labels.unwrap()[PARENT], uid, "a label has 63 characters at most");
    }
}
