//! Schemas that several fields of the bootstrap kinds share.
//!
//! Not here: the documents that kubeadm reads. `bedplate-bootstrap` renders them from these types.
//!
//! Pure: no clock, no file, no socket.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::node::{Argument, EnvironmentVariable};

/// Command line arguments: 1 to 100, each name once.
pub(super) fn arguments(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 100,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name", "value"],
        "x-kubernetes-validations": [{
            "rule": "self.all(x, self.exists_one(y, x.name == y.name))",
            "message": "each argument can be set once"
        }],
        "items": generator.subschema_for::<Argument>()
    })
}

/// Environment variables: 1 to 100.
pub(super) fn environment(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 100,
        "items": generator.subschema_for::<EnvironmentVariable>()
    })
}

/// Source of the value of an environment variable, as in the core API of Kubernetes. Defaults of that API are not filled in.
pub(super) fn value_source(_: &mut SchemaGenerator) -> Schema {
    let text = |what: &str| json!({ "type": "string", "description": what });
    let flag = |what: &str| json!({ "type": "boolean", "description": what });
    let source = |what: &str, required: &[&str], fields: Value| json!({ "type": "object", "description": what, "required": required, "properties": fields });
    json_schema!({
        "type": "object",
        "properties": {
            "configMapKeyRef": source("A key of a ConfigMap.", &["key"], json!({
                "key": text("Key."), "name": text("Name of the ConfigMap."), "optional": flag("True if it may be missing."),
            })),
            "secretKeyRef": source("A key of a Secret.", &["key"], json!({
                "key": text("Key."), "name": text("Name of the Secret."), "optional": flag("True if it may be missing."),
            })),
            "fieldRef": source("A field of the Pod.", &["fieldPath"], json!({
                "apiVersion": text("Version of the path."), "fieldPath": text("Path of the field."),
            })),
            "resourceFieldRef": source("A resource of the container.", &["resource"], json!({
                "containerName": text("Name of the container."), "resource": text("Name of the resource."),
                "divisor": {
                    "description": "Unit of the value, as a quantity.", "x-kubernetes-int-or-string": true,
                    "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$",
                },
            })),
            "fileKeyRef": source("A key of a file in a volume.", &["key", "path", "volumeName"], json!({
                "key": text("Key."), "path": text("Path in the volume."), "volumeName": text("Name of the volume."),
                "optional": flag("True if it may be missing."),
            })),
        }
    })
}
