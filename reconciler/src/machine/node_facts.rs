//! Facts about a Machine's Node for its phase and `Ready` ([`bedplate_rules::phase`]).
//!
//! Pure.

use bedplate_rules::phase::NodeFacts;
use k8s_openapi::api::core::v1::Node;

use crate::cordon::{self, Cordon, Hold, Purpose};

/// Reads the facts from a Node. None of them if the Machine has no Node.
pub(super) fn facts(node: Option<&Node>) -> NodeFacts {
    let Some(node) = node else { return NodeFacts::default() };
    NodeFacts {
        not_ready: not_ready(node),
        drained_for: drained_for(node),
        failed_turn: cordon::failed(node).map(|failed| (failed.version, failed.message)),
    }
}

/// Time and cause of a Node that is not Ready, by its own status.
fn not_ready(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status != "True")?;
    let since = ready.last_transition_time.as_ref().map(|time| format!(" since {:.0}", time.0));
    let why = ready.message.as_deref().filter(|why| !why.is_empty()).map(|why| format!(": {why}"));
    Some(format!("the Node is not Ready{}{}", since.unwrap_or_default(), why.unwrap_or_default()))
}

/// Version for which a rolling update drains the Node.
fn drained_for(node: &Node) -> Option<String> {
    match cordon::cordon_of(node) {
        Cordon::Ours(Hold { purpose: Purpose::Rollout(version), .. }) => Some(version),
        Cordon::Ours(_) | Cordon::Operation | Cordon::Foreign | Cordon::Free => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(annotations: &Value, status: &Value) -> Node {
        serde_json::from_value(json!({ "metadata": { "name": "a", "annotations": annotations },
            "spec": { "unschedulable": true }, "status": status }))
        .unwrap()
    }

    #[test]
    fn node_that_is_not_ready_gives_time_and_cause() {
        for (ready, expected) in [
            ("True", None),
            (
                "False",
                Some(
                    "the Node is not Ready since 2026-01-01T00:00:00Z: Kubelet stopped posting node status.",
                ),
            ),
            (
                "Unknown",
                Some(
                    "the Node is not Ready since 2026-01-01T00:00:00Z: Kubelet stopped posting node status.",
                ),
            ),
        ] {
            let status = json!({ "conditions": [{ "type": "Ready", "status": ready,
                "message": "Kubelet stopped posting node status.", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
            assert_eq!(facts(Some(&node(&json!({}), &status))).not_ready.as_deref(), expected);
        }
        assert_eq!(facts(None), NodeFacts::default());
    }

    #[test]
    fn c4_only_the_cordon_of_a_rolling_update_names_a_version() {
        let shown = |by: &str| {
            facts(Some(&node(&json!({ bedplate_rules::drain::CORDONED_BY: by }), &json!({})))).drained_for
        };
        assert_eq!(shown("rollout/w-v2").as_deref(), Some("w-v2"));
        for by in ["operation/x", "deletion", ""] {
            assert_eq!(shown(by), None, "{by}");
        }
    }

    #[test]
    fn c4_failed_turn_is_read_from_the_node() {
        let failed =
            json!({ "version": "w-v2", "generation": 3, "reason": "UnmanagedPods", "message": "n/lone" });
        let facts = facts(Some(&node(&json!({ cordon::DRAIN_FAILED: failed.to_string() }), &json!({}))));
        assert_eq!(facts.failed_turn, Some(("w-v2".to_owned(), "n/lone".to_owned())));
    }
}
