//! `Machine.status` (docs/design/rules.md, "Who writes what"). Power, boot, slots, hardware and claim are in modules of their own.
//!
//! Four writers apply their own fields by server-side apply, so every field is optional. A program reads enumerations that a later version of
//! another one may extend, so each has a value for those: one that cannot be decoded would end the watch of all Machines.
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::slot::known_slots;
use super::{Applied, BootStatus, ClaimStatus, Hardware, PowerStatus, RolledBack, Selected, Slot};
use crate::enrollment::KeyId;
use crate::id::{Digest, MachineName};

/// Types of a Machine's conditions.
///
/// Each writer sets `observedGeneration` of its conditions, except of `Booted` and `Enrolled`. These two report events of a boot, and no
/// writer derives them again when the spec changes.
pub mod condition_type {
    /// pxed: the BMC answers.
    pub const BMC_REACHABLE: &str = "BMCReachable";
    /// pxed: the power is on.
    pub const POWERED_ON: &str = "PoweredOn";
    /// pxed: the host's user space has started.
    pub const BOOTED: &str = "Booted";
    /// pxed: the host has its certificate.
    pub const ENROLLED: &str = "Enrolled";
    /// Controller: True while no version can be selected (H3).
    pub const CONFIGURATION_PENDING: &str = "ConfigurationPending";
    /// Agent: a slot runs that has passed its health gate.
    pub const PAVED: &str = "Paved";
    /// Agent: the Node is Ready.
    pub const NODE_READY: &str = "NodeReady";
    /// Controller: the Node of a Machine that is deleted with `deletionPolicy: Drain` is drained and deleted.
    pub const DRAINED: &str = "Drained";
    /// Controller: the sum of the others; its message names the first thing that is not met.
    pub const READY: &str = "Ready";
    /// Controller: a user must act on the reason of `Ready`. For tools that read objects as kstatus does.
    pub const STALLED: &str = "Stalled";
}

/// Observed state of the machine. Written by pxed, bedplate-controller and the agent, each its own fields.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// `metadata.generation` of the Machine from which `status.phase` and condition `Ready` were derived. -1 before the first time. Written
    /// by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the conditions, for display only: no program reads it. The message of condition `Ready` has the cause. Written by
    /// bedplate-controller.
    ///
    /// - `Pending`: the machine is off, or pxed has not heard it yet.
    /// - `PoweringOn`: pxed powered the machine on, and it is not on yet.
    /// - `Booting`: the machine boots. `status.boot.stage` has its progress.
    /// - `Enrolled`: the host has enrolled, and no version is selected yet.
    /// - `ConfigurationPending`: the host has enrolled, and no version can be selected.
    /// - `Claimed`: a MachineClaim holds the host, which has not joined yet.
    /// - `Paving`: the node is made for the first time.
    /// - `Ready`: the Node is Ready, or the host has joined the cluster of its claimant.
    /// - `Repaving`: the Node is gone, and the node is made again.
    /// - `Updating`: a rolling update has cordoned the Node and drains it.
    /// - `RolledBack`: the selected version failed, and the former one runs again. `status.rolledBack` has the cause.
    /// - `Degraded`: a version runs, but its Node is not Ready, or the next version cannot be selected.
    /// - `Paused`: `spec.paused` is true.
    /// - `Releasing`: the claim has ended, and the host is being emptied or wiped.
    /// - `Deleting`: the Machine is being deleted.
    /// - `Failed`: its MAC address is not unique, five power-on attempts failed, or the user data of its claim failed. A user must act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Phase")]
    pub phase: Option<Phase>,
    /// Conditions by type. A message names the pending event and its start. At most 16.
    ///
    /// - `BMCReachable`: True if the BMC answers. Written by pxed.
    /// - `PoweredOn`: True if the machine is on. Written by pxed, or by the controller of another provider.
    /// - `Booted`: True if systemd and the agent run on the host. Written by pxed, or by the controller of another provider.
    /// - `Enrolled`: True if the host has its certificate. Written by pxed.
    /// - `ConfigurationPending`: True while no version can be selected. Written by bedplate-controller.
    /// - `Paved`: True if a slot runs that has passed its health gate. Written by the agent.
    /// - `NodeReady`: True if the Node is Ready. Written by the agent.
    /// - `Drained`: True if the Node was drained and deleted. Exists only while the Machine is deleted with `Drain`. Written by
    ///   bedplate-controller.
    /// - `Ready`: True if `status.phase` is `Ready`. Otherwise it has the first condition that is not met. Written by bedplate-controller.
    /// - `Stalled`: True if a user must act. Otherwise it does not exist. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Power state and its last change. Written by pxed, or by the controller of another provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerStatus>,
    /// Latest boot of the machine. Written by pxed, or by the controller of another provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootStatus>,
    /// Key and certificate of the agent. Written by pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrollment: Option<EnrollmentStatus>,
    /// Hardware of the machine. Written by the agent, except for `bmc`, which pxed writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
    /// State disk in use. Unset if the state is in memory, or if the host did not boot from the network. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDiskStatus>,
    /// Agent on the host: its version, boot and heartbeat. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// Version that was selected for the machine. The agent paves the host with it. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<Selected>,
    /// Version that last passed its health gate on the host. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// Slots of the host: the two places for the root file system of a node. At most 2. Written by the agent.
    #[serde(default, deserialize_with = "known_slots", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub slots: Vec<Slot>,
    /// Last rollback: a version failed its health gate, and the former version runs again. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// Present or last claim of the host. Unset if the host was never claimed, or if its state is lost. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimStatus>,
    /// Node of the machine. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// Observation of the Node with the name of the Machine, while `spec.pxe.takeover` is set. pxed uses the token only if there is no such
    /// Node. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_node: Option<ObservedNode>,
    /// Addresses of the host: its IP addresses and its host name. At most 64. Written by the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub addresses: Vec<Address>,
    /// `spec.providerID` of the Node: `bedplate://<name>`. At most 253 characters. Written by bedplate-controller.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub provider_id: Option<String>,
}

