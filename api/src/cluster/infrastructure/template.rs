//! Templates of the infrastructure kinds: `BedplateMachineTemplate` and `BedplateClusterTemplate`.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{BedplateClusterSpec, BedplateMachineSpec};
use crate::schema::{annotation_values, label_values};

/// Metadata of the objects that are made from a template.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_values")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "annotation_values")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Template of the objects. Written by users. It cannot be changed: create another template.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "BedplateMachineTemplate",
    plural = "bedplatemachinetemplates",
    shortname = "bpmt",
    category = "cluster-api",
    namespaced,
    status = "BedplateMachineTemplateStatus",
    derive = "PartialEq",
    cel,
    doc = "Template of the BedplateMachines of a control plane or of a MachineDeployment. Its spec cannot be changed: create another object.",
    printcolumn(
        name = "Configuration",
        type_ = "string",
        description = "MachineConfiguration of the hosts.",
        json_path = ".spec.template.spec.configurationRef.name"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.template.spec.machineName) && !has(self.template.spec.providerID)")
        .message("machineName and providerID must not be set in a template: each machine claims its own host")
)]
pub struct BedplateMachineTemplateSpec {
    /// Metadata and spec of the BedplateMachines that are made from the template. It cannot be changed.
    pub template: BedplateMachineTemplateResource,
}

/// Smallest resources of the hosts that may be claimed, for autoscaling from zero. Written by the provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct BedplateMachineTemplateStatus {
    /// Resources that each of the hosts has at least. Unset if no host has reported them. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Architecture and operating system of the nodes. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
}

/// Resources of a node, as quantities of Kubernetes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Number of hardware threads. Example: `16`.
    #[schemars(length(min = 1, max = 20), regex(pattern = r"^[0-9]+$"))]
    pub cpu: String,
    /// Memory in bytes. Example: `68719476736`.
    #[schemars(length(min = 1, max = 20), regex(pattern = r"^[0-9]+$"))]
    pub memory: String,
}

/// Facts of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Architecture, as in OCI images: `amd64` or `arm64`. At most 63 characters. Unset if the hosts have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub architecture: Option<String>,
    /// Operating system: `linux`. At most 63 characters.
    #[schemars(length(min = 1, max = 63))]
    pub operating_system: String,
}

/// The objects that are made from a BedplateMachineTemplate.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BedplateMachineTemplateResource {
    /// Labels and annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the objects. `machineName` and `providerID` must not be set.
    pub spec: BedplateMachineSpec,
}

/// Template of the objects. Written by users. It cannot be changed: create another template.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "BedplateClusterTemplate",
    plural = "bedplateclustertemplates",
    shortname = "bpct",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    cel,
    doc = "Template of BedplateClusters, for ClusterClasses. Its spec cannot be changed: create another object.",
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterTemplateSpec {
    /// Metadata and spec of the BedplateClusters that are made from the template. It cannot be changed.
    pub template: BedplateClusterTemplateResource,
}

/// The objects that are made from a BedplateClusterTemplate.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterTemplateResource {
    /// Labels and annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the objects.
    pub spec: BedplateClusterSpec,
}
