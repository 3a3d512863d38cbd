//! The core controllers of Cluster API: Clusters, Machines, MachineSets, MachineDeployments and MachineHealthChecks.
//!
//! ```text
//! watch -> stores, queues -> cluster, machine, set, deployment, health -> workload: Nodes and Pods
//! watches of named kinds --^
//! ```
//! `reference` and `merge` are shared by the kinds.

pub mod cluster;
pub mod concerned;
pub mod context;
pub mod deployment;
pub mod event;
pub mod health;
pub mod live;
pub mod machine;
pub mod mark;
pub mod merge;
pub mod object;
pub mod patch;
pub mod reference;
pub mod replica;
pub mod report;
pub mod set;
pub mod watch;
pub mod workload;

use std::sync::Arc;

use bedplate_api::cluster::contract::api_version;
use bedplate_engine::Loops;
use bedplate_engine::events::News;
use bedplate_engine::life::{infallible, write_events};
use bedplate_engine::watches::{Definitions, NAME, Setup, Watches};
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::shutdown::Stages;
use bedplate_process::tasks::Tasks;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource};

use self::context::World;
use self::live::MachineLists;
use self::machine::memory::Memory;
use self::watch::{Queues, named_changed, put_all};
use self::workload::Workloads;
use self::workload::task::Reports;
use crate::cli::Cli;
use crate::life::{self, Parts, Started};
use crate::metrics::{Counters, Kind};

/// Policies that bound the rights of the group.
const POLICIES: [&str; 2] = ["bedplate-core-secrets", "bedplate-core-writes"];

/// Spawns watches and workers.
pub fn begin(client: &Client, cli: &Cli, tenure: &Tenure, running: (&Tasks, &Liveness, &Stages)) -> Started {
    let (news, queue) = News::channel();
    write_events(news.writer(queue, cli.controllers.event_source(&cli.instance), client.clone()), running);
    let ((stores, writers), counters) = (watch::stores(), Counters::default());
    let manager = cli.controllers.field_manager();
    let networks = cli.workload_networks.clone().unwrap_or_default();
    let world = Arc::new(World {
        client: client.clone(),
        manager,
        scope: cli.scope(),
        stores,
        watches: Watches::default(),
        workloads: Workloads::new(client.clone(), manager, networks, cli.scope()),
        lists: MachineLists::default(),
        memory: Memory::default(),
        tenure: tenure.clone(),
        counters: counters.clone(),
        news: news.clone(),
    });
    let loops = Loops::new(running);
    let queues = spawn_workers(&world, &loops);
    watch::spawn(client, (&world, writers), &queues, &loops);
    watch_named(&world, &queues, &loops);
    watch_workloads(&world, &queues, &loops);
    let parts = Parts { client: client.clone(), policies: &POLICIES, tenure: tenure.clone(), counters, news };
    let synced = {
        let stores = world.stores.clone();
        async move { stores.synced().await }
    };
    let queue_all = move || queue_all(world.clone(), queues.clone());
    life::begin(parts, synced, queue_all, running)
}

/// Spawns the worker of each kind, and returns their queues.
fn spawn_workers(world: &Arc<World>, loops: &Loops<'_>) -> Queues {
    let stores = &world.stores;
    macro_rules! work {
        ($name:literal, $kind:ident, $store:ident, $reconcile:path) => {
            loops.work(($name, Kind::$kind), world, &stores.$store, $reconcile)
        };
    }
    let clusters = work!("Clusters", CoreCluster, clusters, cluster::reconcile);
    let deployments = work!("MachineDeployments", CoreDeployment, deployments, deployment::pass::reconcile);
    Queues {
        sets: work!("MachineSets", CoreSet, sets, set::pass::reconcile),
        checks: work!("MachineHealthChecks", HealthCheck, checks, health::pass::reconcile),
        machines: work!("Machines", CoreMachine, machines, machine::pass::reconcile),
        clusters_later: loops.later("Clusters later", &clusters),
        deployments_later: loops.later("MachineDeployments later", &deployments),
        clusters,
        deployments,
    }
}

