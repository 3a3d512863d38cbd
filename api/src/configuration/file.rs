//! Files and systemd units of a template.
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::ObjectName;

/// File in the root file system of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.content) != has(self.contentFrom)")
        .message("exactly one of content and contentFrom of a file must be set"),
    validation = Rule::new("!has(self.inPlace) || !has(self.append) || !self.append")
        .message("inPlace of a file may only be set when append is false: added text cannot be changed in place")
)]
pub struct FileSpec {
    /// Absolute path of the file, without `..`. Not below `/run`, `/var/run`, `/tmp`, `/dev`, `/proc`, `/sys`, `/lib/modules` and
    /// `/usr/lib/modules`, and not `/etc/resolv.conf`. At most 1024 characters. Example: `/etc/chrony/chrony.conf`.
    #[schemars(length(min = 2, max = 1024), regex(pattern = "^/[^\\x00]*$"))]
    #[x_kube(
        validation = Rule::new("!self.split('/').exists(p, p == '..')").message("a file's path must not contain '..'"),
        validation = Rule::new(
            "!self.matches('^/([.]?/)*(run|tmp|dev|proc|sys|var/([.]?/)*run|etc/([.]?/)*resolv[.]conf|\
             (usr/([.]?/)*)?lib/([.]?/)*modules)(/|$)')"
        )
        .message(
            "a file's path must not be below /run, /var/run, /tmp, /dev, /proc, /sys, /lib/modules or /usr/lib/modules, nor be \
             /etc/resolv.conf: the node would not see the file"
        )
    )]
    pub path: String,
    /// Owner as `user:group`. At most 65 characters. Default: `root:root`.
    #[serde(default = "root_owner")]
    #[schemars(length(max = 65), regex(pattern = "^[_a-z0-9][-_a-z0-9]*:[_a-z0-9][-_a-z0-9]*$"))]
    pub owner: String,
    /// Mode in octal, with three or four digits. Default: `0644`.
    #[serde(default = "plain_permissions")]
    #[schemars(length(max = 4), regex(pattern = "^[0-7]{3,4}$"))]
    pub permissions: String,
    /// Encoding of `content`. Default: `plain`.
    ///
    /// - `plain`: the text itself.
    /// - `base64`: base64 (RFC 4648).
    /// - `gzip+base64`: gzip (RFC 1952), and then base64.
    #[serde(default)]
    pub encoding: FileEncoding,
    /// True if the content is added to the end of an existing file. The file keeps its owner and mode, unless `owner` or `permissions`
    /// differs from its default. A missing file is created. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
    /// Content of the file. Exactly one of `content` and `contentFrom` must be set. Users who may read the version can read it. At most 512
    /// KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 524288))]
    pub content: Option<String>,
    /// Source of the content. Exactly one of `content` and `contentFrom` must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_from: Option<ContentSource>,
    /// Permission to change the file on a running node (operation `applyConfiguration`). Must not be set if `append` is true. If unset, a
    /// change of the file waits for the next repave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlaceFile>,
}

/// Action on a running node when one of its files changes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceFile {
    /// Units of the node that are restarted after the file was written. At most 16. Example: `chrony.service`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(max = 255), regex(pattern = r"^[-:_.\\@0-9A-Za-z]+\.[a-z]+$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub restart_units: Vec<String>,
}

fn root_owner() -> String {
    "root:root".to_owned()
}

fn plain_permissions() -> String {
    "0644".to_owned()
}

/// Encoding of a file's content.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub enum FileEncoding {
    /// The text itself.
    #[default]
    Plain,
    /// Base64 (RFC 4648, 4).
    Base64,
    /// gzip (RFC 1952), then base64.
    #[serde(rename = "gzip+base64")]
    GzipBase64,
}

/// Source of a file's content.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// Key of a Secret. Agents need the right to read the Secret.
    pub secret: SecretKeyRef,
}

/// Key of a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Namespace of the Secret. At most 63 characters. Example: `nodes`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Name of the Secret. At most 253 characters.
    #[schemars(with = "ObjectName")]
    pub name: String,
    /// Key of the Secret. At most 253 characters.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// systemd unit of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UnitSpec {
    /// Name of the unit, with its suffix. At most 255 characters. Example: `containerd.service`.
    #[schemars(
        length(max = 255),
        regex(
            pattern = r"^[-:_.\\@0-9A-Za-z]+\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$"
        )
    )]
    pub name: String,
    /// True if the unit is enabled, false if it is disabled. If unset: as the image has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Complete text of the unit file. At most 64 KiB. If unset: the unit file of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub contents: Option<String>,
    /// Drop-ins of the unit. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub dropins: Vec<DropIn>,
}

/// Drop-in of a systemd unit.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DropIn {
    /// File name of the drop-in, which ends in `.conf`. At most 255 characters. Example: `limits.conf`.
    #[schemars(length(max = 255), regex(pattern = r"^[-_.0-9A-Za-z]+\.conf$"))]
    pub name: String,
    /// Text of the drop-in. At most 64 KiB.
    #[schemars(length(max = 65536))]
    pub contents: String,
}
