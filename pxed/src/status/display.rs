//! Pure: `phase` and `Ready` where there is no controller to derive them (directory mode). For display only (M11).

use bedplate_api::id::MachineName;
use bedplate_api::machine::{MachineStatus, Phase, condition_type};
use bedplate_api::reason::Reason;
use bedplate_api::reason::machine::{
    BootedReason, EnrolledReason, NodeReadyReason, PoweredOnReason, ReadyReason,
};
use jiff::Timestamp;

use super::conditions::{booted, condition, is_true, set_ready};
use crate::boot::timeline::stage_name;

/// Fills in `phase` and `Ready` from the other conditions and the boot.
pub fn derive(paused: bool, status: &mut MachineStatus, now: Timestamp) {
    let (phase, ready, why, message) = judge(paused, status);
    status.phase = Some(phase);
    set_ready(status, ready, why, &message, now);
}

/// The same of a Machine that pxed does not boot: nothing is to be waited for but its agent.
pub fn derive_by_hand(name: &MachineName, status: &mut MachineStatus, now: Timestamp) {
    if !is_true(status, condition_type::ENROLLED) {
        status.phase = Some(Phase::Pending);
        let message = format!("waiting for its agent: `bedplate machine token {name}` makes a token for it");
        set_ready(status, false, EnrolledReason::AwaitingEnrolment.as_str(), &message, now);
    }
}

fn judge(paused: bool, status: &MachineStatus) -> (Phase, bool, &'static str, String) {
    if paused {
        return (
            Phase::Paused,
            false,
            ReadyReason::Paused.as_str(),
            "spec.paused is set: the machine is left as it is".to_owned(),
        );
    }
    let booted_condition = booted(status);
    if let Some(c) = booted_condition.filter(|c| c.reason == BootedReason::DuplicateMacAddress) {
        return (Phase::Failed, false, BootedReason::DuplicateMacAddress.as_str(), c.message.clone());
    }
    if let Some(c) = condition(status, condition_type::POWERED_ON).filter(|c| c.status == "False") {
        let reason = PoweredOnReason::parse(&c.reason).unwrap_or(PoweredOnReason::PoweredOff);
        let phase = match reason {
            PoweredOnReason::PoweringOn => Phase::PoweringOn,
            PoweredOnReason::PowerOnAttemptsExhausted => Phase::Failed,
            PoweredOnReason::PoweredOn
            | PoweredOnReason::PoweredOff
            | PoweredOnReason::PoweringOff
            | PoweredOnReason::FoundRunning
            | PoweredOnReason::HeldOff
            | PoweredOnReason::NotReadable => Phase::Pending,
        };
        return (phase, false, reason.as_str(), c.message.clone());
    }
    if is_true(status, condition_type::ENROLLED) {
        return judge_node(status);
    }
    let stage = status.boot.as_ref().and_then(|boot| boot.stage);
    let first_unmet = booted_condition
        .filter(|c| c.status != "True")
        .or_else(|| condition(status, condition_type::ENROLLED).filter(|c| c.status != "True"));
    // Packets in the name of a server that runs are no boot of it.
    let is_booting = status.boot.as_ref().is_some_and(|boot| boot.seed_time.is_some());
    let found =
        condition(status, condition_type::POWERED_ON).filter(|c| c.reason == PoweredOnReason::FoundRunning);
    if let Some(found) = found.filter(|_| !is_booting) {
        return (Phase::Pending, false, PoweredOnReason::FoundRunning.as_str(), found.message.clone());
    }
    match (stage, first_unmet) {
        (None, None) => (
            Phase::Pending,
            false,
            BootedReason::AwaitingBoot.as_str(),
            "waiting for its first DHCP packet".to_owned(),
        ),
        (None, Some(c)) => (Phase::Pending, false, ReadyReason::NotBooted.as_str(), c.message.clone()),
        (Some(_), Some(c)) => (Phase::Booting, false, BootedReason::Booting.as_str(), c.message.clone()),
        (Some(stage), None) => {
            let message = format!("the boot has reached {}", stage_name(stage));
            (Phase::Booting, false, BootedReason::Booting.as_str(), message)
        }
    }
}

