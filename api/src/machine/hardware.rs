//! `Machine.status.hardware`: what the host found out about itself, and pxed about its BMC (docs/machine.md).
//!
//! Every field is optional: two writers apply their own parts, and no machine answers every question. Also the body of
//! the facts that the agent sends; fields that a reader does not know are ignored.
//!
//! Each text and list has a bound, so that a host cannot make its Machine too large. [`Hardware::bounded`] cuts what is longer.
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of characters of a text.
const MAX_TEXT_CHARACTERS: usize = 256;
/// Maximum number of disks.
const MAX_DISKS: usize = 256;
/// Maximum number of characters of the texts of all disks. 256 disks with texts of full length would not fit into an object.
const MAX_DISK_CHARACTERS: usize = 98_304;
/// Maximum number of names of a disk.
const MAX_DISK_NAMES: usize = 16;
/// Maximum number of network interfaces.
const MAX_NICS: usize = 64;

/// A machine's hardware.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    /// Manufacturer (DMI `sys_vendor`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub vendor: Option<String>,
    /// Product name (DMI `product_name`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub product: Option<String>,
    /// Serial number (DMI `product_serial`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub serial: Option<String>,
    /// System UUID (DMI `product_uuid`), as in DHCP option 97.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub uuid: Option<String>,
    /// Firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Memory that the kernel has, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// Disks, at most 256. Their texts have at most 98304 characters together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new(
        "self.map(d, (has(d.name) ? size(d.name) : 0) + (has(d.serial) ? size(d.serial) : 0) + (has(d.wwn) ? size(d.wwn) : 0) + \
         (has(d.hctl) ? size(d.hctl) : 0) + (has(d.model) ? size(d.model) : 0) + \
         (has(d.byID) ? d.byID.map(n, size(n)).sum() : 0)).sum() <= 98304"
    )
    .message("the texts of all disks must have at most 98304 characters together"))]
    pub disks: Vec<Disk>,
    /// Network interfaces, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub nics: Vec<Nic>,
    /// Trusted Platform Module. Absent: not looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
    /// The system clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// The management controller, as pxed found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<HardwareBmc>,
}

/// A machine's firmware.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Firmware {
    /// Firmware of the running boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FirmwareMode>,
    /// Vendor (DMI `bios_vendor`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub vendor: Option<String>,
    /// Version (DMI `bios_version`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Date as the vendor writes it (DMI `bios_date`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub date: Option<String>,
    /// True if Secure Boot is enforced. Absent: unknown, or BIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
}

/// Firmware of a boot.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirmwareMode {
    /// BIOS.
    #[serde(rename = "BIOS")]
    Bios,
    /// UEFI.
    #[serde(rename = "UEFI")]
    Uefi,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// A machine's processors.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// Model as the processor names itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Number of sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<i32>,
    /// Number of cores, all sockets together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<i32>,
    /// Number of hardware threads, all sockets together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<i32>,
    /// Architecture as in OCI images: `amd64`, `arm64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub architecture: Option<String>,
}

/// One disk.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Kernel name, such as `sda`; it may change with every boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub name: Option<String>,
    /// Names below `/dev/disk/by-id`, at most 16.
    #[serde(default, rename = "byID", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub by_id: Vec<String>,
    /// Serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub serial: Option<String>,
    /// World wide name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub wwn: Option<String>,
    /// SCSI host:channel:target:lun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub hctl: Option<String>,
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<i64>,
    /// Spinning (true) or solid (false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// True if the medium is removable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removable: Option<bool>,
}

/// One network interface.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    /// Kernel name, such as `enp1s0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub name: Option<String>,
    /// Hardware address in lower case with colons; longer than six octets on InfiniBand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub mac_address: Option<String>,
    /// Kernel driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub driver: Option<String>,
    /// True if the link is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<bool>,
    /// Speed of the link, in megabits a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<i64>,
}

/// A Trusted Platform Module.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Tpm {
    /// True if the device is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// Its version, such as `2.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
}

/// The system clock.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// The kernel's clock source, such as `tsc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub source: Option<String>,
    /// True if the host's time service (systemd-timesyncd) has set the clock from a server in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchronized: Option<bool>,
    /// Offset of the hardware clock at this boot, in whole seconds: positive if it was ahead of pxed's clock,
    /// negative if behind. The kernel starts with the hardware clock. Computed from the `Date` of pxed's
    /// answer to stage-1. Absent: the host was not netbooted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_offset_seconds: Option<i64>,
}

/// A management controller, as pxed found it.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HardwareBmc {
    /// Manufacturer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub vendor: Option<String>,
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Firmware version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub firmware: Option<String>,
    /// Faults of this model that pxed works around, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub quirks: Vec<String>,
}

