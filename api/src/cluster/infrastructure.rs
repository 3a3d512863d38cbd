//! The infrastructure kinds of Cluster API: `BedplateCluster`, `BedplateMachine` and their templates (docs/infrastructure-provider.md).
//!
//! Types and validation only. Rules that compare objects, or that depend on the user, are policies in deploy/cluster-api.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::claim::{ClaimState, ReleasePolicy};
use crate::id::MachineName;
use crate::machine::{Address, ConfigurationRef};
use crate::schema::{ClaimProviderId, annotation_values, label_values};
use crate::selector::MachineSelector;

/// API group of the infrastructure kinds.
pub const GROUP: &str = "infrastructure.cluster.x-k8s.io";

/// Finalizer of the provider on a BedplateCluster and on a BedplateMachine.
pub const FINALIZER: &str = "infrastructure.cluster.x-k8s.io/bedplate";

/// Types of conditions.
pub mod condition_type {
    /// The object is provisioned and works.
    pub const READY: &str = "Ready";
    /// The BedplateMachine has a host.
    pub const HOST_CLAIMED: &str = "HostClaimed";
    /// The host of the BedplateMachine has become a Node.
    pub const BOOTSTRAP_SUCCEEDED: &str = "BootstrapSucceeded";
    /// The BedplateCluster has the endpoint of its control plane.
    pub const ENDPOINT_AVAILABLE: &str = "EndpointAvailable";
    /// The provider does not change the object.
    pub const PAUSED: &str = "Paused";
}

