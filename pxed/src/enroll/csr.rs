//! A certificate signing request (PKCS#10), taken apart and checked.
//!
//! Pure. The signature proves that whoever sent it has the key; the subject may only say what the token says already.

use bedplate_api::id::{Digest, MachineName};
use rcgen::CertificateSigningRequestParams;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::{GROUP, UID_OID, USER_PREFIX};

/// Bytes of a request (PEM); an RSA key of 8192 bits needs about 3 KiB.
const MAX_BYTES: usize = 16 << 10;

/// Why a request is not taken.
#[derive(Debug, Error)]
pub enum ReadRequestError {
    /// Too large.
    #[error("the request is larger than 16 KiB")]
    TooLarge,
    /// Not PEM, or not a request.
    #[error("this is not a certificate signing request (PEM)")]
    Unreadable,
    /// The signature is not by the key, or the key is of a kind that is not taken.
    #[error("the request cannot be verified")]
    Unverified(#[source] rcgen::Error),
    /// The subject is somebody else's.
    #[error("the request is for {found}; it must be for CN={USER_PREFIX}{machine}, O={GROUP}")]
    Subject {
        /// What it is for.
        found: String,
        /// What it must be for.
        machine: MachineName,
    },
}

/// A request whose signature is good.
pub struct CertificateRequest {
    /// As it was sent.
    pub pem: String,
    /// SHA-256 of the SubjectPublicKeyInfo.
    pub key: Digest,
    /// What the library made of it; only its key is used.
    pub params: CertificateSigningRequestParams,
    common_names: Vec<String>,
    organisations: Vec<String>,
    uids: Vec<String>,
    subject: String,
}

impl CertificateRequest {
    /// Reads a request and verifies its signature.
    ///
    /// # Errors
    /// [`ReadRequestError`].
    pub fn read(pem: &str) -> Result<Self, ReadRequestError> {
        if pem.len() > MAX_BYTES {
            return Err(ReadRequestError::TooLarge);
        }
        let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| ReadRequestError::Unreadable)?;
        let (_, parsed) =
            X509CertificationRequest::from_der(&der).map_err(|_| ReadRequestError::Unreadable)?;
        let info = &parsed.certification_request_info;
        let params = CertificateSigningRequestParams::from_der(&der).map_err(ReadRequestError::Unverified)?;
        Ok(Self {
            pem: pem.to_owned(),
            key: key_digest(info.subject_pki.raw),
            params,
            common_names: texts(info.subject.iter_common_name()),
            organisations: texts(info.subject.iter_organization()),
            uids: uids(&info.subject),
            subject: info.subject.to_string(),
        })
    }

    /// Whether the subject is empty or this Machine's, which is its name and UID; the UID may be left out. `whole`: it must be this Machine's, with the group, because the
    /// signer takes it as it is.
    ///
    /// # Errors
    /// [`ReadRequestError::Subject`].
    pub fn check_subject(
        &self,
        (machine, uid): (&MachineName, &str),
        whole: bool,
    ) -> Result<(), ReadRequestError> {
        let name = format!("{USER_PREFIX}{machine}");
        let named = self.common_names.iter().all(|found| *found == name) && self.common_names.len() <= 1;
        let grouped = self.organisations.iter().all(|found| found == GROUP) && self.organisations.len() <= 1;
        let complete = !self.common_names.is_empty() && !self.organisations.is_empty();
        let same = self.uids.iter().all(|found| found == uid) && self.uids.len() <= 1;
        if named && grouped && same && (complete || !whole) {
            return Ok(());
        }
        let found = if self.subject.is_empty() { "nobody".to_owned() } else { self.subject.clone() };
        Err(ReadRequestError::Subject { found, machine: machine.clone() })
    }
}

/// The UIDs that a subject names.
pub(super) fn uids(subject: &X509Name<'_>) -> Vec<String> {
    let is_uid = |attribute: &&AttributeTypeAndValue<'_>| {
        attribute.attr_type().iter().is_some_and(|arcs| arcs.eq(UID_OID))
    };
    texts(subject.iter_attributes().filter(is_uid))
}

/// SHA-256 of a SubjectPublicKeyInfo (DER).
pub fn key_digest(public_key: &[u8]) -> Digest {
    Digest::from_sha256(Sha256::digest(public_key).into())
}

fn texts<'a>(attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Vec<String> {
    attributes.map(|attribute| attribute.as_str().unwrap_or("(unreadable)").to_owned()).collect()
}
