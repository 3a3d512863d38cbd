//! Progress of an operation in its object: reads `status`, and builds it for each write (docs/design/rules.md, O1).
//!
//! Pure: no clock, no file, no socket. Callers: `operation`, `worker`, `supervisor`.

use bedplate_api::machine::Time;
use bedplate_api::operation::{
    MachineOperation, MachineOperationStatus, OperationState, OperationStep, StepName,
};
use bedplate_api::reason::operation::{AgentOutcome, PendingOperationReason};
use bedplate_rules::operation as rules;
use jiff::Timestamp;

use super::plan::operation::End;
use super::plan::parameters::Kind;
use super::{Operation, OperationKey};

/// Name of the operation by which an agent shuts its host down.
const SHUTDOWN: &str = "shutdown";
/// Text of a step, for a user.
const fn described(step: StepName) -> &'static str {
    match step {
        StepName::On => "powering on; waiting for the BMC to report On",
        StepName::Off => "forcing power off; waiting for the BMC to report Off",
        StepName::GracefulOff => "asking the operating system to shut down",
        StepName::Reset => "resetting, once",
        StepName::Unknown => "step of a later version",
    }
}

/// Progress recorded in an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Start time of the operation.
    pub start: Timestamp,
    /// The step, and when it was written.
    pub step: Option<(StepName, Timestamp)>,
    /// True if the machine was off when the operation started.
    pub began_off: bool,
}

impl Written {
    /// Reads the progress of an operation; `None` if it is not in progress.
    pub fn of(status: Option<&MachineOperationStatus>, now: Timestamp) -> Option<Self> {
        let status = status.filter(|status| status.state == Some(OperationState::InProgress))?;
        let step = status.step.as_ref();
        Some(Self {
            start: status.start_time.as_ref().map_or(now, |time| time.0),
            step: step.map(|step| (step.name, step.start_time.0)),
            began_off: step.is_some_and(|step| step.was_off),
        })
    }
}

/// Finished operation, and its result for the Machine's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Kind of the operation.
    pub kind: Kind,
    /// Start time of the operation.
    pub began: Option<Timestamp>,
    /// Time at which it ended, in whole seconds.
    pub at: Timestamp,
    /// Text for users.
    pub message: String,
}

impl Ended {
    /// Reads an operation that an executor of `executors` (`pxed/<site>/`) finished, and that was done or started.
    pub fn of(object: &MachineOperation, executors: &str) -> Option<Self> {
        let status = object.status.as_ref()?;
        let done = match status.state? {
            OperationState::Complete => true,
            OperationState::Failed => has_step(Some(status)),
            OperationState::Pending | OperationState::InProgress | OperationState::Unknown => false,
        };
        let ours = status.executor.as_deref().is_some_and(|by| by.starts_with(executors));
        let kind = Kind::of(&object.spec.operation_name).filter(|_| done && ours)?;
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let text = status.message.as_deref().unwrap_or_default();
        Some(Self {
            kind,
            began: status.start_time.as_ref().map(|time| time.0),
            at: status.completion_time.as_ref()?.0,
            message: format!("{} by operation {name}: {text}", kind.as_str()),
        })
    }
}

/// An operation `shutdown` that an agent has taken and that has not failed. Its machine stays off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutDown {
    /// Key of the operation.
    pub key: OperationKey,
    /// Creation of the operation, by the clock of the API server.
    created: Option<Timestamp>,
    /// Start of the operation, by the clock of its host.
    started: Timestamp,
    /// Latest write of the operation's status, by a clock that is not the host's.
    written: Option<Timestamp>,
    /// True if the host has accepted it. False while its agent still carries it out.
    pub complete: bool,
}

