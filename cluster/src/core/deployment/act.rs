//! Pure: the writes of a MachineDeployment, in the order in which they must be applied: current set, other sets, deletions (MD1 to MD10).
//! Called by the controller of MachineDeployments.

use std::sync::Arc;

use bedplate_api::cluster::full::MachineSet;
use bedplate_api::cluster::full::deployment::FINALIZER;
use bedplate_api::cluster::part::annotation;
use bedplate_replicas::{Current, DeploymentPlan, Key, plan_deployment};
use jiff::Timestamp;
use kube::ResourceExt;

use super::observe::{Observed, observe};
use super::set;
use crate::core::merge::listed;
use crate::core::object::is_deleting;
use crate::core::reference::Lookup;
use crate::core::replica::{self, Own, Prepare};
use crate::owner;

/// Maximum number of names in a message.
const MAX_NAMES: usize = 3;

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Changes the deployment, bound to its resource version.
    Own(Own),
    /// Makes the deployment the controller of a set, bound to its resource version.
    Adopt(Key),
    /// Creates a set. The act fails if it exists.
    CreateSet(Arc<MachineSet>),
    /// Changes a set to this form, bound to its resource version.
    UpdateSet(Arc<MachineSet>),
    /// Deletes a set, bound to its UID and resource version.
    DeleteSet(Key),
}

/// Writes of a pass.
pub type Plan = replica::Plan<Act, DeploymentPlan>;

/// Decides the writes of a deployment.
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let deployment = &*observed.deployment;
    if is_deployment_paused(observed) {
        return Plan::default();
    }
    if is_deleting(deployment) {
        return deleted(observed);
    }
    let mut plan = Plan { acts: prepare(observed).into_iter().collect(), ..Plan::default() };
    let orphans = observed.orphans().into_iter().map(|set| Key(set.name_any()));
    let (refused, adopt): (Vec<Key>, Vec<Key>) = orphans.partition(|key| observed.refused.contains(key));
    let adopt: Vec<Act> = adopt.into_iter().map(Act::Adopt).collect();
    if !refused.is_empty() {
        let names: Vec<&str> = refused.iter().map(|key| key.0.as_str()).collect();
        let names = listed("MachineSet", &names, MAX_NAMES);
        plan.blocked.push(format!("adoption of {names} is refused; change the policy, or their labels"));
    }
    if !adopt.is_empty() {
        // After a restore all sets must be known before one is made.
        plan.acts.extend(adopt);
        return plan;
    }
    let Some(view) = observe(observed) else {
        plan.blocked.push("spec.selector is not valid; correct its matchExpressions".to_owned());
        return plan;
    };
    if deployment.spec.replicas.is_none_or(|replicas| replicas < 0) {
        // The sets need the number in their annotations, so it is written first.
        plan.acts.push(Act::Own(Own::Replicas(view.replicas)));
        return plan;
    }
    let decided = plan_deployment(&view, now);
    plan.next = decided.next;
    sets(observed, &decided, &mut plan);
    plan.decided = Some(decided);
    plan
}

/// Returns true if no controller changes the deployment. `spec.paused` pauses rollouts only.
pub(crate) fn is_deployment_paused(observed: &Observed) -> bool {
    owner::is_paused(&*observed.deployment, observed.cluster.as_deref())
}

fn sets(observed: &Observed, decided: &DeploymentPlan, plan: &mut Plan) {
    let deployment = &*observed.deployment;
    let current = match &decided.current {
        Current::Is(key) => Some(key),
        Current::Create { name, .. } if observed.sets.iter().any(|set| set.name_any() == name.0) => {
            let why = "has the name of the next set and another controller";
            return plan.blocked.push(format!("MachineSet {name} {why}; delete it, or permit its adoption"));
        }
        Current::Create { name, replicas, .. } => {
            plan.acts.push(Act::CreateSet(Arc::new(set::new(deployment, decided, name, *replicas))));
            None
        }
        Current::Wait(wait) => {
            plan.blocked.push(wait.to_string());
            plan.blocked
                .extend(observed.templates.iter().filter_map(|(kind, lookup)| why_missing(kind, lookup)));
            return;
        }
        Current::Paused => None,
    };
    let mut owned = observed.owned();
    owned.sort_by_key(|set| current.is_none_or(|current| *current != Key(set.name_any())));
    for present in owned {
        let key = Key(present.name_any());
        if is_deleting(present) || decided.delete.contains(&key) {
            continue;
        }
        let revision = decided.revision.filter(|_| current == Some(&key));
        let desired = set::desired(deployment, decided, present, revision);
        if desired != *present {
            plan.acts.push(Act::UpdateSet(Arc::new(desired)));
        }
    }
    if let Some(revision) = decided.revision {
        let number = revision.number.to_string();
        if deployment.annotations().get(annotation::REVISION) != Some(&number) {
            plan.acts.push(Act::Own(Own::Annotate(annotation::REVISION, Some(number))));
        }
    }
    plan.acts.extend(decided.delete.iter().cloned().map(Act::DeleteSet));
}

fn why_missing(kind: &str, lookup: &Lookup) -> Option<String> {
    if lookup.is_absent() { Some(format!("{kind} does not exist; create it")) } else { lookup.unknown(kind) }
}

/// Plans a deployment that is being deleted: its sets are deleted, then its finalizer is removed.
fn deleted(observed: &Observed) -> Plan {
    let owned = observed.owned();
    let present = owned.iter().filter(|set| !is_deleting(**set));
    let mut plan = Plan {
        acts: present.map(|set| Act::DeleteSet(Key(set.name_any()))).collect(),
        needs_live_read: owned.is_empty() && !observed.is_live,
        ..Plan::default()
    };
    if owned.is_empty()
        && observed.is_live
        && observed.deployment.finalizers().iter().any(|one| one == FINALIZER)
    {
        plan.acts.push(Act::Own(Own::RemoveFinalizer(FINALIZER)));
    }
    plan
}

fn prepare(observed: &Observed) -> Option<Act> {
    let prepare = Prepare::of(&*observed.deployment, Some(FINALIZER), observed.cluster.as_deref());
    prepare.map(|prepare| Act::Own(Own::Prepare(prepare)))
}
