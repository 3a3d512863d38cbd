//! Faults of a simulated BMC, and its counters. Plain data; `service` heeds it.

use serde::{Deserialize, Serialize};

/// Faults of a BMC. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Faults {
    /// Milliseconds before every answer. The request is carried out immediately.
    pub slow_ms: u64,
    /// Requests are taken and neither carried out nor answered.
    pub hung: bool,
    /// TCP connections are accepted, then nothing comes, no FIN either. UDP: no answer.
    pub half_open: bool,
    /// Every request gets this HTTP status; IPMI commands get "busy".
    pub status: Option<u16>,
    /// Answers with a body end in the middle; those of IPMI have no data.
    pub wrong_json: bool,
    /// UDP: percentage of packets that are lost, each way.
    pub loss_percent: u8,
    /// There is no room for another session.
    pub sessions_full: bool,
    /// Milliseconds after a change of power for which the former power is reported.
    pub lie_ms: u64,
    /// Number of wrong passwords in a row after which every login is refused, until [`Faults`] are set again.
    pub lock_after: Option<u32>,
    /// Power requests are carried out; their answers are lost.
    pub answers_lost: bool,
    /// Power requests are accepted and not carried out.
    pub power_ignored: bool,
    /// It is not there.
    pub dead: Option<Dead>,
}

/// Form of a dead BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dead {
    /// Nothing listens: TCP connections are refused. UDP: no answer.
    Refused,
    /// Every packet is dropped: connecting runs into its deadline.
    Dropped,
}

impl Faults {
    /// Returns true if nothing is ever answered.
    pub(crate) fn is_silent(&self) -> bool {
        self.hung || self.half_open || self.dead.is_some()
    }
}

/// Counters of a BMC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counters {
    /// Logins with the right password: sessions, and requests with basic authentication.
    pub logins: u32,
    /// With a wrong user or password. IPMI: only what the BMC gets to see, since a client notices first.
    pub wrong_logins: u32,
    /// Logins that were refused without a check, because too many before were wrong.
    pub locked_out: u32,
    /// IPMI logins that were started (RAKP 1), each packet counted.
    pub ipmi_attempts: u32,
    /// HTTP requests and IPMI commands.
    pub requests: u32,
    /// TCP connections.
    pub connections: u32,
    /// Sessions that stand now, Redfish's and IPMI's.
    pub open_sessions: usize,
    /// The most Redfish sessions that stood at one time.
    pub most_sessions: usize,
    /// Number of Redfish requests that currently wait for their answer.
    pub pending: usize,
    /// Maximum number of Redfish requests that waited for their answer concurrently.
    pub max_pending: usize,
}
