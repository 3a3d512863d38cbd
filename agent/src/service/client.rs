//! Talks to pxed over TLS: enrolment by token, renewal and reports by certificate.
//!
//! Believes only the authority that the seed named, follows no redirect, uses no proxy, reads bounded answers, resolves
//! names itself (a static binary has no resolver). Tries pxed's endpoints in order. Called by `run`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::wire::{EnrolRequest, EnrolResponse, Refusal, RenewRequest, Report};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, StatusCode};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Serialize;
use thiserror::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_ANSWER: usize = 256 * 1024;

/// Why pxed could not be asked, or what it refused.
#[derive(Debug, Error)]
pub enum AskPxedError {
    /// No connection, a connection that broke, or a peer that is not pxed.
    #[error("cannot ask {url}")]
    Transport {
        /// Who was asked.
        url: String,
        /// Why not.
        #[source]
        source: reqwest::Error,
    },
    /// pxed refused.
    #[error("{url} refused with status {status}: {message} ({reason})")]
    Refused {
        /// Who was asked.
        url: String,
        /// HTTP status.
        status: u16,
        /// Stable name of the refusal.
        reason: String,
        /// Text for a person.
        message: String,
    },
    /// pxed answered something that is not the answer.
    #[error("{url} gave an answer that cannot be understood: {problem}")]
    Answer {
        /// Who was asked.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The certificates for the connection cannot be used.
    #[error("cannot prepare the connection: {0}")]
    Prepare(String),
    /// The seed or the enrolment names no endpoint.
    #[error("no endpoint of pxed is known")]
    NoEndpoint,
}

impl AskPxedError {
    /// Whether asking again with the same request cannot help.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if (400..500).contains(status) && !matches!(status, 408 | 425 | 429))
    }
}

/// Where reports go. Now that is pxed; in a cluster it may be the API server.
pub trait Reporter {
    /// Sends one report.
    fn report(&self, report: &Report) -> impl Future<Output = Result<(), AskPxedError>> + Send;
}

/// A way to pxed.
#[derive(Debug, Clone)]
pub struct PxedClient {
    client: Client,
    endpoints: Vec<String>,
}

impl PxedClient {
    /// A client that believes `ca_pem`. With `identity` (certificate chain and key, PEM) it shows who it is.
    pub fn new(
        endpoints: &[String],
        ca_pem: &str,
        identity: Option<(&str, &str)>,
    ) -> Result<Self, AskPxedError> {
        let prepare = |text: String| AskPxedError::Prepare(text);
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            let certificate = certificate.map_err(|e| prepare(format!("pxed's authority: {e}")))?;
            roots.add(certificate).map_err(|e| prepare(format!("pxed's authority: {e}")))?;
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
                let chain = chain.map_err(|e| prepare(format!("the own certificate: {e}")))?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
                let key = key.map_err(|e| prepare(format!("the own key: {e}")))?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|e| prepare(format!("the own certificate: {e}")))?
            }
        };
        let client = Client::builder()
            .tls_backend_preconfigured(config)
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(OwnResolver))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(1)
            .build()
            .map_err(|e| prepare(e.to_string()))?;
        Ok(Self { client, endpoints: endpoints.to_vec() })
    }

    /// Trades the token for a certificate.
    pub async fn enrol(&self, request: &EnrolRequest) -> Result<EnrolResponse, AskPxedError> {
        self.ask("/v1/enrol", request, read_json).await
    }

    /// Gets a new certificate.
    pub async fn renew(&self, request: &RenewRequest) -> Result<EnrolResponse, AskPxedError> {
        self.ask("/v1/renew", request, read_json).await
    }

    /// Asks one endpoint after another until one answers; a final refusal is an answer.
    async fn ask<T>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, AskPxedError> {
        let mut last = AskPxedError::NoEndpoint;
        for endpoint in &self.endpoints {
            let url = format!("{}{path}", endpoint.trim_end_matches('/'));
            match self.ask_one(&url, body, read).await {
                Err(error) if !error.is_final() => last = error,
                answer => return answer,
            }
        }
        Err(last)
    }

    async fn ask_one<T>(
        &self,
        url: &str,
        body: &(impl Serialize + Sync),
        read: fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, AskPxedError> {
        let transport = |source: reqwest::Error| AskPxedError::Transport {
            url: url.to_owned(),
            source: source.without_url(),
        };
        let mut response = self.client.post(url).json(body).send().await.map_err(transport)?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(transport)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_ANSWER {
                return Err(AskPxedError::Answer {
                    url: url.to_owned(),
                    problem: "it is too long".to_owned(),
                });
            }
        }
        if status.is_success() {
            return read(&bytes).map_err(|problem| AskPxedError::Answer { url: url.to_owned(), problem });
        }
        Err(refused(url, status, &bytes))
    }
}

impl Reporter for PxedClient {
    async fn report(&self, report: &Report) -> Result<(), AskPxedError> {
        self.ask("/v1/report", report, |_| Ok(())).await
    }
}

fn refused(url: &str, status: StatusCode, bytes: &[u8]) -> AskPxedError {
    let refusal = serde_json::from_slice::<Refusal>(bytes).unwrap_or_else(|_| Refusal {
        reason: "NoReason".to_owned(),
        message: status.canonical_reason().unwrap_or("no reason given").to_owned(),
    });
    let message = refusal.message.chars().take(500).collect();
    AskPxedError::Refused { url: url.to_owned(), status: status.as_u16(), reason: refusal.reason, message }
}

fn read_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// Asks the name servers of /etc/resolv.conf for IPv4 addresses.
#[derive(Debug, Clone, Copy)]
struct OwnResolver;

impl Resolve for OwnResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found = tokio::task::spawn_blocking(move || look_up(&host)).await?;
            let address = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such name"))?;
            let addresses: Addrs = Box::new(std::iter::once(SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}

fn look_up(host: &str) -> Option<IpAddr> {
    if host == "localhost" {
        return Some(IpAddr::from([127, 0, 0, 1]));
    }
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let servers: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok())
        .take(3)
        .collect();
    crate::stage1::name_query::resolve(host, &servers).map(IpAddr::V4)
}
