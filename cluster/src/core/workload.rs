//! Workload clusters: one task and one watch of Nodes for each Cluster, and the requests that the turns of its Machines send.
//!
//! ```text
//! task: run (connect, list, watch, probe) -> state: connection, index of Nodes -> look (a turn, without a request)
//!                                              +-> queue: changes, pace -> Machines, health checks, Cluster
//! connect (a turn: drain, Node) -> places -> remote
//! ```
//! A cluster that hangs or lies holds up no other: a turn never waits for its Nodes, and few turns wait for its other answers. Not here:
//! decisions about Machines. Called by the passes over Machines, Clusters and health checks.

pub mod budget;
pub mod connection;
pub mod index;
pub mod kept;
pub mod nodes;
pub mod places;
pub mod queue;
pub mod remote;
pub mod run;
pub mod state;
pub mod task;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::Cluster;
use bedplate_engine::FieldManager;
use bedplate_process::lock::Lock;
use bedplate_workload::{ClusterKey, Connections, Networks, Workload};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::budget::Budget;
use self::places::{LISTS, Place, Places, TURNS};
use self::remote::{Remote, RemoteError};
use self::task::WorkloadCluster;
use crate::core::machine::node::{self, Connection, NodeView};
use crate::kubeconfig::{self, key};
use crate::scope::Scope;

/// Name of the tasks in logs and of their pulse.
pub const NAME: &str = "workload clusters";
/// Maximum number of clusters that are watched.
const MAX_CLUSTERS: usize = 1024;
/// Maximum duration of the requests of one turn to a workload cluster.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

const _: () = assert!(budget::POOL_BYTES + MAX_CLUSTERS * budget::CLUSTER_BYTES == 128 * 1024 * 1024);

/// Connection to a cluster without a task. No first answer is expected.
const UNWATCHED: Connection = Connection { last_success: None, is_lost: true };

/// Connector: it turns the text of a kubeconfig into a connection. It sends no request.
type Connect = dyn Fn(&ClusterKey, &[u8]) -> Result<Workload, String> + Send + Sync;

/// The workload clusters. Clones share them.
#[derive(Clone)]
pub struct Workloads {
    shared: Arc<Shared>,
    connections: Connections,
    scope: Scope,
    /// Clusters by namespace and name.
    clusters: Arc<Lock<HashMap<(String, String), Entry>>>,
    /// Notified when a cluster is added.
    wanted: Arc<Notify>,
    turns: Places,
}

/// Parts that the tasks share.
pub struct Shared {
    client: Client,
    manager: FieldManager,
    connect: Box<Connect>,
    lists: Places,
    budget: Budget,
    start: Instant,
}

/// Cluster that is watched.
struct Entry {
    cluster: Arc<WorkloadCluster>,
    /// Ends the task. None: it is not started yet.
    stop: Option<CancellationToken>,
}

impl Workloads {
    /// Makes the clusters. `client`: that of the management cluster. `networks`: those of API servers of workload clusters.
    pub fn new(client: Client, manager: FieldManager, networks: Networks, scope: Scope) -> Self {
        let connections = Connections::new(networks);
        let known = connections.clone();
        let connect = move |key: &ClusterKey, kubeconfig: &[u8]| {
            known.connect(key, kubeconfig).map_err(|error| error.to_string())
        };
        Self { connections, scope, ..Self::with(client, manager, Box::new(connect)) }
    }

    /// Makes clusters that a connector reaches.
    pub fn with(client: Client, manager: FieldManager, connect: Box<Connect>) -> Self {
        let (lists, budget, start) = (Places::new(LISTS), Budget::default(), Instant::now());
        Self {
            shared: Arc::new(Shared { client, manager, connect, lists, budget, start }),
            connections: Connections::default(),
            scope: Scope::default(),
            clusters: Arc::default(),
            wanted: Arc::default(),
            turns: Places::new(TURNS),
        }
    }

    /// Takes a place for a turn that sends requests to a cluster. None: the turn must be repeated later.
    pub fn enter(&self, cluster: &Cluster) -> Option<Place> {
        self.turns.take(&key(cluster), Instant::now().into_std())
    }

    /// Connects to the cluster by its kubeconfig, which is read live, for one turn. Sends no request to the cluster.
    ///
    /// # Errors
    /// [`RemoteError::Kubeconfig`]
    pub async fn connect(&self, cluster: &Cluster) -> Result<Remote, RemoteError> {
        let end = Instant::now() + TURN_TIMEOUT;
        self.shared.connect(&key(cluster)).await.map(|remote| remote.until(end))
    }

    /// Returns the connection to a cluster and the Node with a providerID. Sends no request: the first look starts the task of the cluster.
    pub fn look(&self, cluster: &Cluster, provider_id: Option<&str>) -> node::Workload {
        let unwatched = node::Workload { connection: UNWATCHED, node: NodeView::Unknown };
        self.watched(cluster).map_or(unwatched, |watched| watched.look(provider_id))
    }

    /// Returns the state of the connection to a cluster. Sends no request.
    pub fn connection(&self, cluster: &Cluster) -> Connection {
        self.look(cluster, None).connection
    }

