//! Pure: the next step of the deletion of a Cluster.
//!
//! ```text
//! MachineDeployments -> MachineSets -> Machines of workers -> MachinePools (waits)
//!     -> control plane -> its Machines -> infrastructure -> finalizer
//! ```
//! Each step starts when the former one has left nothing. An object that another Cluster owns, or of a core kind, is not deleted, and not waited
//! for.

use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::full::condition_type::DELETING;
use bedplate_api::reason::core::ClusterDeletingReason;
use kube::{Resource, ResourceExt};

use super::observed::{Component, Observed, Ownership, ownership};
use super::plan::Act;
use crate::core::merge::listed;
use crate::core::reference::{Lookup, is_managed, refusal};

/// Maximum number of objects of a kind that a message names.
const MAX_NAMES: usize = 5;

/// Kind of an object that the deletion of a Cluster deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChildKind {
    /// MachineDeployment.
    MachineDeployment,
    /// MachineSet.
    MachineSet,
    /// Machine.
    Machine,
}

/// Object that the deletion of a Cluster deletes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Child {
    /// Kind of the object.
    pub kind: ChildKind,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
}

/// Step of the deletion.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Next write.
    pub act: Act,
    /// Reason of condition `Deleting`.
    pub reason: ClusterDeletingReason,
    /// Message of condition `Deleting`.
    pub message: String,
}

/// Returns the next step of the deletion. Objects that cannot be read may exist, so the deletion waits for them.
pub fn step(observed: &Observed) -> Step {
    if let Some(unread) = observed.unread.as_ref().filter(|unread| unread.type_ == DELETING) {
        let reason = ClusterDeletingReason::InternalError;
        return Step { act: Act::None, reason, message: unread.text.clone() };
    }
    workers(observed)
        .or_else(|| control_plane(observed))
        .or_else(|| component(observed, Component::Infrastructure))
        .unwrap_or_else(|| Step {
            act: Act::RemoveFinalizer,
            reason: ClusterDeletingReason::DeletionCompleted,
            message: String::new(),
        })
}

fn workers(observed: &Observed) -> Option<Step> {
    let machines: Vec<&Machine> = observed.worker_machines().map(|machine| &**machine).collect();
    let lists = [
        list("MachineDeployment", observed.deployments.iter().map(|object| object.name_any())),
        list("MachineSet", observed.sets.iter().map(|object| object.name_any())),
        list("Machine", machines.iter().map(|object| object.name_any())),
        (observed.pools > 0)
            .then(|| format!("* {}: delete them, they are not supported", pools(observed.pools))),
    ];
    let message = lists.into_iter().flatten().collect::<Vec<_>>().join("\n");
    if message.is_empty() {
        return None;
    }
    let children = if !observed.deployments.is_empty() {
        free(ChildKind::MachineDeployment, observed.deployments.iter().map(|object| &**object))
    } else if !observed.sets.is_empty() {
        free(ChildKind::MachineSet, observed.sets.iter().map(|object| &**object))
    } else {
        free(ChildKind::Machine, machines.into_iter())
    };
    Some(Step { act: delete(children), reason: ClusterDeletingReason::WaitingForWorkersDeletion, message })
}

fn control_plane(observed: &Observed) -> Option<Step> {
    if let Some(step) = component(observed, Component::ControlPlane) {
        return Some(step);
    }
    let machines: Vec<&Machine> = observed.control_plane_machines().map(|machine| &**machine).collect();
    let message = list("Machine", machines.iter().map(|object| object.name_any()))?;
    // The object that managed the Machines is gone, so no other program deletes them.
    let has_object = observed.reference(Component::ControlPlane).is_some();
    let children = if has_object {
        live(ChildKind::Machine, machines.into_iter())
    } else {
        free(ChildKind::Machine, machines.into_iter())
    };
    Some(Step {
        act: delete(children),
        reason: ClusterDeletingReason::WaitingForControlPlaneDeletion,
        message,
    })
}

/// Returns the step that deletes a component. None: nothing is left of it.
fn component(observed: &Observed, component: Component) -> Option<Step> {
    let (reference, lookup) = observed.component(component).filter(|(of, _)| refusal(of).is_none())?;
    let kind = &reference.kind;
    let waiting = match component {
        Component::Infrastructure => ClusterDeletingReason::WaitingForInfrastructureDeletion,
        Component::ControlPlane => ClusterDeletingReason::WaitingForControlPlaneDeletion,
    };
    let wait = |reason, message| Some(Step { act: Act::None, reason, message });
    match lookup {
        Lookup::Absent => None,
        Lookup::NotSynced => wait(waiting, lookup.unknown(kind).unwrap_or_default()),
        Lookup::Unresolved(why) => {
            let message = format!("{kind} {} cannot be deleted: {why}", reference.name);
            wait(ClusterDeletingReason::InternalError, message)
        }
        Lookup::Found(object) => {
            if matches!(ownership(&**object, &observed.cluster), Ownership::Foreign(_)) {
                return None;
            }
            let is_deleting = object.metadata.deletion_timestamp.is_some();
            let act = if is_deleting { Act::None } else { Act::DeleteComponent(component) };
            Some(Step {
                act,
                reason: waiting,
                message: format!("{kind} {} is being deleted", reference.name),
            })
        }
    }
}

/// Returns the objects that are not deleted yet and that no other object manages.
fn free<'a, K: Resource + 'a>(kind: ChildKind, objects: impl Iterator<Item = &'a K>) -> Vec<Child> {
    live(kind, objects.filter(|object| !is_managed(*object)))
}

/// Returns the objects that are not deleted yet.
fn live<'a, K: Resource + 'a>(kind: ChildKind, objects: impl Iterator<Item = &'a K>) -> Vec<Child> {
    let live = objects.filter(|object| object.meta().deletion_timestamp.is_none());
    live.map(|object| Child { kind, name: object.name_any(), uid: object.uid().unwrap_or_default() })
        .collect()
}

fn delete(children: Vec<Child>) -> Act {
    if children.is_empty() { Act::None } else { Act::DeleteChildren(children) }
}

fn list(kind: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let names: Vec<String> = names.collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| format!("* {}", listed(kind, &names, MAX_NAMES)))
}

fn pools(count: usize) -> String {
    if count == 1 { "1 MachinePool".to_owned() } else { format!("{count} MachinePools") }
}
