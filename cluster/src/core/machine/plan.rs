//! Pure: the next write for a Machine, the status that it must have, and the time of the next look without an event.
//!
//! ```text
//! paused: condition Paused, nothing else
//! owner, label, finalizer -> bootstrap and infrastructure adopted -> data Secret -> spec -> status -> Node
//! deleted: spec and nodeRef as far as they are known, then `deletion`
//! ```
//! One write at a time: its event starts the next plan. A step that waits for another program is not a write, and the status has its cause.
//! Nothing reads `status.phase` (M11). Not here: reads and writes. Called by the controller of Machines.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::machine::{FINALIZER, MachineStatus};
use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineSet};
use bedplate_api::cluster::part::label;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::data::{self, DataSecret};
use super::node::{self, NodePatch, Workload};
use super::references::{self, Adoption, Part, SpecChange};
use super::refused::Refused;
use super::status::{self, Deleting};
use crate::core::reference::{Lookup, is_owned_by};
use crate::owner::{self, owner_reference, with_owner};

/// Label of a Machine of a MachinePool. Upstream's kind, which Bedplate does not have.
const POOL_NAME_LABEL: &str = "cluster.x-k8s.io/pool-name";

/// Objects that decide about a Machine.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The Machine.
    pub machine: Arc<Machine>,
    /// The Cluster. None if it does not exist.
    pub cluster: Option<Arc<Cluster>>,
    /// The object of `spec.bootstrap.configRef`. It has no meaning without the reference.
    pub bootstrap: Lookup,
    /// The object of `spec.infrastructureRef`.
    pub infrastructure: Lookup,
    /// The Secret that holds `spec.bootstrap.data` (M3).
    pub data_secret: DataSecret,
    /// The workload cluster, and the Node with the providerID of the Machine.
    pub workload: Workload,
    /// The MachineSet that owns the Machine.
    pub set: Option<Arc<MachineSet>>,
    /// The MachineDeployment of the MachineSet.
    pub deployment: Option<Arc<MachineDeployment>>,
    /// Request of this turn that was refused.
    pub refused: Option<Refused>,
    /// The present time.
    pub now: Timestamp,
}

impl Observed {
    /// Returns true if no controller may change the Machine.
    pub fn is_paused(&self) -> bool {
        owner::is_paused(&*self.machine, self.cluster.as_deref())
    }

    /// Returns true if the Machine is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.machine.metadata.deletion_timestamp.is_some()
    }

    /// Returns the text about a refused request, if the condition of this type shows it.
    pub fn refusal(&self, type_: &str) -> Option<&str> {
        self.refused.as_ref()?.text(type_)
    }

    /// Returns the providerID of the Machine.
    pub fn provider_id(&self) -> Option<&str> {
        self.machine.spec.provider_id.as_deref().filter(|id| !id.is_empty())
    }
}

/// Write for a Machine that is not its status.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Changes the metadata of the Machine.
    SetMetadata(MetadataChange),
    /// Makes the Machine the controller of a referenced object (M5).
    Adopt(Adoption),
    /// Creates or replaces the Secret with this name. Its data is `spec.bootstrap.data` (M3), which this value does not hold.
    WriteDataSecret(String),
    /// Changes fields of the spec of the Machine.
    SetSpec(SpecChange),
    /// Changes labels, annotations and taints of the Node.
    SyncNode(NodePatch),
}

/// Change of the metadata of a Machine. A list replaces the list of the object that was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MetadataChange {
    /// All finalizers, if they change.
    pub finalizers: Option<Vec<String>>,
    /// All owner references, if they change.
    pub owner_references: Option<Vec<OwnerReference>>,
    /// Value of the label with the cluster's name, if it changes.
    pub cluster_name: Option<String>,
}

/// Decision about a Machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Next write, bound to the version of its object that was read.
    pub act: Option<Act>,
    /// Status to write, if it changes. It is written if there is no act, if the act is of the Node, or if the act fails.
    pub status: Option<Box<MachineStatus>>,
    /// Delay until the next plan, if no event arrives.
    pub recheck: Option<Duration>,
}

impl Plan {
    /// Returns true if the deletion must wait for the writes of this plan: without `providerID` and `nodeRef` it would not drain the Node.
    pub(crate) fn holds_deletion(&self, machine: &Machine) -> bool {
        let has_ref = |status: &MachineStatus| status.node_ref.is_some();
        let sets_ref =
            self.status.as_deref().is_some_and(has_ref) && !machine.status.as_ref().is_some_and(has_ref);
        self.act.is_some() || sets_ref
    }
}

/// Decides the next write for a Machine that is not deleted.
pub fn plan(observed: &Observed) -> Plan {
    let next = status::status(observed, None);
    let act = if observed.is_paused() { None } else { act(observed) };
    with_status(observed, act, next)
}

/// Decides the writes for a Machine that is deleted, apart from those of `deletion`.
pub fn plan_deleted(observed: &Observed, deleting: &Deleting) -> Plan {
    let next = status::status(observed, Some(deleting));
    let act = if observed.is_paused() { None } else { references::spec(observed).map(Act::SetSpec) };
    with_status(observed, act, next)
}

fn with_status(observed: &Observed, act: Option<Act>, next: status::Next) -> Plan {
    let is_changed = observed.machine.status.as_ref() != Some(&next.status);
    Plan { act, status: is_changed.then(|| Box::new(next.status)), recheck: next.recheck }
}

fn act(observed: &Observed) -> Option<Act> {
    // Without the Cluster no owner is known, and its name alone proves nothing.
    let cluster = observed.cluster.as_deref()?;
    metadata(&observed.machine, cluster)
        .map(Act::SetMetadata)
        .or_else(|| references::adoption(observed, Part::Bootstrap).map(Act::Adopt))
        .or_else(|| references::adoption(observed, Part::Infrastructure).map(Act::Adopt))
        .or_else(|| data::write(&observed.machine, observed.data_secret).map(Act::WriteDataSecret))
        .or_else(|| references::spec(observed).map(Act::SetSpec))
        .or_else(|| node::sync(observed).map(Act::SyncNode))
}

/// Returns the change of the metadata (M12). The finalizer precedes the first side effect.
fn metadata(machine: &Machine, cluster: &Cluster) -> Option<MetadataChange> {
    let mut finalizers = machine.finalizers().to_vec();
    let has_finalizer = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    finalizers.push(FINALIZER.to_owned());
    let name = &machine.spec.cluster_name;
    let has_label = machine.labels().get(label::CLUSTER_NAME) == Some(name);
    let change = MetadataChange {
        finalizers: (!has_finalizer).then_some(finalizers),
        owner_references: owner_references(machine, cluster),
        cluster_name: (!has_label).then(|| name.clone()),
    };
    (change != MetadataChange::default()).then_some(change)
}

/// Returns the owner references of a Machine that the Cluster must own directly, if they change.
///
/// A set or a control plane adopts its own Machines, also after a restore. Their labels tell them from Machines of their own.
fn owner_references(machine: &Machine, cluster: &Cluster) -> Option<Vec<OwnerReference>> {
    let owners = machine.owner_references();
    let made = [label::SET_NAME, label::CONTROL_PLANE_NAME, POOL_NAME_LABEL];
    let is_made = made.iter().any(|made| machine.labels().contains_key(*made));
    if is_made || owners.iter().any(|owner| owner.controller == Some(true)) {
        return None;
    }
    if is_owned_by(machine, "Cluster", &cluster.uid()?) {
        return None;
    }
    Some(with_owner(machine, &owner_reference(cluster, false)))
}

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod tests;
