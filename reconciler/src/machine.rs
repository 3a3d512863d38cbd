//! Machines: selection of versions, their Nodes, and their conditions (H3 to H7, C3).
//!
//! Reads the stores, and live whether a Node is gone. `plan` decides. Writes the lock of a version before its selection. The write is bound to
//! the Machine that was read, so a choice is never repeated by a controller that has not seen it.

mod events;
mod node_facts;
mod observed_node;
mod plan;

use std::sync::Arc;

use bedplate_api::machine::{Machine, NODE_CONFIGURATION, NODE_VERSION, Selected};
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::reason::machine::DrainedReason;
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use bedplate_engine::Context as _;
use bedplate_engine::write::WriteError;
use bedplate_rules::selection::Again;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use serde_json::json;

pub use self::plan::{NodeSeen, Plan, Status, plan};
use crate::FIELD_MANAGER;
use crate::context::World;
use crate::image::status_of;
use crate::metrics::Kind;

/// Brings one Machine's fields to the desired state.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(machine: Arc<Machine>, world: Arc<World>) -> Result<(), WriteError> {
    look(machine, None, &world).await
}

/// Selects the newest version for a Machine, for its turn in a rolling update.
///
/// # Errors
/// [`WriteError`]
pub async fn take(machine: Arc<Machine>, world: &World) -> Result<(), WriteError> {
    look(machine, Some(Again::RollingUpdate), world).await
}

async fn look(machine: Arc<Machine>, turn: Option<Again>, world: &World) -> Result<(), WriteError> {
    let name = machine.name_any();
    let cached = world.stores.nodes.get(&ObjectRef::new(&name));
    let has_node = machine.status.as_ref().is_some_and(|status| status.node_ref.is_some());
    // The new version enqueues the Machine again. A condition written until then would soon be outdated.
    if cached.is_none() && !has_node && world.stores.index().needs_first_version(&machine) {
        return Ok(());
    }
    // A stale store must not cause a repave, or the power-off of a server that runs a node.
    let must_ask = has_node || observed_node::is_due(&machine);
    let live = if cached.is_none() && must_ask { world.live::<Node>(&name).await? } else { None };
    let seen = match (&cached, &live) {
        (Some(node), _) => NodeSeen::Present(node),
        (None, Some(node)) => NodeSeen::Present(node),
        (None, None) if must_ask => NodeSeen::Gone,
        (None, None) => NodeSeen::Absent,
    };
    let claim = world.stores.claims.get(&ObjectRef::new(&name));
    let named = claim.as_ref().map(|claim| claim.spec.configuration_ref.name.as_str());
    let known = world.stores.index().known(&machine, named);
    let (configurations, versions) = known.slices();
    let objects = (&configurations[..], &versions[..]);
    let mut machine = machine;
    let mut plan = plan::plan(&machine, seen, turn, objects, claim.as_deref(), Timestamp::now());
    if plan.ends_claim(&machine) {
        // The host itself reports its release, so the decision is repeated with a live read.
        let Some(live) = world.live(&name).await? else { return Ok(()) };
        machine = Arc::new(live);
        plan = plan::plan(&machine, seen, turn, objects, claim.as_deref(), Timestamp::now());
    }
    if plan == Plan::default() {
        return Ok(());
    }
    world.leading(apply(&machine, seen, &plan, &versions, world)).await
}

async fn apply(
    machine: &Machine,
    node: NodeSeen<'_>,
    plan: &Plan,
    versions: &[&MachineConfigurationVersion],
    world: &World,
) -> Result<(), WriteError> {
    let name = machine.name_any();
    if let Some(status) = &plan.status {
        let selected = status.selected.as_ref();
        let _giving = selected.map(|selected| world.give(&selected.name, selected.version));
        if let Some((configuration, number)) = &plan.lock {
            lock(machine, &version_name(configuration, *number), versions, world).await?;
        }
        FIELD_MANAGER.apply_status(&world.write(Kind::Machine), machine, status).await?;
        let is_new =
            |selected: &&Selected| !machine.selected().is_some_and(|was| was.is_same_choice(selected));
        if let Some(selected) = selected.filter(is_new) {
            let version = selected.version_name();
            tracing::info!(machine = name, version, source = ?selected.source, "version selected");
        }
        let before = machine.status.clone().unwrap_or_default();
        for (reason, note) in events::changes(&before, status) {
            if reason == ControllerEvent::NodeReregistered {
                tracing::warn!(machine = name, note, "Node re-registered before its deletion was seen");
            }
            world.news.publish(machine, reason, &note);
        }
    }
    if let (Some((configuration, version)), NodeSeen::Present(node)) = (&plan.annotate, node) {
        let annotations = json!({ NODE_CONFIGURATION: configuration, NODE_VERSION: version.to_string() });
        FIELD_MANAGER.apply_annotations(&world.write(Kind::Machine), node, &annotations).await?;
        // A Node is annotated once for each version.
        let note = format!("Node {} runs {}", node.name_any(), version_name(configuration, *version));
        world.news.publish(machine, ControllerEvent::VersionApplied, &note);
    }
    Ok(())
}

/// Reports the drain of a Machine that is being deleted: status, reason and message of `Drained`.
///
/// # Errors
/// [`WriteError`]
pub(crate) async fn say_drained(
    machine: &Machine,
    drained: &(bool, DrainedReason, String),
    now: Timestamp,
    world: &World,
) -> Result<(), WriteError> {
    let Some(status) = plan::drained(machine, drained, now) else { return Ok(()) };
    FIELD_MANAGER.apply_status(&world.write(Kind::Deletion), machine, &status).await.map(drop)
}

/// Locks a version. H4: a version that is used does not change any more.
async fn lock(
    machine: &Machine,
    name: &str,
    versions: &[&MachineConfigurationVersion],
    world: &World,
) -> Result<(), WriteError> {
    let Some(version) = versions.iter().find(|version| version.name_any() == name) else { return Ok(()) };
    let status = status_of(version, true, None);
    FIELD_MANAGER.apply_status(&world.write(Kind::Machine), *version, &status).await?;
    tracing::info!(version = name, "version locked");
    let note = format!("version locked: Machine {} uses it", machine.name_any());
    world.news.publish(*version, ControllerEvent::VersionLocked, &note);
    Ok(())
}
