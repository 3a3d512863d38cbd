//! `MachineSet`: a number of equal Machines (MS1 to MS10), and the parts that it shares with `MachineDeployment`.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::machine::MachineSpec;
use crate::cluster::part::{TemplateMetadata, label, label_value};
use crate::schema::bounded_selector;

/// Finalizer of the core controller on a MachineSet.
pub const FINALIZER: &str = "cluster.x-k8s.io/machineset";

/// A set of machines.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineSet",
    plural = "machinesets",
    shortname = "ms",
    category = "cluster-api",
    namespaced,
    status = "MachineSetStatus",
    derive = "PartialEq",
    doc = "A number of equal Machines of workers.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Up-to-date", type_ = "integer", json_path = ".status.upToDateReplicas"),
    printcolumn(
        name = "Paused",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Paused")].status"#,
        priority = 10
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.template.spec.version")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.clusterName == oldSelf.clusterName")
        .message("clusterName of a MachineSet cannot be changed"),
    validation = Rule::new("self.clusterName == self.template.spec.clusterName")
        .message("template.spec.clusterName of a MachineSet must be its clusterName"),
    validation = Rule::new(super::set::HAS_BOOTSTRAP)
        .message("the template of a MachineSet must set configRef, dataSecretName or data of bootstrap; otherwise Machines wait for ever"),
    validation = Rule::new(super::set::SELECTOR_MATCHES)
        .message("selector.matchLabels of a MachineSet must be among the labels of its template"),
    validation = Rule::new(super::set::NO_CONTROL_PLANE_TAINT)
        .message("the template of a MachineSet must not set the taint node-role.kubernetes.io/control-plane: its Machines are workers")
)]
pub struct MachineSetSpec {
    /// Name of the cluster, 1 to 63 characters. It cannot be changed.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Number of Machines. If unset, the core controller writes the number of existing Machines, at least that of the autoscaler's
    /// annotation, otherwise 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Labels of the Machines. If unset, the label `cluster.x-k8s.io/set-name` with the name of the MachineSet.
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
}

/// Rule: Machines of the template get bootstrap data.
pub(super) const HAS_BOOTSTRAP: &str = "has(self.template.spec.bootstrap) && (has(self.template.spec.bootstrap.configRef) || \
     has(self.template.spec.bootstrap.dataSecretName) || has(self.template.spec.bootstrap.data))";

/// Rule: the selector selects the Machines of the template. The label with the cluster's name is implied. The controller checks
/// `matchExpressions`.
pub(super) const SELECTOR_MATCHES: &str = "!has(self.selector) || !has(self.selector.matchLabels) || self.selector.matchLabels.all(k, \
     k == 'cluster.x-k8s.io/cluster-name' || (has(self.template.metadata) && has(self.template.metadata.labels) && \
     k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector.matchLabels[k]))";

/// Rule: the Machines are workers.
pub(super) const NO_CONTROL_PLANE_TAINT: &str = "!has(self.template.spec.taints) || !self.template.spec.taints.exists(t, t.key == 'node-role.kubernetes.io/control-plane')";

/// Template of Machines.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineTemplate {
    /// Labels and annotations of the Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the Machines.
    pub spec: MachineSpec,
}

/// Names of Machines.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineNaming {
    /// Template of the names, 1 to 256 characters, with the variables `{{ .cluster.name }}`, `{{ .machineSet.name }}` and `{{ .random }}`. A name of
    /// more than 63 characters is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(
        validation = Rule::new("self.contains('{{ .random }}')")
            .message("machineNaming.template must contain {{ .random }}, so that no name is used twice")
    )]
    pub template: Option<String>,
}

/// Deletion of Machines.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct SetDeletion {
    /// Order in which Machines are deleted. If unset: `Random`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<DeletionOrder>,
}

/// Order in which Machines are deleted, after those that are marked or not healthy.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionOrder {
    /// Any order.
    #[default]
    Random,
    /// The newest Machine first.
    Newest,
    /// The oldest Machine first.
    Oldest,
    /// A value of a later version, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// State of a MachineSet. Written by the core controller.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineSetStatus {
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// Conditions of the MachineSet, at most 32.
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
    /// Fields of earlier versions. Never written by Bedplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<crate::cluster::part::Opaque>,
}

impl AsMut<Vec<Condition>> for MachineSetStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}

/// Labels that select the Machines of a set, and those that its template has. Upstream writes them into the spec; here they are implied.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveLabels {
    /// Selector of the Machines.
    pub selector: LabelSelector,
    /// Labels of the template.
    pub template: BTreeMap<String, String>,
}

/// Returns the selector and the labels of a template. Without a selector the label `own` selects the Machines.
pub(super) fn effective_labels(
    selector: Option<&LabelSelector>,
    template: &MachineTemplate,
    cluster_name: &str,
    own: (&str, &str),
) -> EffectiveLabels {
    let mut selector = selector.cloned().unwrap_or_default();
    let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let mut labels = labels.unwrap_or_default();
    let is_empty = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    let match_labels = selector.match_labels.get_or_insert_default();
    let implied = is_empty.then_some(own).into_iter().chain([(label::CLUSTER_NAME, cluster_name)]);
    for (key, value) in implied {
        match_labels.insert(key.to_owned(), value.to_owned());
        labels.insert(key.to_owned(), value.to_owned());
    }
    EffectiveLabels { selector, template: labels }
}

impl MachineSet {
    /// Returns the selector and the labels of the Machines, with those that are implied.
    pub fn effective_labels(&self) -> EffectiveLabels {
        let name = self.name_any();
        let own = (label::SET_NAME, &*label_value(&name));
        effective_labels(self.spec.selector.as_ref(), &self.spec.template, &self.spec.cluster_name, own)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn set(selector: &Value) -> MachineSet {
        let reference = json!({ "apiGroup": "g", "kind": "K", "name": "n" });
        let template = json!({ "metadata": { "labels": { "tier": "a" } }, "spec": { "clusterName": "c", "infrastructureRef": reference } });
        from_value(json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "metadata": { "name": "workers" },
            "spec": { "clusterName": "c", "selector": selector, "template": template } }))
        .unwrap()
    }

    #[test]
    fn selector_without_labels_selects_by_the_name_of_the_set() {
        let labels = set(&json!(null)).effective_labels();
        let implied = [("cluster.x-k8s.io/cluster-name", "c"), ("cluster.x-k8s.io/set-name", "workers")];
        let owned = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(labels.selector.match_labels, Some(owned(&implied)));
        assert_eq!(labels.template, owned(&[implied[0], implied[1], ("tier", "a")]));
        assert_eq!(set(&json!({})).effective_labels(), labels);
    }

    #[test]
    fn given_selector_gets_the_name_of_the_cluster_only() {
        for selector in [
            json!({ "matchLabels": { "tier": "a" } }),
            json!({ "matchExpressions": [{ "key": "tier", "operator": "Exists" }] }),
        ] {
            let labels = set(&selector).effective_labels();
            let keys: Vec<_> = labels.template.keys().map(String::as_str).collect();
            assert_eq!(keys, ["cluster.x-k8s.io/cluster-name", "tier"]);
            assert!(labels.selector.match_labels.unwrap().contains_key("cluster.x-k8s.io/cluster-name"));
        }
    }
}
