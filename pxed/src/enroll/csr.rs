//! Certificate signing request (PKCS#10), parsed and checked.
//!
//! Pure. The signature proves that the sender has the key; the subject must match the token.

use bedplate_api::enrollment::{AGENT_USER_PREFIX, CheckGroupsError, KeyId, check_groups};
use bedplate_api::id::{Digest, MachineName};
use rcgen::CertificateSigningRequestParams;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::UID_OID;

/// Bytes of a request (PEM); an RSA key of 8192 bits needs about 3 KiB.
const MAX_BYTES: usize = 16 << 10;

/// Error of reading a request.
#[derive(Debug, Error)]
pub enum ReadRequestError {
    /// Too large.
    #[error("the request is larger than 16 KiB")]
    TooLarge,
    /// The body is not PEM, or not a request.
    #[error("the body is not a certificate signing request (PEM)")]
    Unreadable,
    /// The signature is not by the key, or the key is of a kind that is not taken.
    #[error("the request cannot be verified")]
    Unverified(#[source] rcgen::Error),
    /// The subject names another user.
    #[error("the request is for {found}; it must be for CN={AGENT_USER_PREFIX}{machine}")]
    Subject {
        /// Machine in the request.
        found: String,
        /// Required Machine.
        machine: MachineName,
    },
    /// The subject names other groups than those of the key, or not all of them.
    #[error("the groups (O) of the request are not those of its key")]
    Groups(#[source] CheckGroupsError),
}

/// A request whose signature is good.
pub struct CertificateRequest {
    /// As it was sent.
    pub pem: String,
    /// SHA-256 of the SubjectPublicKeyInfo.
    pub key: Digest,
    /// Request as parsed by the library; only its key is used.
    pub params: CertificateSigningRequestParams,
    common_names: Vec<String>,
    organizations: Vec<String>,
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
            organizations: texts(info.subject.iter_organization()),
            uids: uids(&info.subject),
            subject: info.subject.to_string(),
        })
    }

    /// ID of the key.
    pub fn key_id(&self) -> KeyId {
        KeyId::of_fingerprint(self.key)
    }

    /// Checks that the subject is empty or that of this Machine and of this key: the Machine's name and UID, the group of agents and the
    /// enrollment group of the key. Each part may be missing. `whole`: name and groups must be there, because the signer takes the subject as
    /// it is.
    ///
    /// # Errors
    /// [`ReadRequestError::Subject`], [`ReadRequestError::Groups`].
    pub(crate) fn check_subject(
        &self,
        (machine, uid): (&MachineName, &str),
        whole: bool,
    ) -> Result<(), ReadRequestError> {
        let name = format!("{AGENT_USER_PREFIX}{machine}");
        let named = self.common_names.iter().all(|found| *found == name) && self.common_names.len() <= 1;
        let complete = !self.common_names.is_empty();
        let same = self.uids.iter().all(|found| found == uid) && self.uids.len() <= 1;
        if !named || !same || (whole && !complete) {
            let found = if self.subject.is_empty() { "no user".to_owned() } else { self.subject.clone() };
            return Err(ReadRequestError::Subject { found, machine: machine.clone() });
        }
        let groups = self.organizations.iter().map(String::as_str);
        check_groups(self.key_id(), groups, !whole).map_err(ReadRequestError::Groups)
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
pub(crate) fn key_digest(public_key: &[u8]) -> Digest {
    Digest::from_sha256(Sha256::digest(public_key).into())
}

fn texts<'a>(attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Vec<String> {
    attributes.map(|attribute| attribute.as_str().unwrap_or("(unreadable)").to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use bedplate_api::enrollment::AGENTS_GROUP;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};

    use super::*;

    /// Types with the identifier of `organizationName`: the library keeps one value for each.
    fn organizations() -> [DnType; 2] {
        [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])]
    }

    /// A request for node1 by this key with these groups.
    fn request(key: &KeyPair, groups: &[&str]) -> CertificateRequest {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (type_, group) in organizations().into_iter().zip(groups) {
            params.distinguished_name.push(type_, *group);
        }
        params.distinguished_name.push(DnType::CommonName, "bedplate:machine:node1");
        CertificateRequest::read(&params.serialize_request(key).unwrap().pem().unwrap()).unwrap()
    }

    fn group(key: &KeyPair) -> String {
        KeyId::of_public_key(&key.subject_public_key_info()).group()
    }

    fn check(request: &CertificateRequest, whole: bool) -> Result<(), ReadRequestError> {
        request.check_subject((&"node1".parse().unwrap(), "u1"), whole)
    }

    #[test]
    fn trust_3_request_with_the_groups_of_its_key_is_taken() {
        let key = KeyPair::generate().unwrap();
        let own = request(&key, &[AGENTS_GROUP, &group(&key)]);
        assert_eq!(own.key_id().group(), group(&key));
        for whole in [true, false] {
            check(&own, whole).unwrap();
        }
    }

    #[test]
    fn trust_3_request_with_a_foreign_group_is_refused() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        for groups in [
            [AGENTS_GROUP, "system:masters"],
            [AGENTS_GROUP, "bedplate:enrollment:"],
            [AGENTS_GROUP, &group(&other)],
            ["kubeadm:cluster-admins", &group(&key)],
        ] {
            for whole in [true, false] {
                let refused = check(&request(&key, &groups), whole);
                let is_foreign =
                    matches!(refused, Err(ReadRequestError::Groups(CheckGroupsError::Foreign { .. })));
                assert!(is_foreign, "{groups:?} {whole}: {refused:?}");
            }
        }
    }

    #[test]
    fn trust_3_request_with_a_group_twice_is_refused() {
        let key = KeyPair::generate().unwrap();
        for groups in [[AGENTS_GROUP, AGENTS_GROUP], [&group(&key), &group(&key)]] {
            for whole in [true, false] {
                let refused = check(&request(&key, &groups), whole);
                let is_refused =
                    matches!(refused, Err(ReadRequestError::Groups(CheckGroupsError::Incomplete { .. })));
                assert!(is_refused, "{groups:?} {whole}: {refused:?}");
            }
        }
    }

    #[test]
    fn trust_3_request_without_enrollment_group_is_refused_by_a_cluster() {
        let key = KeyPair::generate().unwrap();
        let bare = request(&key, &[AGENTS_GROUP]);
        assert!(matches!(
            check(&bare, true),
            Err(ReadRequestError::Groups(CheckGroupsError::Incomplete { .. }))
        ));
        check(&bare, false).expect("pxed's own authority sets the groups");
    }
}
