//! Pure: partitions and file systems of a cloud-config.

use bedplate_api::cluster::kubeadm::disk::{Filesystem, Partition, PartitionSpec};
use serde_json::{Map, Value, json};

use super::{list, set, text};
use crate::capi::Fault;

/// Names of partition types with their codes in cloud-init.
const TYPES: [(&str, &str); 7] = [
    ("Linux", "83"),
    ("LinuxSwap", "82"),
    ("LinuxRAID", "fd"),
    ("LVM", "8e"),
    ("Fat32", "0c"),
    ("NTFS", "07"),
    ("LinuxExtended", "85"),
];

/// Returns `disk_setup`: a map of devices.
pub(super) fn partitions(partitions: &[Partition], faults: &mut Vec<Fault>) -> Value {
    let mut devices = Map::new();
    for (index, partition) in partitions.iter().enumerate() {
        let layout = match (&*partition.disk_layout, partition.layout) {
            ([], layout) => layout.map(Value::Bool),
            (parts, _) => Some(parts.iter().map(part).collect()),
        };
        let device = set([
            ("layout", layout),
            ("overwrite", partition.overwrite.map(Value::Bool)),
            ("table_type", text(partition.table_type.as_ref())),
        ]);
        if devices.insert(partition.device.clone(), device).is_some() {
            let path = format!("spec.diskSetup.partitions[{index}].device");
            faults.push(Fault::Invalid { path, expected: "is in the list twice" });
        }
    }
    Value::Object(devices)
}

/// Returns a share of the disk, with its type if it has one.
fn part(PartitionSpec { percentage, partition_type }: &PartitionSpec) -> Value {
    let Some(type_) = partition_type else { return json!(percentage) };
    let code = TYPES.iter().find(|(name, _)| name == type_).map_or(type_.as_str(), |(_, code)| code);
    match code.parse::<u32>() {
        // The schema of cloud-init has numbers. A leading zero would be lost, and sgdisk would take another type.
        Ok(number) if !code.starts_with('0') => json!([percentage, number]),
        Ok(_) | Err(_) => json!([percentage, code]),
    }
}

/// Returns one entry of `fs_setup`.
pub(super) fn filesystem(filesystem: &Filesystem) -> Value {
    set([
        ("device", Some(json!(filesystem.device))),
        ("extra_opts", list(&filesystem.extra_opts)),
        ("filesystem", Some(json!(filesystem.filesystem))),
        ("label", text(filesystem.label.as_ref())),
        ("overwrite", filesystem.overwrite.map(Value::Bool)),
        ("partition", text(filesystem.partition.as_ref())),
        ("replace_fs", text(filesystem.replace_fs.as_ref())),
    ])
}
