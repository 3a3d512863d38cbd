//! The cluster and `kubeadm init`.
//!
//! Not here: the documents that kubeadm reads. `bedplate-bootstrap` renders them from these types.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::node::{
    Argument, EnvironmentVariable, HostPathMount, LocalApiEndpoint, NodeRegistration, Patches, Timeouts,
};
use super::schema::{arguments, environment};

/// The cluster that kubeadm makes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterConfiguration {
    /// The API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server: Option<ApiServer>,
    /// The controller manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_manager: Option<Component>,
    /// The scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Component>,
    /// etcd, on the machines of the control plane or external.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<Etcd>,
    /// The DNS add-on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Image>,
    /// Endpoint of the control plane as `host:port`. If unset, that of the Cluster counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub control_plane_endpoint: Option<String>,
    /// Directory of the certificates. If unset, `/etc/kubernetes/pki`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub certificates_dir: Option<String>,
    /// Registry of the images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image_repository: Option<String>,
    /// Feature gates of kubeadm.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Validity of certificates in days, 1 to 1,095. kubeadm reads it from version 1.31 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1095))]
    pub certificate_validity_period_days: Option<i32>,
    /// Validity of certificate authorities in days, 1 to 36,500.
    #[serde(rename = "caCertificateValidityPeriodDays", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 36500))]
    pub ca_certificate_validity_period_days: Option<i32>,
    /// Algorithm of keys: `RSA-2048` (default), `RSA-3072`, `RSA-4096`, `ECDSA-P256` or `ECDSA-P384`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["ECDSA-P256", "ECDSA-P384", "RSA-2048", "RSA-3072", "RSA-4096"]))]
    pub encryption_algorithm: Option<String>,
}

impl ClusterConfiguration {
    /// Returns the external etcd, if there is one.
    pub fn external_etcd(&self) -> Option<&ExternalEtcd> {
        self.etcd.as_ref().and_then(|etcd| etcd.external.as_ref())
    }
}

/// A component of the control plane.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Component {
    /// Arguments, at most 100, each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub extra_args: Vec<Argument>,
    /// Environment variables, at most 100. kubeadm reads them from version 1.31 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "environment")]
    pub extra_envs: Vec<EnvironmentVariable>,
    /// Files and directories of the host, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub extra_volumes: Vec<HostPathMount>,
}

/// The API server.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ApiServer {
    /// Arguments, at most 100, each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub extra_args: Vec<Argument>,
    /// Environment variables, at most 100. kubeadm reads them from version 1.31 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "environment")]
    pub extra_envs: Vec<EnvironmentVariable>,
    /// Files and directories of the host, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub extra_volumes: Vec<HostPathMount>,
    /// Further names and addresses in the certificate, at most 100.
    #[serde(rename = "certSANs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 253)))]
    pub cert_sans: Vec<String>,
}

/// An image of an add-on.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Image {
    /// Registry of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image_repository: Option<String>,
    /// Tag of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub image_tag: Option<String>,
}

/// etcd.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Etcd {
    /// etcd on the machines of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalEtcd>,
    /// etcd that users run. Its certificates are in the Secrets `<cluster>-etcd` and `<cluster>-apiserver-etcd-client`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalEtcd>,
}

/// etcd on the machines of the control plane.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct LocalEtcd {
    /// Registry of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image_repository: Option<String>,
    /// Tag of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub image_tag: Option<String>,
    /// Directory of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub data_dir: Option<String>,
    /// Arguments, at most 100, each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub extra_args: Vec<Argument>,
    /// Environment variables, at most 100. kubeadm reads them from version 1.31 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "environment")]
    pub extra_envs: Vec<EnvironmentVariable>,
    /// Further names and addresses in the certificate of the server, at most 100.
    #[serde(rename = "serverCertSANs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 253)))]
    pub server_cert_sans: Vec<String>,
    /// Further names and addresses in the certificate for peers, at most 100.
    #[serde(rename = "peerCertSANs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 253)))]
    pub peer_cert_sans: Vec<String>,
}

/// etcd that users run.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ExternalEtcd {
    /// URLs of the members, 1 to 50.
    #[schemars(length(min = 1, max = 50), inner(length(min = 1, max = 512)))]
    pub endpoints: Vec<String>,
    /// Path of the certificate authority on the machine.
    #[schemars(length(min = 1, max = 512))]
    pub ca_file: String,
    /// Path of the client certificate on the machine.
    #[schemars(length(min = 1, max = 512))]
    pub cert_file: String,
    /// Path of the key of the client certificate on the machine.
    #[schemars(length(min = 1, max = 512))]
    pub key_file: String,
}

/// `kubeadm init`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct InitConfiguration {
    /// Bootstrap tokens to create, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub bootstrap_tokens: Vec<BootstrapToken>,
    /// Registration of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration: Option<NodeRegistration>,
    /// Endpoint of the API server on the machine.
    #[serde(rename = "localAPIEndpoint", default, skip_serializing_if = "Option::is_none")]
    pub local_api_endpoint: Option<LocalApiEndpoint>,
    /// Phases of `kubeadm init` to skip, at most 50.
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

/// A bootstrap token that `kubeadm init` creates.
#[derive(KubeSchema, Serialize, Deserialize, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapToken {
    /// The token, such as `abcdef.0123456789abcdef`.
    #[schemars(length(min = 1, max = 23))]
    pub token: String,
    /// Description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub description: Option<String>,
    /// Lifetime in seconds. 0: it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds: Option<i32>,
    /// Time at which it expires (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires: Option<String>,
    /// Usages: `signing`, `authentication`. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 256)))]
    pub usages: Vec<String>,
    /// Groups of the user, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 256)))]
    pub groups: Vec<String>,
}

/// Without the token.
impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapToken").field("description", &self.description).finish_non_exhaustive()
    }
}
