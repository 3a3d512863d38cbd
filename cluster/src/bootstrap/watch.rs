//! The watches of the group: each keeps its store, and queues the KubeadmConfigs that a change concerns.
//!
//! Not here: what a change means. Spawned by [`begin`](super::begin).

use std::sync::Arc;

use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::kubeadm::{GROUP, KubeadmConfig};
use bedplate_engine::pulse::Changes;
use bedplate_engine::store::Seen;
use bedplate_engine::{Facts, Loops, Queue};
use futures::StreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::{Client, ResourceExt};

use super::config::plan::is_initialized;
use super::context::{Stores, World};
use crate::metrics::Kind;
use crate::owner::{has_paused_annotation, is_control_plane};
use crate::watch::{bare, in_scope};

/// The queue of KubeadmConfigs.
pub(crate) type Configs = Queue<KubeadmConfig, Kind>;

/// The ends of the stores that watches write to.
#[derive(Default)]
pub struct Writers {
    configs: Writer<KubeadmConfig>,
    machines: Writer<Machine>,
    clusters: Writer<Cluster>,
}

/// Makes empty stores.
pub fn stores() -> (Stores, Writers) {
    let writers = Writers::default();
    let stores = Stores {
        configs: writers.configs.as_reader(),
        machines: writers.machines.as_reader(),
        clusters: writers.clusters.as_reader(),
    };
    (stores, writers)
}

/// Spawns the watches. `world`: a Cluster that is gone is forgotten in it.
pub fn spawn(client: &Client, (world, writers): (&Arc<World>, Writers), queue: &Configs, loops: &Loops<'_>) {
    macro_rules! watch {
        ($name:literal, $kind:literal, $writer:ident, $follow:path) => {{
            let (api, queue, of) = (in_scope(&world.scope), queue.clone(), Arc::clone(world));
            let follower = move |seen| $follow(seen, queue, of);
            loops.watch(($name, $kind), (client, api), (writers.$writer, bare), &world.counters, follower);
        }};
    }
    watch!("watch KubeadmConfigs", "KubeadmConfig", configs, follow_configs);
    watch!("watch Machines", "Machine", machines, follow_machines);
    watch!("watch Clusters", "Cluster", clusters, follow_clusters);
}

async fn follow_configs(mut seen: Changes<KubeadmConfig>, queue: Configs, _: Arc<World>) {
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = event;
        queue.put(ObjectRef::from_obj(&*object)).await;
    }
}

async fn follow_machines(mut seen: Changes<Machine>, queue: Configs, world: Arc<World>) {
    let mut facts = Facts::default();
    let weigh = |machine: &Machine| {
        let has_node = machine.status.as_ref().is_some_and(|status| status.node_ref.is_some());
        (machine.metadata.uid.clone(), machine.metadata.generation, is_control_plane(machine), has_node)
    };
    while let Some(event) = seen.next().await {
        if !facts.changes(&event, weigh) {
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
    let mut facts = Facts::default();
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
        if facts.changes(&event, weigh) {
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
