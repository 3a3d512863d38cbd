//! `machineSelector`: the Machines of a MachineConfiguration or of a MachineOperation, by labels and by fields (docs/design/rules.md, H3, O3).
//!
//! Types and validation only; `rules::selection` evaluates them.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::label_values;

/// Fields of a Machine that a selector may name.
pub const MACHINE_FIELDS: [&str; 6] = [
    "metadata.name",
    "spec.provider",
    "spec.site",
    "status.hardware.cpu.architecture",
    "status.hardware.product",
    "status.hardware.vendor",
];

/// Selects Machines by labels and fields. All requirements must hold.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineSelector {
    /// Labels that the Machine must have, with their values. All must match. Example: `role: storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_values")]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Requirements on labels of the Machine. All must hold. Example: `{ key: rack, operator: In, values: ["7", "8"] }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_expressions: Option<Vec<LabelSelectorRequirement>>,
    /// Requirements on fields of the Machine. All must hold. At most 16. Example: `{ key: spec.site, operator: NotIn, values: [lab] }`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_fields: Vec<FieldRequirement>,
}

impl MachineSelector {
    /// Returns the part on labels.
    pub fn labels(&self) -> LabelSelector {
        let (match_labels, match_expressions) = (self.match_labels.clone(), self.match_expressions.clone());
        LabelSelector { match_labels, match_expressions }
    }
}

/// Requirement on one field of a Machine.
// Texts, so that a program that does not know a later key or operator can still read the object.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)")
        .message("matchFields: values must be set when operator is In or NotIn, and may only be set then")
)]
pub struct FieldRequirement {
    /// Path of the field. Requirements on `status.hardware` hold only once the agent has reported the hardware.
    ///
    /// - `metadata.name`: name of the Machine.
    /// - `spec.provider`: provider, such as `pxe`.
    /// - `spec.site`: site, such as `default`.
    /// - `status.hardware.cpu.architecture`: `amd64` or `arm64`.
    /// - `status.hardware.product`: product name.
    /// - `status.hardware.vendor`: manufacturer.
    #[schemars(extend("enum" = MACHINE_FIELDS))]
    pub key: String,
    /// Comparison of the field with `values`.
    ///
    /// - `In`: the field has one of the values.
    /// - `NotIn`: the field has another value, or is not set.
    /// - `Exists`: the field is set.
    /// - `DoesNotExist`: the field is not set.
    #[schemars(extend("enum" = ["In", "NotIn", "Exists", "DoesNotExist"]))]
    pub operator: String,
    /// Values of operators `In` and `NotIn`. The complete values are compared. Must be set for these operators, and may only be set then.
    /// At most 64 of 253 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub values: Vec<String>,
}
