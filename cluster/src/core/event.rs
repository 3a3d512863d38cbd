//! Pure: the Events of the group, one for each change. Called by the passes after a write that has succeeded.
//!
//! A change of a condition has an Event only if the condition was there before, so a new object has none, and neither has a restart.

use bedplate_api::cluster::full::condition_type::{DELETING, ROLLING_OUT};
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::core::{ClusterDeletingReason, MachineDeletingReason, RollingOutReason};
use bedplate_api::reason::core_event::CoreEvent;
use bedplate_replicas::Mark;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::object::condition;
use super::{cluster, set};

/// Maximum length of a note: that of an Event is 1024 bytes.
const MAX_NOTE: usize = 512;
/// Time after which a drain is reported.
const LONG_DRAIN: SignedDuration = SignedDuration::from_mins(10);

/// Change that has an Event: the reason and the note of it.
pub type Change = (CoreEvent, String);

/// Returns the Event of a write of a MachineSet.
pub fn of_set(act: &set::act::Act) -> Option<Change> {
    use set::act::{Act, Change as Of};
    match act {
        Act::CreateMachine(machine) => {
            Some((CoreEvent::MachineCreated, format!("created Machine {}", machine.name_any())))
        }
        Act::Machine(key, Of::Delete) => Some((CoreEvent::MachineDeleted, format!("deleted Machine {key}"))),
        Act::Machine(key, Of::Mark(Mark::Deleting)) => {
            let note = format!("Machine {key} failed its health check and is replaced");
            Some((CoreEvent::MachineRemediated, note))
        }
        Act::Own(_)
        | Act::Machine(_, Of::Adopt | Of::Mark(_) | Of::Propagate(_))
        | Act::DeleteClone { .. }
        | Act::CreateClone { .. }
        | Act::Label { .. } => None,
    }
}

/// Returns the Event of a write for a Cluster that is not its status.
pub fn of_cluster(act: &cluster::plan::Act) -> Option<Change> {
    use cluster::plan::Act;
    match act {
        Act::MakeKubeconfig => Some((CoreEvent::KubeconfigCreated, "created the kubeconfig".to_owned())),
        Act::RenewKubeconfig => Some((CoreEvent::KubeconfigRenewed, "renewed the kubeconfig".to_owned())),
        Act::None
        | Act::AddFinalizer
        | Act::Adopt { .. }
        | Act::SetEndpoint { .. }
        | Act::DeleteChildren(_)
        | Act::DeleteComponent(_)
        | Act::RemoveFinalizer => None,
    }
}

/// Returns the Event of a drain that takes long. `start`: start of the drain. It has no change of an object, so the caller remembers it.
pub(crate) fn of_drain(
    (reason, message): (MachineDeletingReason, &str),
    start: Option<Timestamp>,
    now: Timestamp,
) -> Option<Change> {
    let is_long = start.is_some_and(|start| now.duration_since(start) >= LONG_DRAIN);
    let is_draining = reason == MachineDeletingReason::DrainingNode;
    (is_long && is_draining).then(|| (CoreEvent::DrainBlocked, shortened(message)))
}

/// Returns the Event of a change of the conditions of a MachineDeployment.
pub(crate) fn of_rollout(before: &[Condition], after: &[Condition]) -> Option<Change> {
    let condition = changed(before, after, ROLLING_OUT)?;
    let event = match RollingOutReason::parse(&condition.reason)? {
        RollingOutReason::RollingOut => CoreEvent::RolloutStarted,
        RollingOutReason::NotRollingOut => CoreEvent::RolloutFinished,
        RollingOutReason::RollingOutUnknown | RollingOutReason::InternalError => return None,
    };
    let note =
        if event == CoreEvent::RolloutFinished { "all replicas are up-to-date" } else { &condition.message };
    Some((event, shortened(note)))
}

