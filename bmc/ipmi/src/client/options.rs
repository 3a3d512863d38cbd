//! Options of a session, and the errors of a session and its requests.

use std::{io, net::SocketAddr, time::Duration};

use secrecy::SecretString;

use crate::{
    command::ReadAnswerError,
    crypto::{CheckPasswordError, Suite, UserNameTooLong},
    session::{Privilege, RequestError, Retry, SessionError},
    wire::completion::Completion,
};

/// Options of a session.
#[derive(Debug, Clone)]
pub struct Options {
    /// The suite; no other is tried.
    pub suite: Suite,
    /// The privilege asked for.
    pub privilege: Privilege,
    /// The BMC's own key (Kg), where one is set.
    pub key: Option<SecretString>,
    /// Retransmission intervals.
    pub retry: Retry,
    /// After how much silence the session is kept alive.
    pub keep_alive: Option<Duration>,
    /// For connecting, at most.
    pub connect: Duration,
    /// For a request with its wait in the queue, and for closing, at most.
    pub request: Duration,
}

impl Default for Options {
    /// Suite 17 as operator, which suffices for all that is here; 20 seconds for each act.
    fn default() -> Self {
        Self {
            suite: Suite::Sha256,
            privilege: Privilege::Operator,
            key: None,
            retry: Retry::default(),
            keep_alive: Some(Duration::from_secs(30)),
            connect: Duration::from_secs(20),
            request: Duration::from_secs(20),
        }
    }
}

/// Reason why there is no session, or no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The password is none for IPMI.
    #[error("the password cannot be used with IPMI")]
    Password(#[source] CheckPasswordError),
    /// The user's name is none for IPMI.
    #[error("the user name cannot be used with IPMI")]
    User(#[source] UserNameTooLong),
    /// No socket toward this address.
    #[error("failed to open a UDP socket to {address}")]
    Socket {
        /// The BMC.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The session could not be opened, or has ended.
    #[error("no session with the BMC")]
    Session(#[source] SessionError),
    /// The request has no answer.
    #[error("no answer from the BMC")]
    Request(#[source] RequestError),
    /// The caller's timeout passed. The BMC may have carried out the request.
    #[error("no answer from the BMC within {0:?}")]
    TimedOut(Duration),
    /// The BMC refused, or its answer is invalid.
    #[error("the command failed")]
    Command(#[source] ReadAnswerError),
}

impl ClientError {
    /// The completion code by which the BMC refused a command.
    #[must_use]
    pub fn completion(&self) -> Option<Completion> {
        match self {
            Self::Command(ReadAnswerError::Refused(completion)) => Some(*completion),
            _ => None,
        }
    }
}
