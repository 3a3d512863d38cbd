//! Pure: decides about the MachineSets of a MachineDeployment. Called by `bedplate-cluster`, and by the exploration.
//!
//! ```text
//! edit -> no set has the template -> Create -> the new set grows while the old sets shrink -> complete -> old sets are deleted
//!         an old set has it       -> it is current again, with a new revision (rollback)
//! ```
//! The plan is complete in itself: its writes may be applied in the order current set, other sets, deletions, and be interrupted after each.
//! The next plan continues from what was written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use crate::{Amount, Change, Key, TemplateView, Wait};

mod current;
mod on_delete;
mod part;
mod proportion;
mod revision;
mod rolling;

pub use revision::Revision;

use current::Found;
use part::{Bounds, Part};

/// Strategy of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Old Machines are replaced within bounds.
    RollingUpdate {
        /// Maximum number of Machines above the replicas.
        surge: Amount,
        /// Maximum number of unavailable Machines.
        unavailable: Amount,
    },
    /// An old Machine is replaced when a user deletes it.
    OnDelete,
}

/// A MachineSet of the deployment, as its planner needs it. Counts are of Machines that are not being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSummary {
    /// Name.
    pub key: Key,
    /// Time of creation.
    pub created: Timestamp,
    /// Rollout-relevant fields of its template.
    pub template: TemplateView,
    /// The `spec.replicas`.
    pub asked: u32,
    /// Number of its Machines, counted in the store of Machines: the status of the set may be older.
    pub existing: u32,
    /// Number of available Machines among them.
    pub available: u32,
    /// Number of its Machines that are being deleted.
    pub deleting: u32,
    /// The revision. 0: it has none.
    pub revision: u64,
    /// Maximum of the deployment's Machines when the set was scaled last (annotation `max-replicas`).
    pub max_replicas: Option<u32>,
    /// Replicas of the deployment when the set was scaled last (annotation `desired-replicas`).
    pub desired_replicas: Option<u32>,
    /// True if its controller has observed its generation.
    pub is_observed: bool,
    /// True if it is being deleted.
    pub is_deleting: bool,
}

/// A MachineDeployment with its MachineSets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentView {
    /// UID.
    pub uid: String,
    /// Name.
    pub name: Key,
    /// The `spec.replicas`, or [`implied_replicas`].
    pub replicas: u32,
    /// Strategy of rollouts.
    pub strategy: Strategy,
    /// Rollout-relevant fields of its template.
    pub template: TemplateView,
    /// Time at which a rollout must start, also if the template is the same (`spec.rollout.after`).
    pub rollout_after: Option<Timestamp>,
    /// True if `spec.paused` is set.
    pub is_paused: bool,
    /// MachineSets that it controls.
    pub sets: Vec<SetSummary>,
    /// True if the templates that it names exist.
    pub templates_exist: bool,
}

/// Writes for a deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentPlan {
    /// The set that has the template of the deployment.
    pub current: Current,
    /// New `spec.replicas` of sets. A set that is not named keeps its own. A write must be bound to the resource version that was read.
    pub scale: BTreeMap<Key, u32>,
    /// Maximum of the deployment's Machines. It belongs in each set's annotation `max-replicas`, and must be written with its replicas.
    pub max_replicas: u32,
    /// Revision of the current set. None: there is no current set.
    pub revision: Option<Revision>,
    /// Old sets that are not needed any more.
    pub delete: Vec<Key>,
    /// Sets that must create no Machine. All others may.
    pub disable_creation: BTreeSet<Key>,
    /// Reasons for the changes of each set.
    pub notes: BTreeMap<Key, Vec<Note>>,
    /// True if the current set has all replicas, available, and no other set has Machines.
    pub is_complete: bool,
    /// Time at which the plan must be decided again.
    pub next: Option<Timestamp>,
}

/// The set that has the template of the deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Current {
    /// A set that exists.
    Is(Key),
    /// A set that must be created.
    Create {
        /// Name of the set. The same decision always gives the same name.
        name: Key,
        /// Reason for the rollout.
        reason: CreateReason,
        /// First `spec.replicas` of the set.
        replicas: u32,
    },
    /// None yet.
    Wait(Wait),
    /// None, and the deployment is paused.
    Paused,
}

