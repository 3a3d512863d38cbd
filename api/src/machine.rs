//! `Machine`: one real server or virtual machine, and who provisions it (docs/design/rules.md, H1).
//!
//! Types, defaults and validation only. Users write `spec`, the programs write `status`, each its own fields.
//! Conditions are `k8s_openapi`'s [`Condition`], so that every tool that knows conditions reads them.
//!
//! Pure: no clock, no file, no socket.

mod bmc;
mod boot;
pub(crate) mod claim;
mod hardware;
mod power;
mod pxe;
mod slot;
mod status;

pub use bmc::{BmcProtocol, BmcSpec, BmcTls, BmcTlsMode, BootSource, IpmiPrivilege, IpmiSpec, RedfishSpec};
pub use boot::{BootStatus, PreviousBoot, TimelineEntry};
pub use claim::{ClaimPolicy, ClaimStatus, ClaimantRef};
pub use hardware::{Clock, Cpu, Disk, Firmware, FirmwareMode, Hardware, HardwareBmc, Nic, Tpm};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
pub use power::{PowerAction, PowerActionKind, PowerState, PowerStatus};
pub use pxe::{BootProtocol, FirmwareKind, ImageRef, InterfaceSpec, PxeSpec, StateDisk, StateDiskRule, Wipe};
pub use slot::{Applied, RolledBack, Selected, SelectionSource, Slot, SlotName, SlotState, VersionRef};
pub use status::{
    Address, AddressType, AgentStatus, EnrollmentStatus, MachineStatus, NodeRef, ObservedNode,
    ObservedNodeState, Phase, StateDiskStatus, condition_type,
};

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::SiteName;
use crate::schema::ConfigurationName;

/// `spec.provider` of a Machine that pxed provisions.
pub const PROVIDER_PXE: &str = "pxe";

/// `spec.provider` of a Machine whose agent a user installs.
pub const PROVIDER_MANUAL: &str = "manual";

/// Annotation of a Machine: time (RFC 3339) at which an administrator allowed another key to enroll for it, although the key in force
/// is still heard. A slash and the public ID of a boot may follow: then it is for that boot alone. Good for one key and one hour. Agents and
/// pxed cannot write it.
pub const RE_ENROLL_ANNOTATION: &str = "bedplate.dev/re-enroll";

/// Finalizer of pxed on a Machine with `deletionPolicy: PowerOff`: the object stays until its machine is off.
pub const POWER_OFF_FINALIZER: &str = "bedplate.dev/power-off";

/// Annotation of a Machine's Node: name of the MachineConfiguration that the Node came of (H5).
pub const NODE_CONFIGURATION: &str = "bedplate.dev/machine-configuration";

/// Annotation of a Machine's Node: number of that configuration's version (H5).
pub const NODE_VERSION: &str = "bedplate.dev/machine-configuration-version";

/// Maximum number of automatic power-on attempts (`status.power.attempts`).
pub const MOST_POWER_ON_ATTEMPTS: i32 = 5;

