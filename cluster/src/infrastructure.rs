//! The group `infrastructure`: claims of hosts for the Machines of Cluster API (docs/infrastructure-provider.md).
//!
//! ```text
//! watch -> stores, queues -> cluster: BedplateClusters; machine: BedplateMachines (choose); claim: MachineClaims (grant)
//! ```

pub mod choose;
pub mod claim;
pub mod cluster;
pub mod context;
pub mod decisive;
pub mod machine;
pub mod owner;
pub mod policies;
mod prune;
pub mod template;
pub mod wake;
pub mod watch;

use std::sync::Arc;

use bedplate_engine::life::{beating, infallible, write_events};
use bedplate_engine::{Queue, work};
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::{Liveness, PATIENCE};
use bedplate_process::shutdown::{Stage, Stages};
use bedplate_process::tasks::Tasks;
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use prometheus_client::registry::Registry;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;

use self::claim::clock::FutureHeartbeats;
use self::context::World;
use self::machine::turn::Turns;
use self::wake::Wake;
use self::watch::Queues;
use crate::cli::Cli;
use crate::events::News;
use crate::metrics::{Counters, Kind};

/// A group that runs.
pub struct Begun {
    /// True once all stores are synced and the policies are in force: the tenure must not start before.
    pub started: Receiver<bool>,
    /// Policies that are missing, for `/readyz`.
    pub missing: Receiver<String>,
    /// Metrics of the group.
    pub registry: Registry,
}

/// Spawns watches and workers.
pub fn begin(client: &Client, cli: &Cli, tenure: &Tenure, running: (&Tasks, &Liveness, &Stages)) -> Begun {
    let (tasks, liveness, stages) = running;
    let (news, queue) = News::channel();
    write_events(news.writer(queue, cli.controllers, &cli.instance, client.clone()), running);
    let ((stores, writers), counters) = (watch::stores(), Counters::default());
    let world = Arc::new(World {
        client: client.clone(),
        manager: cli.controllers.field_manager(),
        scope: cli.scope(),
        stores,
        tenure: tenure.clone(),
        counters: counters.clone(),
        news: news.clone(),
        turns: Turns::default(),
        future_heartbeats: FutureHeartbeats::default(),
    });
    let shutdown = stages.token(Stage::Draining);
    let queues = workers(&world, (tasks, liveness, &shutdown));
    let parts = (&world.scope, &counters, liveness);
    for (name, task) in watch::tasks(client, (&world.stores, writers), &queues, parts) {
        spawn(tasks, &shutdown, name, task);
    }
    let (started, is_started) = tokio::sync::watch::channel(false);
    let (missing, is_missing) = tokio::sync::watch::channel(String::new());
    let start = async move {
        if world.stores.synced().await.is_some() {
            policies::in_force(&world.client, &missing).await;
            started.send_replace(true);
            tracing::info!("caches synced");
            queue_when_leading(&world, &queues).await;
        }
    };
    spawn(tasks, &shutdown, "start", beating(start, liveness.part("start", PATIENCE)));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(counters));
    registry.register_collector(Box::new(news));
    Begun { started: is_started, missing: is_missing, registry }
}

/// Spawns a worker for each kind, and returns their queues.
fn workers(
    world: &Arc<World>,
    (tasks, liveness, shutdown): (&Tasks, &Liveness, &CancellationToken),
) -> Queues {
    let counters = &world.counters;
    let (infrastructures, infrastructure_queue) = Queue::new(Kind::Cluster, counters);
    let (machines, machine_queue) = Queue::new(Kind::Machine, counters);
    let (claims, claim_queue) = Queue::new(Kind::Claim, counters);
    let (templates, template_queue) = Queue::new(Kind::Template, counters);
    macro_rules! worker {
        ($name:literal, $kind:expr, $store:ident, $queue:ident, $reconcile:path) => {
            let life = (liveness.part($name, PATIENCE), shutdown.clone());
            let task = work($kind, world.clone(), world.stores.$store.clone(), $queue, $reconcile, life);
            infallible(tasks, $name, task);
        };
    }
    worker!("BedplateClusters", Kind::Cluster, infrastructures, infrastructure_queue, cluster::reconcile);
    worker!("BedplateMachines", Kind::Machine, machines, machine_queue, machine::reconcile);
    worker!("MachineClaims", Kind::Claim, claims, claim_queue, claim::reconcile);
    worker!("BedplateMachineTemplates", Kind::Template, templates, template_queue, template::reconcile);
    Queues { infrastructures, machines, claims, templates, wake: Wake::default() }
}

/// Spawns a task that ends with `shutdown`.
fn spawn(
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
async fn queue_when_leading(world: &World, queues: &Queues) {
    let mut tenure = world.tenure.clone();
    loop {
        while !tenure.leads() {
            tenure.changed().await;
        }
        world.counters.leads(true);
        let queued = async {
            for infrastructure in world.stores.infrastructures.state() {
                queues.infrastructures.put(ObjectRef::from_obj(&*infrastructure)).await;
            }
            for machine in world.stores.machines.state() {
                queues.machines.put(ObjectRef::from_obj(&*machine)).await;
            }
            for claim in world.stores.claims.state() {
                queues.claims.put(ObjectRef::from_obj(&*claim)).await;
            }
            for template in world.stores.templates.state() {
                queues.templates.put(ObjectRef::from_obj(&*template)).await;
            }
            std::future::pending::<()>().await;
        };
        // Concurrently: a queue may be full until the tenure is lost and regained. All is queued again then.
        tokio::select! {
            () = tenure.lost() => {}
            () = queued => {}
        }
        world.counters.leads(false);
    }
}

#[cfg(test)]
#[path = "../../process/tests/metrics_page/mod.rs"]
mod metrics_page;

#[cfg(test)]
mod tests;