/// Reason to create a MachineSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateReason {
    /// The deployment has no MachineSet.
    First,
    /// No set has the template. For each set the differences.
    Changed(BTreeMap<Key, Vec<Change>>),
    /// The time for a rollout has passed, and no set was created since.
    RolloutAfter(Timestamp),
}

impl fmt::Display for CreateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("the MachineDeployment has no MachineSet"),
            Self::Changed(sets) => {
                let texts = sets.iter().map(|(key, changes)| {
                    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
                    format!("MachineSet {key}: {}", changes.join(", "))
                });
                f.write_str(&texts.collect::<Vec<_>>().join("; "))
            }
            Self::RolloutAfter(time) => {
                write!(f, "no MachineSet was created after spec.rollout.after {time}")
            }
        }
    }
}

/// Reason for a change of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The set is current from now on.
    IsCurrent,
    /// The current set has more replicas than the deployment.
    CurrentTooLarge,
    /// There is room for Machines of the current set.
    Room {
        /// Machines of all sets, existing or asked for.
        machines: u32,
        /// Maximum of Machines.
        maximum: u32,
    },
    /// Replicas without a Machine, or a set without an available Machine.
    NoneAvailableLost,
    /// More Machines are available than must be.
    Surplus {
        /// Machines that stay available in the worst case.
        available: u32,
        /// Minimum of available Machines.
        minimum: u32,
    },
    /// Unavailable old Machines block the rollout. One Machine is removed, which may be an available one.
    Unblock,
    /// Replicas of an old set whose Machine was deleted.
    MachinesDeleted,
    /// The deployment has fewer replicas than its sets.
    TooManyReplicas,
    /// The deployment is paused, and its sets grow or shrink in proportion.
    Proportional,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IsCurrent => f.write_str("now the current MachineSet"),
            Self::CurrentTooLarge => f.write_str("more replicas than the MachineDeployment"),
            Self::Room { machines, maximum } => {
                write!(f, "{machines} Machines, the maximum is {maximum}")
            }
            Self::NoneAvailableLost => f.write_str("no available Machine is removed"),
            Self::Surplus { available, minimum } => {
                write!(f, "{available} Machines stay available, the minimum is {minimum}")
            }
            Self::Unblock => f.write_str("unavailable Machines of this MachineSet block the rollout"),
            Self::MachinesDeleted => f.write_str("Machines of this MachineSet were deleted"),
            Self::TooManyReplicas => f.write_str("more Machines than the MachineDeployment has replicas"),
            Self::Proportional => f.write_str("share of the replicas while the MachineDeployment is paused"),
        }
    }
}

/// Replicas of a deployment that does not give them: those that it had last, those of its sets, the minimum of the autoscaler, or 1. So a
/// manifest that drops the field does not remove Machines, and a rollout that is in progress does not make its surge permanent.
pub fn implied_replicas(sets: &[SetSummary], autoscaler_minimum: Option<u32>) -> u32 {
    let newest = sets.iter().max_by_key(|set| (set.revision, set.created, &set.key));
    let asked = sets.iter().fold(0_u32, |sum, set| sum.saturating_add(set.asked));
    newest
        .and_then(|set| set.desired_replicas)
        .or((asked > 0).then_some(asked))
        .or(autoscaler_minimum)
        .unwrap_or(1)
}

