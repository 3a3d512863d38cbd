//! The life of a group: its stores sync, its policies come into force, it leads, it ends. Called by each group, for `run`.
//!
//! ```text
//! watches -> stores synced -> policies in force -> started: the election may begin -> leading: every object is queued
//! ```

use std::future::Future;

use bedplate_engine::events::News;
use bedplate_engine::life::{beating, infallible};
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::shutdown::{Stage, Stages};
use bedplate_process::tasks::Tasks;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;

use crate::metrics::Counters;
use crate::policies;

/// A group that runs.
pub struct Begun {
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
    (tasks, liveness, stages): (&Tasks, &Liveness, &Stages),
) -> Begun {
    let (started, is_started) = tokio::sync::watch::channel(false);
    let (missing, is_missing) = tokio::sync::watch::channel(String::new());
    let Parts { client, policies, tenure, counters, news } = parts;
    let mut registry = Registry::default();
    counters.register(&mut registry);
    news.register(&mut registry, "bedplate_cluster_events");
    let start = async move {
        if synced.await.is_some() {
            policies::in_force(&client, policies, &missing).await;
            started.send_replace(true);
            tracing::info!("caches synced");
            queue_when_leading(tenure, &counters, queue_all).await;
        }
    };
    let shutdown = stages.token(Stage::Draining);
    spawn(tasks, &shutdown, "start", beating(start, liveness.part("start", SILENCE_TIMEOUT)));
    Begun { started: is_started, missing: is_missing, registry }
}

/// Spawns a task that ends with `shutdown`.
pub fn spawn(
    tasks: &Tasks,
    shutdown: &CancellationToken,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let shutdown = shutdown.clone();
    infallible(tasks, name, async move {
        shutdown.run_until_cancelled(task).await;
    });
}

/// Queues every object each time this process starts to lead.
async fn queue_when_leading<Q: Future<Output = ()> + Send>(
    mut tenure: Tenure,
    counters: &Counters,
    queue_all: impl Fn() -> Q + Sync,
) {
    loop {
        while !tenure.leads() {
            tenure.changed().await;
        }
        counters.leads(true);
        let queued = async {
            queue_all().await;
            std::future::pending::<()>().await;
        };
        // Concurrently: a queue may be full until the tenure is lost and regained. All is queued again then.
        tokio::select! {
            () = tenure.lost() => {}
            () = queued => {}
        }
        counters.leads(false);
    }
}

/// Spawns the worker of a kind: `worker!(tasks, liveness, shutdown; name, kind, context, store, queue, reconcile)`.
macro_rules! worker {
    ($tasks:expr, $liveness:expr, $shutdown:expr; $name:literal, $kind:expr, $world:expr, $store:expr, $queue:expr, $reconcile:path) => {{
        let life = (
            $liveness.part($name, bedplate_process::liveness::SILENCE_TIMEOUT),
            CancellationToken::clone($shutdown),
        );
        let task = bedplate_engine::work($kind, $world.clone(), $store.clone(), $queue, $reconcile, life);
        bedplate_engine::life::infallible($tasks, $name, task);
    }};
}

pub(crate) use worker;
