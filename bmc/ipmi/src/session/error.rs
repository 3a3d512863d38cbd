//! Pure: reasons why a session or a request failed. No reason contains a secret.

use crate::{
    crypto::Suite,
    wire::{completion::Completion, rakp::Status},
};

/// A step on the way to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Get Channel Authentication Capabilities.
    Capabilities,
    /// Open Session Request.
    Open,
    /// RAKP message 1.
    Name,
    /// RAKP message 3.
    Proof,
    /// Set Session Privilege Level.
    Privilege,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Capabilities => "Get Channel Authentication Capabilities",
            Self::Open => "Open Session",
            Self::Name => "RAKP message 1",
            Self::Proof => "RAKP message 3",
            Self::Privilege => "Set Session Privilege Level",
        })
    }
}

/// Reason why a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The BMC never answered.
    #[error("no answer to {attempts} packets")]
    Unreachable {
        /// Packets sent.
        attempts: u32,
    },
    /// The BMC stopped answering before the session was open.
    #[error("the BMC stopped answering at {step}")]
    Silent {
        /// Step without an answer.
        step: Step,
    },
    /// The BMC does not support IPMI 2.0 over this channel.
    #[error("the BMC supports IPMI 1.5 only, or RMCP+ is disabled")]
    NotSupported,
    /// The BMC rejected the cipher suite. No other suite is tried.
    #[error("the BMC rejected cipher suite {}: {status}", suite.number())]
    SuiteRefused {
        /// Requested suite.
        suite: Suite,
        /// Status of the BMC.
        status: Status,
    },
    /// The BMC selected algorithms that are not those of the requested suite.
    #[error("the BMC selected algorithms that are not those of cipher suite {}", suite.number())]
    SuiteChanged {
        /// Requested suite.
        suite: Suite,
    },
    /// The user does not exist, or has no access over LAN.
    #[error("the BMC rejected the user: {status}")]
    UserRefused {
        /// Status of the BMC.
        status: Status,
    },
    /// The BMC's proof does not fit the password given.
    #[error("the password is wrong, or another device answers at this address")]
    WrongPassword,
    /// The BMC proved that it knows the password, and refused our proof of it each time: packets between us are repeated or mixed up, or it
    /// reckons otherwise than the specification says.
    #[error("the BMC has the same password, but rejects its proof (status 0x0f)")]
    ProofRefused,
    /// The keys differ although the password is right.
    #[error("the session keys differ: the BMC uses its own key (Kg)")]
    WrongKey,
    /// The user may not have this privilege.
    #[error("the BMC rejected the privilege: {status}")]
    RoleRefused {
        /// Status of the BMC.
        status: Status,
    },
    /// Set Session Privilege Level was refused.
    #[error("the BMC rejected the privilege: {completion}")]
    PrivilegeRefused {
        /// Completion code of the BMC.
        completion: Completion,
    },
    /// All its sessions are in use.
    #[error("all sessions of the BMC are in use")]
    NoResources,
    /// The BMC rejected a step for another reason.
    #[error("the BMC rejected {step}: {status}")]
    Refused {
        /// Refused step.
        step: Step,
        /// Status of the BMC.
        status: Status,
    },
    /// The session stood, and is answered no more: the BMC restarted, dropped it or is out of reach. A new one may be opened.
    #[error("the session is lost: the BMC stopped answering")]
    Lost,
}

/// Reason why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request was sent and not answered, or only rejected as a duplicate of itself (0xCF). The BMC may have carried it out: read the state before the next request.
    #[error("no answer; the BMC may have carried out the request")]
    Unanswered,
    /// The request was not sent.
    #[error("the request was not sent: the session ended")]
    NotSent,
    /// Too many wait already; it was not sent.
    #[error("too many requests are waiting for this BMC")]
    TooMany,
    /// The data of the request does not fit a packet. It was not sent.
    #[error("the data of the request is too long")]
    TooLong,
}
