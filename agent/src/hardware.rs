//! Hardware as the kernel reports it, in the form of `status.hardware` (docs/guides/machine.md).
//!
//! Each reader takes the root of the tree (`/`, or a fixture) and returns the values found there. A missing
//! or unexpected file leaves its field empty and is never an error. Nothing is written. Called by the agent's
//! reports, by `bedplate-agent facts`, and by stage-1 for disks.

pub mod disk;
pub(crate) mod disk_name;
mod nic;
mod processor;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bedplate_api::machine::{Clock, Firmware, FirmwareMode, Hardware, Tpm};

/// Returns all facts of the machine whose /sys, /proc, /dev and /run are below `root`.
pub(crate) fn observe_hardware(root: &Path) -> Hardware {
    let dmi = |name: &str| read_text(&root.join("sys/class/dmi/id").join(name)).filter(|t| !is_filler(t));
    Hardware {
        vendor: dmi("sys_vendor"),
        product: dmi("product_name"),
        serial: dmi("product_serial"),
        uuid: dmi("product_uuid").map(|text| text.to_ascii_lowercase()),
        firmware: Some(Firmware {
            mode: Some(firmware_mode(root)),
            vendor: dmi("bios_vendor"),
            version: dmi("bios_version"),
            date: dmi("bios_date"),
            secure_boot: secure_boot(root),
        }),
        cpu: Some(processor::observe_cpu(root)),
        memory_bytes: memory_bytes(root, "MemTotal").and_then(|bytes| i64::try_from(bytes).ok()),
        disks: disk::observe_disks(root),
        nics: nic::observe_nics(root),
        tpm: Some(observe_tpm(root)),
        clock: Some(Clock {
            source: read_text(&root.join("sys/devices/system/clocksource/clocksource0/current_clocksource")),
            // systemd-timesyncd makes this file when the kernel's clock has been set from a server (systemd-timesyncd(8)).
            synchronized: Some(root.join("run/systemd/timesync/synchronized").exists()),
            // Stage-1 measures it; the agent adds it.
            boot_offset_seconds: None,
        }),
        bmc: None,
    }
}

/// Returns one field of /proc/meminfo in bytes.
pub fn memory_bytes(root: &Path, field: &str) -> Option<u64> {
    let text = read_text(&root.join("proc/meminfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn firmware_mode(root: &Path) -> FirmwareMode {
    if root.join("sys/firmware/efi").is_dir() { FirmwareMode::Uefi } else { FirmwareMode::Bios }
}

/// UEFI 2.10, 3.3: four bytes of attributes, then one byte, 1 if enforced.
fn secure_boot(root: &Path) -> Option<bool> {
    let path = root.join("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c");
    read_bytes(&path)?.get(4).map(|value| *value == 1)
}

fn observe_tpm(root: &Path) -> Tpm {
    let chip = root.join("sys/class/tpm/tpm0");
    let version = read_text(&chip.join("tpm_version_major")).map(|major| match major.as_str() {
        "1" => "1.2".to_owned(),
        major => format!("{major}.0"),
    });
    Tpm { present: Some(chip.exists()), version }
}

/// Returns true for a placeholder text that vendors leave in DMI.
fn is_filler(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["to be filled by o.e.m.", "default string", "not specified", "none", "0", "system serial number"]
        .contains(&text.as_str())
}

/// Reads a small file as text and trims whitespace and NULs; `None` if it is missing, empty or not text.
pub(crate) fn read_text(path: &Path) -> Option<String> {
    let text = String::from_utf8(read_bytes(path)?).ok()?;
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Reads a small file, at most 1 MiB of it.
pub(crate) fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(1 << 20).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Names in a directory, sorted; empty if it cannot be read.
pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the last component of a link's target.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    Some(std::fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
