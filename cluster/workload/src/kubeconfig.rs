//! Pure: reads the kubeconfig of a workload cluster. Users write it, so only a server, its authority and a credential are accepted.
//!
//! What would run a program, read a file of this process, use a proxy or skip the check of the server is refused by name. An error has no value of
//! the document.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use secrecy::SecretString;
use serde::Deserialize;
use thiserror::Error;
use zeroize::Zeroizing;

/// Maximum size in bytes.
const MAX_SIZE: usize = 64 * 1024;
/// Maximum number of clusters, of users and of contexts.
const MAX_ENTRIES: usize = 16;

/// A kubeconfig that may be used. It has no `Debug`, because it has secrets.
#[derive(Clone)]
pub struct Kubeconfig {
    /// `https` URL of the API server.
    pub(crate) server: String,
    /// Host of the URL, without brackets.
    pub(crate) host: String,
    /// Name in the certificate of the server, if it is not the host.
    pub(crate) tls_server_name: Option<String>,
    /// Certificates of the authority, in DER.
    pub(crate) authority: Vec<Vec<u8>>,
    /// Credential.
    pub(crate) credential: Credential,
}

/// Credential of a user.
#[derive(Clone)]
pub(crate) enum Credential {
    /// A bearer token.
    Token(SecretString),
    /// A client certificate with its key, both in base64 of PEM.
    Certificate(String, SecretString),
}

/// Reason why a kubeconfig is not used. It has names of fields only.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KubeconfigError {
    /// The document is too large.
    #[error("kubeconfig has more than 65536 bytes")]
    TooLarge,
    /// The document is not YAML of the known form.
    #[error("kubeconfig is not valid YAML with clusters, users and contexts")]
    Invalid,
    /// A list has too many entries.
    #[error("kubeconfig has more than 16 {0}")]
    TooMany(&'static str),
    /// An entry is missing that another one names.
    #[error("kubeconfig has no {0}")]
    Missing(&'static str),
    /// A field that is not accepted is set.
    #[error(
        "kubeconfig has {0}, which is not accepted; use certificate-authority-data with a token or a client certificate"
    )]
    Refused(&'static str),
    /// A field has a value that cannot be used.
    #[error("{0} of the kubeconfig cannot be used")]
    Unusable(&'static str),
}

/// Fields of a cluster or a user that are refused, by their names. All other unknown fields have no effect.
macro_rules! refused {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $key:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Deserialize, Default)]
        struct $name {
            $(#[serde(rename = $key, default)] $field: Option<Set>,)+
        }

        impl $name {
            fn first(&self) -> Option<&'static str> {
                $(if self.$field.as_ref().is_some_and(|set| set.0) { return Some($key); })+
                None
            }
        }
    };
}

refused! {
    /// Refused fields of a cluster.
    RefusedOfCluster {
        insecure: "insecure-skip-tls-verify",
        file: "certificate-authority",
        proxy: "proxy-url",
    }
}

refused! {
    /// Refused fields of a user.
    RefusedOfUser {
        exec: "exec",
        provider: "auth-provider",
        certificate: "client-certificate",
        key: "client-key",
        token: "tokenFile",
        token_alias: "token-file",
        impersonate: "as",
        impersonated: "act-as",
        impersonate_uid: "as-uid",
        impersonate_groups: "as-groups",
        impersonate_extra: "as-user-extra",
        username: "username",
        password: "password",
    }
}

/// True if a field has a value other than null, false and an empty text.
struct Set(bool);

impl<'de> Deserialize<'de> for Set {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Forms without an effect.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Flag(bool),
            Text(String),
            Nothing(()),
            Other(serde::de::IgnoredAny),
        }
        Ok(Self(match Form::deserialize(deserializer)? {
            Form::Flag(flag) => flag,
            Form::Text(text) => !text.is_empty() && text != "false",
            Form::Nothing(()) => false,
            Form::Other(_) => true,
        }))
    }
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(rename = "current-context", default)]
    current_context: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
