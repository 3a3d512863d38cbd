//! The host's key and the certificates that go with it.
//!
//! The key is made here, and no pxed or API server ever gets it. The request made with it is stored, so that a repeated enrollment sends the
//! same one. A second key may be pending:
//!
//! ```text
//!   `bedplate-agent rekey` ──► key.next.pem ──the next enrollment shows it──► certificate ──► key.pem
//! ```
//! Called by `run` and `cli`.

use std::io;
use std::path::{Path, PathBuf};

use bedplate_api::enrollment::{AGENT_USER_PREFIX, AGENTS_GROUP, KeyId};
use bedplate_api::id::MachineName;
use bedplate_process::file::{FileError, read_optional, remove_optional, sync_directory, write_atomic};
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

/// The host's key.
const KEY: &str = "key.pem";
/// Key that replaces the host's key with the next enrollment.
const NEXT_KEY: &str = "key.next.pem";

/// Reason for which key, request or certificate cannot be used.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The key's file does not hold a key.
    #[error("{path} has no usable key; remove the file to re-enroll the host at its next boot")]
    Key {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: rcgen::Error,
    },
    /// A key or request cannot be made.
    #[error("cannot create the {0}")]
    Make(&'static str, #[source] rcgen::Error),
    /// pxed's answer is not a certificate.
    #[error("cannot read the certificate that pxed sent: {0}")]
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

/// Validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// From when.
    pub not_before: Timestamp,
    /// Expiry of the certificate.
    pub not_after: Timestamp,
}

/// Attribute `organizationName` (2.5.4.10). The library keeps one value for each type of its own, so that a second value needs another
/// type with the same identifier.
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

impl Identity {
    /// The identity in `directory`, made if there is none: `key.pem` and `<machine>.csr.pem`, both 0600. Blocking.
    pub fn open(directory: &Path, machine: &MachineName) -> Result<Self, IdentityError> {
        let path = directory.join(KEY);
        let key = match read_key(&path)? {
            Some(key) => key,
            None => make_key(&path)?,
        };
        Self::with_request(key, &directory.join(format!("{machine}.csr.pem")), machine)
    }

    /// Returns the identity to enroll with: that of the next key if one was made, otherwise [`Self::open`]. Blocking.
    pub(crate) fn open_for_enrollment(
        directory: &Path,
        machine: &MachineName,
    ) -> Result<Self, IdentityError> {
        match read_key(&directory.join(NEXT_KEY))? {
            Some(key) => Self::with_request(key, &directory.join(format!("{machine}.next.csr.pem")), machine),
            None => Self::open(directory, machine),
        }
    }

    /// Makes the key that the next enrollment uses, and the host from then on. A pending key stays. Blocking.
    pub fn make_next(directory: &Path) -> Result<(), IdentityError> {
        let path = directory.join(NEXT_KEY);
        if read_key(&path)?.is_none() {
            make_key(&path)?;
        }
        Ok(())
    }

    /// Replaces the key by the next one if `certificate_pem`, the host's certificate, names the next one. May be repeated, and killed anywhere: a
    /// restart calls it too. Blocking.
    pub(crate) fn adopt_next(
        directory: &Path,
        machine: &MachineName,
        certificate_pem: &str,
    ) -> Result<(), IdentityError> {
        let path = directory.join(NEXT_KEY);
        let Some(key) = read_key(&path)? else { return Ok(()) };
        let next = Self { key, csr_pem: String::new() };
        if next.check(certificate_pem).is_err() {
            return Ok(());
        }
        remove_optional(&directory.join(format!("{machine}.next.csr.pem")))?;
        std::fs::rename(&path, directory.join(KEY)).map_err(FileError::at("rename", &path))?;
        Ok(sync_directory(directory)?)
    }

