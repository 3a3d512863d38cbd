//! `Machine.status` (docs/rules.md, "Who writes what"). Power, boot, slots, hardware and claim are in modules of their own.
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
    /// Controller: True while no configuration is selected (H3).
    pub const CONFIGURATION_PENDING: &str = "ConfigurationPending";
    /// Agent: the node root file system is in its slot.
    pub const PAVED: &str = "Paved";
    /// Agent: the Node is Ready.
    pub const NODE_READY: &str = "NodeReady";
    /// Controller: the Node of a Machine that is deleted with `deletionPolicy: Drain` is drained and gone.
    pub const DRAINED: &str = "Drained";
    /// Controller: the sum of the others; its message names the first thing that is not met.
    pub const READY: &str = "Ready";
    /// Controller: a user must act on the reason of `Ready`. For tools that read objects as kstatus does.
    pub const STALLED: &str = "Stalled";
}

/// State that the programs observed and changed.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// `metadata.generation` of the Machine from which `phase` and condition `Ready` were derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// A summary of the conditions for display. No program reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// `BMCReachable`, `PoweredOn`, `Booted`, `Enrolled`, `ConfigurationPending`, `Paved`, `NodeReady`,
    /// `Drained` (while it is deleted with `deletionPolicy: Drain`), `Ready`, `Stalled` (while a user must
    /// act). Each message names the pending event and its start. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The power state, by pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerStatus>,
    /// The latest boot, by pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootStatus>,
    /// Enrollment of the machine's agent, by pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrollment: Option<EnrollmentStatus>,
    /// Hardware of the machine; `bmc` is written by pxed, the rest by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Hardware>,
    /// The state disk in use, by the agent. Absent: state is in memory, or the host was not netbooted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDiskStatus>,
    /// The agent on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// Configuration version that the controller selected for the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<Selected>,
    /// The configuration version that the machine has, by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// The slots on the host, by the agent. At most 2.
    #[serde(default, deserialize_with = "known_slots", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub slots: Vec<Slot>,
    /// The last update that was rolled back, by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// The present or the last claim of the host, by the agent. Unset: the host was never claimed, or its state is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimStatus>,
    /// The Node of this machine, by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeRef>,
    /// Observation of the Node of the Machine's name, by the controller while `spec.pxe.takeover` is set. pxed uses the token only if there is
    /// no such Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_node: Option<ObservedNode>,
    /// Addresses of the machine, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub addresses: Vec<Address>,
    /// The Node's provider id: `bedplate://<name>`.
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

/// Enrollment of a machine's agent.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct EnrollmentStatus {
    /// SHA-256 of the certificate (DER) that the cluster signed for the agent last, as `sha256:` and 64 hex digits. The API server
    /// accepts no other certificate for a write of this Machine's status as its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_fingerprint: Option<Digest>,
    /// SHA-256 of the key in force (SubjectPublicKeyInfo, DER), as `sha256:` and 64 hex digits. Each pxed of the site refuses every
    /// other key until that key enrolls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_fingerprint: Option<Digest>,
    /// ID of the key in force: the first 32 hex digits of `keyFingerprint`. The agent's certificate has the group
    /// `bedplate:enrollment:<keyID>`. Unset: the certificate was made by an earlier version of Bedplate and has no such group.
    #[serde(default, rename = "keyID", skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// Time at which the key in force was enrolled last. Unchanged by a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_time: Option<Time>,
    /// Number of the key in force: each new key of the Machine has the next one. Of two records of pxed, the one with the higher number counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub generation: Option<i64>,
    /// Time of the permission for another key (`bedplate machine re-enroll`) that was used up last. Later ones are good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_time: Option<Time>,
}

/// The state disk in use.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct StateDiskStatus {
    /// Name below `/dev/disk/by-id`, or the kernel's name where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub name: Option<String>,
    /// The `wipeToken` that was used last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub wipe_token: Option<String>,
}

/// The agent on a host.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The agent's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub version: Option<String>,
    /// The kernel's boot ID (`/proc/sys/kernel/random/boot_id`).
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub boot_id: Option<String>,
    /// Time of the agent's last heartbeat. In a cluster one follows every five minutes and with each change, standalone every 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Abilities of the agent that other programs rely on, such as `claims`. At most 16 of 63 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub features: Vec<String>,
    /// Time at which the agent announced that its host goes down or reboots. Unset by its next report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub going_down_time: Option<Time>,
}

/// A Node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeRef {
    /// Name of the Node.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The Node's UID.
    #[schemars(length(max = 63))]
    pub uid: String,
    /// Time at which the controller found that the Node had been deleted and registered again before the host was repaved. Set while a repave
    /// would give another version than the one that runs. Unset once the Node is deleted again.
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
    /// State of the Node.
    pub state: ObservedNodeState,
    /// `metadata.generation` of the Machine that the controller had read when it observed the Node. An observation of an earlier generation may
    /// be older than the token.
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
    /// Kind of address.
    #[serde(rename = "type")]
    pub type_: AddressType,
    /// The address.
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
