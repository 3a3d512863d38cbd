//! Pure: Events about one Machine's turn: start, blocked drain, failure. `machine` reports the end, because
//! it sees the new Node.

use bedplate_rules::drain::{Refusal, list};

use super::observe::{Place, Rollout};
use crate::cordon::{Failed, UpdateFailure};

/// Returns the reason why the Pods of a Node are not evicted, with the remedy.
pub(super) fn refused(refusal: &Refusal) -> (UpdateFailure, String) {
    match refusal {
        Refusal::Unmanaged(names) => (
            UpdateFailure::UnmanagedPods,
            format!(
                "no controller re-creates these Pods: {}; delete them, move them by hand, or set rollingUpdate.drain.force",
                list(names)
            ),
        ),
        Refusal::EmptyDir(names) => (
            UpdateFailure::EmptyDirData,
            format!(
                "these Pods have an emptyDir, and rollingUpdate.drain.deleteEmptyDirData is false: {}; save the data and delete the Pods",
                list(names)
            ),
        ),
    }
}

/// Returns the note of a turn that starts.
pub(super) fn started(node: &str, version: &str) -> String {
    format!("rolling update to {version} started; Node {node} is cordoned and drained")
}

/// Returns the note of a drained Node.
pub(super) fn drained(node: &str, version: &str) -> String {
    format!("Node {node} drained and deleted; paving the host with {version}")
}

/// Returns the note of a failed turn.
pub(super) fn failed(failed: &Failed) -> String {
    format!("update to {} failed: {}", failed.version, failed.message)
}

/// Returns the note of a turn that was interrupted without a failure.
pub(super) fn held(machine: &str, rollout: &Rollout) -> String {
    let member = rollout.members.iter().find(|member| member.name == machine);
    let failed = rollout.failures().next();
    let why = match (member.map(|member| &member.place), failed) {
        (Some(Place::Skipped(skip)), _) => skip.message(),
        (Some(Place::Draining(_)), Some((failed, _))) => {
            format!("Machine {} has failed; other Machines wait until this is resolved", failed.name)
        }
        (Some(Place::Draining(_)), None) => {
            format!("MachineConfiguration {} has no rolling update any more", rollout.configuration)
        }
        (
            Some(
                Place::Outdated(version)
                | Place::Preparing(version)
                | Place::Awaiting(version, _)
                | Place::Prepared(version),
            ),
            _,
        ) => {
            format!("{version} replaces the former target")
        }
        (Some(Place::UpToDate | Place::Repaving | Place::Failed(_)) | None, _) => {
            "the update is no longer needed".to_owned()
        }
    };
    format!("rolling update of this Machine interrupted, Node uncordoned: {why}")
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::configuration::DegradedReason;

    use super::*;
    use crate::rollout::observe::{Failure, Member, Skip};

    fn member(name: &str, place: Place) -> Member {
        Member { name: name.to_owned(), unavailable: None, place, hold: None, node_uid: None, departs: false }
    }

    fn message(places: &[(&str, Place)]) -> String {
        let members = places.iter().map(|(name, place)| member(name, place.clone())).collect();
        let configuration = "w".to_owned();
        held("a", &Rollout { configuration, generation: 1, members })
    }

    #[test]
    fn blocked_machine_gets_the_reason() {
        let draining = || Place::Draining("w-v2".to_owned());
        let failure = || Failure { reason: DegradedReason::RolledBack, message: String::new(), remedy: "" };
        for (places, words) in [
            (vec![("a", Place::Skipped(Skip::Paused))], "spec.paused"),
            (vec![("a", draining()), ("b", Place::Failed(failure()))], "Machine b has failed"),
            (vec![("a", draining())], "w has no rolling update any more"),
            (vec![("a", Place::Outdated("w-v3".to_owned()))], "w-v3 replaces the former target"),
        ] {
            let note = message(&places);
            assert!(note.contains(words), "{note}");
        }
    }
}
