//! Compares the stored Nodes with the cluster before a Machine's turn starts. A delayed watch would otherwise
//! let a second Machine start in the place of the first.
//!
//! Readiness is taken from the watch. The API server cannot select Nodes by it, and reading all Nodes is too
//! expensive. It counts only while the watch is receiving data. Kubernetes itself reports a dead host after
//! 40 s at the earliest.
//!
//! The cordoned Nodes are read each time; they are few. The names of all Nodes are read once after this
//! controller becomes the leader, because the previous one may have deleted some. Nodes that this controller
//! deleted are remembered (`node::drain`).

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_engine::list;
use bedplate_engine::write::WriteError;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::Request;

use super::observe::Rollout;
use crate::context::World;

/// Time without data after which a watch is stale. A healthy watch receives data each minute.
const WATCH_STALE_TIME: Duration = Duration::from_secs(120);

/// Checks that the Machines that seem available are available.
///
/// # Errors
/// [`WriteError::Conflict`] if they are not and the watch lags; another error if the API server did not
/// answer.
pub(super) async fn compare(rollout: &Rollout, world: &World) -> Result<(), WriteError> {
    let behind = |name: &str| WriteError::Conflict { what: format!("Node {name}") };
    if world.counters.silent("Node").is_some_and(|silent| silent > WATCH_STALE_TIME) {
        return Err(WriteError::Conflict { what: "the watch of Nodes".to_owned() });
    }
    if !world.drains.is_sure() {
        // In this order: an object that is created meanwhile is in neither list.
        let known = world.stores.nodes.state();
        let there = list(world, ListParams::default()).await?;
        let there: BTreeSet<Option<String>> = there.into_iter().map(|node| node.metadata.uid).collect();
        let gone: Vec<_> = known.into_iter().filter(|node| !there.contains(&node.metadata.uid)).collect();
        gone.iter().for_each(|node| world.drains.removed(node));
        world.drains.sure(true);
        if let Some(node) = gone.first() {
            return Err(behind(&node.name_any()));
        }
    }
    let cordoned = list(world, ListParams::default().fields("spec.unschedulable=true")).await?;
    let cordoned: BTreeSet<String> = cordoned.iter().map(ResourceExt::name_any).collect();
    let mut available = rollout.members.iter().filter(|member| member.unavailable.is_none());
    match available.find(|member| cordoned.contains(&member.name)) {
        Some(member) => Err(behind(&member.name)),
        None => Ok(()),
    }
}

async fn list(world: &World, parameters: ListParams) -> Result<Vec<PartialObjectMeta<Node>>, WriteError> {
    let mut nodes = Vec::new();
    let take = |node| nodes.push(node);
    list::each(&world.client, "the Nodes", Request::list_metadata, parameters, take).await?;
    Ok(nodes)
}
