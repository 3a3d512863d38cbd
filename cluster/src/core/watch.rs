//! The watches of the group: each keeps its store, and queues the objects that a change concerns.
//!
//! Not here: the watches of named kinds, which the engine has. [`named_changed`] handles their changes.

use std::sync::Arc;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::cluster::ClusterInitialization;
use bedplate_api::cluster::full::set::MachineTemplate;
use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet};
use bedplate_api::cluster::part::{Reference, annotation};
use bedplate_engine::later::Later;
use bedplate_engine::pulse::Changes;
use bedplate_engine::store::Seen;
use bedplate_engine::watches::{Change, GroupKind, User, Watches};
use bedplate_engine::{Facts, Loops, Queue};
use futures::StreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::{Client, Resource, ResourceExt};

use super::concerned::{
    self, checks_of_check, checks_of_machine, deployment_of_machine, deployments_of_set,
    machines_of_deployment, machines_of_sets, sets_of_machine, sets_of_users,
};
use super::context::{Stores, World};
use super::deployment;
use super::object::controller;
use super::reference::owners;
use crate::metrics::Kind;
use crate::watch::{bare, in_scope};

/// The queues. Clones share them.
#[derive(Debug, Clone)]
pub struct Queues {
    /// Clusters.
    pub clusters: Queue<Cluster, Kind>,
    /// Clusters whose status counts an object that has changed.
    pub clusters_later: Later<Cluster>,
    /// Machines.
    pub machines: Queue<Machine, Kind>,
    /// MachineDeployments.
    pub deployments: Queue<MachineDeployment, Kind>,
    /// MachineDeployments whose status counts a Machine that has changed. A step of a rollout follows the MachineSets.
    pub deployments_later: Later<MachineDeployment>,
    /// MachineSets.
    pub sets: Queue<MachineSet, Kind>,
    /// MachineHealthChecks.
    pub checks: Queue<MachineHealthCheck, Kind>,
}

/// The ends of the stores that watches write to.
#[derive(Default)]
pub struct Writers {
    pub(super) clusters: Writer<Cluster>,
    pub(super) deployments: Writer<MachineDeployment>,
    pub(super) sets: Writer<MachineSet>,
    pub(super) machines: Writer<Machine>,
    pub(super) checks: Writer<MachineHealthCheck>,
}

/// Makes empty stores.
pub fn stores() -> (Stores, Writers) {
    let writers = Writers::default();
    let stores = Stores {
        clusters: writers.clusters.as_reader(),
        deployments: writers.deployments.as_reader(),
        sets: writers.sets.as_reader(),
        machines: writers.machines.as_reader(),
        checks: writers.checks.as_reader(),
    };
    (stores, writers)
}

/// Spawns the watches. `world`: an object that is gone is forgotten in it.
pub fn spawn(client: &Client, (world, writers): (&Arc<World>, Writers), queues: &Queues, loops: &Loops<'_>) {
    macro_rules! watch {
        ($name:literal, $kind:literal, $writer:ident, $follow:path) => {{
            let (api, of) = (in_scope(&world.scope), (queues.clone(), Arc::clone(world)));
            let follower = move |seen| $follow(seen, of);
            loops.watch(($name, $kind), (client, api), (writers.$writer, bare), &world.counters, follower);
        }};
    }
    watch!("watch Clusters", "Cluster", clusters, follow_clusters);
    watch!("watch MachineDeployments", "MachineDeployment", deployments, follow_deployments);
    watch!("watch MachineSets", "MachineSet", sets, follow_sets);
    watch!("watch Machines", "Machine", machines, follow_machines);
    watch!("watch MachineHealthChecks", "MachineHealthCheck", checks, follow_checks);
}

/// Queues each Cluster, and the objects that depend on its state.
async fn follow_clusters(mut seen: Changes<Cluster>, (queues, world): (Queues, Arc<World>)) {
    let stores = &world.stores;
    let mut facts = Facts::default();
    while let Some(event) = seen.next().await {
        let is_changed = facts.changes(&event, facts_of);
        match &event {
            Seen::There(object) if world.scope.includes(object.labels()) => {}
            Seen::There(object) => world.workloads.forget(object),
            Seen::Gone(object) => {
                world.watches.release(&User::of(&**object));
                world.workloads.forget(object);
            }
        }
        let (Seen::There(cluster) | Seen::Gone(cluster)) = event;
        queues.clusters.put(ObjectRef::from_obj(&*cluster)).await;
        // Each change of a Machine changes the status of its Cluster, which must not queue all other Machines.
        if is_changed {
            put_all(&queues.machines, concerned::of(&cluster, &stores.machines)).await;
        }
        put_all(&queues.deployments, concerned::of(&cluster, &stores.deployments)).await;
        put_all(&queues.sets, concerned::of(&cluster, &stores.sets)).await;
        put_all(&queues.checks, concerned::of(&cluster, &stores.checks)).await;
    }
}

