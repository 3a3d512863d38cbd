//! Pure: decides about the Machines of a MachineSet (MS2, MS3, MS6, MS9, MS10). Called by `bedplate-cluster`, and by the exploration.
//!
//! ```text
//! stored view -> needs_live_read -> live LIST of the Machines and GET of the set -> adopt, or mark and delete, or create
//! ```
//! A stored view may be stale, so it never creates or deletes. A Machine has no successor before it is deleted: its deletion may be refused.
//! The name of a new Machine is a function of the set, its resource version and a number. A plan that is made twice from the same reads
//! therefore makes each Machine once.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::name::{Digest, NameTemplate};
use crate::order::{Order, delete_order};
use crate::{Amount, Key, Preflight, Wait};

mod remediation;

/// Interval after which failed preflight checks are decided again.
const PREFLIGHT_INTERVAL: SignedDuration = SignedDuration::from_secs(15);

/// Maximum number of Machines that one plan creates. `spec.replicas` has no upper bound: without this limit one set could exhaust the memory.
const MAX_CREATIONS: usize = 10;

/// Maximum number of names that are tried in addition to those of existing Machines.
const MAX_NAME_TRIES: usize = 1000;

/// A Machine that the selector of the set matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineView {
    /// Name.
    pub key: Key,
    /// Time of creation.
    pub created: Timestamp,
    /// True if it is being deleted.
    pub is_deleting: bool,
    /// True if a user has set the annotation `cluster.x-k8s.io/delete-machine`.
    pub is_marked: bool,
    /// True if a user has set the annotation `cluster.x-k8s.io/remediate-machine`.
    pub has_remediate: bool,
    /// True if `status.nodeRef` is set.
    pub has_node: bool,
    /// Condition `NodeHealthy`. None: absent or Unknown.
    pub is_node_healthy: Option<bool>,
    /// True if condition `Available` is True.
    pub is_available: bool,
    /// Condition `HealthCheckSucceeded`.
    pub health: Health,
    /// Condition `OwnerRemediated`, if it is False.
    pub remediated: Option<Remediated>,
    /// Controller of the Machine.
    pub owner: OwnerView,
}

/// Condition `HealthCheckSucceeded`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// Absent or Unknown.
    NotChecked,
    /// True.
    Succeeded,
    /// False.
    Failed,
}

/// Reason of condition `OwnerRemediated` with status False.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remediated {
    /// A MachineHealthCheck waits for the owner.
    Waiting,
    /// The rollout will remove the Machine.
    CannotBe,
    /// The set must do other things first.
    Deferred,
    /// The set deletes the Machine.
    Deleting,
}

/// Desired condition `OwnerRemediated` of a Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// None: the Machine is healthy again.
    Remove,
    /// The rollout will remove the Machine.
    CannotBe,
    /// The maximum of remediations is in progress.
    TooManyInFlight(Amount),
    /// Preflight checks fail.
    Preflight(Vec<Preflight>),
    /// The set deletes the Machine.
    Deleting,
}

impl Mark {
    /// Returns the reason of the condition. None: there is no condition.
    pub const fn reason(&self) -> Option<Remediated> {
        match self {
            Self::Remove => None,
            Self::CannotBe => Some(Remediated::CannotBe),
            Self::TooManyInFlight(_) | Self::Preflight(_) => Some(Remediated::Deferred),
            Self::Deleting => Some(Remediated::Deleting),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove => f.write_str("Machine is healthy"),
            Self::CannotBe => f.write_str("the rollout will remove the Machine"),
            Self::TooManyInFlight(maximum) => {
                write!(
                    f,
                    "as many remediations as remediation.maxInFlight ({maximum}) allows are in progress"
                )
            }
            Self::Preflight(failed) => Wait::Preflight(failed.clone()).fmt(f),
            Self::Deleting => f.write_str("Machine is being deleted"),
        }
    }
}

/// Controller of a Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerView {
    /// None: the Machine has no controller.
    Orphan,
    /// This set.
    This,
    /// Another object.
    Other,
}

