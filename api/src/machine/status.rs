//! `Machine.status`: what the programs found and did (docs/rules.md, "Who writes what").
//!
//! Four writers apply their own fields by server-side apply, so every field is optional. A program reads enumerations that a later version of
//! another one may extend, so each has a value for those: one that cannot be decoded would end the watch of all Machines. A slot of a later version
//! is skipped.
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{ClaimStatus, Hardware};
use crate::enrollment::KeyId;
use crate::id::{BootId, Digest, MachineName};
use crate::schema::ClaimProviderId;
use crate::version::version_name;
use crate::wire::Stage;

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

/// A machine's power.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PowerStatus {
    /// The state that was seen last.
    pub state: PowerState,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_time: Option<Time>,
    /// The last change of power by pxed, or by a shutdown of the machine's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_action: Option<PowerAction>,
    /// Time at which pxed last sent a request to the BMC that changes the power. An action that found nothing to do sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_switch_time: Option<Time>,
    /// Number of automatic power-on attempts by pxed since the machine last stayed up: booted, and on for ten
    /// minutes. pxed stops after 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,
    /// Before this time pxed does not switch it on by itself again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// Token of `spec.pxe.takeover` that was used last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub takeover_token: Option<String>,
}

/// The state of a machine's power.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum PowerState {
    On,
    Off,
    PoweringOn,
    PoweringOff,
    // Also a state of a later version of Bedplate.
    #[serde(other)]
    Unknown,
}

/// The last change of a machine's power that pxed made, or that the machine's agent made by a shutdown.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PowerAction {
    /// Kind of the change.
    pub action: PowerActionKind,
    /// Time of the change.
    pub time: Time,
    /// Cause and result. At most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Kind of a change of a machine's power.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerActionKind {
    /// Power on, by pxed for H2, by an operation, or by a user.
    PowerOn,
    /// Power off, by an operation, or by force because the Machine is deleted with `deletionPolicy: PowerOff`.
    PowerOff,
    /// Power cycle by an operation.
    PowerCycle,
    /// Reset by an operation.
    Reset,
    /// Request for a graceful shutdown, because the Machine is deleted with `deletionPolicy: PowerOff`. Its time starts the time limit
    /// of the shutdown, also for a pxed that leads later.
    GracefulPowerOff,
    /// Power cycle that `spec.pxe.takeover` allowed.
    Takeover,
    /// Shutdown by the machine's agent.
    Shutdown,
    /// Power off by pxed, because no claim holds the host (`powerPolicy: OnClaim`). The next claim powers it on.
    IdlePowerOff,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The latest boot of a machine: from the first DHCP packet to an enrolled host. Firmware, its loader and the loader's
/// script are DHCP transactions of one boot.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BootStatus {
    /// Public id of this boot: the first 16 bytes of the SHA-256 of its newest boot id. Not the id of its URLs, which is a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<BootId>,
    /// Time of its first packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MicroTime>,
    /// Time at which the seed of this boot left pxed. Only a client that has read the boot's URLs can take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_time: Option<MicroTime>,
    /// The furthest stage that it has reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Number of boots that started since the machine was last enrolled, including this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,
    /// Events in chronological order. At most 32 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub timeline: Vec<TimelineEntry>,
    /// The boot before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousBoot>,
}

/// One stage that a boot reached, or at which something failed.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TimelineEntry {
    /// The stage.
    pub stage: Stage,
    /// When it was first reached, or when the failure was last reported.
    pub time: MicroTime,
    /// True: the stage was not reached, `message` says why. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Sent data or error, for users; at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// A summary of the boot before the latest.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PreviousBoot {
    /// Its public id, as in `boot.id`: derived from its newest boot id by SHA-256, not the id of its URLs.
    pub id: BootId,
    /// Time of its first packet.
    pub start_time: MicroTime,
    /// The furthest stage that it reached.
    pub stage: Stage,
    /// When it reached that stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_time: Option<MicroTime>,
    /// Stage where the boot stalled, and what happened next; at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
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

