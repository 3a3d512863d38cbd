//! `MachineClaim`: one host of a pool, held for one claimant (docs/guides/claims.md).
//!
//! The claim has the name of its Machine, so that the API server lets one claimant have a host. To create it is to claim the host, to
//! delete it is to release the host. Types and validation only: `spec` and the conditions are written by the provider, the rest of the
//! status by the agent on the host (deploy/claims-policy.yaml).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::configuration::NodeRole;
use crate::id::MachineName;
use crate::machine::{ConfigurationRef, NodeRef};
use crate::schema::{ClaimProviderId, Ip, NamespaceName, ObjectName, Uid};

/// Finalizer of the provider on a MachineClaim: the object stays until its host is released.
pub const RELEASE_FINALIZER: &str = "bedplate.dev/release";

/// Annotation of a Machine or of a MachineClaim: `providerID` of the claim that a user releases. Written by users; another value has no
/// effect. On a Machine it releases a host whose claim object is missing. On a claim it allows a user with the verb `repair` to delete it.
pub const RELEASE_ANNOTATION: &str = "bedplate.dev/release";

/// Annotation of a Machine: `providerID` of the claim whose host is off, as a user has checked. Written by users; another value has no
/// effect. It stands in for a power-off by a BMC.
pub const HOST_IS_OFF_ANNOTATION: &str = "bedplate.dev/host-is-off";

/// Annotation of a MachineClaim: `status.enrollment.keyID` of its Machine. Written by the provider. Only an agent of this enrollment may
/// report on the claim.
pub const ENROLLMENT_ANNOTATION: &str = "bedplate.dev/enrollment";

/// Annotation of a MachineClaim: the enrollments that its host has had from the grant until it was emptied, separated by commas. Written by
/// the provider. A tenant may have copied their keys, so a claim with `release: Wipe` does not end while the Machine has one of them.
pub const TENANT_ENROLLMENTS_ANNOTATION: &str = "bedplate.dev/tenant-enrollments";

/// Feature of an agent that carries claims out (`status.agent.features`).
pub const CLAIMS_FEATURE: &str = "claims";

/// Feature of an agent that carries out claims with `release: Wipe`.
pub const WIPE_FEATURE: &str = "wipe";

/// Label of a MachineClaim: name of the cluster that its claimant belongs to.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Label of a MachineClaim: namespace of its claimant.
pub const NAMESPACE_LABEL: &str = "bedplate.dev/namespace";

/// Types of a MachineClaim's conditions. All are written by the provider.
pub mod condition_type {
    /// The claimant exists. The agent starts nothing before this condition is True.
    pub const GRANTED: &str = "Granted";
    /// The host is off and stays off, so that its claimant may be replaced without its release.
    pub const FENCED: &str = "Fenced";
    /// The claimant does not exist any more, and the host has started the claim.
    pub const ORPHANED: &str = "Orphaned";
    /// False: the host is emptied, and the claim waits for its wipe. The claim ends with the wipe, so the condition is never True.
    pub const WIPED: &str = "Wiped";
}

/// Returns the provider ID of a claim: unique for each claimant of a host, also for one with the name of an earlier one.
pub fn provider_id(machine: &MachineName, claimant_uid: &str) -> String {
    format!("bedplate://{machine}/{claimant_uid}")
}

