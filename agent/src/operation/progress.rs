//! How far an operation is, as its object keeps it: `status` read, and made anew for each write (docs/rules.md, O1).
//!
//! Pure: no clock, no file, no socket. Callers: `plan`, `run`.

use bedplate_api::machine::{Condition, Time};
use bedplate_api::operation::{DRAINED, MachineOperationStatus, OperationState};
use bedplate_api::reason::operation::{AgentOutcome, PendingOperationReason};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The condition that says that the Node was, or was about to be, cordoned for it.
const CORDONED: &str = "Cordoned";
/// Longest message of a status.
const MESSAGE: usize = 4096;

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// It was done.
    pub complete: bool,
    /// In one word.
    pub reason: String,
    /// For a person.
    pub message: String,
}

impl End {
    /// It was done.
    pub fn done(reason: AgentOutcome, message: impl Into<String>) -> Self {
        Self { complete: true, reason: reason.as_str().to_owned(), message: message.into() }
    }

    /// It was not.
    pub fn failed(reason: AgentOutcome, message: impl Into<String>) -> Self {
        Self { complete: false, reason: reason.as_str().to_owned(), message: message.into() }
    }
}

/// What an object in progress says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// When it was begun.
    pub start: Timestamp,
    /// The kernel's boot id then; none: it does not say.
    pub boot_id: Option<String>,
}

/// Who carries it out, as `status.executor` says.
pub fn executor(machine: &str) -> String {
    format!("bedplate-agent/{machine}")
}

/// Of an operation in progress; `None` for others.
pub fn taken_of(status: Option<&MachineOperationStatus>, now: Timestamp) -> Option<Taken> {
    let status = status.filter(|status| status.state == Some(OperationState::InProgress))?;
    let start = status.start_time.as_ref().map_or(now, |time| time.0);
    Some(Taken { start, boot_id: status.boot_id.clone() })
}

/// Whether it has ended.
pub fn is_finished(status: Option<&MachineOperationStatus>) -> bool {
    match status.and_then(|status| status.state) {
        Some(OperationState::Complete | OperationState::Failed) => true,
        Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) | None => false,
    }
}

/// Taken by `executor` in this boot.
pub fn taken(
    before: Option<&MachineOperationStatus>,
    executor: &str,
    boot_id: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    status.state = Some(OperationState::InProgress);
    status.executor = Some(executor.to_owned());
    status.start_time = Some(Time(now));
    status.reason = Some(PendingOperationReason::InProgress.as_str().to_owned());
    status.message = Some("taken by the agent".to_owned());
    status.boot_id = Some(boot_id.to_owned());
    status
}

/// Still in progress: what is being done, or awaited.
pub fn under_way(before: Option<&MachineOperationStatus>, message: &str) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    status.message = Some(message.chars().take(MESSAGE).collect());
    status
}

/// The Node is about to be cordoned for it.
pub fn cordoned(before: Option<&MachineOperationStatus>, now: Timestamp) -> MachineOperationStatus {
    let mut status = under_way(before, "cordoning the Node");
    status.conditions.retain(|condition| condition.type_ != CORDONED);
    status.conditions.push(Condition {
        type_: CORDONED.to_owned(),
        status: "True".to_owned(),
        reason: "Draining".to_owned(),
        message: "the Node is cordoned for this operation, and given free after it".to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    });
    status
}

/// The Pods have left; its Node is to be deleted by who may.
pub fn drained(
    before: Option<&MachineOperationStatus>,
    message: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = under_way(before, message);
    status.conditions.retain(|condition| condition.type_ != DRAINED);
    status.conditions.push(Condition {
        type_: DRAINED.to_owned(),
        status: "True".to_owned(),
        reason: "PodsLeft".to_owned(),
        message: "the Pods have left the Node, which may be deleted".to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    });
    status
}

/// Whether its Node was drained to be deleted.
pub fn is_drained(status: Option<&MachineOperationStatus>) -> bool {
    status.is_some_and(|status| status.conditions.iter().any(|condition| condition.type_ == DRAINED))
}

/// Whether the Node may have been cordoned for it.
pub fn is_cordoned(status: Option<&MachineOperationStatus>) -> bool {
    status.is_some_and(|status| status.conditions.iter().any(|condition| condition.type_ == CORDONED))
}

/// When the Node was cordoned for it; `now`, if it was not or that is said to be yet to come.
pub fn cordoned_at(status: Option<&MachineOperationStatus>, now: Timestamp) -> Timestamp {
    let conditions = status.into_iter().flat_map(|status| &status.conditions);
    let cordoned = conditions.into_iter().find(|condition| condition.type_ == CORDONED);
    cordoned.map_or(now, |condition| condition.last_transition_time.0.min(now))
}

/// Not begun, and why.
pub fn waits(
    before: Option<&MachineOperationStatus>,
    reason: PendingOperationReason,
    message: &str,
) -> MachineOperationStatus {
    let mut status = under_way(before, message);
    status.state = Some(OperationState::Pending);
    status.reason = Some(reason.as_str().to_owned());
    status
}

/// Ended.
pub fn ended(
    before: Option<&MachineOperationStatus>,
    end: &End,
    executor: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = under_way(before, &end.message);
    status.state = Some(if end.complete { OperationState::Complete } else { OperationState::Failed });
    status.start_time.get_or_insert(Time(now));
    status.completion_time = Some(Time(now));
    status.executor = Some(executor.to_owned());
    status.reason = Some(end.reason.chars().take(63).collect());
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn o1_the_boot_in_which_it_was_taken_is_read_back() {
        let status = taken(None, "bedplate-agent/a", "b0", at(1));
        assert!(!is_cordoned(Some(&status)) && is_cordoned(Some(&cordoned(Some(&status), at(2)))));
        let expected = Taken { start: at(1), boot_id: Some("b0".to_owned()) };
        assert_eq!(taken_of(Some(&status), at(9)), Some(expected.clone()));
        let cordon = cordoned(Some(&status), at(2));
        assert_eq!(cordoned_at(Some(&status), at(9)), at(9));
        assert_eq!((cordoned_at(Some(&cordon), at(9)), cordoned_at(Some(&cordon), at(1))), (at(2), at(1)));
        assert_eq!(taken_of(Some(&under_way(Some(&status), "draining")), at(9)), Some(expected));
        let end = ended(
            Some(&status),
            &End::failed(AgentOutcome::TimedOut, "x".repeat(5000)),
            "bedplate-agent/a",
            at(9),
        );
        assert_eq!(taken_of(Some(&end), at(9)), None);
        assert_eq!((end.message.unwrap().len(), end.start_time.unwrap().0), (4096, at(1)));
    }

    #[test]
    fn o1_one_that_waits_is_pending_and_was_not_begun() {
        let status = waits(None, PendingOperationReason::MachinePaused, "the Machine is paused");
        assert_eq!((status.state, status.start_time), (Some(OperationState::Pending), None));
    }
}
