//! The life of a group: its stores sync, its policies come into force, it leads, it stops. Called by each group, for `run`.
//!
//! ```text
//! watches -> stores synced -> policies in force -> started: the election may begin -> leading: every object is queued
//! ```

use std::future::Future;

use bedplate_engine::Loops;
use bedplate_engine::events::News;
use bedplate_engine::life::queue_when_leading;
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Liveness;
use bedplate_process::shutdown::Stages;
use bedplate_process::tasks::Tasks;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch::Receiver;

use crate::metrics::Counters;
use crate::policies;

/// A group that runs.
pub struct Started {
    /// True once all stores are synced and the policies are in force: the tenure must not start before.
    pub started: Receiver<bool>,
    /// Policies that are missing, for `/readyz`.
    pub missing: Receiver<String>,
    /// Metrics of the group.
    pub registry: Registry,
}

/// Parts of a group that its life depends on.
pub struct Parts {
    /// Client of the API server.
    pub client: Client,
    /// Names of the policies that bound the rights of the group.
    pub policies: &'static [&'static str],
    /// Tenure of this process.
    pub tenure: Tenure,
    /// Counters of the engine.
    pub counters: Counters,
    /// Events of this process.
    pub news: News,
}

/// Spawns the start of a group. `synced`: waits for all stores. None: a watch has ended. `queue_all`: queues every object.
pub fn begin<Q: Future<Output = ()> + Send>(
    parts: Parts,
    synced: impl Future<Output = Option<()>> + Send + 'static,
    queue_all: impl Fn() -> Q + Send + Sync + 'static,
    running: (&Tasks, &Liveness, &Stages),
) -> Started {
    let (started, is_started) = tokio::sync::watch::channel(false);
    let (missing, is_missing) = tokio::sync::watch::channel(String::new());
    let Parts { client, policies, tenure, counters, news } = parts;
    let mut registry = Registry::default();
    counters.register(&mut registry);
    news.register(&mut registry, "bedplate_cluster_events");
    Loops::new(running).spawn_beating("start", async move {
        if synced.await.is_some() {
            policies::in_force(&client, policies, &missing).await;
            started.send_replace(true);
            tracing::info!("caches synced");
            queue_when_leading(tenure, &counters, queue_all, || {}).await;
        }
    });
    Started { started: is_started, missing: is_missing, registry }
}