/// Host, claimant and settings of the claim. Written by the provider that creates the claim. Only `spec.claimant.uid` can be changed.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[kube(
    group = "bedplate.dev",
    version = "v1alpha1",
    kind = "MachineClaim",
    plural = "machineclaims",
    shortname = "mcl",
    category = "bedplate",
    status = "MachineClaimStatus",
    derive = "PartialEq",
    cel,
    doc = "Claim of one host of a pool for one claimant. Its name is the name of the Machine. Its deletion releases the host.",
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("metadata.name must be the name of a Machine: at most 63 of a-z, 0-9 and '-', not first or last '-'"),
    validation = Rule::new("self.spec.providerID.split('/')[2] == self.metadata.name")
        .message("spec.providerID must be bedplate://<name of this claim>/<UID of the claimant>"),
    printcolumn(name = "Namespace", type_ = "string", description = "Namespace of the claimant.", json_path = ".spec.claimant.namespace"),
    printcolumn(name = "Claimant", type_ = "string", description = "Name of the claimant.", json_path = ".spec.claimant.name"),
    printcolumn(name = "State", type_ = "string", description = "State of the claim on the host.", json_path = ".status.state"),
    printcolumn(
        name = "Node",
        type_ = "string",
        description = "Name of the Node in the claimant's cluster.",
        json_path = ".status.node.name"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Release",
        type_ = "string",
        description = "Cleanup of the host when the claim ends.",
        json_path = ".spec.release",
        priority = 1
    ),
    printcolumn(name = "ProviderID", type_ = "string", description = "ID of the claim.", json_path = ".spec.providerID", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.claimant.__namespace__ == oldSelf.claimant.__namespace__ && self.claimant.name == oldSelf.claimant.name"
    )
    .message("claimant.namespace and claimant.name cannot be changed; only claimant.uid can"),
    validation = Rule::new(
        "self.clusterName == oldSelf.clusterName && self.role == oldSelf.role && self.nodeName == oldSelf.nodeName && \
         self.providerID == oldSelf.providerID && self.release == oldSelf.release"
    )
    .message("clusterName, role, nodeName, providerID and release cannot be changed: delete the claim and create another one"),
    validation = Rule::new(
        "self.configurationRef.name == oldSelf.configurationRef.name && \
         has(self.configurationRef.version) == has(oldSelf.configurationRef.version) && \
         (!has(self.configurationRef.version) || self.configurationRef.version == oldSelf.configurationRef.version)"
    )
    .message("configurationRef cannot be changed: delete the claim and create another one"),
    validation = Rule::new(
        "has(self.bootstrapSecretName) == has(oldSelf.bootstrapSecretName) && \
         (!has(self.bootstrapSecretName) || self.bootstrapSecretName == oldSelf.bootstrapSecretName)"
    )
    .message("bootstrapSecretName cannot be changed: delete the claim and create another one"),
    validation = Rule::new("!has(self.vip)")
        .message("vip has no effect yet and must not be set: use an external load balancer")
)]
pub struct MachineClaimSpec {
    /// Object that the host is held for: a BedplateMachine. Written by the provider.
    pub claimant: Claimant,
    /// Name of the cluster that the claimant belongs to. At most 63 characters. Written by the provider. It cannot be changed.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub cluster_name: String,
    /// Role of the node in its cluster. Written by the provider. It cannot be changed.
    ///
    /// - `Worker`: the node runs workloads.
    /// - `ControlPlane`: the node runs the control plane.
    pub role: NodeRole,
    /// Name of the Node that the host becomes, and host name of its slot. At most 63 of `a-z`, `0-9` and `-`. Written by the provider. It
    /// cannot be changed.
    pub node_name: MachineName,
    /// ID of the claim, and `spec.providerID` of its Node: `bedplate://<name of this claim>/<UID of the claimant>`. It stays as it is if
    /// `spec.claimant.uid` changes. At most 138 characters. Written by the provider. It cannot be changed.
    #[serde(rename = "providerID")]
    #[schemars(with = "ClaimProviderId")]
    pub provider_id: String,
    /// MachineConfiguration that the host runs. Its `spec.claimPolicy` must allow the namespace of the claimant. Written by the provider.
    /// It cannot be changed.
    pub configuration_ref: ConfigurationRef,
    /// Name of the Secret with the user data, in the namespace of the claimant. At most 253 characters. If unset, the slot starts without
    /// user data. Written by the provider. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ObjectName>")]
    pub bootstrap_secret_name: Option<String>,
    /// Cleanup of the host when the claim ends. The stronger one of this and of `spec.claimPolicy.release` of the Machine counts. Written
    /// by the provider. It cannot be changed.
    ///
    /// - `Empty`: the agent empties the slots, and the host stays up. Only for claimants that trust each other.
    /// - `Wipe`: the host also reboots and formats its state disk, and its agent gets another key. The claim stays until then.
    pub release: ReleasePolicy,
    /// Virtual IP address of the control plane. It must not be set: it has no effect yet. Use an external load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip: Option<Vip>,
}

