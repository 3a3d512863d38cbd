//! `Cluster`: one cluster of Kubernetes (K1 to K10).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::contract::Endpoint;
use crate::cluster::part::{FailureDomain, Gate, Opaque, Reference};
use crate::schema::ClusterCidr;

/// Finalizer of the core controller on a Cluster.
pub const FINALIZER: &str = "cluster.cluster.x-k8s.io";

/// A cluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Cluster",
    plural = "clusters",
    shortname = "cl",
    category = "cluster-api",
    namespaced,
    status = "ClusterStatus",
    derive = "PartialEq",
    doc = "One cluster of Kubernetes.",
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name must have at most 63 characters: it is the value of a label"),
    printcolumn(name = "ClusterClass", type_ = "string", json_path = ".spec.topology.classRef.name"),
    printcolumn(name = "Available", type_ = "string", json_path = r#".status.conditions[?(@.type=="Available")].status"#),
    printcolumn(name = "CP Desired", type_ = "integer", json_path = ".status.controlPlane.desiredReplicas"),
    printcolumn(name = "CP Current", type_ = "integer", json_path = ".status.controlPlane.replicas", priority = 10),
    printcolumn(name = "CP Ready", type_ = "integer", json_path = ".status.controlPlane.readyReplicas", priority = 10),
    printcolumn(name = "CP Available", type_ = "integer", json_path = ".status.controlPlane.availableReplicas"),
    printcolumn(name = "CP Up-to-date", type_ = "integer", json_path = ".status.controlPlane.upToDateReplicas"),
    printcolumn(name = "W Desired", type_ = "integer", json_path = ".status.workers.desiredReplicas"),
    printcolumn(name = "W Current", type_ = "integer", json_path = ".status.workers.replicas", priority = 10),
    printcolumn(name = "W Ready", type_ = "integer", json_path = ".status.workers.readyReplicas", priority = 10),
    printcolumn(name = "W Available", type_ = "integer", json_path = ".status.workers.availableReplicas"),
    printcolumn(name = "W Up-to-date", type_ = "integer", json_path = ".status.workers.upToDateReplicas"),
    printcolumn(name = "Paused", type_ = "string", json_path = r#".status.conditions[?(@.type=="Paused")].status"#, priority = 10),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.topology.version")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
#[x_kube(
    validation = Rule::new("has(self.controlPlaneRef) || has(self.infrastructureRef) || has(self.topology)")
        .message("at least one of controlPlaneRef and infrastructureRef must be set"),
    validation = Rule::new("!has(oldSelf.controlPlaneRef) || has(self.controlPlaneRef)")
        .message("controlPlaneRef cannot be removed"),
    validation = Rule::new("!has(oldSelf.infrastructureRef) || has(self.infrastructureRef)")
        .message("infrastructureRef cannot be removed"),
    validation = Rule::new("!has(oldSelf.topology) || has(self.topology)").message("topology cannot be removed")
)]
pub struct ClusterSpec {
    /// True if no controller changes the objects of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Networks of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<ClusterNetwork>,
    /// Endpoint of the control plane. If unset, the core controller copies that of the infrastructure or of the control plane, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ClusterEndpoint>,
    /// Control plane of the cluster, such as a KubeadmControlPlane. If unset, Machines with the label `cluster.x-k8s.io/control-plane` are
    /// the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref: Option<Reference>,
    /// Infrastructure of the cluster, such as a BedplateCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<Reference>,
    /// Topology of a ClusterClass. It is not supported: the Cluster is not reconciled while it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Opaque>,
    /// Additional conditions of the Cluster that `Available` waits for, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["conditionType".into()]))]
    pub availability_gates: Vec<Gate>,
}

/// Networks of a cluster.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterNetwork {
    /// Port of the API servers on their hosts, 1 to 65535. If unset: 6443.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub api_server_port: Option<i32>,
    /// Networks of the Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<NetworkRanges>,
    /// Networks of the Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<NetworkRanges>,
    /// DNS domain of the Services, 1 to 253 characters. If unset: `cluster.local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_domain: Option<String>,
}

/// Networks in CIDR notation.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRanges {
    /// Networks, 1 to 100.
    #[schemars(length(min = 1, max = 100), with = "Vec<ClusterCidr>")]
    pub cidr_blocks: Vec<String>,
}

/// Address of a control plane.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterEndpoint {
    /// Host name or IP address, 1 to 512 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub host: Option<String>,
    /// Port of the API server, 1 to 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
}

impl ClusterEndpoint {
    /// Returns the endpoint, if both parts are set.
    pub fn complete(&self) -> Option<Endpoint> {
        let host = self.host.clone().filter(|host| !host.is_empty())?;
        let port = u16::try_from(self.port?).ok().filter(|port| *port > 0)?;
        Some(Endpoint { host, port })
    }
}

/// State of a Cluster. Written by the core controller.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterStatus {
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// Conditions of the Cluster, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Progress of the first provisioning. Its fields never change back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ClusterInitialization>,
    /// Machines of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<MachineCounts>,
    /// Machines of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<MachineCounts>,
    /// Failure domains of the infrastructure, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub failure_domains: Vec<FailureDomain>,
    /// State in one word. It is shown only (M11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClusterPhase>,
    /// Fields of earlier versions. Never written by Bedplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<Opaque>,
}

/// Progress of the first provisioning of a cluster.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterInitialization {
    /// True once the infrastructure is provisioned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
    /// True once the control plane has accepted requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

/// Numbers of Machines.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineCounts {
    /// Number of Machines that users ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of Machines that have the template of their owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// Number of Machines that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of Machines that are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
}

/// State of a Cluster in one word.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterPhase {
    /// The infrastructure object has no owner yet.
    Pending,
    /// The infrastructure is being provisioned.
    Provisioning,
    /// The infrastructure is provisioned, and the endpoint is set.
    Provisioned,
    /// The Cluster is deleted.
    Deleting,
    /// The infrastructure has failed. Not written by Bedplate.
    Failed,
    /// Unknown state, or a value of a later version.
    #[serde(other)]
    Unknown,
}

impl AsMut<Vec<Condition>> for ClusterStatus {
    fn as_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }
}
