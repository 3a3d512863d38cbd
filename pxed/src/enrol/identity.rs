//! Whose a client certificate is. The TLS handshake has verified its chain; here it is only read.
//!
//! Pure.

use bedplate_api::id::{Digest, MachineName};
use jiff::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::request::{key_digest, uids};
use super::{GROUP, USER_PREFIX};

/// An agent that showed its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its Machine.
    pub machine: MachineName,
    /// The Machine's UID when it was enrolled, if the certificate says so.
    pub uid: Option<String>,
    /// From when on the certificate is good: a little before it was made.
    pub not_before: Timestamp,
    /// SHA-256 of its key's SubjectPublicKeyInfo.
    pub key: Digest,
    /// The certificate's serial number, in hex.
    pub serial: String,
}

/// The agent that a certificate (DER) names; `None`: it is not an agent's.
pub fn read(certificate: &[u8]) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    if names.next().is_some() {
        return None;
    }
    let machine = name.strip_prefix(USER_PREFIX)?.parse().ok()?;
    let mut groups = certificate.subject().iter_organization();
    if !groups.any(|group| group.as_str() == Ok(GROUP)) {
        return None;
    }
    let mut uids = uids(certificate.subject());
    let uid = uids.pop();
    if !uids.is_empty() {
        return None;
    }
    let key = key_digest(certificate.public_key().raw);
    let not_before = Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?;
    Some(Identity { machine, uid, not_before, key, serial: certificate.raw_serial_as_string() })
}
