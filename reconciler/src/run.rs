//! The life of the controller: start in order, lead or wait to, end in order. Called by `main`.

use std::sync::Arc;

use bedplate_engine::connect::connect;
use bedplate_engine::events::News;
use bedplate_engine::life::{ReconcilerHealth, beating, elect, infallible, shut_down, write_events};
use bedplate_engine::work;
use bedplate_process::events::Source;
use bedplate_process::exit::Failure;
use bedplate_process::health;
use bedplate_process::lease::{Candidate, Tenure};
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::notify::Notifier;
use bedplate_process::shutdown::{Shutdown, Stage, Stages};
use bedplate_process::signals::Signals;
use bedplate_process::tasks::Tasks;
use kube::{Client, ResourceExt};
use prometheus_client::registry::Registry;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;

use crate::FIELD_MANAGER;
use crate::cli::Cli;
use crate::context::{Stores, World};
use crate::enqueue::{Queue, Queues};
use crate::metrics::{Kind, Metrics};
use crate::reach::RegistryReach;
use crate::{configuration, csr, deletion, enqueue, image, machine, operation, rollout, version, watch};

/// The Lease.
const LEASE: &str = "bedplate-controller";
/// Name of the controller in an Event.
const CONTROLLER: &str = "bedplate.dev/controller";
/// Name of the task that queues configurations some time after they were touched.
const LATER: &str = "configurations later";

/// Runs until SIGTERM.
///
/// # Errors
/// The API server cannot be spoken to as configured, or a part failed.
pub async fn run(cli: &Cli) -> Result<(), Failure> {
    let mut signals = Signals::install()?;
    let notifier = Notifier::from_environment();
    let tasks = Tasks::new(signals.shutdown());
    let liveness = Liveness::new(signals.shutdown());
    let client = connect(cli.kubeconfig.as_deref()).await?;
    let access = tokio::sync::watch::channel(Some(client.clone())).1;
    let lease = (cli.namespace.clone(), LEASE.to_owned());
    let (candidate, tenure) = Candidate::new(access, lease, &cli.instance, FIELD_MANAGER.name());
    let metrics = Metrics::default();
    let listener = health::bind(cli.listen).await?;
    let stages = Stages::new(signals.shutdown());
    let running = (&tasks, &liveness, &stages);
    let (started, news) = begin(&client, (&tenure, &cli.instance), &metrics, running, cli.image_reach());
    let registry = registry(&metrics, &news);
    let health = Arc::new(ReconcilerHealth { liveness: liveness.clone(), started: started.clone(), tenure });
    let pulse = liveness.part("health", SILENCE_TIMEOUT);
    tasks.spawn("health", health::serve(listener, health, Arc::new(registry), pulse, signals.shutdown()));
    notifier.spawn_watchdog(&tasks, signals.shutdown(), {
        let liveness = liveness.clone();
        move || liveness.check()
    });
    elect(candidate, started, running);
    notifier.ready("running");
    // There is nothing to read again.
    while signals.reload_requested().await {}
    notifier.stopping("finishing writes");
    Ok(shut_down(Shutdown::new(tasks, stages, signals.hurry())).await?)
}

/// Metrics of the program: the counters and the counts of its Events.
fn registry(metrics: &Metrics, events: &News) -> Registry {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    events.register(&mut registry, "bedplate_controller_events");
    registry
}

/// Spawns all that reads and writes for as long as `tenure` lasts, but for the Lease. The flag is true once everything was read: the
/// tenure must not begin before, or what was not read yet would look gone. With the Events of `instance`.
pub fn begin(
    client: &Client,
    (tenure, instance): (&Tenure, &str),
    metrics: &Metrics,
    (tasks, liveness, stages): (&Tasks, &Liveness, &Stages),
    reach: RegistryReach,
) -> (Receiver<bool>, News) {
    let (news, queue) = News::channel();
    let (instance, field_manager) = (instance.to_owned(), FIELD_MANAGER.name());
    let writer =
        news.writer(queue, Source { controller: CONTROLLER, instance, field_manager }, client.clone());
    let shutdown = stages.token(Stage::Draining);
    let parts = (tenure.clone(), news.clone(), reach);
    let whole = assemble(client, parts, metrics, (tasks, liveness, &shutdown));
    write_events(writer, (tasks, liveness, stages));
    let (started, is_started) = tokio::sync::watch::channel(false);
    let tenure = tenure.clone();
    let start = async move {
        if let Some((world, queues)) = whole.await {
            started.send_replace(true);
            tracing::info!("caches synced");
            look_at_all(world, queues, tenure).await;
        }
    };
    spawn(tasks, &shutdown, "start", beating(start, liveness.part("start", SILENCE_TIMEOUT)));
    (is_started, news)
}

