//! Selection of the Machine's disk (docs/concepts/agent.md): exactly one must match, otherwise none is used.
//!
//! Pure: the disks that were found in, one of them or a reason out. Called by `state_disk`.

use bedplate_api::machine::Disk;
use bedplate_api::wire::DiskSelector;
use thiserror::Error;

/// Reason for which no disk is used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SelectDiskError {
    /// No disk matches.
    #[error("no disk matches {selector}; disks found: {present}")]
    None {
        /// The selector in words.
        selector: String,
        /// The disks that are there, in words.
        present: String,
    },
    /// Several disks match.
    #[error("{selector} matches {} disks ({}); it must match exactly one", .matches.len(), .matches.join(", "))]
    Several {
        /// The selector in words.
        selector: String,
        /// Kernel names of those that match.
        matches: Vec<String>,
    },
}

/// Selects the disk that `selector` names. A rule never selects a disk with a removable medium, nor one
/// without a size.
pub(crate) fn select_disk<'a>(
    selector: &DiskSelector,
    disks: &'a [Disk],
) -> Result<&'a Disk, SelectDiskError> {
    let matches: Vec<&Disk> =
        disks.iter().filter(|disk| disk.name.is_some() && is_match(selector, disk)).collect();
    match matches.as_slice() {
        [one] => Ok(one),
        [] => Err(SelectDiskError::None { selector: describe(selector), present: present(disks) }),
        several => Err(SelectDiskError::Several {
            selector: describe(selector),
            matches: several.iter().filter_map(|disk| disk.name.clone()).collect(),
        }),
    }
}

fn is_match(selector: &DiskSelector, disk: &Disk) -> bool {
    match selector {
        DiskSelector::ById(name) => {
            let name = name.strip_prefix("/dev/disk/by-id/").unwrap_or(name);
            !name.is_empty() && disk.by_id.iter().any(|n| n == name)
        }
        DiskSelector::Serial(serial) => !serial.is_empty() && disk.serial.as_deref() == Some(serial),
        DiskSelector::Wwn(wwn) => {
            let wanted = plain_wwn(wwn);
            !wanted.is_empty() && disk.wwn.as_deref().is_some_and(|own| plain_wwn(own) == wanted)
        }
        DiskSelector::Hctl(hctl) => !hctl.is_empty() && disk.hctl.as_deref() == Some(hctl),
        DiskSelector::Rule { min_size_bytes, max_size_bytes, rotational, model } => {
            let any = min_size_bytes.is_some()
                || max_size_bytes.is_some()
                || rotational.is_some()
                || model.is_some();
            let size = disk.size_bytes.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
            any && disk.removable != Some(true)
                && size.is_some_and(|size| {
                    min_size_bytes.is_none_or(|min| size >= min)
                        && max_size_bytes.is_none_or(|max| size <= max)
                })
                && (rotational.is_none() || disk.rotational == *rotational)
                && (model.is_none() || disk.model == *model)
        }
    }
}

/// Normalizes `0x5000...`, `naa.5000...`, `wwn-0x5000...` and `eui.0025...` to one spelling.
fn plain_wwn(text: &str) -> String {
    let mut text = text.to_ascii_lowercase();
    for prefix in ["wwn-", "nvme-", "naa.", "eui.", "0x"] {
        text = text.strip_prefix(prefix).map_or(text.clone(), str::to_owned);
    }
    text
}

fn describe(selector: &DiskSelector) -> String {
    match selector {
        DiskSelector::ById(name) => format!("by-id {name}"),
        DiskSelector::Serial(serial) => format!("serial {serial}"),
        DiskSelector::Wwn(wwn) => format!("wwn {wwn}"),
        DiskSelector::Hctl(hctl) => format!("hctl {hctl}"),
        DiskSelector::Rule { min_size_bytes, max_size_bytes, rotational, model } => {
            let mut parts = Vec::new();
            parts.extend(min_size_bytes.map(|size| format!("at least {size} bytes")));
            parts.extend(max_size_bytes.map(|size| format!("at most {size} bytes")));
            parts.extend(
                rotational.map(|r| if r { "rotational".to_owned() } else { "not rotational".to_owned() }),
            );
            parts.extend(model.as_ref().map(|model| format!("model {model}")));
            format!("the rule ({})", parts.join(", "))
        }
    }
}

