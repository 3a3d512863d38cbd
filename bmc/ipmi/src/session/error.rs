//! Pure: why a session or a request failed, for people and for the caller to tell apart. Never with a secret.

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
            Self::Capabilities => "the question for its capabilities",
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
    /// Nothing ever came back.
    #[error("no answer to {attempts} packets")]
    Unreachable {
        /// Packets sent.
        attempts: u32,
    },
    /// It answered, and then no more, before the session stood.
    #[error("no answer any more to {step}")]
    Silent {
        /// Step without an answer.
        step: Step,
    },
    /// It does not speak IPMI 2.0 over this channel.
    #[error("the BMC speaks IPMI 1.5 only, or has RMCP+ switched off")]
    NotSupported,
    /// It does not take the cipher suite; no other is tried.
    #[error("the BMC does not take cipher suite {}: {status}", suite.number())]
    SuiteRefused {
        /// Requested suite.
        suite: Suite,
        /// Status of the BMC.
        status: Status,
    },
    /// It chose other algorithms than the one suite proposed.
    #[error("the BMC chose other algorithms than those of cipher suite {}", suite.number())]
    SuiteChanged {
        /// Requested suite.
        suite: Suite,
    },
    /// It has no such user, or the user may not come over LAN.
    #[error("the BMC refuses the user: {status}")]
    UserRefused {
        /// Status of the BMC.
        status: Status,
    },
    /// The BMC's proof does not fit the password given.
    #[error("the password is wrong, or who answers is not the BMC")]
    WrongPassword,
    /// The BMC proved that it knows the password, and refused our proof of it each time: packets between us are repeated or mixed up, or it
    /// reckons otherwise than the specification says.
    #[error("the BMC has the same password, and yet refuses the proof of it (status 0x0f)")]
    ProofRefused,
    /// The keys differ although the password is right.
    #[error("the session's keys differ: the BMC has a key of its own (Kg) that is not the one given")]
    WrongKey,
    /// The user may not have this privilege.
    #[error("the BMC refuses the privilege: {status}")]
    RoleRefused {
        /// Status of the BMC.
        status: Status,
    },
    /// Set Session Privilege Level was refused.
    #[error("the BMC refuses the privilege: {completion}")]
    PrivilegeRefused {
        /// Completion code of the BMC.
        completion: Completion,
    },
    /// All its sessions are in use.
    #[error("all sessions of the BMC are in use")]
    NoResources,
    /// It refused a step for another reason.
    #[error("the BMC refused {step}: {status}")]
    Refused {
        /// Refused step.
        step: Step,
        /// Status of the BMC.
        status: Status,
    },
    /// The session stood, and is answered no more: the BMC restarted, dropped it or is out of reach. A new one may be opened.
    #[error("the session is lost: the BMC does not answer in it any more")]
    Lost,
}

/// Reason why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It was sent and not answered, or only refused as a duplicate of itself (0xCF): it may have been carried out. Look at the state before asking again.
    #[error("no answer: it may have been carried out")]
    Unanswered,
    /// It was never sent.
    #[error("it was not sent: the session ended before")]
    NotSent,
    /// Too many wait already; it was not sent.
    #[error("too many requests wait for this BMC")]
    TooMany,
    /// Its data does not fit a packet; it was not sent.
    #[error("its data is too long")]
    TooLong,
}
