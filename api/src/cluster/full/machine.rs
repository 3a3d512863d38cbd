//! `Machine`: one machine of a cluster (M1 to M16).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::lenient::lenient;
use crate::cluster::part::{Gate, MachineAddress, Reference, SUBDOMAIN, Taint};
use crate::schema::free_form;

/// Finalizer of the core controller on a Machine.
pub const FINALIZER: &str = "machine.cluster.x-k8s.io";

/// Pattern of a version of Kubernetes, with or without `v` (P2).
const KUBERNETES_VERSION: &str = r"^v?(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-0-9a-zA-Z_\.+]*)?$";

/// `spec.deletion.nodeDeletionTimeoutSeconds`, if unset.
const DEFAULT_NODE_DELETION_TIMEOUT_SECONDS: i32 = 10;

/// A machine.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    plural = "machines",
    shortname = "ma",
    category = "cluster-api",
    namespaced,
    status = "MachineStatus",
    derive = "PartialEq",
    doc = "One machine of a cluster.",
    validation = Rule::new("self.spec.clusterName == oldSelf.spec.clusterName")
        .message("spec.clusterName of a Machine cannot be changed"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Node Name", type_ = "string", json_path = ".status.nodeRef.name"),
    printcolumn(name = "Provider ID", type_ = "string", json_path = ".spec.providerID", priority = 10),
    printcolumn(name = "Failure domain", type_ = "string", json_path = ".status.failureDomain"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Available", type_ = "string", json_path = r#".status.conditions[?(@.type=="Available")].status"#),
    printcolumn(name = "Up-to-date", type_ = "string", json_path = r#".status.conditions[?(@.type=="UpToDate")].status"#),
    printcolumn(name = "Internal-IP", type_ = "string", json_path = r#".status.addresses[?(@.type=="InternalIP")].address"#, priority = 10),
    printcolumn(name = "External-IP", type_ = "string", json_path = r#".status.addresses[?(@.type=="ExternalIP")].address"#, priority = 10),
    printcolumn(name = "OS-Image", type_ = "string", json_path = ".status.nodeInfo.osImage", priority = 10),
    printcolumn(name = "Paused", type_ = "string", json_path = r#".status.conditions[?(@.type=="Paused")].status"#, priority = 10),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version")
)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// Name of the cluster, 1 to 63 characters. It cannot be changed.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Data with which the machine becomes a Node.
    #[serde(default)]
    pub bootstrap: Bootstrap,
    /// Infrastructure of the machine, such as a BedplateMachine. In a template: template of the infrastructure.
    pub infrastructure_ref: Reference,
    /// Version of Kubernetes, with or without `v`, 1 to 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = KUBERNETES_VERSION))]
    pub version: Option<String>,
    /// ID of the machine, and `spec.providerID` of its Node, 1 to 512 characters. Copied from the infrastructure.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub provider_id: Option<String>,
    /// Failure domain in which the machine must be, 1 to 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
    /// Time in seconds for which the Machine must be ready before it is available. If unset: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,
    /// Additional conditions of the Machine that `Ready` waits for, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["conditionType".into()]))]
    pub readiness_gates: Vec<Gate>,
    /// Timeouts of the deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletion>,
    /// Taints of the Node, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Vec<Taint>,
}

impl MachineSpec {
    /// Returns the time in seconds for which the deletion of the Node is tried. 0: without limit.
    pub fn node_deletion_timeout_seconds(&self) -> i32 {
        let deletion = self.deletion.as_ref();
        let given = deletion.and_then(|deletion| deletion.node_deletion_timeout_seconds);
        given.unwrap_or(DEFAULT_NODE_DELETION_TIMEOUT_SECONDS)
    }
}

/// Data with which a machine becomes a Node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// Object that makes the data, such as a KubeadmConfig. In a template: template of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<Reference>,
    /// Name of the Secret with the data, at most 253 characters. If unset, the machine waits. If empty, it needs no data (M3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 0, max = 253))]
    pub data_secret_name: Option<String>,
    /// The data itself, at most 262144 characters, without secrets. If empty, the machine needs no data (M3). Used if neither `configRef` nor
    /// `dataSecretName` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262_144))]
    pub data: Option<String>,
}

/// Timeouts of the deletion of a machine. 0 means without limit.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeletion {
    /// Time in seconds for which the Node is drained. If unset: without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_drain_timeout_seconds: Option<i32>,
    /// Time in seconds for which the deletion waits for volumes of the Node. If unset: without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_volume_detach_timeout_seconds: Option<i32>,
    /// Time in seconds for which the deletion of the Node is tried. If unset: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// State of a Machine. Written by the core controller. Health checks and control planes write conditions of their own.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineStatus {
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// Conditions of the Machine, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Progress of the first provisioning. Its fields never change back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<MachineInitialization>,
    /// The Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<MachineNodeRef>,
    /// Facts of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// Time at which the phase changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// Addresses of the machine, at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub addresses: Vec<MachineAddress>,
    /// Failure domain that the machine is in, 1 to 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
    /// State in one word. It is shown only (M11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MachinePhase>,
    /// Time at which the certificates of a machine of the control plane expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_date: Option<Time>,
    /// Progress of the deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionStatus>,
    /// Fields of earlier versions. Never written by Bedplate.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    #[schemars(schema_with = "free_form")]
    pub deprecated: Option<MachineDeprecated>,
}

/// Progress of the first provisioning of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineInitialization {
    /// True once the infrastructure is provisioned and has given the machine its ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
    /// True once the bootstrap data exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_data_secret_created: Option<bool>,
}

/// The Node of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineNodeRef {
    /// Name of the Node, 1 to 253 characters.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
}

