//! Partitions and file systems of the machine.
//!
//! Not here: the documents that kubeadm reads. `bedplate-bootstrap` renders them from these types.
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Partitions and file systems.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct DiskSetup {
    /// Disks to partition, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub partitions: Vec<Partition>,
    /// File systems to make, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub filesystems: Vec<Filesystem>,
}

/// A disk to partition.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.layout) != has(self.diskLayout)").message("exactly one of layout and diskLayout must be set"),
    validation = Rule::new("!has(self.diskLayout) || self.diskLayout.map(l, l.percentage).sum() <= 100")
        .message("the percentages of diskLayout must not exceed 100")
)]
pub struct Partition {
    /// The disk.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
    /// True for one partition that takes the whole disk, False for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<bool>,
    /// The partitions, 1 to 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub disk_layout: Vec<PartitionSpec>,
    /// True if a disk with partitions is partitioned again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// Type of the table: `mbr` or `gpt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["mbr", "gpt"]))]
    pub table_type: Option<String>,
}

/// One partition.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PartitionSpec {
    /// Share of the disk in percent, 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub percentage: i32,
    /// Type: `Linux`, `LinuxSwap`, `LinuxRAID`, `LVM`, `Fat32`, `NTFS`, `LinuxExtended` or the GUID of a type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 36),
        regex(
            pattern = "^(Linux|LinuxSwap|LinuxRAID|LVM|Fat32|NTFS|LinuxExtended|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$"
        )
    )]
    pub partition_type: Option<String>,
}

/// A file system to make.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Filesystem {
    /// The device.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
    /// Type of the file system.
    #[schemars(length(min = 1, max = 128))]
    pub filesystem: String,
    /// Label of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub label: Option<String>,
    /// Partition: `auto`, `any`, `none` or its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub partition: Option<String>,
    /// True if a file system is overwritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// Type of the file system that is replaced.
    #[serde(rename = "replaceFS", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub replace_fs: Option<String>,
    /// Further arguments, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 256)))]
    pub extra_opts: Vec<String>,
}
