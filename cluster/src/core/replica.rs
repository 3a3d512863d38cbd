//! Pure: parts of the plans of MachineDeployments, MachineSets and MachineHealthChecks that are the same for all of them.
//!
//! Not here: decisions about replicas, which `bedplate-replicas` has.

use std::time::Duration;

use bedplate_api::cluster::full::Cluster;
use bedplate_api::cluster::part::label;
use bedplate_engine::write::WriteError;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::object::OfCluster;
use super::reference::is_owned_by;
use crate::owner::{owner_reference, with_owner};

/// Delay until an object whose Machines are missing is planned again. Not every cause is watched.
const BLOCKED_DELAY: Duration = Duration::from_secs(30);
/// Minimum delay until an object is planned again.
const MIN_DELAY: Duration = Duration::from_secs(1);

/// Writes of a pass. `A`: a write. `D`: the decision about the replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan<A, D> {
    /// Writes, in order.
    pub acts: Vec<A>,
    /// Decision about the replicas. None: the object is paused, or cannot be planned.
    pub decided: Option<D>,
    /// Reasons why Machines are missing. Texts for a user.
    pub blocked: Vec<String>,
    /// True if the object must be planned again from live reads.
    pub needs_live_read: bool,
    /// Time at which the object must be planned again.
    pub next: Option<Timestamp>,
}

impl<A, D> Default for Plan<A, D> {
    fn default() -> Self {
        Self { acts: Vec::new(), decided: None, blocked: Vec::new(), needs_live_read: false, next: None }
    }
}

impl<A, D> Plan<A, D> {
    /// Returns the delay until the object is planned again, if no object changes before.
    pub fn again(&self, now: Timestamp) -> Option<Duration> {
        let left = |next: Timestamp| Duration::try_from(next.duration_since(now)).unwrap_or_default();
        let blocked = (!self.blocked.is_empty()).then_some(BLOCKED_DELAY);
        self.next.map(left).into_iter().chain(blocked).min().map(|delay| delay.max(MIN_DELAY))
    }
}

/// Change of a MachineSet or MachineDeployment itself. A pass carries out one, because each is bound to the resource version that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Own {
    /// Sets finalizer, label and owner.
    Prepare(Prepare),
    /// Sets `spec.replicas`.
    Replicas(u32),
    /// Sets an annotation. None: it is removed.
    Annotate(&'static str, Option<String>),
    /// Removes this finalizer.
    RemoveFinalizer(&'static str),
}

impl Own {
    /// Returns the change as a merge patch.
    pub fn patch<K: Resource>(&self, object: &K) -> Value {
        match self {
            Self::Prepare(prepare) => prepare.patch(),
            Self::Replicas(replicas) => {
                json!({ "spec": { "replicas": i32::try_from(*replicas).unwrap_or(i32::MAX) } })
            }
            Self::Annotate(key, value) => json!({ "metadata": { "annotations": { *key: value } } }),
            Self::RemoveFinalizer(finalizer) => {
                let others = object.finalizers().iter().filter(|other| other != finalizer);
                json!({ "metadata": { "finalizers": others.collect::<Vec<_>>() } })
            }
        }
    }
}

impl Own {
    /// Returns state, cause and next step of a change that the API server has refused. None: a retry may succeed.
    pub fn refusal(&self, error: &WriteError) -> Option<String> {
        let state = match self {
            Self::Prepare(Prepare { finalizers: Some(_), .. }) => "finalizer cannot be added".to_owned(),
            Self::Prepare(_) => "owner or label cannot be added".to_owned(),
            Self::Replicas(_) => "spec.replicas cannot be set".to_owned(),
            Self::Annotate(key, _) => format!("annotation {key} cannot be changed"),
            Self::RemoveFinalizer(_) => "finalizer cannot be removed".to_owned(),
        };
        error.refusal().map(|why| format!("{state}: {why}; permit it"))
    }
}

/// Metadata that an object lacks before its first child: finalizer, label with the name of its cluster, owner.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepare {
    /// All finalizers, if one is missing.
    pub finalizers: Option<Vec<String>>,
    /// Value of the label with the name of the cluster, if it is missing.
    pub cluster_name: Option<String>,
    /// All owners, if the Cluster is missing.
    pub owners: Option<Vec<OwnerReference>>,
}

impl Prepare {
    /// Returns the metadata that an object lacks. `cluster`: the Cluster that must own it. None: nothing is missing.
    pub fn of<K: OfCluster>(object: &K, finalizer: Option<&str>, cluster: Option<&Cluster>) -> Option<Self> {
        let present = object.finalizers();
        let finalizer = finalizer.filter(|finalizer| present.iter().all(|one| one != finalizer));
        let name = object.cluster_name().map(str::to_owned);
        let cluster = cluster.filter(|cluster| {
            cluster.metadata.uid.as_deref().is_none_or(|uid| !is_owned_by(object, "Cluster", uid))
        });
        let prepare = Self {
            finalizers: finalizer.map(|one| present.iter().cloned().chain([one.to_owned()]).collect()),
            cluster_name: name.filter(|name| object.labels().get(label::CLUSTER_NAME) != Some(name)),
            owners: cluster.map(|cluster| with_owner(object, &owner_reference(cluster, false))),
        };
        let is_needed =
            prepare.finalizers.is_some() || prepare.cluster_name.is_some() || prepare.owners.is_some();
        is_needed.then_some(prepare)
    }

    /// Returns the change as a merge patch.
    pub fn patch(&self) -> Value {
        let mut metadata = json!({});
        if let Some(finalizers) = &self.finalizers {
            metadata["finalizers"] = json!(finalizers);
        }
        if let Some(name) = &self.cluster_name {
            metadata["labels"] = json!({ label::CLUSTER_NAME: name });
        }
        if let Some(owners) = &self.owners {
            metadata["ownerReferences"] = json!(owners);
        }
        json!({ "metadata": metadata })
    }
}

/// Returns the merge patch that makes an object the child of a controller.
pub fn adopted<K: Resource>(object: &K, controller: &OwnerReference) -> Value {
    json!({ "metadata": { "ownerReferences": with_owner(object, controller) } })
}
