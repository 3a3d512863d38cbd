//! Pure: the bootstrap and the infrastructure object of a Machine: who owns them (M5), and what is copied from them into the spec (M4, M7).
//!
//! An object of another Machine is never adopted, and nothing is read from it: its providerID would make this Machine delete the Node of the
//! other. The owner that has created an object for this Machine, its MachineSet or control plane, gives way. Called by `plan`, `status` and
//! `deletion`.

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::part::{Reference, label};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::data;
use super::plan::Observed;
use crate::core::reference::{Lookup, is_core_owner};
use crate::owner::owner_reference;

/// Object that a Machine references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Object of `spec.bootstrap.configRef`.
    Bootstrap,
    /// Object of `spec.infrastructureRef`.
    Infrastructure,
}

impl Part {
    /// Returns the reference of a Machine.
    pub fn reference(self, machine: &Machine) -> Option<&Reference> {
        match self {
            Self::Bootstrap => machine.spec.bootstrap.config_ref.as_ref(),
            Self::Infrastructure => Some(&machine.spec.infrastructure_ref),
        }
    }

    /// Returns the object, as far as it is known.
    pub fn lookup(self, observed: &Observed) -> &Lookup {
        match self {
            Self::Bootstrap => &observed.bootstrap,
            Self::Infrastructure => &observed.infrastructure,
        }
    }
}

/// Owner of a referenced object, as a Machine sees it.
#[derive(Debug, Clone, PartialEq)]
pub enum Ownership {
    /// The Machine is its controller.
    Own,
    /// The Machine may become its controller, with these owner references.
    Adoptable(Vec<OwnerReference>),
    /// It belongs to this other object.
    Foreign(String),
}

/// Change of the metadata of a referenced object.
#[derive(Debug, Clone, PartialEq)]
pub struct Adoption {
    /// The object.
    pub part: Part,
    /// All its owner references.
    pub owner_references: Vec<OwnerReference>,
    /// Value of the label with the cluster's name.
    pub cluster_name: String,
}

/// Change of the spec of a Machine. These fields and no others are written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpecChange {
    /// `bootstrap.dataSecretName`.
    pub data_secret_name: Option<String>,
    /// `providerID`.
    pub provider_id: Option<String>,
    /// `failureDomain`.
    pub failure_domain: Option<String>,
}

