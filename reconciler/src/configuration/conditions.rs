//! Pure: `Progressing` and `Degraded` of a MachineConfiguration: whether something moves by itself, and what a person has to see to.
//!
//! ```text
//! rollout::standing, or at_rest (OnDelete) --> Standing --troubles of its versions--> merge --> status.conditions
//! ```
//!
//! `Progressing` True: Machines get another version without anybody doing more. False with `AwaitingNodeDeletion`: they would, once a
//! person deletes their Nodes. `Degraded` True: the reason is the gravest trouble's, the message has them all.

use std::collections::BTreeSet;

use bedplate_api::condition::set_condition;
use bedplate_api::configuration::{Condition, MachineConfiguration, RolloutFailure};
use bedplate_api::reason::ConditionReason;
use bedplate_api::reason::configuration::{DegradedReason, ProgressingReason};
use bedplate_rules::selection::version_name;
use jiff::Timestamp;

/// Whether something moves by itself.
pub const PROGRESSING: &str = "Progressing";
/// Whether a person has to see to something.
pub const DEGRADED: &str = "Degraded";
/// Machines that a message names.
const NAMED: usize = 3;

/// How a configuration stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Status, reason and message of `Progressing`.
    pub progressing: (bool, ProgressingReason, String),
    /// Reason and message of `Degraded`, if it is.
    pub degraded: Option<(DegradedReason, String)>,
    /// Machines that failed in a rolling update.
    pub failures: Vec<RolloutFailure>,
}

/// How many Machines there are of a sort, and the first few by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    count: usize,
    first: BTreeSet<String>,
}

