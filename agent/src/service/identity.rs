//! The host's key and the certificates that go with it.
//!
//! The key is made here and never leaves; the request made with it is kept, so that a repeated enrolment is the same
//! one. Called by `run`.

use std::io;
use std::path::{Path, PathBuf};

use bedplate_api::id::MachineName;
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::file::{read_optional, write_atomic};

/// Why key, request or certificate cannot be used.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("cannot {act} {path}")]
    File {
        /// What was tried.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The key's file does not hold a key.
    #[error("{path} holds no usable key: remove it, then the host enrols anew with its next boot")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rcgen::Error,
    },
    /// A key or request cannot be made.
    #[error("cannot make the {0}")]
    Make(&'static str, #[source] rcgen::Error),
    /// What pxed sent is no certificate.
    #[error("the certificate that pxed sent cannot be read: {0}")]
    Unreadable(String),
    /// It is a certificate, but not for this host.
    #[error("the certificate that pxed sent is for another key")]
    OtherKey,
}

/// Key and request.
#[derive(Debug)]
pub struct Identity {
    key: KeyPair,
    csr_pem: String,
}

/// When a certificate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// From when.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
}

impl Identity {
    /// The identity in `directory`, made if there is none: `key.pem` and `<machine>.csr.pem`, both 0600. Blocking.
    pub fn open(directory: &Path, machine: &MachineName) -> Result<Self, IdentityError> {
        let key_path = directory.join("key.pem");
        let key = match read_text(&key_path)? {
            Some(pem) => {
                KeyPair::from_pem(&pem).map_err(|source| IdentityError::Key { path: key_path, source })?
            }
            None => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
                    .map_err(|e| IdentityError::Make("key", e))?;
                write(&key_path, &key.serialize_pem())?;
                key
            }
        };
        let csr_path = directory.join(format!("{machine}.csr.pem"));
        let csr_pem = match read_text(&csr_path)? {
            Some(pem) if is_request_of(&pem, &key) => pem,
            _ => {
                let pem =
                    make_request(&key, machine).map_err(|e| IdentityError::Make("certificate request", e))?;
                write(&csr_path, &pem)?;
                pem
            }
        };
        Ok(Self { key, csr_pem })
    }

    /// The request (PEM), the same at every call and after every restart.
    pub fn csr_pem(&self) -> &str {
        &self.csr_pem
    }

    /// The key (PKCS#8, PEM).
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Checks that the first certificate of `pem` is for this key; says when it counts.
    pub fn check(&self, pem: &str) -> Result<Validity, IdentityError> {
        let unreadable = |text: String| IdentityError::Unreadable(text);
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| unreadable(e.to_string()))?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|e| unreadable(e.to_string()))?;
        if certificate.public_key().raw != self.key.subject_public_key_info() {
            return Err(IdentityError::OtherKey);
        }
        let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|e| unreadable(e.to_string()));
        let validity = certificate.validity();
        Ok(Validity {
            not_before: time(validity.not_before.timestamp())?,
            not_after: time(validity.not_after.timestamp())?,
        })
    }
}

/// Subject as the API server wants it (docs/rules.md, Trust 3); pxed's own authority checks the name against the seed's.
fn make_request(key: &KeyPair, machine: &MachineName) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "bedplate:machines");
    name.push(DnType::CommonName, format!("bedplate:machine:{machine}"));
    params.distinguished_name = name;
    params.serialize_request(key)?.pem()
}

/// Whether a kept request is by this key: the key may have been replaced.
fn is_request_of(pem: &str, key: &KeyPair) -> bool {
    use x509_parser::certification_request::X509CertificationRequest;
    let Ok(der) = rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()) else {
        return false;
    };
    X509CertificationRequest::from_der(&der)
        .is_ok_and(|(_, csr)| csr.certification_request_info.subject_pki.raw == key.subject_public_key_info())
}

fn read_text(path: &Path) -> Result<Option<String>, IdentityError> {
    let file = |source| IdentityError::File { act: "read", path: path.to_owned(), source };
    let bytes = read_optional(path).map_err(file)?;
    let text = bytes.map(|bytes| String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into()));
    text.transpose().map_err(file)
}

fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    let file = |source| IdentityError::File { act: "write", path: path.to_owned(), source };
    write_atomic(path, text.as_bytes(), 0o600).map_err(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_and_request_outlive_a_restart_and_are_readable_by_root_only() {
        let directory = tempfile::tempdir().unwrap();
        let machine = "node-1".parse().unwrap();
        let first = Identity::open(directory.path(), &machine).unwrap();
        let second = Identity::open(directory.path(), &machine).unwrap();
        assert_eq!((first.csr_pem(), first.key_pem()), (second.csr_pem(), second.key_pem()));
        for name in ["key.pem", "node-1.csr.pem"] {
            let mode = std::fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_request_of_another_key_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let machine = "node-1".parse().unwrap();
        let first = Identity::open(directory.path(), &machine).unwrap();
        std::fs::remove_file(directory.path().join("key.pem")).unwrap();
        let second = Identity::open(directory.path(), &machine).unwrap();
        assert_ne!(first.csr_pem(), second.csr_pem());
    }

    #[test]
    fn a_certificate_of_another_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity::open(directory.path(), &"node-1".parse().unwrap()).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        assert!(matches!(identity.check(&other.cert.pem()), Err(IdentityError::OtherKey)));
        assert!(matches!(identity.check("no PEM"), Err(IdentityError::Unreadable(_))));
    }

    #[test]
    fn a_damaged_key_is_named_and_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key.pem"), "damaged").unwrap();
        let error = Identity::open(directory.path(), &"node-1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("key.pem holds no usable key"), "{error}");
        assert_eq!(std::fs::read(directory.path().join("key.pem")).unwrap(), b"damaged");
    }
}
