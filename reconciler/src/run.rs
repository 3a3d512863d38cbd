//! Start, leadership and shutdown of the controller, in order. Called by `main`.

use std::sync::Arc;

use bedplate_engine::Loops;
use bedplate_engine::connect::connect;
use bedplate_engine::events::News;
use bedplate_engine::life::{ReconcilerHealth, elect, queue_when_leading, write_events};
use bedplate_engine::process::Process;
use bedplate_process::events::Source;
use bedplate_process::exit::Failure;
use bedplate_process::health;
use bedplate_process::lease::{Candidate, Tenure};
use bedplate_process::liveness::Liveness;
use bedplate_process::shutdown::Stages;
use bedplate_process::tasks::Tasks;
use kube::{Client, ResourceExt};
use prometheus_client::registry::Registry;
use tokio::sync::watch::Receiver;

use crate::FIELD_MANAGER;
use crate::cli::Cli;
use crate::context::{Stores, World};
use crate::enqueue::Queues;
use crate::metrics::{Kind, Metrics};
use crate::reach::RegistryReach;
use crate::{configuration, csr, deletion, image, machine, operation, rollout, version, watch};

/// The Lease.
const LEASE: &str = "bedplate-controller";
/// Name of the controller in an Event.
const CONTROLLER: &str = "bedplate.dev/controller";

/// Runs until SIGTERM.
///
/// # Errors
/// The client of the API server cannot be created, or a part failed.
pub async fn run(cli: &Cli) -> Result<(), Failure> {
    let process = Process::start()?;
    let client = connect(cli.kubeconfig.as_deref()).await?;
    let access = tokio::sync::watch::channel(Some(client.clone())).1;
    let lease = (cli.namespace.clone(), LEASE.to_owned());
    let (candidate, tenure) = Candidate::new(access, lease, &cli.instance, FIELD_MANAGER.name());
    let metrics = Metrics::default();
    let listener = health::bind(cli.listen).await?;
    let identity = (&tenure, cli.instance.as_str());
    let (started, news) = begin(&client, identity, &metrics, process.running(), cli.image_reach());
    let health = ReconcilerHealth { liveness: process.liveness.clone(), started: started.clone(), tenure };
    process.serve(listener, health, registry(&metrics, &news));
    elect(candidate, started, process.running());
    process.finish().await
}

/// Metrics of the program: the counters and the counts of its Events.
fn registry(metrics: &Metrics, events: &News) -> Registry {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    events.register(&mut registry, "bedplate_controller_events");
    registry
}

/// Spawns all readers and writers of this `tenure`, except the candidate for the Lease. The flag is true once all caches are synced. The
/// tenure must not start before: objects that are not read yet would look deleted. `instance` reports the Events.
pub fn begin(
    client: &Client,
    (tenure, instance): (&Tenure, &str),
    metrics: &Metrics,
    running: (&Tasks, &Liveness, &Stages),
    reach: RegistryReach,
) -> (Receiver<bool>, News) {
    let (news, queue) = News::channel();
    let writer = {
        let (instance, field_manager) = (instance.to_owned(), FIELD_MANAGER.name());
        news.writer(queue, Source { controller: CONTROLLER, instance, field_manager }, client.clone())
    };
    let loops = Loops::new(running);
    let (stores, writers) = watch::stores();
    let world = World::new(client.clone(), stores.clone(), tenure.clone(), metrics.clone());
    let world = Arc::new(world.telling(news.clone()).reaching(reach));
    let queues = spawn_workers(&world, &loops);
    watch::spawn(client, writers, &stores, &queues, (&metrics.counters, &loops));
    write_events(writer, running);
    let (started, is_started) = tokio::sync::watch::channel(false);
    let tenure = tenure.clone();
    loops.spawn_beating("start", async move {
        if stores.are_whole().await.is_some() {
            started.send_replace(true);
            tracing::info!("caches synced");
            look_at_all(world, queues, tenure).await;
        }
    });
    (is_started, news)
}

/// Spawns a worker for each kind. Returns their queues.
fn spawn_workers(world: &Arc<World>, loops: &Loops<'_>) -> Queues {
    let stores = &world.stores;
    macro_rules! work {
        ($name:literal, $kind:ident, $store:ident, $reconcile:path) => {
            loops.work(($name, Kind::$kind), world, &stores.$store, $reconcile)
        };
    }
    let configurations = work!("configurations", Configuration, configurations, configuration::reconcile);
    Queues {
        versions: work!("versions", Version, versions, version::reconcile),
        machines: work!("machines", Machine, machines, machine::reconcile),
        requests: work!("requests", Request, requests, csr::reconcile),
        operations: work!("operations", Operation, operations, operation::reconcile),
        images: work!("images", Image, versions, image::reconcile),
        rollouts: work!("rollouts", Rollout, configurations, rollout::reconcile),
        departures: work!("departures", Deletion, machines, deletion::reconcile),
        later: loops.later("configurations later", &configurations),
        configurations,
    }
}

