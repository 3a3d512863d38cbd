//! Fields of the contracts v1beta1 and v1beta2 of Cluster API, read from an object of any provider.
//!
//! A provider's kind is not known at compile time. A field of an unexpected form counts as absent, and so does a text that is longer than a
//! Machine or a Cluster can show. One object of a faulty provider therefore hides no other object of a watch. `metadata` alone must have the form
//! of Kubernetes, which the API server checks. Nothing else of the object is kept. Callers: the watches on referenced objects.
//!
//! Pure: no clock, no file, no socket.

mod read;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use kube::api::ApiResource;
use kube::core::{DynamicResourceScope, Version};
use serde::Deserialize;

use super::part::{FailureDomain, MachineAddress};

/// Contract of Cluster API. The later one is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContractGeneration {
    /// v1beta1.
    V1Beta1,
    /// v1beta2.
    V1Beta2,
}

impl ContractGeneration {
    /// All contracts, the preferred one first.
    pub const ALL: [Self; 2] = [Self::V1Beta2, Self::V1Beta1];

    /// Returns the label of a definition with the versions that fulfill the contract.
    pub const fn label(self) -> &'static str {
        match self {
            Self::V1Beta1 => "cluster.x-k8s.io/v1beta1",
            Self::V1Beta2 => "cluster.x-k8s.io/v1beta2",
        }
    }
}

/// Version of a kind, and the contract that it fulfills.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContractVersion {
    /// The contract.
    pub contract: ContractGeneration,
    /// API version of the kind.
    pub version: String,
}

/// Returns the version in which a kind must be read, from the labels of its definition: the latest of the preferred contract. None if the
/// kind fulfills no contract.
pub fn api_version(labels: &BTreeMap<String, String>) -> Option<ContractVersion> {
    ContractGeneration::ALL.into_iter().find_map(|contract| {
        let versions = labels.get(contract.label())?.split('_').filter(|version| !version.is_empty());
        let version = versions.max_by_key(|version| Version::parse(version).priority())?.to_owned();
        Some(ContractVersion { contract, version })
    })
}

/// Address of a control plane. Both parts are set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Host name or IP address.
    pub host: String,
    /// Port of the API server.
    pub port: u16,
}

/// Numbers of machines that a control plane reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CountsView {
    /// `spec.replicas`.
    pub desired: Option<i32>,
    /// `status.replicas`.
    pub existing: Option<i32>,
    /// `status.readyReplicas`.
    pub ready: Option<i32>,
    /// `status.availableReplicas`.
    pub available: Option<i32>,
    /// `status.upToDateReplicas`, in v1beta1 `status.updatedReplicas`.
    pub up_to_date: Option<i32>,
}

/// Permanent failure that an object of contract v1beta1 reports. It is shown only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// One word.
    pub reason: String,
    /// Text for a user.
    pub message: String,
}

/// Fields of the contracts. Each is absent if the object does not have it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Contract {
    /// True if the infrastructure is provisioned.
    pub provisioned: Option<bool>,
    /// True if the Secret with the bootstrap data exists.
    pub data_secret_created: Option<bool>,
    /// True if the control plane accepts requests, or has done so.
    pub initialized: Option<bool>,
    /// Name of the Secret with the bootstrap data. Not empty.
    pub data_secret_name: Option<String>,
    /// `spec.providerID`. Not empty.
    pub provider_id: Option<String>,
    /// Endpoint of the control plane, if both parts are set.
    pub endpoint: Option<Endpoint>,
    /// Addresses of the machine with a known type, at most 256.
    pub addresses: Vec<MachineAddress>,
    /// Failure domain that the machine is in.
    pub failure_domain: Option<String>,
    /// Failure domains of the cluster, sorted by name, at most 100.
    pub failure_domains: Vec<FailureDomain>,
    /// `spec.version` of a control plane.
    pub version: Option<String>,
    /// `status.version` of a control plane: lowest version of its machines.
    pub status_version: Option<String>,
    /// Numbers of machines of a control plane.
    pub replicas: CountsView,
    /// True if the infrastructure may take the machine away.
    pub interruptible: bool,
    /// Permanent failure.
    pub failure: Option<Failure>,
    /// Conditions of the types of [`CONDITION_TYPES`].
    pub conditions: Vec<Condition>,
    /// Types of the conditions that lack a valid status or time.
    pub invalid_conditions: Vec<String>,
    /// True if the control plane has no Machines.
    pub is_externally_managed: bool,
}

/// Types of the conditions that are kept.
pub const CONDITION_TYPES: [&str; 6] =
    ["Ready", "Available", "RollingOut", "ScalingUp", "ScalingDown", "Remediating"];

/// Object of any kind that a Cluster or a Machine names: its metadata and the fields of the contracts.
///
/// `managedFields`, and annotations of other programs, are dropped.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(from = "read::Object")]
pub struct Referenced {
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// Fields of the contracts.
    pub contract: Contract,
}

/// Condition of a referenced object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mirrored<'a> {
    /// The object has no condition of the type.
    Absent,
    /// The condition lacks a valid status or time.
    Invalid,
    /// The condition. Its reason may be empty.
    Is(&'a Condition),
}

impl Referenced {
    /// Returns the condition of a type.
    pub fn condition(&self, type_: &str) -> Mirrored<'_> {
        if self.contract.invalid_conditions.iter().any(|invalid| invalid == type_) {
            return Mirrored::Invalid;
        }
        let found = self.contract.conditions.iter().find(|condition| condition.type_ == type_);
        found.map_or(Mirrored::Absent, Mirrored::Is)
    }
}

impl Resource for Referenced {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        kind.kind.as_str().into()
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        kind.group.as_str().into()
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        kind.version.as_str().into()
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        kind.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests;
