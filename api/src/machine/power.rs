//! `Machine.status.power`: the power state that pxed observed, and its last change (docs/guides/bmc.md).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A machine's power.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PowerStatus {
    /// Power state that was observed last.
    ///
    /// - `On`: the machine is on.
    /// - `Off`: the machine is off.
    /// - `PoweringOn`: the machine is turning on.
    /// - `PoweringOff`: the machine is turning off.
    /// - `Unknown`: the BMC does not report the state.
    pub state: PowerState,
    /// Time of the observation of `status.power.state`. An unchanged state is written every five minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_time: Option<Time>,
    /// Last change of the power, by pxed or by a shutdown of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_action: Option<PowerAction>,
    /// Time of pxed's last request to the BMC that changes the power. An action that changes nothing sends no request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_switch_time: Option<Time>,
    /// Number of automatic power-on attempts since the machine last booted and stayed on for ten minutes. pxed stops after 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,
    /// Earliest time of pxed's next automatic power-on attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// Token of `spec.pxe.takeover` that was used last. At most 63 characters.
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
    ///
    /// - `PowerOn`: power on, by pxed, by an operation or by a user.
    /// - `PowerOff`: power off without a shutdown, by an operation or because the Machine is deleted.
    /// - `PowerCycle`: off and on again, by an operation.
    /// - `Reset`: reset, by an operation.
    /// - `GracefulPowerOff`: request for a shutdown, because the Machine is deleted. 120 seconds later pxed forces the machine off.
    /// - `Takeover`: power cycle that `spec.pxe.takeover` allowed.
    /// - `Shutdown`: shutdown by the agent.
    /// - `IdlePowerOff`: power off, because no claim holds the host (`spec.powerPolicy: OnClaim`).
    pub action: PowerActionKind,
    /// Time of the change.
    pub time: Time,
    /// Cause and result of the change, for users. At most 1024 characters.
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
