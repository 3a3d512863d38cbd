//! Pure: deletion of the objects of `infrastructureRef` and `configRef`. Caller: `plan`.
//!
//! An object that belongs to another object is not deleted, and neither is one of a core kind. A kind that cannot be read holds the deletion:
//! its objects may exist.

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::part::Reference;
use bedplate_api::reason::core::MachineDeletingReason as Reason;
use kube::ResourceExt;

use super::list;
use super::plan::{Act, Observed, Plan};
use crate::core::machine::references::{Ownership, ownership};
use crate::core::reference::{Lookup, refusal};

/// Deletes the infrastructure, and waits until it is gone.
pub(super) fn infrastructure(observed: &Observed) -> Option<Plan> {
    let reference = &observed.machine.spec.infrastructure_ref;
    let reason = Reason::WaitingForInfrastructureDeletion;
    step(observed, (reference, &observed.infrastructure), reason, Act::DeleteInfrastructure)
}

/// Deletes the bootstrap object, and waits until it is gone.
pub(super) fn bootstrap(observed: &Observed) -> Option<Plan> {
    let reference = observed.machine.spec.bootstrap.config_ref.as_ref()?;
    let lookup = observed.bootstrap.as_ref()?;
    step(observed, (reference, lookup), Reason::WaitingForBootstrapDeletion, Act::DeleteBootstrap)
}

/// Returns true if the infrastructure exists and is not deleted, or may be so.
pub(super) fn is_infrastructure_alive(observed: &Observed) -> bool {
    let object = observed.infrastructure.found();
    !observed.infrastructure.is_absent()
        && object.is_none_or(|object| object.metadata.deletion_timestamp.is_none())
}

fn step(
    observed: &Observed,
    (reference, lookup): (&Reference, &Lookup),
    reason: Reason,
    delete: fn(String) -> Act,
) -> Option<Plan> {
    let what = format!("{} {}", reference.kind, reference.name);
    let object = match lookup {
        _ if refusal(reference).is_some() => return None,
        Lookup::Absent => return None,
        // The condition stays as it is: a restart must not cause a write.
        Lookup::NotSynced => return Some(Plan::default()),
        Lookup::Unresolved(why) => {
            let message = format!("{what} cannot be read: {}", list::text(why));
            return Some(Plan::wait(reason, message));
        }
        Lookup::Found(object) if is_of_another(observed, object) => return None,
        Lookup::Found(object) => object,
    };
    let message = format!("{what} is being deleted");
    match object.metadata.deletion_timestamp {
        Some(_) => Some(Plan::wait(reason, message)),
        None => Some(Plan::act(delete(object.uid().unwrap_or_default()), reason, message)),
    }
}

/// Returns true if the object belongs to another one, also if this Machine has never adopted it. Names of Machines are compared: a restored
/// backup has other UIDs.
pub(super) fn is_of_another(observed: &Observed, object: &Referenced) -> bool {
    let cluster = observed.cluster.as_deref();
    matches!(ownership(&observed.machine, cluster, object), Ownership::Foreign(_))
}
