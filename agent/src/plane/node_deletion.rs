//! Asks the API server whether the Node is really deleted. The cache of a watch does not count.
//!
//! Two reads without `resourceVersion`, which the API server answers from the newest state. The Node must not
//! be found. The host's Machine must exist immediately after that, so that this API server is complete. Other
//! answers prove nothing about the Node: a proxy's 404, an API server that does not serve Nodes, or one that
//! was restored without the Machine. Called by `watcher`, `cluster` and `own_node`.

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::machine::Machine;
use k8s_openapi::api::core::v1::Node;
use kube::core::Status;
use kube::core::response::StatusSummary;
use kube::{Api, Client};

use super::error::{AskServerError, within};

/// Result of the two reads.
#[derive(Debug)]
pub(super) enum Asked {
    /// There is no Node, and the Machine is this one.
    Gone(Box<Machine>),
    /// The Node exists.
    There,
}

/// Returns true if the API server itself reports that it has no such Node.
pub(super) async fn is_node_gone(client: &Client, name: &str) -> Result<bool, AskServerError> {
    let nodes: Api<BoundedTimes<Node>> = Api::all(client.clone());
    match within(nodes.get(name)).await {
        Ok(Ok(_)) => Ok(false),
        Ok(Err(kube::Error::Api(status))) if is_not_found(&status, ("", "nodes"), name) => Ok(true),
        Ok(Err(error)) => Err(AskServerError::of(format!("Node {name}"), error)),
        Err(late) => Err(late(format!("Node {name}"))),
    }
}

/// Asks.
pub(super) async fn ask(client: &Client, name: &str) -> Result<Asked, AskServerError> {
    if !is_node_gone(client, name).await? {
        return Ok(Asked::There);
    }
    let machines: Api<BoundedTimes<Machine>> = Api::all(client.clone());
    match within(machines.get(name)).await {
        Ok(Ok(BoundedTimes(machine))) => Ok(Asked::Gone(Box::new(machine))),
        Ok(Err(error)) => Err(AskServerError::of(format!("Machine {name}"), error)),
        Err(late) => Err(late(format!("Machine {name}"))),
    }
}

/// Returns true if the API server itself reports that it has no such object of this group and resource. Its
/// answer names both. An answer without them is about something else: an unserved path, or a proxy.
pub(super) fn is_not_found(status: &Status, resource: (&str, &str), name: &str) -> bool {
    let details = status.details.as_ref();
    status.code == 404
        && status.status == Some(StatusSummary::Failure)
        && status.reason == "NotFound"
        && details
            .is_some_and(|said| (said.group.as_str(), said.kind.as_str()) == resource && said.name == name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn not_found(changes: &Value) -> bool {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "nodes \"node-1\" not found", "details": { "name": "node-1", "kind": "nodes" }
        });
        for (key, value) in changes.as_object().unwrap() {
            status[key] = value.clone();
        }
        is_not_found(&serde_json::from_value(status).unwrap(), ("", "nodes"), "node-1")
    }

    #[test]
    fn only_the_api_servers_own_word_about_this_node_counts() {
        assert!(not_found(&json!({})));
        for other in [
            json!({ "code": 403 }),
            json!({ "status": "Success" }),
            json!({ "reason": "Forbidden" }),
            // kube's result for a page that is not a Status, for example of a proxy.
            json!({ "reason": "Failed to parse error data", "details": null }),
            // "the server could not find the requested resource": the path, not the object.
            json!({ "details": {} }),
            json!({ "details": { "name": "node-1", "kind": "nodes", "group": "metrics.k8s.io" } }),
            json!({ "details": { "name": "node-2", "kind": "nodes" } }),
            json!({ "details": { "name": "node-1", "kind": "namespaces" } }),
        ] {
            assert!(!not_found(&other), "{other}");
        }
    }
}
