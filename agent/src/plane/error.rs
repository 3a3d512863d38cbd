//! What the API server answered when it did not do as asked.
//!
//! Called by everything of `cluster` that asks.

use std::error::Error;
use std::time::Duration;

use kube::runtime::watcher;
use thiserror::Error;

use crate::fault::explained;

/// How long one request may take, its connection included.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most that is kept of a refusal's text, in characters.
const MAX_TEXT: usize = 500;

/// Why the API server was not asked, or what it refused.
#[derive(Debug, Error)]
pub enum AskServerError {
    /// No connection, a connection that broke, or a peer of another authority.
    #[error("cannot ask for {what}")]
    Transport {
        /// What was asked for.
        what: String,
        /// Why not.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It did not answer in time.
    #[error("no answer about {what} within {} s", PATIENCE.as_secs())]
    Late {
        /// What was asked for.
        what: String,
    },
    /// It refused.
    #[error("{what} was refused with status {status}: {message} ({reason})")]
    Refused {
        /// What was asked for.
        what: String,
        /// HTTP status.
        status: u16,
        /// Name of the refusal, such as `Forbidden`.
        reason: String,
        /// Text for a person.
        message: String,
    },
    /// The answer is not what was asked for.
    #[error("the answer about {what} cannot be understood: {problem}")]
    Answer {
        /// What was asked for.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// This host belongs to no cluster.
    #[error("claims need a cluster")]
    NoClaims,
    /// The Machine has not been read yet, so that what an agent before this one wrote would be taken back.
    #[error("the own Machine was not read yet{why}")]
    NothingSeen {
        /// Why not, after a colon; may be empty.
        why: String,
    },
}

impl AskServerError {
    /// What kube's error says: its own texts repeat their sources.
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

/// Why a watch failed, for a person.
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
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    answer.map_err(|_| |what| AskServerError::Late { what })
}
