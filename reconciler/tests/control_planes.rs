//! A rolling update and a control plane whose agent says that it stays.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;

use bedplate_process::lease::Tenure;
use bedplate_reconciler::rollout;
use serde_json::{Value, json};

use self::server::{Asked, Objects, Server, object};

fn configuration() -> Value {
    let mut configuration = server::configuration(2, &json!({ "latestVersion": 2 }));
    configuration["spec"]["updateStrategy"] = json!({ "type": "RollingUpdate" });
    configuration
}

/// A Machine for which version 2 is selected and prepared, with this reason of `Paved`.
fn machine(paved: &str) -> Value {
    let paved = json!({ "type": "Paved", "status": "True", "reason": paved, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    server::machine(
        &json!({ "selected": { "name": "w", "version": 2, "source": "Reference" }, "conditions": [paved],
        "slots": [{ "name": "b", "configurationName": "w", "version": 2, "state": "Prepared" }],
        "applied": { "name": "w", "version": 1, "slot": "a", "nodeUID": "n1" }, "nodeRef": { "name": "a", "uid": "n1" },
        "agent": { "lastHeartbeatTime": "2100-01-01T00:00:00Z" } }),
    )
}

fn node(cordoned: bool) -> Value {
    let ours = json!({ "bedplate.dev/cordoned-by": "rollout/w-v2", "bedplate.dev/drain-started": "2100-01-01T00:00:00Z" });
    json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "a", "uid": "n1", "resourceVersion": "8", "annotations": if cordoned { ours } else { json!({}) } },
        "spec": { "providerID": "bedplate://a", "unschedulable": cordoned },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] } })
}

/// Returns the requests that disturb a node.
async fn disturbed(paved: &str, cordoned: bool) -> Vec<String> {
    let (server, machine, node) = (Server::default(), machine(paved), node(cordoned));
    let objects = Objects {
        configurations: vec![configuration()],
        versions: vec![server::version(1, &json!({})), server::version(2, &json!({}))],
        machines: vec![machine.clone()],
        nodes: vec![node.clone()],
        ..Objects::default()
    };
    let answer = move |asked: &Asked| match asked.line.as_str() {
        "GET /api/v1/pods" => {
            (200, json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [] }))
        }
        "GET /api/v1/nodes" if asked.query.contains("unschedulable") => server::node_heads(&[]),
        "GET /api/v1/nodes" => server::node_heads(std::slice::from_ref(&node)),
        line if line.contains("/machines/") => (200, machine.clone()),
        _ => (200, node.clone()),
    };
    let world = server.world(&objects, Tenure::always(), answer);
    rollout::reconcile(Arc::new(object(&configuration())), world).await.unwrap();
    let cordons = |asked: &Asked| asked.body["spec"]["unschedulable"] == true;
    let disturbs = |asked: &Asked| asked.line.starts_with("DELETE ") || cordons(asked);
    server.asked().into_iter().filter(disturbs).map(|asked| asked.line).collect()
}

#[tokio::test]
async fn c4_control_plane_whose_etcd_must_stay_is_not_cordoned_or_deleted() {
    assert_eq!(disturbed("Applied", false).await, ["PATCH /api/v1/nodes/a"]);
    assert_eq!(disturbed("Applied", true).await, ["DELETE /api/v1/nodes/a"]);
    for cordoned in [false, true] {
        assert_eq!(disturbed("ControlPlaneProtected", cordoned).await, [""; 0], "{cordoned}");
    }
}
