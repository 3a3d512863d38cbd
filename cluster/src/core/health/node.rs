//! Pure: the Node of a Machine, as health checks judge it. Called by the pass over health checks.
//!
//! The watch of the workload cluster shows the Node with all its conditions. While it cannot be read, the Node is unknown, and nothing is judged.

use bedplate_api::cluster::full::Machine;
use bedplate_replicas::{ConditionView, NodeView};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::core::machine::node;

/// Returns the Node, as the API server of the cluster shows it.
pub fn of_node(machine: &Machine, seen: &node::NodeView) -> NodeView {
    let named = machine.status.as_ref().and_then(|status| status.node_ref.as_ref());
    match (seen, named) {
        (node::NodeView::Found(node), _) => NodeView::Present(views(node)),
        (node::NodeView::Absent, Some(node)) => NodeView::Deleted(node.name.clone()),
        (node::NodeView::Absent, None) => NodeView::Absent,
        (node::NodeView::Ambiguous(_) | node::NodeView::Unknown, _) => NodeView::Unknown,
    }
}

fn views(node: &Node) -> Vec<ConditionView> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let view = |condition: &k8s_openapi::api::core::v1::NodeCondition| ConditionView {
        kind: condition.type_.clone(),
        status: condition.status.clone(),
        since: condition.last_transition_time.as_ref().map_or(Timestamp::MAX, |time| time.0),
    };
    conditions.map(view).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    const TIME: &str = "2026-01-01T00:00:00Z";

    fn machine(reference: &Value, reason: Option<(&str, &str)>) -> Machine {
        let condition = |(status, reason): (&str, &str)| json!({ "type": "NodeReady", "status": status, "reason": reason, "message": "", "lastTransitionTime": TIME });
        let conditions: Vec<Value> = reason.into_iter().map(condition).collect();
        from_value(json!({ "metadata": { "name": "m" },
            "spec": { "clusterName": "c", "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "m" } },
            "status": { "nodeRef": reference, "conditions": conditions } }))
        .unwrap()
    }

    #[test]
    fn hc2_node_that_is_read_shows_all_its_conditions() {
        let condition = |type_: &str| json!({ "type": type_, "status": "False", "lastTransitionTime": TIME });
        let node: Node = from_value(
            json!({ "status": { "conditions": [condition("Ready"), condition("DiskPressure")] } }),
        )
        .unwrap();
        let named = machine(&json!({ "name": "n" }), None);
        let NodeView::Present(views) = of_node(&named, &node::NodeView::Found(node.into())) else { panic!() };
        assert_eq!(
            views.iter().map(|view| view.kind.as_str()).collect::<Vec<_>>(),
            ["Ready", "DiskPressure"]
        );
        assert_eq!(of_node(&named, &node::NodeView::Absent), NodeView::Deleted("n".to_owned()));
        assert_eq!(of_node(&machine(&json!(null), None), &node::NodeView::Absent), NodeView::Absent);
        assert_eq!(of_node(&named, &node::NodeView::Unknown), NodeView::Unknown);
    }
}
