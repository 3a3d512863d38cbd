//! Machines that are deleted with `deletionPolicy: Drain`: the Node is cordoned, drained and deleted, and the agent stops the slot. Then the
//! object is deleted.
//!
//! `plan` decides. The agent stops the slot when the Node is gone and its Machine is being deleted with this policy. The finalizer keeps the
//! object until then, because the agent must read it.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::machine::Machine;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_engine::Context as _;
use bedplate_engine::write::WriteError;
use bedplate_rules::drain::{Drain, Pod};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

pub use self::plan::{FINALIZER, Lasted, Plan, Step, concerns, plan};
use crate::FIELD_MANAGER;
use crate::context::World;
use crate::machine;
use crate::metrics::Kind;
use crate::node::drain;
use crate::rollout::{Purpose, limit};

/// Carries out the next step for one Machine.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(machine: Arc<Machine>, world: Arc<World>) -> Result<Option<Duration>, WriteError> {
    if !concerns(&machine) {
        return Ok(None);
    }
    let name = machine.name_any();
    // Cached data must not decide that a Node is drained or gone.
    let node = match machine.metadata.deletion_timestamp {
        Some(_) => world.live(&name).await?,
        None => world.stores.nodes.get(&ObjectRef::new(&name)).map(|node| (*node).clone()),
    };
    let configuration = machine.selected().and_then(|selected| world.configuration(&selected.name));
    let limit = limit(configuration.as_deref());
    let now = Timestamp::now();
    let plan = plan(&machine, node.as_ref(), limit, lasted(&machine, limit, now, &world), now);
    if plan.step == Step::Rest && plan.drained.is_none() {
        return Ok(None);
    }
    let after = world.leading(apply(&machine, node.as_ref(), &plan, now, &world)).await?;
    let until = plan.until.map(|until| until.duration_since(now).unsigned_abs().max(Duration::from_secs(1)));
    Ok(after.or(until))
}

/// Returns the elapsed times by this program's monotonic clock. The wall clock may leap.
fn lasted(machine: &Machine, limit: SignedDuration, now: Timestamp, world: &World) -> Lasted {
    let uid = machine.metadata.uid.as_deref().unwrap_or_default();
    let since = |what: &str, written: Option<Timestamp>| {
        let lasting = &world.drains.lasting;
        written.map_or(SignedDuration::ZERO, |at| lasting.lasted(&format!("{uid}/{what}"), at, now, limit))
    };
    Lasted {
        deletion: since("deleted", machine.metadata.deletion_timestamp.as_ref().map(|time| time.0)),
        slot: since("drained", plan::drained_since(machine)),
    }
}

async fn apply(
    machine: &Machine,
    node: Option<&Node>,
    plan: &Plan,
    now: Timestamp,
    world: &World,
) -> Result<Option<Duration>, WriteError> {
    let name = machine.name_any();
    let lets_go = matches!(plan.step, Step::Release | Step::FreeAndRelease);
    if let Some(drained) = plan.drained.as_ref().filter(|_| !lets_go) {
        machine::say_drained(machine, drained, now, world).await?;
    }
    match (&plan.step, node) {
        (Step::Hold, _) => hold(machine, true, world).await?,
        (Step::Release, _) => hold(machine, false, world).await?,
        (Step::FreeAndRelease, node) => {
            if let Some(node) = node {
                drain::free(world, node, None).await?;
            }
            hold(machine, false, world).await?;
        }
        (Step::Cordon, Some(node)) => {
            drain::cordon(world, node, &Purpose::Deletion, now).await?;
            tracing::info!(machine = name, "Node cordoned for the deletion of its Machine");
            let note =
                format!("Machine deleted with deletionPolicy Drain; Node {name} is cordoned and drained");
            world.news.publish(machine, ControllerEvent::DrainStarted, &note);
            return Ok(Some(Duration::from_millis(200)));
        }
        (Step::Empty { anyway }, Some(node)) => return empty(machine, node, *anyway, world).await,
        (Step::Cordon | Step::Empty { .. } | Step::Await | Step::Rest, _) => {}
    }
    Ok(None)
}

/// Drain settings for a Machine that a user deleted. Data that only this Node had is lost.
const DRAIN: Drain = Drain { limit: SignedDuration::MAX, grace: None, delete_empty_dir: true, force: true };

async fn empty(
    machine: &Machine,
    node: &Node,
    anyway: bool,
    world: &World,
) -> Result<Option<Duration>, WriteError> {
    let name = machine.name_any();
    let pods = drain::pods(world, &name).await?;
    if anyway || !pods.iter().any(Pod::has_to_leave) {
        drain::remove(world, node).await?;
        tracing::info!(machine = name, anyway, "Node deleted");
        let how = if anyway { "not Ready at the end of the timeout" } else { "drained" };
        let note = format!("Node {name} deleted: {how}; waiting for the agent to stop the slot");
        world.news.publish(machine, ControllerEvent::NodeDrained, &note);
        return Ok(Some(Duration::from_millis(200)));
    }
    drain::evict_all(world, (node, Some(machine)), &pods, &DRAIN, None).await.map(Some)
}

async fn hold(machine: &Machine, held: bool, world: &World) -> Result<(), WriteError> {
    FIELD_MANAGER.set_finalizer(&world.write(Kind::Deletion), machine, FINALIZER, held).await?;
    if !held {
        let uid = machine.metadata.uid.as_deref().unwrap_or_default();
        ["deleted", "drained"].iter().for_each(|what| world.drains.lasting.ends(&format!("{uid}/{what}")));
        tracing::info!(machine = machine.name_any(), "finalizer removed, Machine released");
    }
    Ok(())
}
