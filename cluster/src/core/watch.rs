//! The watches of the group: each keeps its store, and queues the Clusters that a change concerns.
//!
//! Not here: the watches of named kinds, which the engine has. [`named_changed`] handles their changes.

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineSet};
use bedplate_engine::Queue;
use bedplate_engine::pulse::{Changes, WATCH_PATIENCE, follow};
use bedplate_engine::store::{Seen, watch};
use bedplate_engine::watches::{Change, GroupKind, User, Watches};
use bedplate_process::liveness::Liveness;
use futures::StreamExt;
use futures::future::BoxFuture;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};

use super::context::Stores;
use crate::metrics::{Counters, Kind};
use crate::scope::Scope;
use crate::watch::{bare, in_scope};

/// The queues. Clones share them.
#[derive(Debug, Clone)]
pub struct Queues {
    /// Clusters.
    pub clusters: Queue<Cluster, Kind>,
}

/// The ends of the stores that watches write to.
pub struct Writers {
    clusters: Writer<Cluster>,
    deployments: Writer<MachineDeployment>,
    sets: Writer<MachineSet>,
    machines: Writer<Machine>,
}

/// Makes empty stores.
pub fn stores() -> (Stores, Writers) {
    let (clusters, cluster_writer) = reflector::store();
    let (deployments, deployment_writer) = reflector::store();
    let (sets, set_writer) = reflector::store();
    let (machines, machine_writer) = reflector::store();
    let writers = Writers {
        clusters: cluster_writer,
        deployments: deployment_writer,
        sets: set_writer,
        machines: machine_writer,
    };
    (Stores { clusters, deployments, sets, machines }, writers)
}

/// Returns the watches by their names. None of them ends by itself. `named`: watches of named kinds, which a Cluster that is gone releases.
pub fn tasks(
    client: &Client,
    (named, writers): (&Watches<Referenced>, Writers),
    queues: &Queues,
    (scope, counters, liveness): (&Scope, &Counters, &Liveness),
) -> [(&'static str, BoxFuture<'static, ()>); 4] {
    macro_rules! follow {
        ($name:literal, $kind:ty, $word:literal, $writer:ident, $follow:expr) => {{
            let (config, counters) = (watcher::Config::default(), counters.clone());
            let seen =
                watch(client, ($word, in_scope::<$kind>(scope)), config, writers.$writer, bare, counters);
            let pulse = liveness.part($name, WATCH_PATIENCE);
            let task: BoxFuture<'static, ()> = Box::pin(follow(seen, pulse, $follow));
            ($name, task)
        }};
    }
    let (clusters, named) = (queues.clone(), named.clone());
    let (deployments, sets, machines) = (queues.clone(), queues.clone(), queues.clone());
    [
        follow!("watch Clusters", Cluster, "Cluster", clusters, move |seen| follow_clusters(
            seen, clusters, named
        )),
        follow!(
            "watch MachineDeployments",
            MachineDeployment,
            "MachineDeployment",
            deployments,
            move |seen| {
                follow_children(seen, deployments, |object: &MachineDeployment| {
                    object.spec.cluster_name.clone()
                })
            }
        ),
        follow!("watch MachineSets", MachineSet, "MachineSet", sets, move |seen| {
            follow_children(seen, sets, |object: &MachineSet| object.spec.cluster_name.clone())
        }),
        follow!("watch Machines", Machine, "Machine", machines, move |seen| {
            follow_children(seen, machines, |object: &Machine| object.spec.cluster_name.clone())
        }),
    ]
}

async fn follow_clusters(mut seen: Changes<Cluster>, queues: Queues, named: Watches<Referenced>) {
    while let Some(event) = seen.next().await {
        if let Seen::Gone(object) = &event {
            named.release(&User::of(&**object));
        }
        let (Seen::There(object) | Seen::Gone(object)) = event;
        queues.clusters.put(ObjectRef::from_obj(&*object)).await;
    }
}

async fn follow_children<K>(mut seen: Changes<K>, queues: Queues, cluster: impl Fn(&K) -> String + Send)
where
    K: Resource<DynamicType = ()> + Send + Sync,
{
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = event;
        let namespace = object.namespace().unwrap_or_default();
        queues.clusters.put(ObjectRef::new(&cluster(&object)).within(&namespace)).await;
    }
}

/// Queues the Clusters that a change of a named object, or of the state of a named kind, concerns.
pub async fn named_changed(
    change: Change<Referenced>,
    (named, stores, queues): (Watches<Referenced>, Stores, Queues),
) {
    let (kind, object) = match change {
        Change::Kind(kind) => (kind, None),
        Change::Object { resource, seen } => {
            let (Seen::There(object) | Seen::Gone(object)) = seen;
            (GroupKind::new(&resource.group, &resource.kind), Some(object))
        }
    };
    for cluster in concerned(&named.users(&kind), &kind, object.as_deref(), &stores) {
        queues.clusters.put(cluster).await;
    }
}

/// Returns the Clusters that name a kind, or the object of the kind if it is given.
fn concerned(
    users: &[User],
    kind: &GroupKind,
    object: Option<&Referenced>,
    stores: &Stores,
) -> Vec<ObjectRef<Cluster>> {
    let clusters = users.iter().filter(|user| user.kind == "Cluster");
    let clusters = clusters.map(|user| {
        ObjectRef::<Cluster>::new(&user.name).within(user.namespace.as_deref().unwrap_or_default())
    });
    let is_concerned = |cluster: &ObjectRef<Cluster>| {
        let Some(object) = object else { return true };
        let Some(cluster) = stores.clusters.get(cluster) else { return false };
        let references = [&cluster.spec.infrastructure_ref, &cluster.spec.control_plane_ref];
        let mut references = references.into_iter().flatten();
        let name = object.metadata.name.as_deref();
        cluster.metadata.namespace == object.metadata.namespace
            && references.any(|reference| {
                reference.kind == kind.kind
                    && reference.api_group == kind.group
                    && Some(reference.name.as_str()) == name
            })
    };
    clusters.filter(is_concerned).collect()
}
