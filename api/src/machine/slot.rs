//! `Machine.status`: the selected version, the applied version, and the slots of the host (docs/node.md).
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
