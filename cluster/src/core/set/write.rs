//! The writes of the pass over a MachineSet, one function for each kind of write (MS1 to MS10). Called by `pass`.
//!
//! Existing objects are bound to the UID and resource version that was read, so nothing is written to a successor of the same name. Labels and
//! annotations are a merge patch: the API server keeps keys that an object got at its creation when a later apply omits them.

use std::collections::BTreeMap;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Machine, MachineSet};
use bedplate_api::cluster::part::Reference;
use bedplate_api::condition::set_condition;
use bedplate_api::reason::core::OwnerRemediatedReason;
use bedplate_engine::write::{WriteError, ask, delete, delete_of};
use bedplate_replicas::{Mark, Remediated};
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::act::{Act, Change};
use super::machine::Propagation;
use super::observe::Observed;
use super::refusal::NO_KIND;
use crate::core::context::World;
use crate::core::mark;
use crate::core::patch::difference;
use crate::core::replica::adopted;
use crate::owner::owner_reference;

/// Resources of the objects that a pass has found.
#[derive(Debug, Default)]
pub struct Handles {
    /// Resource of each object.
    pub resources: BTreeMap<Reference, ApiResource>,
}

/// Returns the API of the sets of the namespace of a set.
pub fn sets(set: &MachineSet, world: &World) -> Api<MachineSet> {
    Api::namespaced(world.client.clone(), &set.namespace().unwrap_or_default())
}

/// Carries out one write.
///
/// # Errors
/// [`WriteError`]
pub async fn carry_out(
    observed: &Observed,
    handles: &Handles,
    act: &Act,
    world: &World,
) -> Result<(), WriteError> {
    let set = &*observed.set;
    match act {
        Act::Own(own) => world.manager.merge(&sets(set, world), set, &own.patch(set)).await,
        Act::CreateClone { object, .. } => create_clone(set, object, world).await,
        Act::CreateMachine(machine) => {
            let what = format!("Machine {}", machine.name_any());
            ask(&what, machines(set, world).create(&world.manager.post(), machine)).await.map(drop)
        }
        Act::DeleteClone { reference, uid } => {
            let Some((api, resource)) = clones(set, handles, reference, world) else { return Ok(()) };
            // A process that leads now may have made a Machine of the object, which has adopted it.
            let found = observed.clones.get(reference).and_then(|lookup| lookup.found());
            let version = found.and_then(ResourceExt::resource_version);
            delete_of(&api, resource, &reference.name, Some(uid.clone()), version).await
        }
        Act::Label { reference, metadata } => {
            let object = observed.clones.get(reference).and_then(|lookup| lookup.found());
            let (Some((api, resource)), Some(object)) = (clones(set, handles, reference, world), object)
            else {
                return Ok(());
            };
            world.manager.merge_of(&api, resource, object, &json!({ "metadata": metadata.patch() })).await
        }
        Act::Machine(key, change) => {
            match observed.machines.iter().find(|machine| machine.name_any() == key.0) {
                Some(machine) => change_machine(set, machine, change, world).await,
                None => Ok(()),
            }
        }
    }
}

fn machines(set: &MachineSet, world: &World) -> Api<Machine> {
    Api::namespaced(world.client.clone(), &set.namespace().unwrap_or_default())
}

fn clones<'a>(
    set: &MachineSet,
    handles: &'a Handles,
    reference: &Reference,
    world: &World,
) -> Option<(Api<Referenced>, &'a ApiResource)> {
    let resource = handles.resources.get(reference)?;
    let namespace = set.namespace().unwrap_or_default();
    Some((Api::namespaced_with(world.client.clone(), &namespace, resource), resource))
}

/// Creates an object of any kind. The API server refuses a name that is in use.
async fn create_clone(set: &MachineSet, object: &Value, world: &World) -> Result<(), WriteError> {
    let refused = |what: &str, why: String| WriteError::Refused { what: what.to_owned(), why };
    let object: DynamicObject = serde_json::from_value(object.clone())
        .map_err(|error| refused("object of a template", error.to_string()))?;
    let types = object.types.clone().unwrap_or_default();
    let what = format!("{} {}", types.kind, object.name_any());
    let kind = GroupVersionKind::try_from(&types).map_err(|error| refused(&what, error.to_string()))?;
    let resource = ApiResource::from_gvk(&kind);
    let namespace = set.namespace().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &namespace, &resource);
    let parameters = world.manager.post();
    let created = async {
        match api.create(&parameters, &object).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            result => result.map(|_| true),
        }
    };
    let is_created = ask(&what, created).await?;
    if is_created { Ok(()) } else { Err(refused(&what, NO_KIND.to_owned())) }
}

async fn change_machine(
    set: &MachineSet,
    machine: &Machine,
    change: &Change,
    world: &World,
) -> Result<(), WriteError> {
    let api = machines(set, world);
    match change {
        Change::Adopt => {
            let change = adopted(machine, &owner_reference(set, true));
            world.manager.merge(&api, machine, &change).await
        }
        Change::Mark(mark) => set_mark(machine, mark, world).await,
        Change::Delete => delete(&api, &machine.name_any(), machine.uid(), machine.resource_version()).await,
        Change::Propagate(propagation) => {
            world.manager.merge(&api, machine, &propagated(machine, propagation)).await
        }
    }
}

/// Writes the mark of a Machine.
async fn set_mark(machine: &Machine, mark: &Mark, world: &World) -> Result<(), WriteError> {
    let reason = match mark.reason() {
        None => return mark::remove(machine, world).await,
        Some(Remediated::Waiting) => OwnerRemediatedReason::WaitingForRemediation,
        Some(Remediated::CannotBe) => OwnerRemediatedReason::CannotBeRemediated,
        Some(Remediated::Deferred) => OwnerRemediatedReason::RemediationDeferred,
        Some(Remediated::Deleting) => OwnerRemediatedReason::MachineDeleting,
    };
    let mut conditions = mark::own(machine);
    set_condition(&mut conditions, reason, reason, &mark.to_string(), None, Timestamp::now());
    mark::apply(machine, &conditions, world).await
}

/// Returns the change of a Machine by its set.
fn propagated(machine: &Machine, propagation: &Propagation) -> Value {
    let mut change = json!({});
    if let Some(fields) = &propagation.fields {
        let mut spec = machine.spec.clone();
        fields.write(&mut spec);
        change["spec"] = difference(&machine.spec, &spec);
    }
    if let Some(metadata) = &propagation.metadata {
        change["metadata"] = metadata.patch();
    }
    change
}
