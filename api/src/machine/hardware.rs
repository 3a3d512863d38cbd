//! `Machine.status.hardware`: what the host found out about itself, and pxed about its BMC (docs/guides/machine.md).
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
    /// Manufacturer of the machine (DMI `sys_vendor`). At most 256 characters. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub vendor: Option<String>,
    /// Product name of the machine (DMI `product_name`). At most 256 characters. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub product: Option<String>,
    /// Serial number of the machine (DMI `product_serial`). At most 256 characters. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub serial: Option<String>,
    /// System UUID (DMI `product_uuid`), as in DHCP option 97. At most 256 characters. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub uuid: Option<String>,
    /// Firmware of the machine. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Processors of the machine. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Memory that the kernel can use, in bytes. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// Disks of the machine, with each name that `spec.pxe.stateDisk` accepts. At most 256, with 98304 characters together. Written by the
    /// agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new(
        "self.map(d, (has(d.name) ? size(d.name) : 0) + (has(d.serial) ? size(d.serial) : 0) + (has(d.wwn) ? size(d.wwn) : 0) + \
         (has(d.hctl) ? size(d.hctl) : 0) + (has(d.model) ? size(d.model) : 0) + \
         (has(d.byID) ? d.byID.map(n, size(n)).sum() : 0)).sum() <= 98304"
    )
    .message("the texts of all disks must have at most 98304 characters together"))]
    pub disks: Vec<Disk>,
    /// Network interfaces of the machine. At most 64. Written by the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub nics: Vec<Nic>,
    /// Trusted Platform Module of the machine. Unset if the agent did not search for one. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
    /// System clock of the host. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// Management controller (BMC), as it describes itself. Written by pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<HardwareBmc>,
}

/// A machine's firmware.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Firmware {
    /// Firmware of the running boot: `BIOS` or `UEFI`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FirmwareMode")]
    pub mode: Option<FirmwareMode>,
    /// Vendor of the firmware (DMI `bios_vendor`). At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub vendor: Option<String>,
    /// Version of the firmware (DMI `bios_version`). At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Date of the firmware in the vendor's form (DMI `bios_date`). At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub date: Option<String>,
    /// True if Secure Boot is enforced. Unset with BIOS, or if it is not known.
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
    /// Model, as the processor reports it. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Number of sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<i32>,
    /// Number of cores of all sockets together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<i32>,
    /// Number of hardware threads of all sockets together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<i32>,
    /// Architecture, as in OCI images: `amd64` or `arm64`. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub architecture: Option<String>,
}

/// One disk.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Kernel name, such as `sda`. It may change with each boot. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub name: Option<String>,
    /// Names below `/dev/disk/by-id`. At most 16 of 256 characters.
    #[serde(default, rename = "byID", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub by_id: Vec<String>,
    /// Serial number of the drive. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub serial: Option<String>,
    /// World wide name, such as `0x5000c500a1b2c3d4`. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub wwn: Option<String>,
    /// SCSI address as host:channel:target:lun, such as `0:0:1:0`. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub hctl: Option<String>,
    /// Model of the drive. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<i64>,
    /// True if the disk has spinning platters, false if it is solid-state.
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
    /// Kernel name, such as `enp1s0`. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub name: Option<String>,
    /// Hardware address in lower case with colons, such as `52:54:00:12:34:56`. InfiniBand has more than six octets. At most 256
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub mac_address: Option<String>,
    /// Kernel driver, such as `ixgbe`. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub driver: Option<String>,
    /// True if the link is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<bool>,
    /// Speed of the link, in megabits per second.
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
    /// Version of the TPM specification, such as `2.0`. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
}

/// The system clock.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// Clock source of the kernel, such as `tsc`. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub source: Option<String>,
    /// True if the time service of the host (systemd-timesyncd) has set the clock from a server in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchronized: Option<bool>,
    /// Offset of the hardware clock from pxed's clock at this boot, in seconds. Positive if the hardware clock was ahead. Unset if the host
    /// did not boot from the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_offset_seconds: Option<i64>,
}

/// Management controller, as it describes itself to pxed.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HardwareBmc {
    /// Manufacturer of the BMC. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub vendor: Option<String>,
    /// Model of the BMC. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub model: Option<String>,
    /// Firmware version of the BMC. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub firmware: Option<String>,
    /// Faults of this model that pxed works around. At most 32 of 256 characters.
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