/// Spawns the watches of the kinds that Clusters and Machines name.
fn watch_named(world: &World, queues: &Queues, loops: &Loops<'_>) {
    let concerned = (world.watches.clone(), world.stores.clone(), queues.clone());
    let version = |labels: &_| api_version(labels).map(|found| found.version);
    let setup = Setup {
        client: world.client.clone(),
        namespace: world.scope.namespace.clone(),
        resolve: Definitions::new(world.client.clone(), version),
        counters: world.counters.clone(),
        handle: move |change| named_changed(change, concerned.clone()),
    };
    let running = (loops.liveness.clone(), loops.shutdown.clone());
    infallible(loops.tasks, NAME, world.watches.clone().run(setup, running));
}

/// Spawns the tasks of the workload clusters.
fn watch_workloads(world: &World, queues: &Queues, loops: &Loops<'_>) {
    let Queues { clusters, machines, checks, .. } = queues.clone();
    let reports = Reports { stores: world.stores.clone(), clusters, machines, checks };
    let running = (loops.liveness.part(workload::NAME, SILENCE_TIMEOUT), loops.shutdown.clone());
    infallible(loops.tasks, workload::NAME, world.workloads.clone().run(reports, running));
}

/// Queues every object.
async fn queue_all(world: Arc<World>, queues: Queues) {
    let stores = &world.stores;
    put_all(&queues.clusters, all(&stores.clusters)).await;
    put_all(&queues.machines, all(&stores.machines)).await;
    put_all(&queues.deployments, all(&stores.deployments)).await;
    put_all(&queues.sets, all(&stores.sets)).await;
    put_all(&queues.checks, all(&stores.checks)).await;
}

fn all<K: Resource<DynamicType = ()> + Clone + 'static>(store: &Store<K>) -> Vec<ObjectRef<K>> {
    store.state().iter().map(|object| ObjectRef::from_obj(&**object)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kube::client::Body;
    use tokio::sync::watch;

    use tokio_util::sync::CancellationToken;

    use super::*;

    #[test]
    fn m12_conditions_of_each_kind_are_those_of_the_table_of_writers() {
        use bedplate_api::cluster::full::condition_type::UP_TO_DATE;
        use bedplate_api::writers::{self, Row, Writer, conditions};
        let sorted = |mut types: Vec<&'static str>| {
            types.sort_unstable();
            types
        };
        let of_machine = [&machine::status::OWN_CONDITIONS[..], &[UP_TO_DATE]].concat();
        let kinds: [(&[Row], Writer, &[&'static str]); 6] = [
            (writers::CLUSTER, Writer::Core, &cluster::plan::CONDITION_TYPES),
            (writers::CLUSTER_MACHINE, Writer::Core, &of_machine),
            (writers::CLUSTER_MACHINE, Writer::CoreHealth, &mark::TYPES),
            (writers::MACHINE_SET, Writer::Core, &set::pass::CONDITION_TYPES),
            (writers::MACHINE_DEPLOYMENT, Writer::Core, &deployment::pass::CONDITION_TYPES),
            (writers::HEALTH_CHECK, Writer::Core, &health::pass::CONDITION_TYPES),
        ];
        for (rows, writer, types) in kinds {
            assert_eq!(sorted(conditions(rows, &[writer])), sorted(types.to_vec()), "{writer:?}");
        }
    }

    #[tokio::test]
    async fn group_starts_a_watch_and_a_worker_for_each_kind() {
        let service = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, kube::Error>>()
        });
        let shutdown = CancellationToken::new();
        let (tasks, liveness) = (Tasks::held(shutdown.clone()), Liveness::new(shutdown.clone()));
        let cli = Cli::parse_from(["bedplate-cluster", "--controllers=core"]);
        let (tenure, stages) = (Tenure::new(watch::channel(None).1), Stages::new(shutdown));
        let client = Client::new(service, "default");
        let _started = begin(&client, &cli, &tenure, (&tasks, &liveness, &stages));
        let names = tasks.running();
        for name in [
            "watch Clusters",
            "watch MachineDeployments",
            "watch MachineSets",
            "watch Machines",
            "watch MachineHealthChecks",
            "Clusters",
            "Machines",
            "MachineDeployments",
            "MachineSets",
            "MachineHealthChecks",
            "Clusters later",
            "MachineDeployments later",
            NAME,
            workload::NAME,
        ] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
    }
}

#[cfg(test)]
mod api_server;
#[cfg(test)]
mod simulation;