/// Queues every object each time this controller starts to lead.
async fn look_at_all(world: Arc<World>, queues: Queues, tenure: Tenure) {
    let queue_all = || queue_all(&world.stores, &queues);
    // After the end of the tenure another controller may change the Nodes that this one has compared.
    let lost = || world.drains.sure(false);
    queue_when_leading(tenure, &world.counters, queue_all, lost).await;
}

async fn queue_all(stores: &Stores, queues: &Queues) {
    for configuration in stores.configurations.state() {
        queues.configuration(&configuration.name_any()).await;
        queues.rollout(&configuration.name_any()).await;
    }
    for version in stores.versions.state() {
        queues.version(&version).await;
        queues.image(&version).await;
    }
    for machine in stores.machines.state() {
        queues.machine(&machine.name_any()).await;
        queues.departure(&machine).await;
    }
    for request in stores.requests.state().into_iter().filter(|request| csr::is_for_a_kubelet(request)) {
        queues.request(&request.name_any()).await;
    }
    for operation in stores.operations.state() {
        queues.operation(&operation.name_any()).await;
    }
}

#[cfg(test)]
#[path = "../../process/tests/metrics_page/mod.rs"]
mod metrics_page;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use bedplate_api::configuration::MachineConfiguration;
    use bedplate_engine::later::Later;
    use kube::client::Body;
    use kube::runtime::reflector::{self, Lookup};
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use tokio::sync::watch;
    use tokio::task::{unconstrained, yield_now};
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::enqueue::Queue;
    use crate::metrics::Counters;

    /// Stores with one configuration.
    fn stores() -> Stores {
        let (configurations, mut writer) = reflector::store();
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": { "name": "w" },
            "spec": { "template": { "image": { "reference": "registry.example/node:1" }, "kubernetes": { "version": "v1.34.0" } } } });
        let object: MachineConfiguration = serde_json::from_value(object).unwrap();
        for event in [Event::Init, Event::InitApply(object), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        Stores { configurations, ..crate::watch::stores().0 }
    }

    /// A queue without a worker.
    fn open<K: Lookup<DynamicType = ()>>(kind: Kind) -> Queue<K> {
        Queue::new(kind, &Counters::default()).0
    }

    /// Client of a server that does not answer.
    fn silent() -> Client {
        let service = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, kube::Error>>()
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn scrape_matches_the_page_of_metrics() {
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::default());
        let (tasks, liveness) = (Tasks::new(shutdown.clone()), Liveness::new(shutdown.clone()));
        let tenure = Tenure::new(watch::channel(None).1);
        let stages = Stages::new(shutdown.clone());
        let running = (&tasks, &liveness, &stages);
        let (_, events) = begin(&silent(), (&tenure, "test"), &metrics, running, RegistryReach::default());
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
        metrics_page::compare(page, "bedplate-controller", &registry(&metrics, &events));
        shutdown.cancel();
    }

    /// The tasks do not run: each loop that has a pulse is silent.
    #[tokio::test(start_paused = true)]
    async fn healthz_names_each_loop_that_stops() {
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::default());
        let (tasks, liveness) = (Tasks::held(shutdown.clone()), Liveness::new(shutdown.clone()));
        let tenure = Tenure::new(watch::channel(None).1);
        let stages = Stages::new(shutdown);
        let running = (&tasks, &liveness, &stages);
        begin(&silent(), (&tenure, "test"), &metrics, running, RegistryReach::default());
        assert_eq!(liveness.check(), Ok(()));
        tokio::time::advance(bedplate_engine::pulse::WATCH_PATIENCE + Duration::from_secs(1)).await;
        let silent = liveness.check().unwrap_err();
        let name = |part: &str| part.split_once(" sent no pulse").map(|(name, _)| name.to_owned());
        let named: BTreeSet<String> = silent.split("; ").filter_map(name).collect();
        assert_eq!(named, tasks.running().into_iter().map(str::to_owned).collect());
        assert_eq!(named.len(), 18, "{named:?}");
    }

    #[tokio::test]
    async fn c4_tenure_that_lapses_while_a_queue_is_full_is_noticed() {
        let (configurations, _full) = Queue::new(Kind::Configuration, &Counters::default());
        let queues = Queues {
            configurations,
            versions: open(Kind::Version),
            machines: open(Kind::Machine),
            requests: open(Kind::Request),
            operations: open(Kind::Operation),
            images: open(Kind::Image),
            rollouts: open(Kind::Rollout),
            departures: open(Kind::Deletion),
            later: Later::channel().0,
        };
        while futures::poll!(unconstrained(Box::pin(queues.configuration("w")))).is_ready() {}
        let (leads, receiver) = watch::channel(None);
        let tenure = Tenure::new(receiver);
        let world = Arc::new(World::new(silent(), stores(), tenure.clone(), Metrics::default()));
        let task = tokio::spawn(look_at_all(world.clone(), queues, tenure));
        let far = Instant::now() + Duration::from_secs(3600);
        for (until, is_sure) in [(Some(far), true), (None, false), (Some(far), false)] {
            leads.send_replace(until);
            for _ in 0..100 {
                yield_now().await;
            }
            if is_sure {
                world.drains.sure(true);
            }
            assert_eq!(world.drains.is_sure(), is_sure, "{until:?}");
        }
        task.abort();
    }
}
