//! Pure: the writes of a MachineSet, in the order in which they must be applied (MS1 to MS10). Called by the controller of MachineSets.
//!
//! A failed write ends the creations of the pass. The next pass decides again from the objects.

use std::sync::Arc;

use bedplate_api::cluster::full::set::FINALIZER;
use bedplate_api::cluster::full::{Machine, MachineSet};
use bedplate_api::cluster::part::{Reference, label};
use bedplate_replicas::{Key, Mark, SetPlan, plan_set};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::Value;

use super::children;
use super::machine::{self, Metadata, Propagation};
use super::observe::{NotPlannable, Seen, observe};
use super::record::{self, Recorded};
use crate::core::object::{count, is_deleting, owner_reference};
use crate::core::reference::{is_owned_by, owners};
use crate::owner::has_paused_annotation;

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Sets finalizer, label and owner of the set.
    Prepare {
        /// True if the finalizer is missing.
        finalizer: bool,
        /// Label with the name of the cluster, if it is missing.
        label: Option<(String, String)>,
        /// Cluster as owner of a set without a deployment, if it is missing.
        owner: Option<OwnerReference>,
    },
    /// Sets `spec.replicas` of the set.
    Replicas(i32),
    /// Makes the set the controller of an orphan, bound to its resource version.
    Adopt(Key),
    /// Sets or removes condition `OwnerRemediated` of a Machine.
    Mark(Key, Mark),
    /// Deletes a Machine, bound to its UID and resource version.
    Delete(Key),
    /// Writes the record of names, bound to the resource version of the set.
    Record(Vec<Recorded>),
    /// Deletes an object of a recorded name, bound to its UID.
    DeleteClone {
        /// The object.
        reference: Reference,
        /// Its UID.
        uid: String,
    },
    /// Creates an object from a template. The act fails if it exists.
    CreateClone {
        /// The object.
        reference: Reference,
        /// Its content.
        object: Value,
    },
    /// Creates a Machine. The act fails if it exists.
    CreateMachine(Arc<Machine>),
    /// Changes labels and annotations of an object of a Machine.
    Label {
        /// The object.
        reference: Reference,
        /// The change.
        metadata: Metadata,
    },
    /// Changes a Machine to the fields of the set, bound to its resource version.
    Propagate(Key, Propagation),
    /// Removes the finalizer of the set.
    RemoveFinalizer,
}

/// Writes of a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Writes, in order.
    pub acts: Vec<Act>,
    /// Decision about the replicas. None: the set is paused, or cannot be planned.
    pub decided: Option<SetPlan>,
    /// Reasons why Machines are missing. Texts for a user.
    pub blocked: Vec<String>,
    /// True if the set must be planned again from live reads.
    pub needs_live_read: bool,
    /// Time at which the set must be planned again.
    pub next: Option<Timestamp>,
}

/// Decides the writes of a set.
pub fn plan(seen: &Seen, now: Timestamp) -> Plan {
    let set = &*seen.set;
    if is_set_paused(seen) {
        return Plan::default();
    }
    let view = match observe(seen) {
        Ok(view) => view,
        Err(error @ (NotPlannable::Names(_) | NotPlannable::Selector | NotPlannable::Deployment(_))) => {
            return Plan { blocked: vec![error.to_string()], ..Plan::default() };
        }
    };
    let decided = plan_set(&view, now);
    let has_record = !record::read(set.annotations()).is_empty();
    let mut plan = Plan {
        blocked: decided.blocked.iter().map(ToString::to_string).collect(),
        needs_live_read: decided.needs_live_read || has_record && !seen.is_live,
        next: decided.next,
        ..Plan::default()
    };
    plan.acts.extend(prepare(seen));
    if let Some(replicas) = decided
        .replicas
        .filter(|_| set.spec.replicas.is_none_or(|replicas| replicas < 0) && !is_deleting(set))
    {
        plan.acts.push(Act::Replicas(count(usize::try_from(replicas).unwrap_or(usize::MAX))));
    }
    plan.acts.extend(decided.adopt.iter().cloned().map(Act::Adopt));
    plan.acts.extend(
        decided
            .mark
            .iter()
            .filter(|(key, mark)| is_new(seen, key, mark))
            .cloned()
            .map(|(key, mark)| Act::Mark(key, mark)),
    );
    plan.acts.extend(decided.delete.iter().cloned().map(Act::Delete));
    if !plan.needs_live_read && seen.is_live {
        let children = children::plan(seen, &decided);
        plan.acts.extend(children.acts);
        plan.blocked.extend(children.blocked);
        if decided.remove_finalizer
            && children.is_settled
            && set.finalizers().iter().any(|one| one == FINALIZER)
        {
            plan.acts.push(Act::RemoveFinalizer);
        }
    }
    propagate(seen, &mut plan.acts);
    plan.decided = Some(decided);
    plan
}

