//! Pure: finds the MachineSet that is current, or the name of the one to create (MD1, MD5, MD6, MD10). Called by the planner.
//!
//! The name of a set is a function of deployment, template and, once it has passed, `rollout.after`. So a planner that does not see the set
//! yet decides for the same name, and no second set is made.

use jiff::Timestamp;

use super::{CreateReason, DeploymentView, SetSummary};
use crate::name::{Digest, suffixed};
use crate::{Key, changes};

/// Maximum number of names that are tried. The next name is used only if a set of the former name has another template.
const NAME_TRIES: u64 = 8;

/// The current set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// The set with the template.
    Set(&'a SetSummary),
    /// The only set with the template. It is being deleted.
    Deleting(&'a SetSummary),
    /// None: no set has the template, and a new one can have this name.
    Missing { name: Key, reason: CreateReason },
    /// None: no set has the template, and sets with other templates have all names of a new one.
    NoName,
}

impl<'a> Found<'a> {
    pub(crate) fn set(&self) -> Option<&'a SetSummary> {
        match self {
            Self::Set(set) => Some(set),
            Self::Deleting(_) | Self::Missing { .. } | Self::NoName => None,
        }
    }
}

/// Finds the current set: of those with the template the one with the most replicas, then the oldest, then by name. A rollback must not
/// swing between two sets.
pub(crate) fn find(seen: &DeploymentView, now: Timestamp) -> Found<'_> {
    let after = seen.rollout_after.filter(|after| *after <= now);
    let names: Vec<Key> = (0..NAME_TRIES).map(|salt| name(seen, after, salt)).collect();
    let has_template = |set: &&SetSummary| changes(&set.template, &seen.template).is_empty();
    // A set with the name of this decision was made by it, also if the clock of the API server is behind.
    let is_new =
        |set: &&SetSummary| after.is_none_or(|after| set.created >= after) || names.contains(&set.key);
    let mut sets: Vec<&SetSummary> = seen.sets.iter().filter(has_template).filter(is_new).collect();
    sets.sort_by_key(|set| (set.is_deleting, std::cmp::Reverse(set.asked), set.created, &set.key));
    match sets.first() {
        Some(set) if set.is_deleting => Found::Deleting(set),
        Some(set) => Found::Set(set),
        None => match free_name(seen, names) {
            Some(name) => Found::Missing { name, reason: reason(seen, after) },
            None => Found::NoName,
        },
    }
}

fn name(seen: &DeploymentView, after: Option<Timestamp>, salt: u64) -> Key {
    let mut digest = Digest::default();
    digest.text(&seen.uid);
    seen.template.digest(&mut digest);
    let after = after.map(|after| after.to_string());
    digest.optional(after.as_deref()).number(salt);
    Key(suffixed(&seen.name.0, &digest))
}

/// Returns the first name that no set has. A user may have changed the template of a set that has a former name.
fn free_name(seen: &DeploymentView, names: Vec<Key>) -> Option<Key> {
    names.into_iter().find(|name| seen.sets.iter().all(|set| set.key != *name))
}

fn reason(seen: &DeploymentView, after: Option<Timestamp>) -> CreateReason {
    if seen.sets.is_empty() {
        return CreateReason::First;
    }
    let differences = seen.sets.iter().map(|set| (set.key.clone(), changes(&set.template, &seen.template)));
    let (same, changed): (Vec<_>, Vec<_>) = differences.partition(|(_, changes)| changes.is_empty());
    match after {
        Some(after) if !same.is_empty() => CreateReason::RolloutAfter(after),
        _ => CreateReason::Changed(changed.into_iter().collect()),
    }
}