fn group(owner: &OwnerReference) -> &str {
    owner.api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Decides who owns a referenced object.
pub fn ownership(machine: &Machine, cluster: Option<&Cluster>, object: &Referenced) -> Ownership {
    let own = owner_reference(machine, true);
    let owners = object.owner_references();
    let mut kept = Vec::with_capacity(owners.len() + 1);
    for owner in owners {
        // A Machine that was restored under its name has another UID.
        if is_creator(machine, cluster, owner) || is_core_owner(owner, "Machine") && owner.name == own.name {
            continue;
        }
        if is_core_owner(owner, "Machine") || owner.controller == Some(true) {
            return Ownership::Foreign(format!("{} {}", owner.kind, owner.name));
        }
        kept.push(owner.clone());
    }
    kept.push(own);
    let is_there = |wanted: &OwnerReference| owners.iter().any(|owner| is_same(owner, wanted));
    let is_done = owners.len() == kept.len() && kept.iter().all(is_there);
    if is_done { Ownership::Own } else { Ownership::Adoptable(kept) }
}

fn is_same(owner: &OwnerReference, wanted: &OwnerReference) -> bool {
    let key = |owner: &OwnerReference| {
        (
            owner.api_version.clone(),
            owner.kind.clone(),
            owner.name.clone(),
            owner.uid.clone(),
            owner.controller,
        )
    };
    key(owner) == key(wanted)
}

/// Returns true if an owner has created the object before the Machine existed: a MachineSet, or the control plane of the Cluster.
fn is_creator(machine: &Machine, cluster: Option<&Cluster>, owner: &OwnerReference) -> bool {
    if is_core_owner(owner, "MachineSet") {
        return true;
    }
    let control_plane = cluster.and_then(|cluster| cluster.spec.control_plane_ref.as_ref());
    machine.labels().contains_key(label::CONTROL_PLANE)
        && control_plane.is_some_and(|plane| owner.kind == plane.kind && group(owner) == plane.api_group)
}

/// Returns the adoption of a referenced object that is due.
pub fn adoption(observed: &Observed, part: Part) -> Option<Adoption> {
    let machine = &*observed.machine;
    part.reference(machine)?;
    let object = part.lookup(observed).found()?;
    let cluster_name = machine.spec.cluster_name.clone();
    let has_label = object.labels().get(label::CLUSTER_NAME) == Some(&cluster_name);
    let owner_references = match ownership(machine, observed.cluster.as_deref(), object) {
        Ownership::Adoptable(owners) => owners,
        Ownership::Own if !has_label => object.owner_references().to_vec(),
        Ownership::Own | Ownership::Foreign(_) => return None,
    };
    Some(Adoption { part, owner_references, cluster_name })
}

/// Returns a referenced object from which the Machine may take data: it is the Machine's own, and it is not deleted.
pub fn usable(observed: &Observed, part: Part) -> Option<&Referenced> {
    part.reference(&observed.machine)?;
    let object = part.lookup(observed).found()?;
    let is_own = ownership(&observed.machine, observed.cluster.as_deref(), object) == Ownership::Own;
    (is_own && object.metadata.deletion_timestamp.is_none()).then_some(object)
}

/// Returns the infrastructure object, if it is provisioned or was so once.
pub fn provisioned(observed: &Observed) -> Option<&Referenced> {
    let infrastructure = usable(observed, Part::Infrastructure)?;
    let status = observed.machine.status.as_ref();
    let was = status.and_then(|status| status.initialization.as_ref()?.infrastructure_provisioned);
    (infrastructure.contract.provisioned == Some(true) || was == Some(true)).then_some(infrastructure)
}

/// Returns the ID that the infrastructure reports now, if the Machine has another one. An ID never changes once it is set.
pub(crate) fn other_provider_id(observed: &Observed) -> Option<&str> {
    let reported = provisioned(observed)?.contract.provider_id.as_deref()?;
    observed.provider_id().is_some_and(|id| id != reported).then_some(reported)
}

/// Returns the change of the spec that is due. A field that is set is never changed.
pub fn spec(observed: &Observed) -> Option<SpecChange> {
    let spec = &observed.machine.spec;
    let infrastructure = provisioned(observed).map(|object| &object.contract);
    // Without an ID the infrastructure is not synced yet (M7).
    let reported = infrastructure.filter(|contract| contract.provider_id.is_some());
    let is_unset = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let change = SpecChange {
        data_secret_name: data_secret_name(observed),
        provider_id: reported
            .filter(|_| is_unset(&spec.provider_id))
            .and_then(|contract| contract.provider_id.clone()),
        failure_domain: reported
            .filter(|_| is_unset(&spec.failure_domain))
            .and_then(|contract| contract.failure_domain.clone()),
    };
    (change != SpecChange::default()).then_some(change)
}

/// Returns the name of the Secret with the bootstrap data, once the data exists (M3, M4).
fn data_secret_name(observed: &Observed) -> Option<String> {
    let bootstrap = &observed.machine.spec.bootstrap;
    // The infrastructure of a deleted Machine must not start (M6).
    if bootstrap.data_secret_name.is_some() || observed.is_deleting() {
        return None;
    }
    if bootstrap.config_ref.is_none() {
        return data::name(&observed.machine, observed.data_secret);
    }
    let contract = &usable(observed, Part::Bootstrap)?.contract;
    contract.data_secret_name.clone().filter(|_| contract.data_secret_created == Some(true))
}
