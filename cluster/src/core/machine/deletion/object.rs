//! Pure: deletion of the objects of `infrastructureRef` and `configRef`. Caller: `plan`.
//!
//! An object that another Machine manages is not deleted. A kind that cannot be read holds the deletion: its objects may exist.

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::reason::core::MachineDeletingReason as Reason;
use kube::ResourceExt;

use super::list;
use super::plan::{Act, Observed, Plan};
use crate::core::reference::{Lookup, is_core_owner};

/// Deletes the infrastructure, and waits until it is gone.
pub(super) fn infrastructure(observed: &Observed) -> Option<Plan> {
    let reference = &observed.machine.spec.infrastructure_ref;
    let what = format!("{} {}", reference.kind, reference.name);
    let reason = Reason::WaitingForInfrastructureDeletion;
    step(observed, &observed.infrastructure, &what, reason, Act::DeleteInfrastructure)
}

/// Deletes the bootstrap object, and waits until it is gone.
pub(super) fn bootstrap(observed: &Observed) -> Option<Plan> {
    let reference = observed.machine.spec.bootstrap.config_ref.as_ref()?;
    let what = format!("{} {}", reference.kind, reference.name);
    let lookup = observed.bootstrap.as_ref()?;
    step(observed, lookup, &what, Reason::WaitingForBootstrapDeletion, Act::DeleteBootstrap)
}

/// Returns true if the infrastructure exists and is not deleted, or may be so.
pub(super) fn is_infrastructure_alive(observed: &Observed) -> bool {
    let object = observed.infrastructure.found();
    !observed.infrastructure.is_absent()
        && object.is_none_or(|object| object.metadata.deletion_timestamp.is_none())
}

fn step(
    observed: &Observed,
    lookup: &Lookup,
    what: &str,
    reason: Reason,
    delete: fn(String) -> Act,
) -> Option<Plan> {
    let object = match lookup {
        Lookup::Absent => return None,
        // The condition stays as it is: a restart must not cause a write.
        Lookup::NotSynced => return Some(Plan::default()),
        Lookup::Unresolved(why) => {
            let message = format!("{what} cannot be read: {}", list::text(why));
            return Some(Plan::wait(reason, message));
        }
        Lookup::Found(object) if is_of_another(object, &observed.machine.name_any()) => return None,
        Lookup::Found(object) => object,
    };
    let message = format!("{what} is being deleted");
    match object.metadata.deletion_timestamp {
        Some(_) => Some(Plan::wait(reason, message)),
        None => Some(Plan::act(delete(object.uid().unwrap_or_default()), reason, message)),
    }
}

/// Returns true if another Machine manages the object. Names are compared: a restored backup has other UIDs.
fn is_of_another(object: &Referenced, machine: &str) -> bool {
    let mut owners = object.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        owner.controller == Some(true) && is_core_owner(owner, "Machine") && owner.name != machine
    })
}
