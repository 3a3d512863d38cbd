//! Pure: the object that is made from a template of the infrastructure or of the bootstrap configuration (MS7). Called by `children`.
//!
//! Templates are of any kind, so they are JSON. Their size is bounded.

use bedplate_api::cluster::full::MachineSet;
use bedplate_api::cluster::part::{Reference, annotation, label};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::machine::given;
use crate::owner::owner_reference;

/// Maximum size of a template in bytes. The API server stores no object that is larger.
const MAX_TEMPLATE_BYTES: usize = 1_572_864;

/// Template of an infrastructure or bootstrap object.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateObject {
    /// API group and version.
    pub api_version: String,
    /// Reference to the template.
    pub reference: Reference,
    /// The `spec.template`.
    template: Map<String, Value>,
}

/// Reason why an object is not a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateError {
    /// The object has no `spec.template`.
    NoTemplate,
    /// The object is too large.
    TooLarge,
}

impl std::fmt::Display for TemplateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoTemplate => f.write_str("object has no spec.template"),
            Self::TooLarge => write!(f, "template has more than {MAX_TEMPLATE_BYTES} bytes"),
        }
    }
}

impl std::error::Error for TemplateError {}

impl TemplateObject {
    /// Reads a template object.
    pub fn read(api_version: &str, reference: Reference, object: &Value) -> Result<Self, TemplateError> {
        let template =
            object.pointer("/spec/template").and_then(Value::as_object).ok_or(TemplateError::NoTemplate)?;
        if serde_json::to_vec(template).is_ok_and(|bytes| bytes.len() > MAX_TEMPLATE_BYTES) {
            return Err(TemplateError::TooLarge);
        }
        Ok(Self { api_version: api_version.to_owned(), reference, template: template.clone() })
    }

    /// Returns the object for the Machine of this name. The Machine becomes its controller later.
    pub(crate) fn clone_for(&self, set: &MachineSet, name: &str) -> Value {
        let of = |field: &str| {
            let metadata = self.template.get("metadata").and_then(|metadata| metadata.get(field));
            metadata.and_then(Value::as_object).cloned().unwrap_or_default()
        };
        let (mut all_labels, mut all_annotations) = (of("labels"), of("annotations"));
        let given = given(set);
        extend(&mut all_labels, given.labels);
        all_labels.insert(label::CLUSTER_NAME.to_owned(), set.spec.cluster_name.clone().into());
        extend(&mut all_annotations, given.annotations);
        let group_kind = format!("{}.{}", self.reference.kind, self.reference.api_group);
        all_annotations.insert(annotation::CLONED_FROM_NAME.to_owned(), self.reference.name.clone().into());
        all_annotations.insert(annotation::CLONED_FROM_GROUP_KIND.to_owned(), group_kind.into());
        let mut object = self.template.clone();
        object.insert("apiVersion".to_owned(), self.api_version.clone().into());
        object.insert("kind".to_owned(), made_kind(&self.reference.kind).into());
        let metadata = json!({
            "name": name,
            "namespace": set.namespace(),
            "labels": all_labels,
            "annotations": all_annotations,
            "ownerReferences": [owner_reference(set, false)],
        });
        object.insert("metadata".to_owned(), metadata);
        object.remove("status");
        Value::Object(object)
    }
}

/// Returns the kind of the objects that are made from templates of a kind.
pub fn made_kind(template: &str) -> &str {
    template.strip_suffix("Template").unwrap_or(template)
}

fn extend(present: &mut Map<String, Value>, desired: std::collections::BTreeMap<String, String>) {
    present.extend(desired.into_iter().map(|(key, value)| (key, value.into())));
}
