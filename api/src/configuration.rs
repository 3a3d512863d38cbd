//! `MachineConfiguration`: the desired node of Machines, the selection of Machines, and the rollout of
//! changes (docs/design/rules.md, "MachineConfiguration"; C1 to C6).
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

/// Template of the nodes, selection of the Machines, and rollout of changes. Written by users.
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
    doc = "Desired node of a group of Machines. Each change of `spec.template` becomes a MachineConfigurationVersion. Its name has at most 240 characters.",
    validation = Rule::new("self.metadata.name.size() <= 240")
        .message("the name of a MachineConfiguration must have at most 240 characters, so that the names of its versions fit"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Status of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Reason of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Latest", type_ = "integer", description = "Highest version number.", json_path = ".status.latestVersion"),
    printcolumn(
        name = "Deployed",
        type_ = "integer",
        description = "Newest version that a Machine uses or has used.",
        json_path = ".status.deployedVersion"
    ),
    printcolumn(
        name = "Selected",
        type_ = "integer",
        description = "Number of Machines with a selected version of this configuration.",
        json_path = ".status.machines.selected"
    ),
    printcolumn(
        name = "Applied",
        type_ = "integer",
        description = "Number of Machines that run a version of this configuration.",
        json_path = ".status.machines.applied"
    ),
    printcolumn(
        name = "Outdated",
        type_ = "integer",
        description = "Number of Machines that run another version than a repave would select.",
        json_path = ".status.machines.outdated"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        description = "Message of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = 1
    ),
    printcolumn(
        name = "Strategy",
        type_ = "string",
        description = "Type of the update strategy.",
        json_path = ".spec.updateStrategy.type",
        priority = 1
    ),
    printcolumn(
        name = "Priority",
        type_ = "integer",
        description = "Rank if several configurations match a Machine.",
        json_path = ".spec.priority",
        priority = 1
    ),
    printcolumn(
        name = "Kubernetes",
        type_ = "string",
        description = "Kubernetes version of the template.",
        json_path = ".spec.template.kubernetes.version",
        priority = 1
    ),
    printcolumn(
        name = "Image",
        type_ = "string",
        description = "Node image of the template.",
        json_path = ".spec.template.image.reference",
        priority = 1
    )
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
    /// Machines that get this configuration when their hosts enroll. `{}` matches every Machine. A later change moves no Machine. Must not
    /// be set together with `spec.claimPolicy`. If unset: only Machines that name the configuration in `spec.configurationRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_selector: Option<MachineSelector>,
    /// Claimants that may use this configuration for their hosts. User data of the claim then replaces kubeadm: of
    /// `spec.template.kubernetes` only `version` may be set. Must not be set together with `spec.machineSelector`. If unset, no claim can
    /// name the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_policy: Option<ConfigurationClaimPolicy>,
    /// Rank of the configuration if several match a Machine. The highest one is used, and of equal ones the first by name. Default: 0.
    #[serde(default)]
    pub priority: i32,
    /// Rollout of a new version to Machines that run an earlier one. If unset: `OnDelete`.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// Number of the newest versions that are kept. Versions in use and the newest version are always kept. 0 to 1000. Default: 10.
    #[serde(default = "default_history")]
    #[schemars(range(min = 0, max = 1000))]
    pub revision_history_limit: i32,
    /// Desired node. Each change of its meaning becomes a version `<name>-v<N>`.
    pub template: Template,
}

fn default_history() -> i32 {
    10
}

/// Claimants whose hosts may run a configuration.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationClaimPolicy {
    /// Namespaces whose claimants may name the configuration: names such as `team-a`, or `*` for all. 1 to 64 entries.
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
    /// Time at which a Machine gets a newer version. Default: `OnDelete`.
    ///
    /// - `OnDelete`: when a user deletes its Node.
    /// - `RollingUpdate`: in its turn. bedplate-controller cordons, drains and deletes its Node.
    #[serde(default, rename = "type")]
    pub type_: UpdateStrategyType,
    /// Limits of a rolling update. May only be set if `spec.updateStrategy.type` is `RollingUpdate`. If unset, its defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Time at which a Machine gets a newer version.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpdateStrategyType {
    /// At the deletion of its Node by a user.
    #[default]
    OnDelete,
    /// In its turn: bedplate-controller cordons, drains and deletes its Node.
    RollingUpdate,
}

/// Speed and limits of a rolling update.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Maximum number of Machines of this configuration that may be unavailable concurrently. A number of at least 1, or a percentage of
    /// its Machines from `1%` to `100%`, rounded up. Default: 1.
    #[serde(default = "one")]
    #[schemars(schema_with = "positive_count_or_percent")]
    pub max_unavailable: IntOrString,
    /// Timeout of a drain, in seconds: 1 to 86400. After it the Node is uncordoned, and the update of its Machine has failed. Default: 600.
    #[serde(default = "default_drain_timeout")]
    #[schemars(range(min = 1, max = 86400))]
    pub drain_timeout_seconds: i32,
    /// True if the rolling update stops after the first Machine that fails. Default: true.
    #[serde(default = "yes")]
    pub pause_on_failure: bool,
    /// Pods that a drain may lose. If unset, its defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainPolicy>,
}

/// Pods that a drain may lose, as the options of `kubectl drain`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// True if Pods without a controller are evicted. They are not re-created. If false, such a Pod blocks the update of its Node. Default:
    /// false.
    #[serde(default)]
    pub force: bool,
    /// True if Pods with an emptyDir are evicted. They lose its content. If false, such a Pod blocks the update of its Node. Default: true.
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

/// Observed versions and Machines of the configuration. Written by bedplate-controller.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineConfigurationStatus {
    /// `metadata.generation` from which condition `Ready` was derived. -1 before the first time. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Highest version number that was ever used. No number is used twice. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub latest_version: Option<i64>,
    /// Number of the newest version that a Machine uses or has used. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub deployed_version: Option<i64>,
    /// Number of Machines by state. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<MachineCounts>,
    /// Machines that failed in the rolling update. At most 16. The message of condition `Degraded` has the number of all. Written by
    /// bedplate-controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["machine".into()]))]
    pub rollout_failures: Vec<RolloutFailure>,
    /// Conditions by type. At most 16. Written by bedplate-controller.
    ///
    /// - `Ready`: True if the newest version is ready, no Machine is being changed, and none failed. Otherwise it has the first condition
    ///   that is not met.
    /// - `Progressing`: True while Machines are paved, or a rolling update continues without a user.
    /// - `Degraded`: True if a Machine or an edit failed. The message has the cause.
    /// - `Stalled`: True if only a user can continue. Otherwise it does not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Failure of a Machine in a rolling update.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutFailure {
    /// Name of the Machine. At most 253 characters.
    #[schemars(length(max = 253))]
    pub machine: String,
    /// Reason for the failure: a reason of condition `Degraded`, such as `DrainTimedOut`. At most 63 characters.
    #[schemars(length(max = 63))]
    pub reason: String,
    /// Details for users. At most 1024 characters.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Number of a configuration's Machines by state.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineCounts {
    /// Number of Machines with a selected version of this configuration. Default: 0.
    #[serde(default)]
    pub selected: i32,
    /// Number of Machines that run a version of this configuration. Default: 0.
    #[serde(default)]
    pub applied: i32,
    /// Number of Machines that run another version than a repave would select now. Default: 0.
    #[serde(default)]
    pub outdated: i32,
    /// Number of Machines with a selected version whose Node is missing or not Ready. Claimed hosts do not count. Default: 0.
    #[serde(default)]
    pub unavailable: i32,
}
