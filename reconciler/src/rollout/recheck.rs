//! Whether what is known of Nodes is what there is, asked before a Machine's turn begins: the store of a watch that is behind would give the
//! room of one Machine to a second one.
//!
//! Whether a Node is Ready is the watch's word, for the API server selects no Nodes by it, and all of them are too many: but only while something
//! is heard of that watch. Of a host that dies Kubernetes says so no sooner than after 40 s, so that nobody could be more exact than that.
//!
//! Asked each time: which Nodes are cordoned; those are few. Asked once when a controller begins to lead: which Nodes there are, for the one
//! before may have deleted some. What it has deleted itself it remembers (`node::drain`).

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

/// A watch is told something each minute; one of which nothing is heard for two knows of no Node how it is.
const STALE: Duration = Duration::from_secs(120);

/// Whether the Machines that seem to be available may be.
///
/// # Errors
/// [`WriteError::Conflict`]: they are not, and the watch is behind; or the API server did not say.
pub(super) async fn compare(rollout: &Rollout, world: &World) -> Result<(), WriteError> {
    let behind = |name: &str| WriteError::Conflict { what: format!("Node {name}") };
    if world.counters.silent("Node").is_some_and(|silent| silent > STALE) {
        return Err(WriteError::Conflict { what: "the watch of Nodes".to_owned() });
    }
    if !world.drains.is_sure() {
        // In this order: what comes meanwhile is in neither.
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