/// Desired state of the machine. Written by users.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "bedplate.dev",
    version = "v1alpha1",
    kind = "Machine",
    plural = "machines",
    shortname = "mach",
    category = "bedplate",
    selectable = ".spec.provider",
    selectable = ".spec.site",
    status = "MachineStatus",
    derive = "PartialEq",
    cel,
    doc = "One real server or virtual machine. Its name is its host name and the name of its Node: at most 63 of `a-z`, `0-9` and `-`.",
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("metadata.name must be a host name: at most 63 of a-z, 0-9 and '-', not first or last '-'"),
    validation = Rule::new(
        "has(self.spec.claimPolicy) == has(oldSelf.spec.claimPolicy) || !has(self.status) || !has(self.status.selected)"
    )
    .message("spec.claimPolicy can be added or removed only while no version is selected: release the host, or create the Machine again"),
    validation = Rule::new(
        "!has(self.spec.claimPolicy) || !has(self.status) || !has(self.status.selected) || \
         has(self.spec.pxe) == has(oldSelf.spec.pxe) && (!has(self.spec.pxe) || \
         has(self.spec.pxe.stateDisk) == has(oldSelf.spec.pxe.stateDisk) && (!has(self.spec.pxe.stateDisk) || \
         has(self.spec.pxe.stateDisk.byID) == has(oldSelf.spec.pxe.stateDisk.byID) && \
         (!has(self.spec.pxe.stateDisk.byID) || self.spec.pxe.stateDisk.byID == oldSelf.spec.pxe.stateDisk.byID) && \
         has(self.spec.pxe.stateDisk.serial) == has(oldSelf.spec.pxe.stateDisk.serial) && \
         (!has(self.spec.pxe.stateDisk.serial) || self.spec.pxe.stateDisk.serial == oldSelf.spec.pxe.stateDisk.serial) && \
         has(self.spec.pxe.stateDisk.wwn) == has(oldSelf.spec.pxe.stateDisk.wwn) && \
         (!has(self.spec.pxe.stateDisk.wwn) || self.spec.pxe.stateDisk.wwn == oldSelf.spec.pxe.stateDisk.wwn) && \
         has(self.spec.pxe.stateDisk.hctl) == has(oldSelf.spec.pxe.stateDisk.hctl) && \
         (!has(self.spec.pxe.stateDisk.hctl) || self.spec.pxe.stateDisk.hctl == oldSelf.spec.pxe.stateDisk.hctl) && \
         has(self.spec.pxe.stateDisk.rule) == has(oldSelf.spec.pxe.stateDisk.rule) && \
         (!has(self.spec.pxe.stateDisk.rule) || self.spec.pxe.stateDisk.rule == oldSelf.spec.pxe.stateDisk.rule)))"
    )
    .message("spec.pxe.stateDisk of a Machine with claimPolicy can be added, removed or name another disk only while no version is selected: release the host first"),
    printcolumn(name = "Phase", type_ = "string", description = "Summary of the conditions.", json_path = ".status.phase"),
    printcolumn(
        name = "Config",
        type_ = "string",
        description = "MachineConfiguration of the selected version.",
        json_path = ".status.selected.name"
    ),
    printcolumn(
        name = "Version",
        type_ = "integer",
        description = "Number of the selected version.",
        json_path = ".status.selected.version"
    ),
    printcolumn(name = "Node", type_ = "string", description = "Name of the Node.", json_path = ".status.nodeRef.name"),
    printcolumn(name = "Power", type_ = "string", description = "Power state that pxed observed last.", json_path = ".status.power.state"),
    printcolumn(
        name = "Waiting",
        type_ = "string",
        description = "Pending event, from condition Ready. Empty if there is none.",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Reason of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    printcolumn(
        name = "Claim",
        type_ = "string",
        description = "State of the claim on the host.",
        json_path = ".status.claim.state",
        priority = 1
    ),
    printcolumn(
        name = "Site",
        type_ = "string",
        description = "Site whose pxed serves the machine.",
        json_path = ".spec.site",
        priority = 1
    ),
    printcolumn(
        name = "Boot stage",
        type_ = "string",
        description = "Furthest stage of the latest boot.",
        json_path = ".status.boot.stage",
        priority = 1
    ),
    printcolumn(
        name = "MAC",
        type_ = "string",
        description = "MAC address of the first interface.",
        json_path = ".spec.pxe.interfaces[0].macAddress",
        priority = 1
    ),
    printcolumn(name = "BMC", type_ = "string", description = "Address of the BMC.", json_path = ".spec.bmc.address", priority = 1),
    printcolumn(
        name = "Image",
        type_ = "string",
        description = "Name of the host image in pxed's configuration.",
        json_path = ".spec.pxe.image.name",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.provider == 'pxe') == has(self.pxe)")
        .message("spec.pxe must be set when spec.provider is pxe, and may only be set then"),
    validation = Rule::new("has(self.bmc) || self.deletionPolicy != 'PowerOff' || !(self.provider in ['pxe', 'manual'])")
        .message("spec.bmc must be set when deletionPolicy is PowerOff: no other program powers the machine off"),
    validation = Rule::new("!has(self.pxe) || !has(self.pxe.takeover) || (has(self.bmc) && self.powerPolicy == 'Managed')")
        .message("spec.pxe.takeover may only be set when spec.bmc is set and powerPolicy is Managed"),
    validation = Rule::new("self.powerPolicy != 'OnClaim' || (has(self.claimPolicy) && has(self.bmc) && self.provider == 'pxe')")
        .message("powerPolicy may only be OnClaim when claimPolicy and bmc are set and provider is pxe: pxed powers the machine on for a claim"),
    validation = Rule::new("!has(self.claimPolicy) || !has(self.configurationRef)")
        .message("claimPolicy and configurationRef must not both be set: a claim names the configuration"),
    validation = Rule::new(
        "!has(self.claimPolicy) || !has(self.claimPolicy.release) || self.claimPolicy.release != 'Wipe' || self.provider == 'pxe'"
    )
    .message("claimPolicy.release must not be Wipe when provider is not pxe: only a host that Bedplate boots can be wiped"),
    validation = Rule::new(
        "!has(self.claimPolicy) || !has(self.claimPolicy.release) || self.claimPolicy.release != 'Wipe' || \
         !has(self.pxe) || !has(self.pxe.stateDisk) || !has(self.pxe.stateDisk.wipe) || self.pxe.stateDisk.wipe == 'IfBlank'"
    )
    .message("pxe.stateDisk.wipe must be IfBlank when claimPolicy.release is Wipe: Never forbids the wipe, and Once wipes again after it; set it to IfBlank and remove wipeToken")
)]
pub struct MachineSpec {
    /// Provider of the machine: the program or user that boots its host and installs the agent. At most 63 of `a-z`, `0-9` and `-`.
    ///
    /// - `pxe`: pxed boots the machine from the network. `spec.pxe` must be set.
    /// - `manual`: a user installs the agent.
    /// - Any other value, such as `azure`: a controller of your own makes the host.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub provider: String,
    /// Site of the machine: the group of pxed instances that serves it. It must equal `site` in their configuration. At most 63 of `a-z`,
    /// `0-9` and `-`. Default: `default`.
    #[serde(default)]
    pub site: SiteName,
    /// True if no program may change the machine: its power, boot, version and node stay as they are. Default: false.
    #[serde(default)]
    pub paused: bool,
    /// Netboot settings. Must be set if `spec.provider` is `pxe`, and may only be set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pxe: Option<PxeSpec>,
    /// Management controller (BMC) of the machine, for machines of every provider. If unset, a user powers the machine on and off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<BmcSpec>,
    /// MachineConfiguration of the machine, and optionally its version. Must not be set together with `spec.claimPolicy`. If unset, a
    /// MachineConfiguration is used whose `spec.machineSelector` matches the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_ref: Option<ConfigurationRef>,
    /// Membership in a pool. A MachineClaim then selects the configuration, and no `machineSelector` matches the Machine. Must not be set
    /// together with `spec.configurationRef`. It can be added or removed only while `status.selected` is unset. If unset, no claimant can
    /// hold the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_policy: Option<ClaimPolicy>,
    /// Power changes that pxed makes without an operation. They need `spec.bmc`. Default: `Managed`.
    ///
    /// - `Managed`: pxed powers the machine on when it should run. Only for provider `pxe`.
    /// - `Unmanaged`: pxed changes the power only for a MachineOperation, or for `spec.deletionPolicy: PowerOff`.
    /// - `OnClaim`: pxed powers the machine on while a MachineClaim has its name, and off once the host is released. Needs
    ///   `spec.claimPolicy`, `spec.bmc` and provider `pxe`.
    #[serde(default)]
    pub power_policy: PowerPolicy,
    /// Action on the machine when this object is deleted. Default: `Retain`.
    ///
    /// - `Retain`: the machine and its Node stay as they are.
    /// - `PowerOff`: pxed shuts the machine down, and forces it off after 120 seconds. Providers `pxe` and `manual` need `spec.bmc` for it.
    /// - `Drain`: bedplate-controller cordons, drains and deletes the Node. Then the agent stops and empties the slot.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

impl Machine {
    /// Returns the version that is selected for the machine.
    pub fn selected(&self) -> Option<&Selected> {
        self.status.as_ref()?.selected.as_ref()
    }

