//! A kubelet's kubeconfig, and requests to its API server.
//!
//! kubeadm's kubeconfig has its authority inline, and certificate and key by path; both forms are read.
//! Called by `kubelet`, by the health gate of a control plane and, when
//! standalone, by the watch of this host's Node.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::Value;
use zeroize::Zeroizing;

use super::client::AskNodeError;
use crate::https::request::{AskError, builder};

/// The kubelet's kubeconfig, made by kubeadm.
pub const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
/// Timeout of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a page.
const MOST_ANSWER: usize = 16 << 20;

/// Reader of a file of the slot. None: it does not exist.
pub type Read<'r> = &'r dyn Fn(&str) -> Result<Option<String>, AskNodeError>;

/// Credential of a kubelet, and its API server.
#[derive(Clone, PartialEq, Eq)]
pub struct KubeletCredential {
    /// The API server's URL, without a slash at its end.
    pub server: String,
    /// Certificate authorities of the API server (PEM).
    pub ca_pem: String,
    /// The kubelet's certificate chain (PEM).
    pub certificate_pem: String,
    /// Key of the kubelet (PEM).
    pub key_pem: Zeroizing<String>,
}

impl fmt::Debug for KubeletCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeletCredential").field("server", &self.server).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate_data: Option<String>,
    client_certificate: Option<String>,
    client_key_data: Option<String>,
    client_key: Option<String>,
}

impl KubeletCredential {
    /// Parses a kubeconfig. `read` returns the files that it names.
    ///
    /// # Errors
    /// Something is missing, or cannot be read.
    pub fn read(text: &str, read: Read<'_>) -> Result<Self, AskNodeError> {
        let wrong = |problem: &str| AskNodeError::Kubeconfig(problem.to_owned());
        // kubeadm's has one cluster and one user.
        let config: Kubeconfig = serde_saphyr::from_str(text)
            .map_err(|_| wrong("the file is not a kubeconfig with clusters and users"))?;
        let (Some(cluster), Some(user)) =
            (config.clusters.into_iter().next(), config.users.into_iter().next())
        else {
            return Err(wrong("the file names no cluster or no user"));
        };
        let (cluster, user) = (cluster.cluster, user.user);
        let pem = |what: &str, data: Option<String>, path: Option<String>| match (data, path) {
            (Some(data), _) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(data.trim());
                let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
                text.ok_or_else(|| AskNodeError::Kubeconfig(format!("{what} is not PEM encoded as base64")))
            }
            (None, Some(path)) => {
                read(&path)?.ok_or_else(|| AskNodeError::Kubeconfig(format!("{what} is missing at {path}")))
            }
            (None, None) => Err(AskNodeError::Kubeconfig(format!("{what} is missing"))),
        };
        Ok(Self {
            server: cluster.server.trim_end_matches('/').to_owned(),
            ca_pem: pem("the authority", cluster.certificate_authority_data, cluster.certificate_authority)?,
            certificate_pem: pem(
                "the client certificate",
                user.client_certificate_data,
                user.client_certificate,
            )?,
            key_pem: Zeroizing::new(pem("the client key", user.client_key_data, user.client_key)?),
        })
    }
}

/// Connection to the API server as a kubelet.
pub struct Way {
    https: reqwest::Client,
    server: String,
}

impl Way {
    /// Prepares requests with this credential.
    ///
    /// # Errors
    /// Its certificates cannot be used.
    pub fn new(credential: &KubeletCredential) -> Result<Self, AskNodeError> {
        let identity = (credential.certificate_pem.as_str(), credential.key_pem.as_str());
        let https = builder(&credential.ca_pem, Some(identity))?.timeout(ANSWER_TIMEOUT).build();
        let https = https.map_err(|error| AskError::Prepare(error.to_string()))?;
        Ok(Self { https, server: credential.server.clone() })
    }

    /// Requests a page that is not an object, such as `/readyz`. Returns HTTP status and text.
    ///
    /// # Errors
    /// No answer.
    pub async fn page(&self, path: &str) -> Result<(u16, String), AskNodeError> {
        let (_, status, bytes) = self.send(Method::GET, path, None).await?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Value)>,
    ) -> Result<(String, u16, Vec<u8>), AskNodeError> {
        let url = format!("{}{path}", self.server);
        let transport = |source: reqwest::Error| AskNodeError::Transport {
            url: url.clone(),
            source: source.without_url(),
        };
        let mut request = self.https.request(method, &url);
        if let Some((kind, body)) = body {
            request = request.header(CONTENT_TYPE, kind).body(body.to_string());
        }
        let mut response = request.send().await.map_err(transport)?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(transport)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MOST_ANSWER {
                return Err(AskNodeError::Answer(url));
            }
        }
        Ok((url, status, bytes))
    }

    /// Sends a request whose parameters are an object.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Value)>,
    ) -> Result<Value, AskNodeError> {
        let (url, status, bytes) = self.send(method, path, body).await?;
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if !(200..300).contains(&status) {
            let message = answer["message"].as_str().unwrap_or("no reason given").chars().take(500).collect();
            let again = answer["details"]["retryAfterSeconds"]
                .as_u64()
                .and_then(|seconds| u32::try_from(seconds).ok());
            return Err(AskNodeError::Refused { url, status, message, again });
        }
        if answer.is_object() { Ok(answer) } else { Err(AskNodeError::Answer(url)) }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub async fn get(&self, path: &str) -> Result<Value, AskNodeError> {
        self.ask(Method::GET, path, None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeadms_kubeconfig_is_read_and_what_is_missing_is_said() {
        let read = |path: &str| match path {
            "/var/lib/kubelet/pki/kubelet-client-current.pem" => Ok(Some("no pem".to_owned())),
            _ => Ok(None),
        };
        let config = "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    \
                      server: https://k:6443\n  name: default-cluster\nusers:\n- name: default-auth\n  user:\n    \
                      client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n    client-key: /nothing\n";
        let problem = |config: &str| KubeletCredential::read(config, &read).unwrap_err().to_string();
        assert!(problem(config).contains("the client key is missing at /nothing"), "{}", problem(config));
        assert!(problem("users: []\nclusters: []\n").contains("no cluster"));
        assert!(problem("- 1\n").contains("not a kubeconfig"));
    }
}
