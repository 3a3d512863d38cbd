//! Progress of an operation in its object: reads `status`, and builds it for each write (docs/design/rules.md, O1).
//!
//! Pure: no clock, no file, no socket. Callers: `plan`, `run`.

use bedplate_api::condition::set_condition;
use bedplate_api::machine::Time;
use bedplate_api::operation::condition_type::{CORDONED, DRAINED};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_api::reason::operation::{
    AgentOutcome, CordonedReason, OperationDrainedReason, PendingOperationReason,
};
use bedplate_rules::operation as rules;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum length of a status message.
const MAX_MESSAGE_CHARS: usize = 4096;

/// Result of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// True if the operation succeeded.
    pub complete: bool,
    /// Reason for the status.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

impl End {
    /// Returns the result of a successful operation.
    pub fn done(reason: AgentOutcome, message: impl Into<String>) -> Self {
        Self { complete: true, reason: reason.as_str().to_owned(), message: message.into() }
    }

    /// Returns the result of a failed operation.
    pub fn failed(reason: AgentOutcome, message: impl Into<String>) -> Self {
        Self { complete: false, reason: reason.as_str().to_owned(), message: message.into() }
    }
}

/// Fields of an object in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Time of the start.
    pub start: Timestamp,
    /// Boot ID at the start. None: the status has none.
    pub boot_id: Option<String>,
}

/// Returns the `status.executor` of the agent.
pub fn executor(machine: &str) -> String {
    format!("bedplate-agent/{machine}")
}

/// Returns the fields of an operation in progress; `None` for others.
pub(crate) fn taken_of(status: Option<&MachineOperationStatus>, now: Timestamp) -> Option<Taken> {
    let status = status.filter(|status| status.state == Some(OperationState::InProgress))?;
    let start = status.start_time.as_ref().map_or(now, |time| time.0);
    Some(Taken { start, boot_id: status.boot_id.clone() })
}

/// Returns true if the operation is finished.
pub fn is_finished(status: Option<&MachineOperationStatus>) -> bool {
    match status.and_then(|status| status.state) {
        Some(OperationState::Complete | OperationState::Failed) => true,
        Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) | None => false,
    }
}

/// Builds the status of an operation that `executor` has accepted in this boot.
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
    status.message = Some("accepted by the agent".to_owned());
    status.boot_id = Some(boot_id.to_owned());
    status
}

/// Builds the status of an operation in progress, with a message about its current step.
pub(crate) fn under_way(before: Option<&MachineOperationStatus>, message: &str) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    status.message = Some(message.chars().take(MAX_MESSAGE_CHARS).collect());
    status
}

/// Builds the status before the Node is cordoned for the operation.
pub fn cordoned(operation: &MachineOperation, now: Timestamp) -> MachineOperationStatus {
    let mut status = under_way(operation.status.as_ref(), "cordoning the Node");
    status.conditions.retain(|condition| condition.type_ != CORDONED);
    let message = "the Node is cordoned for this operation and is uncordoned when the operation finishes";
    set_condition(&mut status, true, CordonedReason::Draining, message, operation.metadata.generation, now);
    status
}

/// Builds the status after the eviction. The Node must be deleted by a client that may delete it.
pub fn drained(operation: &MachineOperation, message: &str, now: Timestamp) -> MachineOperationStatus {
    let mut status = under_way(operation.status.as_ref(), message);
    let text = "the Node is drained and may be deleted";
    set_condition(
        &mut status,
        true,
        OperationDrainedReason::PodsEvicted,
        text,
        operation.metadata.generation,
        now,
    );
    status
}

/// Returns true if the Node was drained for its deletion.
pub fn is_drained(status: Option<&MachineOperationStatus>) -> bool {
    status.is_some_and(|status| status.conditions.iter().any(|condition| condition.type_ == DRAINED))
}

/// Returns true if the Node may have been cordoned for the operation.
pub fn is_cordoned(status: Option<&MachineOperationStatus>) -> bool {
    status.is_some_and(|status| status.conditions.iter().any(|condition| condition.type_ == CORDONED))
}

/// Returns when the Node was cordoned for the operation. Returns `now` if it
/// was not, or if that time is in the future.
pub(crate) fn cordoned_at(status: Option<&MachineOperationStatus>, now: Timestamp) -> Timestamp {
    let conditions = status.into_iter().flat_map(|status| &status.conditions);
    let cordoned = conditions.into_iter().find(|condition| condition.type_ == CORDONED);
    cordoned.map_or(now, |condition| condition.last_transition_time.0.min(now))
}

/// Builds the status of an operation that does not start yet, with the reason.
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

/// Builds the status of a finished operation.
pub fn ended(
    operation: &MachineOperation,
    end: &End,
    executor: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = operation.status.clone().unwrap_or_default();
    status.start_time.get_or_insert(Time(now));
    status.executor = Some(executor.to_owned());
    let end = rules::End { complete: end.complete, reason: &end.reason, message: &end.message };
    rules::ended(status, end, operation.metadata.generation, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn operation(status: &MachineOperationStatus) -> MachineOperation {
        let object = serde_json::json!({ "metadata": { "name": "o", "generation": 1 }, "status": status,
            "spec": { "operationName": "reboot", "machineRef": { "name": "a" } } });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn o1_conditions_of_an_operation_name_its_generation() {
        let status = cordoned(&operation(&taken(None, "x", "b0", at(1))), at(2));
        let status = drained(&operation(&status), "awaits", at(3));
        let end = End::failed(AgentOutcome::TimedOut, "late");
        let status = ended(&operation(&status), &end, "x", at(4));
        let found: Vec<_> =
            status.conditions.iter().map(|c| (c.type_.as_str(), c.observed_generation)).collect();
        let types = ["Cordoned", "Drained", "Failed", "Stalled"];
        assert_eq!(found, types.map(|type_| (type_, Some(1))));
    }

    #[test]
    fn o1_the_boot_in_which_it_was_taken_is_read_back() {
        let status = taken(None, "bedplate-agent/a", "b0", at(1));
        assert!(!is_cordoned(Some(&status)) && is_cordoned(Some(&cordoned(&operation(&status), at(2)))));
        let expected = Taken { start: at(1), boot_id: Some("b0".to_owned()) };
        assert_eq!(taken_of(Some(&status), at(9)), Some(expected.clone()));
        let cordon = cordoned(&operation(&status), at(2));
        assert_eq!(cordoned_at(Some(&status), at(9)), at(9));
        assert_eq!((cordoned_at(Some(&cordon), at(9)), cordoned_at(Some(&cordon), at(1))), (at(2), at(1)));
        assert_eq!(taken_of(Some(&under_way(Some(&status), "draining")), at(9)), Some(expected));
        let end = ended(
            &operation(&status),
            &End::failed(AgentOutcome::TimedOut, "x".repeat(5000)),
            "bedplate-agent/a",
            at(9),
        );
        assert_eq!(taken_of(Some(&end), at(9)), None);
        assert_eq!((end.message.unwrap().len(), end.start_time.unwrap().0), (4096, at(1)));
    }

    #[test]
    fn o1_waiting_operation_is_pending_and_was_not_started() {
        let status = waits(None, PendingOperationReason::MachinePaused, "the Machine is paused");
        assert_eq!((status.state, status.start_time), (Some(OperationState::Pending), None));
    }
}
