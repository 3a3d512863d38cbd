//! `Machine.spec.pxe`: interfaces, boot image, kernel arguments, state disk (docs/guides/machine.md).
//!
//! Pure: no clock, no file, no socket.

use std::net::IpAddr;

use ipnet::IpNet;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::MacAddress;
use crate::kernel_argument;
use crate::schema::{Cidr, Ip};

/// Netboot settings of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.interfaces.map(i, i.macAddress.replace(':', '').replace('-', '').replace('.', '').lowerAscii()).all(m, \
         self.interfaces.exists_one(i, \
         i.macAddress.replace(':', '').replace('-', '').replace('.', '').lowerAscii() == m))"
    )
    .message("two interfaces must not have the same macAddress"),
    validation = Rule::new(
        "!self.interfaces.exists(i, has(i.netboot)) || self.interfaces.exists(i, has(i.netboot) && i.netboot)"
    )
    .message("netboot must be true on at least one interface when it is set on any; unset on all, the first netboots")
)]
pub struct PxeSpec {
    /// Network interfaces of the machine that pxed serves. 1 to 16 entries. A MAC address that several Machines have is served to none of
    /// them.
    #[schemars(length(min = 1, max = 16))]
    pub interfaces: Vec<InterfaceSpec>,
    /// Firmware that may boot the machine. Over IPMI it also selects the firmware of the next boot. Default: `Auto`.
    ///
    /// - `Auto`: the firmware that sends the DHCP request.
    /// - `BIOS`: BIOS only.
    /// - `UEFI`: UEFI only.
    #[serde(default)]
    pub firmware: FirmwareKind,
    /// Protocol by which the machine fetches its loader. Default: `Auto`.
    ///
    /// - `Auto`: the protocol that the machine asks for.
    /// - `TFTP`: TFTP only.
    /// - `HTTP`: HTTP only.
    #[serde(default)]
    pub boot_protocol: BootProtocol,
    /// Host image that the machine boots. If unset: `default-image` of pxed's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// Kernel arguments of the host, added after those of the image. Each entry is one argument, such as `console=ttyS1,115200`. At most 64
    /// entries of 1024 characters, and together 800 characters with a space after each. Not allowed are spaces, `"`, `#`, `&`, `'`, `;`,
    /// backslash, backtick, `|`, `${` and characters outside of ASCII. An argument must not start with `-`, `bedplate.` or `initrd=`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024), regex(pattern = kernel_argument::PATTERN)))]
    #[x_kube(
        validation = Rule::new(
            "self.all(a, !a.startsWith('-') && !a.startsWith('bedplate.') && !a.startsWith('initrd=') && !a.contains('${'))"
        )
        .message("a kernel argument must not start with 'bedplate.' or 'initrd=' (set by pxed) or '-' (the kernel would hand it to init), or contain '${' (iPXE would expand it)"),
        validation = Rule::new(
            "self.all(a, !['\"', '#', '&', '\\'', ';', '\\\\', '`', '|'].exists(sign, a.contains(sign)))"
        )
        .message("a kernel argument must not contain \" # & ' ; \\ ` or | (iPXE or the kernel would act on them)"),
        validation = Rule::new("self.map(a, size(a) + 1).sum() <= 800")
            .message("kernelArguments must have at most 800 characters together, with the spaces between them")
    )]
    pub kernel_arguments: Vec<String>,
    /// Disk for data that survives a reboot. Exactly one of `byID`, `serial`, `wwn`, `hctl` and `rule` must be set, and it must match
    /// exactly one disk. No other disk is written. With `spec.claimPolicy` it can be added, removed or name another disk only while
    /// `status.selected` is unset. If unset, all state is in memory and is lost with a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDisk>,
    /// Token that allows one power cycle of a server that was on before pxed knew it. The server then boots from the network. pxed uses
    /// each token at most once. Set another text to allow it again. Needs `spec.bmc` and `spec.powerPolicy: Managed`. 1 to 63 characters.
    /// Example: `2026-03-rack-7`. If unset, such a server keeps running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub takeover: Option<String>,
}

