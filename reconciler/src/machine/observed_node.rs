//! Pure: `status.observedNode` of a Machine (H2). pxed takes over a running server only if no Node of its name exists, and may not read Nodes.
//!
//! The field is written only while a takeover token is set. Other Machines cost no request and no write. `Absent` is always a live answer
//! of the API server: a stale cache must not cause the power-off of a server that runs a node. The observation names the generation of
//! the Machine, so an observation from before the token does not count. Called by `plan` and by the parent module.

use bedplate_api::machine::{Machine, ObservedNode, ObservedNodeState};

use super::plan::NodeSeen;
use crate::foreign_node::foreign;

/// Returns true if the API server must be asked for the Node, unless the cache has it: a takeover waits for the answer.
pub(super) fn is_due(machine: &Machine) -> bool {
    let is_left_alone = machine.spec.paused || machine.metadata.deletion_timestamp.is_some();
    let known = machine.status.as_ref().and_then(|status| status.observed_node);
    has_token(machine) && !is_left_alone && known != Some(observed(machine, ObservedNodeState::Absent))
}

/// Returns the observation to write.
pub(super) fn observe(machine: &Machine, node: NodeSeen<'_>) -> Option<ObservedNode> {
    if !has_token(machine) {
        return None;
    }
    let state = match node {
        NodeSeen::Present(node) if foreign(machine, node).is_some() => ObservedNodeState::Foreign,
        NodeSeen::Present(_) => ObservedNodeState::Own,
        NodeSeen::Gone => ObservedNodeState::Absent,
        // The Node was not read again.
        NodeSeen::Absent => return machine.status.as_ref().and_then(|status| status.observed_node),
    };
    Some(observed(machine, state))
}

fn has_token(machine: &Machine) -> bool {
    machine.spec.pxe.as_ref().is_some_and(|pxe| pxe.takeover.is_some())
}

fn observed(machine: &Machine, state: ObservedNodeState) -> ObservedNode {
    ObservedNode { state, observed_generation: machine.metadata.generation.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::*;

    fn machine(token: Option<&str>, observed: &Value) -> Machine {
        let interfaces = json!([{ "macAddress": "52:54:00:00:00:01" }]);
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
            "metadata": { "name": "a", "generation": 3 },
            "spec": { "provider": "pxe", "pxe": { "interfaces": interfaces, "takeover": token } },
            "status": { "observedNode": observed } });
        serde_json::from_value(object).unwrap()
    }

    fn node(provider_id: &str) -> Node {
        let node = json!({ "metadata": { "name": "a" }, "spec": { "providerID": provider_id } });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn h2_foreign_node_is_observed_as_one() {
        let (own, other, kubeadm) = (node("bedplate://a"), node("bedplate://b"), node(""));
        for (seen, expected) in [
            (NodeSeen::Present(&own), ObservedNodeState::Own),
            (NodeSeen::Present(&other), ObservedNodeState::Foreign),
            (NodeSeen::Present(&kubeadm), ObservedNodeState::Foreign),
            (NodeSeen::Gone, ObservedNodeState::Absent),
        ] {
            let found = observe(&machine(Some("one"), &json!(null)), seen).unwrap();
            assert_eq!((found.state, found.observed_generation), (expected, 3), "{seen:?}");
            assert_eq!(observe(&machine(None, &json!(null)), seen), None, "no token is set");
        }
    }

    #[test]
    fn h2_node_that_was_not_requested_is_not_observed_as_absent() {
        let unasked = NodeSeen::Absent;
        assert_eq!(observe(&machine(Some("one"), &json!(null)), unasked), None);
        let absent = json!({ "state": "Absent", "observedGeneration": 2 });
        let found = observe(&machine(Some("one"), &absent), unasked).unwrap();
        assert_eq!(found.observed_generation, 2, "from before this generation");
    }

    #[test]
    fn h2_node_is_asked_for_once_in_each_generation_with_a_token() {
        let observed =
            |state: &str, generation: i64| json!({ "state": state, "observedGeneration": generation });
        for (token, observed, expected) in [
            (Some("one"), json!(null), true),
            (Some("one"), observed("Absent", 2), true),
            (Some("one"), observed("Absent", 3), false),
            // The Node existed, and is no longer in the cache.
            (Some("one"), observed("Foreign", 3), true),
            (Some("one"), observed("Later", 3), true),
            (None, json!(null), false),
            (None, observed("Absent", 2), false),
        ] {
            assert_eq!(is_due(&machine(token, &observed)), expected, "{token:?} {observed}");
        }
        let mut paused = machine(Some("one"), &json!(null));
        paused.spec.paused = true;
        assert!(!is_due(&paused));
    }
}
