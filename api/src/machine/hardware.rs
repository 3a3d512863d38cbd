//! `Machine.status.hardware`: what the host found out about itself, and pxed about its BMC (docs/machine.md).
//!
//! Every field is optional: two writers apply their own parts, and no machine answers every question. Also the body of
//! the facts that the agent sends; fields that a reader does not know are ignored.
//!
//! Pure: no clock, no file, no socket.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A machine's hardware.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    /// Manufacturer (DMI `sys_vendor`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product name (DMI `product_name`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Serial number (DMI `product_serial`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// System UUID (DMI `product_uuid`), as in DHCP option 97.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// Disks, at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
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
    pub vendor: Option<String>,
    /// Version (DMI `bios_version`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Date as the vendor writes it (DMI `bios_date`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Whether Secure Boot is enforced. Absent: unknown, or BIOS.
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
    pub architecture: Option<String>,
}

/// One disk.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Kernel name, such as `sda`; it may change with every boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names below `/dev/disk/by-id`, at most 16.
    #[serde(default, rename = "byID", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub by_id: Vec<String>,
    /// Serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// World wide name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// SCSI host:channel:target:lun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hctl: Option<String>,
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<i64>,
    /// Spinning (true) or solid (false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Whether the medium can be taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removable: Option<bool>,
}

/// One network interface.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    /// Kernel name, such as `enp1s0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Hardware address in lower case with colons; longer than six octets on InfiniBand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Kernel driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Whether a link is there.
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
    /// Whether there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// Its version, such as `2.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The system clock.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// The kernel's clock source, such as `tsc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether the host's time service (systemd-timesyncd) has set the clock from a server in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchronized: Option<bool>,
    /// How far the hardware's clock, by which the kernel starts, was ahead of pxed's at this boot, in whole seconds;
    /// negative: behind. By the `Date` of pxed's answer to stage-1. Absent: the host was not netbooted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_offset_seconds: Option<i64>,
}

/// A management controller, as pxed found it.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HardwareBmc {
    /// Manufacturer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Firmware version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Faults of this model that pxed works around, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub quirks: Vec<String>,
}
