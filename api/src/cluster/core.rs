//! `Cluster` and `Machine` of Cluster API: the fields that the infrastructure provider reads. Upstream defines and writes these kinds.
//!
//! Each field is optional, so that every object that the API server stores can be read. No definition is made from these types.
//!
//! Pure: no clock, no file, no socket.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// API group of the core kinds.
pub const GROUP: &str = "cluster.x-k8s.io";

/// Label of the objects of a cluster: its name.
pub const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Label of the Machines of a control plane, and of what belongs to them. Its value has no meaning.
pub const CONTROL_PLANE_LABEL: &str = "cluster.x-k8s.io/control-plane";

/// Annotation of an object that no controller changes. Its value has no meaning.
pub const PAUSED_ANNOTATION: &str = "cluster.x-k8s.io/paused";

/// Annotation of an infrastructure cluster that another program manages. Its value has no meaning.
pub const MANAGED_BY_ANNOTATION: &str = "cluster.x-k8s.io/managed-by";

/// Annotation that makes `clusterctl move` wait. Its value has no meaning.
pub const BLOCK_MOVE_ANNOTATION: &str = "clusterctl.cluster.x-k8s.io/block-move";

/// A cluster.
#[derive(CustomResource, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Cluster",
    plural = "clusters",
    namespaced,
    schema = "disabled",
    status = "ClusterStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    /// True if no controller changes the objects of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Endpoint of the control plane, given by a user or copied from the infrastructure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<super::infrastructure::Endpoint>,
    /// Infrastructure of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<Reference>,
}

/// An object of another provider, in the same namespace.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Reference {
    /// API group.
    pub api_group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

impl Reference {
    /// Returns true if it names an object of this kind of the infrastructure provider.
    pub fn is_kind(&self, kind: &str) -> bool {
        self.api_group == super::infrastructure::GROUP && self.kind == kind
    }
}

/// State of a cluster.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    /// Progress of the first provisioning.
    pub initialization: ClusterInitialization,
}

/// Progress of the first provisioning of a cluster.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInitialization {
    /// True if the infrastructure is provisioned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
}

/// A machine of a cluster.
#[derive(CustomResource, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    plural = "machines",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// Name of the cluster.
    pub cluster_name: String,
    /// Data with which the machine becomes a node.
    pub bootstrap: Bootstrap,
    /// Infrastructure of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<Reference>,
    /// Version of Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Failure domain in which the machine must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
}

/// Data with which a machine becomes a node.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Bootstrap {
    /// Name of the Secret with the data. Absent: not made yet. Empty: the machine needs none (M3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_secret_name: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_with_unknown_or_missing_fields_are_readable() {
        let object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "m" },
            "spec": { "clusterName": "c", "bootstrap": { "configRef": { "kind": "KubeadmConfig" } }, "added": { "later": 1 } },
            "status": { "phase": "Pending" } });
        let machine: Machine = serde_json::from_value(object).unwrap();
        assert_eq!((machine.spec.bootstrap.data_secret_name, machine.spec.version), (None, None));
        let object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": "c" }, "spec": {},
            "status": { "initialization": { "infrastructureProvisioned": true } } });
        let cluster: Cluster = serde_json::from_value(object).unwrap();
        assert_eq!(cluster.status.unwrap().initialization.infrastructure_provisioned, Some(true));
    }
}
