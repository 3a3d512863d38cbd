//! Pure: discovery of the API server by a node, and its trust in it: a kubeconfig with a certificate of its
//! kubelet, or a token and the hash of the cluster's CA (Trust 5).

use std::fmt;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use crate::document::yaml;
use crate::field_error::{FieldError, FieldErrors};

/// Discovery of the API server, and the trust in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Discovery<'a> {
    /// A kubeconfig whose client certificate also requests the kubelet's, so no token is shared.
    File {
        /// Absolute path of the kubeconfig in the slot.
        kubeconfig_path: &'a str,
    },
    /// A bootstrap token, and the cluster's CA certificates by hash.
    Token {
        /// The API server as `host:port`.
        endpoint: &'a str,
        /// Such as `abcdef.0123456789abcdef`.
        token: &'a str,
        /// Hashes of the CA certificates, in the form of [`ca_cert_hashes`].
        ca_cert_hashes: &'a [String],
    },
}

/// Without the token.
impl fmt::Debug for Discovery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { kubeconfig_path } => write!(f, "File({kubeconfig_path})"),
            Self::Token { endpoint, .. } => write!(f, "Token({endpoint})"),
        }
    }
}

impl Discovery<'_> {
    /// Renders kubeadm's `discovery`.
    pub(crate) fn document(self, errors: &mut FieldErrors) -> Value {
        match self {
            Self::File { kubeconfig_path } => json!({"file": {"kubeConfigPath": kubeconfig_path}}),
            Self::Token { endpoint, token, ca_cert_hashes } => {
                let mut wrong = |what: &str, expected: &str| {
                    let field = format!("the join's {what}");
                    errors.push(FieldError::InvalidField { field, expected: expected.to_owned() });
                };
                if endpoint.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                    wrong("API server", "must be host:port");
                }
                if !is_token(token) {
                    wrong("bootstrap token", "must be like abcdef.0123456789abcdef");
                }
                if ca_cert_hashes.is_empty() || !ca_cert_hashes.iter().all(|hash| is_hash(hash)) {
                    wrong("CA hashes", "must be at least one of sha256: and 64 lower-case hex digits");
                }
                json!({"bootstrapToken": {
                    "apiServerEndpoint": endpoint, "token": token, "caCertHashes": ca_cert_hashes,
                }})
            }
        }
    }
}

fn is_token(token: &str) -> bool {
    let part = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    token.split_once('.').is_some_and(|(id, secret)| part(id, 6) && part(secret, 16))
}

fn is_hash(hash: &str) -> bool {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    hash.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(digit))
}

/// A CA bundle that gives no hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HashCaError {
    /// The file contains no certificate.
    #[error("the CA bundle has no PEM certificate")]
    Empty,
    /// A block cannot be read.
    #[error("cannot read certificate {number} of the CA bundle: {why}")]
    Unreadable {
        /// Number of the certificate, from 1.
        number: usize,
        /// Message of the parser.
        why: String,
    },
}

/// Returns the hash of every certificate in a PEM bundle in the form of kubeadm: `sha256:` and the SHA-256 of
/// its SubjectPublicKeyInfo in lower-case hex (RFC 7469, 2.4, but hex).
///
/// # Errors
/// No certificate, or one that cannot be read.
pub fn ca_cert_hashes(pem: &str) -> Result<Vec<String>, HashCaError> {
    let mut hashes = Vec::new();
    for (number, block) in (1..).zip(Pem::iter_from_buffer(pem.as_bytes())) {
        let unreadable = |why: String| HashCaError::Unreadable { number, why };
        let block = block.map_err(|error| unreadable(error.to_string()))?;
        let certificate = block.parse_x509().map_err(|error| unreadable(error.to_string()))?;
        let mut hash = "sha256:".to_owned();
        for byte in Sha256::digest(certificate.public_key().raw) {
            let _ = write!(hash, "{byte:02x}");
        }
        if !hashes.contains(&hash) {
            hashes.push(hash);
        }
    }
    if hashes.is_empty() { Err(HashCaError::Empty) } else { Ok(hashes) }
}

/// Identity and cluster of a node that joins: the contents of its kubeconfig. All PEM.
#[derive(Clone, Copy)]
pub struct JoinIdentity<'a> {
    /// The API server as `host:port` or as an `https://` URL.
    pub endpoint: &'a str,
    /// The cluster's CA certificates.
    pub ca: &'a str,
    /// Client certificate of the kubelet with its chain.
    pub certificate: &'a str,
    /// Private key.
    pub key: &'a str,
}

/// Without the key.
impl fmt::Debug for JoinIdentity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinIdentity({})", self.endpoint)
    }
}

