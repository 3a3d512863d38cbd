//! Control planes that nothing ends but a person: a slot in which a cluster was made, and one on trial whose etcd has joined a cluster.
//!
//! Pure. Part of `plan`.

use bedplate_api::machine::SlotName;
use bedplate_api::reason::machine::PavedReason;
use jiff::{SignedDuration, Timestamp};

use super::holds::is_drained;
use super::{SLOTS, applied, later, named, runs, stage, stop_and_empty, wait};
use crate::model::{Observed, Plan, Stage, Step, VersionFacts, Wait, index};
use crate::slot::paths::letter;

/// Said of a slot whose kubeadm has made a cluster.
pub(super) const CLUSTER: &str =
    "the cluster that was made here is in this slot: it stays, and no other version is paved in its place";

/// How soon etcd is asked again whether it would let a control plane go: nobody tells of its members.
const ASKED: SignedDuration = SignedDuration::from_secs(60);

/// Whether a cluster was made in a slot.
pub(super) fn made_cluster(seen: &Observed, slot: SlotName) -> bool {
    seen.slots[index(slot)].made_cluster
}

/// Whether no failed trial, boot or selection stops or empties a slot.
pub(super) fn is_kept(seen: &Observed, slot: SlotName) -> bool {
    seen.slots[index(slot)].is_kept()
}

/// A slot is left for good: stopped and emptied, but before that a joined control plane is taken out of its cluster's etcd, which would count
/// a member that is gone.
pub(super) fn give_up(seen: &Observed, slot: SlotName) -> Step {
    let joined = seen.slots[index(slot)].joined_control_plane;
    // Written once it is out.
    if joined && stage(seen, slot) != Some(&Stage::Retired) {
        return Step::LeaveCluster { slot };
    }
    stop_and_empty(seen, slot)
}

/// A slot that is the node is left for another one that is ready: not before a joined control plane is out of its cluster's etcd. What comes
/// next joins under the same name and address, and two of one cannot be.
pub(super) fn leave_first(seen: &Observed, former: SlotName, plan: Plan) -> Plan {
    let joined = seen.slots[index(former)].joined_control_plane;
    match plan {
        Plan::Do(Step::BeginTrial { .. }) if joined => Plan::Do(Step::LeaveCluster { slot: former }),
        plan => plan,
    }
}

/// A control plane that has joined is the node, and its etcd may not be left for what is selected: nothing is made ready for that, and whoever
/// asks for a repave reads so before anything is disturbed.
pub(super) fn may_not_leave(seen: &Observed, version: &VersionFacts, why: &str) -> Plan {
    let message = format!(
        "{} is selected, and is not paved: let the Node be while this host's member of etcd cannot leave its cluster: {why}",
        named(&version.reference)
    );
    Plan::Wait(Wait {
        reason: PavedReason::ControlPlaneProtected,
        message,
        until: Some(later(seen.now, ASKED)),
    })
}

/// It may be left by now; that is looked at again.
pub(super) fn may_leave(seen: &Observed, message: &str) -> Plan {
    let until = Some(later(seen.now, ASKED));
    Plan::Wait(Wait { reason: PavedReason::Applied, message: message.to_owned(), until })
}

/// What is done about a control plane that its record does not have run: its trial was failed in the very moment in which kubeadm came to its
/// end, or somebody has removed the record. None: there is no such.
pub(super) fn astray(seen: &Observed) -> Option<Plan> {
    // For one that was stopped, what runs in its place is not disturbed.
    let free = applied(seen).is_none();
    let astray = |slot: &SlotName| {
        let known =
            matches!(stage(seen, *slot), Some(Stage::Prepared | Stage::Trial { .. } | Stage::Applied { .. }));
        is_kept(seen, *slot) && !known && (free || runs(seen, *slot))
    };
    let slot = SLOTS.into_iter().find(astray)?;
    if is_drained(seen) {
        return Some(Plan::Do(give_up(seen, slot)));
    }
    if matches!(stage(seen, slot), Some(Stage::Failed { .. })) {
        return Some(Plan::Do(Step::RestartTrial { slot }));
    }
    let message = format!(
        "a cluster is in slot {}, and no record.json says what to do with it: nothing is done; docs/node.md, \"The first control plane\", says \
         how to save it, or to give it up",
        letter(slot)
    );
    Some(wait(PavedReason::ControlPlaneProtected, &message))
}

/// Nothing else is put where a control plane is kept, nor beside it.
pub(super) fn in_the_way(slot: SlotName) -> Plan {
    let message = format!(
        "a control plane is in slot {}, which is not emptied by itself: nothing else is paved; docs/node.md, \"The first control plane\", says how \
         to give it up",
        letter(slot)
    );
    wait(PavedReason::ControlPlaneProtected, &message)
}

/// A trial is over at its deadline. That of a control plane has none: it is not taken back because something is late, such as the network
/// plug-in that a person brings, and a member of etcd that is stopped may be the one that its cluster's quorum needs.
pub(super) fn until(seen: &Observed, slot: SlotName, mut awaited: Wait, deadline: Timestamp) -> Wait {
    if !is_kept(seen, slot) {
        // Over, it waits for the API server alone, whose word comes by itself.
        let deadline = Some(deadline).filter(|deadline| *deadline > seen.now);
        awaited.until = [awaited.until, deadline].into_iter().flatten().min();
    } else if seen.now >= deadline {
        awaited.message += "; the control plane in this slot is kept, however long that takes";
    }
    awaited
}
