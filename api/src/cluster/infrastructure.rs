//! The infrastructure kinds of Cluster API: `BedplateCluster`, `BedplateMachine` and their templates (docs/reference/infrastructure-provider.md).
//!
//! Types and validation only. Rules that compare objects, or that depend on the user, are policies in deploy/cluster-api.
//!
//! Pure: no clock, no file, no socket.

mod template;

pub use template::{
    BedplateClusterTemplate, BedplateClusterTemplateResource, BedplateClusterTemplateSpec,
    BedplateMachineTemplate, BedplateMachineTemplateResource, BedplateMachineTemplateSpec,
    BedplateMachineTemplateStatus, Capacity, NodeInfo, TemplateMetadata,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::claim::{ClaimState, ReleasePolicy};
use crate::id::MachineName;
use crate::machine::{Address, ConfigurationRef};
use crate::schema::ClaimProviderId;
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
    pub(crate) const BOOTSTRAP_SUCCEEDED: &str = "BootstrapSucceeded";
    /// The BedplateCluster has the endpoint of its control plane.
    pub(crate) const ENDPOINT_AVAILABLE: &str = "EndpointAvailable";
    /// The provider does not change the object.
    pub const PAUSED: &str = "Paused";
}

/// Address of a control plane.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Host name or IP address. 1 to 512 characters. Example: `10.7.0.9`.
    #[schemars(length(min = 1, max = 512))]
    pub host: String,
    /// Port of the API server: 1 to 65535. Example: `6443`.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// Endpoint of the control plane, and failure domains. Written by users.
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
    printcolumn(
        name = "Cluster",
        type_ = "string",
        description = "Name of the Cluster.",
        json_path = r#".metadata.labels['cluster\.x-k8s\.io/cluster-name']"#
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Status of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        description = "Host of the control plane endpoint.",
        json_path = ".spec.controlPlaneEndpoint.host"
    ),
    printcolumn(
        name = "Waiting",
        type_ = "string",
        description = "Message of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterSpec {
    /// Address of the control plane: an external load balancer, or an address that the nodes share. It cannot be changed once it is set. If
    /// unset: `spec.controlPlaneEndpoint` of the Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<Endpoint>,
    /// Label of the host Machines (`machines.bedplate.dev`) whose values are the failure domains. At most 317 characters. Example:
    /// `topology.kubernetes.io/zone`. If unset, there are no failure domains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub failure_domain_label: Option<String>,
}

/// Observed state of the cluster's infrastructure. Written by the provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct BedplateClusterStatus {
    /// `metadata.generation` of the object when the provider wrote the status. -1 before the first time. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Progress of the first provisioning. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// True if the cluster is provisioned. For programs that read contracts before v1beta2. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Failure domains of the hosts that the namespace may claim. At most 100. Written by the provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub failure_domains: Vec<FailureDomain>,
    /// Conditions by type. At most 16. Written by the provider.
    ///
    /// - `Ready`: True if the infrastructure is provisioned.
    /// - `EndpointAvailable`: True if the endpoint of the control plane is known.
    /// - `Paused`: True if the provider does not change the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Progress of the first provisioning.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Initialization {
    /// True once the object is provisioned. It stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// A failure domain.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Name of the failure domain: a value of the label `spec.failureDomainLabel`. At most 63 characters.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// True if machines of the control plane may be in the failure domain.
    pub control_plane: bool,
}

