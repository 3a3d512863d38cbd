//! Owner of a client certificate. The TLS handshake has verified its chain; this module only reads it.
//!
//! Pure.

use std::net::IpAddr;

use bedplate_api::enrollment::{AGENT_USER_PREFIX, AGENTS_GROUP};
use bedplate_api::id::{Digest, MachineName};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::csr::{key_digest, uids};

/// An agent that showed its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The Machine.
    pub machine: MachineName,
    /// The Machine's UID at the enrollment, if the certificate has it.
    pub uid: Option<String>,
    /// From when on the certificate is good: a little before it was made.
    pub not_before: Timestamp,
    /// Last second in which the certificate is valid. A connection may outlive it.
    pub not_after: Timestamp,
    /// SHA-256 of its key's SubjectPublicKeyInfo.
    pub key: Digest,
    /// SHA-256 of the certificate (DER).
    pub certificate: Digest,
    /// The certificate's serial number, in hex.
    pub serial: String,
    /// Address that the agent connected from, for logs and Events.
    pub peer: IpAddr,
}

/// Returns true if a certificate (DER) names this group. One that cannot be read names none.
pub fn has_group(certificate: &[u8], group: &str) -> bool {
    let read = X509Certificate::from_der(certificate);
    read.is_ok_and(|(_, read)| read.subject().iter_organization().any(|found| found.as_str() == Ok(group)))
}

/// Returns the agent that a certificate (DER) names, connected from `peer`. `None`: it is not an agent's certificate.
pub fn read(certificate: &[u8], peer: IpAddr) -> Option<Identity> {
    let digest = Digest::from_sha256(Sha256::digest(certificate).into());
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    if names.next().is_some() {
        return None;
    }
    let machine = name.strip_prefix(AGENT_USER_PREFIX)?.parse().ok()?;
    let mut groups = certificate.subject().iter_organization();
    if !groups.any(|group| group.as_str() == Ok(AGENTS_GROUP)) {
        return None;
    }
    let mut uids = uids(certificate.subject());
    let uid = uids.pop();
    if !uids.is_empty() {
        return None;
    }
    let key = key_digest(certificate.public_key().raw);
    let validity = certificate.validity();
    Some(Identity {
        machine,
        uid,
        not_before: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
        // RFC 5280, 4.1.2.5: 9999-12-31 means that there is no end, which is later than any time here.
        not_after: Timestamp::from_second(validity.not_after.timestamp()).unwrap_or(Timestamp::MAX),
        key,
        certificate: digest,
        serial: certificate.raw_serial_as_string(),
        peer,
    })
}
