//! Change of one object by an installation, printable. Created by `install`.

use serde::Serialize;
use serde_json::Value;

/// Kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    /// The object does not exist.
    Create,
    /// The object exists with other values.
    Change,
    /// The object has the desired values already.
    Unchanged,
    /// Another field manager applies its fields, with other values.
    Conflict,
}

/// Change of one object, printable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    /// Kind of change.
    pub(crate) action: Action,
    pub(crate) api_version: String,
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// Fields that change, or their field managers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) changes: Vec<String>,
    /// True if the object has the desired values and belongs to another field manager. An apply would take it
    /// over.
    #[serde(skip)]
    pub(crate) left: bool,
}

impl Step {
    /// Makes a step for this object.
    pub(crate) fn new(object: &Value, action: Action, changes: Vec<String>) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            action,
            api_version: text(&object["apiVersion"]).unwrap_or_default(),
            kind: text(&object["kind"]).unwrap_or_default(),
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]).unwrap_or_default(),
            changes,
            left: false,
        }
    }

    /// Marks the object as belonging to another field manager.
    pub(crate) fn left(self) -> Self {
        Self { left: true, ..self }
    }

    /// Returns a name such as `ServiceAccount bedplate-system/pxed`.
    pub(crate) fn object(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {namespace}{}", self.kind, self.name)
    }
}
