//! Workload clusters of the Machines: one connection for each Cluster, its state, and the Nodes by their providerID.
//!
//! ```text
//! Secret <cluster>-kubeconfig, read live -> Remote -> Nodes, listed at most every 10 s for all Machines of a cluster -> NodeIndex
//! ```
//! A list is the probe of the connection too. While one task lists, the others see the last result, so a cluster that hangs holds up one
//! Machine. Not here: decisions. Called by the pass over Machines.

pub mod index;
pub mod remote;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::Cluster;
use bedplate_engine::FieldManager;
use bedplate_process::lock::Lock;
use bedplate_workload::{
    ClusterKey, Connections, Networks, PROBE_INTERVAL, Probe, Reachability, RequestError, Workload,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use tokio::time::Instant;

use self::index::NodeIndex;
use self::remote::{Remote, RemoteError};
use crate::core::machine::node::{self, Connection, NodeView};
use crate::kubeconfig::{self, key};

/// Maximum number of clusters whose Nodes are kept. Above it, those of the cluster that was used longest ago are dropped.
const MAX_CLUSTERS: usize = 1024;

/// Connector: it turns the text of a kubeconfig into a connection. It sends no request.
type Connect = dyn Fn(&ClusterKey, &[u8]) -> Result<Workload, String> + Send + Sync;

/// The workload clusters.
pub struct Workloads {
    client: Client,
    manager: FieldManager,
    connections: Connections,
    connect: Box<Connect>,
    clusters: Lock<HashMap<ClusterKey, Arc<State>>>,
    start: Instant,
}

/// State of one workload cluster.
struct State {
    /// Held by the task that lists the Nodes.
    listing: tokio::sync::Mutex<()>,
    seen: Lock<Seen>,
}

struct Seen {
    used: Instant,
    /// Time from which the Nodes are listed again.
    due: Option<Instant>,
    connection: Connection,
    probe: Probe,
    /// Nodes of the last list. None: it failed, or there was none.
    nodes: Option<NodeIndex>,
}

impl Workloads {
    /// Makes the clusters. `client`: that of the management cluster. `networks`: those of API servers of workload clusters.
    pub fn new(client: Client, manager: FieldManager, networks: Networks) -> Self {
        let connections = Connections::new(networks);
        let known = connections.clone();
        let connect = move |key: &ClusterKey, kubeconfig: &[u8]| {
            known.connect(key, kubeconfig).map_err(|error| error.to_string())
        };
        Self { connections, ..Self::with(client, manager, Box::new(connect)) }
    }

    /// Makes clusters that a connector reaches.
    pub fn with(client: Client, manager: FieldManager, connect: Box<Connect>) -> Self {
        let (connections, clusters) = (Connections::default(), Lock::default());
        Self { client, manager, connections, connect, clusters, start: Instant::now() }
    }

    /// Connects to the cluster by its kubeconfig, which is read live. Sends no request to the cluster.
    ///
    /// # Errors
    /// [`RemoteError::Kubeconfig`]
    pub async fn connect(&self, cluster: &Cluster) -> Result<Remote, RemoteError> {
        let workload = kubeconfig::connect(&self.client, cluster, &*self.connect).await;
        let workload = workload.map_err(RemoteError::Kubeconfig)?;
        Ok(Remote::new(workload, self.manager))
    }

    /// Returns the connection to a cluster and the Node with a providerID. Lists the Nodes if the last list is older than 10 s.
    pub async fn look(&self, cluster: &Cluster, provider_id: Option<&str>) -> node::Workload {
        let key = key(cluster);
        let state = self.state(&key);
        if state.is_due()
            && let Ok(_listing) = state.listing.try_lock()
            && state.is_due()
        {
            let nodes = match self.connect(cluster).await {
                Ok(remote) => remote.nodes().await.map_err(RemoteError::from),
                Err(error) => Err(error),
            };
            state.record(&key, nodes, self.start.elapsed());
        }
        let seen = state.seen.lock();
        let node = seen.nodes.as_ref().map_or(NodeView::Unknown, |nodes| nodes.get(provider_id));
        node::Workload { connection: seen.connection, node }
    }

    /// Returns the state of the connection to a cluster. Sends no request.
    pub fn connection(&self, cluster: &Cluster) -> Connection {
        let known = self.clusters.lock().get(&key(cluster)).map(Arc::clone);
        known.map_or_else(Connection::default, |state| state.seen.lock().connection)
    }

    /// Keeps a Node as it is after a write.
    pub fn replace(&self, cluster: &Cluster, node: Node) {
        if let Some(nodes) = &mut self.state(&key(cluster)).seen.lock().nodes {
            nodes.replace(node);
        }
    }

    /// Forgets a Cluster that was deleted.
    pub fn forget(&self, cluster: &Cluster) {
        let key = key(cluster);
        self.connections.forget(&key);
        self.clusters.lock().remove(&key);
    }

    fn state(&self, key: &ClusterKey) -> Arc<State> {
        let mut clusters = self.clusters.lock();
        let state = Arc::clone(clusters.entry(key.clone()).or_insert_with(|| Arc::new(State::new())));
        state.seen.lock().used = Instant::now();
        if clusters.len() > MAX_CLUSTERS {
            let oldest = clusters.iter().min_by_key(|(_, state)| state.seen.lock().used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                clusters.remove(&oldest);
            }
        }
        state
    }
}

impl State {
    fn new() -> Self {
        let (connection, probe) = (Connection::default(), Probe::default());
        let seen = Seen { used: Instant::now(), due: None, connection, probe, nodes: None };
        Self { listing: tokio::sync::Mutex::default(), seen: Lock::new(seen) }
    }

    fn is_due(&self) -> bool {
        self.seen.lock().due.is_none_or(|due| due <= Instant::now())
    }

    /// Records the result of a list. `elapsed`: time since the start of this process.
    fn record(&self, key: &ClusterKey, nodes: Result<NodeIndex, RemoteError>, elapsed: Duration) {
        let mut seen = self.seen.lock();
        seen.due = Some(Instant::now() + PROBE_INTERVAL);
        let outcome = match nodes {
            Ok(nodes) => {
                seen.connection = Connection { last_success: Some(Timestamp::now()), failures: 0 };
                seen.nodes = Some(nodes);
                Ok(())
            }
            Err(error) => {
                seen.connection.failures = seen.connection.failures.saturating_add(1);
                seen.nodes = None;
                Err(match error {
                    RemoteError::Request(error) => error,
                    RemoteError::Kubeconfig(_) | RemoteError::TooMany(_) => RequestError::Unreachable,
                })
            }
        };
        if seen.probe.record(outcome, elapsed) {
            let (namespace, name) = (&key.namespace, &key.name);
            match seen.probe.reachability() {
                Reachability::Unreachable { reason, .. } => {
                    tracing::warn!(namespace, name, %reason, "workload cluster unreachable");
                }
                Reachability::Reachable { .. } | Reachability::Unknown => {
                    tracing::info!(namespace, name, "workload cluster reachable");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
