//! Pure: the writes of a MachineSet, in the order in which they must be applied (MS1 to MS10). Called by the controller of MachineSets.
//!
//! A failed write ends the creations of the pass. The next pass decides again from the objects.

use std::sync::Arc;

use bedplate_api::cluster::full::set::FINALIZER;
use bedplate_api::cluster::full::{Machine, MachineSet};
use bedplate_api::cluster::part::{Reference, label};
use bedplate_replicas::{Key, Mark, SetPlan, plan_set};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;

use super::children;
use super::machine::{self, Metadata, Propagation};
use super::observe::{NotPlannable, Observed, observe};
use super::record;
use crate::core::object::is_deleting;
use crate::core::reference::owners;
use crate::core::replica::{self, Own, Prepare};
use crate::owner;

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Changes the set, bound to its resource version.
    Own(Own),
    /// Changes a Machine that exists, bound to its UID and resource version.
    Machine(Key, Change),
    /// Deletes an object of a recorded name, bound to its UID.
    DeleteClone {
        /// The object.
        reference: Reference,
        /// The UID.
        uid: String,
    },
    /// Creates an object from a template. The act fails if it exists.
    CreateClone {
        /// The object.
        reference: Reference,
        /// The content.
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
}

/// Change of a Machine that exists.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Makes the set the controller of an orphan.
    Adopt,
    /// Sets or removes condition `OwnerRemediated`.
    Mark(Mark),
    /// Deletes the Machine.
    Delete,
    /// Sets the fields of the set.
    Propagate(Propagation),
}

/// Writes of a pass.
pub type Plan = replica::Plan<Act, SetPlan>;

/// Decides the writes of a set.
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let set = &*observed.set;
    if is_set_paused(observed) {
        return Plan::default();
    }
    let view = match observe(observed) {
        Ok(view) => view,
        Err(error @ (NotPlannable::Names(_) | NotPlannable::Selector | NotPlannable::Deployment(_))) => {
            return Plan { blocked: vec![error.to_string()], ..Plan::default() };
        }
    };
    let decided = plan_set(&view, now);
    let has_record = !record::read(set.annotations()).is_empty();
    let mut plan = Plan {
        blocked: decided.blocked.iter().map(ToString::to_string).collect(),
        needs_live_read: decided.needs_live_read || has_record && !observed.is_live,
        next: decided.next,
        ..Plan::default()
    };
    plan.acts.extend(prepare(observed));
    plan.acts.extend(of_machines(observed, &decided));
    if !plan.needs_live_read && observed.is_live {
        let children = children::plan(observed, &decided);
        plan.acts.extend(children.acts);
        plan.blocked.extend(children.blocked);
        if decided.remove_finalizer
            && children.is_settled
            && set.finalizers().iter().any(|one| one == FINALIZER)
        {
            plan.acts.push(Act::Own(Own::RemoveFinalizer(FINALIZER)));
        }
    }
    propagate(observed, &mut plan.acts);
    plan.decided = Some(decided);
    plan
}

/// Returns the writes of the set's size, and of Machines that exist.
fn of_machines(observed: &Observed, decided: &SetPlan) -> Vec<Act> {
    let set = &*observed.set;
    let is_size_due = set.spec.replicas.is_none_or(|replicas| replicas < 0) && !is_deleting(set);
    let size = decided.replicas.filter(|_| is_size_due).map(|size| Act::Own(Own::Replicas(size)));
    let adopt = decided.adopt.iter().map(|key| Act::Machine(key.clone(), Change::Adopt));
    let mark = decided.mark.iter().filter(|(key, mark)| is_new(observed, key, mark)).cloned();
    let mark = mark.map(|(key, mark)| Act::Machine(key, Change::Mark(mark)));
    let delete = decided.delete.iter().map(|key| Act::Machine(key.clone(), Change::Delete));
    size.into_iter().chain(adopt).chain(mark).chain(delete).collect()
}

/// Returns true if no controller changes the set.
pub(crate) fn is_set_paused(observed: &Observed) -> bool {
    owner::is_paused(&*observed.set, observed.cluster.as_deref())
}

/// Returns the write that makes the set ready for its Machines. The finalizer precedes the first Machine.
fn prepare(observed: &Observed) -> Option<Act> {
    let set = &*observed.set;
    if is_deleting(set) {
        return None;
    }
    // After a restore the owner of a deployment's set is missing. The controller of deployments adopts it.
    let is_of_deployment = set.labels().contains_key(label::DEPLOYMENT_NAME)
        || owners(set, "MachineDeployment").next().is_some();
    let owner = observed.cluster.as_deref().filter(|_| !is_of_deployment);
    Prepare::of(set, Some(FINALIZER), owner).map(|prepare| Act::Own(Own::Prepare(prepare)))
}

/// Returns true if a mark changes the condition. The message may stay: a number in it changes too often.
fn is_new(observed: &Observed, key: &Key, mark: &Mark) -> bool {
    let machine = observed.machines.iter().find(|machine| machine.name_any() == key.0);
    machine.is_some_and(|machine| super::observe::remediated(machine) != mark.reason())
}

/// Adds the changes of existing Machines and of their objects. Each object records its own change, so none is repeated for another one.
fn propagate(observed: &Observed, acts: &mut Vec<Act>) {
    let set = &*observed.set;
    if is_deleting(set) {
        return;
    }
    for machine in observed.owned() {
        let key = Key(machine.name_any());
        if acts.contains(&Act::Machine(key.clone(), Change::Delete)) {
            continue;
        }
        if !is_deleting(machine) {
            acts.extend(label_objects(observed, set, machine));
        }
        if let Some(propagation) = machine::propagation(set, machine) {
            acts.push(Act::Machine(key, Change::Propagate(propagation)));
        }
    }
}

/// Returns the changes of the objects of a Machine. Objects of other owners are not changed.
fn label_objects(observed: &Observed, set: &MachineSet, machine: &Machine) -> Vec<Act> {
    let owners = [set.uid(), machine.uid()];
    let spec = &machine.spec;
    let references = std::iter::once(&spec.infrastructure_ref).chain(&spec.bootstrap.config_ref);
    let change = |reference: &Reference| {
        let object = observed.clones.get(reference)?.found()?;
        let mut of = object.metadata.owner_references.iter().flatten();
        let is_ours = of.any(|owner| owners.iter().flatten().any(|uid| *uid == owner.uid));
        let metadata = machine::label_change(set, &object.metadata).filter(|_| is_ours)?;
        Some(Act::Label { reference: reference.clone(), metadata })
    };
    references.filter_map(change).collect()
}