/// Facts of a Node, as its kubelet reports them.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Architecture.
    pub architecture: String,
    /// ID of the boot.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Version of the container runtime.
    pub container_runtime_version: String,
    /// Version of the kernel.
    pub kernel_version: String,
    /// Version of kube-proxy.
    pub kube_proxy_version: String,
    /// Version of the kubelet.
    pub kubelet_version: String,
    /// ID of the operating system's installation.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// Operating system.
    pub operating_system: String,
    /// Name of the operating system's image.
    pub os_image: String,
    /// UUID of the firmware.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
    /// Swap space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<NodeSwap>,
}

/// Swap space of a Node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeSwap {
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
}

/// Progress of the deletion of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeletionStatus {
    /// Time at which the drain of the Node started. Its timeout counts from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_start_time: Option<Time>,
    /// Time at which the wait for volumes started. Its timeout counts from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_node_volume_detach_start_time: Option<Time>,
}

/// Fields of earlier versions: those that are shown (M10). The others are not kept. The definition admits any form.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct MachineDeprecated {
    /// Fields of version v1beta1.
    #[serde(deserialize_with = "lenient")]
    pub v1beta1: Option<MachineFailure>,
}

/// Permanent failure of a machine in version v1beta1.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineFailure {
    /// One word.
    #[serde(deserialize_with = "lenient")]
    pub failure_reason: Option<String>,
    /// Text for a user.
    #[serde(deserialize_with = "lenient")]
    pub failure_message: Option<String>,
}

/// State of a Machine in one word.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachinePhase {
    /// The bootstrap data does not exist yet.
    Pending,
    /// The infrastructure is being provisioned.
    Provisioning,
    /// The infrastructure is provisioned, and the Node is not ready yet.
    Provisioned,
    /// The Node is ready.
    Running,
    /// The machine is updated in place. Not written by Bedplate.
    Updating,
    /// The Machine is deleted.
    Deleting,
    /// The infrastructure is deleted. Not written by Bedplate.
    Deleted,
    /// An object of the machine reports a permanent failure.
    Failed,
    /// Unknown state, or a value of a later version.
    #[serde(other)]
    Unknown,
}

impl AsMut<Vec<Condition>> for MachineStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}