/// A configuration version.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VersionRef {
    /// Name of the MachineConfiguration.
    #[schemars(length(max = 240))]
    pub name: String,
    /// The integer N of `<name>-v<N>`.
    #[schemars(range(min = 1))]
    pub version: i64,
}

impl VersionRef {
    /// Returns the name of the version's object.
    pub fn version_name(&self) -> String {
        version_name(&self.name, self.version)
    }
}

/// Configuration version that is selected for a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Selected {
    /// Name of the MachineConfiguration.
    #[schemars(length(max = 240))]
    pub name: String,
    /// The integer N of `<name>-v<N>`.
    #[schemars(range(min = 1))]
    pub version: i64,
    /// Source of the choice.
    pub source: SelectionSource,
    /// `spec.providerID` of the MachineClaim that chose the version. Set only with source `Claim`. The version stays selected until the host
    /// has released this claim.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ClaimProviderId>")]
    pub provider_id: Option<String>,
    /// True if that claim was granted, so that the host may have started it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub granted: bool,
}

impl Selected {
    /// Returns the name of the version's object.
    pub fn version_name(&self) -> String {
        version_name(&self.name, self.version)
    }

    /// Returns true if both are one choice: the same version, from the same source, for the same claim.
    pub fn is_same_choice(&self, other: &Self) -> bool {
        let choice = |it: &Self| (it.name.clone(), it.version, it.source, it.provider_id.clone());
        choice(self) == choice(other)
    }
}

/// Source of the choice of a configuration.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionSource {
    /// By `spec.configurationRef`.
    Reference,
    /// By a MachineConfiguration's selector.
    Selector,
    /// By a MachineClaim.
    Claim,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The configuration version that a machine has.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// Name of the MachineConfiguration.
    #[schemars(length(max = 240))]
    pub name: String,
    /// The integer N of `<name>-v<N>`.
    #[schemars(range(min = 1))]
    pub version: i64,
    /// The slot that runs it.
    #[serde(default, deserialize_with = "known_slot", skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotName>,
    /// The node image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<Digest>,
    /// UID of the Node that joined with this version.
    #[serde(default, rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub node_uid: Option<String>,
    /// When it was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

impl Applied {
    /// Returns the name of the version's object.
    pub fn version_name(&self) -> String {
        version_name(&self.name, self.version)
    }
}

/// One of the two places for a node's root file system on a host.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "two names without meaning")]
pub enum SlotName {
    A,
    B,
}

impl SlotName {
    /// Both slots.
    pub const ALL: [Self; 2] = [Self::A, Self::B];
}

/// Reads the name of a slot; `None` if this version does not know it.
fn known_slot<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SlotName>, D::Error> {
    let name = Option::<Value>::deserialize(deserializer)?;
    Ok(name.and_then(|name| SlotName::deserialize(name).ok()))
}

/// Reads the slots whose names this version knows.
fn known_slots<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Slot>, D::Error> {
    let slots = Vec::<Value>::deserialize(deserializer)?;
    let is_known = |slot: &Value| slot.get("name").is_none_or(|name| SlotName::deserialize(name).is_ok());
    let known = slots.into_iter().filter(is_known).map(serde_json::from_value);
    known.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Content of a slot.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// The slot.
    pub name: SlotName,
    /// The configuration version that it holds: `<name>` of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 240))]
    pub configuration_name: Option<String>,
    /// The configuration version that it holds: N.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub version: Option<i64>,
    /// The node image that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<Digest>,
    /// State of the slot.
    pub state: SlotState,
}

/// State of a slot.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing is in it.
    Empty,
    /// It is being filled.
    Preparing,
    /// The slot is complete and does not run.
    Prepared,
    /// It runs.
    Running,
    /// The slot ran and failed.
    Failed,
    /// The slot does not run any more, and its files with keys and data are being removed.
    Emptying,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// An update that was rolled back.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    /// The version that failed.
    pub from: VersionRef,
    /// The version that runs again.
    pub to: VersionRef,
    /// Cause of the rollback. At most 1024 characters.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Time of the rollback.
    pub time: Time,
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
