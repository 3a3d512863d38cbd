//! The template of a MachineConfiguration, which its versions copy: image, Kubernetes, files, units, container (docs/rules.md,
//! "Configurations and their versions").
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FileSpec, KubernetesSpec, UnitSpec};
use crate::schema::{ObjectName, bytes, parameter_values};

/// Desired node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "!(has(self.kubernetes.role) && self.kubernetes.role == 'ControlPlane' && has(self.container) && \
         has(self.container.network) && self.container.network != 'Host')"
    )
    .message("container.network must be Host when kubernetes.role is ControlPlane: other hosts, or its own, do not reach it in another network")
)]
pub struct Template {
    /// The node's root file system.
    pub image: NodeImage,
    /// The kubelet and how it joins.
    pub kubernetes: KubernetesSpec,
    /// Files that are written into the root file system, at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub files: Vec<FileSpec>,
    /// systemd units of the node, at most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub units: Vec<UnitSpec>,
    /// Kernel parameters of the host, by name, at most 256.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "parameter_values", extend("maxProperties" = 256))]
    pub sysctls: BTreeMap<String, String>,
    /// Kernel modules that the host loads, at most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 63), regex(pattern = "^[-_0-9A-Za-z]+$")))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub kernel_modules: Vec<String>,
    /// Shell commands run in the node before kubeadm, in order, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub pre_kubeadm_commands: Vec<String>,
    /// Shell commands run in the node after kubeadm, in order, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub post_kubeadm_commands: Vec<String>,
    /// The systemd-nspawn machine that the node runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Conditions that a new node must meet before it replaces the old slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_gate: Option<HealthGate>,
}

/// A node's root file system.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.allowTag) && self.allowTag) || self.reference.matches('@sha256:[0-9a-f]{64}$')")
        .message("image.reference must have a digest (@sha256:...) when allowTag is not true")
)]
pub struct NodeImage {
    /// OCI reference, at most 512 characters.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]+$"))]
    pub reference: String,
    /// Allows a reference without digest; it is resolved once for each version and recorded there. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_tag: bool,
    /// A Secret of type `kubernetes.io/dockerconfigjson`. Absent: the registry is asked without credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret_ref: Option<SecretRef>,
    /// Certificate authorities (PEM) that the registry's certificate may be of besides those that the host trusts, at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub ca_bundle: Option<String>,
}

/// A Secret.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// The Secret's namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// The Secret's name.
    #[schemars(with = "ObjectName")]
    pub name: String,
}

/// The systemd-nspawn machine that a node runs in.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Network of the node. Default: `Host`.
    #[serde(default)]
    pub network: ContainerNetwork,
    /// Paths of the host that it sees, as `source[:target[:options]]`; options: `ro`, `rw`, `rbind`, `norbind`. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(
            length(min = 1, max = 1024),
            regex(
                pattern = r"^/[^:\\\x00-\x1f\x7f-\x9f]*(:/[^:\\\x00-\x1f\x7f-\x9f]*(:(ro|rw|rbind|norbind)(,(ro|rw|rbind|norbind))*)?)?$"
            )
        )
    )]
    #[x_kube(
        validation = Rule::new("!self.exists(b, b.matches('(^|[/:])[.][.]($|[/:])'))")
            .message("paths of container.binds must not contain '..'")
    )]
    pub binds: Vec<String>,
    /// Capabilities besides those that a node needs, such as `CAP_NET_ADMIN`, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63), regex(pattern = "^CAP_[A-Z_]+$")))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub capabilities: Vec<String>,
    /// The most memory that it may use, as a quantity of bytes such as `8Gi`. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bytes")]
    pub memory_max: Option<Quantity>,
    /// Its share of the processors (systemd `CPUWeight=`). Absent: systemd's default, 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub cpu_weight: Option<i32>,
    /// The most tasks that it may have. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tasks_max: Option<i64>,
}

/// Network of a node.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContainerNetwork {
    /// The host's.
    #[default]
    Host,
    /// Its own, joined to the host by a pair of virtual interfaces.
    Veth,
    /// Its own, on the host's wire.
    Macvlan,
}

/// Conditions that a new node must meet before it replaces the old slot.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.minReadySeconds <= self.timeoutSeconds")
        .message("healthGate.minReadySeconds must not be longer than timeoutSeconds")
)]
pub struct HealthGate {
    /// Timeout of the gate, in seconds; after that the node is rolled back. Default: 600.
    #[serde(default = "default_gate_timeout")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: i32,
    /// Time that the Node must be Ready without interruption, in seconds. Default: 30.
    #[serde(default = "default_min_ready")]
    #[schemars(range(min = 0, max = 86400))]
    pub min_ready_seconds: i32,
}

fn default_gate_timeout() -> i32 {
    600
}

fn default_min_ready() -> i32 {
    30
}