/// Returns true if no controller changes the set.
pub fn is_set_paused(seen: &Seen) -> bool {
    let is_cluster_paused = seen.cluster.as_ref().is_some_and(|cluster| cluster.spec.paused == Some(true));
    is_cluster_paused || has_paused_annotation(&*seen.set)
}

/// Returns the write that makes the set ready for its Machines. The finalizer precedes the first Machine.
fn prepare(seen: &Seen) -> Option<Act> {
    let set = &*seen.set;
    if is_deleting(set) {
        return None;
    }
    let label = (label::CLUSTER_NAME.to_owned(), set.spec.cluster_name.clone());
    let has_label = set.labels().get(&label.0) == Some(&label.1);
    // After a restore the owner of a deployment's set is missing. The controller of deployments adopts it.
    let is_of_deployment = set.labels().contains_key(label::DEPLOYMENT_NAME);
    let has_owner = is_of_deployment
        || owners(set, "MachineDeployment").next().is_some()
        || seen
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.uid())
            .is_some_and(|uid| is_owned_by(set, "Cluster", &uid));
    let owner = seen.cluster.as_deref().filter(|_| !has_owner);
    let finalizer = !set.finalizers().iter().any(|one| one == FINALIZER);
    let act = Act::Prepare {
        finalizer,
        label: (!has_label).then_some(label),
        owner: owner.map(|owner| owner_reference(owner, false)),
    };
    (finalizer || !has_label || owner.is_some()).then_some(act)
}

/// Returns true if a mark changes the condition. The message may stay: a number in it changes too often.
fn is_new(seen: &Seen, key: &Key, mark: &Mark) -> bool {
    let machine = seen.machines.iter().find(|machine| machine.name_any() == key.0);
    machine.is_some_and(|machine| super::observe::remediated(machine) != mark.reason())
}

/// Adds the changes of existing Machines and of their objects. Each object records its own change, so none is repeated for another one.
fn propagate(seen: &Seen, acts: &mut Vec<Act>) {
    let set = &*seen.set;
    if is_deleting(set) {
        return;
    }
    for machine in seen.owned() {
        if acts.contains(&Act::Delete(Key(machine.name_any()))) {
            continue;
        }
        if !is_deleting(machine) {
            acts.extend(label_objects(seen, set, machine));
        }
        if let Some(propagation) = machine::propagation(set, machine) {
            acts.push(Act::Propagate(Key(machine.name_any()), propagation));
        }
    }
}

/// Returns the changes of the objects of a Machine. Objects of other owners are not changed.
fn label_objects(seen: &Seen, set: &MachineSet, machine: &Machine) -> Vec<Act> {
    let owners = [set.uid(), machine.uid()];
    let spec = &machine.spec;
    let references = std::iter::once(&spec.infrastructure_ref).chain(&spec.bootstrap.config_ref);
    let change = |reference: &Reference| {
        let object = seen.clones.get(reference)?.found()?;
        let mut of = object.metadata.owner_references.iter().flatten();
        let is_ours = of.any(|owner| owners.iter().flatten().any(|uid| *uid == owner.uid));
        let metadata = machine::label_change(set, &object.metadata).filter(|_| is_ours)?;
        Some(Act::Label { reference: reference.clone(), metadata })
    };
    references.filter_map(change).collect()
}
