//! `MachineHealthCheck`: marks Machines that are not healthy (HC1 to HC8).
//!
//! Pure: no clock, no file, no socket.

use std::ops::RangeInclusive;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::part::{CountOrPercent, KIND, Opaque, QUALIFIED_NAME, SUBDOMAIN};
use crate::schema::{bounded_selector, count_or_percent};

/// `spec.checks.nodeStartupTimeoutSeconds`, if unset.
const DEFAULT_NODE_STARTUP_TIMEOUT_SECONDS: i32 = 600;

/// Pattern of an API group with a version.
const API_VERSION: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[a-z]([-a-z0-9]*[a-z0-9])?$";

/// Check of Machines.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineHealthCheck",
    plural = "machinehealthchecks",
    shortname = "mhc",
    shortname = "mhcs",
    category = "cluster-api",
    namespaced,
    status = "MachineHealthCheckStatus",
    derive = "PartialEq",
    doc = "Check of the Machines of a cluster. Machines that are not healthy are marked, and their owners replace them.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.expectedMachines"),
    printcolumn(name = "Healthy", type_ = "integer", json_path = ".status.currentHealthy"),
    printcolumn(
        name = "Paused",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Paused")].status"#,
        priority = 10
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.clusterName == oldSelf.clusterName")
        .message("clusterName of a MachineHealthCheck cannot be changed"),
    validation = Rule::new(
        "(has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || \
         (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)"
    )
    .message("selector of a MachineHealthCheck must not be empty"),
    validation = Rule::new(
        "!has(self.selector.matchLabels) || !('cluster.x-k8s.io/cluster-name' in self.selector.matchLabels) || \
         self.selector.matchLabels['cluster.x-k8s.io/cluster-name'] == self.clusterName"
    )
    .message("selector of a MachineHealthCheck must not name another cluster than clusterName")
)]
pub struct MachineHealthCheckSpec {
    /// Name of the cluster, 1 to 63 characters. It cannot be changed.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Labels of the Machines that are checked. It must not be empty.
    #[schemars(schema_with = "bounded_selector")]
    pub selector: LabelSelector,
    /// Checks of each Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<Checks>,
    /// Limits of the marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<HealthRemediation>,
}

impl MachineHealthCheckSpec {
    /// Returns the time in seconds in which a machine must become a Node. 0: without limit.
    pub fn node_startup_timeout_seconds(&self) -> i32 {
        let given = self.checks.as_ref().and_then(|checks| checks.node_startup_timeout_seconds);
        given.unwrap_or(DEFAULT_NODE_STARTUP_TIMEOUT_SECONDS)
    }
}

/// Checks of each Machine. One that fails is enough for a mark.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Checks {
    /// Time in seconds in which a machine must become a Node, at least 30. 0: without limit. If unset: 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 600))]
    #[x_kube(
        validation = Rule::new("self == 0 || self >= 30")
            .message("nodeStartupTimeoutSeconds must be 0 (without limit) or at least 30")
    )]
    pub node_startup_timeout_seconds: Option<i32>,
    /// Conditions of a Node that is not healthy, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub unhealthy_node_conditions: Vec<UnhealthyNodeCondition>,
    /// Conditions of a Machine that is not healthy, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub unhealthy_machine_conditions: Vec<UnhealthyMachineCondition>,
}

/// Condition of a Node that is not healthy.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyNodeCondition {
    /// Type of the condition, at least 1 character.
    #[serde(rename = "type")]
    #[schemars(length(min = 1))]
    pub type_: String,
    /// Status that is not healthy, at least 1 character.
    #[schemars(length(min = 1))]
    pub status: String,
    /// Time in seconds for which the condition must have the status.
    #[schemars(range(min = 0))]
    pub timeout_seconds: i32,
}

/// Condition of a Machine that is not healthy.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyMachineCondition {
    /// Type of the condition, 1 to 316 characters.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316), regex(pattern = QUALIFIED_NAME))]
    #[x_kube(
        validation = Rule::new("!(self in ['Ready', 'Available', 'HealthCheckSucceeded', 'OwnerRemediated', 'ExternallyRemediated'])")
            .message("a health check must not depend on a condition that itself depends on health checks")
    )]
    pub type_: String,
    /// Status that is not healthy.
    pub status: UnhealthyStatus,
    /// Time in seconds for which the condition must have the status.
    #[schemars(range(min = 0))]
    pub timeout_seconds: i32,
}

/// Status of a condition.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnhealthyStatus {
    /// The condition is True.
    True,
    /// The condition is False.
    False,
    /// The status is not known. Values of later versions are read as this one.
    #[serde(other)]
    Unknown,
}

/// Limits of the marks.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct HealthRemediation {
    /// Numbers of Machines that are not healthy with which Machines are marked. If unset, they are marked always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_if: Option<TriggerIf>,
    /// Template of an object that replaces Machines. It is not supported: the health check marks nothing while it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<RemediationTemplate>,
}

/// Numbers of Machines that are not healthy with which Machines are marked.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct TriggerIf {
    /// Largest number, or percentage of the checked Machines. If unset: `100%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_or_percent")]
    pub unhealthy_less_than_or_equal_to: Option<CountOrPercent>,
    /// Range of the number, such as `[3-5]`. It counts before `unhealthyLessThanOrEqualTo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^\[[0-9]+-[0-9]+\]$"))]
    #[x_kube(
        validation = Rule::new(
            "int(self.substring(1, self.indexOf('-'))) <= int(self.substring(self.indexOf('-') + 1, size(self) - 1))"
        )
        .message("unhealthyInRange must not end below its start")
    )]
    pub unhealthy_in_range: Option<String>,
}

impl TriggerIf {
    /// Returns the range of `unhealthyInRange`. None: the field is unset, or its numbers have no meaning.
    pub fn range(&self) -> Option<RangeInclusive<u32>> {
        let text = self.unhealthy_in_range.as_deref()?.strip_prefix('[')?.strip_suffix(']')?;
        let (start, end) = text.split_once('-')?;
        let (start, end): (u32, u32) = (start.parse().ok()?, end.parse().ok()?);
        (start <= end).then_some(start..=end)
    }
}

/// Template of an object that replaces Machines.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RemediationTemplate {
    /// API group and version of the template, 1 to 317 characters.
    #[schemars(length(min = 1, max = 317), regex(pattern = API_VERSION))]
    pub api_version: String,
    /// Kind of the template, 1 to 63 characters.
    #[schemars(length(min = 1, max = 63), regex(pattern = KIND))]
    pub kind: String,
    /// Name of the template, 1 to 253 characters.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
}

/// State of a MachineHealthCheck. Written by the core controller.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckStatus {
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// Conditions of the MachineHealthCheck, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Number of Machines that are checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub expected_machines: Option<i32>,
    /// Number of Machines that are healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub current_healthy: Option<i32>,
    /// Number of Machines that may still be marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub remediations_allowed: Option<i32>,
    /// Names of the Machines that are checked, sorted, at most 10000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000), inner(length(min = 1, max = 253)))]
    pub targets: Vec<String>,
    /// Fields of earlier versions. Never written by Bedplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<Opaque>,
}

impl AsMut<Vec<Condition>> for MachineHealthCheckStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}