/// Address of a control plane.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Host name or IP address, 1 to 512 characters.
    #[schemars(length(min = 1, max = 512))]
    pub host: String,
    /// Port of the API server, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// The hosts of one cluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "BedplateCluster",
    plural = "bedplateclusters",
    shortname = "bpc",
    category = "cluster-api",
    namespaced,
    status = "BedplateClusterStatus",
    derive = "PartialEq",
    cel,
    doc = "The hosts of one cluster of Cluster API.",
    validation = Rule::new(
        "!has(oldSelf.spec.controlPlaneEndpoint) || \
         (has(self.spec.controlPlaneEndpoint) && self.spec.controlPlaneEndpoint == oldSelf.spec.controlPlaneEndpoint)"
    )
    .message("spec.controlPlaneEndpoint cannot be changed once it is set: the certificates of the control plane name it"),
    printcolumn(name = "Cluster", type_ = "string", json_path = r#".metadata.labels['cluster\.x-k8s\.io/cluster-name']"#),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".spec.controlPlaneEndpoint.host"),
    printcolumn(name = "Waiting", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterSpec {
    /// Endpoint of the control plane: an external load balancer, or an address that the nodes bring along. If unset, that of the Cluster
    /// counts. It cannot be changed once it is set. Written by users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<Endpoint>,
    /// Label of the host Machines (`machines.bedplate.dev`) whose values are the failure domains, such as `topology.kubernetes.io/zone`.
    /// If unset, there are no failure domains. Written by users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub failure_domain_label: Option<String>,
}

/// State of a BedplateCluster. Written by the provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterStatus {
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Progress of the first provisioning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// True if the cluster is provisioned, for readers of contracts before v1beta2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Failure domains of the hosts that the namespace may claim, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub failure_domains: Vec<FailureDomain>,
    /// `Ready`, `EndpointAvailable` and `Paused`. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Progress of the first provisioning.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Initialization {
    /// True once the object is provisioned. It stays True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// A failure domain.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Name: the value of the label `spec.failureDomainLabel`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// True if machines of the control plane may be in it.
    pub control_plane: bool,
}

/// One machine of a cluster. It claims one host.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "BedplateMachine",
    plural = "bedplatemachines",
    shortname = "bpm",
    category = "cluster-api",
    namespaced,
    status = "BedplateMachineStatus",
    derive = "PartialEq",
    cel,
    doc = "One machine of a cluster of Cluster API. It claims one host, and releases it when it is deleted.",
    validation = Rule::new(
        "!has(oldSelf.spec.providerID) || (has(self.spec.providerID) && self.spec.providerID == oldSelf.spec.providerID && \
         has(self.spec.machineName) && self.spec.machineName == oldSelf.spec.machineName)"
    )
    .message("machineName and providerID cannot be changed once providerID is set: delete the object to release its host"),
    validation = Rule::new(
        "self.spec.configurationRef.name == oldSelf.spec.configurationRef.name && \
         has(self.spec.configurationRef.version) == has(oldSelf.spec.configurationRef.version) && \
         (!has(self.spec.configurationRef.version) || self.spec.configurationRef.version == oldSelf.spec.configurationRef.version)"
    )
    .message("configurationRef cannot be changed: create a new template, and the owner replaces the machine"),
    validation = Rule::new(
        "has(self.spec.machineSelector) == has(oldSelf.spec.machineSelector) && \
         (!has(self.spec.machineSelector) || self.spec.machineSelector == oldSelf.spec.machineSelector)"
    )
    .message("machineSelector cannot be changed: create a new template, and the owner replaces the machine"),
    validation = Rule::new(
        "has(self.spec.release) == has(oldSelf.spec.release) && (!has(self.spec.release) || self.spec.release == oldSelf.spec.release) && \
         has(self.spec.stateDisk) == has(oldSelf.spec.stateDisk) && (!has(self.spec.stateDisk) || self.spec.stateDisk == oldSelf.spec.stateDisk)"
    )
    .message("release and stateDisk cannot be changed: create a new template, and the owner replaces the machine"),
    printcolumn(name = "Cluster", type_ = "string", json_path = r#".metadata.labels['cluster\.x-k8s\.io/cluster-name']"#),
    printcolumn(name = "Machine", type_ = "string", json_path = ".spec.machineName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.bootstrap.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Waiting", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "ProviderID", type_ = "string", json_path = ".spec.providerID", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.providerID) || has(self.machineName)")
        .message("machineName must be set when providerID is set"),
    validation = Rule::new("!has(self.providerID) || !has(self.machineName) || self.providerID.split('/')[2] == self.machineName")
        .message("providerID must be bedplate://<machineName>/<UID of this object>")
)]
pub struct BedplateMachineSpec {
    /// Name of the host Machine (`machines.bedplate.dev`) that is claimed. Written by the provider, before the claim. It cannot be changed
    /// once `providerID` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_name: Option<MachineName>,
    /// `bedplate://<machineName>/<UID of this object>`, and `spec.providerID` of the Node. Written by the provider, after the claim. It
    /// cannot be changed.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ClaimProviderId>")]
    pub provider_id: Option<String>,
    /// Host Machines that may be claimed, of those whose `claimPolicy` allows the namespace. If unset, all of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_selector: Option<MachineSelector>,
    /// The MachineConfiguration that the host runs. Its `claimPolicy` must allow the namespace, and its Kubernetes version must be that of
    /// the Machine. If `version` is unset, the newest version at the time of the claim.
    pub configuration_ref: ConfigurationRef,
    /// Cleanup of the host when the object is deleted. The stronger one of this and of `claimPolicy.release` of the host counts. If unset:
    /// `Empty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<ReleasePolicy>,
    /// Time in seconds after which a silent host is powered off, counted from its last heartbeat and from the deletion of the object. At
    /// least 60. If unset: 900.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60))]
    pub release_timeout_seconds: Option<i32>,
    /// Requirement of a state disk. If unset: `Required` for machines of a control plane, otherwise `Any`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDiskRequirement>,
}

/// Requirement of a state disk.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateDiskRequirement {
    /// Only hosts with a state disk are claimed. A node on another host is lost with a reboot.
    Required,
    /// Hosts without a state disk are claimed too.
    Any,
}

/// State of a BedplateMachine. Written by the provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct BedplateMachineStatus {
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Progress of the first provisioning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// True if the machine is provisioned, for readers of contracts before v1beta2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Addresses of the host, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub addresses: Vec<Address>,
    /// Failure domain that the host is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub failure_domain: Option<String>,
    /// State of the claim on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapStatus>,
    /// `Ready`, `HostClaimed`, `BootstrapSucceeded` and `Paused`. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of the claim on the host, as its agent reports it.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapStatus {
    /// State of the claim.
    pub state: ClaimState,
    /// Time at which the state was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Metadata of the objects that are made from a template.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_values")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "annotation_values")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Template of BedplateMachines.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "BedplateMachineTemplate",
    plural = "bedplatemachinetemplates",
    shortname = "bpmt",
    category = "cluster-api",
    namespaced,
    status = "BedplateMachineTemplateStatus",
    derive = "PartialEq",
    cel,
    doc = "Template of the BedplateMachines of a control plane or of a MachineDeployment. Its spec cannot be changed.",
    printcolumn(
        name = "Configuration",
        type_ = "string",
        json_path = ".spec.template.spec.configurationRef.name"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.template.spec.machineName) && !has(self.template.spec.providerID)")
        .message("machineName and providerID must not be set in a template: each machine claims its own host")
)]
pub struct BedplateMachineTemplateSpec {
    /// The template.
    pub template: BedplateMachineTemplateResource,
}

