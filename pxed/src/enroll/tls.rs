//! The TLS listener's configurations: for each of our addresses that a client reached, a certificate by pxed's own
//! authority, made when it is first needed and again before it ends. Client certificates are asked for, not required.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use thiserror::Error;

use super::authority::Authority;

/// Lifetime of a certificate of the listener.
const LISTENER_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// Age at which the listener's certificate is replaced.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(10 * 24);

/// More addresses than a machine has; a client chooses only among those that are ours.
const MAX_ADDRESSES: usize = 256;

/// Error of building a TLS configuration.
#[derive(Debug, Error)]
pub enum MakeConfigError {
    /// The certificate.
    #[error("the certificate of the listener cannot be created")]
    Certificate(#[source] rcgen::Error),
    /// TLS itself.
    #[error("the listener's TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    /// The authorities of clients.
    #[error("the authority of client certificates cannot be used")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// The configurations.
pub struct Configurations {
    authority: Arc<Authority>,
    /// Additional name or address at which agents reach pxed, next to the one that they connected to.
    host: Option<String>,
    state: Lock<State>,
}

struct State {
    /// Authorities of accepted client certificates.
    roots: Arc<RootCertStore>,
    made: HashMap<IpAddr, (Arc<ServerConfig>, Timestamp)>,
}

impl Configurations {
    /// Creates configurations that accept no client certificate yet.
    pub fn new(authority: Arc<Authority>, host: Option<String>) -> Self {
        let state = State { roots: Arc::new(RootCertStore::empty()), made: HashMap::new() };
        Self { authority, host, state: Lock::new(state) }
    }

    /// Returns pxed's own authority.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// Believes client certificates of these authorities (PEM) from now on. Answers how many there are.
    pub fn believe(&self, pem: &str) -> usize {
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
        let (added, _) = roots.add_parsable_certificates(certificates);
        let mut state = self.state.lock();
        if state.roots.roots != roots.roots {
            state.roots = Arc::new(roots);
            state.made.clear();
        }
        added
    }

    /// The configuration for a connection to `address`.
    ///
    /// # Errors
    /// [`MakeConfigError`].
    pub fn get(&self, address: IpAddr, now: Timestamp) -> Result<Arc<ServerConfig>, MakeConfigError> {
        let roots = {
            let state = self.state.lock();
            if let Some((config, made)) = state.made.get(&address)
                && now.duration_since(*made).abs() < RENEW_AFTER
            {
                return Ok(config.clone());
            }
            state.roots.clone()
        };
        let config = Arc::new(self.make(address, &roots, now)?);
        let mut state = self.state.lock();
        if state.made.len() >= MAX_ADDRESSES {
            state.made.clear();
        }
        if Arc::ptr_eq(&state.roots, &roots) {
            state.made.insert(address, (config.clone(), now));
        }
        Ok(config)
    }

    fn make(
        &self,
        address: IpAddr,
        roots: &Arc<RootCertStore>,
        now: Timestamp,
    ) -> Result<ServerConfig, MakeConfigError> {
        let identity = self
            .authority
            .server(address, self.host.as_deref(), now, LISTENER_CERTIFICATE_LIFETIME)
            .map_err(MakeConfigError::Certificate)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = if roots.is_empty() {
            builder.with_no_client_auth()
        } else {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        };
        let key = PrivatePkcs8KeyDer::from(identity.key);
        let mut config = builder.with_single_cert(vec![identity.certificate.into()], key.into())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}
