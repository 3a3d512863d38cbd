//! The kubelet and kubeadm of a template (docs/reference/kubeadm.md).
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{annotation_values, free_form, label_values};

/// The kubelet of a node and how it joins.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesSpec {
    /// Version of the kubelet and of kubeadm in the node image, with a leading `v`. At most 63 characters. Example: `v1.34.4`.
    #[schemars(
        length(max = 63),
        regex(
            pattern = r"^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"
        )
    )]
    pub version: String,
    /// API server that the node joins, as host:port. It must belong to the cluster of the Machine. At most 261 characters. Example:
    /// `api.example:6443`. If unset: the API server that serves this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 261),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*|\[[0-9a-fA-F:.]+\]):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
        )
    )]
    pub api_server_endpoint: Option<String>,
    /// Labels that the Node registers with. A kubelet may not set most labels of `kubernetes.io`. At most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_values", extend("maxProperties" = 64))]
    pub node_labels: BTreeMap<String, String>,
    /// Annotations of the Node. At most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotation_values", extend("maxProperties" = 64))]
    pub node_annotations: BTreeMap<String, String>,
    /// Taints that the Node registers with. At most 32. If unset: none for a worker, and those of kubeadm for a control plane.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Vec<Taint>,
    /// Fields of KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`). They replace those of the cluster's configuration. A field that is
    /// null removes that of the cluster. Example: `maxPods: 60`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub kubelet_configuration: Option<serde_json::Value>,
    /// Command line arguments of the kubelet. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub kubelet_extra_args: Vec<KubeletArgument>,
    /// Role of the node in its cluster. Default: `Worker`.
    ///
    /// - `Worker`: the node runs workloads and joins with `kubeadm join`.
    /// - `ControlPlane`: the node runs the control plane. Without `joinConfiguration` it makes a cluster with `kubeadm init`.
    #[serde(default)]
    pub role: NodeRole,
    /// Fields of kubeadm's ClusterConfiguration, in the form of the Kubernetes version. Used by `kubeadm init`. Example:
    /// `networking: { podSubnet: 10.244.0.0/16 }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub cluster_configuration: Option<serde_json::Value>,
    /// Fields of kubeadm's InitConfiguration, in the form of the Kubernetes version. Used by `kubeadm init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub init_configuration: Option<serde_json::Value>,
    /// Fields of kubeadm's JoinConfiguration, in the form of the Kubernetes version. Used by `kubeadm join`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub join_configuration: Option<serde_json::Value>,
}

/// Role of a node in its cluster.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeRole {
    /// Runs workloads.
    #[default]
    Worker,
    /// Runs the control plane.
    ControlPlane,
}

/// A taint of a Node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Key of the taint, with an optional prefix. At most 317 characters. Example: `example.com/storage`.
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub key: String,
    /// Value of the taint. At most 63 characters. If unset: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"))]
    pub value: Option<String>,
    /// Effect on Pods that do not tolerate the taint.
    ///
    /// - `NoSchedule`: no such Pod is scheduled to the Node.
    /// - `PreferNoSchedule`: the scheduler avoids the Node for such Pods.
    /// - `NoExecute`: such Pods are evicted too.
    pub effect: TaintEffect,
}

/// Effect of a taint.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "Kubernetes' names")]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// One command line argument of the kubelet.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KubeletArgument {
    /// Name of the argument, without leading dashes. At most 128 characters. Example: `v`.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[a-z0-9][-a-z0-9.]*$"))]
    pub name: String,
    /// Value of the argument. At most 4096 characters. Example: `3`.
    #[schemars(length(max = 4096))]
    pub value: String,
}
