//! Pure: the Machines, MachineSets, MachineDeployments and MachineHealthChecks that a change of another object concerns. Called by the watches.

use std::collections::HashSet;
use std::sync::Arc;

use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet};
use bedplate_api::cluster::part::label;
use bedplate_engine::watches::User;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};

use super::context::Stores;
use super::object::{OfCluster, controller, is_controlled_by};
use super::reference::is_core_owner;

/// Returns the sets that a Machine concerns: its controller. Without a controller: the sets of its cluster, because one of them may adopt it.
pub(crate) fn sets_of_machine(machine: &Machine, stores: &Stores) -> Vec<ObjectRef<MachineSet>> {
    by_controller(machine, "MachineSet", &stores.sets)
}

/// Returns the deployment that counts a Machine.
pub(crate) fn deployment_of_machine(machine: &Machine) -> Option<ObjectRef<MachineDeployment>> {
    let name = machine.labels().get(label::DEPLOYMENT_NAME)?;
    Some(ObjectRef::new(name).within(&machine.namespace().unwrap_or_default()))
}

/// Returns the deployments that a set concerns: its controller. Without a controller: the deployments of its cluster.
pub(crate) fn deployments_of_set(set: &MachineSet, stores: &Stores) -> Vec<ObjectRef<MachineDeployment>> {
    by_controller(set, "MachineDeployment", &stores.deployments)
}

/// Returns the Machines of the sets that a deployment controls.
pub(crate) fn machines_of_deployment(
    deployment: &MachineDeployment,
    stores: &Stores,
) -> Vec<ObjectRef<Machine>> {
    let sets = stores.sets.state();
    let uid = deployment.uid().unwrap_or_default();
    let own: Vec<&MachineSet> =
        sets.iter().map(|set| &**set).filter(|set| is_controlled_by(*set, &uid)).collect();
    machines_of_sets(&own, stores)
}

/// Returns the Machines that sets control.
pub(crate) fn machines_of_sets(sets: &[&MachineSet], stores: &Stores) -> Vec<ObjectRef<Machine>> {
    let uids: HashSet<&str> = sets.iter().filter_map(|set| set.metadata.uid.as_deref()).collect();
    if uids.is_empty() {
        return Vec::new();
    }
    let is_of = |machine: &&Arc<Machine>| {
        controller(&***machine).is_some_and(|owner| uids.contains(owner.uid.as_str()))
    };
    stores.machines.state().iter().filter(is_of).map(|machine| ObjectRef::from_obj(&**machine)).collect()
}

/// Returns the health checks of the cluster of a Machine.
pub(crate) fn checks_of_machine(machine: &Machine, stores: &Stores) -> Vec<ObjectRef<MachineHealthCheck>> {
    of_cluster(&stores.checks, machine.namespace().as_deref(), &machine.spec.cluster_name)
}

/// Returns the health checks of the cluster of a health check.
pub(crate) fn checks_of_check(
    check: &MachineHealthCheck,
    stores: &Stores,
) -> Vec<ObjectRef<MachineHealthCheck>> {
    of_cluster(&stores.checks, check.namespace().as_deref(), &check.spec.cluster_name)
}

/// Returns the objects of a store whose spec names a Cluster.
pub fn of<K>(cluster: &Cluster, store: &Store<K>) -> Vec<ObjectRef<K>>
where
    K: OfCluster<DynamicType = ()> + Clone + 'static,
{
    of_cluster(store, cluster.namespace().as_deref(), &cluster.name_any())
}

/// Returns the sets among the users of a kind.
pub(crate) fn sets_of_users(users: &[User]) -> Vec<ObjectRef<MachineSet>> {
    let sets = users.iter().filter(|user| user.kind == "MachineSet");
    sets.map(|user| ObjectRef::new(&user.name).within(user.namespace.as_deref().unwrap_or_default()))
        .collect()
}

/// Returns the controller of an object, of this kind. Without a controller: the objects of the store that have the same Cluster.
fn by_controller<K: OfCluster, O>(object: &K, kind: &str, store: &Store<O>) -> Vec<ObjectRef<O>>
where
    O: OfCluster<DynamicType = ()> + Clone + 'static,
{
    let namespace = object.meta().namespace.as_deref();
    match controller(object) {
        Some(owner) if is_core_owner(owner, kind) => {
            vec![ObjectRef::new(&owner.name).within(namespace.unwrap_or_default())]
        }
        Some(_) => Vec::new(),
        None => of_cluster(store, namespace, object.cluster_name().unwrap_or_default()),
    }
}

fn of_cluster<K>(store: &Store<K>, namespace: Option<&str>, cluster: &str) -> Vec<ObjectRef<K>>
where
    K: OfCluster<DynamicType = ()> + Clone + 'static,
{
    let is_of = |object: &&Arc<K>| {
        object.meta().namespace.as_deref() == namespace && object.cluster_name() == Some(cluster)
    };
    store.state().iter().filter(is_of).map(|object| ObjectRef::from_obj(&**object)).collect()
}