/// Host of the machine and its settings. Written by users or a template, except for `machineName` and `providerID`.
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
    printcolumn(
        name = "Cluster",
        type_ = "string",
        description = "Name of the Cluster.",
        json_path = r#".metadata.labels['cluster\.x-k8s\.io/cluster-name']"#
    ),
    printcolumn(name = "Machine", type_ = "string", description = "Name of the claimed host Machine.", json_path = ".spec.machineName"),
    printcolumn(name = "State", type_ = "string", description = "State of the claim on the host.", json_path = ".status.bootstrap.state"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Status of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Waiting",
        type_ = "string",
        description = "Message of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(name = "ProviderID", type_ = "string", description = "ID of the claim.", json_path = ".spec.providerID", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.providerID) || has(self.machineName)")
        .message("machineName must be set when providerID is set"),
    validation = Rule::new("!has(self.providerID) || !has(self.machineName) || self.providerID.split('/')[2] == self.machineName")
        .message("providerID must be bedplate://<machineName>/<UID of this object>")
)]
pub struct BedplateMachineSpec {
    /// Name of the host Machine (`machines.bedplate.dev`) that is claimed. At most 63 characters. Written by the provider before the claim.
    /// It cannot be changed once `providerID` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_name: Option<MachineName>,
    /// ID of the claim, and `spec.providerID` of the Node: `bedplate://<machineName>/<UID of this object>`. At most 138 characters. Written
    /// by the provider after the claim. It cannot be changed.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ClaimProviderId>")]
    pub provider_id: Option<String>,
    /// Host Machines that may be claimed. Their `spec.claimPolicy` must allow the namespace. It cannot be changed. If unset: all that allow
    /// the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_selector: Option<MachineSelector>,
    /// MachineConfiguration that the host runs. Its `spec.claimPolicy` must allow the namespace. Its Kubernetes version must equal
    /// `spec.version` of the Machine of Cluster API. It cannot be changed.
    pub configuration_ref: ConfigurationRef,
    /// Cleanup of the host when this object is deleted. The stronger one of this and of `spec.claimPolicy.release` of the host counts. It
    /// cannot be changed. If unset: `Empty`.
    ///
    /// - `Empty`: the agent empties the slots, and the host stays up. Only for claimants that trust each other.
    /// - `Wipe`: the host also reboots and formats its state disk, and its agent gets another key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ReleasePolicy")]
    pub release: Option<ReleasePolicy>,
    /// Time after which a silent host is powered off, in seconds. It counts from the last heartbeat and from the deletion of this object,
    /// whichever is later. At least 60. If unset: 900.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60))]
    pub release_timeout_seconds: Option<i32>,
    /// Requirement of a state disk. It cannot be changed. If unset: `Required` for machines of a control plane, otherwise `Any`.
    ///
    /// - `Required`: only hosts with a state disk are claimed.
    /// - `Any`: hosts without a state disk are claimed too. A reboot of such a host loses its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StateDiskRequirement")]
    pub state_disk: Option<StateDiskRequirement>,
}

/// Requirement of a state disk.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateDiskRequirement {
    /// Only hosts with a state disk are claimed.
    Required,
    /// Hosts without a state disk are claimed too. A reboot of such a host loses its node.
    Any,
}

/// Observed state of the machine. Written by the provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct BedplateMachineStatus {
    /// `metadata.generation` of the object when the provider wrote the status. -1 before the first time. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Progress of the first provisioning. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// True if the machine is provisioned. For programs that read contracts before v1beta2. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Addresses of the host: its IP addresses and its host name. At most 64. Written by the provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub addresses: Vec<Address>,
    /// Failure domain of the host. At most 63 characters. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub failure_domain: Option<String>,
    /// State of the claim on the host, as the agent reports it. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapStatus>,
    /// Conditions by type. At most 16. Written by the provider.
    ///
    /// - `Ready`: True if the host is a Node of the cluster.
    /// - `HostClaimed`: True if a MachineClaim holds the host.
    /// - `BootstrapSucceeded`: True if the host has become a Node of the cluster.
    /// - `Paused`: True if the provider does not change the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of the claim on the host, as its agent reports it.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapStatus {
    /// State of the claim on the host.
    ///
    /// - `Preparing`: the host fetches the image, and waits for condition `Granted` of the MachineClaim.
    /// - `Bootstrapping`: the slot starts, and the user data runs once.
    /// - `Joined`: the host is a Node of the cluster.
    /// - `Failed`: the user data failed or was interrupted. The slot is stopped and kept until the release.
    /// - `Releasing`: the agent stops and empties the slots.
    /// - `Wiping`: both slots are empty, and the host boots to format its state disk.
    /// - `Released`: the slots are empty, and the host is wiped if it must be. Another claim may follow.
    pub state: ClaimState,
    /// Time at which the host reached the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
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
