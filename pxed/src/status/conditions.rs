//! Pure: texts of the conditions of a Machine, also for addresses that are claimed twice.

pub use bedplate_api::condition::{ConditionState, observe_generation, set_condition};
use bedplate_api::id::{MacAddress, MachineName};
use bedplate_api::machine::{Condition, MachineStatus, condition_type};
use bedplate_api::reason::machine::BootedReason;
use bedplate_api::wire::Stage;
use jiff::Timestamp;

/// A condition by its type.
pub fn condition<'a>(status: &'a MachineStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|c| c.type_ == type_)
}

/// Returns true if a condition is True.
pub fn is_true(status: &MachineStatus, type_: &str) -> bool {
    condition(status, type_).is_some_and(|c| c.status == "True")
}

/// The condition `Booted`.
pub fn booted(status: &MachineStatus) -> Option<&Condition> {
    condition(status, condition_type::BOOTED)
}

/// Returns the message for a Machine whose addresses other Machines claim; `None` if there are none.
pub(crate) fn contested_message(contested: &[(MacAddress, Vec<MachineName>)]) -> Option<String> {
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
pub(crate) fn apply_contested(status: &mut MachineStatus, message: Option<&str>, now: Timestamp) {
    if let Some(message) = message {
        set_condition(status, false, BootedReason::DuplicateMacAddress, message, None, now);
    } else if booted(status).is_some_and(|c| c.reason == BootedReason::DuplicateMacAddress) {
        let stage = status.boot.as_ref().and_then(|boot| boot.stage);
        if stage.is_some_and(|stage| stage >= Stage::Userspace) {
            set_condition(status, true, BootedReason::UserspaceStarted, "user space has started", None, now);
        } else {
            let message = "the MAC addresses are unique again; waiting for the machine to boot";
            set_condition(status, false, BootedReason::AwaitingBoot, message, None, now);
        }
    }
}
