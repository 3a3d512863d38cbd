//! Files to write on the machine.
//!
//! Not here: the documents that kubeadm reads. `bedplate-bootstrap` renders them from these types.
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// A file to write.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.content) && has(self.contentFrom))").message("content and contentFrom exclude each other"))]
pub struct File {
    /// Path on the machine.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// Owner as `user:group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub owner: Option<String>,
    /// Mode, such as `0640`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub permissions: Option<String>,
    /// Encoding of the content: `base64`, `gzip` or `gzip+base64`. If unset, the content is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["base64", "gzip", "gzip+base64"]))]
    pub encoding: Option<String>,
    /// True if the content is appended to the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append: Option<bool>,
    /// The content, at most 10,240 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10240))]
    pub content: Option<String>,
    /// Source of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_from: Option<SecretSource>,
}

/// A value in a Secret of the same namespace.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SecretSource {
    /// The Secret.
    pub secret: SecretKeyRef,
}

/// A key of a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
}