/// Object that a host is held for: a BedplateMachine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Claimant {
    /// Namespace of the claimant. At most 63 characters. It cannot be changed.
    #[schemars(with = "NamespaceName")]
    pub namespace: String,
    /// Name of the claimant. At most 253 characters. It cannot be changed.
    #[schemars(with = "ObjectName")]
    pub name: String,
    /// `metadata.uid` of the claimant. At most 63 characters. The provider changes it if the claimant was restored from a backup.
    #[schemars(with = "Uid")]
    pub uid: String,
}

/// Cleanup of a host at its release.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ReleasePolicy {
    /// The slots are emptied, and the host stays up. For claimants that trust each other.
    #[default]
    Empty,
    /// The slots are emptied, and the state disk is made again with the next boot. The host gets another key.
    Wipe,
}

/// Virtual IP address of a control plane.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Vip {
    /// IPv4 address. Example: `10.7.0.9`.
    #[schemars(with = "Ip")]
    #[x_kube(
        validation = Rule::new("!self.contains(':')").message("vip.address must be an IPv4 address: IPv6 is not supported")
    )]
    pub address: String,
    /// Port of the API server: 1 to 65535. Example: `6443`.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Virtual router ID (RFC 5798): 1 to 255. It must be unique on the network segment.
    #[serde(rename = "virtualRouterID")]
    #[schemars(range(min = 1, max = 255))]
    pub virtual_router_id: i32,
}

