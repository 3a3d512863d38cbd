//! Control planes that only a user may end: a slot in which a cluster was made,
//! and one on trial whose etcd has joined a cluster.
//!
//! Pure. Part of `plan`.

use bedplate_api::machine::SlotName;
use bedplate_api::reason::machine::PavedReason;
use jiff::{SignedDuration, Timestamp};

use super::holds::is_drained;
use super::{applied, later, runs, stage, stop_and_empty, wait};
use crate::model::{Act, Observed, Plan, Stage, Step, VersionFacts, Wait};
use crate::slot::paths::letter;

/// Message of a slot whose kubeadm has made a cluster.
pub(super) const CLUSTER: &str =
    "the slot contains the cluster that kubeadm created; the slot is kept and no other version is paved";

/// Interval between questions whether a control plane may leave etcd. Changes
/// of its members are not reported.
const LEAVE_CHECK_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

/// Returns true if a cluster was made in a slot.
pub(super) fn made_cluster(seen: &Observed, slot: SlotName) -> bool {
    seen.slots[slot].made_cluster
}

/// Returns true if no failed trial, boot or selection may stop or empty a slot.
pub(super) fn is_kept(seen: &Observed, slot: SlotName) -> bool {
    seen.slots[slot].is_kept()
}

/// Stops and empties a slot permanently. Before that, a joined control plane is removed from its cluster's
/// etcd, which would count the missing member.
pub(super) fn release(seen: &Observed, slot: SlotName) -> Step {
    let joined = seen.slots[slot].joined_control_plane;
    // Recorded after the removal.
    if joined && stage(seen, slot) != Some(&Stage::Retired) {
        return Step { slot, act: Act::LeaveCluster };
    }
    stop_and_empty(seen, slot)
}

/// Replaces the slot that is the node, but not before a joined control plane has left its cluster's etcd. The
/// next slot joins under the same name and address, which etcd accepts only once.
pub(super) fn leave_first(seen: &Observed, former: SlotName, plan: Plan) -> Plan {
    let joined = seen.slots[former].joined_control_plane;
    match plan {
        Plan::Do(Step { act: Act::BeginTrial, .. }) if joined => Plan::step(former, Act::LeaveCluster),
        plan => plan,
    }
}

/// Plans for a joined control plane whose etcd member must not leave. Nothing is prepared for the selected
/// version. The user who asks for a repave reads the reason before anything is disturbed.
pub(super) fn may_not_leave(seen: &Observed, version: &VersionFacts, why: &str) -> Plan {
    let message = format!(
        "{} is selected but not paved; do not delete the Node while this host's etcd member cannot leave \
         its cluster: {why}",
        version.reference.version_name()
    );
    Plan::Wait(Wait {
        reason: PavedReason::ControlPlaneProtected,
        message,
        until: Some(later(seen.now, LEAVE_CHECK_INTERVAL)),
    })
}

/// Waits until the next question whether the member may leave.
pub(super) fn may_leave(seen: &Observed, message: &str) -> Plan {
    let until = Some(later(seen.now, LEAVE_CHECK_INTERVAL));
    Plan::Wait(Wait { reason: PavedReason::Applied, message: message.to_owned(), until })
}

/// Plans for a control plane without a record that runs it. Its trial failed at the moment kubeadm finished,
/// or the record was deleted. None: there is no such slot.
pub(super) fn astray(seen: &Observed) -> Option<Plan> {
    // A stopped control plane does not affect the slot that replaced it.
    let free = applied(seen).is_none();
    let astray = |slot: &SlotName| {
        let known =
            matches!(stage(seen, *slot), Some(Stage::Prepared | Stage::Trial { .. } | Stage::Applied { .. }));
        is_kept(seen, *slot) && !known && (free || runs(seen, *slot))
    };
    let slot = SlotName::ALL.into_iter().find(astray)?;
    if is_drained(seen) {
        return Some(Plan::Do(release(seen, slot)));
    }
    if matches!(stage(seen, slot), Some(Stage::Failed { .. })) {
        return Some(Plan::step(slot, Act::RestartTrial));
    }
    let message = format!(
        "slot {} contains a cluster but no record.json, so no step is taken; see docs/concepts/node.md, \
         \"The first control plane\", to save or to remove the cluster",
        letter(slot)
    );
    Some(wait(PavedReason::ControlPlaneProtected, &message))
}

/// Plans nothing while a control plane is in a slot that another version needs.
pub(super) fn in_the_way(slot: SlotName) -> Plan {
    let message = format!(
        "slot {} contains a control plane and is not emptied automatically, so no other version is paved; \
         see docs/concepts/node.md, \"The first control plane\", to remove it",
        letter(slot)
    );
    wait(PavedReason::ControlPlaneProtected, &message)
}

/// Sets the deadline of a trial. A control plane has none. It is not rolled back because something is late,
/// such as a network plug-in. A stopped etcd member may be the one that its cluster's quorum needs.
pub(super) fn until(seen: &Observed, slot: SlotName, mut pending: Wait, deadline: Timestamp) -> Wait {
    if !is_kept(seen, slot) {
        // After the deadline it waits only for the API server, whose answer wakes the loop.
        let deadline = Some(deadline).filter(|deadline| *deadline > seen.now);
        pending.until = [pending.until, deadline].into_iter().flatten().min();
    } else if seen.now >= deadline {
        pending.message += "; the control plane in this slot is kept without a time limit";
    }
    pending
}
