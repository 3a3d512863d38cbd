//! Errors of requests to the API server.
//!
//! Called by all modules of `plane` that send requests.

use std::error::Error;
use std::time::Duration;

use kube::core::Status;
use kube::core::response::StatusSummary;
use kube::runtime::watcher;
use thiserror::Error;

use crate::fault::explained;

/// Timeout of one request, including its connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of a refusal's text, in characters.
const MAX_TEXT: usize = 500;

/// Reason for which the API server was not asked, or its refusal.
#[derive(Debug, Error)]
pub enum AskServerError {
    /// The connection failed or broke, or the peer has another authority.
    #[error("request for {what} failed")]
    Transport {
        /// Object of the request.
        what: String,
        /// Cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The answer timed out.
    #[error("no answer for {what} within {} s", REQUEST_TIMEOUT.as_secs())]
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
    /// The answer is unexpected.
    #[error("unexpected answer for {what}: {problem}")]
    Answer {
        /// Object of the request.
        what: String,
        /// Problem of the answer.
        problem: String,
    },
    /// This host does not belong to a cluster.
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

/// Waits for an answer about `what`, with a timeout.
pub(super) async fn ask<T>(
    what: String,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, AskServerError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| AskServerError::of(what, error)),
        Err(_) => Err(AskServerError::Late { what }),
    }
}

/// Asks about the object `name` of a group and resource. None: the API server itself reports that it has no such object.
pub(super) async fn find<T>(
    what: String,
    resource: (&str, &str),
    name: &str,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, AskServerError> {
    let found = async {
        match answer.await {
            Err(kube::Error::Api(status)) if is_not_found(&status, resource, name) => Ok(None),
            answer => answer.map(Some),
        }
    };
    ask(what, found).await
}

/// Returns true if the API server itself reports that it has no such object of this group and resource. Its
/// answer names both. An answer without them is about something else: an unserved path, or a proxy.
fn is_not_found(status: &Status, resource: (&str, &str), name: &str) -> bool {
    let details = status.details.as_ref();
    status.code == 404
        && status.status == Some(StatusSummary::Failure)
        && status.reason == "NotFound"
        && details
            .is_some_and(|said| (said.group.as_str(), said.kind.as_str()) == resource && said.name == name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn not_found(changes: &Value) -> bool {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "nodes \"node-1\" not found", "details": { "name": "node-1", "kind": "nodes" }
        });
        for (key, value) in changes.as_object().unwrap() {
            status[key] = value.clone();
        }
        is_not_found(&serde_json::from_value(status).unwrap(), ("", "nodes"), "node-1")
    }

    #[test]
    fn only_the_api_servers_own_word_about_this_object_counts() {
        assert!(not_found(&json!({})));
        for other in [
            json!({ "code": 403 }),
            json!({ "status": "Success" }),
            json!({ "reason": "Forbidden" }),
            // kube's result for a page that is not a Status, for example of a proxy.
            json!({ "reason": "Failed to parse error data", "details": null }),
            // "the server could not find the requested resource": the path, not the object.
            json!({ "details": {} }),
            json!({ "details": { "name": "node-1", "kind": "nodes", "group": "metrics.k8s.io" } }),
            json!({ "details": { "name": "node-2", "kind": "nodes" } }),
            json!({ "details": { "name": "node-1", "kind": "namespaces" } }),
        ] {
            assert!(!not_found(&other), "{other}");
        }
    }
}
