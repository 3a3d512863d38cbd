//! How far an operation is, as its object keeps it: `status` read, and made anew for each write (docs/rules.md, O1).
//!
//! Pure: no clock, no file, no socket. Callers: `operation`, `worker`, `supervisor`.

use bedplate_api::machine::{Condition, Time};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_api::reason::operation::{AgentOutcome, PendingOperationReason};
use jiff::Timestamp;

use super::plan::operation::End;
use super::plan::parameters::Kind;
use super::{Operation, OperationKey};

/// Name of the operation by which an agent shuts its host down.
const SHUTDOWN: &str = "shutdown";
/// The condition that keeps the step.
const STEP: &str = "Step";
/// In the message of the step `On` of a powerCycle whose machine was off.
const BEGAN_OFF: &str = "it was off already";

/// A step that is written before its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// On.
    On,
    /// Off at once.
    Off,
    /// The operating system is asked to shut down.
    GracefulOff,
    /// Reset.
    Reset,
}

impl Step {
    /// Its word: the reason of the condition `Step`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "On",
            Self::Off => "Off",
            Self::GracefulOff => "GracefulOff",
            Self::Reset => "Reset",
        }
    }

    fn of(word: &str) -> Option<Self> {
        [Self::On, Self::Off, Self::GracefulOff, Self::Reset].into_iter().find(|step| step.as_str() == word)
    }

    const fn message(self) -> &'static str {
        match self {
            Self::On => "switching on, until the BMC says On",
            Self::Off => "switching off at once, until the BMC says Off",
            Self::GracefulOff => "asking the operating system to shut down",
            Self::Reset => "resetting, once",
        }
    }
}

/// What an object in progress says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// When it was begun.
    pub start: Timestamp,
    /// The step, and when it was written.
    pub step: Option<(Step, Timestamp)>,
    /// Its machine was off when it began.
    pub began_off: bool,
}

impl Written {
    /// Of an operation in progress; `None` for others.
    pub fn of(status: Option<&MachineOperationStatus>, now: Timestamp) -> Option<Self> {
        let status = status.filter(|status| status.state == Some(OperationState::InProgress))?;
        let condition = status.conditions.iter().find(|c| c.type_ == STEP && c.status == "True");
        let step = condition.and_then(|c| Some((Step::of(&c.reason)?, c.last_transition_time.0)));
        let began_off = condition.is_some_and(|c| c.message.starts_with(BEGAN_OFF));
        Some(Self { start: status.start_time.as_ref().map_or(now, |time| time.0), step, began_off })
    }
}

/// An operation that has ended, and what its Machine's status ought to say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// What.
    pub kind: Kind,
    /// When it was begun.
    pub began: Option<Timestamp>,
    /// When it ended, in whole seconds.
    pub at: Timestamp,
    /// For a person.
    pub message: String,
}

impl Ended {
    /// Of an operation that an executor of `executors` (`pxed/<site>/`) has ended, and that was done or begun to be.
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
        let told = status.message.as_deref().unwrap_or_default();
        Some(Self {
            kind,
            began: status.start_time.as_ref().map(|time| time.0),
            at: status.completion_time.as_ref()?.0,
            message: format!("{} by operation {name}: {told}", kind.as_str()),
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
    pub fn is_before(&self, other: &Self) -> bool {
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

/// Whether it has ended.
pub fn is_finished(status: Option<&MachineOperationStatus>) -> bool {
    match status.and_then(|status| status.state) {
        Some(OperationState::Complete | OperationState::Failed) => true,
        Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) | None => false,
    }
}

/// Whether anything was asked for it.
pub fn has_step(status: Option<&MachineOperationStatus>) -> bool {
    status.is_some_and(|status| status.conditions.iter().any(|c| c.type_ == STEP))
}

/// Taken by `executor`; what it was begun with stays.
pub fn taken(
    before: Option<&MachineOperationStatus>,
    executor: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    let begun = status.state == Some(OperationState::InProgress);
    status.state = Some(OperationState::InProgress);
    status.executor = Some(executor.to_owned());
    if !begun || status.start_time.is_none() {
        status.start_time = Some(Time(now));
        status.conditions.retain(|c| c.type_ != STEP);
    }
    status.reason = Some(PendingOperationReason::InProgress.as_str().to_owned());
    if !begun {
        status.message = Some("reading the power state".to_owned());
    }
    status
}

/// In a step from now on.
pub fn with_step(
    before: Option<&MachineOperationStatus>,
    step: Step,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    let first = !status.conditions.iter().any(|c| c.type_ == STEP);
    let message = match (first, step) {
        (true, Step::On) => format!("{BEGAN_OFF}; {}", step.message()),
        _ => step.message().to_owned(),
    };
    status.conditions.retain(|c| c.type_ != STEP);
    status.conditions.push(Condition {
        type_: STEP.to_owned(),
        status: "True".to_owned(),
        reason: step.as_str().to_owned(),
        message: message.clone(),
        last_transition_time: Time(now),
        observed_generation: None,
    });
    status.message = Some(message);
    status
}

/// Ended.
pub fn ended(
    before: Option<&MachineOperationStatus>,
    end: &End,
    executor: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let mut status = before.cloned().unwrap_or_default();
    status.state = Some(if end.complete { OperationState::Complete } else { OperationState::Failed });
    status.start_time.get_or_insert(Time(now));
    status.completion_time = Some(Time(now));
    status.executor = Some(executor.to_owned());
    status.reason = Some(end.reason.as_str().to_owned());
    status.message = Some(end.message.chars().take(4096).collect());
    status
}
