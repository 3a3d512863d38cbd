//! The definitions of the kinds that Cluster API defines: the core kinds (deploy/cluster-api/core-components.yaml) and the bootstrap kinds.
//!
//! They differ from those of Bedplate's own kinds: a new object has no `observedGeneration`, and conditions have the bounds that upstream has, since
//! programs of upstream write some of them. api/tests/cluster_api/differences.txt has the differences to upstream's definitions of the core kinds.
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

use super::tidy;
use crate::cluster::contract::ContractGeneration;
use crate::cluster::full::{
    Cluster, Machine, MachineDeployment, MachineDrainRule, MachineHealthCheck, MachineSet, pool,
};
use crate::cluster::kubeadm::{KubeadmConfig, KubeadmConfigTemplate};
use crate::cluster::part::{QUALIFIED_NAME, VERSION, label};

/// Name of the core provider, for clusterctl.
const CORE_PROVIDER: &str = "bedplate";

/// Name of the bootstrap provider, for clusterctl.
const BOOTSTRAP_PROVIDER: &str = "bootstrap-bedplate";

/// Bounds of a condition that upstream has.
const MAX_MESSAGE_CHARACTERS: i64 = 32_768;
const REASON_PATTERN: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";

/// The definitions of the core kinds of Cluster API. They are not installed where upstream's are.
pub fn core_definitions() -> Vec<CustomResourceDefinition> {
    let definitions = vec![
        Cluster::crd(),
        Machine::crd(),
        MachineSet::crd(),
        MachineDeployment::crd(),
        MachineHealthCheck::crd(),
        MachineDrainRule::crd(),
        pool::definition(),
    ];
    with_the_form_of_upstream(definitions, CORE_PROVIDER)
}

/// The definitions of the bootstrap kinds of Cluster API. They are not installed where upstream's are.
pub fn bootstrap_definitions() -> Vec<CustomResourceDefinition> {
    let definitions = vec![KubeadmConfig::crd(), KubeadmConfigTemplate::crd()];
    let mut definitions = with_the_form_of_upstream(definitions, BOOTSTRAP_PROVIDER);
    for schema in definitions.iter_mut().flat_map(schemas) {
        // Upstream requires no spec. An object without a spec means the same as one with an empty spec.
        schema.required = None;
    }
    definitions
}

/// Returns definitions with the labels of a provider and with the form that upstream has.
fn with_the_form_of_upstream(
    mut definitions: Vec<CustomResourceDefinition>,
    provider: &str,
) -> Vec<CustomResourceDefinition> {
    for definition in &mut definitions {
        let labels = [(ContractGeneration::V1Beta2.label(), VERSION), (label::PROVIDER, provider)];
        definition.metadata.labels =
            Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        // Written out, so that a server-side apply over upstream's definition fails instead of keeping its webhook.
        definition.spec.conversion = Some(CustomResourceConversion {
            strategy: "None".to_owned(),
            ..CustomResourceConversion::default()
        });
        for schema in schemas(definition) {
            tidy(schema);
            bound_conditions(schema);
        }
    }
    definitions
}

/// Returns the schema of each version.
fn schemas(definition: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let versions = definition.spec.versions.iter_mut();
    versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
}

/// Gives the conditions of the status the bounds that upstream has.
fn bound_conditions(schema: &mut JSONSchemaProps) {
    let status = schema.properties.as_mut().and_then(|parts| parts.get_mut("status"));
    let fields = status.and_then(|status| status.properties.as_mut());
    let conditions = fields.and_then(|fields| fields.get_mut("conditions"));
    let items = conditions.and_then(|conditions| conditions.items.as_mut());
    let Some(JSONSchemaPropsOrArray::Schema(condition)) = items else { return };
    for (name, field) in condition.properties.iter_mut().flatten() {
        match name.as_str() {
            "message" => field.max_length = Some(MAX_MESSAGE_CHARACTERS),
            "observedGeneration" => field.minimum = Some(0.0),
            "reason" => {
                field.min_length = Some(1);
                field.pattern = Some(REASON_PATTERN.to_owned());
            }
            "type" => field.pattern = Some(QUALIFIED_NAME.to_owned()),
            _ => {}
        }
    }
}
