//! `Machine.status.boot`: the latest boot with its timeline, and the boot before (docs/troubleshooting/boot.md).
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
    /// Public ID of the boot, 32 hex digits. It differs from the secret ID in the URLs of the boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<BootId>,
    /// Time of the first packet of the boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MicroTime>,
    /// Time at which pxed sent the seed of the boot: the token and the certificate authority for the enrollment. Only a client that has
    /// read the URLs of the boot can fetch the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_time: Option<MicroTime>,
    /// Furthest stage that the boot has reached.
    ///
    /// - `Discover`: the first DHCP packet arrived.
    /// - `Offered`: pxed offered an address.
    /// - `Acknowledged`: pxed acknowledged the address.
    /// - `Loader`: the machine fetched its loader.
    /// - `Script`: the loader fetched its script.
    /// - `Kernel`: the loader fetched the kernel.
    /// - `Initrd`: the loader fetched the initrd.
    /// - `RootFS`: the root file system was fetched.
    /// - `Userspace`: systemd runs, and the agent has started.
    /// - `Enrolled`: the host has its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Stage")]
    pub stage: Option<Stage>,
    /// Number of boots since the machine was last enrolled, with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,
    /// Stages of the boot and failures, in chronological order. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub timeline: Vec<TimelineEntry>,
    /// Boot before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousBoot>,
}

/// Stage that a boot reached, or at which a step failed.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TimelineEntry {
    /// Stage that was reached, or that failed.
    ///
    /// - `Discover`: the first DHCP packet arrived.
    /// - `Offered`: pxed offered an address.
    /// - `Acknowledged`: pxed acknowledged the address.
    /// - `Loader`: the machine fetched its loader.
    /// - `Script`: the loader fetched its script.
    /// - `Kernel`: the loader fetched the kernel.
    /// - `Initrd`: the loader fetched the initrd.
    /// - `RootFS`: the root file system was fetched.
    /// - `Userspace`: systemd runs, and the agent has started.
    /// - `Enrolled`: the host has its certificate.
    pub stage: Stage,
    /// Time at which the stage was first reached, or at which the failure was last reported.
    pub time: MicroTime,
    /// True if the stage was not reached. Then `message` has the cause. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Sent data or error, for users. At most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// A summary of the boot before the latest.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PreviousBoot {
    /// Public ID of the boot, as in `status.boot.id`.
    pub id: BootId,
    /// Time of the first packet of the boot.
    pub start_time: MicroTime,
    /// Furthest stage that the boot reached.
    ///
    /// - `Discover`: the first DHCP packet arrived.
    /// - `Offered`: pxed offered an address.
    /// - `Acknowledged`: pxed acknowledged the address.
    /// - `Loader`: the machine fetched its loader.
    /// - `Script`: the loader fetched its script.
    /// - `Kernel`: the loader fetched the kernel.
    /// - `Initrd`: the loader fetched the initrd.
    /// - `RootFS`: the root file system was fetched.
    /// - `Userspace`: systemd runs, and the agent has started.
    /// - `Enrolled`: the host has its certificate.
    pub stage: Stage,
    /// Time at which the boot reached `stage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_time: Option<MicroTime>,
    /// Stage where the boot stalled, and the event that ended it, for users. At most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}
