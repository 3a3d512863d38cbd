//! MachineOperations: labels, start, timeout, removal, and the children of a selector (O1 to O8).
//!
//! Reads the stores. Two facts are read live: that a Machine does not exist, and that a parent is unchanged
//! before children are created. `plan` decides, for a selector `rules::fan_out`. pxed and the agents carry
//! the operations out.

mod end;
mod fan_out;
pub(crate) mod plan;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::operation::{MachineOperation, OperationState};
use bedplate_api::reason::event::ControllerEvent;
use bedplate_engine::Context as _;
use bedplate_engine::write::{self, Failed, WriteError};
use bedplate_rules::drain::CORDONED_BY;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

pub use self::fan_out::FINALIZER;
pub use self::plan::{Plan, Seen, parent_of, plan};
use crate::FIELD_MANAGER;
use crate::context::World;
use crate::cordon::is_cordoned;
use crate::foreign_node::is_node_of;
use crate::metrics::Kind;
use bedplate_rules::operation::is_finished;

/// Brings the fields of one operation that this controller owns to the desired state. Returns the delay
/// before the next reconcile.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    operation: Arc<MachineOperation>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    if world.stores.whose.tells(&operation) {
        let (reason, note) = event(&operation);
        world.news.publish(&*operation, reason, &note);
    }
    if operation.spec.machine_selector.is_some() {
        return world.leading(fan_out::reconcile(&operation, &world)).await;
    }
    let Some(machine) = operation.spec.machine_ref.as_ref().map(|machine| machine.name.as_str()) else {
        return Ok(None);
    };
    let now = Timestamp::now();
    let is_open = !is_finished(&operation);
    let mut found = world.stores.machines.get(&ObjectRef::new(machine));
    // A stale store must not fail an operation whose Machine exists.
    if found.is_none() && is_open && !plan::is_early(&operation, now) {
        found = world.live(machine).await?.map(Arc::new);
    }
    let since = |operation: &MachineOperation| world.stores.whose.since(operation, now);
    let others = if is_open { world.stores.operations_of(machine) } else { Vec::new() };
    let others: Vec<_> = others.into_iter().map(|other| (other.clone(), since(&other))).collect();
    let (machine, since) = (found.as_deref(), since(&operation));
    let seen = Seen { operation: &operation, machine, since, others: &others, now };
    let plan = plan(&seen);
    let again = plan.again;
    if plan != (Plan { again, ..Plan::default() }) {
        world.leading(apply(&operation, &plan, &world)).await?;
    }
    Ok(again)
}

/// Returns the Event of a finished operation.
fn event(operation: &MachineOperation) -> (ControllerEvent, String) {
    let spec = &operation.spec;
    let on = spec.machine_ref.as_ref().map(|machine| format!(" of Machine {}", machine.name));
    let status = operation.status.clone().unwrap_or_default();
    let (event, how, reason) = match status.state {
        Some(OperationState::Complete) => (ControllerEvent::OperationComplete, "completed", None),
        _ => (ControllerEvent::OperationFailed, "failed", status.reason),
    };
    let mut note = format!("{}{} {how}", spec.operation_name, on.unwrap_or_default());
    for part in [reason, status.message].into_iter().flatten().filter(|part| !part.is_empty()) {
        note.push_str(&format!(": {part}"));
    }
    (event, note)
}

async fn apply(operation: &MachineOperation, plan: &Plan, world: &World) -> Result<(), WriteError> {
    if plan.remove {
        return remove(operation, world).await;
    }
    let mut failed = Failed::default();
    if plan.repave {
        failed.note(repave(operation, world).await);
    }
    // Written before the label by which the agent finds it: so agent and controller do not write concurrently.
    if let Some(status) = &plan.status {
        let all = world.write(Kind::Operation);
        let written = match status.state {
            Some(OperationState::Failed) => end::write(&all, operation, status).await,
            _ => FIELD_MANAGER.apply_status(&all, operation, status).await.map(drop),
        };
        if failed.note(written)
            && let Some(reason) = &status.reason
        {
            let operation = operation.name_any();
            tracing::info!(operation, reason, message = status.message, "operation failed");
        }
    }
    if let Some(labels) = &plan.labels {
        let all = world.write(Kind::Operation);
        failed.note(FIELD_MANAGER.apply_labels(&all, operation, labels).await);
    }
    failed.end()
}

/// Deletes the Node that was drained for an operation (O8), by its UID.
async fn repave(operation: &MachineOperation, world: &World) -> Result<(), WriteError> {
    let Some(name) = operation.spec.machine_ref.as_ref().map(|machine| machine.name.as_str()) else {
        return Ok(());
    };
    let Some(node) = world.live::<Node>(name).await? else { return Ok(()) };
    let is_for_it = node.annotations().get(CORDONED_BY) == operation.metadata.uid.as_ref();
    if !(is_node_of(name, &node) && is_cordoned(&node) && is_for_it) {
        return Ok(());
    }
    let nodes = world.write::<Node>(Kind::Operation);
    write::delete(&nodes, name, node.uid(), node.resource_version()).await?;
    tracing::info!(operation = operation.name_any(), node = name, "drained Node deleted for a repave");
    Ok(())
}

/// O2
async fn remove(operation: &MachineOperation, world: &World) -> Result<(), WriteError> {
    let (name, all) = (operation.name_any(), world.write::<MachineOperation>(Kind::Operation));
    write::delete(&all, &name, operation.uid(), operation.resource_version()).await?;
    tracing::info!(operation = name, "expired operation deleted");
    Ok(())
}
