//! The CustomResourceDefinitions of all kinds, as they are installed (`api/crds/*.yaml` is made from these).
//!
//! Five things are changed in what the derive makes: fields lose `nullable`, so that the API server drops an explicit
//! `null` (otherwise CEL's `has()` would take it for a value), unsigned formats go, which Kubernetes does not know, each list without
//! a type is `atomic`, the texts of Kubernetes' own types get bounds: conditions and times, and each paragraph of a description is one line.
//!
//! An optional enum has `schemars(with = "...")` with its type: without it, kube replaces the field's description by that of the type.
//!
//! A new object has `status.observedGeneration: -1`, so that kstatus does not read it as current.
//!
//! Pure: no clock, no file, no socket.

mod cluster_api;

pub use self::cluster_api::{bootstrap_definitions, core_definitions};

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::json;

use crate::claim::MachineClaim;
use crate::cluster::infrastructure::{
    BedplateCluster, BedplateClusterTemplate, BedplateMachine, BedplateMachineTemplate,
};
use crate::configuration::MachineConfiguration;
use crate::machine::Machine;
use crate::operation::MachineOperation;
use crate::version::MachineConfigurationVersion;

/// The definitions, in the order in which they are installed.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    prepared(vec![
        Machine::crd(),
        MachineConfiguration::crd(),
        MachineConfigurationVersion::crd(),
        MachineOperation::crd(),
        MachineClaim::crd(),
    ])
}

/// Label of a definition: versions that fulfill the contract v1beta2 of Cluster API.
const CONTRACT_LABEL: (&str, &str) = ("cluster.x-k8s.io/v1beta2", "v1alpha1");

/// Label of a definition: provider of Cluster API that it belongs to.
const PROVIDER_LABEL: (&str, &str) = ("cluster.x-k8s.io/provider", "infrastructure-bedplate");

/// The definitions of the infrastructure provider of Cluster API. They are installed with it, and not with the other kinds: clusterctl deletes
/// them with the provider.
pub fn infrastructure_definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = prepared(vec![
        BedplateCluster::crd(),
        BedplateClusterTemplate::crd(),
        BedplateMachine::crd(),
        BedplateMachineTemplate::crd(),
    ]);
    for definition in &mut definitions {
        let labels = [CONTRACT_LABEL, PROVIDER_LABEL].map(|(key, value)| (key.to_owned(), value.to_owned()));
        definition.metadata.labels = Some(labels.into());
    }
    definitions
}

/// Returns definitions with what the derive does not make.
fn prepared(mut definitions: Vec<CustomResourceDefinition>) -> Vec<CustomResourceDefinition> {
    for version in definitions.iter_mut().flat_map(|definition| &mut definition.spec.versions) {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            tidy(schema);
            begin_unobserved(schema);
        }
    }
    definitions
}

/// Makes a new object one that its controller has not observed, if its status says which generation was observed.
fn begin_unobserved(schema: &mut JSONSchemaProps) {
    let status = schema.properties.as_mut().and_then(|properties| properties.get_mut("status"));
    let Some(status) = status else { return };
    if status.properties.as_ref().is_some_and(|fields| fields.contains_key("observedGeneration")) {
        status.default = Some(JSON(json!({ "observedGeneration": -1 })));
    }
}

/// Bounds of the texts of a condition. Kubernetes has the first two. A message of a program of Bedplate has at most 4096 characters.
const CONDITION_TEXTS: [(&str, i64); 3] = [("type", 316), ("reason", 1024), ("message", 4096)];

/// Bound of a time. The API server accepts a fraction of any length.
const MAX_TIME_CHARACTERS: i64 = 64;
/// Form of a time (RFC 3339, years 1000 to 2999, nanoseconds). The API server accepts years, offsets and fractions that programs cannot count.
const TIME_PATTERN: &str = r"^[12]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$";

/// Bounds the texts of a condition, if this is the schema of one.
fn bound_condition(fields: &mut BTreeMap<String, JSONSchemaProps>) {
    if !fields.contains_key("lastTransitionTime") {
        return;
    }
    for (name, bound) in CONDITION_TEXTS {
        if let Some(field) = fields.get_mut(name) {
            field.max_length = Some(bound);
        }
    }
    if let Some(status) = fields.get_mut("status") {
        status.enum_ = Some(["True", "False", "Unknown"].map(|word| JSON(json!(word))).to_vec());
    }
}

/// Joins the lines of each paragraph and of each list item. `kubectl explain` wraps lines itself, and prints each line break of a description.
fn joined(description: &str) -> String {
    let mut text = String::new();
    for line in description.lines().map(str::trim) {
        let is_start = text.is_empty() || text.ends_with('\n');
        let before = match line {
            "" => "\n\n",
            _ if is_start => "",
            item if item.starts_with("- ") => "\n",
            _ => " ",
        };
        text.push_str(before);
        text.push_str(line);
    }
    text
}

fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.description = schema.description.as_deref().map(joined);
    schema.properties.iter_mut().for_each(bound_condition);
    if schema.format.as_deref() == Some("date-time") {
        schema.max_length.get_or_insert(MAX_TIME_CHARACTERS);
        schema.pattern.get_or_insert_with(|| TIME_PATTERN.to_owned());
    }
    if schema.format.as_deref().is_some_and(|format| format.starts_with("uint")) {
        schema.format = None;
    }
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(tidy);
    if let Some(JSONSchemaPropsOrBool::Schema(schema)) = &mut schema.additional_properties {
        tidy(schema);
    }
    if schema.items.is_some() {
        schema.x_kubernetes_list_type.get_or_insert_with(|| "atomic".to_owned());
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(schema)) => tidy(schema),
        Some(JSONSchemaPropsOrArray::Schemas(schemas)) => schemas.iter_mut().for_each(tidy),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_paragraph_are_joined_and_lists_are_kept() {
        let doc = "Policy of\nthe disk.\n\n- `A`: the\n  first.\n- `B`: the second.";
        assert_eq!(joined(doc), "Policy of the disk.\n\n- `A`: the first.\n- `B`: the second.");
        assert_eq!(joined("Values:\n- a\n- b"), "Values:\n- a\n- b");
        assert_eq!(joined("One line."), "One line.");
    }
}