impl ShutDown {
    /// Reads a shutdown from an operation; `None` for other operations, and for a shutdown that is pending or failed.
    pub fn of(operation: &Operation) -> Option<Self> {
        let Operation { key, object, written, .. } = operation;
        let status = object.status.as_ref().filter(|_| object.spec.operation_name == SHUTDOWN)?;
        let complete = match status.state? {
            OperationState::InProgress => false,
            OperationState::Complete
                if status.reason.as_ref().is_some_and(|reason| *reason == AgentOutcome::ShutDown) =>
            {
                true
            }
            OperationState::Complete
            | OperationState::Pending
            | OperationState::Failed
            | OperationState::Unknown => return None,
        };
        let created = object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let started = status.start_time.as_ref().or(status.completion_time.as_ref())?.0;
        Some(Self { key: key.clone(), created, started, written: *written, complete })
    }

    /// Returns the time from which the machine should be off. `now` is the time at which this pxed sees the operation first: the clock of
    /// a host may be wrong, and no shutdown starts before it was created or after it was seen. Nor does it start after it was written: a
    /// pxed that was restarted sees it late.
    pub fn since(&self, now: Timestamp) -> Timestamp {
        let started = self.created.map_or(self.started, |created| self.started.max(created));
        self.written.map_or(started, |written| started.min(written)).min(now)
    }

    /// Returns true if `other` was started later.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        self.started <= other.started
    }

    /// Returns true if it was created after `machine`, or if either time is unknown.
    pub fn is_of(&self, machine: Option<Timestamp>) -> bool {
        self.created.zip(machine).is_none_or(|(created, machine)| created >= machine)
    }

    /// Returns the message of the action in the Machine's status.
    pub fn message(&self) -> String {
        format!("shut down by operation {}", self.key.name)
    }
}

/// Returns true if the operation is complete or failed.
pub fn is_finished(status: Option<&MachineOperationStatus>) -> bool {
    match status.and_then(|status| status.state) {
        Some(OperationState::Complete | OperationState::Failed) => true,
        Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) | None => false,
    }
}

/// Returns true if a request of the operation may have been sent.
pub(crate) fn has_step(status: Option<&MachineOperationStatus>) -> bool {
    status.is_some_and(|status| status.step.is_some())
}

/// Builds the status after `executor` took the operation; its start time stays.
pub fn taken(
    before: Option<&MachineOperationStatus>,
    executor: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    let is_in_progress = status.state == Some(OperationState::InProgress);
    status.state = Some(OperationState::InProgress);
    status.executor = Some(executor.to_owned());
    if !is_in_progress || status.start_time.is_none() {
        status.start_time = Some(Time(now));
        status.step = None;
    }
    status.reason = Some(PendingOperationReason::InProgress.as_str().to_owned());
    if !is_in_progress {
        status.message = Some("reading the power state".to_owned());
    }
    status
}

/// In a step from now on.
pub(crate) fn with_step(
    before: Option<&MachineOperationStatus>,
    step: StepName,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    let was_off = status.step.is_none() && step == StepName::On;
    let prefix = if was_off { "the machine was already off; " } else { "" };
    status.step = Some(OperationStep { name: step, start_time: Time(now), was_off });
    status.message = Some(format!("{prefix}{}", described(step)));
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
    let end = rules::End { complete: end.complete, reason: end.reason.as_str(), message: &end.message };
    rules::ended(status, end, operation.metadata.generation, now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn o8_step_of_a_later_version_is_not_started_again() {
        let step = json!({ "name": "Later", "startTime": "2026-01-01T00:00:00Z" });
        let status = json!({ "state": "InProgress", "step": step });
        let written = Written::of(Some(&serde_json::from_value(status).unwrap()), Timestamp::UNIX_EPOCH);
        assert_eq!(written.unwrap().step.unwrap().0, StepName::Unknown);
    }

    #[test]
    fn o8_step_is_read_back_whatever_its_message_says() {
        let mut status =
            with_step(Some(&taken(None, "p", Timestamp::UNIX_EPOCH)), StepName::On, Timestamp::UNIX_EPOCH);
        status.message = Some("another text".to_owned());
        let written = Written::of(Some(&status), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!((written.step, written.began_off), (Some((StepName::On, Timestamp::UNIX_EPOCH)), true));
    }
}