impl Hardware {
    /// Cuts texts and lists that are longer than the definition allows. A report must not be refused for the length of a name.
    #[must_use]
    pub fn bounded(self) -> Self {
        let mut left = MAX_DISK_CHARACTERS;
        let fits = |disk: &Disk| {
            let rest = left.checked_sub(disk.characters());
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        Self {
            vendor: cut(self.vendor),
            product: cut(self.product),
            serial: cut(self.serial),
            uuid: cut(self.uuid),
            firmware: self.firmware.map(|firmware| Firmware {
                vendor: cut(firmware.vendor),
                version: cut(firmware.version),
                date: cut(firmware.date),
                ..firmware
            }),
            cpu: self.cpu.map(|cpu| Cpu {
                model: cut(cpu.model),
                architecture: cut(cpu.architecture),
                ..cpu
            }),
            disks: self.disks.into_iter().take(MAX_DISKS).map(Disk::bounded).take_while(fits).collect(),
            nics: self.nics.into_iter().take(MAX_NICS).map(Nic::bounded).collect(),
            tpm: self.tpm.map(|tpm| Tpm { version: cut(tpm.version), ..tpm }),
            clock: self.clock.map(|clock| Clock { source: cut(clock.source), ..clock }),
            ..self
        }
    }
}

impl Disk {
    fn bounded(self) -> Self {
        Self {
            name: cut(self.name),
            by_id: self.by_id.into_iter().take(MAX_DISK_NAMES).map(cut_text).collect(),
            serial: cut(self.serial),
            wwn: cut(self.wwn),
            hctl: cut(self.hctl),
            model: cut(self.model),
            ..self
        }
    }

    /// Returns the number of characters of its texts.
    fn characters(&self) -> usize {
        let texts = [&self.name, &self.serial, &self.wwn, &self.hctl, &self.model];
        texts.into_iter().flatten().chain(&self.by_id).map(|text| text.chars().count()).sum()
    }
}

impl Nic {
    fn bounded(self) -> Self {
        Self { name: cut(self.name), mac_address: cut(self.mac_address), driver: cut(self.driver), ..self }
    }
}

fn cut(text: Option<String>) -> Option<String> {
    text.map(cut_text)
}

fn cut_text(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARACTERS) {
        text.truncate(end);
        // It is kept for as long as the Machine is.
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::crds::definitions;

    /// Facts whose texts and lists are all too long.
    fn endless() -> Hardware {
        let long = || Some("ä".repeat(1000));
        let disk = Disk {
            name: long(),
            by_id: (0..100).map(|number| format!("{number}{}", "x".repeat(1000))).collect(),
            serial: long(),
            wwn: long(),
            hctl: long(),
            model: long(),
            ..Disk::default()
        };
        let nic = Nic { name: long(), mac_address: long(), driver: long(), ..Nic::default() };
        Hardware {
            vendor: long(),
            product: long(),
            serial: long(),
            uuid: long(),
            firmware: Some(Firmware { vendor: long(), version: long(), date: long(), ..Firmware::default() }),
            cpu: Some(Cpu { model: long(), architecture: long(), ..Cpu::default() }),
            disks: vec![disk; 300],
            nics: vec![nic; 300],
            tpm: Some(Tpm { version: long(), ..Tpm::default() }),
            clock: Some(Clock { source: long(), ..Clock::default() }),
            ..Hardware::default()
        }
    }

    /// Compares each text and list with its bound in the definition.
    fn check(value: &Value, schema: &Value, path: &str) {
        let within = |length: usize, bound: &str| {
            let bound = schema[bound].as_u64().and_then(|bound| usize::try_from(bound).ok());
            assert!(bound.is_some_and(|bound| length <= bound), "{path}: {length}");
        };
        match value {
            Value::String(text) if schema["enum"].is_null() => within(text.chars().count(), "maxLength"),
            Value::Array(items) => {
                within(items.len(), "maxItems");
                items.iter().for_each(|item| check(item, &schema["items"], path));
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    check(field, &schema["properties"][name], &format!("{path}.{name}"));
                }
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    #[test]
    fn bounded_facts_fit_into_the_definition_of_a_machine() {
        let machine = serde_json::to_value(&definitions()[0].spec.versions[0].schema).unwrap();
        let schema = &machine["openAPIV3Schema"]["properties"]["status"]["properties"]["hardware"];
        let bounded = endless().bounded();
        check(&serde_json::to_value(&bounded).unwrap(), schema, "hardware");
        assert_eq!((bounded.nics.len(), bounded.disks[0].by_id.len()), (64, 16));
        let characters: usize = bounded.disks.iter().map(Disk::characters).sum();
        assert_eq!((bounded.disks.len(), characters), (18, 96_768), "as many as fit");
        let rule = schema["properties"]["disks"]["x-kubernetes-validations"][0]["rule"].as_str().unwrap();
        assert!(rule.ends_with(&format!("<= {MAX_DISK_CHARACTERS}")), "{rule}");
    }

    #[test]
    fn facts_within_the_bounds_stay_as_they_are() {
        let disk =
            Disk { name: Some("sda".to_owned()), by_id: vec!["wwn-0x5".to_owned()], ..Disk::default() };
        let facts =
            Hardware { vendor: Some("ä".repeat(256)), disks: vec![disk; 256], ..Hardware::default() };
        assert_eq!(facts.clone().bounded(), facts);
    }
}
