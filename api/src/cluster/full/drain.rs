//! `MachineDrainRule`: treatment of Pods when a Node is drained (DR1). The first rule by name that selects a Pod counts.
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::bounded_selector;

/// Rule for Pods.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineDrainRule",
    plural = "machinedrainrules",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    doc = "Treatment of Pods when the Node of a Machine is drained.",
    printcolumn(name = "Behavior", type_ = "string", json_path = ".spec.drain.behavior"),
    printcolumn(name = "Order", type_ = "string", json_path = ".spec.drain.order"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct MachineDrainRuleSpec {
    /// Treatment of the Pods.
    pub drain: Drain,
    /// Machines that the rule is for: those that one entry selects, at most 32. If unset, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(
        validation = Rule::new("self.all(x, self.exists_one(y, x == y))").message("two entries of machines must not be equal")
    )]
    pub machines: Vec<MachineSelector>,
    /// Pods that the rule is for: those that one entry selects, at most 32. If unset, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(
        validation = Rule::new("self.all(x, self.exists_one(y, x == y))").message("two entries of pods must not be equal")
    )]
    pub pods: Vec<PodSelector>,
}

/// Treatment of Pods.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.order) || self.behavior == 'Drain'").message("order may only be set when behavior is Drain")
)]
pub struct Drain {
    /// Treatment of the Pods.
    pub behavior: DrainBehavior,
    /// Order of the eviction: Pods with a lower number are evicted first. If unset: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<i32>,
}

/// Treatment of a Pod.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainBehavior {
    /// The Pod is evicted.
    Drain,
    /// The Pod stays, and the drain does not wait for it.
    Skip,
    /// The Pod stays, and the drain waits until it has finished.
    WaitCompleted,
    /// A value of a later version, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Machines, by their labels and those of their Cluster. Both selectors must select.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineSelector {
    /// Labels of the Machine. If unset, all Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded_selector")]
    pub selector: Option<LabelSelector>,
    /// Labels of the Cluster. If unset, all Clusters of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded_selector")]
    pub cluster_selector: Option<LabelSelector>,
}

/// Pods, by their labels and those of their namespace. Both selectors must select.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct PodSelector {
    /// Labels of the Pod. If unset, all Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded_selector")]
    pub selector: Option<LabelSelector>,
    /// Labels of the namespace. If unset, all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded_selector")]
    pub namespace_selector: Option<LabelSelector>,
}
