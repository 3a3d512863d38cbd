//! Conditions: set with a transition time that moves only when the status does (Kubernetes API conventions).
//!
//! Pure: the time is an argument. Every program that writes conditions sets them by this.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::configuration::MachineConfigurationStatus;
use crate::machine::MachineStatus;
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

/// Sets a condition of a status, or of a list. Its transition time stays as it is while the condition's status does.
pub fn set_condition(
    status: &mut impl AsMut<Vec<Condition>>,
    type_: &str,
    state: impl Into<ConditionState>,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let (conditions, state) = (status.as_mut(), state.into().as_str());
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
