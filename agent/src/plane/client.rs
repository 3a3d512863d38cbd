//! The connection to the API server: kube's client over the agent's own HTTPS.
//!
//! One TLS client and resolver serves pxed and the API server: kube's own needs a resolver that a static
//! binary does not have. TCP keepalive detects a vanished peer, so no request is needed for that. Called by
//! `plane`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::{Digest, MachineName};
use bedplate_api::wire::KubernetesEndpoint;
use kube::Client;
use kube::client::Body;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tower::BoxError;
use zeroize::Zeroizing;

use crate::https::request::{AskError, builder};

/// Idle time before the first TCP keepalive probe. A peer that does not answer
/// is dropped within [`ANSWER_TIMEOUT`] after that.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 3;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Error of creating the client.
#[derive(Debug, Error)]
pub enum PrepareClientError {
    /// The connection cannot be prepared.
    #[error(transparent)]
    Https(#[from] AskError),
    /// The certificate cannot be read.
    #[error("cannot read the certificate of this host: {0}")]
    Certificate(String),
}

/// Access to an API server as the agent of one Machine.
#[derive(Clone)]
pub struct Access {
    https: reqwest::Client,
    server: Arc<str>,
    /// Client for all requests except watches.
    client: Client,
    /// SHA-256 of the certificate that is shown.
    fingerprint: Digest,
    machine: MachineName,
    /// Certificate chain and key (PEM).
    identity: Arc<(String, Zeroizing<String>)>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("server", &self.server)
            .field("machine", &self.machine)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// Access to `endpoint`, to which `identity` (certificate chain and key, PEM) is `machine`'s agent. In a runtime.
    pub fn new(
        endpoint: &KubernetesEndpoint,
        machine: &MachineName,
        identity: (&str, &str),
    ) -> Result<Self, PrepareClientError> {
        let leaf = CertificateDer::from_pem_slice(identity.0.as_bytes());
        let leaf = leaf.map_err(|error| PrepareClientError::Certificate(error.to_string()))?;
        let fingerprint = Digest::from_sha256(Sha256::digest(&leaf).into());
        let https = builder(&endpoint.ca_pem, Some(identity))?
            .tcp_keepalive(KEEPALIVE_IDLE)
            .tcp_keepalive_interval(KEEPALIVE_INTERVAL)
            .tcp_keepalive_retries(KEEPALIVE_RETRIES)
            .tcp_user_timeout(ANSWER_TIMEOUT)
            .build()
            .map_err(|error| AskError::Prepare(error.to_string()))?;
        let server: Arc<str> = endpoint.server.trim_end_matches('/').into();
        let client = speak(https.clone(), server.clone(), || {});
        let identity = Arc::new((identity.0.to_owned(), Zeroizing::new(identity.1.to_owned())));
        Ok(Self { https, server, client, fingerprint, machine: machine.clone(), identity })
    }

    /// Returns access to another endpoint by the same identity. In a runtime.
    ///
    /// # Errors
    /// The endpoint's certificate authority cannot be read.
    pub(super) fn at(&self, endpoint: &KubernetesEndpoint) -> Result<Self, PrepareClientError> {
        let (certificate, key) = &*self.identity;
        Self::new(endpoint, &self.machine, (certificate, key))
    }

    /// Returns the client for single requests.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a client for a watch: `taken` is called when the API server has accepted it.
    pub(super) fn watching(&self, taken: impl Fn() + Send + Sync + Clone + 'static) -> Client {
        speak(self.https.clone(), self.server.clone(), taken)
    }

    /// Returns the Machine whose agent uses this access.
    pub(super) fn machine(&self) -> &MachineName {
        &self.machine
    }

    pub(super) fn fingerprint(&self) -> Digest {
        self.fingerprint
    }
}

/// kube's client, whose requests are paths below `server`.
fn speak(
    https: reqwest::Client,
    server: Arc<str>,
    taken: impl Fn() + Send + Sync + Clone + 'static,
) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (https, server, taken) = (https.clone(), server.clone(), taken.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let is_watch = head.uri.query().is_some_and(|query| query.contains("watch=true"));
            let request = https.request(head.method, format!("{server}{}", head.uri));
            let response = request.headers(head.headers).body(body).send().await;
            let response = response.map_err(reqwest::Error::without_url)?;
            if is_watch && response.status().is_success() {
                taken();
            }
            Ok::<http::Response<reqwest::Body>, BoxError>(response.into())
        }
    });
    Client::new(service, "default")
}
