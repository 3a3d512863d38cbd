//! Requests to one workload cluster: each has a time limit, and few run concurrently, so a cluster that hangs holds few places, and those for seconds.
//!
//! ```text
//! open: requests --timeout, unreachable--> broken: requests fail immediately, until the pause has passed --> one request tries
//!   ^                                                                                                          |
//!   +------------------------------------- any answer of the server ------------------------------------------+
//! ```
//! An error has a fixed text or a status code. The server could repeat a secret of the request in its own text.

use std::sync::Arc;
use std::time::Duration;

use bedplate_process::lock::Lock;
use kube::Client;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Time limit of a request, with the wait for its turn.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent requests to a cluster.
const CONCURRENT_REQUESTS: usize = 4;

/// Pause after a failed connection, in which no request is sent. A caller that waits for a request holds the place of another cluster.
const RETRY_PAUSE: Duration = Duration::from_secs(20);

/// The API of a workload cluster. Clones share the limits.
#[derive(Clone)]
pub struct Workload {
    client: Client,
    turns: Arc<Semaphore>,
    broken: Arc<Lock<Option<Broken>>>,
}

/// A connection that has failed.
#[derive(Debug, Clone)]
struct Broken {
    /// Time of the next try.
    until: Instant,
    failure: RequestError,
}

/// Failure of a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// There was no answer in time.
    #[error("API server of the workload cluster did not answer within 10 s")]
    Timeout,
    /// The server cannot be reached, or it is not the one of the kubeconfig.
    #[error(
        "API server of the workload cluster cannot be reached; check server, certificates and --workload-networks"
    )]
    Unreachable,
    /// The credential of the kubeconfig is not accepted, or it lacks a right.
    #[error("API server of the workload cluster refused the credential of the kubeconfig (HTTP status {0})")]
    Refused(u16),
    /// The object has changed since it was read, or it exists already.
    #[error("object of the workload cluster was changed by another writer")]
    Conflict,
    /// The server has failed.
    #[error("API server of the workload cluster failed (HTTP status {0})")]
    Failed(u16),
    /// The answer is not one of an API server, or it is too large.
    #[error("answer of the workload cluster cannot be read")]
    Answer,
}

impl Workload {
    /// Makes the API of a cluster that the client reaches. Programs connect by [`Connections`](crate::Connections), which bounds the client.
    pub fn new(client: Client) -> Self {
        Self { client, turns: Arc::new(Semaphore::new(CONCURRENT_REQUESTS)), broken: Arc::default() }
    }

    /// Returns the failure of a connection whose pause has not passed. Afterwards one caller tries, and the others fail until its end.
    fn pause(&self) -> Result<(), RequestError> {
        let (mut broken, now) = (self.broken.lock(), Instant::now());
        match &mut *broken {
            Some(broken) if now < broken.until => Err(broken.failure.clone()),
            Some(broken) => {
                broken.until = now + REQUEST_TIMEOUT + RETRY_PAUSE;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Carries out a request. None: the object does not exist.
    ///
    /// # Errors
    /// [`RequestError`]
    pub async fn ask<T, F>(&self, request: impl FnOnce(Client) -> F) -> Result<Option<T>, RequestError>
    where
        F: Future<Output = kube::Result<T>>,
    {
        self.pause()?;
        let asked = async {
            // The semaphore is never closed.
            let _turn = self.turns.acquire().await.ok();
            request(self.client.clone()).await
        };
        let result = match tokio::time::timeout(REQUEST_TIMEOUT, asked).await {
            Err(_) => Err(RequestError::Timeout),
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(error)) => failure(&error).map_or(Ok(None), Err),
        };
        *self.broken.lock() = match &result {
            Err(failure @ (RequestError::Timeout | RequestError::Unreachable)) => {
                Some(Broken { until: Instant::now() + RETRY_PAUSE, failure: failure.clone() })
            }
            Ok(_) | Err(_) => None,
        };
        result
    }
}

/// Returns the failure of a request. None: the object does not exist.
fn failure(error: &kube::Error) -> Option<RequestError> {
    Some(match error {
        kube::Error::Api(status) => match status.code {
            404 => return None,
            code @ (401 | 403) => RequestError::Refused(code),
            409 => RequestError::Conflict,
            code => RequestError::Failed(code),
        },
        kube::Error::SerdeError(_)
        | kube::Error::FromUtf8(_)
        | kube::Error::LinesCodecMaxLineLengthExceeded => RequestError::Answer,
        kube::Error::Service(source) if is_limit(source.as_ref()) => RequestError::Answer,
        _ => RequestError::Unreachable,
    })
}

/// Returns true if an answer was larger than its limit.
fn is_limit(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut source = Some(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