/// A summary of a Machine's conditions, for display only.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each phase is the name of what the conditions say")]
pub enum Phase {
    Pending,
    PoweringOn,
    Booting,
    Enrolled,
    ConfigurationPending,
    Claimed,
    Paving,
    Ready,
    Repaving,
    Updating,
    RolledBack,
    Degraded,
    Paused,
    Releasing,
    Deleting,
    Failed,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Key and certificate of a machine's agent.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct EnrollmentStatus {
    /// SHA-256 of the agent's newest certificate (DER), as `sha256:` and 64 hex digits. The API server accepts no other certificate for the
    /// agent's writes of this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_fingerprint: Option<Digest>,
    /// SHA-256 of the key in force (SubjectPublicKeyInfo, DER), as `sha256:` and 64 hex digits. pxed refuses every other key until another
    /// key is enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_fingerprint: Option<Digest>,
    /// ID of the key in force: the first 32 hex digits of `status.enrollment.keyFingerprint`. The agent's certificate has the group
    /// `bedplate:enrollment:<keyID>`. Unset if the certificate has no such group, because an earlier version of Bedplate made it.
    #[serde(default, rename = "keyID", skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// Time of the last enrollment of the key in force. A renewal of the certificate does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_time: Option<Time>,
    /// Number of the key in force. Each new key of the Machine has the next number, from 1. Of two records the one with the higher number
    /// counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub generation: Option<i64>,
    /// Time of the last permission for another key (`bedplate machine re-enroll`) that was used. Only later permissions are valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_time: Option<Time>,
}

/// The state disk in use.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct StateDiskStatus {
    /// Name of the disk below `/dev/disk/by-id`, or its kernel name such as `vda` if it has none. At most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub name: Option<String>,
    /// Token of the last wipe of the disk: a `spec.pxe.stateDisk.wipeToken`, or the UID of a MachineClaim. At most 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub wipe_token: Option<String>,
}

/// The agent on a host.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Version of the agent. At most 63 characters. Example: `0.1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub version: Option<String>,
    /// Boot ID of the kernel (`/proc/sys/kernel/random/boot_id`). At most 63 characters.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub boot_id: Option<String>,
    /// Time of the agent's last heartbeat. The interval is five minutes in a cluster and 30 seconds if standalone. Each change is also a
    /// heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Abilities of the agent that other programs rely on, such as `claims` and `wipe`. At most 16 of 63 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub features: Vec<String>,
    /// Time at which the agent announced a shutdown or a reboot of its host. Unset by its next report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub going_down_time: Option<Time>,
}

/// A Node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeRef {
    /// Name of the Node. At most 253 characters.
    #[schemars(length(max = 253))]
    pub name: String,
    /// `metadata.uid` of the Node. At most 63 characters.
    #[schemars(length(max = 63))]
    pub uid: String,
    /// Time at which bedplate-controller noticed that the Node was deleted and registered again before the host was repaved. Set while a
    /// repave would select another version. Unset once the Node is deleted again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reregistered_time: Option<Time>,
}

impl NodeRef {
    /// Makes a reference to the Node with this name and UID.
    pub fn new(name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self { name: name.into(), uid: uid.into(), reregistered_time: None }
    }
}

/// Observation of the Node with the Machine's name, no matter which host owns the Node. bedplate-controller
/// writes it while `spec.pxe.takeover` is set. pxed has no right to read Nodes, and reads this before it uses
/// the token.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ObservedNode {
    /// State of the Node with the name of the Machine.
    ///
    /// - `Absent`: the API server has no such Node.
    /// - `Own`: the Node has the provider ID of the Machine.
    /// - `Foreign`: the Node has another provider ID or none, so another host may own it.
    pub state: ObservedNodeState,
    /// `metadata.generation` of the Machine at the observation. pxed ignores an observation of an earlier generation.
    #[schemars(range(min = 0))]
    pub observed_generation: i64,
}

/// State of the Node of a Machine's name.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedNodeState {
    /// There is no Node of this name, by a live answer of the API server.
    Absent,
    /// The Node has the Machine's `providerID`: it is in `nodeRef`.
    Own,
    /// The Node has another `providerID` or none: it may be another host's, or this machine's by another installer.
    Foreign,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// One address of a machine, as in a Node's status.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// Type of the address.
    ///
    /// - `Hostname`: host name.
    /// - `InternalIP`: IP address inside the site.
    #[serde(rename = "type")]
    pub type_: AddressType,
    /// IP address or host name. At most 253 characters. Example: `10.7.0.21`.
    #[schemars(length(max = 253))]
    pub address: String,
}

impl Address {
    /// Returns the addresses of a host: at most 63 IP addresses, and its name.
    pub fn of_host(name: &MachineName, addresses: &[std::net::IpAddr]) -> Vec<Self> {
        let host = Self { type_: AddressType::Hostname, address: name.to_string() };
        let internal = |address: &std::net::IpAddr| Self {
            type_: AddressType::InternalIP,
            address: address.to_string(),
        };
        addresses.iter().take(63).map(internal).chain([host]).collect()
    }
}

/// The kind of an address.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressType {
    /// The host name.
    Hostname,
    /// An IP address inside the site.
    InternalIP,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}
