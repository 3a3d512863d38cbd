//! Requests to one workload cluster: each has a time limit, and few run concurrently, so a cluster that hangs holds few places, and those for seconds.
//!
//! ```text
//! open: requests --timeout, unreachable--> broken: requests fail immediately, until the pause has passed --> one request tries
//!   ^                                                                                                          |
//!   +------------------------------------- any answer of the server ------------------------------------------+
//! ```
//! A server that asks for a pause by the header Retry-After gets no request until then, at most for 5 minutes.
//!
//! An error has a fixed text or a status code. The server could repeat a secret of the request in its own text.

use std::sync::Arc;
use std::time::Duration;

use bedplate_process::lock::Lock;
use http::{StatusCode, header};
use kube::Client;
use kube::client::Body;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Time limit of a request, with the wait for its turn.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent requests to a cluster.
const CONCURRENT_REQUESTS: usize = 4;

/// Pause after a failed connection, in which no request is sent. A caller that waits for a request holds the place of another cluster.
const RETRY_PAUSE: Duration = Duration::from_secs(20);
/// Maximum pause that a server can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// The API of a workload cluster. Clones share the limits.
#[derive(Clone)]
pub struct Workload {
    client: Client,
    turns: Arc<Semaphore>,
    broken: Arc<Lock<Option<Broken>>>,
    busy: Arc<Lock<Option<Broken>>>,
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
    /// The turn that sends the request has taken too long.
    #[error("requests to the workload cluster have taken too long; they continue in the next turn")]
    Late,
}

impl Workload {
    /// Makes the API of a cluster that the client reaches. Programs connect by [`Connections`](crate::Connections), which bounds the client.
    pub fn new(client: Client) -> Self {
        let busy = Arc::default();
        let client = heeding(client, Arc::clone(&busy));
        Self { client, turns: Arc::new(Semaphore::new(CONCURRENT_REQUESTS)), broken: Arc::default(), busy }
    }

    /// Returns true if both are clones of one API, so they have one kubeconfig.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.turns, &other.turns)
    }

    /// Returns the rest of the pause that the server asks for. None: requests are sent.
    #[cfg(test)]
    pub(crate) fn paused(&self) -> Option<Duration> {
        let until = self.busy.lock().as_ref().map(|busy| busy.until)?;
        until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
    }

    /// Returns the failure of a connection whose pause has not passed. Afterwards one caller tries, and the others fail until its end.
    fn pause(&self) -> Result<(), RequestError> {
        if let Some(busy) = self.busy.lock().as_ref().filter(|busy| Instant::now() < busy.until) {
            return Err(busy.failure.clone());
        }
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

/// Returns a client that records the pause that a busy server asks for.
fn heeding(client: Client, busy: Arc<Lock<Option<Broken>>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, busy) = (client.clone(), Arc::clone(&busy));
        async move {
            // A budget holds one Pod. The server is not busy.
            let is_eviction = request.uri().path().ends_with("/eviction");
            let answer = client.send(request).await?;
            if !is_eviction && let Some(pause) = retry_after(&answer) {
                let failure = RequestError::Failed(answer.status().as_u16());
                *busy.lock() = Some(Broken { until: Instant::now() + pause, failure });
            }
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, "default")
}

/// Returns the pause in the header of an answer. API servers never send a date.
fn retry_after(answer: &http::Response<Body>) -> Option<Duration> {
    let is_busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status());
    let text = answer.headers().get(header::RETRY_AFTER).filter(|_| is_busy)?.to_str().ok()?;
    text.trim().parse().ok().map(|seconds| Duration::from_secs(seconds).min(MAX_PAUSE))
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
