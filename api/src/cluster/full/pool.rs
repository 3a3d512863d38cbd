//! The inert definition of `MachinePool`: lists and watches work, and no object can be created. Programs of upstream do not start or delete a Cluster
//! without the definition.
//!
//! An object of an earlier core can be updated: users must be able to remove its finalizers.
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion, CustomResourceSubresourceStatus, CustomResourceSubresources,
    CustomResourceValidation, JSONSchemaProps, ValidationRule,
};

use crate::cluster::core::GROUP;
use crate::cluster::part::VERSION;

/// Message of the refusal.
const REFUSAL: &str = "MachinePools are not supported: use a MachineDeployment";

/// Returns the definition.
pub fn definition() -> CustomResourceDefinition {
    let part = |description: &str| JSONSchemaProps {
        description: Some(description.to_owned()),
        type_: Some("object".to_owned()),
        x_kubernetes_preserve_unknown_fields: Some(true),
        ..JSONSchemaProps::default()
    };
    let schema = JSONSchemaProps {
        description: Some(
            "Machines that one object of the infrastructure manages. Not supported.".to_owned(),
        ),
        type_: Some("object".to_owned()),
        properties: Some(
            [
                ("spec".to_owned(), part("Desired machines.")),
                ("status".to_owned(), part("State of the machines.")),
            ]
            .into(),
        ),
        x_kubernetes_validations: Some(vec![ValidationRule {
            rule: "oldSelf.hasValue()".to_owned(),
            optional_old_self: Some(true),
            message: Some(REFUSAL.to_owned()),
            ..ValidationRule::default()
        }]),
        ..JSONSchemaProps::default()
    };
    let names = CustomResourceDefinitionNames {
        categories: Some(vec!["cluster-api".to_owned()]),
        kind: "MachinePool".to_owned(),
        plural: "machinepools".to_owned(),
        short_names: Some(vec!["mp".to_owned()]),
        singular: Some("machinepool".to_owned()),
        ..CustomResourceDefinitionNames::default()
    };
    let version = CustomResourceDefinitionVersion {
        name: VERSION.to_owned(),
        schema: Some(CustomResourceValidation { open_api_v3_schema: Some(schema) }),
        served: true,
        storage: true,
        subresources: Some(CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
            ..CustomResourceSubresources::default()
        }),
        ..CustomResourceDefinitionVersion::default()
    };
    let mut definition = CustomResourceDefinition {
        spec: CustomResourceDefinitionSpec {
            group: GROUP.to_owned(),
            names,
            scope: "Namespaced".to_owned(),
            versions: vec![version],
            ..CustomResourceDefinitionSpec::default()
        },
        ..CustomResourceDefinition::default()
    };
    definition.metadata.name = Some(format!("machinepools.{GROUP}"));
    definition
}