    /// Keeps a Node as it is after a write.
    pub fn replace(&self, cluster: &Cluster, node: Node) {
        if let Some(watched) = self.watched(cluster) {
            watched.replace(node);
        }
    }

    /// Ends the task of a Cluster that was deleted or has left the scope.
    pub fn forget(&self, cluster: &Cluster) {
        let key = key(cluster);
        let mut clusters = self.clusters.lock();
        let name = (key.namespace.clone(), key.name.clone());
        if clusters.get(&name).is_some_and(|entry| entry.cluster.key == key) {
            clusters.remove(&name);
        }
        self.connections.forget(&key);
    }

    /// Returns the state of a cluster, and adds it if it is new. None: it is not in the scope, or too many clusters are watched.
    fn watched(&self, cluster: &Cluster) -> Option<Arc<WorkloadCluster>> {
        if !self.scope.includes(cluster.labels()) {
            return None;
        }
        let (key, mut clusters) = (key(cluster), self.clusters.lock());
        let name = (key.namespace.clone(), key.name.clone());
        if let Some(entry) = clusters.get(&name)
            && entry.cluster.key == key
        {
            return Some(Arc::clone(&entry.cluster));
        }
        // Another Cluster of the name was deleted.
        clusters.remove(&name);
        if clusters.len() >= MAX_CLUSTERS {
            let surplus = surplus(clusters.keys(), &key.namespace)?;
            tracing::warn!(
                namespace = surplus.0,
                name = surplus.1,
                "too many workload clusters, watch ended"
            );
            if let Some(entry) = clusters.remove(&surplus) {
                self.connections.forget(&entry.cluster.key);
            }
        }
        let cluster = Arc::new(WorkloadCluster::new(key, Arc::clone(&self.shared)));
        clusters.insert(name, Entry { cluster: Arc::clone(&cluster), stop: None });
        self.wanted.notify_one();
        Some(cluster)
    }

    /// Ends the tasks of Clusters that the store does not show any more, or that have left the scope.
    fn end_unwanted(&self, store: &Store<Cluster>) {
        self.clusters.lock().retain(|(namespace, name), entry| {
            let key = &entry.cluster.key;
            let found = store.get(&ObjectRef::new(name).within(namespace));
            let is_wanted = found.is_some_and(|found| {
                found.uid().as_ref() == Some(&key.uid) && self.scope.includes(found.labels())
            });
            if !is_wanted {
                self.connections.forget(key);
            }
            is_wanted
        });
    }

    /// Returns the clusters whose tasks must start.
    fn unstarted(&self, shutdown: &CancellationToken) -> Vec<(Arc<WorkloadCluster>, CancellationToken)> {
        let mut clusters = self.clusters.lock();
        let new = clusters.values_mut().filter(|entry| entry.stop.is_none());
        new.map(|entry| {
            let stop = shutdown.child_token();
            entry.stop = Some(stop.clone());
            (Arc::clone(&entry.cluster), stop)
        })
        .collect()
    }
}

/// Returns the cluster that gives its place to another one of a namespace: the last one by name of the namespace with the most clusters. None: no
/// namespace would have more than this one. So a namespace takes all places that are free, and no place that another one needs.
fn surplus<'a>(
    watched: impl Iterator<Item = &'a (String, String)>,
    namespace: &str,
) -> Option<(String, String)> {
    let mut names: HashMap<&str, (usize, &str)> = HashMap::new();
    for (namespace, name) in watched {
        let (number, last) = names.entry(namespace).or_default();
        *number += 1;
        *last = name.as_str().max(last);
    }
    let own = names.get(namespace).map_or(0, |(number, _)| *number);
    let most = names.into_iter().max_by_key(|(namespace, (number, _))| (*number, *namespace));
    let (namespace, (_, last)) = most.filter(|(_, (number, _))| *number > own + 1)?;
    Some((namespace.to_owned(), last.to_owned()))
}

impl Shared {
    async fn connect(&self, key: &ClusterKey) -> Result<Remote, RemoteError> {
        let workload = kubeconfig::connect(&self.client, key, &*self.connect).await;
        Ok(Remote::new(workload.map_err(RemoteError::Kubeconfig)?, self.manager))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            stop.cancel();
        }
    }
}

#[cfg(test)]
impl Workloads {
    /// Sets the Nodes of a cluster, as if they were listed.
    pub(crate) fn set_nodes(&self, cluster: &Cluster, nodes: Vec<Node>) {
        let mut index = index::NodeIndex::default();
        for node in nodes {
            index.put(node, budget::POOL_BYTES);
        }
        if let Some(watched) = self.watched(cluster) {
            watched.listed(index);
        }
    }

    /// Lists the Nodes of a cluster once, as its task does.
    pub(crate) async fn read(&self, cluster: &Cluster) {
        let Some(watched) = self.watched(cluster) else { return };
        let listed = async {
            let remote = watched.connect().await?;
            run::list(&watched, &remote).await
        };
        if let Err(error) = listed.await {
            watched.failed(error);
        }
    }
}

#[cfg(test)]
mod tests;
