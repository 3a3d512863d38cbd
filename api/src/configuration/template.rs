//! The template of a MachineConfiguration, which its versions copy: image, Kubernetes, files, units, container (docs/design/rules.md,
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
    /// Node image: the root file system of the node.
    pub image: NodeImage,
    /// Kubelet and kubeadm of the node.
    pub kubernetes: KubernetesSpec,
    /// Files that are written into the root file system of the node. At most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub files: Vec<FileSpec>,
    /// systemd units of the node. At most 128. If unset: as the image has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub units: Vec<UnitSpec>,
    /// Kernel parameters of the host, by name, each with a value of one line. With `Veth` and `Macvlan`, those of `net.*` are set in the
    /// node too. At most 256. Example: `vm.swappiness: "10"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "parameter_values", extend("maxProperties" = 256))]
    pub sysctls: BTreeMap<String, String>,
    /// Kernel modules that the host loads. At most 128 of 63 characters. Example: `br_netfilter`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 63), regex(pattern = "^[-_0-9A-Za-z]+$")))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub kernel_modules: Vec<String>,
    /// Shell commands that run in the node before kubeadm, in order. They run again with each attempt. Must not be set together with
    /// `spec.claimPolicy`. At most 64 of 4096 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub pre_kubeadm_commands: Vec<String>,
    /// Shell commands that run in the node after kubeadm, in order. They run again until all have succeeded once. Must not be set together
    /// with `spec.claimPolicy`. At most 64 of 4096 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub post_kubeadm_commands: Vec<String>,
    /// Settings of the systemd-nspawn machine that the node runs in. If unset: network `Host`, and no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Conditions that a new node must meet before it replaces the former one. If unset, its defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_gate: Option<HealthGate>,
}

/// Root file system of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.allowTag) && self.allowTag) || self.reference.matches('@sha256:[0-9a-f]{64}$')")
        .message("image.reference must have a digest (@sha256:...) when allowTag is not true")
)]
pub struct NodeImage {
    /// OCI reference of the node image, or `oci:` and a directory of the host. It must end with a digest (`@sha256:` and 64 hex digits)
    /// unless `allowTag` is true. At most 512 characters. Example: `registry.example/bedplate-node@sha256:<digest>`.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]+$"))]
    pub reference: String,
    /// True if `reference` needs no digest. The tag is resolved once for each version. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_tag: bool,
    /// Secret of type `kubernetes.io/dockerconfigjson` with the credentials of the registry. Agents need the right to read it. If unset,
    /// agents send no credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret_ref: Option<SecretRef>,
    /// Certificate authorities (PEM) of the registry, in addition to those that the host trusts. At most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub ca_bundle: Option<String>,
}

/// A Secret.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Namespace of the Secret. At most 63 characters. Example: `nodes`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Name of the Secret. At most 253 characters.
    #[schemars(with = "ObjectName")]
    pub name: String,
}

/// The systemd-nspawn machine that a node runs in.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Network of the node. `kubernetes.role: ControlPlane` needs `Host`. Default: `Host`.
    ///
    /// - `Host`: the interfaces and addresses of the host.
    /// - `Veth`: a private link to the host, which translates addresses.
    /// - `Macvlan`: an interface with its own MAC and IP address in the host's network segment.
    #[serde(default)]
    pub network: ContainerNetwork,
    /// Paths of the host that the node sees, as `source[:target[:options]]`. Options are `ro`, `rw`, `rbind` and `norbind`, separated by
    /// commas. A path must be absolute, without `..`. At most 64 of 1024 characters. Example: `/srv/disks:/srv/disks:rw`.
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
    /// Linux capabilities in addition to those that every node has. At most 64. Example: `CAP_SYS_RAWIO`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63), regex(pattern = "^CAP_[A-Z_]+$")))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub capabilities: Vec<String>,
    /// Maximum memory of the node, in bytes, as a Kubernetes quantity of at least 1. The kubelet still offers the memory of the whole host:
    /// set `systemReserved` in `kubernetes.kubeletConfiguration`. Example: `64Gi`. If unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bytes")]
    pub memory_max: Option<Quantity>,
    /// Share of the processors, relative to other units of the host (systemd `CPUWeight=`): 1 to 10000. If unset: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub cpu_weight: Option<i32>,
    /// Maximum number of tasks (processes and threads) of the node. At least 1. If unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tasks_max: Option<i64>,
}

/// Network of a node.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContainerNetwork {
    /// The interfaces and addresses of the host.
    #[default]
    Host,
    /// A private link to the host, which translates addresses.
    Veth,
    /// An interface with its own MAC and IP address in the host's network segment.
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
    /// Time for a new node to meet the gate, in seconds: 1 to 86400. After it the node is rolled back. Default: 600.
    #[serde(default = "default_gate_timeout")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: i32,
    /// Time for which the Node must be Ready without interruption, in seconds: 0 to 86400, and at most `timeoutSeconds`. Default: 30.
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
