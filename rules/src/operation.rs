//! State of a MachineOperation, and its end: state, reason and conditions, which are written together.
//!
//! Pure. Called by each program that ends operations: the agent, pxed, bedplate-controller.

use bedplate_api::condition::set_derived;
use bedplate_api::machine::Time;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState, condition_type};
use jiff::Timestamp;

/// Maximum number of characters of `status.reason`.
const MAX_REASON_CHARACTERS: usize = 63;
/// Maximum number of characters of `status.message`.
const MAX_MESSAGE_CHARACTERS: usize = 4096;

/// Returns the state of an operation.
pub fn state(operation: &MachineOperation) -> Option<OperationState> {
    operation.status.as_ref().and_then(|status| status.state)
}

/// Returns true if an operation is Complete or has Failed.
pub fn is_finished(operation: &MachineOperation) -> bool {
    matches!(state(operation), Some(OperationState::Complete | OperationState::Failed))
}

/// End of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End<'a> {
    /// True if it is Complete, false if it has Failed.
    pub complete: bool,
    /// Reason of `status.reason` and of the conditions.
    pub reason: &'a str,
    /// Text for a user.
    pub message: &'a str,
}

/// Returns the status of an operation that ends now. `generation`: generation of the operation.
pub fn ended(
    before: MachineOperationStatus,
    end: End<'_>,
    generation: Option<i64>,
    now: Timestamp,
) -> MachineOperationStatus {
    let (state, types) = if end.complete {
        (OperationState::Complete, &[condition_type::COMPLETE][..])
    } else {
        (OperationState::Failed, &[condition_type::FAILED, condition_type::STALLED][..])
    };
    let cut = |text: &str, most| text.chars().take(most).collect::<String>();
    let reason = cut(end.reason, MAX_REASON_CHARACTERS);
    let mut status = before;
    for type_ in types {
        set_derived(&mut status, type_, true, (&reason, end.message), generation, now);
    }
    status.state = Some(state);
    status.completion_time = Some(Time(now));
    status.reason = Some(reason);
    status.message = Some(cut(end.message, MAX_MESSAGE_CHARACTERS));
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(complete: bool) -> MachineOperationStatus {
        let end = End { complete, reason: "Because", message: "why" };
        ended(MachineOperationStatus::default(), end, Some(1), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn o1_end_is_said_by_state_and_condition_with_one_reason() {
        for (complete, types) in [(true, &["Complete"][..]), (false, &["Failed", "Stalled"][..])] {
            let status = end(complete);
            let found: Vec<_> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
            assert_eq!(found, types);
            assert_eq!(format!("{:?}", status.state.unwrap()), types[0]);
            for condition in &status.conditions {
                assert_eq!((condition.status.as_str(), condition.observed_generation), ("True", Some(1)));
                let said = (Some(&condition.reason), Some(&condition.message));
                assert_eq!(said, (status.reason.as_ref(), status.message.as_ref()));
            }
            assert_eq!(status.observed_generation, Some(1));
        }
    }

    #[test]
    fn o1_end_keeps_what_was_written_before_and_cuts_long_texts() {
        let mut before = end(true);
        before.conditions.clear();
        set_derived(&mut before, "Cordoned", true, ("Draining", "m"), None, Timestamp::UNIX_EPOCH);
        before.executor = Some("x".to_owned());
        let long = "é".repeat(5000);
        let end = End { complete: false, reason: &long, message: &long };
        let status = ended(before, end, None, Timestamp::UNIX_EPOCH);
        assert_eq!((status.executor.as_deref(), status.conditions.len()), (Some("x"), 3));
        let count = |text: Option<String>| text.unwrap().chars().count();
        assert_eq!((count(status.reason), count(status.message)), (63, 4096));
    }
}
