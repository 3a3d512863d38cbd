//! A simulated BMC's certificate: self-signed, ECDSA, for a name that no client uses, as BMCs have them.

use std::sync::Arc;

use anyhow::{Context, Result};
use bedplate_api::id::Digest;
use bedplate_bmc::tls::pin_of;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate with its key.
#[derive(Debug, Clone)]
pub struct Certificate {
    pem: Arc<str>,
    key_pem: Arc<str>,
    pin: Digest,
    server: Arc<ServerConfig>,
}

impl Certificate {
    /// A new one.
    ///
    /// # Errors
    /// No key can be made.
    pub fn new() -> Result<Self> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let key = KeyPair::generate().context("cannot make a key")?;
        let own = CertificateParams::new(vec!["bmc.example".to_owned()])?.self_signed(&key)?;
        let der: CertificateDer<'static> = own.der().clone();
        let pin = pin_of(&der).context("our own certificate cannot be read")?;
        let secret = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let mut server = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![der], secret)?;
        // Thousands of BMCs in one process: none keeps anything between connections.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { pem: own.pem().into(), key_pem: key.serialize_pem().into(), pin, server: Arc::new(server) })
    }

    /// The certificate (PEM).
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The key (PEM).
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// SHA-256 of the public key, as `bmc.redfish.tls.pins` has it.
    pub fn pin(&self) -> Digest {
        self.pin
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}