/// Progress of the claim. Written by the agent, except for the conditions, which the provider writes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineClaimStatus {
    /// `spec.providerID` of the claim that the other fields of the agent report. It differs from this claim's while the host still holds an
    /// earlier one. At most 138 characters. Written by the agent.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ClaimProviderId>")]
    pub provider_id: Option<String>,
    /// State of the claim on the host. Written by the agent.
    ///
    /// - `Preparing`: the host fetches the image, and waits for condition `Granted` of the MachineClaim.
    /// - `Bootstrapping`: the slot starts, and the user data runs once.
    /// - `Joined`: the host is a Node of the claimant's cluster. Without user data: the slot runs.
    /// - `Failed`: the user data failed or was interrupted. The slot is stopped and kept until the release.
    /// - `Releasing`: the agent stops and empties the slots.
    /// - `Wiping`: both slots are empty, and the host boots to format its state disk.
    /// - `Released`: the slots are empty, and the host is wiped if it must be. Another claim may follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClaimState")]
    pub state: Option<ClaimState>,
    /// Reason for the state: a reason of condition `Paved` of the Machine, such as `BootstrapFailed`. At most 63 characters. Written by the
    /// agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// Details for users, such as the end of the log of the user data, without its secrets. At most 1024 characters. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// Node that the host has become, in the cluster of the claimant. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeRef>,
    /// Time at which the host reached the state. Written by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Keys of the user data that the host does not support, such as `mounts`. Then no user data was run. At most 64 of 253 characters.
    /// Written by the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub refused: Vec<String>,
    /// Conditions by type. At most 16. Written by the provider.
    ///
    /// - `Granted`: True if the claimant exists and the host may read its user data. The host starts nothing before.
    /// - `Fenced`: True if the host is off and stays off. Its claimant may then be replaced before the release.
    /// - `Orphaned`: True if the host has started the claim and the claimant does not exist.
    /// - `Wiped`: False while the host is emptied and waits for its wipe. It is never True, because the claim ends with the wipe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of a claim on its host.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimState {
    /// The host has seen the claim, and fetches the image. It waits for condition `Granted`.
    Preparing,
    /// The slot is filled and starts, and the user data runs once.
    Bootstrapping,
    /// The host is a Node of the claimant's cluster, or its slot runs if there is no user data.
    Joined,
    /// The user data failed or was interrupted. The slot is stopped and stays until the release.
    Failed,
    /// The host stops and empties its slots.
    Releasing,
    /// Both slots are empty. The host boots, and a state disk is made again (`release: Wipe`).
    Wiping,
    /// Both slots are empty, and a host that must be wiped is wiped. Another claim may follow.
    Released,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl ClaimState {
    /// Returns true while the host is held: from the first state until `Released`. A state of a later version holds it too.
    pub const fn holds_host(self) -> bool {
        match self {
            Self::Preparing
            | Self::Bootstrapping
            | Self::Joined
            | Self::Failed
            | Self::Releasing
            | Self::Wiping
            | Self::Unknown => true,
            Self::Released => false,
        }
    }

    /// Returns true if nothing of the claim is left in the slots, so that its claimant may go.
    pub const fn is_emptied(self) -> bool {
        match self {
            Self::Wiping | Self::Released => true,
            Self::Preparing
            | Self::Bootstrapping
            | Self::Joined
            | Self::Failed
            | Self::Releasing
            | Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(more: &Value) -> MachineClaim {
        let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineClaim", "metadata": { "name": "host-1" },
            "spec": { "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u-1" }, "clusterName": "c", "role": "Worker",
                "nodeName": "w-1", "providerID": "bedplate://host-1/u-1", "configurationRef": { "name": "pool" },
                "release": "Empty" } });
        object["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn refused(new: &Value, old: Option<&Value>) -> String {
        let (new, old) = (claim(new), old.map(claim));
        let result = match &old {
            Some(old) => new.validate_cel_update(old),
            None => new.validate_cel(),
        };
        result.err().map(|errors| format!("{errors:?}")).unwrap_or_default()
    }

    #[test]
    fn d1_provider_id_names_the_claims_own_machine() {
        assert_eq!(provider_id(&"host-1".parse().unwrap(), "u-1"), "bedplate://host-1/u-1");
        assert_eq!(refused(&json!({}), None), "");
        for other in ["bedplate://host-2/u-1", "bedplate://host-1x/u-1", "bedplate:///host-1"] {
            let why = refused(&json!({ "providerID": other }), None);
            assert!(
                why.contains("spec.providerID must be bedplate://<name of this claim>"),
                "{other}: {why}"
            );
        }
    }

    #[test]
    fn d1_only_the_uid_of_a_claimant_may_change() {
        let restored = json!({ "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u-2" } });
        assert_eq!(refused(&restored, Some(&json!({}))), "");
        for (old, new) in [
            (json!({}), json!({ "claimant": { "namespace": "team-b", "name": "w-1", "uid": "u-1" } })),
            (json!({}), json!({ "claimant": { "namespace": "team-a", "name": "w-2", "uid": "u-1" } })),
            (json!({}), json!({ "clusterName": "d" })),
            (json!({}), json!({ "role": "ControlPlane" })),
            (json!({}), json!({ "nodeName": "w-2" })),
            (json!({}), json!({ "providerID": "bedplate://host-1/u-2" })),
            (json!({}), json!({ "release": "Wipe" })),
            (json!({}), json!({ "configurationRef": { "name": "other" } })),
            (json!({}), json!({ "configurationRef": { "name": "pool", "version": 1 } })),
            (json!({ "configurationRef": { "name": "pool", "version": 1 } }), json!({})),
            (
                json!({ "configurationRef": { "name": "pool", "version": 1 } }),
                json!({ "configurationRef": { "name": "pool", "version": 2 } }),
            ),
            (json!({}), json!({ "bootstrapSecretName": "s" })),
            (json!({ "bootstrapSecretName": "s" }), json!({})),
            (json!({ "bootstrapSecretName": "s" }), json!({ "bootstrapSecretName": "t" })),
        ] {
            let why = refused(&new, Some(&old));
            assert!(why.contains("cannot be changed"), "{old} {new}: {why}");
        }
    }

    #[test]
    fn vip_that_has_no_effect_is_refused_by_name() {
        let vip = json!({ "vip": { "address": "10.7.0.9", "port": 6443, "virtualRouterID": 7 } });
        let why = refused(&vip, None);
        assert!(why.contains("vip has no effect yet and must not be set"), "{why}");
    }

    #[test]
    fn d7_the_stronger_release_policy_is_the_greater_one() {
        assert_eq!(ReleasePolicy::Empty.max(ReleasePolicy::Wipe), ReleasePolicy::Wipe);
        assert_eq!(ReleasePolicy::default(), ReleasePolicy::Empty, "absent means Empty");
    }

    #[test]
    fn host_is_held_until_it_is_released() {
        let held = [
            ClaimState::Preparing,
            ClaimState::Bootstrapping,
            ClaimState::Joined,
            ClaimState::Failed,
            ClaimState::Releasing,
            ClaimState::Wiping,
            ClaimState::Unknown,
        ];
        assert!(held.into_iter().all(ClaimState::holds_host));
        assert!(!ClaimState::Released.holds_host());
    }
}
