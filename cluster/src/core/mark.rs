//! Conditions of a Machine that belong to health checks: `HealthCheckSucceeded` and `OwnerRemediated`. Called by the passes over health checks
//! and MachineSets.
//!
//! Both passes write with one field manager, which no other write uses. Each apply has both conditions as they were read, with its change, and is
//! bound to the resource version, so conditions of others stay. A mark is removed by a JSON patch: an apply would keep it if another program, such
//! as an earlier installation of upstream, owns it too.

use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::full::condition_type::{HEALTH_CHECK_SUCCEEDED, OWNER_REMEDIATED};
use bedplate_engine::FieldManager;
use bedplate_engine::write::WriteError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::context::World;
use super::object::Conditions as _;

/// Field manager of the two conditions.
pub const MANAGER: FieldManager = FieldManager::new("bedplate-cluster-health");

/// Types of the two conditions.
pub const TYPES: [&str; 2] = [HEALTH_CHECK_SUCCEEDED, OWNER_REMEDIATED];

/// Returns the conditions of a Machine that belong to health checks.
pub fn own(machine: &Machine) -> Vec<Condition> {
    let is_own = |condition: &&Condition| TYPES.contains(&condition.type_.as_str());
    machine.conditions().iter().filter(is_own).cloned().collect()
}

/// Applies all conditions of a Machine that belong to health checks, if the Machine has not changed since it was read.
///
/// # Errors
/// [`WriteError`]
pub async fn apply(machine: &Machine, own: &[Condition], world: &World) -> Result<(), WriteError> {
    let api: Api<Machine> = Api::namespaced(world.client.clone(), &machine.namespace().unwrap_or_default());
    MANAGER.apply_status(&api, machine, &json!({ "conditions": own })).await.map(drop)
}

/// Removes condition `OwnerRemediated`, if the Machine has not changed since it was read.
///
/// # Errors
/// [`WriteError`]
pub async fn remove(machine: &Machine, world: &World) -> Result<(), WriteError> {
    let api: Api<Machine> = Api::namespaced(world.client.clone(), &machine.namespace().unwrap_or_default());
    let others: Vec<Value> = machine
        .conditions()
        .iter()
        .filter(|condition| condition.type_ != OWNER_REMEDIATED)
        .map(|condition| json!(condition))
        .collect();
    let edits = json!([
        { "op": "replace", "path": "/metadata/resourceVersion", "value": machine.resource_version() },
        { "op": "replace", "path": "/status/conditions", "value": others },
    ]);
    MANAGER.edit_status(&api, machine, &edits).await
}
