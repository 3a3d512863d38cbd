//! Pure: the MachineSets, MachineDeployments and MachineHealthChecks that a change of another object concerns. Called by the watches.

use std::sync::Arc;

use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet};
use bedplate_api::cluster::part::label;
use bedplate_engine::watches::User;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};

use super::context::Stores;
use super::object::controller;
use super::reference::is_core_owner;

/// Returns the sets that a Machine concerns: its controller. Without a controller: the sets of its cluster, because one of them may adopt it.
pub fn sets_of_machine(machine: &Machine, stores: &Stores) -> Vec<ObjectRef<MachineSet>> {
    let of_cluster = |set: &MachineSet| set.spec.cluster_name == machine.spec.cluster_name;
    by_controller(machine, "MachineSet", &stores.sets, of_cluster)
}

/// Returns the deployment that counts a Machine.
pub fn deployment_of_machine(machine: &Machine) -> Option<ObjectRef<MachineDeployment>> {
    let name = machine.labels().get(label::DEPLOYMENT_NAME)?;
    Some(ObjectRef::new(name).within(&machine.namespace().unwrap_or_default()))
}

/// Returns the deployments that a set concerns: its controller. Without a controller: the deployments of its cluster.
pub fn deployments_of_set(set: &MachineSet, stores: &Stores) -> Vec<ObjectRef<MachineDeployment>> {
    let of_cluster = |deployment: &MachineDeployment| deployment.spec.cluster_name == set.spec.cluster_name;
    by_controller(set, "MachineDeployment", &stores.deployments, of_cluster)
}

/// Returns the health checks of the cluster of a Machine.
pub fn checks_of_machine(machine: &Machine, stores: &Stores) -> Vec<ObjectRef<MachineHealthCheck>> {
    let cluster = &machine.spec.cluster_name;
    named(&stores.checks, machine.namespace().as_deref(), |check| check.spec.cluster_name == *cluster)
}

/// Returns the sets of a Cluster.
pub fn sets_of_cluster(cluster: &Cluster, stores: &Stores) -> Vec<ObjectRef<MachineSet>> {
    let name = cluster.name_any();
    named(&stores.sets, cluster.namespace().as_deref(), |set| set.spec.cluster_name == name)
}

/// Returns the deployments of a Cluster.
pub fn deployments_of_cluster(cluster: &Cluster, stores: &Stores) -> Vec<ObjectRef<MachineDeployment>> {
    let name = cluster.name_any();
    named(&stores.deployments, cluster.namespace().as_deref(), |deployment| {
        deployment.spec.cluster_name == name
    })
}

/// Returns the health checks of a Cluster.
pub fn checks_of_cluster(cluster: &Cluster, stores: &Stores) -> Vec<ObjectRef<MachineHealthCheck>> {
    let name = cluster.name_any();
    named(&stores.checks, cluster.namespace().as_deref(), |check| check.spec.cluster_name == name)
}

/// Returns the sets among the users of a kind.
pub fn sets_of_users(users: &[User]) -> Vec<ObjectRef<MachineSet>> {
    let sets = users.iter().filter(|user| user.kind == "MachineSet");
    sets.map(|user| ObjectRef::new(&user.name).within(user.namespace.as_deref().unwrap_or_default()))
        .collect()
}

fn by_controller<K: Resource, O>(
    object: &K,
    kind: &str,
    store: &Store<O>,
    may_adopt: impl Fn(&O) -> bool,
) -> Vec<ObjectRef<O>>
where
    O: Resource<DynamicType = ()> + Clone + 'static,
{
    let namespace = object.meta().namespace.clone();
    match controller(object) {
        Some(owner) if is_core_owner(owner, kind) => {
            vec![ObjectRef::new(&owner.name).within(&namespace.unwrap_or_default())]
        }
        Some(_) => Vec::new(),
        None => named(store, namespace.as_deref(), may_adopt),
    }
}

fn named<K>(store: &Store<K>, namespace: Option<&str>, is: impl Fn(&K) -> bool) -> Vec<ObjectRef<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let objects: Vec<Arc<K>> = store.state();
    let of = objects.iter().filter(|object| object.meta().namespace.as_deref() == namespace && is(object));
    of.map(|object| ObjectRef::from_obj(&**object)).collect()
}
