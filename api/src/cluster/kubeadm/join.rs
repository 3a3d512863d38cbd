//! `kubeadm join` and its discovery of the cluster.
//!
//! Not here: the documents that kubeadm reads. `bedplate-bootstrap` renders them from these types.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::node::{LocalApiEndpoint, NodeRegistration, Patches, Timeouts};

/// `kubeadm join`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct JoinConfiguration {
    /// Registration of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration: Option<NodeRegistration>,
    /// Path of the cluster's certificate authority on a worker. If unset, `/etc/kubernetes/pki/ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub ca_cert_path: Option<String>,
    /// Discovery of the cluster. Everything that is unset is filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<Discovery>,
    /// The machine joins the control plane. A worker must not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<JoinControlPlane>,
    /// Phases of `kubeadm join` to skip, at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 50), inner(length(min = 1, max = 256)))]
    pub skip_phases: Vec<String>,
    /// Patches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<Patches>,
    /// Timeouts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
}

/// A machine that joins the control plane.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct JoinControlPlane {
    /// Endpoint of the API server on the machine.
    #[serde(rename = "localAPIEndpoint", default, skip_serializing_if = "Option::is_none")]
    pub local_api_endpoint: Option<LocalApiEndpoint>,
}

/// Discovery of the cluster: by token, which is the default, or by a kubeconfig.
#[derive(KubeSchema, Serialize, Deserialize, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Discovery {
    /// Discovery by token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_token: Option<TokenDiscovery>,
    /// Discovery by a kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileDiscovery>,
    /// Token with which the kubelet asks for its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub tls_bootstrap_token: Option<String>,
}

/// Without the token.
impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery")
            .field("bootstrap_token", &self.bootstrap_token)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// Discovery by token.
#[derive(KubeSchema, Serialize, Deserialize, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct TokenDiscovery {
    /// The token. If unset, the provider makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub token: Option<String>,
    /// The API server as `host:port`. If unset, the endpoint of the Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub api_server_endpoint: Option<String>,
    /// Hashes of the cluster's certificate authorities, at most 100. If unset, those of the Secret `<cluster>-ca`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 512)))]
    pub ca_cert_hashes: Vec<String>,
    /// True if the certificate authority is not verified.
    #[serde(rename = "unsafeSkipCAVerification", default, skip_serializing_if = "Option::is_none")]
    pub unsafe_skip_ca_verification: Option<bool>,
}

/// Without the token.
impl std::fmt::Debug for TokenDiscovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenDiscovery")
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("api_server_endpoint", &self.api_server_endpoint)
            .field("ca_cert_hashes", &self.ca_cert_hashes)
            .field("unsafe_skip_ca_verification", &self.unsafe_skip_ca_verification)
            .finish()
    }
}

/// Discovery by a kubeconfig.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct FileDiscovery {
    /// Path of the kubeconfig on the machine.
    #[schemars(length(min = 1, max = 512))]
    pub kube_config_path: String,
    /// The kubeconfig to write to the path. If unset, the image or `files` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_config: Option<KubeConfig>,
}

/// A kubeconfig.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfig {
    /// The cluster. Everything that is unset is filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<KubeConfigCluster>,
    /// The user.
    pub user: KubeConfigUser,
}

/// The cluster of a kubeconfig.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeConfigCluster {
    /// URL of the API server. If unset, the endpoint of the Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub server: Option<String>,
    /// Name in the certificate of the API server.
    #[serde(rename = "tlsServerName", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub tls_server_name: Option<String>,
    /// True if the certificate of the API server is not verified.
    #[serde(rename = "insecureSkipTLSVerify", default, skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
    /// Certificate authorities in PEM, as base64. If unset, those of the Secret `<cluster>-ca`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 51200), extend("format" = "byte"))]
    pub certificate_authority_data: Option<String>,
    /// URL of the proxy.
    #[serde(rename = "proxyURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub proxy_url: Option<String>,
}

/// The user of a kubeconfig: one of the two.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
#[x_kube(validation = Rule::new("has(self.authProvider) != has(self.exec)").message("exactly one of authProvider and exec must be set"))]
pub struct KubeConfigUser {
    /// An authentication provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_provider: Option<AuthProvider>,
    /// A program that gives credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
}

/// An authentication provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct AuthProvider {
    /// Name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
}

/// A program that gives credentials.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Exec {
    /// The program.
    #[schemars(length(min = 1, max = 1024))]
    pub command: String,
    /// Its arguments, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 512)))]
    pub args: Vec<String>,
    /// Its environment variables, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub env: Vec<ExecVariable>,
    /// Version of its API. If unset, `client.authentication.k8s.io/v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub api_version: Option<String>,
    /// True if the program gets the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provide_cluster_info: Option<bool>,
}

/// An environment variable of a program that gives credentials.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ExecVariable {
    /// Name.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// Value.
    #[schemars(length(min = 1, max = 512))]
    pub value: String,
}
