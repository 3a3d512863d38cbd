//! `MachineConfiguration`: the desired node of Machines, the selection of Machines, and the rollout of
//! changes (docs/rules.md, "MachineConfiguration"; C1 to C6).
//!
//! Types, defaults and validation only. The template, which makes the versions, is in [`template`](self::Template).
//!
//! Pure: no clock, no file, no socket.

mod file;
mod kubernetes;
mod template;

pub use file::{ContentSource, DropIn, FileEncoding, FileSpec, InPlaceFile, SecretKeyRef, UnitSpec};
pub use kubernetes::{KubeletArgument, KubernetesSpec, NodeRole, Taint, TaintEffect};
pub use template::{Container, ContainerNetwork, HealthGate, NodeImage, SecretRef, Template};

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
pub use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{NamespaceOrAll, positive_count_or_percent};
use crate::selector::MachineSelector;

/// Types of conditions. Written by bedplate-controller.
pub mod condition_type {
    /// Something changes without a user.
    pub const PROGRESSING: &str = "Progressing";
    /// A user must act.
    pub const DEGRADED: &str = "Degraded";
    /// Sum of the newest version's `Ready`, of `Progressing` and of `Degraded`.
    pub const READY: &str = "Ready";
    /// Nothing continues without a user. For tools that read objects as kstatus does.
    pub const STALLED: &str = "Stalled";
}

/// Desired node of a group of Machines.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "bedplate.dev",
    version = "v1alpha1",
    kind = "MachineConfiguration",
    plural = "machineconfigurations",
    shortname = "mc",
    category = "bedplate",
    status = "MachineConfigurationStatus",
    derive = "PartialEq",
    cel,
    doc = "Desired node of a group of Machines. Every edit of the template goes into a MachineConfigurationVersion.",
    validation = Rule::new("self.metadata.name.size() <= 240")
        .message("the name of a MachineConfiguration must have at most 240 characters, so that the names of its versions fit"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Latest", type_ = "integer", json_path = ".status.latestVersion"),
    printcolumn(name = "Deployed", type_ = "integer", json_path = ".status.deployedVersion"),
    printcolumn(name = "Selected", type_ = "integer", json_path = ".status.machines.selected"),
    printcolumn(name = "Applied", type_ = "integer", json_path = ".status.machines.applied"),
    printcolumn(name = "Outdated", type_ = "integer", json_path = ".status.machines.outdated"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = 1
    ),
    printcolumn(name = "Strategy", type_ = "string", json_path = ".spec.updateStrategy.type", priority = 1),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority", priority = 1),
    printcolumn(name = "Kubernetes", type_ = "string", json_path = ".spec.template.kubernetes.version", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.template.image.reference", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.claimPolicy) || !has(self.machineSelector)")
        .message("machineSelector must not be set when claimPolicy is set: a claim names the configuration"),
    validation = Rule::new(
        "!has(self.claimPolicy) || !(has(self.template.kubernetes.apiServerEndpoint) || \
         has(self.template.kubernetes.nodeLabels) || has(self.template.kubernetes.nodeAnnotations) || \
         has(self.template.kubernetes.taints) || has(self.template.kubernetes.kubeletConfiguration) || \
         has(self.template.kubernetes.kubeletExtraArgs) || has(self.template.kubernetes.clusterConfiguration) || \
         has(self.template.kubernetes.initConfiguration) || has(self.template.kubernetes.joinConfiguration) || \
         (has(self.template.kubernetes.role) && self.template.kubernetes.role != 'Worker'))"
    )
    .message("template.kubernetes must have only version when claimPolicy is set: the user data of a claim configures the kubelet"),
    validation = Rule::new(
        "!has(self.claimPolicy) || !(has(self.template.preKubeadmCommands) || has(self.template.postKubeadmCommands))"
    )
    .message("preKubeadmCommands and postKubeadmCommands must not be set when claimPolicy is set: the user data of a claim has its own commands")
)]
pub struct MachineConfigurationSpec {
    /// The Machines that this configuration is for when they register. Absent: none. `{}`: every Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_selector: Option<MachineSelector>,
    /// Claimants whose hosts may run this configuration. The template describes the host and the image; the user data of the claim takes the
    /// place of kubeadm. If unset, no claim can name it. Not with `machineSelector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_policy: Option<ConfigurationClaimPolicy>,
    /// Which configuration wins where several match: the highest, then the first by name. Default: 0.
    #[serde(default)]
    pub priority: i32,
    /// Rollout of an edit to the Machines that have an earlier version. Default: `OnDelete`.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// Number of the newest versions that are kept; versions in use, and the newest, are kept in addition.
    /// Default: 10.
    #[serde(default = "default_history")]
    #[schemars(range(min = 0, max = 1000))]
    pub revision_history_limit: i32,
    /// Template that every version is a copy of.
    pub template: Template,
}

