//! Writes this host's report on its MachineClaim, and asks whether a configuration may be run for a claimant.
//!
//! Called by `cluster`.

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::claim::{MachineClaim, MachineClaimStatus};
use bedplate_api::configuration::MachineConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::error::{AskServerError, ask, find};
use super::writer::FIELD_MANAGER;

/// Writes the agent's fields of the status of this very claim.
pub(super) async fn write(
    client: &Client,
    claim: &MachineClaim,
    status: &MachineClaimStatus,
) -> Result<(), AskServerError> {
    let name = claim.name_any();
    let claims: Api<BoundedTimes<MachineClaim>> = Api::all(client.clone());
    // Forced: these fields are the agent's own, also if a user with the verb `repair` wrote them.
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(body(claim, status));
    let write = claims.patch_status(&name, &parameters, &patch);
    ask(format!("status of MachineClaim {name}"), write).await.map(drop)
}

/// Returns the object to apply. The UID refuses another claim of the same name.
fn body(claim: &MachineClaim, status: &MachineClaimStatus) -> Value {
    let status = MachineClaimStatus { conditions: Vec::new(), ..status.clone() };
    json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "MachineClaim",
        "metadata": { "name": claim.name_any(), "uid": claim.uid() },
        "status": status,
    })
}

/// Asks whether claimants of a namespace may run a MachineConfiguration. One that does not exist allows none.
pub(super) async fn allows(client: &Client, name: &str, namespace: &str) -> Result<bool, AskServerError> {
    let configurations: Api<BoundedTimes<MachineConfiguration>> = Api::all(client.clone());
    let what = format!("MachineConfiguration {name}");
    let resource = ("bedplate.dev", "machineconfigurations");
    let found = find(what, resource, name, configurations.get(name)).await?;
    let policy = found.and_then(|BoundedTimes(found)| found.spec.claim_policy);
    Ok(policy.is_some_and(|policy| policy.allows(namespace)))
}

#[cfg(test)]
mod tests {
    use bedplate_api::claim::ClaimState;

    use super::*;
    use crate::plane::fake::fake;

    #[test]
    fn report_names_the_claim_by_uid_and_has_no_conditions() {
        let claim: MachineClaim = serde_json::from_value(json!({ "metadata": { "name": "node-1", "uid": "c-1" },
            "spec": { "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u-1" }, "clusterName": "c", "role": "Worker",
                "nodeName": "w-1", "providerID": "bedplate://node-1/u-1", "configurationRef": { "name": "pool" }, "release": "Empty" },
            "status": { "conditions": [{ "type": "Granted", "status": "True", "reason": "Granted", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } }))
        .unwrap();
        let status = MachineClaimStatus { state: Some(ClaimState::Joined), ..claim.status.clone().unwrap() };
        let body = body(&claim, &status);
        assert_eq!(body["metadata"], json!({ "name": "node-1", "uid": "c-1" }));
        assert_eq!(body["status"], json!({ "state": "Joined" }));
    }

    #[tokio::test]
    async fn d1_configuration_without_the_namespace_allows_no_claimant() {
        let configuration = |policy: Value| {
            let template = json!({ "image": { "reference": "r" }, "kubernetes": { "version": "v1.34.4" } });
            json!({ "metadata": { "name": "pool" }, "spec": { "template": template, "claimPolicy": policy } })
        };
        let gone = json!({ "status": "Failure", "reason": "NotFound", "code": 404, "message": "",
            "details": { "name": "pool", "group": "bedplate.dev", "kind": "machineconfigurations" } });
        for (code, body, expected) in [
            (200, configuration(json!({ "namespaces": ["team-a"] })), Some(true)),
            (200, configuration(json!({ "namespaces": ["*"] })), Some(true)),
            (200, configuration(json!({ "namespaces": ["team-b"] })), Some(false)),
            (200, configuration(Value::Null), Some(false)),
            (404, gone, Some(false)),
            (403, json!({ "status": "Failure", "reason": "Forbidden", "code": 403, "message": "" }), None),
        ] {
            let shown = body.to_string();
            let allowed = allows(&fake(vec![(code, body)]), "pool", "team-a").await;
            assert_eq!(allowed.ok(), expected, "{shown}");
        }
    }
}