/// Limits of remediation, by the deployment of the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remediation {
    /// True if the set has no deployment, or has the revision of its deployment.
    pub is_current_revision: bool,
    /// Maximum of remediations in progress, and the replicas that a percentage refers to. None: no limit.
    pub max_in_flight: Option<(Amount, u32)>,
}

/// A MachineSet with its Machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetView {
    /// UID.
    pub uid: String,
    /// Resource version of a live read of the set, made before a live LIST of its Machines. None: the view comes from the store.
    pub live_version: Option<String>,
    /// The `spec.replicas`.
    pub replicas: Option<u32>,
    /// Minimum size for the autoscaler, which replaces missing replicas of a set without Machines.
    pub autoscaler_minimum: Option<u32>,
    /// Order of deletion.
    pub order: Order,
    /// Machines that its selector matches.
    pub machines: Vec<MachineView>,
    /// Orphans whose adoption the API server has refused. They are not counted as replicas, and are reported.
    pub refused: BTreeSet<Key>,
    /// Names of other Machines, as far as a creation has found them in use.
    pub taken: BTreeSet<Key>,
    /// True if it is being deleted.
    pub is_deleting: bool,
    /// True if the annotation `cluster.x-k8s.io/disable-machine-create` is `true`.
    pub is_creation_disabled: bool,
    /// Limits of remediation.
    pub remediation: Remediation,
    /// Preflight checks that fail.
    pub preflight: Vec<Preflight>,
    /// Form of the names of its Machines.
    pub names: NameTemplate,
}

/// Writes for a set, in the order in which they must be applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetPlan {
    /// Replicas that the set has or implies. None: a live read must show how many Machines exist.
    pub replicas: Option<u32>,
    /// Orphans that the set must adopt.
    pub adopt: Vec<Key>,
    /// Desired condition `OwnerRemediated` of marked Machines. The conditions precede the deletions.
    pub mark: Vec<(Key, Mark)>,
    /// Machines to delete, each bound to the UID and resource version that was read.
    pub delete: Vec<Key>,
    /// Names of Machines to create, at most 10. The deletions precede them.
    pub create: Vec<Key>,
    /// True if the finalizer of a deleting set can be removed.
    pub remove_finalizer: bool,
    /// True if the plan must be decided again from live reads. Only its marks and adoptions may be applied before.
    pub needs_live_read: bool,
    /// Reasons why Machines are missing.
    pub blocked: Vec<Wait>,
    /// Time at which the plan must be decided again. If Machines are missing that this plan does not create, it is due immediately.
    pub next: Option<Timestamp>,
}

/// Decides the writes for a set.
pub fn plan_set(seen: &SetView, now: Timestamp) -> SetPlan {
    let owned: Vec<&MachineView> =
        seen.machines.iter().filter(|machine| machine.owner == OwnerView::This).collect();
    let present: Vec<&MachineView> = owned.iter().copied().filter(|machine| !machine.is_deleting).collect();
    if seen.is_deleting {
        return plan_deleted(seen, &owned, &present);
    }
    let mut plan = SetPlan { replicas: seen.replicas, ..SetPlan::default() };
    let (refused, adopt): (Vec<Key>, Vec<Key>) = orphans(seen).partition(|key| seen.refused.contains(key));
    plan.adopt = adopt;
    if !refused.is_empty() {
        plan.blocked.push(Wait::AdoptionRefused(refused));
    }
    if !plan.adopt.is_empty() {
        // A backup may have been restored: the Machines must be counted before any is created.
        plan.blocked.push(Wait::Adoption);
        return plan;
    }
    let decided = remediation::decide(seen, &owned, &present);
    plan.mark = decided.mark;
    plan.delete = decided.delete;
    if decided.is_blocked {
        plan.next = now.checked_add(PREFLIGHT_INTERVAL).ok();
    }
    let is_live = seen.live_version.is_some();
    let count = u32::try_from(present.len()).unwrap_or(u32::MAX);
    if plan.replicas.is_none() && is_live {
        // A manifest that drops the field must not remove Machines.
        plan.replicas = Some(if count > 0 { count } else { seen.autoscaler_minimum.unwrap_or(1) });
    }
    let Some(replicas) = plan.replicas else { return plan.before_live_read() };
    delete_surplus(seen, &present, replicas, now, &mut plan);
    if count < replicas {
        create(seen, replicas - count, now, &mut plan);
    }
    if is_live || plan.delete.is_empty() && !plan.needs_live_read { plan } else { plan.before_live_read() }
}