/// How far the node of an enrolled host is.
fn judge_node(status: &MachineStatus) -> (Phase, bool, &'static str, String) {
    let unmet = |type_| condition(status, type_).filter(|c| c.status != "True").map(|c| c.message.clone());
    match condition(status, condition_type::CONFIGURATION_PENDING) {
        None => {
            return (
                Phase::Enrolled,
                false,
                EnrolledReason::Enrolled.as_str(),
                "waiting for the choice of a version".to_owned(),
            );
        }
        Some(c) if c.status == "True" => {
            return (
                Phase::ConfigurationPending,
                false,
                ReadyReason::ConfigurationPending.as_str(),
                c.message.clone(),
            );
        }
        Some(_) => {}
    }
    if status.selected.is_none() {
        return (
            Phase::Enrolled,
            false,
            EnrolledReason::Enrolled.as_str(),
            "waiting for the choice of a version".to_owned(),
        );
    }
    let awaits_agent = || "waiting for its agent, which makes the node".to_owned();
    if let Some(message) = unmet(condition_type::PAVED) {
        let phase = match (&status.rolled_back, &status.applied) {
            (Some(_), _) => Phase::RolledBack,
            (None, Some(_)) => Phase::Repaving,
            (None, None) => Phase::Paving,
        };
        return (phase, false, ReadyReason::NotPaved.as_str(), message);
    }
    if let Some(message) = unmet(condition_type::NODE_READY) {
        return (Phase::Paving, false, NodeReadyReason::NodeNotReady.as_str(), message);
    }
    if !is_true(status, condition_type::PAVED) || !is_true(status, condition_type::NODE_READY) {
        return (Phase::Paving, false, ReadyReason::NotPaved.as_str(), awaits_agent());
    }
    (Phase::Ready, true, NodeReadyReason::NodeReady.as_str(), "the Node is Ready".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_api::condition::set_condition;
    use bedplate_api::reason::machine::{ConfigurationPendingReason, PavedReason};

    #[test]
    fn a_machine_that_is_off_is_not_ready_whatever_its_last_boot_came_to() {
        for (reason, phase) in [
            (PoweredOnReason::PoweringOn, Phase::PoweringOn),
            (PoweredOnReason::HeldOff, Phase::Pending),
            (PoweredOnReason::PoweredOff, Phase::Pending),
            (PoweredOnReason::PowerOnAttemptsExhausted, Phase::Failed),
        ] {
            let mut status = MachineStatus::default();
            let now = Timestamp::UNIX_EPOCH;
            set_condition(&mut status, true, EnrolledReason::Enrolled, "", now);
            set_condition(&mut status, false, reason, "off", now);
            derive(false, &mut status, now);
            assert_eq!(status.phase, Some(phase), "{reason}");
            assert!(!is_true(&status, condition_type::READY));
            set_condition(&mut status, true, PoweredOnReason::PoweredOn, "", now);
            derive(false, &mut status, now);
            assert_eq!(status.phase, Some(Phase::Enrolled));
        }
    }

    #[test]
    fn an_enrolled_machine_is_ready_with_its_node_and_says_until_then_what_is_awaited() {
        let (mut status, now) = (MachineStatus::default(), Timestamp::UNIX_EPOCH);
        let mut then = |type_: &str, state: bool, message: &str| {
            let reason = EnrolledReason::Enrolled;
            match type_ {
                condition_type::ENROLLED => set_condition(&mut status, state, reason, message, now),
                condition_type::PAVED => {
                    set_condition(&mut status, state, PavedReason::Joining, message, now);
                }
                condition_type::NODE_READY => {
                    set_condition(&mut status, state, NodeReadyReason::NodeNotReady, message, now);
                }
                _ => {
                    let reason = ConfigurationPendingReason::NoConfiguration;
                    set_condition(&mut status, state, reason, message, now);
                }
            }
            if type_ == condition_type::PAVED {
                let selected = serde_json::json!({ "name": "w", "version": 1, "by": "Selector" });
                status.selected = serde_json::from_value(selected).unwrap();
            }
            derive(false, &mut status, now);
            let ready = condition(&status, condition_type::READY).unwrap();
            (status.phase.unwrap(), ready.status.clone(), ready.message.clone())
        };
        let waits = |phase, message: &str| (phase, "False".to_owned(), message.to_owned());
        assert_eq!(
            then(condition_type::ENROLLED, true, ""),
            waits(Phase::Enrolled, "waiting for the choice of a version")
        );
        let pending = condition_type::CONFIGURATION_PENDING;
        assert_eq!(then(pending, true, "none matches"), waits(Phase::ConfigurationPending, "none matches"));
        then(pending, false, "");
        assert_eq!(then(condition_type::PAVED, false, "starting"), waits(Phase::Paving, "starting"));
        assert_eq!(
            then(condition_type::PAVED, true, ""),
            waits(Phase::Paving, "waiting for its agent, which makes the node")
        );
        assert_eq!(then(condition_type::NODE_READY, false, "kubelet"), waits(Phase::Paving, "kubelet"));
        let ready = then(condition_type::NODE_READY, true, "");
        assert_eq!((ready.0, ready.1.as_str()), (Phase::Ready, "True"));
    }
}
