//! Pure: Events about one Machine's turn: start, blocked drain, failure. `machine` reports the end, because
//! it sees the new Node.

use bedplate_rules::drain::{Refusal, list};

use super::observe::{Place, Rollout};
use crate::cordon::{Failed, GivenUp};

/// Returns the reason why the Pods of a Node are not evicted, with the remedy.
pub(super) fn refused(refusal: &Refusal) -> (GivenUp, String) {
    match refusal {
        Refusal::Unmanaged(names) => (
            GivenUp::UnmanagedPods,
            format!(
                "no controller re-creates these Pods: {}; delete them, move them by hand, or set rollingUpdate.drain.force",
                list(names)
            ),
        ),
        Refusal::EmptyDir(names) => (
            GivenUp::EmptyDirData,
            format!(
                "these Pods have an emptyDir, and rollingUpdate.drain.deleteEmptyDirData is false: {}; save that and delete them",
                list(names)
            ),
        ),
    }
}

/// A turn begins.
pub(super) fn begun(node: &str, version: &str) -> String {
    format!("its turn in the rolling update to {version} begins: Node {node} is cordoned, its Pods leave")
}

/// The Node is empty.
pub(super) fn drained(node: &str, version: &str) -> String {
    format!("the Pods of Node {node} have left, it is deleted: the host is paved with {version}")
}

/// Returns the note of a failed turn.
pub(super) fn given_up(failed: &Failed) -> String {
    format!("not updated to {}: {}", failed.version, failed.message)
}

/// A turn ends before its end, and nothing has failed in it.
pub(super) fn held(machine: &str, rollout: &Rollout) -> String {
    let member = rollout.members.iter().find(|member| member.name == machine);
    let failed = rollout.failures().next();
    let why = match (member.map(|member| &member.place), failed) {
        (Some(Place::Skipped(skip)), _) => skip.told(),
        (Some(Place::Draining(_)), Some((failed, _))) => {
            format!(
                "Machine {} has failed, and no other Machine continues until that is resolved",
                failed.name
            )
        }
        (Some(Place::Draining(_)), None) => {
            format!("MachineConfiguration {} does not roll any more", rollout.configuration)
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
            format!("{version} is to come instead")
        }
        (Some(Place::UpToDate | Place::Repaving | Place::Failed(_)) | None, _) => {
            "nothing comes of it any more".to_owned()
        }
    };
    format!("its turn in a rolling update is over before its end, and its Node uncordoned: {why}")
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::configuration::DegradedReason;

    use super::*;
    use crate::rollout::observe::{Failure, Member, Skip};

    fn member(name: &str, place: Place) -> Member {
        Member { name: name.to_owned(), unavailable: None, place, hold: None, node_uid: None, departs: false }
    }

    fn told(places: &[(&str, Place)]) -> String {
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
            (vec![("a", draining())], "w does not roll any more"),
            (vec![("a", Place::Outdated("w-v3".to_owned()))], "w-v3 is to come instead"),
        ] {
            let note = told(&places);
            assert!(note.contains(words), "{note}");
        }
    }
}
