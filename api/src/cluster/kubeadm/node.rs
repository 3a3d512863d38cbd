//! Registration of a node with kubeadm, and the parts that components share.
//!
//! Not here: the documents that kubeadm reads. `bedplate-bootstrap` renders them from these types.
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::api::core::v1::Taint;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schema::{arguments, value_source};

/// A command line argument.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Argument {
    /// Name without the leading dashes.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Value, may be empty.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// An environment variable. kubeadm reads it from version 1.31 on.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentVariable {
    /// Name.
    pub name: String,
    /// Value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Source of the value. It is passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "value_source")]
    pub value_from: Option<Value>,
}

/// A file or directory of the host that a component mounts.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HostPathMount {
    /// Name of the volume.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// Path on the host.
    #[schemars(length(min = 1, max = 512))]
    pub host_path: String,
    /// Path in the Pod.
    #[schemars(length(min = 1, max = 512))]
    pub mount_path: String,
    /// True if the component cannot write to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Type of the path, such as `DirectoryOrCreate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_type: Option<String>,
}

/// Endpoint of the API server on the machine itself.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[schemars(extend("minProperties" = 1))]
pub struct LocalApiEndpoint {
    /// Address that the API server announces.
    #[serde(rename = "advertiseAddress", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 39))]
    pub advertise_address: Option<String>,
    /// Port.
    #[serde(rename = "bindPort", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub bind_port: Option<i32>,
}

/// Registration of the node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct NodeRegistration {
    /// Name of the Node. If unset, the host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Socket of the container runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub cri_socket: Option<String>,
    /// Taints of the Node, at most 100. Empty: none. Unset: those that kubeadm sets for the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 0, max = 100))]
    pub taints: Option<Vec<Taint>>,
    /// Arguments of the kubelet, at most 100, each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub kubelet_extra_args: Vec<Argument>,
    /// Preflight checks of kubeadm that do not stop it, at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 50), inner(length(min = 1, max = 512)))]
    pub ignore_preflight_errors: Vec<String>,
    /// Pull policy of kubeadm: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
    pub image_pull_policy: Option<String>,
    /// True if images are pulled one after the other. kubeadm reads it from version 1.31 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_serial: Option<bool>,
}

/// Patches of kubeadm.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Patches {
    /// Directory of the patches on the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub directory: Option<String>,
}

/// Timeouts of kubeadm in seconds. kubeadm reads most of them from version 1.31 on.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[schemars(extend("minProperties" = 1))]
pub struct Timeouts {
    /// Wait for components of the control plane to be healthy.
    #[serde(
        rename = "controlPlaneComponentHealthCheckSeconds",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0))]
    pub control_plane_component_health_check_seconds: Option<i32>,
    /// Wait for the kubelet to be healthy.
    #[serde(rename = "kubeletHealthCheckSeconds", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub kubelet_health_check_seconds: Option<i32>,
    /// Requests to the API server.
    #[serde(rename = "kubernetesAPICallSeconds", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub kubernetes_api_call_seconds: Option<i32>,
    /// Requests to etcd.
    #[serde(rename = "etcdAPICallSeconds", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub etcd_api_call_seconds: Option<i32>,
    /// Wait for the certificate of the kubelet.
    #[serde(rename = "tlsBootstrapSeconds", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub tls_bootstrap_seconds: Option<i32>,
    /// Discovery of the cluster.
    #[serde(rename = "discoverySeconds", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub discovery_seconds: Option<i32>,
}