    fn with_request(key: KeyPair, csr_path: &Path, machine: &MachineName) -> Result<Self, IdentityError> {
        let csr_pem = match read_text(csr_path)? {
            Some(pem) if is_complete_request(&pem, &key) => pem,
            _ => {
                let pem =
                    make_request(&key, machine).map_err(|e| IdentityError::Make("certificate request", e))?;
                write(csr_path, &pem)?;
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

/// Subject as the API server wants it (docs/design/rules.md, Trust 3); pxed's own authority checks the name against the seed's.
fn make_request(key: &KeyPair, machine: &MachineName) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut name = DistinguishedName::new();
    // In this order: deploy/pxed-policy.yaml reads the bytes.
    name.push(DnType::OrganizationName, AGENTS_GROUP);
    let group = KeyId::of_public_key(&key.subject_public_key_info()).group();
    name.push(DnType::CustomDnType(ORGANIZATION.to_vec()), group);
    name.push(DnType::CommonName, format!("{AGENT_USER_PREFIX}{machine}"));
    params.distinguished_name = name;
    params.serialize_request(key)?.pem()
}

fn read_key(path: &Path) -> Result<Option<KeyPair>, IdentityError> {
    let Some(pem) = read_text(path)? else { return Ok(None) };
    let key = KeyPair::from_pem(&pem);
    key.map(Some).map_err(|source| IdentityError::Key { path: path.to_owned(), source })
}

fn make_key(path: &Path) -> Result<KeyPair, IdentityError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| IdentityError::Make("key", e))?;
    write(path, &key.serialize_pem())?;
    Ok(key)
}

/// Returns true if a stored request is by this key and names its enrollment group. The key may have been replaced, and an earlier agent
/// named no such group.
fn is_complete_request(pem: &str, key: &KeyPair) -> bool {
    use x509_parser::certification_request::X509CertificationRequest;
    let Ok(der) = rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()) else {
        return false;
    };
    X509CertificationRequest::from_der(&der).is_ok_and(|(_, csr)| {
        let info = &csr.certification_request_info;
        info.subject_pki.raw == key.subject_public_key_info()
            && has_group(&info.subject, info.subject_pki.raw)
    })
}

/// Returns true if a subject names the enrollment group of this public key (SubjectPublicKeyInfo, DER).
fn has_group(subject: &X509Name<'_>, public_key: &[u8]) -> bool {
    let group = KeyId::of_public_key(public_key).group();
    subject.iter_organization().any(|organization| organization.as_str() == Ok(group.as_str()))
}

/// Returns true if the first certificate of `pem` names the enrollment group of its own key. A certificate that cannot be read names none.
pub(crate) fn names_enrollment(pem: &str) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
    X509Certificate::from_der(&der)
        .is_ok_and(|(_, certificate)| has_group(certificate.subject(), certificate.public_key().raw))
}

fn read_text(path: &Path) -> Result<Option<String>, IdentityError> {
    let text = read_optional(path)?.map(String::from_utf8).transpose();
    Ok(text.map_err(|_| FileError::at("read", path)(io::ErrorKind::InvalidData.into()))?)
}

fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    Ok(write_atomic(path, text.as_bytes(), 0o600)?)
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
    fn request_of_another_key_is_created_again() {
        let directory = tempfile::tempdir().unwrap();
        let machine = "node-1".parse().unwrap();
        let first = Identity::open(directory.path(), &machine).unwrap();
        std::fs::remove_file(directory.path().join("key.pem")).unwrap();
        let second = Identity::open(directory.path(), &machine).unwrap();
        assert_ne!(first.csr_pem(), second.csr_pem());
    }

    #[test]
    fn trust_3_request_names_the_enrollment_group_of_its_own_key() {
        use x509_parser::certification_request::X509CertificationRequest;
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity::open(directory.path(), &"node-1".parse().unwrap()).unwrap();
        let der =
            rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(identity.csr_pem().as_bytes())
                .unwrap();
        let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
        let info = &request.certification_request_info;
        let group = KeyId::of_public_key(info.subject_pki.raw).group();
        let organizations: Vec<_> = info.subject.iter_organization().map(|o| o.as_str().unwrap()).collect();
        assert_eq!(organizations, [AGENTS_GROUP, group.as_str()]);
        let names: Vec<_> = info.subject.iter_common_name().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(names, ["bedplate:machine:node-1"]);
    }

    #[test]
    fn request_of_an_earlier_agent_is_made_again_with_its_group() {
        let directory = tempfile::tempdir().unwrap();
        let machine = "node-1".parse().unwrap();
        let identity = Identity::open(directory.path(), &machine).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, AGENTS_GROUP);
        let earlier = params.serialize_request(&identity.key).unwrap().pem().unwrap();
        std::fs::write(directory.path().join("node-1.csr.pem"), &earlier).unwrap();
        let again = Identity::open(directory.path(), &machine).unwrap();
        assert_ne!(again.csr_pem(), earlier);
        assert_eq!(again.key_pem(), identity.key_pem(), "the key stays");
    }

    #[test]
    fn d4_certificate_with_the_group_of_another_key_names_no_enrollment() {
        let certificate = |groups: &[&str], key: &KeyPair| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name = DistinguishedName::new();
            let types = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
            for (type_, group) in types.into_iter().zip(groups) {
                params.distinguished_name.push(type_, *group);
            }
            params.self_signed(key).unwrap().pem()
        };
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let group = |key: &KeyPair| KeyId::of_public_key(&key.subject_public_key_info()).group();
        assert!(names_enrollment(&certificate(&[AGENTS_GROUP, &group(&key)], &key)));
        assert!(!names_enrollment(&certificate(&[AGENTS_GROUP, &group(&other)], &key)));
        assert!(!names_enrollment(&certificate(&[AGENTS_GROUP], &key)));
        assert!(!names_enrollment("no PEM"));
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
    fn next_key_replaces_the_key_only_with_its_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let (path, machine) = (directory.path(), "node-1".parse().unwrap());
        let first = Identity::open(path, &machine).unwrap();
        assert_eq!(Identity::open_for_enrollment(path, &machine).unwrap().csr_pem(), first.csr_pem());
        Identity::make_next(path).unwrap();
        let next = Identity::open_for_enrollment(path, &machine).unwrap();
        Identity::make_next(path).unwrap();
        let again = Identity::open_for_enrollment(path, &machine).unwrap();
        assert_eq!(
            (next.csr_pem(), next.key_pem()),
            (again.csr_pem(), again.key_pem()),
            "a repeat is the same"
        );
        assert_ne!(next.key_pem(), first.key_pem());
        assert_eq!(Identity::open(path, &machine).unwrap().key_pem(), first.key_pem(), "in use until then");

        let certificate = |identity: &Identity| {
            let key = KeyPair::from_pem(&identity.key_pem()).unwrap();
            CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap().pem()
        };
        Identity::adopt_next(path, &machine, &certificate(&first)).unwrap();
        assert_eq!(Identity::open(path, &machine).unwrap().key_pem(), first.key_pem());
        for _ in 0..2 {
            Identity::adopt_next(path, &machine, &certificate(&next)).unwrap();
            let adopted = Identity::open(path, &machine).unwrap();
            assert_eq!(adopted.key_pem(), next.key_pem());
            assert!(adopted.check(&certificate(&next)).is_ok());
            assert_eq!(Identity::open_for_enrollment(path, &machine).unwrap().key_pem(), next.key_pem());
        }
        assert!(!path.join(NEXT_KEY).exists());
    }

    #[test]
    fn a_damaged_key_is_named_and_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key.pem"), "damaged").unwrap();
        let error = Identity::open(directory.path(), &"node-1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("key.pem has no usable key"), "{error}");
        assert_eq!(std::fs::read(directory.path().join("key.pem")).unwrap(), b"damaged");
    }
}
