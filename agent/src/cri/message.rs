//! Messages of `runtime.v1` that the agent needs, written by hand: seven of
//! about a hundred, so that no build needs protoc.
//!
//! Field numbers are those of k8s.io/cri-api, `pkg/apis/runtime/v1/api.proto`.
//! Omitted fields have their defaults.

use std::collections::HashMap;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusRequest {
    #[prost(bool, tag = "1")]
    pub(super) verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RuntimeStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub(super) conditions: Vec<RuntimeCondition>,
}

/// `RuntimeReady` and `NetworkReady` are required of every runtime.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub(super) r#type: String,
    #[prost(bool, tag = "2")]
    pub(super) status: bool,
    #[prost(string, tag = "3")]
    pub(super) reason: String,
    #[prost(string, tag = "4")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(super) attempt: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    pub(super) cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub(super) security_context: Option<LinuxSandboxSecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxSandboxSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(super) namespace_options: Option<NamespaceOption>,
}

/// `network` is a `NamespaceMode`, of which the agent needs `NODE_NAMESPACE`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(super) network: i32,
}

/// The namespace of the node, which for a Pod is the host network.
pub(super) const NODE_NAMESPACE: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    pub(super) hostname: String,
    #[prost(map = "string, string", tag = "6")]
    pub(super) labels: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub(super) linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RunPodSandboxResponse {
    #[prost(string, tag = "1")]
    pub(super) pod_sandbox_id: String,
}

/// Request of both StopPodSandbox and RemovePodSandbox.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxRequest {
    #[prost(string, tag = "1")]
    pub(super) pod_sandbox_id: String,
}

/// Answer without fields that the agent uses.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PodSandboxFilter {
    #[prost(map = "string, string", tag = "3")]
    pub(super) label_selector: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) filter: Option<PodSandboxFilter>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}