/// Decides the writes for a deployment.
pub fn plan_deployment(seen: &DeploymentView, now: Timestamp) -> DeploymentPlan {
    let bounds = Bounds::of(seen.strategy, seen.replicas);
    let mut plan = DeploymentPlan {
        current: Current::Paused,
        scale: BTreeMap::new(),
        max_replicas: part::to_count(bounds.maximum()),
        revision: None,
        delete: Vec::new(),
        disable_creation: BTreeSet::new(),
        notes: BTreeMap::new(),
        is_complete: false,
        next: seen.rollout_after.filter(|after| *after > now),
    };
    let found = current::find(seen, now);
    if let Some(wait) = blocking(seen, &found) {
        plan.current = Current::Wait(wait);
        return plan;
    }
    let current = found.set();
    let old = part::oldest_first(&seen.sets, current);
    let parts = scaled(seen, &bounds, current, &old);
    record_scale(&mut plan, current, &old, &parts);
    plan.current = match found {
        Found::Set(set) => Current::Is(set.key.clone()),
        Found::Missing { name, reason } if !seen.is_paused => {
            Current::Create { name, reason, replicas: part::to_count(parts[0].target) }
        }
        Found::Deleting(_) | Found::Missing { .. } | Found::NoName => Current::Paused,
    };
    if plan.current != Current::Paused {
        let revision = revision::of(current, &old);
        if let Some(set) = current.filter(|set| set.revision != revision.number) {
            plan.notes.entry(set.key.clone()).or_default().insert(0, Note::IsCurrent);
        }
        plan.revision = Some(revision);
    }
    if seen.strategy == Strategy::OnDelete {
        plan.disable_creation = old.iter().map(|set| set.key.clone()).collect();
    }
    plan.is_complete = is_complete(seen.replicas, current, &old);
    if plan.is_complete && !seen.is_paused {
        plan.delete = old.iter().filter(|set| is_empty(set)).map(|set| set.key.clone()).collect();
    }
    plan
}

/// Returns why no set can be current. A paused deployment waits for nothing.
fn blocking(seen: &DeploymentView, found: &Found<'_>) -> Option<Wait> {
    match found {
        Found::Deleting(set) if !seen.is_paused => Some(Wait::SetDeleting(set.key.clone())),
        Found::Missing { .. } if !seen.is_paused && !seen.templates_exist => Some(Wait::TemplateMissing),
        Found::NoName if !seen.is_paused => Some(Wait::NamesTaken),
        Found::Set(_) | Found::Deleting(_) | Found::Missing { .. } | Found::NoName => None,
    }
}

/// Returns the numbers of the current set, then those of the others from the oldest to the newest, with their targets.
fn scaled(
    seen: &DeploymentView,
    bounds: &Bounds,
    current: Option<&SetSummary>,
    old: &[&SetSummary],
) -> Vec<Part> {
    let mut parts = vec![current.map_or_else(Part::default, Part::of)];
    parts.extend(old.iter().map(|set| Part::of(set)));
    match (seen.is_paused, seen.strategy) {
        (true, _) => proportion::scale(bounds, seen.strategy, current.is_some(), &mut parts),
        (false, Strategy::RollingUpdate { .. }) => rolling::scale(bounds, &mut parts),
        (false, Strategy::OnDelete) => on_delete::scale(bounds, &mut parts),
    }
    parts
}

/// Takes changed targets and their notes into the plan. A set that is created has its replicas in [`Current::Create`].
fn record_scale(
    plan: &mut DeploymentPlan,
    current: Option<&SetSummary>,
    old: &[&SetSummary],
    parts: &[Part],
) {
    let sets = std::iter::once(current).chain(old.iter().map(|set| Some(*set)));
    for (set, part) in sets.zip(parts) {
        let Some(set) = set else { continue };
        if part.target != part.asked {
            plan.scale.insert(set.key.clone(), part::to_count(part.target));
        }
        if !part.notes.is_empty() {
            plan.notes.insert(set.key.clone(), part.notes.clone());
        }
    }
}

fn is_complete(replicas: u32, current: Option<&SetSummary>, old: &[&SetSummary]) -> bool {
    current.is_some_and(|set| set.asked == replicas && set.existing == replicas && set.available == replicas)
        && old.iter().all(|set| set.existing == 0)
}

/// Returns true for a set that can be deleted. A set with deleting Machines stays, so that changed timeouts still reach them.
fn is_empty(set: &SetSummary) -> bool {
    !set.is_deleting && set.is_observed && set.asked == 0 && set.existing == 0 && set.deleting == 0
}

#[cfg(test)]
pub(crate) mod tests;
