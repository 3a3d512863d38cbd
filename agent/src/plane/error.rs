//! Errors of requests to the API server.
//!
//! Called by all modules of `plane` that send requests.

use std::error::Error;
use std::time::Duration;

use kube::runtime::watcher;
use thiserror::Error;

use crate::fault::explained;

/// Timeout of one request, including its connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The most that is kept of a refusal's text, in characters.
const MAX_TEXT: usize = 500;

/// Reason for which the API server was not asked, or its refusal.
#[derive(Debug, Error)]
pub enum AskServerError {
    /// The connection failed or broke, or the peer has another authority.
    #[error("cannot ask for {what}")]
    Transport {
        /// Object of the request.
        what: String,
        /// Cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The answer timed out.
    #[error("no answer about {what} within {} s", REQUEST_TIMEOUT.as_secs())]
    Late {
        /// Object of the request.
        what: String,
    },
    /// The API server refused the request.
    #[error("{what} was refused with status {status}: {message} ({reason})")]
    Refused {
        /// Object of the request.
        what: String,
        /// HTTP status.
        status: u16,
        /// Name of the refusal, such as `Forbidden`.
        reason: String,
        /// Human-readable message.
        message: String,
    },
    /// The answer is not what was asked for.
    #[error("the answer about {what} cannot be understood: {problem}")]
    Answer {
        /// Object of the request.
        what: String,
        /// Problem of the answer.
        problem: String,
    },
    /// This host belongs to no cluster.
    #[error("claims need a cluster")]
    NoClaims,
    /// The Machine was not read yet, so a write would revert fields of an earlier agent.
    #[error("the Machine of this host was not read yet{why}")]
    NothingSeen {
        /// Cause, after a colon; may be empty.
        why: String,
    },
}

impl AskServerError {
    /// Converts kube's error. Its own texts repeat their sources.
    pub(super) fn of(what: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused {
                what,
                status: status.code,
                reason: status.reason.clone(),
                message: status.message.chars().take(MAX_TEXT).collect(),
            },
            kube::Error::Service(source) => Self::Transport { what, source },
            kube::Error::HyperError(source) => Self::Transport { what, source: Box::new(source) },
            kube::Error::ReadEvents(source) => Self::Transport { what, source: Box::new(source) },
            other => Self::Answer { what, problem: other.to_string() },
        }
    }

    /// HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Transport { .. }
            | Self::Late { .. }
            | Self::Answer { .. }
            | Self::NoClaims
            | Self::NothingSeen { .. } => None,
        }
    }
}

/// Returns the cause of a failed watch as human-readable text.
pub(super) fn why(error: watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error) => {
            explained(&AskServerError::of("the list".to_owned(), error))
        }
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            explained(&AskServerError::of("the watch".to_owned(), error))
        }
        watcher::Error::WatchError(status) => {
            format!("the watch ended with status {}: {}", status.code, status.message)
        }
        watcher::Error::NoResourceVersion => "the list has no resourceVersion".to_owned(),
    }
}

/// Waits for an answer, not for ever.
pub(super) async fn within<T>(
    answer: impl Future<Output = T>,
) -> Result<T, impl FnOnce(String) -> AskServerError> {
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, answer).await;
    answer.map_err(|_| |what| AskServerError::Late { what })
}
