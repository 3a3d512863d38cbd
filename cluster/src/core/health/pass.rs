//! The pass over a MachineHealthCheck (HC1 to HC8). Called by the worker of the kind. Not here: decisions (`plan`).
//!
//! ```text
//! stores -> plan -> label and owner, conditions of each Machine -> status
//! ```

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::health::MachineHealthCheckStatus;
use bedplate_api::cluster::full::{Cluster, Machine, MachineHealthCheck, condition_type as types};
use bedplate_engine::Context as _;
use bedplate_engine::write::{Failed, WriteError};
use bedplate_replicas::NodeView;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::node::of_node;
use super::{Marks, Observed, ObservedMachine, Plan, plan};
use crate::core::context::World;
use crate::core::replica::Prepare;
use crate::core::{live, mark};
use crate::metrics::Kind;

/// Minimum delay until a health check is planned again.
const MIN_DELAY: Duration = Duration::from_secs(1);
/// Types of the conditions of a health check that this program writes. Conditions of others are not sent.
pub const CONDITION_TYPES: [&str; 3] = [types::REMEDIATION_ALLOWED, types::PAUSED, types::FIELDS_SUPPORTED];

/// Reconciles a MachineHealthCheck.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    object: Arc<MachineHealthCheck>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(object.labels()) {
        return Ok(None);
    }
    let observed = observe(object, &world);
    let plan = plan(&observed, Timestamp::now());
    let again = plan.again.map(|delay| delay.max(MIN_DELAY));
    world.leading(apply(&observed, &plan, &world)).await.map(|()| again)
}

fn observe(check: Arc<MachineHealthCheck>, world: &World) -> Observed {
    let namespace = check.namespace().unwrap_or_default();
    let cluster = ObjectRef::new(&check.spec.cluster_name).within(&namespace);
    let machines = live::stored(&world.stores.machines, &namespace);
    let cluster = world.stores.clusters.get(&cluster);
    let view =
        |machine: Arc<Machine>| ObservedMachine { node: node(&machine, cluster.as_deref(), world), machine };
    let is_other = |other: &Arc<MachineHealthCheck>| {
        other.metadata.name != check.metadata.name
            && other.spec.cluster_name == check.spec.cluster_name
            && world.scope.includes(other.labels())
    };
    let others = live::stored(&world.stores.checks, &namespace);
    Observed {
        cluster: cluster.clone(),
        machines: machines.into_iter().map(view).collect(),
        others: others.into_iter().filter(is_other).collect(),
        check,
    }
}

/// Returns the Node of a Machine of this Cluster.
fn node(machine: &Machine, cluster: Option<&Cluster>, world: &World) -> NodeView {
    let cluster = cluster.filter(|cluster| cluster.name_any() == machine.spec.cluster_name);
    let Some(cluster) = cluster else { return NodeView::Unknown };
    let id = machine.spec.provider_id.as_deref();
    of_node(machine, &world.workloads.look(cluster, id).node)
}

/// Applies the writes. The failure of one Machine does not hold up the others.
async fn apply(observed: &Observed, plan: &Plan, world: &World) -> Result<(), WriteError> {
    let mut failed = Failed::default();
    for marks in &plan.marks {
        world.counters.wrote(Kind::HealthCheck);
        failed.note(apply_marks(observed, marks, world).await);
    }
    let check = &*observed.check;
    let mut is_changed = false;
    if let (Some(cluster), true) = (&observed.cluster, plan.adopt) {
        world.counters.wrote(Kind::HealthCheck);
        let adopted = adopt(check, cluster, world).await;
        // The status is bound to the resource version that was read. After a change it follows in the next pass.
        is_changed = adopted.as_ref().err().and_then(WriteError::refusal).is_none();
        failed.note(adopted);
    }
    if let (Some(status), false) = (&plan.status, is_changed) {
        failed.note(report(check, status, world).await);
    }
    failed.end()
}

async fn apply_marks(observed: &Observed, marks: &Marks, world: &World) -> Result<(), WriteError> {
    let mut machines = observed.machines.iter().map(|observed| &observed.machine);
    let Some(machine) = machines.find(|machine| machine.name_any() == marks.machine) else { return Ok(()) };
    let mut own = mark::own(machine);
    own.retain(|one| marks.conditions.iter().all(|changed| changed.type_ != one.type_));
    own.extend(marks.conditions.iter().cloned());
    mark::apply(machine, &own, world).await
}

fn checks(check: &MachineHealthCheck, world: &World) -> Api<MachineHealthCheck> {
    Api::namespaced(world.client.clone(), &check.namespace().unwrap_or_default())
}

async fn adopt(check: &MachineHealthCheck, cluster: &Cluster, world: &World) -> Result<(), WriteError> {
    let Some(prepare) = Prepare::of(check, None, Some(cluster)) else { return Ok(()) };
    world.manager.merge(&checks(check, world), check, &prepare.patch()).await
}

async fn report(
    check: &MachineHealthCheck,
    status: &MachineHealthCheckStatus,
    world: &World,
) -> Result<(), WriteError> {
    let mut own = status.clone();
    own.conditions.retain(|one| CONDITION_TYPES.contains(&one.type_.as_str()));
    own.deprecated = None;
    world.counters.wrote(Kind::HealthCheck);
    world.manager.apply_status(&checks(check, world), check, &own).await.map(drop)
}