impl PxeSpec {
    /// Returns true if the interface at `index` netboots: it is marked, or it is the first one when none is
    /// marked.
    pub fn netboots(&self, index: usize) -> bool {
        let none_is_marked = self.interfaces.iter().all(|interface| interface.netboot.is_none());
        match self.interfaces.get(index) {
            Some(_) if none_is_marked => index == 0,
            Some(interface) => interface.netboot == Some(true),
            None => false,
        }
    }
}

/// One network interface of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceSpec {
    /// Unicast MAC address, with colons, hyphens, dots or no separators, in upper or lower case. Statuses and logs show it in lower case
    /// with colons. Examples: `52:54:00:12:34:56`, `5254.0012.3456`.
    #[x_kube(
        validation = Rule::new("self.matches('^[0-9a-fA-F][02468aceACE]') && !self.matches('^[0.:-]+$')")
            .message("macAddress must be a unicast address: the second digit even, and not all zero")
    )]
    pub mac_address: MacAddress,
    /// Fixed IPv4 addresses, each with the prefix length of its subnet. Example: `10.7.0.21/24`. At most 16. One of them must be in the
    /// subnet that the machine boots in. Otherwise the machine gets no address. No effect unless `dhcp.mode` of pxed is `server`. If unset:
    /// an address from the subnet's pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Cidr>", length(max = 16))]
    #[x_kube(
        validation = Rule::new("self.all(a, !a.contains(':'))")
            .message("addresses of an interface must be IPv4: IPv6 is not served")
    )]
    pub addresses: Vec<IpNet>,
    /// IPv4 address of the default router. Example: `10.7.0.1`. No effect unless `dhcp.mode` of pxed is `server`. If unset: the router of
    /// the subnet in pxed's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Ip>")]
    #[x_kube(
        validation = Rule::new("!self.contains(':')")
            .message("gateway of an interface must be IPv4: IPv6 is not served")
    )]
    pub gateway: Option<IpAddr>,
    /// IPv4 addresses of the name servers, in order. Example: `10.7.0.2`. At most 8. No effect unless `dhcp.mode` of pxed is `server`. If
    /// unset: the name servers of the subnet in pxed's configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Ip>", length(max = 8))]
    #[x_kube(
        validation = Rule::new("self.all(n, !n.contains(':'))")
            .message("nameservers of an interface must be IPv4: IPv6 is not served")
    )]
    pub nameservers: Vec<IpAddr>,
    /// True if the machine may boot from this interface. If it is set on any interface, it must be true on at least one. If unset on all
    /// interfaces, the first one may boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netboot: Option<bool>,
}

/// Firmware that may boot a machine.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FirmwareKind {
    /// The firmware that sends the DHCP request.
    #[default]
    Auto,
    /// BIOS only.
    #[serde(rename = "BIOS")]
    Bios,
    /// UEFI only.
    #[serde(rename = "UEFI")]
    Uefi,
}

/// Protocol by which a machine fetches its loader.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BootProtocol {
    /// The protocol that the machine asks for.
    #[default]
    Auto,
    /// TFTP only.
    #[serde(rename = "TFTP")]
    Tftp,
    /// HTTP only.
    #[serde(rename = "HTTP")]
    Http,
}

/// A host image: by the name that pxed's configuration gives it, or by OCI reference.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.name) != has(self.reference)")
        .message("exactly one of image.name and image.reference must be set"),
    validation = Rule::new(
        "!has(self.reference) || (has(self.allowTag) && self.allowTag) || self.reference.matches('@sha256:[0-9a-f]{64}$')"
    )
    .message("image.reference must end with a digest (@sha256:...) unless image.allowTag is true")
)]
pub struct ImageRef {
    /// Name of an image in pxed's configuration: NAME of `[images.NAME]`. Exactly one of `name` and `reference` must be set. At most 63
    /// characters. Example: `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: Option<String>,
    /// OCI reference of an image. It must end with a digest (`@sha256:` and 64 hex digits) unless `spec.pxe.image.allowTag` is true. At
    /// most 512 characters. Example: `registry.example/bedplate/host@sha256:<digest>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]+$"))]
    pub reference: Option<String>,
    /// True if `spec.pxe.image.reference` needs no digest. The machine may then boot another image each time. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_tag: bool,
}