/// Renders the kubeconfig of a join by file. It has a key: only root may read its file, which is removed
/// after the join. The result is the only copy of the key in memory, and is overwritten when it is dropped.
pub fn join_kubeconfig(identity: &JoinIdentity<'_>) -> Zeroizing<String> {
    const KEY: &str = "bedplate-kubelet-key";
    let server = match identity.endpoint {
        url if url.starts_with("https://") => url.to_owned(),
        host => format!("https://{host}"),
    };
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "cluster",
            "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(identity.ca)},
        }],
        "users": [{
            "name": "kubelet",
            "user": {
                "client-certificate-data": STANDARD.encode(identity.certificate),
                "client-key-data": KEY,
            },
        }],
        "contexts": [{"name": "join", "context": {"cluster": "cluster", "user": "kubelet"}}],
        "current-context": "join",
    });
    let text =
        yaml("Written by bedplate-agent for kubeadm join, removed when the node has joined.", &[document]);
    let (before, after) = text.rsplit_once(KEY).expect("the document names its key");
    let key = Zeroizing::new(STANDARD.encode(identity.key));
    // Nothing is moved while it grows.
    let mut kubeconfig = Zeroizing::new(String::with_capacity(text.len() + key.len()));
    kubeconfig.push_str(before);
    kubeconfig.push_str(&key);
    kubeconfig.push_str(after);
    kubeconfig
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let hex: String =
            Sha256::digest(key.subject_public_key_info()).iter().map(|byte| format!("{byte:02x}")).collect();
        (certificate.pem(), format!("sha256:{hex}"))
    }

    use rcgen::PublicKeyData as _;

    #[test]
    fn hash_is_that_of_the_public_key_and_each_is_named_once() {
        let ((first, one), (second, two)) = (certificate(), certificate());
        let bundle = format!("# a comment\n{first}\n{second}{first}");
        assert_eq!(ca_cert_hashes(&bundle), Ok(vec![one.clone(), two]));
        assert!(is_hash(&one));
    }

    #[test]
    fn bundle_without_certificate_is_an_error() {
        assert_eq!(ca_cert_hashes(""), Err(HashCaError::Empty));
        assert_eq!(ca_cert_hashes("no PEM"), Err(HashCaError::Empty));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(ca_cert_hashes(broken), Err(HashCaError::Unreadable { number: 1, .. })));
    }

    #[test]
    fn token_that_kubeadm_would_refuse_is_refused_without_naming_it() {
        let hashes = [format!("sha256:{}", "a".repeat(64))];
        let document = |endpoint, token, ca_cert_hashes: &[String]| {
            let mut errors = FieldErrors::default();
            let value = Discovery::Token { endpoint, token, ca_cert_hashes }.document(&mut errors);
            errors.or(value).map_err(|error| error.to_string())
        };
        assert!(document("10.0.0.1:6443", "abcdef.0123456789abcdef", &hashes).is_ok());
        assert!(document("[fd00::1]:6443", "abcdef.0123456789abcdef", &hashes).is_ok());
        assert!(document("10.0.0.1", "abcdef.0123456789abcdef", &hashes).is_err());
        assert!(document("10.0.0.1:6443", "abcdef.0123456789abcdef", &[]).is_err());
        assert!(document("10.0.0.1:6443", "abcdef.0123456789abcdef", &["sha256:A".into()]).is_err());
        let said = document("10.0.0.1:6443", "ABCDEF.secret", &hashes).unwrap_err();
        assert!(!said.contains("secret"), "{said}");
    }

    #[test]
    fn token_needs_an_id_of_6_and_a_secret_of_16_characters() {
        assert!(is_token("abcdef.0123456789abcdef"));
        for token in ["abcdef.0123456789abcde", "abcde.0123456789abcdef", "abcdef0123456789abcdef"] {
            assert!(!is_token(token), "{token}");
        }
    }

    #[test]
    fn hash_needs_64_lower_case_hex_digits() {
        let hash = |digit: &str, count: usize| format!("sha256:{}", digit.repeat(count));
        assert!(is_hash(&hash("0", 64)) && is_hash(&hash("f", 64)));
        for hash in [hash("0", 63), hash("0", 65), hash("g", 64), hash("A", 64), "0".repeat(64)] {
            assert!(!is_hash(&hash), "{hash}");
        }
    }

    #[test]
    fn kubeconfig_keeps_the_url_of_an_endpoint() {
        let endpoint = "https://k.example:6443";
        let identity = JoinIdentity { endpoint, ca: "CA", certificate: "CERT", key: "KEY" };
        let read: Value = serde_saphyr::from_str(&join_kubeconfig(&identity)).unwrap();
        assert_eq!(read["clusters"][0]["cluster"]["server"], endpoint);
    }

    #[test]
    fn kubeconfig_names_server_and_identity() {
        let identity = JoinIdentity { endpoint: "10.0.0.1:6443", ca: "CA", certificate: "CERT", key: "KEY" };
        let read: Value = serde_saphyr::from_str(&join_kubeconfig(&identity)).unwrap();
        assert_eq!(read["clusters"][0]["cluster"]["server"], "https://10.0.0.1:6443");
        assert_eq!(read["users"][0]["user"]["client-key-data"], STANDARD.encode("KEY"));
        assert!(!format!("{identity:?}").contains("KEY"));
    }
}
