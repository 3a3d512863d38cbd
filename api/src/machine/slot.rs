//! `Machine.status`: the selected version, the applied version, and the slots of the host (docs/concepts/node.md).
//!
//! A slot of a later version of Bedplate is skipped.
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::id::Digest;
use crate::schema::ClaimProviderId;
use crate::version::version_name;

/// A configuration version.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VersionRef {
    /// Name of the MachineConfiguration. At most 240 characters.
    #[schemars(length(max = 240))]
    pub name: String,
    /// Number N of the MachineConfigurationVersion `<name>-v<N>`. At least 1.
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
    /// Name of the MachineConfiguration. At most 240 characters.
    #[schemars(length(max = 240))]
    pub name: String,
    /// Number N of the MachineConfigurationVersion `<name>-v<N>`. At least 1.
    #[schemars(range(min = 1))]
    pub version: i64,
    /// Source of the selection.
    ///
    /// - `Reference`: `spec.configurationRef`.
    /// - `Selector`: `spec.machineSelector` of a MachineConfiguration.
    /// - `Claim`: a MachineClaim.
    pub source: SelectionSource,
    /// `spec.providerID` of the MachineClaim that selected the version. Set only with source `Claim`. The version stays selected until the
    /// host has released this claim. Example: `bedplate://rack7-node-20/3f0c2b1e-6b7a-4e0f-9a61-0d6f2f1c7a55`.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ClaimProviderId>")]
    pub provider_id: Option<String>,
    /// True if the claim of `status.selected.providerID` was granted, so that the host may have started it. Default: false.
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

/// Source of the selection of a version.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionSource {
    /// `spec.configurationRef`.
    Reference,
    /// `spec.machineSelector` of a MachineConfiguration.
    Selector,
    /// A MachineClaim.
    Claim,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Version that last passed its health gate on a host.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// Name of the MachineConfiguration. At most 240 characters.
    #[schemars(length(max = 240))]
    pub name: String,
    /// Number N of the MachineConfigurationVersion `<name>-v<N>`. At least 1.
    #[schemars(range(min = 1))]
    pub version: i64,
    /// Slot that runs the version: `a` or `b`.
    #[serde(default, deserialize_with = "known_slot", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SlotName")]
    pub slot: Option<SlotName>,
    /// Digest of the node image, as `sha256:` and 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<Digest>,
    /// `metadata.uid` of the Node that joined with the version. At most 63 characters.
    #[serde(default, rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub node_uid: Option<String>,
    /// Time at which the version passed its health gate.
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
pub(super) fn known_slots<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Slot>, D::Error> {
    let slots = Vec::<Value>::deserialize(deserializer)?;
    let is_known = |slot: &Value| slot.get("name").is_none_or(|name| SlotName::deserialize(name).is_ok());
    let known = slots.into_iter().filter(is_known).map(serde_json::from_value);
    known.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Content of a slot.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// Name of the slot: `a` or `b`.
    pub name: SlotName,
    /// Name of the MachineConfiguration whose version is in the slot. At most 240 characters. Unset if the slot is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 240))]
    pub configuration_name: Option<String>,
    /// Number N of the version in the slot. At least 1. Unset if the slot is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub version: Option<i64>,
    /// Digest of the node image in the slot, as `sha256:` and 64 hex digits. Unset if the slot is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<Digest>,
    /// State of the slot.
    ///
    /// - `Empty`: the slot has no content.
    /// - `Preparing`: the agent fills the slot.
    /// - `Prepared`: the slot is complete and does not run.
    /// - `Running`: the slot runs.
    /// - `Failed`: the slot ran and failed.
    /// - `Emptying`: the slot does not run, and its keys and data are being removed.
    pub state: SlotState,
}

/// State of a slot.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// The slot has no content.
    Empty,
    /// The agent fills the slot.
    Preparing,
    /// The slot is complete and does not run.
    Prepared,
    /// The slot runs.
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

/// Version that failed its health gate, so that the former version runs again.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    /// Version that failed.
    pub from: VersionRef,
    /// Version that runs again.
    pub to: VersionRef,
    /// Cause of the rollback, for users. At most 1024 characters.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Time of the rollback.
    pub time: Time,
}
