//! Pure: the writes of a MachineDeployment, in the order in which they must be applied: current set, other sets, deletions (MD1 to MD10).
//! Called by the controller of MachineDeployments.

use std::sync::Arc;

use bedplate_api::cluster::full::deployment::FINALIZER;
use bedplate_api::cluster::full::{Cluster, MachineSet};
use bedplate_api::cluster::part::{annotation, label};
use bedplate_replicas::{Current, DeploymentPlan, Key, plan_deployment};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::observe::{Seen, observe};
use super::set;
use crate::core::merge::named;
use crate::core::object::{count, is_deleting, owner_reference};
use crate::core::reference::{Lookup, is_owned_by};
use crate::owner::has_paused_annotation;

/// Maximum number of names in a message.
const MAX_NAMES: usize = 3;

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Sets finalizer, label and owner of the deployment.
    Prepare {
        /// True if the finalizer is missing.
        finalizer: bool,
        /// Label with the name of the cluster, if it is missing.
        label: Option<(String, String)>,
        /// Cluster as owner, if it is missing.
        owner: Option<OwnerReference>,
    },
    /// Sets `spec.replicas` of the deployment.
    Replicas(i32),
    /// Makes the deployment the controller of a set, bound to its resource version.
    Adopt(Key),
    /// Creates a set. The act fails if it exists.
    CreateSet(Arc<MachineSet>),
    /// Changes a set to this form, bound to its resource version.
    UpdateSet(Arc<MachineSet>),
    /// Sets the annotation with the revision of the deployment.
    Revision(u64),
    /// Deletes a set, bound to its UID and resource version.
    DeleteSet(Key),
    /// Removes the finalizer of the deployment.
    RemoveFinalizer,
}

/// Writes of a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Writes, in order.
    pub acts: Vec<Act>,
    /// Decision about the sets. None: the deployment is paused, deleting, or cannot be planned.
    pub decided: Option<DeploymentPlan>,
    /// Reasons why Machines are missing. Texts for a user.
    pub blocked: Vec<String>,
    /// True if the deployment must be planned again from live reads.
    pub needs_live_read: bool,
    /// Time at which the deployment must be planned again.
    pub next: Option<Timestamp>,
}

/// Decides the writes of a deployment.
pub fn plan(seen: &Seen, now: Timestamp) -> Plan {
    let deployment = &*seen.deployment;
    if is_deployment_paused(seen) {
        return Plan::default();
    }
    if is_deleting(deployment) {
        return deleted(seen);
    }
    let mut plan = Plan { acts: prepare(seen).into_iter().collect(), ..Plan::default() };
    let orphans = seen.orphans().into_iter().map(|set| Key(set.name_any()));
    let (refused, adopt): (Vec<Key>, Vec<Key>) = orphans.partition(|key| seen.refused.contains(key));
    let adopt: Vec<Act> = adopt.into_iter().map(Act::Adopt).collect();
    if !refused.is_empty() {
        let names: Vec<&str> = refused.iter().map(|key| key.0.as_str()).collect();
        let names = named("MachineSet", &names, MAX_NAMES);
        plan.blocked.push(format!("adoption of {names} is refused; change the policy, or their labels"));
    }
    if !adopt.is_empty() {
        // After a restore all sets must be known before one is made.
        plan.acts.extend(adopt);
        return plan;
    }
    let Some(view) = observe(seen) else {
        plan.blocked.push("spec.selector is not valid; correct its matchExpressions".to_owned());
        return plan;
    };
    if deployment.spec.replicas.is_none_or(|replicas| replicas < 0) {
        // The sets need the number in their annotations, so it is written first.
        plan.acts.push(Act::Replicas(count(usize::try_from(view.replicas).unwrap_or(usize::MAX))));
        return plan;
    }
    let decided = plan_deployment(&view, now);
    plan.next = decided.next;
    sets(seen, &decided, &mut plan);
    plan.decided = Some(decided);
    plan
}

/// Returns true if no controller changes the deployment. `spec.paused` pauses rollouts only.
pub fn is_deployment_paused(seen: &Seen) -> bool {
    let is_cluster_paused = seen.cluster.as_ref().is_some_and(|cluster| cluster.spec.paused == Some(true));
    is_cluster_paused || has_paused_annotation(&*seen.deployment)
}

fn sets(seen: &Seen, decided: &DeploymentPlan, plan: &mut Plan) {
    let deployment = &*seen.deployment;
    let current = match &decided.current {
        Current::Is(key) => Some(key),
        Current::Create { name, .. } if seen.sets.iter().any(|set| set.name_any() == name.0) => {
            let why = "has the name of the next set and another controller";
            return plan.blocked.push(format!("MachineSet {name} {why}; delete it, or permit its adoption"));
        }
        Current::Create { name, replicas, .. } => {
            plan.acts.push(Act::CreateSet(Arc::new(set::new(deployment, decided, name, *replicas))));
            None
        }
        Current::Wait(wait) => {
            plan.blocked.push(wait.to_string());
            plan.blocked.extend(seen.templates.iter().filter_map(|(kind, lookup)| why_missing(kind, lookup)));
            return;
        }
        Current::Paused => None,
    };
    let mut owned = seen.owned();
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
            plan.acts.push(Act::Revision(revision.number));
        }
    }
    plan.acts.extend(decided.delete.iter().cloned().map(Act::DeleteSet));
}

fn why_missing(kind: &str, lookup: &Lookup) -> Option<String> {
    if lookup.is_absent() { Some(format!("{kind} does not exist; create it")) } else { lookup.unknown(kind) }
}

/// Plans a deployment that is being deleted: its sets are deleted, then its finalizer is removed.
fn deleted(seen: &Seen) -> Plan {
    let owned = seen.owned();
    let present = owned.iter().filter(|set| !is_deleting(**set));
    let mut plan = Plan {
        acts: present.map(|set| Act::DeleteSet(Key(set.name_any()))).collect(),
        needs_live_read: owned.is_empty() && !seen.is_live,
        ..Plan::default()
    };
    if owned.is_empty() && seen.is_live && seen.deployment.finalizers().iter().any(|one| one == FINALIZER) {
        plan.acts.push(Act::RemoveFinalizer);
    }
    plan
}

fn prepare(seen: &Seen) -> Option<Act> {
    let deployment = &*seen.deployment;
    let label = (label::CLUSTER_NAME.to_owned(), deployment.spec.cluster_name.clone());
    let has_label = deployment.labels().get(&label.0) == Some(&label.1);
    let is_owner =
        |cluster: &&Cluster| is_owned_by(deployment, "Cluster", &cluster.uid().unwrap_or_default());
    let owner = seen.cluster.as_deref().filter(|cluster| !is_owner(cluster));
    let owner = owner.map(|owner| owner_reference(owner, false));
    let finalizer = !deployment.finalizers().iter().any(|one| one == FINALIZER);
    let is_needed = finalizer || !has_label || owner.is_some();
    is_needed.then(|| Act::Prepare { finalizer, label: (!has_label).then_some(label), owner })
}
