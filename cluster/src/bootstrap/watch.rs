//! The watches of the group: each keeps its store, and queues the KubeadmConfigs that a change concerns.
//!
//! Not here: what a change means. Spawned by [`begin`](super::begin).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::kubeadm::{GROUP, KubeadmConfig};
use bedplate_engine::Queue;
use bedplate_engine::pulse::{Changes, WATCH_PATIENCE, follow};
use bedplate_engine::store::{Seen, watch};
use bedplate_process::liveness::Liveness;
use futures::StreamExt;
use futures::future::BoxFuture;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};

use super::config::plan::is_initialized;
use super::context::{Stores, World};
use crate::metrics::{Counters, Kind};
use crate::owner::{has_paused_annotation, is_control_plane};
use crate::scope::Scope;
use crate::watch::{bare, in_scope};

/// The queue of KubeadmConfigs.
pub type Configs = Queue<KubeadmConfig, Kind>;

/// The ends of the stores that watches write to.
pub struct Writers {
    configs: Writer<KubeadmConfig>,
    machines: Writer<Machine>,
    clusters: Writer<Cluster>,
}

/// Makes empty stores.
pub fn stores() -> (Stores, Writers) {
    let (configs, config_writer) = reflector::store();
    let (machines, machine_writer) = reflector::store();
    let (clusters, cluster_writer) = reflector::store();
    let writers = Writers { configs: config_writer, machines: machine_writer, clusters: cluster_writer };
    (Stores { configs, machines, clusters }, writers)
}

/// Returns the watches by their names. None of them ends by itself. `world`: a Cluster that is gone is forgotten in it.
pub fn tasks(
    client: &Client,
    (world, writers): (&Arc<World>, Writers),
    queue: &Configs,
    (scope, counters, liveness): (&Scope, &Counters, &Liveness),
) -> [(&'static str, BoxFuture<'static, ()>); 3] {
    macro_rules! follow {
        ($name:literal, $kind:ty, $word:literal, $writer:ident, $follow:path) => {{
            let (config, counters) = (watcher::Config::default(), counters.clone());
            let seen =
                watch(client, ($word, in_scope::<$kind>(scope)), config, writers.$writer, bare, counters);
            let (queue, world, pulse) =
                (queue.clone(), Arc::clone(world), liveness.part($name, WATCH_PATIENCE));
            let task: BoxFuture<'static, ()> =
                Box::pin(follow(seen, pulse, move |seen| $follow(seen, queue, world)));
            ($name, task)
        }};
    }
    [
        follow!("watch KubeadmConfigs", KubeadmConfig, "KubeadmConfig", configs, follow_configs),
        follow!("watch Machines", Machine, "Machine", machines, follow_machines),
        follow!("watch Clusters", Cluster, "Cluster", clusters, follow_clusters),
    ]
}

/// Fields of objects that decide about KubeadmConfigs. Objects change far more often than these.
struct Known<K: reflector::Lookup, W>(HashMap<ObjectRef<K>, W>)
where
    K::DynamicType: Hash + Eq;

impl<K: Resource<DynamicType = ()> + reflector::Lookup<DynamicType = ()> + Clone, W: PartialEq> Known<K, W> {
    /// Returns true if a change concerns one of the fields.
    fn changes(&mut self, event: &Seen<K>, weigh: impl Fn(&K) -> W) -> bool {
        match event {
            Seen::There(object) => {
                let weight = weigh(object);
                let key = ObjectRef::from_obj(&**object);
                let is_same = self.0.get(&key) == Some(&weight);
                self.0.insert(key, weight);
                !is_same
            }
            Seen::Gone(object) => {
                self.0.remove(&ObjectRef::from_obj(&**object));
                true
            }
        }
    }
}

async fn follow_configs(mut seen: Changes<KubeadmConfig>, queue: Configs, _: Arc<World>) {
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = event;
        queue.put(ObjectRef::from_obj(&*object)).await;
    }
}

async fn follow_machines(mut seen: Changes<Machine>, queue: Configs, world: Arc<World>) {
    let mut known = Known(HashMap::new());
    let weigh = |machine: &Machine| {
        let has_node = machine.status.as_ref().is_some_and(|status| status.node_ref.is_some());
        (machine.metadata.uid.clone(), machine.metadata.generation, is_control_plane(machine), has_node)
    };
    while let Some(event) = seen.next().await {
        if !known.changes(&event, weigh) {
            continue;
        }
        let (Seen::There(machine) | Seen::Gone(machine)) = &event;
        if let Some(config) = config_of(machine) {
            queue.put(config).await;
        }
        // It may have held the init lock.
        if matches!(event, Seen::Gone(_)) && is_control_plane(&**machine) {
            let namespace = machine.namespace().unwrap_or_default();
            queue_cluster(&queue, &world.stores, &namespace, &machine.spec.cluster_name).await;
        }
    }
}

async fn follow_clusters(mut seen: Changes<Cluster>, queue: Configs, world: Arc<World>) {
    let mut known = Known(HashMap::new());
    let weigh = |cluster: &Cluster| {
        let provisioned = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        let provisioned = provisioned.and_then(|one| one.infrastructure_provisioned);
        let metadata = (cluster.metadata.uid.clone(), cluster.metadata.generation);
        (metadata, has_paused_annotation(cluster), provisioned, is_initialized(cluster))
    };
    while let Some(event) = seen.next().await {
        if let Seen::Gone(cluster) = &event {
            world.tokens.forget(cluster);
        }
        if known.changes(&event, weigh) {
            let (Seen::There(cluster) | Seen::Gone(cluster)) = event;
            let namespace = cluster.namespace().unwrap_or_default();
            queue_cluster(&queue, &world.stores, &namespace, &cluster.name_any()).await;
        }
    }
}

/// Returns the KubeadmConfig that a Machine names.
fn config_of(machine: &Machine) -> Option<ObjectRef<KubeadmConfig>> {
    let reference = machine.spec.bootstrap.config_ref.as_ref()?;
    let is_config = reference.api_group == GROUP && reference.kind == "KubeadmConfig";
    is_config.then(|| ObjectRef::new(&reference.name).within(&machine.namespace().unwrap_or_default()))
}

/// Queues the KubeadmConfigs of the Machines of a cluster.
async fn queue_cluster(queue: &Configs, stores: &Stores, namespace: &str, cluster: &str) {
    for machine in stores.machines.state() {
        let is_of_cluster =
            machine.namespace().as_deref() == Some(namespace) && machine.spec.cluster_name == cluster;
        if is_of_cluster && let Some(config) = config_of(&machine) {
            queue.put(config).await;
        }
    }
}