/// The least of the hosts that objects of the template may claim, for autoscaling from zero. Written by the provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct BedplateMachineTemplateStatus {
    /// Resources that each host has at least. Unset: no host has reported them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Facts of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
}

/// Resources of a node, as quantities of Kubernetes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Number of hardware threads.
    #[schemars(length(min = 1, max = 20), regex(pattern = r"^[0-9]+$"))]
    pub cpu: String,
    /// Memory in bytes.
    #[schemars(length(min = 1, max = 20), regex(pattern = r"^[0-9]+$"))]
    pub memory: String,
}

/// Facts of a node.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeInfo {
    /// Architecture as in OCI images. Unset: the hosts have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub architecture: Option<String>,
    /// The operating system: `linux`.
    #[schemars(length(min = 1, max = 63))]
    pub operating_system: String,
}

/// The objects that are made from a BedplateMachineTemplate.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BedplateMachineTemplateResource {
    /// Labels and annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the objects.
    pub spec: BedplateMachineSpec,
}

/// Template of BedplateClusters, for ClusterClasses.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1alpha1",
    kind = "BedplateClusterTemplate",
    plural = "bedplateclustertemplates",
    shortname = "bpct",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    cel,
    doc = "Template of BedplateClusters, for ClusterClasses. Its spec cannot be changed.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterTemplateSpec {
    /// The template.
    pub template: BedplateClusterTemplateResource,
}

/// The objects that are made from a BedplateClusterTemplate.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterTemplateResource {
    /// Labels and annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the objects.
    pub spec: BedplateClusterSpec,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(spec: &Value) -> BedplateMachine {
        let mut object = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine",
            "metadata": { "name": "w-1", "namespace": "team-a" }, "spec": { "configurationRef": { "name": "pool" } } });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn refused(new: &Value, old: Option<&Value>) -> String {
        let new = machine(new);
        let result = match old {
            Some(old) => new.validate_cel_update(&machine(old)),
            None => new.validate_cel(),
        };
        result.err().map(|errors| format!("{errors:?}")).unwrap_or_default()
    }

    #[test]
    fn d1_provider_id_names_the_recorded_host_and_stays() {
        let both = json!({ "machineName": "host-1", "providerID": "bedplate://host-1/u-1" });
        let recorded = json!({ "machineName": "host-1" });
        assert_eq!(refused(&both, Some(&recorded)), "");
        assert_eq!(refused(&json!({}), Some(&recorded)), "", "a record without a claim can be removed");
        let other = json!({ "machineName": "host-2", "providerID": "bedplate://host-1/u-1" });
        assert!(refused(&other, None).contains("providerID must be bedplate://<machineName>"));
        for changed in [
            &json!({}),
            &recorded,
            &json!({ "machineName": "host-2", "providerID": "bedplate://host-2/u-1" }),
        ] {
            let why = refused(changed, Some(&both));
            assert!(why.contains("cannot be changed once providerID is set"), "{changed}: {why}");
        }
        assert!(
            refused(&json!({ "providerID": "bedplate://host-1/u-1" }), None)
                .contains("machineName must be set")
        );
    }

    #[test]
    fn d2_settings_of_a_machine_cannot_be_changed() {
        for (field, value) in [
            ("configurationRef", json!({ "name": "other" })),
            ("configurationRef", json!({ "name": "pool", "version": 2 })),
            ("machineSelector", json!({ "matchLabels": { "rack": "7" } })),
            ("release", json!("Wipe")),
            ("stateDisk", json!("Any")),
        ] {
            let mut changed = json!({});
            changed[field] = value;
            let why = refused(&changed, Some(&json!({})));
            assert!(why.contains("cannot be changed"), "{changed}: {why}");
        }
    }
}
