//! The trait and its types, the same for every protocol.
//!
//! Callers: pxed; implemented by `redfish` and `lanplus`.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
pub use bedplate_api::machine::{BootSource, PowerState};
use jiff::Timestamp;
use secrecy::SecretString;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::BmcError;

/// Power requests to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PowerRequest {
    /// Power on.
    On,
    /// Ask the operating system to shut down (ACPI power button). It may take minutes, or never happen.
    GracefulOff,
    /// Immediate power-off.
    ForceOff,
    /// Off and on again by the BMC; a hard reset if it cannot do that. `Performed` names the action.
    Cycle,
    /// A hard reset without a loss of power.
    Reset,
}

impl PowerRequest {
    /// Every request.
    pub const ALL: [Self; 5] = [Self::On, Self::GracefulOff, Self::ForceOff, Self::Cycle, Self::Reset];
}

impl fmt::Display for PowerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "power on",
            Self::GracefulOff => "graceful power off",
            Self::ForceOff => "forced power off",
            Self::Cycle => "power cycle",
            Self::Reset => "reset",
        })
    }
}

/// Boot mode of the firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootMode {
    /// As BIOS.
    Legacy,
    /// As UEFI.
    Uefi,
}

/// Request that a BMC accepted, in its protocol's term (`ForceRestart`). It may not be done yet: read the power
/// state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Performed(pub &'static str);

/// Identity of a BMC and its machine as the BMC reports it. `None`: not reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Manufacturer of the machine.
    pub vendor: Option<String>,
    /// The model.
    pub product: Option<String>,
    /// The serial number.
    pub serial: Option<String>,
    /// The firmware version of the BMC.
    pub firmware: Option<String>,
    /// The model of the BMC.
    pub controller: Option<String>,
    /// SMBIOS UUID of the machine.
    pub host_uuid: Option<String>,
    /// Protocol and version: `Redfish 1.15.0`.
    pub protocol: Option<String>,
}

/// A machine's health in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HealthState {
    /// The BMC does not report the health.
    Unknown,
    /// No problem.
    Ok,
    /// Warning.
    Warning,
    /// Something has failed.
    Critical,
}

/// Summary of the BMC's sensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// The worst of all.
    pub overall: HealthState,
    /// Problems, at most 16, for users.
    pub concerns: Vec<String>,
}

/// An entry of the BMC's event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogEntry {
    /// Time by the BMC's clock.
    pub time: Option<Timestamp>,
    /// Severity of the entry.
    pub severity: HealthState,
    /// Text, at most 300 characters.
    pub message: String,
}

/// A serial console: bytes of the machine, and to it.
pub trait Console: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Console for T {}

/// User name and password, which is zeroized when dropped; never in `Debug`.
#[derive(Clone)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// The password.
    pub password: SecretString,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

/// Timeouts of BMC requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For a connection.
    pub connect: Duration,
    /// For one request and its whole answer.
    pub request: Duration,
    /// For one call of [`Bmc`], which may be several requests, retries and a task.
    pub call: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(20),
            call: Duration::from_secs(60),
        }
    }
}

/// A management controller of one machine.
///
/// What a BMC cannot do is [`BmcError::NotSupported`]. A failed call that changes something may have happened all the
/// same ([`BmcError::may_have_happened`]): nothing that changes is sent twice, the caller reads the state first.
#[async_trait]
pub trait Bmc: Send {
    /// Returns the identity of the BMC and its machine.
    async fn identity(&mut self) -> Result<Identity, BmcError>;
    /// Returns the power state that the BMC reports now; `Unknown` if it does not report one.
    async fn power_state(&mut self) -> Result<PowerState, BmcError>;
    /// Changes the power; back as soon as the BMC has accepted it, or finished its task.
    async fn power(&mut self, request: PowerRequest) -> Result<Performed, BmcError>;
    /// Returns the override of the next boot; `None`: no override, or one of an unknown source.
    async fn next_boot(&mut self) -> Result<Option<BootSource>, BmcError>;
    /// Overrides the source of the next boot, once. `mode` is asked for only where the protocol cannot leave it open; `None`: it is not
    /// known.
    async fn set_next_boot(&mut self, source: BootSource, mode: Option<BootMode>) -> Result<(), BmcError>;
    /// Returns the summary of the sensors.
    async fn health(&mut self) -> Result<Health, BmcError>;
    /// The newest entries of the event log, newest first, at most `newest` and never more than 256.
    async fn log_tail(&mut self, newest: usize) -> Result<Vec<LogEntry>, BmcError>;
    /// The machine's serial console.
    async fn console(&mut self) -> Result<Box<dyn Console>, BmcError>;
    /// Ends the session at the BMC, whose table of sessions is small. The next call would open one again.
    async fn close(&mut self);
    /// Frees memory before a pause between requests, of objects that are cheap to re-create. The session stays.
    fn rest(&mut self) {}
    /// Returns true if the BMC's identity is not verified, because `bmc.redfish.tls.mode` is `Insecure`. Always false
    /// for IPMI, where both sides prove that they know the password.
    fn insecure(&self) -> bool {
        false
    }
    /// Returns the known deviations of the BMC from the standard, seen so far: short texts for users.
    fn quirks(&self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_do_not_show_in_debug() {
        let credentials = Credentials { username: "s3cret".to_owned(), password: "s3cret".into() };
        assert!(!format!("{credentials:?}").contains("s3cret"));
    }
}