fn present(disks: &[Disk]) -> String {
    let words = |disk: &Disk| {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let size = disk.size_bytes.unwrap_or(0);
        format!(
            "{} (model {}, serial {}, {size} bytes)",
            text(&disk.name),
            text(&disk.model),
            text(&disk.serial)
        )
    };
    match disks {
        [] => "none".to_owned(),
        disks => disks.iter().take(8).map(words).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::hardware::disk::observe_disks;
    use crate::hardware::fixture::{server, vm};

    fn selected(root: &Path, selector: &DiskSelector) -> String {
        match select_disk(selector, &observe_disks(root)) {
            Ok(disk) => disk.name.clone().unwrap(),
            Err(SelectDiskError::None { .. }) => "none".to_owned(),
            Err(SelectDiskError::Several { matches, .. }) => matches.join("+"),
        }
    }

    fn rule(
        min: Option<u64>,
        max: Option<u64>,
        rotational: Option<bool>,
        model: Option<&str>,
    ) -> DiskSelector {
        let model = model.map(str::to_owned);
        DiskSelector::Rule { min_size_bytes: min, max_size_bytes: max, rotational, model }
    }

    #[test]
    fn exactly_one_disk_must_match() {
        let (server, vm) = (server(), vm());
        let by_id = |name: &str| DiskSelector::ById(name.to_owned());
        let text = str::to_owned;
        for (root, selector, expected) in [
            (vm.path(), by_id("virtio-state-1"), "vda"),
            (vm.path(), by_id("/dev/disk/by-id/virtio-state-1"), "vda"),
            (vm.path(), by_id("virtio-state"), "none"),
            (vm.path(), by_id(""), "none"),
            (vm.path(), DiskSelector::Serial(text("state-1")), "vda"),
            (vm.path(), DiskSelector::Serial(text("")), "none"),
            (server.path(), by_id("nvme-eui.0025385b71b0a1c2"), "nvme0n1"),
            (server.path(), by_id("ata-WDC_WD40EFRX-68N32N0_LONG_Z1X2"), "sdb"),
            (server.path(), by_id("wwn-0x5000c500a1b2c3d4"), "sda"),
            (server.path(), DiskSelector::Wwn(text("0x5000C500A1B2C3D4")), "sda"),
            (server.path(), DiskSelector::Wwn(text("naa.5000c500a1b2c3d4")), "sda"),
            (server.path(), DiskSelector::Wwn(text("eui.0025385b71b0a1c2")), "nvme0n1"),
            (server.path(), DiskSelector::Hctl(text("1:0:0:0")), "sdb"),
            (server.path(), DiskSelector::Hctl(text("1:0:0:1")), "none"),
            (server.path(), rule(None, None, Some(true), None), "sda+sdb"),
            (server.path(), rule(Some(1_000_000_000_000), None, Some(true), None), "sdb"),
            (server.path(), rule(None, None, Some(false), None), "nvme0n1"),
            (server.path(), rule(None, Some(64_000_000_000), None, None), "none"),
            (server.path(), rule(None, None, None, Some("ST600MM0088")), "sda"),
            (server.path(), rule(None, None, None, Some("ST600")), "none"),
            (server.path(), rule(None, None, None, None), "none"),
        ] {
            assert_eq!(selected(root, &selector), expected, "{selector:?}");
        }
    }

    #[test]
    fn a_refusal_says_what_was_asked_and_what_is_there() {
        let server = server();
        let disks = observe_disks(server.path());
        let none = select_disk(&DiskSelector::Serial("X".to_owned()), &disks).unwrap_err().to_string();
        assert!(none.starts_with("no disk matches serial X; disks found: nvme0n1 (model SAMSUNG"), "{none}");
        let several = select_disk(&rule(None, None, Some(true), None), &disks).unwrap_err().to_string();
        assert_eq!(several, "the rule (rotational) matches 2 disks (sda, sdb); it must match exactly one");
    }
}
