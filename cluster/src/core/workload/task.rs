//! Tasks of the workload clusters: one starts when a turn first reads a cluster, and ends when the Cluster is deleted or leaves the scope.
//!
//! A task asks its cluster, and queues what its Nodes concern. No turn of an object waits for it. Spawned by the group.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::{Cluster, Machine, MachineHealthCheck};
use bedplate_engine::Queue;
use bedplate_process::liveness::Pulse;
use bedplate_process::lock::Lock;
use bedplate_workload::ClusterKey;
use futures::future::{BoxFuture, select_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::budget::Share;
use super::index::NodeIndex;
use super::places::Place;
use super::queue::{Changes, Due, Pace, RELEASE_INTERVAL};
use super::remote::{Remote, RemoteError};
use super::state::{At, NodeChange, State};
use super::{Shared, Workloads, run};
use crate::core::context::Stores;
use crate::core::machine::node::Workload;
use crate::metrics::Kind;

/// Size of an event in bytes that is not taken from the pool. A namespace without room still sees the changes of its Nodes.
const FREE_EVENT: usize = 64 * 1024;
/// Interval between two checks for tasks whose Cluster is gone. The watch of Clusters ends most of them before.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Receivers of changes.
pub struct Reports {
    /// Objects that were read.
    pub stores: Stores,
    /// Clusters.
    pub clusters: Queue<Cluster, Kind>,
    /// Machines.
    pub machines: Queue<Machine, Kind>,
    /// MachineHealthChecks.
    pub checks: Queue<MachineHealthCheck, Kind>,
}

/// One workload cluster: its state, and its part of what all clusters share.
pub struct WorkloadCluster {
    pub(super) key: ClusterKey,
    shared: Arc<Shared>,
    state: Lock<State>,
    changes: Lock<Changes>,
    changed: Notify,
}

impl WorkloadCluster {
    /// Makes the state of a cluster that was not read yet.
    pub(super) fn new(key: ClusterKey, shared: Arc<Shared>) -> Self {
        let (state, changes, changed) = Default::default();
        Self { key, shared, state, changes, changed }
    }

    /// Returns the connection, and the Node with a providerID.
    pub(super) fn look(&self, provider_id: Option<&str>) -> Workload {
        self.state.lock().look(provider_id)
    }

    /// Keeps a Node as it is after a write of this process.
    pub(super) fn replace(&self, node: Node) {
        self.update(|state, _| state.replace(node));
    }

    pub(super) async fn connect(&self) -> Result<Remote, RemoteError> {
        self.shared.connect(&self.key).await
    }

    pub(super) fn list_place(&self) -> Option<Place> {
        self.shared.lists.take(&self.key, Instant::now().into_std())
    }

    pub(super) fn is_partial(&self) -> bool {
        self.state.lock().is_partial()
    }

    /// Returns the bytes of a list, which replaces the Nodes of this cluster.
    pub(super) fn share_of_list(&self) -> Share {
        let bytes = self.state.lock().bytes();
        self.shared.budget.share_of_list(&self.key.namespace, bytes)
    }

    /// Returns the bytes of one event of a watch.
    pub(super) fn share_of_event(&self) -> Share {
        self.shared.budget.share(&self.key.namespace, FREE_EVENT)
    }

    /// Records that the Nodes are not followed any more.
    pub(super) fn unread(&self) {
        self.update(State::unread);
    }

    pub(super) fn listed(&self, nodes: NodeIndex) {
        let at = self.at();
        self.update(|state, changes| state.listed(nodes, at, changes));
    }

    pub(super) fn answered(&self) {
        let at = self.at();
        self.update(|state, changes| state.answered(at, changes));
    }

    pub(super) fn changed(&self, change: NodeChange) {
        let budget = &self.shared.budget;
        self.update(|state, changes| {
            let room = budget.room_of_cluster(&self.key.namespace, state.bytes());
            state.changed(change, room, changes);
        });
    }

    /// Records a failure. Returns the delay until the next try.
    pub(super) fn failed(&self, error: RemoteError) -> Duration {
        let at = self.at();
        self.update(|state, changes| state.failed(error, at, changes))
    }

    fn at(&self) -> At {
        At { now: Timestamp::now(), elapsed: self.shared.start.elapsed() }
    }

    /// Changes the state. Returns the delay after a failure.
    fn update(&self, change: impl FnOnce(&mut State, &mut Changes)) -> Duration {
        let mut changes = Changes::default();
        let mut state = self.state.lock();
        let (bytes, was_lost) = (state.bytes(), state.link().lost().is_some());
        change(&mut state, &mut changes);
        self.shared.budget.resize_cluster(&self.key.namespace, bytes, state.bytes());
        let (namespace, name) = (&self.key.namespace, &self.key.name);
        match state.link().lost() {
            Some(reason) if !was_lost => {
                tracing::warn!(namespace, name, %reason, "workload cluster unreachable");
            }
            None if was_lost => tracing::info!(namespace, name, "workload cluster reachable"),
            Some(_) | None => {}
        }
        let delay = state.link().delay();
        drop(state);
        if !changes.is_empty() {
            self.changes.lock().merge(changes);
            self.changed.notify_one();
        }
        delay
    }

    /// Queues the objects that changes concern. Never ends.
    async fn report(&self, reports: &Reports) {
        let mut pace = Pace::default();
        loop {
            if pace.is_empty() {
                self.changed.notified().await;
            }
            let changes = std::mem::take(&mut *self.changes.lock());
            if !changes.is_empty() {
                let Stores { machines, checks, .. } = &reports.stores;
                pace.put(changes.due(&self.key, &machines.state(), &checks.state()));
            }
            for due in pace.release(Instant::now().into_std()) {
                reports.put(&self.key, due).await;
            }
            sleep(RELEASE_INTERVAL).await;
        }
    }

    async fn run(self: Arc<Self>, stop: CancellationToken, reports: Arc<Reports>) {
        let ends: [BoxFuture<'_, ()>; 3] =
            [Box::pin(stop.cancelled()), Box::pin(run::keep(&self)), Box::pin(self.report(&reports))];
        select_all(ends).await;
    }
}

impl Drop for WorkloadCluster {
    fn drop(&mut self) {
        self.shared.budget.resize_cluster(&self.key.namespace, self.state.lock().bytes(), 0);
    }
}

impl Reports {
    async fn put(&self, cluster: &ClusterKey, due: Due) {
        match due {
            Due::Cluster => {
                self.clusters.put(ObjectRef::new(&cluster.name).within(&cluster.namespace)).await;
            }
            Due::Machine(name) => self.machines.put(ObjectRef::new(&name).within(&cluster.namespace)).await,
            Due::Check(name) => self.checks.put(ObjectRef::new(&name).within(&cluster.namespace)).await,
        }
    }
}

impl Workloads {
    /// Runs the tasks until `shutdown`. All of them have ended when it returns.
    pub async fn run(self, reports: Reports, (pulse, shutdown): (Pulse, CancellationToken)) {
        let (reports, mut running) = (Arc::new(reports), JoinSet::new());
        let mut check = interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.wanted.notified() => {}
                _ = check.tick() => self.end_unwanted(&reports.stores.clusters),
                Some(ended) = running.join_next() => pass_panic(ended),
                never = pulse.beating() => match never {},
            }
            for (cluster, stop) in self.unstarted(&shutdown) {
                running.spawn(cluster.run(stop, Arc::clone(&reports)));
            }
        }
        while let Some(ended) = running.join_next().await {
            pass_panic(ended);
        }
    }
}

/// Continues the panic of a task, which stops the program.
fn pass_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
