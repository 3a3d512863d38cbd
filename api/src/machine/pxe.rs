//! `Machine.spec.pxe`: interfaces, boot image, kernel arguments, state disk (docs/machine.md).
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
    /// The network interfaces that Bedplate knows, at least one and at most 16. A MAC address that two Machines claim
    /// is served to neither.
    #[schemars(length(min = 1, max = 16))]
    pub interfaces: Vec<InterfaceSpec>,
    /// Firmware that may boot the machine. `Auto` accepts the firmware that sends the DHCP request. Default: `Auto`.
    #[serde(default)]
    pub firmware: FirmwareKind,
    /// Protocol by which the loader is fetched. `Auto` is the protocol that the machine asks for. Default: `Auto`.
    #[serde(default)]
    pub boot_protocol: BootProtocol,
    /// The host image. Absent: the site's default image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// Kernel arguments, added after those of the image; one argument an entry, at most 64 of at most 1024
    /// characters, together 800. No space, `"`, `#`, `&`, `'`, `;`, backslash, backtick or `|`: loader or
    /// kernel would act on it.
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
    /// The disk that holds what survives a reboot. Absent: state is kept in memory, and a condition says so. A disk
    /// that is not selected is never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDisk>,
    /// Token that allows pxed to power-cycle a server that was already on when pxed saw it first, so that it boots from the
    /// network. Needs `bmc` and `powerPolicy: Managed`. Each token is used at most once; set another one to allow it again. If
    /// unset, such a server is left running.
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
    /// Hardware address, unicast; with colons, hyphens, dots or bare, in either case. Compared in normal form and shown
    /// in lower case with colons.
    #[x_kube(
        validation = Rule::new("self.matches('^[0-9a-fA-F][02468aceACE]') && !self.matches('^[0.:-]+$')")
            .message("macAddress must be a unicast address: the second digit even, and not all zero")
    )]
    pub mac_address: MacAddress,
    /// Fixed IPv4 addresses with prefix length, such as `10.7.0.21/24`, at most 16. One must be in a subnet of the site's pxed;
    /// otherwise the interface gets no address. None: an address from the subnet's pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Cidr>", length(max = 16))]
    #[x_kube(
        validation = Rule::new("self.all(a, !a.contains(':'))")
            .message("addresses of an interface must be IPv4: IPv6 is not served")
    )]
    pub addresses: Vec<IpNet>,
    /// Default router, IPv4. Absent: the subnet's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Ip>")]
    #[x_kube(
        validation = Rule::new("!self.contains(':')")
            .message("gateway of an interface must be IPv4: IPv6 is not served")
    )]
    pub gateway: Option<IpAddr>,
    /// Name servers in order, IPv4, at most 8. None: the subnet's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Ip>", length(max = 8))]
    #[x_kube(
        validation = Rule::new("self.all(n, !n.contains(':'))")
            .message("nameservers of an interface must be IPv4: IPv6 is not served")
    )]
    pub nameservers: Vec<IpAddr>,
    /// True if the machine may boot from this interface. If unset on every interface, the first one is used.
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
    /// Name of an image in pxed's own configuration (`[images.<name>]`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: Option<String>,
    /// OCI reference, such as `registry.example/bedplate/host@sha256:...`, at most 512 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[!-~]+$"))]
    pub reference: Option<String>,
    /// Allows a reference without digest. Default: false.
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
    /// Name below `/dev/disk/by-id`, without a slash.
    #[serde(default, rename = "byID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[^/]+$"))]
    pub by_id: Option<String>,
    /// Serial number as the drive reports it, compared whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub serial: Option<String>,
    /// World wide name, such as `0x5000c500a1b2c3d4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub wwn: Option<String>,
    /// SCSI host:channel:target:lun, such as `0:0:1:0`. It depends on cabling and module order: prefer another way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = "^[0-9]+:[0-9]+:[0-9]+:[0-9]+$"))]
    pub hctl: Option<String>,
    /// Properties that must match exactly one disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<StateDiskRule>,
    /// Wipe policy of the disk. Default: `IfBlank`.
    #[serde(default)]
    pub wipe: Wipe,
    /// With `wipe: Once`: the wipe is done once for this text, which status then remembers; a new text wipes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub wipe_token: Option<String>,
}

/// Properties of the state disk; those that are given must all hold.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.minSizeBytes) || has(self.maxSizeBytes) || has(self.rotational) || has(self.model)")
        .message("at least one property of stateDisk.rule must be set"),
    validation = Rule::new("!has(self.minSizeBytes) || !has(self.maxSizeBytes) || self.minSizeBytes <= self.maxSizeBytes")
        .message("stateDisk.rule.minSizeBytes must not be larger than maxSizeBytes")
)]
pub struct StateDiskRule {
    /// Smallest size, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_size_bytes: Option<i64>,
    /// Largest size, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_size_bytes: Option<i64>,
    /// Spinning (true) or solid (false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Model as the drive reports it, compared whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub model: Option<String>,
}

/// Wipe policy of a state disk.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wipe {
    /// Only if nothing is on it.
    #[default]
    IfBlank,
    /// Never.
    Never,
    /// Once for each `wipeToken`.
    Once,
}