    /// Returns the version that the machine has.
    pub fn applied(&self) -> Option<&Applied> {
        self.status.as_ref()?.applied.as_ref()
    }
}

macro_rules! keys {
    ($($reference:ty),+) => {
        $(
            impl $reference {
                /// Returns name of the configuration and number of the version.
                pub fn key(&self) -> (&str, i64) {
                    (&self.name, self.version)
                }
            }
        )+
    };
}

keys!(Applied, Selected, VersionRef);

/// A MachineConfiguration, and perhaps one of its versions.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationRef {
    /// Name of the MachineConfiguration. At most 240 characters. Example: `workers`.
    #[schemars(with = "ConfigurationName")]
    pub name: String,
    /// Number N of the MachineConfigurationVersion `<name>-v<N>`. At least 1. If unset: the newest version at the time of the selection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub version: Option<i64>,
}

/// Power changes that pxed makes without an operation.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PowerPolicy {
    /// pxed powers the machine on when it should run.
    #[default]
    Managed,
    /// pxed changes the power only for a MachineOperation, or for `deletionPolicy: PowerOff`.
    Unmanaged,
    /// pxed powers the machine on while a MachineClaim has the Machine's name, and off once the host has released it. A host that holds a
    /// claim stays on. Needs `claimPolicy`, `bmc` and provider `pxe`.
    OnClaim,
}

/// Action on the machine when the Machine object is deleted.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionPolicy {
    /// The machine and its Node stay as they are.
    #[default]
    Retain,
    /// pxed powers the machine off.
    PowerOff,
    /// bedplate-controller cordons, drains and deletes the Node. Then the agent stops and empties the slot.
    Drain,
}
