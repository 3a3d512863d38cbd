//! `Machine.spec.claimPolicy` and `Machine.status.claim`: a host as a member of a pool (docs/guides/claims.md).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::claim::{ClaimState, ReleasePolicy};
use crate::schema::{ClaimProviderId, NamespaceName, NamespaceOrAll, ObjectName};

/// Membership of a Machine in a pool: the claimants that may hold it, and its cleanup afterwards.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.release) || (size(self.namespaces) == 1 && self.namespaces[0] != '*')")
        .message("claimPolicy.release must be set when claimPolicy.namespaces has '*' or more than one entry")
)]
pub struct ClaimPolicy {
    /// Namespaces whose claimants may hold the host: names such as `team-a`, or `*` for all. 1 to 64 entries.
    #[schemars(with = "Vec<NamespaceOrAll>", length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub namespaces: Vec<String>,
    /// Cleanup of the host when a claim ends. The stronger one of this and of the claim's `spec.release` counts. Must be set if
    /// `spec.claimPolicy.namespaces` has `*` or several entries. If unset: `Empty`.
    ///
    /// - `Empty`: the agent empties the slots, and the host stays up. Only for claimants that trust each other.
    /// - `Wipe`: the host also reboots and formats its state disk, and its agent gets another key. Needs provider `pxe`, and `IfBlank` in
    ///   `spec.pxe.stateDisk.wipe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ReleasePolicy")]
    pub release: Option<ReleasePolicy>,
}

impl ClaimPolicy {
    /// Returns true if a claimant of this namespace may claim the machine.
    pub fn allows(&self, namespace: &str) -> bool {
        allows(&self.namespaces, namespace)
    }

    /// Returns the cleanup at the end of a claim that asks for `claimed`: the stronger one of both.
    pub fn release_of(&self, claimed: ReleasePolicy) -> ReleasePolicy {
        self.release.unwrap_or_default().max(claimed)
    }
}

/// Returns true if a list of namespaces names this one, or all.
pub(crate) fn allows(namespaces: &[String], namespace: &str) -> bool {
    namespaces.iter().any(|allowed| allowed == "*" || allowed == namespace)
}

/// The present or the last claim of a host, as its agent stores it. It outlives the MachineClaim.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimStatus {
    /// ID of the claim: `spec.providerID` of its MachineClaim.
    #[serde(rename = "providerID")]
    #[schemars(with = "ClaimProviderId")]
    pub provider_id: String,
    /// Object that the host is held for.
    pub claimant: ClaimantRef,
    /// State of the claim on the host.
    ///
    /// - `Preparing`: the host fetches the image, and waits for condition `Granted` of the MachineClaim.
    /// - `Bootstrapping`: the slot starts, and the user data runs once.
    /// - `Joined`: the host is a Node of the claimant's cluster. Without user data: the slot runs.
    /// - `Failed`: the user data failed or was interrupted. The slot is stopped and kept until the release.
    /// - `Releasing`: the agent stops and empties the slots.
    /// - `Wiping`: both slots are empty, and the host boots to format its state disk.
    /// - `Released`: the slots are empty, and the host is wiped if it must be. Another claim may follow.
    pub state: ClaimState,
    /// Time at which the host reached the state.
    pub since: Time,
    /// Time at which the claim failed on this host. It stays after the release. Unset if the claim has not failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_time: Option<Time>,
    /// Token of the pending wipe in state `Wiping`: UID of the MachineClaim. pxed passes it to the next boot, so that an interrupted wipe
    /// is repeated. At most 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub wipe_token: Option<String>,
}

/// Name of a claimant.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimantRef {
    /// Namespace of the claimant. At most 63 characters.
    #[schemars(with = "NamespaceName")]
    pub namespace: String,
    /// Name of the claimant. At most 253 characters.
    #[schemars(with = "ObjectName")]
    pub name: String,
}