fn default_history() -> i32 {
    10
}

/// Claimants whose hosts may run a configuration.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationClaimPolicy {
    /// Namespaces whose claimants may name the configuration: names, or `*` for all. At least one, at most 64. Written by users.
    #[schemars(with = "Vec<NamespaceOrAll>", length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub namespaces: Vec<String>,
}

impl ConfigurationClaimPolicy {
    /// Returns true if a claimant of this namespace may name the configuration.
    pub fn allows(&self, namespace: &str) -> bool {
        crate::machine::claim::allows(&self.namespaces, namespace)
    }
}

/// Rollout of an edit to the Machines that have an earlier version.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.rollingUpdate) || (has(self.type) && self.type == 'RollingUpdate')")
        .message("updateStrategy.rollingUpdate may only be set when type is RollingUpdate")
)]
pub struct UpdateStrategy {
    /// `OnDelete`: when a user deletes the Node. `RollingUpdate`: machine by machine. Default: `OnDelete`.
    #[serde(default, rename = "type")]
    pub type_: UpdateStrategyType,
    /// Settings of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// When a Machine gets a newer version.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpdateStrategyType {
    /// When its Node is deleted.
    #[default]
    OnDelete,
    /// Machine by machine: cordon, drain, delete the Node.
    RollingUpdate,
}

/// Speed and limits of a rolling update.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Maximum number of Machines with this configuration that may be unavailable concurrently: a number, or
    /// a percentage rounded up. 0 is refused. Default: 1.
    #[serde(default = "one")]
    #[schemars(schema_with = "positive_count_or_percent")]
    pub max_unavailable: IntOrString,
    /// Timeout of a drain, in seconds; after that the Node is uncordoned and the update stops. Default: 600.
    #[serde(default = "default_drain_timeout")]
    #[schemars(range(min = 1, max = 86400))]
    pub drain_timeout_seconds: i32,
    /// Stops after the first Machine that does not come up. Default: true.
    #[serde(default = "yes")]
    pub pause_on_failure: bool,
    /// Which Pods may be lost by a drain. Absent: as its defaults say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainPolicy>,
}

/// Which Pods may be lost by a drain, as `kubectl drain` asks.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// True if Pods without a controller, which are not re-created, are evicted too; otherwise such a Pod
    /// blocks the update of its Node. Default: false.
    #[serde(default)]
    pub force: bool,
    /// True if Pods with an emptyDir are evicted too, and lose its content; otherwise such a Pod blocks the
    /// update of its Node. Default: true.
    #[serde(default = "yes")]
    pub delete_empty_dir_data: bool,
}

fn one() -> IntOrString {
    IntOrString::Int(1)
}

fn default_drain_timeout() -> i32 {
    600
}

fn yes() -> bool {
    true
}

/// Observed state of a configuration.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineConfigurationStatus {
    /// Generation of the spec that condition `Ready` was derived from. -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The highest version number ever made; it is never used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub latest_version: Option<i64>,
    /// The newest version that a Machine uses or has used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub deployed_version: Option<i64>,
    /// Number of Machines by state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<MachineCounts>,
    /// Machines that failed in the rolling update, by name. At most 16: the message of `Degraded` has the number of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["machine".into()]))]
    pub rollout_failures: Vec<RolloutFailure>,
    /// `Ready`, `Progressing` and `Degraded`, and `Stalled` while only a user can continue. At most 16. Not set without a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Failure of a Machine in a rolling update.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutFailure {
    /// Name of the Machine.
    #[schemars(length(max = 253))]
    pub machine: String,
    /// Reason, as in condition `Degraded`.
    #[schemars(length(max = 63))]
    pub reason: String,
    /// Text for a user, at most 1024 characters.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Number of a configuration's Machines by state.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineCounts {
    /// Machines for which one of its versions is selected.
    #[serde(default)]
    pub selected: i32,
    /// Machines that run one of its versions.
    #[serde(default)]
    pub applied: i32,
    /// Machines whose version differs from the one that a repave would select now.
    #[serde(default)]
    pub outdated: i32,
    /// Machines whose Node is not Ready.
    #[serde(default)]
    pub unavailable: i32,
}
