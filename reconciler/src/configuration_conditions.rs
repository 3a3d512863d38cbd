//! Pure: the conditions of a MachineConfiguration: changes in progress, actions that a user must take, and
//! their sum.
//!
//! ```text
//! rollout::standing, or at_rest (OnDelete) --> Standing --Newest: trouble with versions--> merge --> status.conditions
//! ```
//!
//! - `Progressing` True: Machines get another version without further action. False with
//!   `AwaitingNodeDeletion`: they would, once a user deletes their Nodes.
//! - `Degraded` True: the reason is that of the gravest fault; the message has all faults.
//! - `Ready` True: the newest version can be used, nothing changes and nothing is degraded. Its reason is
//!   that of the first condition that is not met, otherwise that of `Progressing`.
//! - `Stalled` exists only while True: nothing continues without a user. Tools such as kstatus report that as
//!   failed.

use std::collections::BTreeSet;

use bedplate_api::condition::{Conditions as _, set_condition, set_derived};
use bedplate_api::configuration::condition_type::{DEGRADED, PROGRESSING, READY, STALLED};
use bedplate_api::configuration::{Condition, MachineConfiguration, RolloutFailure};
use bedplate_api::reason::configuration::{DegradedReason, ProgressingReason, VersionReadyReason};
use bedplate_api::version::version_name;
use jiff::Timestamp;

/// Maximum number of Machines that a message names.
const MAX_NAMED_MACHINES: usize = 3;

/// State of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Status, reason and message of `Progressing`.
    pub progressing: (bool, ProgressingReason, String),
    /// Reason and message of `Degraded`, if it is.
    pub degraded: Option<(DegradedReason, String)>,
    /// Machines that failed in a rolling update.
    pub failures: Vec<RolloutFailure>,
}

/// Obstacles to the use of the newest version, or of the edit that becomes one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Newest {
    /// Reasons of `Degraded` with messages, the gravest first.
    pub troubles: Vec<(DegradedReason, String)>,
    /// Message if the registry has not been asked for its image yet.
    pub unasked: Option<String>,
}

/// Number of Machines in a group, and the first few names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    count: usize,
    first: BTreeSet<String>,
}

impl Names {
    /// Adds a Machine.
    pub fn add(&mut self, name: &str) {
        self.count += 1;
        self.first.insert(name.to_owned());
        if self.first.len() > MAX_NAMED_MACHINES {
            self.first.pop_last();
        }
    }

    /// Returns a text such as `5 Machines (a, b, c and 2 more)`. None if there are no Machines.
    pub fn summary(&self) -> Option<String> {
        let more = self.count.saturating_sub(self.first.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let noun = if self.count == 1 { "Machine" } else { "Machines" };
        let first: Vec<&str> = self.first.iter().map(String::as_str).collect();
        (self.count > 0).then(|| format!("{} {noun} ({}{more})", self.count, first.join(", ")))
    }
}

/// Machines of a configuration, by pending change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PendingMachines {
    /// Number of Machines that use it.
    pub users: usize,
    /// Machines without a Node that are paved with one of its versions without further action.
    pub moving: Names,
    /// Machines with a Node of another version than a repave would select now.
    pub outdated: Names,
    /// Machines that tried the selected version and rolled back.
    pub rolled_back: Names,
    /// Machines that have had no Node of their selected version for too long ([`crate::rollout::is_late`]).
    pub late: Names,
}

/// Returns the state of a configuration that changes only when a user deletes Nodes (OnDelete). `latest` is
/// the number of its newest version.
pub fn at_rest(name: &str, latest: i64, pending: &PendingMachines) -> Standing {
    let moving = pending.moving.summary();
    let moving = moving.map(|them| format!("{them} without a Node: paving with the selected version"));
    let outdated = pending.outdated.summary().map(|them| {
        let newest = version_name(name, latest);
        format!(
            "{them} with another version than a repave would select (newest: {newest}); delete the Node to repave it: `kubectl delete node NAME`"
        )
    });
    let is_moving = moving.is_some();
    let (reason, message) = match (moving, outdated, pending.users) {
        (Some(moving), Some(outdated), _) => (ProgressingReason::Paving, format!("{moving}; {outdated}")),
        (Some(moving), None, _) => (ProgressingReason::Paving, moving),
        (None, Some(outdated), _) => (ProgressingReason::AwaitingNodeDeletion, outdated),
        (None, None, 0) => {
            (ProgressingReason::NoMachines, "no Machine uses this MachineConfiguration".to_owned())
        }
        (None, None, 1..) => {
            let message = "all Machines run the version that a repave would select";
            (ProgressingReason::UpToDate, message.to_owned())
        }
    };
    let went_back = pending.rolled_back.summary().map(|them| {
        format!("{them} rolled back from the selected version; see status.rolledBack of the Machine")
    });
    let missing = pending.late.summary().map(|them| {
        format!(
            "{them} without a Node of the selected version for longer than its health gate and 30 minutes; see `bedplate machine explain NAME`, then \
             repair the host (set spec.paused meanwhile) or delete the Machine"
        )
    });
    let degraded = match (went_back, missing) {
        (None, None) => None,
        (None, Some(missing)) => Some((DegradedReason::NodeMissing, missing)),
        (Some(went_back), None) => Some((DegradedReason::RolledBack, went_back)),
        (Some(went_back), Some(missing)) => {
            Some((DegradedReason::RolledBack, format!("{went_back}; {missing}")))
        }
    };
    Standing { progressing: (is_moving, reason, message), degraded, failures: Vec::new() }
}