/// Facts of a Cluster that decide about its Machines.
#[derive(Debug, Clone, PartialEq)]
struct ClusterFacts {
    uid: Option<String>,
    generation: Option<i64>,
    is_deleting: bool,
    /// Infrastructure and control plane.
    is_initialized: [bool; 2],
}

fn facts_of(cluster: &Cluster) -> ClusterFacts {
    let latches = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    let is_set = |of: fn(&ClusterInitialization) -> Option<bool>| latches.and_then(of) == Some(true);
    ClusterFacts {
        uid: cluster.metadata.uid.clone(),
        generation: cluster.metadata.generation,
        is_deleting: cluster.metadata.deletion_timestamp.is_some(),
        is_initialized: [
            is_set(|latches| latches.infrastructure_provisioned),
            is_set(|latches| latches.control_plane_initialized),
        ],
    }
}

/// Queues each MachineDeployment, and its Machines if they may be up to date no more.
async fn follow_deployments(mut seen: Changes<MachineDeployment>, (queues, world): (Queues, Arc<World>)) {
    let mut facts = Facts::default();
    while let Some(event) = seen.next().await {
        let is_changed = facts.changes(&event, of_deployment);
        let (Seen::There(deployment) | Seen::Gone(deployment)) = event;
        queues.clusters_later.put(cluster_of(&*deployment, &deployment.spec.cluster_name)).await;
        queues.deployments.put(ObjectRef::from_obj(&*deployment)).await;
        if is_changed {
            put_all(&queues.machines, machines_of_deployment(&deployment, &world.stores)).await;
        }
    }
}

async fn follow_sets(mut seen: Changes<MachineSet>, (queues, world): (Queues, Arc<World>)) {
    let mut facts = Facts::default();
    while let Some(event) = seen.next().await {
        if let Seen::Gone(object) = &event {
            world.watches.release(&User::of(&**object));
        }
        let is_changed = facts.changes(&event, |set| template_of(&set.spec.template, set));
        let (Seen::There(set) | Seen::Gone(set)) = event;
        if is_changed {
            put_all(&queues.machines, machines_of_sets(&[&set], &world.stores)).await;
        }
        queues.clusters_later.put(cluster_of(&*set, &set.spec.cluster_name)).await;
        queues.sets.put(ObjectRef::from_obj(&*set)).await;
        put_all(&queues.deployments, deployments_of_set(&set, &world.stores)).await;
    }
}

/// Returns what decides if the Machines of a deployment are up to date.
fn of_deployment(deployment: &MachineDeployment) -> String {
    let after = deployment.spec.rollout.as_ref().and_then(|rollout| rollout.after.as_ref());
    format!("{} {after:?}", template_of(&deployment.spec.template, deployment))
}

/// Returns what decides if the Machines of an object have its template: the template, its revision, and the owner.
fn template_of<K: Resource>(template: &MachineTemplate, object: &K) -> String {
    let revision = object.annotations().get(annotation::REVISION);
    let owner = controller(object).map(|owner| &owner.uid);
    format!("{:?} {revision:?} {owner:?}", deployment::observe::template(template))
}

async fn follow_machines(mut seen: Changes<Machine>, (queues, world): (Queues, Arc<World>)) {
    let stores = &world.stores;
    while let Some(event) = seen.next().await {
        if let Seen::Gone(object) = &event {
            world.watches.release(&User::of(&**object));
            world.memory.forget(object.metadata.uid.as_deref().unwrap_or_default());
        }
        let (Seen::There(machine) | Seen::Gone(machine)) = event;
        queues.clusters_later.put(cluster_of(&*machine, &machine.spec.cluster_name)).await;
        queues.machines.put(ObjectRef::from_obj(&*machine)).await;
        put_all(&queues.sets, sets_of_machine(&machine, stores)).await;
        if let Some(deployment) = deployment_of_machine(&machine) {
            queues.deployments_later.put(deployment).await;
        }
        put_all(&queues.checks, checks_of_machine(&machine, stores)).await;
    }
}

async fn follow_checks(mut seen: Changes<MachineHealthCheck>, (queues, world): (Queues, Arc<World>)) {
    while let Some(event) = seen.next().await {
        // Another check may select the same Machines: its verdict about them changes with this one.
        let is_status = matches!(&event, Seen::There(check) if is_observed(check));
        let (Seen::There(check) | Seen::Gone(check)) = event;
        queues.checks.put(ObjectRef::from_obj(&*check)).await;
        if !is_status {
            put_all(&queues.checks, checks_of_check(&check, &world.stores)).await;
        }
    }
}

