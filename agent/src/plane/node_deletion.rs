//! Asks the API server whether the Node is really deleted. The cache of a watch does not count.
//!
//! Two reads without `resourceVersion`, which the API server answers from the newest state. The Node must not
//! be found. The host's Machine must exist immediately after that, so that this API server is complete. Other
//! answers prove nothing about the Node: a proxy's 404, an API server that does not serve Nodes, or one that
//! was restored without the Machine. Called by `watcher`, `cluster` and `own_node`.

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::machine::Machine;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

use super::error::{self, AskServerError, find};

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
    let found = find(format!("Node {name}"), ("", "nodes"), name, nodes.get(name)).await?;
    Ok(found.is_none())
}

/// Sends both reads.
pub(super) async fn ask(client: &Client, name: &str) -> Result<Asked, AskServerError> {
    if !is_node_gone(client, name).await? {
        return Ok(Asked::There);
    }
    let machines: Api<BoundedTimes<Machine>> = Api::all(client.clone());
    let BoundedTimes(machine) = error::ask(format!("Machine {name}"), machines.get(name)).await?;
    Ok(Asked::Gone(Box::new(machine)))
}
