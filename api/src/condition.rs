//! Conditions: set with a transition time that moves only when the status does (Kubernetes API conventions).
//!
//! Pure: the time is an argument. Every program that writes conditions sets them by this.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::configuration::MachineConfigurationStatus;
use crate::machine::MachineStatus;
use crate::reason::ConditionReason;
use crate::reason::machine::ReadyReason;
use crate::version::MachineConfigurationVersionStatus;

/// Characters of a condition's message that are kept; the API server refuses more than 32768.
pub const MAX_MESSAGE: usize = 1024;

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the API's own three words")]
pub enum ConditionState {
    True,
    False,
    Unknown,
}

impl ConditionState {
    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionState {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

impl AsMut<Vec<Condition>> for MachineStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}

impl AsMut<Vec<Condition>> for MachineConfigurationStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}

impl AsMut<Vec<Condition>> for MachineConfigurationVersionStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}

/// Sets a condition of a status, or of a list. The reason selects the type. The transition time changes only with the condition's status.
pub fn set_condition<R: ConditionReason>(
    status: &mut impl AsMut<Vec<Condition>>,
    state: impl Into<ConditionState>,
    reason: R,
    message: &str,
    now: Timestamp,
) {
    put(status.as_mut(), R::TYPE, state.into(), reason.as_str(), message, now);
}

/// Sets condition `Ready`. Its reason is one of its own, or that of the condition that is not met.
pub fn set_ready(
    status: &mut impl AsMut<Vec<Condition>>,
    state: impl Into<ConditionState>,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    put(status.as_mut(), ReadyReason::TYPE, state.into(), reason, message, now);
}

fn put(
    conditions: &mut Vec<Condition>,
    type_: &str,
    state: ConditionState,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let state = state.as_str();
    let message: String = message.chars().take(MAX_MESSAGE).collect();
    if let Some(condition) = conditions.iter_mut().find(|c| c.type_ == type_) {
        if condition.status != state {
            state.clone_into(&mut condition.status);
            condition.last_transition_time = Time(now);
        }
        reason.clone_into(&mut condition.reason);
        condition.message = message;
        return;
    }
    conditions.push(Condition {
        last_transition_time: Time(now),
        message,
        observed_generation: None,
        reason: reason.to_owned(),
        status: state.to_owned(),
        type_: type_.to_owned(),
    });
}