impl Names {
    /// One more.
    pub fn add(&mut self, name: &str) {
        self.count += 1;
        if self.first.len() < NAMED || self.first.last().is_some_and(|last| name < last.as_str()) {
            self.first.insert(name.to_owned());
        }
        if self.first.len() > NAMED {
            self.first.pop_last();
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// `5 Machines (a, b, c and 2 more)`.
    pub fn told(&self) -> String {
        let first: Vec<&str> = self.first.iter().map(String::as_str).collect();
        let more = self.count.saturating_sub(first.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let noun = if self.count == 1 { "Machine" } else { "Machines" };
        format!("{} {noun} ({}{more})", self.count, first.join(", "))
    }
}

/// The Machines of a configuration, by what is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Awaited {
    /// How many use it.
    pub users: usize,
    /// Those that are to have one of its versions and have no Node: they are paved without anybody doing more.
    pub moving: Names,
    /// Those with a Node of another version than a repave would give now.
    pub outdated: Names,
    /// Those that tried what is chosen for them and went back.
    pub rolled_back: Names,
    /// Machines that have had no Node of their selected version for too long ([`crate::rollout::is_late`]).
    pub late: Names,
}

/// How one stands that goes on only when people delete Nodes (OnDelete); `latest`: the number of its newest version.
pub fn at_rest(name: &str, latest: i64, awaited: &Awaited) -> Standing {
    let Awaited { users, moving, outdated, rolled_back, late } = awaited;
    let mut parts = Vec::new();
    if moving.count() > 0 {
        parts.push(format!("{} without a Node: being paved with what was chosen", moving.told()));
    }
    if outdated.count() > 0 {
        parts.push(format!(
            "{} with another version than a repave would give now (the newest is {}): it comes when the Node is deleted, by \
             kubectl delete node NAME",
            outdated.told(),
            version_name(name, latest)
        ));
    }
    let told = parts.join("; ");
    let progressing = match (moving.count(), outdated.count(), users) {
        (1.., _, _) => (true, ProgressingReason::Paving, told),
        (0, 1.., _) => (false, ProgressingReason::AwaitingNodeDeletion, told),
        (0, 0, 0) => (false, ProgressingReason::NoMachines, "no Machine uses it".to_owned()),
        (0, 0, 1..) => (
            false,
            ProgressingReason::UpToDate,
            "every Machine that uses it has what a repave would give now".to_owned(),
        ),
    };
    let went_back = format!(
        "{} tried what was chosen for them and went back: status.rolledBack says why",
        rolled_back.told()
    );
    let missing = format!(
        "{} without a Node of the selected version for longer than its health gate and 30 minutes: bedplate machine explain NAME shows the pending step; repair the \
         host (spec.paused meanwhile), or delete the Machine",
        late.told()
    );
    let degraded = match (rolled_back.count(), late.count()) {
        (0, 0) => None,
        (0, 1..) => Some((DegradedReason::NodeMissing, missing)),
        (1.., 0) => Some((DegradedReason::RolledBack, went_back)),
        (1.., 1..) => Some((DegradedReason::RolledBack, format!("{went_back}; {missing}"))),
    };
    Standing { progressing, degraded, failures: Vec::new() }
}

/// How one stands that is being deleted, by the Machines that hold it.
pub fn leaving(holders: &BTreeSet<&str>) -> Standing {
    let mut names = Names::default();
    holders.iter().for_each(|holder| names.add(holder));
    let progressing = if holders.is_empty() {
        (
            true,
            ProgressingReason::Deleting,
            "it goes, with its versions: no Machine names or has it".to_owned(),
        )
    } else {
        let held = "it goes when no Machine names or has it any more (configurationRef, selected, applied)";
        (false, ProgressingReason::DeletionBlocked, format!("{held}: {}", names.told()))
    };
    Standing { progressing, degraded: None, failures: Vec::new() }
}

/// The conditions that are to be there; `troubles`: reasons and messages, the gravest first, before that of the standing itself.
/// Of `Degraded` the generation stays that at which it became so for this reason: a person who edits has seen it.
pub fn merge(
    before: &[Condition],
    standing: &Standing,
    troubles: &[(DegradedReason, String)],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut after: Vec<Condition> = own(before);
    let (progressing, reason, message) = &standing.progressing;
    set_condition(&mut after, *progressing, *reason, message, generation, now);
    let all: Vec<&(DegradedReason, String)> = troubles.iter().chain(&standing.degraded).collect();
    match all.first() {
        Some((reason, _)) => {
            let messages: Vec<&str> = all.iter().map(|(_, message)| message.as_str()).collect();
            set_condition(&mut after, true, *reason, &messages.join("; "), generation, now);
        }
        None => set_condition(&mut after, false, DegradedReason::AsExpected, "", generation, now),
    }
    for condition in &mut after {
        let same = before.iter().find(|old| old.type_ == condition.type_);
        let same = same.filter(|old| {
            old.status == "True" && (&old.status, &old.reason) == (&condition.status, &condition.reason)
        });
        condition.observed_generation = match same.filter(|_| condition.type_ == DEGRADED) {
            Some(old) => old.observed_generation,
            None => generation,
        };
    }
    after
}

/// Returns true if the status reports a missing Node. A trouble of a version hides that in `Degraded`, and then a paused update reports it.
pub fn is_missing_reported(configuration: &MachineConfiguration) -> bool {
    let conditions = configuration.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let degraded = |reason: DegradedReason| has(conditions, reason);
    let is_hidden = degraded(DegradedReason::VersionInvalid) || degraded(DegradedReason::ImageUnresolved);
    degraded(DegradedReason::NodeMissing) || is_hidden && has(conditions, ProgressingReason::PausedOnFailure)
}

/// Returns true if the condition of this type has this reason.
fn has<R: ConditionReason>(conditions: &[Condition], reason: R) -> bool {
    conditions.iter().any(|condition| condition.type_ == R::TYPE && condition.reason == reason.as_str())
}

/// Those of them that are written here.
pub fn own(conditions: &[Condition]) -> Vec<Condition> {
    conditions.iter().filter(|c| [PROGRESSING, DEGRADED].contains(&c.type_.as_str())).cloned().collect()
}

#[cfg(test)]
mod tests {
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
        assert_eq!(names(&["b"]).told(), "1 Machine (b)");
        assert_eq!(names(&["e", "b", "d", "c", "a"]).told(), "5 Machines (a, b, c and 2 more)");
    }

    #[test]
    fn c4_on_delete_says_how_many_machines_wait_for_their_nodes_deletion_and_moves_nothing() {
        let mut awaited = Awaited { users: 7, outdated: names(&["b", "a"]), ..Awaited::default() };
        let standing = at_rest("w", 4, &awaited);
        let (progressing, reason, message) = &standing.progressing;
        assert_eq!((*progressing, *reason), (false, ProgressingReason::AwaitingNodeDeletion));
        assert!(message.starts_with("2 Machines (a, b)") && message.contains("w-v4"), "{message}");
        assert!(message.ends_with("kubectl delete node NAME"), "{message}");
        awaited.moving = names(&["c"]);
        let (progressing, reason, message) = at_rest("w", 4, &awaited).progressing;
        assert_eq!((progressing, reason), (true, ProgressingReason::Paving));
        assert!(message.contains("1 Machine (c)") && message.contains("2 Machines (a, b)"), "{message}");
        let all = Awaited { users: 7, ..Awaited::default() };
        assert_eq!(at_rest("w", 4, &all).progressing.1, ProgressingReason::UpToDate);
        assert_eq!(at_rest("w", 4, &Awaited::default()).progressing.1, ProgressingReason::NoMachines);
        let back = Awaited { users: 1, rolled_back: names(&["a"]), ..Awaited::default() };
        assert_eq!(
            at_rest("w", 4, &back).degraded.map(|(reason, _)| reason),
            Some(DegradedReason::RolledBack)
        );
    }

    #[test]
    fn c4_machine_without_a_node_is_degraded_although_its_agent_is_silent() {
        let late =
            Awaited { users: 2, moving: names(&["a", "b"]), late: names(&["b"]), ..Awaited::default() };
        let standing = at_rest("w", 1, &late);
        assert_eq!(standing.progressing.1, ProgressingReason::Paving);
        let (reason, message) = standing.degraded.unwrap();
        assert!(
            reason == DegradedReason::NodeMissing && message.starts_with("1 Machine (b) without a Node"),
            "{reason} {message}"
        );
        let both = Awaited { rolled_back: names(&["a"]), ..late };
        let (reason, message) = at_rest("w", 1, &both).degraded.unwrap();
        assert!(
            reason == DegradedReason::RolledBack && message.contains("1 Machine (b) without"),
            "{reason} {message}"
        );
    }

    #[test]
    fn a_transition_time_and_the_generation_of_a_trouble_stay_while_it_is_the_same() {
        let standing = at_rest("w", 1, &Awaited::default());
        let trouble = |reason| vec![(reason, "why".to_owned())];
        let well = merge(&[], &standing, &[], Some(1), at(1));
        assert_eq!(merge(&well, &standing, &[], Some(1), at(2)), well);
        let degraded = |conditions: &[Condition]| {
            let found = conditions.iter().find(|c| c.type_ == DEGRADED).unwrap();
            (found.status.clone(), found.observed_generation, found.last_transition_time.0)
        };
        let ill = merge(&well, &standing, &trouble(DegradedReason::VersionInvalid), Some(1), at(3));
        assert_eq!(degraded(&ill), ("True".to_owned(), Some(1), at(3)));
        let edited = merge(&ill, &standing, &trouble(DegradedReason::VersionInvalid), Some(2), at(4));
        assert_eq!(degraded(&edited), ("True".to_owned(), Some(1), at(3)), "seen before the edit");
        let other = merge(&edited, &standing, &trouble(DegradedReason::ImageUnresolved), Some(2), at(5));
        assert_eq!(degraded(&other), ("True".to_owned(), Some(2), at(3)));
        assert_eq!(degraded(&merge(&other, &standing, &[], Some(2), at(6))).0, "False");
    }

    #[test]
    fn all_troubles_are_told_and_the_first_gives_the_reason() {
        let standing = Standing {
            degraded: Some((DegradedReason::RolledBack, "two".to_owned())),
            ..at_rest("w", 1, &Awaited::default())
        };
        let conditions =
            merge(&[], &standing, &[(DegradedReason::VersionInvalid, "one".to_owned())], None, at(1));
        let degraded = conditions.iter().find(|c| c.type_ == DEGRADED).unwrap();
        assert_eq!((degraded.reason.as_str(), degraded.message.as_str()), ("VersionInvalid", "one; two"));
    }
}