/// Spawns watches and workers. The returned future ends when every store is synced.
fn assemble(
    client: &Client,
    (tenure, news, reach): (Tenure, News, RegistryReach),
    metrics: &Metrics,
    (tasks, liveness, shutdown): (&Tasks, &Liveness, &CancellationToken),
) -> impl Future<Output = Option<(Arc<World>, Queues)>> + use<> {
    let (stores, writers) = watch::stores();
    let world = World::new(client.clone(), stores.clone(), tenure, metrics.clone());
    let counters = &metrics.counters;
    let world = Arc::new(world.telling(news).reaching(reach));
    let (configurations, configuration_queue) = Queue::new(Kind::Configuration, counters);
    let (versions, version_queue) = Queue::new(Kind::Version, counters);
    let (machines, machine_queue) = Queue::new(Kind::Machine, counters);
    let (requests, request_queue) = Queue::new(Kind::Request, counters);
    let (operations, operation_queue) = Queue::new(Kind::Operation, counters);
    let (images, image_queue) = Queue::new(Kind::Image, counters);
    let (rollouts, rollout_queue) = Queue::new(Kind::Rollout, counters);
    let (departures, departure_queue) = Queue::new(Kind::Deletion, counters);
    let (later, touched) = enqueue::later();
    let queues = Queues {
        configurations,
        versions,
        machines,
        requests,
        operations,
        images,
        rollouts,
        departures,
        later,
    };
    let life = |name: &str| (liveness.part(name, SILENCE_TIMEOUT), shutdown.clone());
    macro_rules! worker {
        ($name:literal, $kind:expr, $store:ident, $queue:ident, $reconcile:path) => {
            let task = work($kind, world.clone(), stores.$store.clone(), $queue, $reconcile, life($name));
            infallible(tasks, $name, task);
        };
    }
    worker!(
        "configurations",
        Kind::Configuration,
        configurations,
        configuration_queue,
        configuration::reconcile
    );
    worker!("versions", Kind::Version, versions, version_queue, version::reconcile);
    worker!("machines", Kind::Machine, machines, machine_queue, machine::reconcile);
    worker!("requests", Kind::Request, requests, request_queue, csr::reconcile);
    worker!("operations", Kind::Operation, operations, operation_queue, operation::reconcile);
    worker!("images", Kind::Image, versions, image_queue, image::reconcile);
    worker!("rollouts", Kind::Rollout, configurations, rollout_queue, rollout::reconcile);
    worker!("departures", Kind::Deletion, machines, departure_queue, deletion::reconcile);
    for (name, task) in watch::tasks(client, writers, &stores, &queues, counters, liveness) {
        spawn(tasks, shutdown, name, task);
    }
    let later = beating(enqueue::coalesce(touched, queues.clone()), liveness.part(LATER, SILENCE_TIMEOUT));
    spawn(tasks, shutdown, LATER, later);
    async move { stores.are_whole().await.map(|()| (world, queues)) }
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

/// Queues every object each time this controller starts to lead.
async fn look_at_all(world: Arc<World>, queues: Queues, mut tenure: Tenure) {
    loop {
        while !tenure.leads() {
            tenure.changed().await;
        }
        world.counters.leads(true);
        let queued = async {
            queue_all(&world.stores, &queues).await;
            std::future::pending::<()>().await;
        };
        // Concurrently: a queue may be full until the tenure is lost and regained. All is queued again then.
        tokio::select! {
            () = tenure.lost() => {}
            () = queued => {}
        }
        world.counters.leads(false);
        // From here on another controller may change the Nodes that this one has compared.
        world.drains.sure(false);
    }
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
    use kube::client::Body;
    use kube::runtime::reflector::{self, Lookup};
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use tokio::sync::watch;
    use tokio::task::{unconstrained, yield_now};
    use tokio::time::Instant;

    use super::*;
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

    /// A queue that takes everything.
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
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
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
            later: enqueue::later().0,
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
