//! Files and systemd units of a template.
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::ObjectName;

/// A file in a node's root file system.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.content) != has(self.contentFrom)")
        .message("exactly one of content and contentFrom of a file must be set"),
    validation = Rule::new("!has(self.inPlace) || !has(self.append) || !self.append")
        .message("inPlace of a file may only be set when append is false: added text cannot be changed in place")
)]
pub struct FileSpec {
    /// Absolute path, without `..`.
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
    /// Owner as `user:group`. Default: `root:root`.
    #[serde(default = "root_owner")]
    #[schemars(length(max = 65), regex(pattern = "^[_a-z0-9][-_a-z0-9]*:[_a-z0-9][-_a-z0-9]*$"))]
    pub owner: String,
    /// Mode in octal. Default: `0644`.
    #[serde(default = "plain_permissions")]
    #[schemars(length(max = 4), regex(pattern = "^[0-7]{3,4}$"))]
    pub permissions: String,
    /// Encoding of `content`. Default: `plain`.
    #[serde(default)]
    pub encoding: FileEncoding,
    /// Adds to the end of a file that is there, which keeps its owner and mode unless others than the defaults are named. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
    /// The content, at most 512 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 524288))]
    pub content: Option<String>,
    /// Source of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_from: Option<ContentSource>,
    /// Says that the file may be written into a node that runs. Absent: a change waits for the next repave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlaceFile>,
}

/// Action on a running node when one of its files changes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceFile {
    /// Units of the node that are restarted once the file is written, at most 16.
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
    /// As it stands.
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
    /// One key of a Secret.
    pub secret: SecretKeyRef,
}

/// One key of a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret's namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// The Secret's name.
    #[schemars(with = "ObjectName")]
    pub name: String,
    /// The key.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// A systemd unit of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UnitSpec {
    /// The unit's name, with its suffix.
    #[schemars(
        length(max = 255),
        regex(
            pattern = r"^[-:_.\\@0-9A-Za-z]+\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$"
        )
    )]
    pub name: String,
    /// True if the unit is enabled. If unset, the image decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The whole unit, at most 64 KiB. Absent: as the image has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub contents: Option<String>,
    /// Drop-ins, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub dropins: Vec<DropIn>,
}

/// A drop-in of a systemd unit.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DropIn {
    /// The file name, which ends in `.conf`.
    #[schemars(length(max = 255), regex(pattern = r"^[-_.0-9A-Za-z]+\.conf$"))]
    pub name: String,
    /// The content, at most 64 KiB.
    #[schemars(length(max = 65536))]
    pub contents: String,
}
