//! HTTPS client of the agent for pxed and the API server: one request, one bounded answer.
//!
//! It trusts only the given authority, follows no redirect, uses no proxy, and resolves names itself, because
//! a static binary has no resolver. Called by `client` and by `cluster`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::wire::Refusal;
use bedplate_oci::resolver::HostResolver;
use reqwest::{Client, ClientBuilder, Method, RequestBuilder, StatusCode};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an answer: larger than any object of a cluster.
const MAX_ANSWER: usize = 2 << 20;

/// Reason for which a server was not asked, or its refusal.
#[derive(Debug, Error)]
pub enum AskError {
    /// The connection failed or broke, or the peer has another authority.
    #[error("request to {url} failed")]
    Transport {
        /// URL of the server.
        url: String,
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused.
    #[error("{url} refused the request with status {status}: {message} ({reason})")]
    Refused {
        /// URL of the server.
        url: String,
        /// HTTP status.
        status: u16,
        /// Stable name of the refusal.
        reason: String,
        /// Human-readable message.
        message: String,
    },
    /// The answer is unexpected.
    #[error("unexpected answer from {url}: {problem}")]
    Answer {
        /// URL of the server.
        url: String,
        /// Problem of the answer.
        problem: String,
    },
    /// The certificates for the connection cannot be used.
    #[error("cannot prepare the connection: {0}")]
    Prepare(String),
    /// The seed or the enrollment names no endpoint.
    #[error("the seed or the enrollment names no pxed endpoint")]
    NoEndpoint,
}

impl AskError {
    /// Returns true if the same request cannot succeed later.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if (400..500).contains(status) && !matches!(status, 408 | 425 | 429))
    }
}

/// Connections to servers of one authority, with one identity.
#[derive(Debug, Clone)]
pub(crate) struct Https {
    client: Client,
}

impl Https {
    /// Trusts `ca_pem`, and authenticates with `identity` (certificate chain and key, PEM).
    pub(crate) fn new(ca_pem: &str, identity: Option<(&str, &str)>) -> Result<Self, AskError> {
        let client = builder(ca_pem, identity)?.timeout(REQUEST_TIMEOUT).build();
        Ok(Self { client: client.map_err(|e| AskError::Prepare(e.to_string()))? })
    }

    /// Creates a request for [`Https::ask`].
    pub(crate) fn request(&self, method: Method, url: &str) -> RequestBuilder {
        self.client.request(method, url)
    }

    /// Sends a request; errors name `url`.
    pub(crate) async fn ask<T>(
        &self,
        request: RequestBuilder,
        url: &str,
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, AskError> {
        let transport = |source: reqwest::Error| AskError::Transport {
            url: url.to_owned(),
            source: source.without_url(),
        };
        let mut response = request.send().await.map_err(transport)?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(transport)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_ANSWER {
                return Err(AskError::Answer {
                    url: url.to_owned(),
                    problem: "the answer is too long".to_owned(),
                });
            }
        }
        if status.is_success() {
            return read(&bytes).map_err(|problem| AskError::Answer { url: url.to_owned(), problem });
        }
        Err(refused(url, status, &bytes))
    }
}

/// Returns a builder for all of the agent's connections. It trusts `ca_pem`, and authenticates with
/// `identity` (certificate chain and key, PEM). The caller sets the timeouts of requests.
pub(crate) fn builder(ca_pem: &str, identity: Option<(&str, &str)>) -> Result<ClientBuilder, AskError> {
    let prepare = |text: String| AskError::Prepare(text);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        let certificate =
            certificate.map_err(|e| prepare(format!("the server's certificate authority: {e}")))?;
        roots.add(certificate).map_err(|e| prepare(format!("the server's certificate authority: {e}")))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| prepare(e.to_string()))?
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
            let chain = chain.map_err(|e| prepare(format!("this host's certificate: {e}")))?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
            let key = key.map_err(|e| prepare(format!("this host's key: {e}")))?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(|e| prepare(format!("this host's certificate: {e}")))?
        }
    };
    Ok(Client::builder()
        .tls_backend_preconfigured(config)
        .https_only(true)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .dns_resolver(Arc::new(HostResolver))
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(1))
}

fn refused(url: &str, status: StatusCode, bytes: &[u8]) -> AskError {
    let refusal = serde_json::from_slice::<Refusal>(bytes).unwrap_or_else(|_| Refusal {
        reason: "NoReason".to_owned(),
        message: status.canonical_reason().unwrap_or("no reason given").to_owned(),
    });
    let message = refusal.message.chars().take(500).collect();
    AskError::Refused { url: url.to_owned(), status: status.as_u16(), reason: refusal.reason, message }
}
