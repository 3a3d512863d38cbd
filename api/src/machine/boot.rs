//! `Machine.status.boot`: the latest boot with its timeline, and the boot before (docs/boot.md).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::id::BootId;
use crate::wire::Stage;

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