impl std::fmt::Display for ClaimantRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::configuration::MachineConfiguration;
    use crate::machine::Machine;

    fn machine(spec: &Value, status: &Value) -> Machine {
        let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "provider": "manual" }, "status": status });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn refused(spec: &Value) -> String {
        let result = machine(spec, &json!({})).validate_cel();
        result.err().map(|errors| format!("{errors:?}")).unwrap_or_default()
    }

    fn pool(policy: &Value) -> Value {
        json!({ "claimPolicy": policy })
    }

    #[test]
    fn d7_release_must_be_set_for_more_than_one_namespace() {
        for (policy, is_accepted) in [
            (json!({ "namespaces": ["a"] }), true),
            (json!({ "namespaces": ["a", "b"], "release": "Empty" }), true),
            (json!({ "namespaces": ["*"], "release": "Empty" }), true),
            (json!({ "namespaces": ["a", "b"] }), false),
            (json!({ "namespaces": ["*"] }), false),
        ] {
            let why = refused(&pool(&policy));
            assert_eq!(why.is_empty(), is_accepted, "{policy}: {why}");
            assert!(is_accepted || why.contains("claimPolicy.release must be set"), "{why}");
        }
    }

    #[test]
    fn d7_wipe_needs_the_provider_that_boots_the_host() {
        let policy = json!({ "namespaces": ["a"], "release": "Wipe" });
        assert!(refused(&pool(&policy)).contains("must not be Wipe"));
        let pxe = json!({ "interfaces": [{ "macAddress": "52:54:00:00:00:01" }] });
        assert_eq!(refused(&json!({ "claimPolicy": policy, "provider": "pxe", "pxe": pxe })), "");
    }

    #[test]
    fn d7_wipe_leaves_no_other_rule_for_the_state_disk() {
        let spec = |release: &str, disk: &Value| {
            let pxe = json!({ "interfaces": [{ "macAddress": "52:54:00:00:00:01" }], "stateDisk": disk });
            json!({ "claimPolicy": { "namespaces": ["a"], "release": release }, "provider": "pxe", "pxe": pxe })
        };
        let disk = |wipe: &str| json!({ "serial": "s", "wipe": wipe });
        let once = json!({ "serial": "s", "wipe": "Once", "wipeToken": "t" });
        for accepted in [spec("Wipe", &disk("IfBlank")), spec("Empty", &once), spec("Empty", &disk("Never"))]
        {
            assert_eq!(refused(&accepted), "", "{accepted}");
        }
        for other in [once, disk("Never")] {
            let why = refused(&spec("Wipe", &other));
            assert!(why.contains("pxe.stateDisk.wipe must be IfBlank"), "{other}: {why}");
        }
    }

    #[test]
    fn m6_power_on_claim_needs_a_pool_a_bmc_and_pxed() {
        let pxe = json!({ "interfaces": [{ "macAddress": "52:54:00:00:00:01" }] });
        let bmc = json!({ "protocol": "IPMI", "address": "10.9.0.21",
            "credentialsSecretRef": { "namespace": "bedplate-system", "name": "bmc" } });
        let whole = json!({ "powerPolicy": "OnClaim", "claimPolicy": { "namespaces": ["a"] }, "provider": "pxe", "pxe": pxe,
            "bmc": bmc });
        assert_eq!(refused(&whole), "");
        for missing in ["claimPolicy", "bmc", "pxe"] {
            let mut spec = whole.clone();
            spec.as_object_mut().unwrap().remove(missing);
            if missing == "pxe" {
                spec["provider"] = json!("manual");
            }
            let why = refused(&spec);
            assert!(why.contains("powerPolicy may only be OnClaim when"), "{missing}: {why}");
        }
    }

    #[test]
    fn d1_a_pool_machine_names_no_configuration() {
        let both = json!({ "claimPolicy": { "namespaces": ["a"] }, "configurationRef": { "name": "w" } });
        assert!(refused(&both).contains("claimPolicy and configurationRef must not both be set"));
    }

    #[test]
    fn d1_membership_changes_only_while_nothing_is_selected() {
        let policy = pool(&json!({ "namespaces": ["a"] }));
        let selected = json!({ "selected": { "name": "w", "version": 1, "source": "Selector" } });
        for (old, new, status, is_accepted) in [
            (&json!({}), &policy, &json!({}), true),
            (&policy, &json!({}), &json!({}), true),
            (&json!({}), &policy, &selected, false),
            (&policy, &json!({}), &selected, false),
            (&policy, &pool(&json!({ "namespaces": ["b"], "release": "Empty" })), &selected, true),
        ] {
            let changed = machine(new, status).validate_cel_update(&machine(old, status));
            assert_eq!(changed.is_ok(), is_accepted, "{old} {new} {status}: {changed:?}");
        }
    }

    #[test]
    fn d2_a_configuration_for_claims_leaves_kubernetes_to_the_user_data() {
        let refused = |template: &Value, more: &Value| {
            let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
                "metadata": { "name": "pool" }, "spec": { "claimPolicy": { "namespaces": ["a"] }, "template": {
                    "image": { "reference": "r.example/node:1", "allowTag": true }, "kubernetes": { "version": "v1.34.0" } } } });
            let spec = object["spec"].as_object_mut().unwrap();
            spec.extend(more.as_object().unwrap().clone());
            let of_template = spec["template"].as_object_mut().unwrap();
            of_template.extend(template.as_object().unwrap().clone());
            let object: MachineConfiguration = serde_json::from_value(object).unwrap();
            object.validate_cel().err().map(|errors| format!("{errors:?}")).unwrap_or_default()
        };
        assert_eq!(refused(&json!({}), &json!({})), "");
        let kubernetes = |field: &str, value: Value| {
            let mut kubernetes = json!({ "version": "v1.34.0" });
            kubernetes[field] = value;
            json!({ "kubernetes": kubernetes })
        };
        for (field, value) in [
            ("apiServerEndpoint", json!("10.7.0.1:6443")),
            ("nodeLabels", json!({ "a": "b" })),
            ("nodeAnnotations", json!({ "a": "b" })),
            ("taints", json!([{ "key": "a", "effect": "NoSchedule" }])),
            ("kubeletConfiguration", json!({ "maxPods": 20 })),
            ("kubeletExtraArgs", json!([{ "name": "v", "value": "4" }])),
            ("role", json!("ControlPlane")),
            ("clusterConfiguration", json!({ "clusterName": "c" })),
            ("initConfiguration", json!({ "skipPhases": [] })),
            ("joinConfiguration", json!({ "skipPhases": [] })),
        ] {
            let why = refused(&kubernetes(field, value), &json!({}));
            assert!(why.contains("template.kubernetes must have only version"), "{field}: {why}");
        }
        for field in ["preKubeadmCommands", "postKubeadmCommands"] {
            let mut template = json!({});
            template[field] = json!(["true"]);
            let why = refused(&template, &json!({}));
            assert!(why.contains("preKubeadmCommands and postKubeadmCommands"), "{field}: {why}");
        }
        let why = refused(&json!({}), &json!({ "machineSelector": {} }));
        assert!(why.contains("machineSelector must not be set"), "{why}");
    }

    #[test]
    fn d7_a_claim_can_only_strengthen_the_release() {
        let policy = |release| ClaimPolicy { namespaces: vec!["a".to_owned()], release };
        for (own, claimed, expected) in [
            (None, ReleasePolicy::Empty, ReleasePolicy::Empty),
            (None, ReleasePolicy::Wipe, ReleasePolicy::Wipe),
            (Some(ReleasePolicy::Wipe), ReleasePolicy::Empty, ReleasePolicy::Wipe),
        ] {
            assert_eq!(policy(own).release_of(claimed), expected);
        }
        assert!(policy(None).allows("a") && !policy(None).allows("b") && !policy(None).allows("*"));
        let all = ClaimPolicy { namespaces: vec!["*".to_owned()], release: None };
        assert!(all.allows("b"));
    }
}