/// Returns the state of a configuration that is being deleted, by the Machines that hold it.
pub fn leaving(holders: &BTreeSet<&str>) -> Standing {
    let mut names = Names::default();
    holders.iter().for_each(|holder| names.add(holder));
    let progressing = match names.summary() {
        None => {
            let message = "being deleted with its versions: no Machine references or uses them";
            (true, ProgressingReason::Deleting, message.to_owned())
        }
        Some(them) => {
            let held = "deletion waits until no Machine uses this MachineConfiguration (configurationRef, selected, applied)";
            (false, ProgressingReason::DeletionBlocked, format!("{held}: {them}"))
        }
    };
    Standing { progressing, degraded: None, failures: Vec::new() }
}

/// Returns the desired conditions. Faults of the newest version come before those of the state.
pub fn merge(
    before: &[Condition],
    standing: &Standing,
    newest: &Newest,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut after: Vec<Condition> = own(before);
    let (progressing, reason, message) = &standing.progressing;
    set_condition(&mut after, *progressing, *reason, message, generation, now);
    let all: Vec<&(DegradedReason, String)> = newest.troubles.iter().chain(&standing.degraded).collect();
    let messages: Vec<&str> = all.iter().map(|(_, message)| message.as_str()).collect();
    let messages = messages.join("; ");
    let gravest = all.first().map(|(reason, _)| *reason);
    match gravest {
        Some(reason) => set_condition(&mut after, true, reason, &messages, generation, now),
        None => set_condition(&mut after, false, DegradedReason::AsExpected, "", generation, now),
    }
    let (is_ready, shown) =
        ready(standing, newest, gravest.map(|reason| (reason.as_str(), messages.as_str())));
    set_derived(&mut after, READY, is_ready, shown, generation, now);
    match gravest.filter(|reason| is_stalled(*reason, *progressing)) {
        Some(reason) => set_derived(&mut after, STALLED, true, (reason.as_str(), &messages), generation, now),
        None => after.retain(|condition| condition.type_ != STALLED),
    }
    after
}

/// Returns status, reason and message of `Ready`.
fn ready<'a>(
    standing: &'a Standing,
    newest: &'a Newest,
    degraded: Option<(&'a str, &'a str)>,
) -> (bool, (&'a str, &'a str)) {
    let (progressing, reason, message) = &standing.progressing;
    let moves = (reason.as_str(), message.as_str());
    if let Some((reason, message)) = newest.troubles.first() {
        return (false, (reason.as_str(), message));
    }
    if let Some(message) = &newest.unasked {
        return (false, (VersionReadyReason::ImageUnresolved.as_str(), message));
    }
    match degraded {
        _ if *progressing || *reason == ProgressingReason::DeletionBlocked => (false, moves),
        Some(degraded) => (false, degraded),
        None => (true, moves),
    }
}

/// Returns true if nothing continues without a user. Requests to a registry are retried, and Machines may still be paved. An edit that was
/// not written as a version stays unwritten.
fn is_stalled(gravest: DegradedReason, progressing: bool) -> bool {
    match gravest {
        DegradedReason::InvalidTemplate | DegradedReason::VersionInvalid => true,
        DegradedReason::ImageUnresolved => false,
        _ => !progressing,
    }
}

