//! Pure: conditions: set with a transition time that moves only when the status does (Kubernetes API conventions).

use bedplate_api::id::{MacAddress, MachineName};
use bedplate_api::machine::{Condition, MachineStatus, Time, condition_type};
use bedplate_api::wire::Stage;
use jiff::Timestamp;

/// Characters of a condition's message that are kept; the API server refuses more than 32768.
const MAX_MESSAGE: usize = 1024;

/// Reasons that this module uses itself; the boot path has its own.
pub mod reason {
    /// Several Machines claim one MAC address; none is served.
    pub const DUPLICATE_MAC_ADDRESS: &str = "DuplicateMACAddress";
    /// The claim was settled and the Machine has not booted since.
    pub const AWAITING_BOOT: &str = "AwaitingBoot";
    /// The host's user space has started.
    pub const USERSPACE: &str = "Userspace";
}

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

/// Sets a condition. Its transition time stays as it is while the status does.
pub fn set_condition(
    status: &mut MachineStatus,
    type_: &str,
    state: impl Into<ConditionState>,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let state = state.into().as_str();
    let message: String = message.chars().take(MAX_MESSAGE).collect();
    if let Some(condition) = status.conditions.iter_mut().find(|c| c.type_ == type_) {
        if condition.status != state {
            state.clone_into(&mut condition.status);
            condition.last_transition_time = Time(now);
        }
        reason.clone_into(&mut condition.reason);
        condition.message = message;
        return;
    }
    status.conditions.push(Condition {
        last_transition_time: Time(now),
        message,
        observed_generation: None,
        reason: reason.to_owned(),
        status: state.to_owned(),
        type_: type_.to_owned(),
    });
}

/// A condition by its type.
pub fn condition<'a>(status: &'a MachineStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|c| c.type_ == type_)
}

/// Whether a condition is True.
pub fn is_true(status: &MachineStatus, type_: &str) -> bool {
    condition(status, type_).is_some_and(|c| c.status == "True")
}

/// The condition `Booted`.
pub fn booted(status: &MachineStatus) -> Option<&Condition> {
    condition(status, condition_type::BOOTED)
}

/// What is said of a Machine whose addresses others claim too; none if nobody does.
pub fn contested_message(contested: &[(MacAddress, Vec<MachineName>)]) -> Option<String> {
    if contested.is_empty() {
        return None;
    }
    let claims = contested.iter().map(|(mac, others)| {
        let others: Vec<_> = others.iter().map(MachineName::as_str).collect();
        format!("{mac} is also claimed by {}", others.join(" and "))
    });
    Some(format!("{}; none of them is served", claims.collect::<Vec<_>>().join(", ")))
}

/// Sets `Booted` False while addresses are contested, and takes that back when they no longer are.
pub fn apply_contested(status: &mut MachineStatus, message: Option<&str>, now: Timestamp) {
    let type_ = condition_type::BOOTED;
    if let Some(message) = message {
        set_condition(status, type_, false, reason::DUPLICATE_MAC_ADDRESS, message, now);
    } else if booted(status).is_some_and(|c| c.reason == reason::DUPLICATE_MAC_ADDRESS) {
        let stage = status.boot.as_ref().and_then(|boot| boot.stage);
        if stage.is_some_and(|stage| stage >= Stage::Userspace) {
            set_condition(status, type_, true, reason::USERSPACE, "the host's user space has started", now);
        } else {
            let message = "its addresses are its own again; waiting for it to boot";
            set_condition(status, type_, false, reason::AWAITING_BOOT, message, now);
        }
    }
}
