//! `MachineDeployment`: MachineSets of one template after another (MD1 to MD10).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::set::{EffectiveLabels, MachineNaming, MachineTemplate, SetDeletion, effective_labels};
use crate::cluster::part::{CountOrPercent, Opaque, label};
use crate::schema::{bounded_selector, count_or_percent};

/// Finalizer of the core controller on a MachineDeployment.
pub const FINALIZER: &str = "cluster.x-k8s.io/machinedeployment";

/// Machines whose template can be changed.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineDeployment",
    plural = "machinedeployments",
    shortname = "md",
    category = "cluster-api",
    namespaced,
    status = "MachineDeploymentStatus",
    derive = "PartialEq",
    doc = "A number of equal Machines of workers. A change of its template replaces them step by step.",
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name must have at most 63 characters: it is the value of a label"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Available", type_ = "string", json_path = r#".status.conditions[?(@.type=="Available")].status"#),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Up-to-date", type_ = "integer", json_path = ".status.upToDateReplicas"),
    printcolumn(name = "Paused", type_ = "string", json_path = r#".status.conditions[?(@.type=="Paused")].status"#, priority = 10),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.template.spec.version")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.clusterName == oldSelf.clusterName")
        .message("clusterName of a MachineDeployment cannot be changed"),
    validation = Rule::new("self.clusterName == self.template.spec.clusterName")
        .message("template.spec.clusterName of a MachineDeployment must be its clusterName"),
    validation = Rule::new(super::set::HAS_BOOTSTRAP)
        .message("the template of a MachineDeployment must set configRef, dataSecretName or data of bootstrap; otherwise Machines wait for ever"),
    validation = Rule::new(super::set::SELECTOR_MATCHES)
        .message("selector.matchLabels of a MachineDeployment must be among the labels of its template"),
    validation = Rule::new(super::set::NO_CONTROL_PLANE_TAINT)
        .message("the template of a MachineDeployment must not set the taint node-role.kubernetes.io/control-plane: its Machines are workers")
)]
pub struct MachineDeploymentSpec {
    /// Name of the cluster, 1 to 63 characters. It cannot be changed.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Number of Machines. If unset, the core controller writes the number of existing Machines, at least that of the autoscaler's
    /// annotation, otherwise 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Labels of the Machines. If unset, the label `cluster.x-k8s.io/deployment-name` with the name of the MachineDeployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded_selector")]
    pub selector: Option<LabelSelector>,
    /// Template of the Machines.
    pub template: MachineTemplate,
    /// Names of the Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming: Option<MachineNaming>,
    /// Order in which Machines are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<SetDeletion>,
    /// Replacement of the Machines after a change of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Replacement of Machines that a health check has marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<Remediation>,
    /// True if no rollout is started or continued. The number of Machines follows `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Replacement of Machines after a change of the template.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Rollout {
    /// Time at which all Machines are replaced once, without a change of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
    /// Strategy of the replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
}

/// Strategy of a replacement.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Strategy {
    /// Type of the strategy. If unset: `RollingUpdate`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<StrategyType>,
    /// Numbers of the strategy `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Type of a strategy.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StrategyType {
    /// Machines are replaced step by step.
    #[default]
    RollingUpdate,
    /// A Machine is replaced when a user deletes it.
    OnDelete,
    /// A value of a later version, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Numbers of a rolling update.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
#[x_kube(
    validation = Rule::new("!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge != 0 || self.maxUnavailable != 0")
        .message("maxSurge and maxUnavailable must not both be 0: no Machine could be replaced")
)]
pub struct RollingUpdate {
    /// Number or percentage of Machines that may be unavailable concurrently. A percentage is rounded down. If unset: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_or_percent")]
    pub max_unavailable: Option<CountOrPercent>,
    /// Number or percentage of Machines that may exist in addition to `replicas`. A percentage is rounded up. If unset: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_or_percent")]
    pub max_surge: Option<CountOrPercent>,
}

/// Replacement of Machines that a health check has marked.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Remediation {
    /// Number or percentage of Machines that are replaced concurrently. A percentage is rounded up. If unset: without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_or_percent")]
    pub max_in_flight: Option<CountOrPercent>,
}

/// State of a MachineDeployment. Written by the core controller.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentStatus {
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// Conditions of the MachineDeployment, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Selector of the Machines as text, for autoscalers, 1 to 4096 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub selector: Option<String>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of Machines that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of Machines that are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Number of Machines that have the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// State in one word. It is shown only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DeploymentPhase>,
    /// Fields of earlier versions. Never written by Bedplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<Opaque>,
}

/// State of a MachineDeployment in one word.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentPhase {
    /// Machines are made.
    ScalingUp,
    /// Machines are deleted.
    ScalingDown,
    /// The number of Machines is that of `replicas`.
    Running,
    /// Not written by Bedplate.
    Failed,
    /// Unknown state, or a value of a later version.
    #[serde(other)]
    Unknown,
}

impl AsMut<Vec<Condition>> for MachineDeploymentStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}

impl MachineDeployment {
    /// Returns the selector and the labels of the Machines, with those that are implied.
    pub fn effective_labels(&self) -> EffectiveLabels {
        let name = self.name_any();
        let own = (label::DEPLOYMENT_NAME, name.as_str());
        effective_labels(self.spec.selector.as_ref(), &self.spec.template, &self.spec.cluster_name, own)
    }
}
