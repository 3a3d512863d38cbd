//! Conditions of the Machine that stop or drive the plan, whatever the slots contain.
//!
//! Pure. Part of `plan`.

use super::record;
use crate::model::{Api, MachineFacts, NodeSeen, Observed, Wait};
use bedplate_api::machine::SlotName;
use bedplate_api::reason::machine::PavedReason;

/// Returns the reason for leaving the machine unchanged. None while the API server is unreachable.
pub(super) fn held(seen: &Observed) -> Option<Wait> {
    let because = |reason, message: String| Some(Wait { reason, message, until: None });
    if seen.api != Api::Live {
        return None;
    }
    let Some(machine) = seen.machine.as_ref().filter(|machine| machine.ours) else {
        return because(PavedReason::MachineNotFound, gone(seen, seen.machine.as_ref()).to_owned());
    };
    if machine.deleting {
        because(PavedReason::MachineDeleting, "the Machine is being deleted".to_owned())
    } else if machine.paused {
        because(PavedReason::Paused, "spec.paused is true".to_owned())
    } else {
        let claim = machine.claimed_by.as_ref()?;
        because(PavedReason::Claimed, format!("{claim} claims this Machine and manages its Node"))
    }
}

/// Returns true if the last known Machine leaves its host to the agent.
pub(super) fn is_free(machine: &MachineFacts) -> bool {
    machine.ours && !machine.paused && !machine.deleting && machine.claimed_by.is_none()
}

/// Returns true if a trial may continue; only then does its time run.
pub fn is_timed(seen: &Observed) -> bool {
    seen.api == Api::Live && held(seen).is_none()
}

/// Returns true if the Machine is deleted with Drain and its Node is gone: its slots must not run any more.
pub(in crate::node) fn is_drained(seen: &Observed) -> bool {
    let machine = seen.machine.as_ref().filter(|machine| machine.ours);
    // A claim's slot is emptied at its release: its Node is in another cluster.
    seen.api == Api::Live
        && seen.node == NodeSeen::Absent
        && machine.is_some_and(|machine| machine.deleting && machine.drain && machine.claimed_by.is_none())
}

/// Returns true if a slot was filled for this Machine (UID).
pub(super) fn is_made_for(seen: &Observed, machine: &MachineFacts) -> bool {
    SlotName::ALL
        .into_iter()
        .filter_map(|slot| record(seen, slot))
        .any(|record| record.machine_uid == machine.uid)
}

/// Returns why this host's Machine is missing.
pub(super) fn gone(seen: &Observed, machine: Option<&MachineFacts>) -> &'static str {
    match machine {
        None => "the Machine was deleted; its Node is unchanged",
        Some(machine) if is_made_for(seen, machine) => {
            "the Machine was enrolled with another certificate than this host's; either its API server was \
             restored from a backup and this host requests a new certificate from pxed, or another host \
             has enrolled as this Machine"
        }
        Some(_) => {
            "the Machine that this host enrolled for was replaced by another one of the same name; reboot \
             the host to enroll it"
        }
    }
}
