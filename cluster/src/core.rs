//! The core controllers of Cluster API: Clusters, and what their Machines are made of.
//!
//! ```text
//! watch -> stores, queues -> cluster: Clusters
//! watches of named kinds --^
//! ```
//! The command line does not start these controllers yet. `reference` and `merge` are shared by the kinds.

pub mod cluster;
pub mod context;
pub mod deployment;
pub mod health;
pub mod machine;
pub mod machines;
pub mod merge;
pub mod object;
pub mod reference;
pub mod set;
pub mod watch;

use std::sync::Arc;

use bedplate_api::cluster::contract::api_version;
use bedplate_engine::Queue;
use bedplate_engine::life::{infallible, write_events};
use bedplate_engine::watches::{Definitions, NAME, Setup, Watches};
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Liveness;
use bedplate_process::shutdown::{Stage, Stages};
use bedplate_process::tasks::Tasks;
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use tokio_util::sync::CancellationToken;

use self::context::World;
use self::watch::{Queues, named_changed};
use crate::cli::Cli;
use crate::events::News;
use crate::life::{self, Begun, Parts, spawn};
use crate::metrics::{Counters, Kind};

/// Policies that bound the rights of the group.
const POLICIES: [&str; 2] = ["bedplate-cluster-secrets", "bedplate-core-writes"];

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
        watches: Watches::default(),
        tenure: tenure.clone(),
        counters: counters.clone(),
        news: news.clone(),
    });
    let shutdown = stages.token(Stage::Draining);
    let (clusters, queue) = Queue::new(Kind::CoreCluster, &counters);
    let store = &world.stores.clusters;
    life::worker!(tasks, liveness, &shutdown; "Clusters", Kind::CoreCluster, world, store, queue, cluster::reconcile);
    let queues = Queues { clusters };
    let watched = (&world.scope, &counters, liveness);
    for (name, task) in watch::tasks(client, (&world.watches, writers), &queues, watched) {
        spawn(tasks, &shutdown, name, task);
    }
    watch_named(&world, &queues, (tasks, liveness, &shutdown));
    let parts = Parts { client: client.clone(), policies: &POLICIES, tenure: tenure.clone(), counters, news };
    let synced = {
        let stores = world.stores.clone();
        async move { stores.synced().await }
    };
    let queue_all = move || queue_all(world.clone(), queues.clone());
    life::begin(parts, synced, queue_all, running)
}

/// Spawns the watches of the kinds that Clusters name.
fn watch_named(
    world: &World,
    queues: &Queues,
    (tasks, liveness, shutdown): (&Tasks, &Liveness, &CancellationToken),
) {
    let concerned = (world.watches.clone(), world.stores.clone(), queues.clone());
    let version = |labels: &_| api_version(labels).map(|found| found.version);
    let setup = Setup {
        client: world.client.clone(),
        namespace: world.scope.namespace.clone(),
        resolve: Definitions::new(world.client.clone(), version),
        counters: world.counters.clone(),
        handle: move |change| named_changed(change, concerned.clone()),
    };
    let running = (liveness.clone(), shutdown.clone());
    infallible(tasks, NAME, world.watches.clone().run(setup, running));
}

/// Queues every Cluster.
async fn queue_all(world: Arc<World>, queues: Queues) {
    for cluster in world.stores.clusters.state() {
        queues.clusters.put(ObjectRef::from_obj(&*cluster)).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kube::client::Body;
    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn group_starts_a_watch_for_each_kind_and_one_worker() {
        let service = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, kube::Error>>()
        });
        let shutdown = CancellationToken::new();
        let (tasks, liveness) = (Tasks::held(shutdown.clone()), Liveness::new(shutdown.clone()));
        let cli = Cli::parse_from(["bedplate-cluster", "--controllers=infrastructure"]);
        let (tenure, stages) = (Tenure::new(watch::channel(None).1), Stages::new(shutdown));
        let client = Client::new(service, "default");
        let _begun = begin(&client, &cli, &tenure, (&tasks, &liveness, &stages));
        let names = tasks.running();
        for name in [
            "watch Clusters",
            "watch MachineDeployments",
            "watch MachineSets",
            "watch Machines",
            "Clusters",
            NAME,
        ] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
    }
}

#[cfg(test)]
mod simulation;