/// Returns true if the status reports a missing Node. A fault of a version hides it in `Degraded`; a paused update then reports it.
pub(crate) fn is_missing_reported(configuration: &MachineConfiguration) -> bool {
    let has = |type_: &str, reason: &str| configuration.condition(type_).is_some_and(|c| c.reason == reason);
    let degraded = |reason: DegradedReason| has(DEGRADED, reason.as_str());
    let hides =
        [DegradedReason::InvalidTemplate, DegradedReason::VersionInvalid, DegradedReason::ImageUnresolved];
    let is_hidden = hides.into_iter().any(degraded);
    degraded(DegradedReason::NodeMissing)
        || is_hidden && has(PROGRESSING, ProgressingReason::PausedOnFailure.as_str())
}

/// Types of the conditions that are written here.
const OWN: [&str; 4] = [PROGRESSING, DEGRADED, READY, STALLED];

/// Returns the conditions that this controller owns.
pub fn own(conditions: &[Condition]) -> Vec<Condition> {
    conditions.iter().filter(|c| OWN.contains(&c.type_.as_str())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use bedplate_api::writers::{self, Writer};

    use super::*;

    fn names(names: &[&str]) -> Names {
        let mut all = Names::default();
        names.iter().for_each(|name| all.add(name));
        all
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_message_names_the_first_machines_and_counts_the_others() {
        assert_eq!(names(&["b"]).summary().as_deref(), Some("1 Machine (b)"));
        let summary = names(&["e", "b", "d", "c", "a"]).summary();
        assert_eq!(summary.as_deref(), Some("5 Machines (a, b, c and 2 more)"));
        assert_eq!(names(&[]).summary(), None);
    }

    #[test]
    fn c4_on_delete_counts_machines_pending_node_deletion_and_changes_none() {
        let mut pending =
            PendingMachines { users: 7, outdated: names(&["b", "a"]), ..PendingMachines::default() };
        let standing = at_rest("w", 4, &pending);
        let (progressing, reason, message) = &standing.progressing;
        assert_eq!((*progressing, *reason), (false, ProgressingReason::AwaitingNodeDeletion));
        assert!(message.starts_with("2 Machines (a, b)") && message.contains("w-v4"), "{message}");
        assert!(message.ends_with("`kubectl delete node NAME`"), "{message}");
        pending.moving = names(&["c"]);
        let (progressing, reason, message) = at_rest("w", 4, &pending).progressing;
        assert_eq!((progressing, reason), (true, ProgressingReason::Paving));
        assert!(message.contains("1 Machine (c)") && message.contains("2 Machines (a, b)"), "{message}");
        let all = PendingMachines { users: 7, ..PendingMachines::default() };
        assert_eq!(at_rest("w", 4, &all).progressing.1, ProgressingReason::UpToDate);
        assert_eq!(at_rest("w", 4, &PendingMachines::default()).progressing.1, ProgressingReason::NoMachines);
        let back = PendingMachines { users: 1, rolled_back: names(&["a"]), ..PendingMachines::default() };
        assert_eq!(
            at_rest("w", 4, &back).degraded.map(|(reason, _)| reason),
            Some(DegradedReason::RolledBack)
        );
    }

    #[test]
    fn c4_machine_without_a_node_is_degraded_although_its_agent_is_silent() {
        let late = PendingMachines {
            users: 2,
            moving: names(&["a", "b"]),
            late: names(&["b"]),
            ..PendingMachines::default()
        };
        let standing = at_rest("w", 1, &late);
        assert_eq!(standing.progressing.1, ProgressingReason::Paving);
        let (reason, message) = standing.degraded.unwrap();
        assert!(
            reason == DegradedReason::NodeMissing && message.starts_with("1 Machine (b) without a Node"),
            "{reason} {message}"
        );
        let both = PendingMachines { rolled_back: names(&["a"]), ..late };
        let (reason, message) = at_rest("w", 1, &both).degraded.unwrap();
        assert!(
            reason == DegradedReason::RolledBack && message.contains("1 Machine (b) without"),
            "{reason} {message}"
        );
    }

    fn newest(reason: DegradedReason) -> Newest {
        Newest { troubles: vec![(reason, "why".to_owned())], unasked: None }
    }

    fn find<'c>(conditions: &'c [Condition], type_: &str) -> &'c Condition {
        conditions.iter().find(|c| c.type_ == type_).unwrap()
    }

    #[test]
    fn transition_time_is_kept_while_status_stays_and_generation_is_current() {
        let (standing, usable) = (at_rest("w", 1, &PendingMachines::default()), Newest::default());
        let well = merge(&[], &standing, &usable, Some(1), at(1));
        assert_eq!(merge(&well, &standing, &usable, Some(1), at(2)), well);
        let degraded = |conditions: &[Condition]| {
            let found = find(conditions, DEGRADED);
            (found.status.clone(), found.observed_generation, found.last_transition_time.0)
        };
        let refused = newest(DegradedReason::VersionInvalid);
        let ill = merge(&well, &standing, &refused, Some(1), at(3));
        assert_eq!(degraded(&ill), ("True".to_owned(), Some(1), at(3)));
        let edited = merge(&ill, &standing, &refused, Some(2), at(4));
        assert_eq!(degraded(&edited), ("True".to_owned(), Some(2), at(3)));
        assert!(edited.iter().all(|condition| condition.observed_generation == Some(2)));
        assert_eq!(degraded(&merge(&edited, &standing, &usable, Some(2), at(6))).0, "False");
    }

    #[test]
    fn all_faults_are_reported_and_the_first_gives_the_reason() {
        let standing = Standing {
            degraded: Some((DegradedReason::RolledBack, "two".to_owned())),
            ..at_rest("w", 1, &PendingMachines::default())
        };
        let refused =
            Newest { troubles: vec![(DegradedReason::VersionInvalid, "one".to_owned())], unasked: None };
        let conditions = merge(&[], &standing, &refused, None, at(1));
        let degraded = find(&conditions, DEGRADED);
        let expected = DegradedReason::VersionInvalid.as_str();
        assert_eq!((degraded.reason.as_str(), degraded.message.as_str()), (expected, "one; two"));
    }

    #[test]
    fn ready_has_the_reason_of_the_first_condition_that_is_not_met() {
        let moves = |moves, reason| (moves, reason, "moves".to_owned());
        let rests = moves(false, ProgressingReason::UpToDate);
        let rolls = moves(true, ProgressingReason::RollingOut);
        let held = moves(false, ProgressingReason::DeletionBlocked);
        let failed = Some((DegradedReason::RolledBack, "failed".to_owned()));
        let unasked = Newest { unasked: Some("not asked".to_owned()), ..Newest::default() };
        let refused = newest(DegradedReason::InvalidTemplate);
        let usable = Newest::default();
        for (progressing, degraded, newest, status, reason, message) in [
            (&rests, None, &usable, "True", "UpToDate", "moves"),
            (&held, None, &usable, "False", ProgressingReason::DeletionBlocked.as_str(), "moves"),
            (&rolls, None, &usable, "False", "RollingOut", "moves"),
            (&rests, failed.clone(), &usable, "False", "RolledBack", "failed"),
            (&rolls, failed.clone(), &usable, "False", "RollingOut", "moves"),
            (&rests, None, &unasked, "False", "ImageUnresolved", "not asked"),
            (&rolls, failed, &refused, "False", "InvalidTemplate", "why"),
        ] {
            let progressing = progressing.clone();
            let standing = Standing { progressing, degraded, failures: Vec::new() };
            let conditions = merge(&[], &standing, newest, None, at(1));
            let ready = find(&conditions, READY);
            let found = (ready.status.as_str(), ready.reason.as_str(), ready.message.as_str());
            assert_eq!(found, (status, reason, message));
        }
    }

    #[test]
    fn own_conditions_are_those_of_the_table_of_writers() {
        let mut own = OWN;
        own.sort_unstable();
        let mut stated = writers::conditions(writers::CONFIGURATION, &[Writer::Controller]);
        stated.sort_unstable();
        assert_eq!(own[..], stated[..]);
    }

    #[test]
    fn stalled_is_there_while_nothing_continues_without_a_user() {
        for (reason, progressing, expected) in [
            (DegradedReason::InvalidTemplate, true, true),
            (DegradedReason::VersionInvalid, true, true),
            (DegradedReason::ImageUnresolved, false, false),
            (DegradedReason::RolledBack, true, false),
            (DegradedReason::RolledBack, false, true),
        ] {
            let rests = at_rest("w", 1, &PendingMachines::default());
            let (_, moves, message) = rests.progressing.clone();
            let standing = Standing { progressing: (progressing, moves, message), ..rests.clone() };
            let conditions = merge(&[], &standing, &newest(reason), None, at(1));
            let stalled = conditions.iter().find(|condition| condition.type_ == STALLED);
            assert_eq!(
                stalled.map(|c| c.reason.as_str()),
                expected.then_some(reason.as_str()),
                "{progressing}"
            );
            let after = merge(&conditions, &rests, &Newest::default(), None, at(2));
            assert!(after.iter().all(|condition| condition.type_ != STALLED));
        }
    }
}
