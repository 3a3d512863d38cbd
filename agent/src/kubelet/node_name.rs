//! Name of a kubelet's Node, by its client certificate (docs/design/rules.md, D5).
//!
//! A kubelet is the user `system:node:NAME` in the group `system:nodes` (Kubernetes, "Using Node Authorization"). The user data of a claim
//! chooses the name, so it is never guessed by the name of the Machine. Pure: PEM in, name out. Called by `client`.

use std::fmt;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Group of all kubelets.
const GROUP: &str = "system:nodes";
/// Prefix of the user name of a kubelet.
const USER_PREFIX: &str = "system:node:";
/// Maximum length of the name of an object (RFC 1123 subdomain).
const MAX_NAME_BYTES: usize = 253;

/// Valid name of a Node. It needs no escaping in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName(String);

/// Reason for which a certificate does not name a Node. The texts of the certificate are not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadNodeNameError {
    /// The text has no certificate in PEM.
    #[error("it cannot be read")]
    Unreadable,
    /// The certificate is not that of a kubelet.
    #[error("its subject is not O={GROUP}, CN={USER_PREFIX}NAME")]
    Subject,
    /// An API server accepts no Node of this name.
    #[error("the name in its subject is not a valid Node name")]
    Name,
}

impl NodeName {
    /// Reads the name in a client certificate (PEM). The first certificate of a chain counts.
    ///
    /// # Errors
    /// The certificate names no Node.
    pub(crate) fn of_certificate(pem: &str) -> Result<Self, ReadNodeNameError> {
        let der =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| ReadNodeNameError::Unreadable)?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| ReadNodeNameError::Unreadable)?;
        let subject = certificate.subject();
        let is_kubelet =
            subject.iter_organization().any(|group| group.as_str().is_ok_and(|text| text == GROUP));
        // An API server takes the last one of several names; a kubelet has one.
        let mut users = subject.iter_common_name();
        let (Some(user), None, true) = (users.next(), users.next(), is_kubelet) else {
            return Err(ReadNodeNameError::Subject);
        };
        let name = user.as_str().ok().and_then(|user| user.strip_prefix(USER_PREFIX));
        let name = name.ok_or(ReadNodeNameError::Subject)?;
        is_valid(name).then(|| Self(name.to_owned())).ok_or(ReadNodeNameError::Name)
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if an API server accepts this as the name of a Node (RFC 1123 subdomain).
fn is_valid(name: &str) -> bool {
    let is_edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        label.bytes().all(|byte| is_edge(byte) || byte == b'-')
            && label.bytes().next().is_some_and(is_edge)
            && label.bytes().last().is_some_and(is_edge)
    };
    name.len() <= MAX_NAME_BYTES && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn named(organization: &str, common: &str) -> Result<String, ReadNodeNameError> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, common);
        let key = KeyPair::generate().unwrap();
        // The file of a kubelet has the key next to the certificate.
        let pem = key.serialize_pem() + &params.self_signed(&key).unwrap().pem();
        NodeName::of_certificate(&pem).map(|name| name.to_string())
    }

    #[test]
    fn d5_name_is_that_of_the_user_in_the_group_of_kubelets() {
        let long = format!("{}.{}", "a".repeat(63), "b".repeat(63));
        for name in ["w-1", "w-1.team-a.example", "10.0.0.7", long.as_str()] {
            assert_eq!(named("system:nodes", &format!("system:node:{name}")), Ok(name.to_owned()));
        }
        for (organization, common) in [
            ("system:masters", "system:node:w-1"),
            ("system:nodes", "kubernetes-admin"),
            ("system:nodes", "w-1"),
            ("system:nodes", "x-system:node:w-1"),
        ] {
            let found = named(organization, common);
            assert_eq!(found, Err(ReadNodeNameError::Subject), "{organization} {common}");
        }
        for pem in ["", "no pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(NodeName::of_certificate(pem), Err(ReadNodeNameError::Unreadable), "{pem}");
        }
    }

    #[test]
    fn d5_text_that_is_not_a_node_name_reaches_no_url() {
        let long = "a".repeat(254);
        let texts =
            ["", ".", "..", "a..b", "../secrets", "w-1/status", "w-1?x=y", "w%2d1", "W-1", "-w", "w-", "w 1"];
        for text in texts.into_iter().chain([long.as_str(), "ü", "w-1\n"]) {
            let found = named("system:nodes", &format!("system:node:{text}"));
            assert_eq!(found, Err(ReadNodeNameError::Name), "{text:?}");
        }
    }
}