/// The disk that holds state, named in exactly one way. It is used only if exactly one disk matches.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "[has(self.byID), has(self.serial), has(self.wwn), has(self.hctl), has(self.rule)].exists_one(x, x)"
    )
    .message("exactly one of stateDisk.byID, serial, wwn, hctl and rule must be set"),
    validation = Rule::new("(has(self.wipe) && self.wipe == 'Once') == has(self.wipeToken)")
        .message("stateDisk.wipeToken must be set when stateDisk.wipe is Once, and may only be set then")
)]
pub struct StateDisk {
    /// Name below `/dev/disk/by-id`, without a slash. At most 256 characters. Example: `nvme-SAMSUNG_MZQL2960_S64FNE0R400123`.
    #[serde(default, rename = "byID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[^/]+$"))]
    pub by_id: Option<String>,
    /// Serial number as the drive reports it. The complete value is compared. At most 256 characters. Example: `S64FNE0R400123`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub serial: Option<String>,
    /// World wide name of the disk, in upper or lower case, with or without a prefix such as `0x`, `naa.` or `eui.`. At most 128
    /// characters. Example: `0x5000c500a1b2c3d4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub wwn: Option<String>,
    /// SCSI address as host:channel:target:lun. It depends on cabling and the order of kernel modules, so prefer another field. At most 64
    /// characters. Example: `0:0:1:0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = "^[0-9]+:[0-9]+:[0-9]+:[0-9]+$"))]
    pub hctl: Option<String>,
    /// Properties of the disk. At least one must be set, and all that are set must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<StateDiskRule>,
    /// Condition under which the disk is formatted. State of this Machine is used as it is, except for `Once`. Damaged state is never
    /// formatted. With `spec.claimPolicy.release: Wipe` it must be `IfBlank`. Default: `IfBlank`.
    ///
    /// - `IfBlank`: if all of the disk reads as zeros, or for the wipe of a claim.
    /// - `Never`: the disk must already have the state of this Machine.
    /// - `Once`: once for each `spec.pxe.stateDisk.wipeToken`, whatever is on the disk.
    #[serde(default)]
    pub wipe: Wipe,
    /// Token of a wipe. The disk is wiped once for each token, and stores it, so that a reboot does not wipe again. Must be set with
    /// `spec.pxe.stateDisk.wipe: Once`, and may only be set then. 1 to 63 characters. Example: `2026-02-reinstall`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub wipe_token: Option<String>,
}

/// Properties of the state disk. All that are set must hold.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.minSizeBytes) || has(self.maxSizeBytes) || has(self.rotational) || has(self.model)")
        .message("at least one property of stateDisk.rule must be set"),
    validation = Rule::new("!has(self.minSizeBytes) || !has(self.maxSizeBytes) || self.minSizeBytes <= self.maxSizeBytes")
        .message("stateDisk.rule.minSizeBytes must not be larger than maxSizeBytes")
)]
pub struct StateDiskRule {
    /// Smallest size of the disk, in bytes. At least 1, and at most `maxSizeBytes`. Example: `400000000000`. If unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_size_bytes: Option<i64>,
    /// Largest size of the disk, in bytes. At least 1. If unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_size_bytes: Option<i64>,
    /// True if the disk must have spinning platters, false if it must be solid-state. If unset: either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Model as the drive reports it. The complete value is compared. At most 256 characters. Example: `SAMSUNG MZQL2960HCJR-00A07`. If
    /// unset: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub model: Option<String>,
}

/// Condition under which a state disk is formatted.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wipe {
    /// If all of the disk reads as zeros.
    #[default]
    IfBlank,
    /// Never.
    Never,
    /// Once for each `wipeToken`.
    Once,
}