/// Returns the Machines without a controller.
fn orphans(seen: &SetView) -> impl Iterator<Item = Key> {
    let is_orphan = |machine: &&MachineView| machine.owner == OwnerView::Orphan && !machine.is_deleting;
    seen.machines.iter().filter(is_orphan).map(|machine| machine.key.clone())
}

impl SetPlan {
    /// Returns true if Machines may be made now. A refused adoption does not forbid it.
    pub fn may_create(&self) -> bool {
        self.blocked.iter().all(|wait| match wait {
            Wait::AdoptionRefused(_) => true,
            Wait::CreationDisabled | Wait::Preflight(_) | Wait::Adoption => false,
            Wait::TemplateMissing | Wait::SetDeleting(_) | Wait::NamesTaken => false,
        })
    }

    /// Returns the part of the plan that may be applied before a live read. Marks that say that a Machine is deleted belong to its deletion.
    fn before_live_read(mut self) -> Self {
        self.mark.retain(|(key, _)| !self.delete.contains(key));
        self.delete.clear();
        self.create.clear();
        self.needs_live_read = true;
        self
    }
}

/// Plans a set that is being deleted: its Machines are deleted, then its finalizer is removed.
fn plan_deleted(seen: &SetView, owned: &[&MachineView], present: &[&MachineView]) -> SetPlan {
    let is_live = seen.live_version.is_some();
    SetPlan {
        replicas: Some(0),
        delete: present.iter().map(|machine| machine.key.clone()).collect(),
        remove_finalizer: owned.is_empty() && is_live,
        needs_live_read: owned.is_empty() && !is_live,
        ..SetPlan::default()
    }
}

/// Adds the Machines beyond the replicas to the deletions. Machines that are remediated count as deleted.
fn delete_surplus(
    seen: &SetView,
    present: &[&MachineView],
    replicas: u32,
    now: Timestamp,
    plan: &mut SetPlan,
) {
    let kept: Vec<MachineView> = present
        .iter()
        .filter(|machine| !plan.delete.contains(&machine.key))
        .map(|machine| (*machine).clone())
        .collect();
    let replicas = usize::try_from(replicas).unwrap_or(usize::MAX);
    let surplus = kept.len().saturating_sub(replicas);
    plan.delete.extend(delete_order(&kept, seen.order, now).into_iter().take(surplus));
}

fn create(seen: &SetView, missing: u32, now: Timestamp, plan: &mut SetPlan) {
    if seen.is_creation_disabled {
        plan.blocked.push(Wait::CreationDisabled);
        return;
    }
    if !seen.preflight.is_empty() {
        plan.blocked.push(Wait::Preflight(seen.preflight.clone()));
        plan.next = now.checked_add(PREFLIGHT_INTERVAL).ok();
        return;
    }
    let Some(version) = seen.live_version.as_deref() else {
        plan.needs_live_read = true;
        return;
    };
    let missing = usize::try_from(missing).unwrap_or(usize::MAX);
    let is_used =
        |name: &Key| seen.taken.contains(name) || seen.machines.iter().any(|machine| machine.key == *name);
    for number in (0_u64..).take(seen.machines.len().saturating_add(MAX_NAME_TRIES)) {
        if plan.create.len() == missing.min(MAX_CREATIONS) {
            break;
        }
        let name = name(seen, version, number);
        if !is_used(&name) && !plan.create.contains(&name) {
            plan.create.push(name);
        }
    }
    if !plan.create.is_empty() && plan.create.len() < missing {
        plan.next = Some(now);
    }
}

fn name(seen: &SetView, version: &str, number: u64) -> Key {
    let mut digest = Digest::default();
    digest.text(&seen.uid).text(version).number(number);
    Key(seen.names.name(&digest))
}

#[cfg(test)]
pub(crate) mod tests;
