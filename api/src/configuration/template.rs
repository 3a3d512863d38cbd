//! The template of a MachineConfiguration, which its versions copy: image, Kubernetes, files, units, container (docs/rules.md,
//! "Configurations and their versions").
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{ObjectName, annotation_values, bytes, free_form, label_values, parameter_values};

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

/// The kubelet of a node and how it joins.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesSpec {
    /// The version, such as `v1.34.4`.
    #[schemars(
        length(max = 63),
        regex(
            pattern = r"^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"
        )
    )]
    pub version: String,
    /// The API server to join, as host:port. Absent: the one that serves this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 261),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*|\[[0-9a-fA-F:.]+\]):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
        )
    )]
    pub api_server_endpoint: Option<String>,
    /// Labels of the Node, at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_values", extend("maxProperties" = 64))]
    pub node_labels: BTreeMap<String, String>,
    /// Annotations of the Node, at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotation_values", extend("maxProperties" = 64))]
    pub node_annotations: BTreeMap<String, String>,
    /// Taints that the Node registers with, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Vec<Taint>,
    /// Fields of kubelet.config.k8s.io/v1beta1 KubeletConfiguration, merged over the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub kubelet_configuration: Option<serde_json::Value>,
    /// Command line arguments of the kubelet, without leading dashes, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub kubelet_extra_args: Vec<KubeletArgument>,
    /// Role of the node in its cluster. Default: `Worker`.
    #[serde(default)]
    pub role: NodeRole,
    /// Fields of kubeadm's ClusterConfiguration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub cluster_configuration: Option<serde_json::Value>,
    /// Fields of kubeadm's InitConfiguration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub init_configuration: Option<serde_json::Value>,
    /// Fields of kubeadm's JoinConfiguration.
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
    /// The key.
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub key: String,
    /// The value. Absent: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"))]
    pub value: Option<String>,
    /// Effect on Pods that do not tolerate the taint.
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
    /// The name, without leading dashes.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[a-z0-9][-a-z0-9.]*$"))]
    pub name: String,
    /// The value.
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// A file in a node's root file system.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.content) != has(self.contentFrom)")
        .message("exactly one of content and contentFrom of a file must be set"),
    validation = Rule::new("!has(self.inPlace) || !has(self.append) || !self.append")
        .message("inPlace of a file may only be set when append is false: added text cannot be changed in place")
)]
pub struct FileSpec {
    /// Absolute path, without `..`.
    #[schemars(length(min = 2, max = 1024), regex(pattern = "^/[^\\x00]*$"))]
    #[x_kube(
        validation = Rule::new("!self.split('/').exists(p, p == '..')").message("a file's path must not contain '..'"),
        validation = Rule::new(
            "!self.matches('^/([.]?/)*(run|tmp|dev|proc|sys|var/([.]?/)*run|etc/([.]?/)*resolv[.]conf|\
             (usr/([.]?/)*)?lib/([.]?/)*modules)(/|$)')"
        )
        .message(
            "a file's path must not be below /run, /var/run, /tmp, /dev, /proc, /sys, /lib/modules or /usr/lib/modules, nor be \
             /etc/resolv.conf: the node would not see the file"
        )
    )]
    pub path: String,
    /// Owner as `user:group`. Default: `root:root`.
    #[serde(default = "root_owner")]
    #[schemars(length(max = 65), regex(pattern = "^[_a-z0-9][-_a-z0-9]*:[_a-z0-9][-_a-z0-9]*$"))]
    pub owner: String,
    /// Mode in octal. Default: `0644`.
    #[serde(default = "plain_permissions")]
    #[schemars(length(max = 4), regex(pattern = "^[0-7]{3,4}$"))]
    pub permissions: String,
    /// Encoding of `content`. Default: `plain`.
    #[serde(default)]
    pub encoding: FileEncoding,
    /// Adds to the end of a file that is there, which keeps its owner and mode unless others than the defaults are named. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
    /// The content, at most 512 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 524288))]
    pub content: Option<String>,
    /// Source of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_from: Option<ContentSource>,
    /// Says that the file may be written into a node that runs. Absent: a change waits for the next repave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlaceFile>,
}

/// Action on a running node when one of its files changes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceFile {
    /// Units of the node that are restarted once the file is written, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(max = 255), regex(pattern = r"^[-:_.\\@0-9A-Za-z]+\.[a-z]+$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub restart_units: Vec<String>,
}

fn root_owner() -> String {
    "root:root".to_owned()
}

fn plain_permissions() -> String {
    "0644".to_owned()
}

/// Encoding of a file's content.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum FileEncoding {
    /// As it stands.
    #[default]
    Plain,
    /// Base64 (RFC 4648, 4).
    Base64,
    /// gzip (RFC 1952), then base64.
    #[serde(rename = "gzip+base64")]
    GzipBase64,
}

/// Source of a file's content.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// One key of a Secret.
    pub secret: SecretKeyRef,
}

/// One key of a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret's namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// The Secret's name.
    #[schemars(with = "ObjectName")]
    pub name: String,
    /// The key.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// A systemd unit of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UnitSpec {
    /// The unit's name, with its suffix.
    #[schemars(
        length(max = 255),
        regex(
            pattern = r"^[-:_.\\@0-9A-Za-z]+\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$"
        )
    )]
    pub name: String,
    /// True if the unit is enabled. If unset, the image decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The whole unit, at most 64 KiB. Absent: as the image has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub contents: Option<String>,
    /// Drop-ins, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub dropins: Vec<DropIn>,
}

/// A drop-in of a systemd unit.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DropIn {
    /// The file name, which ends in `.conf`.
    #[schemars(length(max = 255), regex(pattern = r"^[-_.0-9A-Za-z]+\.conf$"))]
    pub name: String,
    /// The content, at most 64 KiB.
    #[schemars(length(max = 65536))]
    pub contents: String,
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
