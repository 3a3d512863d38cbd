//! Reasons for refusing agents, and counters of agents.

use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_process::counter::{By, labels};

use crate::reason_label::ReasonLabel;

labels! {
    /// Result of an enrollment.
    pub enum Enrollment {
        /// The host has a certificate.
        Enrolled => "enrolled",
        /// The answer was lost, and is given again.
        Repeated => "repeated",
        /// The signer has not signed yet.
        Pending => "pending",
        /// A new key waits, because the key in force is still heard.
        HeardElsewhere => "current_key_in_use",
        /// Refused: see the reasons.
        Refused => "refused",
    }
}

labels! {
    /// Result of a renewal.
    pub enum Renewal {
        /// A new certificate went out.
        Renewed => "renewed",
        /// The signer has not signed yet.
        Pending => "pending",
        /// Refused: see the reasons.
        Refused => "refused",
    }
}

labels! {
    /// Result of a report.
    pub enum Reported {
        /// It was taken.
        Taken => "accepted",
        /// Refused: see the reasons.
        Refused => "refused",
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests for a first certificate.
    pub enrollments: By<Enrollment>,
    /// Requests for a further one.
    pub renewals: By<Renewal>,
    /// Reports.
    pub reports: By<Reported>,
    /// Reasons of refused requests, of these kinds and others.
    pub refusals: By<ReasonLabel<AgentRefusal>>,
}
