//! Outcomes of the agent's acts, and their errors.
//!
//! Called by `run`.

use std::time::Duration;

use bedplate_api::wire::EnrollResponse;
use bedplate_process::file::FileError;

use super::identity::IdentityError;
use crate::https::request::AskError;
use crate::plane::{AskServerError, PrepareClientError};

/// Error of an act. No error ends the agent.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActError {
    #[error("failed to store the agent's state")]
    State(#[from] FileError),
    #[error("the host's identity is not usable")]
    Identity(#[from] IdentityError),
    #[error("pxed did not answer or refused")]
    Pxed(#[from] AskError),
    #[error("the cluster's API server did not answer or refused")]
    Cluster(#[from] AskServerError),
    #[error("failed to prepare the connection to the cluster's API server")]
    Prepare(#[from] PrepareClientError),
    #[error("pxed sent a challenge that this release does not support: {0}")]
    Challenge(String),
}

/// Outcome of an act.
pub(super) enum Outcome {
    /// It is done.
    Done,
    /// pxed asks for patience.
    Pending {
        /// Cause of the wait, in pxed's words.
        message: String,
        /// Delay before the retry.
        wait: Duration,
    },
}

/// Converts an answer without a certificate.
pub(super) fn pending(response: EnrollResponse) -> Result<Outcome, ActError> {
    match response {
        EnrollResponse::Pending { message, retry_seconds } => {
            let wait = Duration::from_secs(u64::from(retry_seconds.clamp(1, 300)));
            Ok(Outcome::Pending { message: message.chars().take(500).collect(), wait })
        }
        EnrollResponse::Challenge { challenge } => {
            Err(ActError::Challenge(challenge.chars().take(200).collect()))
        }
        EnrollResponse::Enrolled { .. } => Ok(Outcome::Done),
    }
}
