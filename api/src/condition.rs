//! Conditions: set with a transition time that moves only when the status does (Kubernetes API conventions).
//!
//! Pure: the time is an argument. Every program that writes conditions sets them by this.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::claim::MachineClaimStatus;
use crate::cluster::full;
use crate::cluster::infrastructure::{BedplateClusterStatus, BedplateMachineStatus};
use crate::cluster::kubeadm::KubeadmConfigStatus;
use crate::configuration::{MachineConfiguration, MachineConfigurationStatus};
use crate::machine::{Machine, MachineStatus};
use crate::operation::{MachineOperation, MachineOperationStatus};
use crate::reason::ConditionReason;
use crate::reason::machine::ReadyReason;
use crate::version::{MachineConfigurationVersion, MachineConfigurationVersionStatus};

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

/// Status or object with conditions.
pub trait Conditions {
    /// Returns the conditions. An object without a status has none.
    fn conditions(&self) -> &[Condition];

    /// Returns the condition of a type.
    fn condition(&self, type_: &str) -> Option<&Condition> {
        condition(self.conditions(), type_)
    }

    /// Returns true if the condition of a type is True.
    fn is_true(&self, type_: &str) -> bool {
        is_true(self.conditions(), type_)
    }
}

macro_rules! statuses {
    ($($status:ty),+ $(,)?) => {
        $(
            impl AsMut<Vec<Condition>> for $status {
                fn as_mut(&mut self) -> &mut Vec<Condition> {
                    &mut self.conditions
                }
            }

            impl Conditions for $status {
                fn conditions(&self) -> &[Condition] {
                    &self.conditions
                }
            }
        )+
    };
}

statuses!(
    BedplateClusterStatus,
    BedplateMachineStatus,
    KubeadmConfigStatus,
    MachineClaimStatus,
    MachineConfigurationStatus,
    MachineConfigurationVersionStatus,
    MachineOperationStatus,
    MachineStatus,
);

macro_rules! objects {
    ($($object:ty),+ $(,)?) => {
        $(
            impl Conditions for $object {
                fn conditions(&self) -> &[Condition] {
                    self.status.as_ref().map_or(&[], |status| &status.conditions)
                }
            }
        )+
    };
}

objects!(
    Machine,
    MachineConfiguration,
    MachineConfigurationVersion,
    MachineOperation,
    full::Cluster,
    full::Machine,
    full::MachineDeployment,
    full::MachineHealthCheck,
    full::MachineSet,
);

/// Returns the condition of a type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns true if the condition of a type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Returns true if the condition of a type is False.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == "False")
}

/// Sets a condition of a status, or of a list. The reason selects the type. The transition time changes only with the condition's status.
///
/// `generation`: `metadata.generation` of the object that the writer acted on. `None` if the condition does not follow the spec: a
/// generation that stays behind would make readers wait for a newer condition.
pub fn set_condition<R: ConditionReason>(
    status: &mut impl AsMut<Vec<Condition>>,
    state: impl Into<ConditionState>,
    reason: R,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    put(status.as_mut(), (R::TYPE, state.into(), reason.as_str(), message), generation, now);
}

/// Sets the generation of conditions of these types that are there: their writer has acted on it, and they stay as they are.
pub fn observe_generation(status: &mut impl AsMut<Vec<Condition>>, types: &[&str], generation: Option<i64>) {
    for condition in status.as_mut().iter_mut().filter(|condition| types.contains(&condition.type_.as_str()))
    {
        condition.observed_generation = generation;
    }
}

/// Sets condition `Ready`. Its reason is one of its own, or that of the condition that is not met.
pub fn set_ready(
    status: &mut impl AsMut<Vec<Condition>>,
    state: impl Into<ConditionState>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    put(status.as_mut(), (ReadyReason::TYPE, state.into(), reason, message), generation, now);
}

/// Sets a condition that shows the reason of another one, or of a status.
pub fn set_derived(
    status: &mut impl AsMut<Vec<Condition>>,
    type_: &str,
    state: impl Into<ConditionState>,
    (reason, message): (&str, &str),
    generation: Option<i64>,
    now: Timestamp,
) {
    put(status.as_mut(), (type_, state.into(), reason, message), generation, now);
}

fn put(
    conditions: &mut Vec<Condition>,
    (type_, state, reason, message): (&str, ConditionState, &str, &str),
    generation: Option<i64>,
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
        condition.observed_generation = generation;
        return;
    }
    conditions.push(Condition {
        last_transition_time: Time(now),
        message,
        observed_generation: generation,
        reason: reason.to_owned(),
        status: state.to_owned(),
        type_: type_.to_owned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::machine::{BootedReason, PoweredOnReason};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_condition_has_the_generation_that_its_writer_acted_on_last() {
        let mut status = MachineStatus::default();
        set_condition(&mut status, true, PoweredOnReason::PoweredOn, "", Some(1), at(1));
        set_condition(&mut status, true, BootedReason::AwaitingBoot, "", None, at(1));
        let seen = |status: &MachineStatus| -> Vec<_> {
            let of = |c: &Condition| (c.observed_generation, c.last_transition_time.0);
            status.conditions.iter().map(of).collect()
        };
        assert_eq!(seen(&status), [(Some(1), at(1)), (None, at(1))]);
        set_condition(&mut status, true, PoweredOnReason::PoweredOn, "", Some(2), at(2));
        assert_eq!(seen(&status), [(Some(2), at(1)), (None, at(1))]);
        observe_generation(&mut status, &["PoweredOn"], Some(3));
        assert_eq!(seen(&status), [(Some(3), at(1)), (None, at(1))]);
    }
}