/// Returns true if a pass has read the spec of a check.
fn is_observed(check: &MachineHealthCheck) -> bool {
    check.status.as_ref().is_some_and(|status| status.observed_generation == check.metadata.generation)
}

fn cluster_of<K: Resource>(object: &K, name: &str) -> ObjectRef<Cluster> {
    ObjectRef::new(name).within(object.meta().namespace.as_deref().unwrap_or_default())
}

/// Queues objects.
pub(crate) async fn put_all<K>(queue: &Queue<K, Kind>, objects: impl IntoIterator<Item = ObjectRef<K>>)
where
    K: Resource<DynamicType = ()>,
{
    for object in objects {
        queue.put(object).await;
    }
}

/// Queues the Clusters and Machines that a change of a named object, or of the state of a named kind, concerns. Sets follow the state of a
/// kind only: a change of an object of a Machine does not concern them.
pub(crate) async fn named_changed(
    change: Change<Referenced>,
    (named, stores, queues): (Watches<Referenced>, Stores, Queues),
) {
    let concerned = match change {
        Change::Kind(kind) => {
            let users = named.users(&kind);
            put_all(&queues.sets, sets_of_users(&users)).await;
            Concerned::by_kind(&users)
        }
        Change::Object { resource, seen: Seen::There(object) } if is_of_machine(&object) => {
            // The users of a kind may be thousands of Machines. The owner is known without them.
            let kind = GroupKind::new(&resource.group, &resource.kind);
            Concerned::owners(&kind, &object, &stores)
        }
        Change::Object { resource, seen: Seen::There(object) | Seen::Gone(object) } => {
            let kind = GroupKind::new(&resource.group, &resource.kind);
            Concerned::by_object(&named.users(&kind), &kind, &object, &stores)
        }
    };
    put_all(&queues.clusters, concerned.clusters).await;
    put_all(&queues.machines, concerned.machines).await;
}

fn is_of_machine(object: &Referenced) -> bool {
    owners(object, "Machine").next().is_some()
}

/// Objects that a change concerns.
#[derive(Debug, Default, PartialEq)]
struct Concerned {
    clusters: Vec<ObjectRef<Cluster>>,
    machines: Vec<ObjectRef<Machine>>,
}

impl Concerned {
    /// Returns all users of a kind.
    fn by_kind(users: &[User]) -> Self {
        let of = |kind: &'static str| users.iter().filter(move |user| user.kind == kind);
        Self {
            clusters: of("Cluster").map(reference).collect(),
            machines: of("Machine").map(reference).collect(),
        }
    }

    /// Returns the users of a kind that name an object.
    fn by_object(users: &[User], kind: &GroupKind, object: &Referenced, stores: &Stores) -> Self {
        let mut concerned = Self::by_kind(users);
        concerned.clusters.retain(|cluster| {
            stores.clusters.get(cluster).is_some_and(|cluster| {
                let spec = &cluster.spec;
                let named = [spec.infrastructure_ref.as_ref(), spec.control_plane_ref.as_ref()];
                is_named(&*cluster, named, kind, object)
            })
        });
        concerned.machines.retain(|machine| {
            stores.machines.get(machine).is_some_and(|machine| names(&machine, kind, object))
        });
        concerned
    }

    /// Returns the Machines that own an object and name it.
    fn owners(kind: &GroupKind, object: &Referenced, stores: &Stores) -> Self {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let machines = owners(object, "Machine").map(|owner| ObjectRef::new(&owner.name).within(namespace));
        let is_naming = |machine: &ObjectRef<Machine>| {
            stores.machines.get(machine).is_some_and(|machine| names(&machine, kind, object))
        };
        Self { clusters: Vec::new(), machines: machines.filter(is_naming).collect() }
    }
}

fn reference<K: Resource<DynamicType = ()>>(user: &User) -> ObjectRef<K> {
    ObjectRef::new(&user.name).within(user.namespace.as_deref().unwrap_or_default())
}

fn names(machine: &Machine, kind: &GroupKind, object: &Referenced) -> bool {
    let spec = &machine.spec;
    is_named(machine, [Some(&spec.infrastructure_ref), spec.bootstrap.config_ref.as_ref()], kind, object)
}

/// Returns true if an object is among those that another object of its namespace names.
fn is_named<K: Resource>(
    by: &K,
    references: [Option<&Reference>; 2],
    kind: &GroupKind,
    object: &Referenced,
) -> bool {
    let name = object.metadata.name.as_deref();
    by.meta().namespace == object.metadata.namespace
        && references.into_iter().flatten().any(|reference| {
            reference.kind == kind.kind
                && reference.api_group == kind.group
                && Some(reference.name.as_str()) == name
        })
}

#[cfg(test)]
mod tests;