struct Cluster {
    #[serde(default)]
    server: String,
    #[serde(rename = "certificate-authority-data", default)]
    authority: String,
    #[serde(rename = "tls-server-name", default)]
    tls_server_name: Option<String>,
    #[serde(flatten)]
    refused: RefusedOfCluster,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    token: Option<SecretString>,
    #[serde(rename = "client-certificate-data", default)]
    certificate: Option<String>,
    #[serde(rename = "client-key-data", default)]
    key: Option<SecretString>,
    #[serde(flatten)]
    refused: RefusedOfUser,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

impl Kubeconfig {
    /// Reads the current context of a kubeconfig.
    ///
    /// # Errors
    /// [`KubeconfigError`]
    pub fn parse(text: &[u8]) -> Result<Self, KubeconfigError> {
        if text.len() > MAX_SIZE {
            return Err(KubeconfigError::TooLarge);
        }
        let text = std::str::from_utf8(text).map_err(|_| KubeconfigError::Invalid)?;
        let Document { clusters, users, contexts, current_context } =
            serde_saphyr::from_str(text).map_err(|_| KubeconfigError::Invalid)?;
        for (name, length) in
            [("clusters", clusters.len()), ("users", users.len()), ("contexts", contexts.len())]
        {
            if length > MAX_ENTRIES {
                return Err(KubeconfigError::TooMany(name));
            }
        }
        let context = contexts.into_iter().find(|named| named.name == current_context);
        let context = context.ok_or(KubeconfigError::Missing("current-context"))?.context;
        let cluster = clusters.into_iter().find(|named| named.name == context.cluster);
        let cluster = cluster.ok_or(KubeconfigError::Missing("cluster of its current context"))?.cluster;
        let user = users.into_iter().find(|named| named.name == context.user);
        let user = user.ok_or(KubeconfigError::Missing("user of its current context"))?.user;
        if let Some(field) = cluster.refused.first().or_else(|| user.refused.first()) {
            return Err(KubeconfigError::Refused(field));
        }
        let host = host(&cluster.server).ok_or(KubeconfigError::Unusable("server"))?;
        Ok(Self {
            host,
            authority: authority(&cluster.authority)?,
            server: cluster.server,
            tls_server_name: cluster.tls_server_name.filter(|name| !name.is_empty()),
            credential: credential(user)?,
        })
    }
}

/// Returns the host of an `https` URL, without brackets. The URL may have a port and a path; a user in it is not accepted.
fn host(server: &str) -> Option<String> {
    let uri: http::Uri = server.parse().ok()?;
    let authority = uri.authority()?;
    let is_accepted =
        uri.scheme_str() == Some("https") && !authority.as_str().contains('@') && uri.query().is_none();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    (is_accepted && !host.is_empty()).then(|| host.to_owned())
}

fn authority(data: &str) -> Result<Vec<Vec<u8>>, KubeconfigError> {
    const FIELD: &str = "certificate-authority-data";
    if data.is_empty() {
        return Err(KubeconfigError::Missing(FIELD));
    }
    let pem = STANDARD.decode(data.trim()).map_err(|_| KubeconfigError::Unusable(FIELD))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|_| KubeconfigError::Unusable(FIELD))?;
    if certificates.is_empty() {
        return Err(KubeconfigError::Unusable(FIELD));
    }
    Ok(certificates.iter().map(|certificate| certificate.to_vec()).collect())
}

fn credential(user: User) -> Result<Credential, KubeconfigError> {
    use secrecy::ExposeSecret as _;
    let is_set = |secret: &SecretString| !secret.expose_secret().is_empty();
    let token = user.token.filter(is_set);
    let certificate = user.certificate.filter(|text| !text.is_empty());
    match (token, certificate, user.key.filter(is_set)) {
        (_, Some(certificate), Some(key)) => {
            let is_base64 = |text: &str| STANDARD.decode(text.trim()).map(Zeroizing::new).is_ok();
            if !is_base64(&certificate) {
                return Err(KubeconfigError::Unusable("client-certificate-data"));
            }
            if !is_base64(key.expose_secret()) {
                return Err(KubeconfigError::Unusable("client-key-data"));
            }
            Ok(Credential::Certificate(certificate, key))
        }
        (_, Some(_), None) => Err(KubeconfigError::Missing("client-key-data")),
        (_, None, Some(_)) => Err(KubeconfigError::Missing("client-certificate-data")),
        (Some(token), None, None) => Ok(Credential::Token(token)),
        (None, None, None) => Err(KubeconfigError::Missing("token and no client certificate")),
    }
}

#[cfg(test)]
#[path = "kubeconfig/tests.rs"]
mod tests;
