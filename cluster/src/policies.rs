//! The policies that bound the rights of a group: it does not start to lead before they are in force.
//!
//! Read live every 10 s until all exist. Called by [`begin`](crate::life::begin).

use std::time::Duration;

use bedplate_engine::object;
use bedplate_engine::write::{WriteError, ask};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, Client};
use tokio::sync::watch::Sender;

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Waits until the policies of these names, and bindings of the same names, are in force. `missing` has those that are not, for
/// `/readyz`.
pub async fn in_force(client: &Client, policies: &[&'static str], missing: &Sender<String>) {
    loop {
        let text = match absent(client, policies).await {
            Ok(absent) if absent.is_empty() => {
                missing.send_replace(String::new());
                return;
            }
            Ok(absent) => format!("policies are not in force: {}", absent.join(", ")),
            Err(error) => format!("policies cannot be read: {error}"),
        };
        tracing::warn!(reason = text, "policies missing, waiting");
        missing.send_replace(text);
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Returns the names of the policies that do not exist or that no binding enforces.
async fn absent(client: &Client, names: &[&'static str]) -> Result<Vec<&'static str>, WriteError> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let mut absent = Vec::new();
    for name in names.iter().copied() {
        let policy = ask(&format!("ValidatingAdmissionPolicy {name}"), object::get(&policies, name)).await?;
        let what = format!("ValidatingAdmissionPolicyBinding {name}");
        let binding = ask(&what, object::get(&bindings, name)).await?;
        if policy.is_none() || !binding.is_some_and(|binding| enforces(&binding, name)) {
            absent.push(name);
        }
    }
    Ok(absent)
}

/// Returns true if a binding denies what the policy refuses, for all objects.
fn enforces(binding: &ValidatingAdmissionPolicyBinding, policy: &str) -> bool {
    binding.spec.as_ref().is_some_and(|spec| {
        let denies = spec.validation_actions.iter().flatten().any(|action| action == "Deny");
        denies && spec.policy_name.as_deref() == Some(policy) && spec.match_resources.is_none()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn policy_is_in_force_only_with_a_binding_that_denies_everywhere() {
        let enforces = |spec: Value| {
            let binding = json!({ "metadata": { "name": "p" }, "spec": spec });
            enforces(&serde_json::from_value(binding).unwrap(), "p")
        };
        assert!(enforces(json!({ "policyName": "p", "validationActions": ["Deny"] })));
        for spec in [
            json!({ "policyName": "p", "validationActions": ["Audit"] }),
            json!({ "policyName": "other", "validationActions": ["Deny"] }),
            json!({ "policyName": "p", "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchLabels": { "a": "b" } } } }),
            json!({}),
        ] {
            assert!(!enforces(spec.clone()), "{spec}");
        }
    }
}