/// Returns the Event of a change of the conditions of a Cluster.
pub(crate) fn of_deletion(before: &[Condition], after: &[Condition]) -> Option<Change> {
    use ClusterDeletingReason as Reason;
    let condition = changed(before, after, DELETING)?;
    let event = match Reason::parse(&condition.reason)? {
        Reason::WaitingForWorkersDeletion
        | Reason::WaitingForControlPlaneDeletion
        | Reason::WaitingForInfrastructureDeletion => CoreEvent::DeletionWaiting,
        Reason::InternalError => CoreEvent::DeletionBlocked,
        Reason::NotDeleting | Reason::DeletionCompleted => return None,
    };
    Some((event, shortened(&condition.message)))
}

/// Returns a condition whose reason has changed.
fn changed<'a>(before: &[Condition], after: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    let (before, after) = (condition(before, type_)?, condition(after, type_)?);
    (before.reason != after.reason).then_some(after)
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_NOTE).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conditions(type_: &str, reason: &str) -> Vec<Condition> {
        let condition = json!([{ "type": type_, "status": "True", "reason": reason, "message": "the cause",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        serde_json::from_value(condition).unwrap()
    }

    #[test]
    fn rollout_has_an_event_at_its_start_and_at_its_end() {
        let of = |before: &[Condition], after: &str| of_rollout(before, &conditions(ROLLING_OUT, after));
        let (still, rolling) =
            (conditions(ROLLING_OUT, "NotRollingOut"), conditions(ROLLING_OUT, "RollingOut"));
        let started = Some((CoreEvent::RolloutStarted, "the cause".to_owned()));
        assert_eq!(of(&still, "RollingOut"), started);
        let finished = Some((CoreEvent::RolloutFinished, "all replicas are up-to-date".to_owned()));
        assert_eq!(of(&rolling, "NotRollingOut"), finished);
        for (before, after) in
            [(&still, "NotRollingOut"), (&rolling, "RollingOut"), (&Vec::new(), "RollingOut")]
        {
            assert_eq!(of(before, after), None, "{before:?} {after}");
        }
    }

    #[test]
    fn deletion_of_a_cluster_has_an_event_for_each_reason() {
        let of = |before: &str, after: &str| {
            let change = of_deletion(&conditions(DELETING, before), &conditions(DELETING, after));
            change.map(|(event, _)| event)
        };
        assert_eq!(of("NotDeleting", "WaitingForWorkersDeletion"), Some(CoreEvent::DeletionWaiting));
        assert_eq!(of("WaitingForWorkersDeletion", "WaitingForWorkersDeletion"), None);
        let infrastructure = "WaitingForInfrastructureDeletion";
        assert_eq!(of("WaitingForWorkersDeletion", infrastructure), Some(CoreEvent::DeletionWaiting));
        assert_eq!(of(infrastructure, "InternalError"), Some(CoreEvent::DeletionBlocked));
        assert_eq!(of(infrastructure, "DeletionCompleted"), None);
    }

    #[test]
    fn drain_has_an_event_after_10_minutes() {
        use MachineDeletingReason::{DrainingNode, WaitingForVolumeDetach};
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let of = |reason, start, minutes| {
            let now = "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap();
            of_drain((reason, "Pod a"), start, now + SignedDuration::from_mins(minutes))
        };
        assert_eq!(of(DrainingNode, Some(start), 9), None);
        let blocked = Some((CoreEvent::DrainBlocked, "Pod a".to_owned()));
        assert_eq!(of(DrainingNode, Some(start), 10), blocked);
        assert_eq!(of(WaitingForVolumeDetach, Some(start), 10), None);
        assert_eq!(of(DrainingNode, None, 10), None);
    }

    #[test]
    fn machine_has_an_event_for_its_creation_mark_and_deletion() {
        use set::act::{Act, Change as Of};
        let of = |change: Of| of_set(&Act::Machine("m".into(), change)).map(|(event, _)| event);
        assert_eq!(of(Of::Mark(Mark::Deleting)), Some(CoreEvent::MachineRemediated));
        assert_eq!(of(Of::Mark(Mark::CannotBe)), None);
        assert_eq!(of(Of::Delete), Some(CoreEvent::MachineDeleted));
        assert_eq!(of(Of::Adopt), None);
    }
}
