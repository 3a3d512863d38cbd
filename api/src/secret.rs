//! References to Secrets, shared by the kinds.
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::ObjectName;

/// Namespace and name of a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Namespace of the Secret. At most 63 characters. Example: `bedplate-system`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Name of the Secret. At most 253 characters.
    #[schemars(with = "ObjectName")]
    pub name: String,
}
