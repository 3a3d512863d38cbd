//! The pass over a MachineDeployment (MD1 to MD10). Called by the worker of the kind. Not here: decisions (`act`).
//!
//! ```text
//! stores -> plan -> (a set must be made, or the finalizer removed: live reads -> plan) -> writes in order, until one fails -> status
//! ```
//! The deployment itself is written once in a pass, because each write is bound to the resource version that was read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::deployment::MachineDeploymentStatus;
use bedplate_api::cluster::full::{MachineDeployment, MachineSet, condition_type as types};
use bedplate_api::cluster::part::Reference;
use bedplate_engine::Context as _;
use bedplate_engine::write::{Failed, WriteError, ask, delete};
use bedplate_replicas::Key;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource as _, ResourceExt};

use super::act::{Act, Plan, plan};
use super::observe::Observed;
use super::status::status;
use crate::core::context::World;
use crate::core::event;
use crate::core::live::{self, Reader};
use crate::core::patch::difference;
use crate::core::reference::Lookup;
use crate::core::replica::adopted;
use crate::metrics::Kind;
use crate::owner::owner_reference;

/// Types of the conditions of a deployment that this program writes. Conditions of others are not sent.
pub const CONDITION_TYPES: [&str; 10] = [
    types::AVAILABLE,
    types::ROLLING_OUT,
    types::SCALING_UP,
    types::SCALING_DOWN,
    types::MACHINES_READY,
    types::MACHINES_UP_TO_DATE,
    types::REMEDIATING,
    types::DELETING,
    types::PAUSED,
    types::FIELDS_SUPPORTED,
];

/// Reconciles a MachineDeployment.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    object: Arc<MachineDeployment>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(object.labels()) {
        return Ok(None);
    }
    let observed = observe(object, &world);
    world.leading(run(observed, &world)).await
}

/// Reads the stores. The templates count as existing until a set must be made.
fn observe(deployment: Arc<MachineDeployment>, world: &World) -> Observed {
    let (stores, namespace) = (&world.stores, deployment.namespace().unwrap_or_default());
    let cluster = ObjectRef::new(&deployment.spec.cluster_name).within(&namespace);
    Observed {
        is_live: false,
        sets: live::stored(&stores.sets, &namespace),
        machines: live::stored(&stores.machines, &namespace),
        cluster: stores.clusters.get(&cluster),
        refused: BTreeSet::new(),
        templates: Vec::new(),
        deployment,
    }
}

async fn run(mut observed: Observed, world: &World) -> Result<Option<Duration>, WriteError> {
    let Some(mut planned) = planned(&mut observed, world).await? else { return Ok(None) };
    let mut done = apply(&observed, &planned, world).await;
    if !done.refused.is_empty() {
        // The other sets must not wait for one that cannot be adopted.
        observed.refused = std::mem::take(&mut done.refused);
        let Some(next) = self::planned(&mut observed, world).await? else { return Ok(None) };
        planned = next;
        if !done.is_written {
            let more = apply(&observed, &planned, world).await;
            done.is_written = more.is_written;
            done.failed.note(more.failed.end());
            done.refusals.extend(more.refusals);
        }
    }
    planned.blocked.append(&mut done.refusals);
    if !done.is_written {
        done.failed.note(report(&observed, &planned, world).await);
    }
    done.failed.end().map(|()| planned.again(Timestamp::now()))
}

/// Plans, from live reads if they are needed. None: the deployment was deleted.
async fn planned(observed: &mut Observed, world: &World) -> Result<Option<Plan>, WriteError> {
    let first = plan(observed, Timestamp::now());
    let is_creation = first.acts.iter().any(|act| matches!(act, Act::CreateSet(_)));
    if observed.is_live || !(first.needs_live_read || is_creation) {
        return Ok(Some(first));
    }
    let is_there = read_live(observed, world).await?;
    Ok(is_there.then(|| plan(observed, Timestamp::now())))
}

/// Reads the deployment, its sets and its templates from the API server. Returns false if the deployment was deleted.
async fn read_live(observed: &mut Observed, world: &World) -> Result<bool, WriteError> {
    let Some(deployment) = live::again(&world.client, &*observed.deployment).await? else { return Ok(false) };
    let namespace = deployment.namespace().unwrap_or_default();
    observed.sets = live::list_over(&world.client, &namespace, &world.stores.sets).await?;
    observed.is_live = true;
    let spec = &deployment.spec.template.spec;
    let named: Vec<Reference> =
        std::iter::once(&spec.infrastructure_ref).chain(&spec.bootstrap.config_ref).cloned().collect();
    let mut reader = Reader::new(&world.client, &namespace);
    observed.templates.clear();
    for reference in named {
        let lookup = Lookup::from(&reader.referenced(&reference).await?);
        observed.templates.push((format!("{} {}", reference.kind, reference.name), lookup));
    }
    observed.deployment = deployment;
    Ok(true)
}

/// Result of the writes of a plan.
#[derive(Default)]
struct Done {
    failed: Failed,
    /// True if the deployment was written. Its status is written in the next pass.
    is_written: bool,
    /// Orphans whose adoption the API server has refused.
    refused: BTreeSet<Key>,
    /// Creations and changes of the deployment that the API server has refused. Texts for a user.
    refusals: Vec<String>,
}

/// Applies the writes in order. A failed write ends the pass, because an earlier set shrinks only after the current one has grown. A refused
/// adoption does not.
async fn apply(observed: &Observed, plan: &Plan, world: &World) -> Done {
    let mut done = Done::default();
    for act in &plan.acts {
        let is_own = matches!(act, Act::Own(_));
        if is_own && done.is_written {
            break;
        }
        world.counters.wrote(Kind::CoreDeployment);
        let result = carry_out(observed, act, world).await;
        // A refused write leaves the resource version as it was read, so the status does not wait.
        done.is_written |= is_own && result.as_ref().err().and_then(WriteError::refusal).is_none();
        done.refusals.extend(result.as_ref().err().and_then(|error| refusal(act, error)));
        match (act, result) {
            (Act::Adopt(key), Err(error)) if error.refusal().is_some() => {
                // The pass continues without the set, so its caller does not report the error.
                world.rejected(Kind::CoreDeployment, observed.deployment.object_ref(&()), &error);
                done.refused.insert(key.clone());
            }
            (_, result) => {
                if !done.failed.note(result) {
                    break;
                }
            }
        }
    }
    done
}

/// Returns state, cause and next step of a refused write. None: it has another place in the status, or a retry may succeed.
fn refusal(act: &Act, error: &WriteError) -> Option<String> {
    match act {
        Act::Own(own) => own.refusal(error),
        Act::CreateSet(set) => {
            let why = error.refusal()?;
            let next = match error {
                WriteError::Forbidden { .. } => "correct the role, quota or policy",
                _ => "correct spec.template of the MachineDeployment",
            };
            Some(format!("creation of MachineSet {} is refused: {why}; {next}", set.name_any()))
        }
        Act::Adopt(_) | Act::UpdateSet(_) | Act::DeleteSet(_) => None,
    }
}

async fn carry_out(observed: &Observed, act: &Act, world: &World) -> Result<(), WriteError> {
    let deployment = &*observed.deployment;
    let namespace = deployment.namespace().unwrap_or_default();
    let api: Api<MachineDeployment> = Api::namespaced(world.client.clone(), &namespace);
    let sets: Api<MachineSet> = Api::namespaced(world.client.clone(), &namespace);
    match act {
        Act::Own(own) => world.manager.merge(&api, deployment, &own.patch(deployment)).await,
        Act::CreateSet(set) => {
            let what = format!("MachineSet {}", set.name_any());
            ask(&what, sets.create(&world.manager.post(), set)).await.map(drop)
        }
        Act::UpdateSet(desired) => {
            let Some(present) = present(observed, &desired.name_any()) else { return Ok(()) };
            world.manager.merge(&sets, present, &difference(present, &**desired)).await
        }
        Act::Adopt(Key(name)) => {
            let Some(present) = present(observed, name) else { return Ok(()) };
            let change = adopted(present, &owner_reference(deployment, true));
            world.manager.merge(&sets, present, &change).await
        }
        Act::DeleteSet(Key(name)) => {
            let Some(present) = present(observed, name) else { return Ok(()) };
            delete(&sets, name, present.uid(), present.resource_version()).await
        }
    }
}

fn present<'a>(observed: &'a Observed, name: &str) -> Option<&'a MachineSet> {
    observed.sets.iter().map(|set| &**set).find(|set| set.metadata.name.as_deref() == Some(name))
}

/// Writes the status, if it changes.
async fn report(observed: &Observed, plan: &Plan, world: &World) -> Result<(), WriteError> {
    let deployment = &*observed.deployment;
    let own = |mut status: MachineDeploymentStatus| {
        status.conditions.retain(|one| CONDITION_TYPES.contains(&one.type_.as_str()));
        status.deprecated = None;
        status
    };
    let next = own(status(observed, plan, Timestamp::now()));
    if deployment.status.clone().map(own).as_ref() == Some(&next) {
        return Ok(());
    }
    world.counters.wrote(Kind::CoreDeployment);
    let namespace = deployment.namespace().unwrap_or_default();
    let api: Api<MachineDeployment> = Api::namespaced(world.client.clone(), &namespace);
    world.manager.apply_status(&api, deployment, &next).await?;
    let before = deployment.status.as_ref().map_or(&[][..], |status| &status.conditions);
    world.publish(deployment, event::of_rollout(before, &next.conditions));
    Ok(())
}
