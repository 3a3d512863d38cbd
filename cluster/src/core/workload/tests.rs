//! Tasks and requests with workload clusters whose API servers are in this process.

use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_api::cluster::full::Machine;
use bedplate_engine::Queue;
use bedplate_process::liveness::Pulse;
use bedplate_rules::drain::{Evicted, Pod};
use bedplate_workload::RequestError;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::budget::Share;
use super::index::NodeIndex;
use super::task::Reports;
use super::*;
use crate::core::watch::stores;
use crate::metrics::{Counters, Kind};

/// Body of an answer.
type Answer = UnsyncBoxBody<Bytes, std::io::Error>;

const MANAGER: FieldManager = FieldManager::new("bedplate-test");

/// A client of an API server that answers with a code and an object.
fn client(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (code, body) = answer(&format!("{} {}", request.method(), request.uri()));
        async move {
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

fn remote(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Remote {
    Remote::new(Workload::new(client(answer)), MANAGER)
}

fn named(name: &str, uid: &str, labels: &Value) -> Cluster {
    serde_json::from_value(json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "namespace": "ns", "name": name, "uid": uid, "labels": labels }, "spec": {} }))
    .unwrap()
}

fn cluster() -> Cluster {
    named("c", "u", &json!({}))
}

fn node(number: usize, ready: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("n{number}"), "uid": format!("u{number}"), "resourceVersion": "5" },
        "spec": { "providerID": format!("p://{number}") }, "status": { "conditions": [{ "type": "Ready", "status": ready }] } })
}

fn list(number: usize, next: &str) -> Value {
    json!({ "kind": "NodeList", "apiVersion": "v1", "metadata": { "continue": next, "resourceVersion": "4" }, "items": [node(number, "True")] })
}

fn secret() -> Value {
    json!({ "kind": "Secret", "apiVersion": "v1", "metadata": { "name": "c-kubeconfig" }, "data": { "value": "eA==" } })
}

fn of(workload: Client) -> Workloads {
    let workload = Workload::new(workload);
    Workloads::with(client(|_| (200, secret())), MANAGER, Box::new(move |_, _| Ok(workload.clone())))
}

fn is_found(workloads: &Workloads, id: &str) -> bool {
    matches!(workloads.look(&cluster(), Some(id)).node, NodeView::Found(_))
}

/// API server of a workload cluster: its Node, and the events of its watches.
#[derive(Clone)]
struct Server {
    ready: Arc<Lock<&'static str>>,
    requests: Arc<Lock<Vec<String>>>,
    watches: Arc<Lock<Vec<mpsc::Sender<String>>>>,
    is_hanging: Arc<Lock<bool>>,
    /// True if each request is answered by a demand for a long pause.
    is_busy: Arc<Lock<bool>>,
    /// True if the Secret with its kubeconfig was deleted.
    is_secret_deleted: Arc<Lock<bool>>,
}

impl Server {
    fn new() -> Self {
        let (ready, requests, watches) = (Arc::new(Lock::new("True")), Arc::default(), Arc::default());
        let (is_hanging, is_busy, is_secret_deleted) = Default::default();
        Self { ready, requests, watches, is_hanging, is_busy, is_secret_deleted }
    }

    /// Clusters with this one. The management cluster has the kubeconfig.
    fn workloads(&self) -> Workloads {
        let (is_deleted, workload) = (Arc::clone(&self.is_secret_deleted), Workload::new(self.client()));
        let absent = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "" });
        let management = client(move |_| {
            let is_deleted = *is_deleted.lock();
            if is_deleted { (404, absent.clone()) } else { (200, secret()) }
        });
        Workloads::with(management, MANAGER, Box::new(move |_, _| Ok(workload.clone())))
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                if *server.is_hanging.lock() {
                    std::future::pending::<()>().await;
                }
                let (answer, is_busy) = (server.answer(&request.uri().to_string()), *server.is_busy.lock());
                let mut answer = http::Response::new(answer);
                if is_busy {
                    *answer.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                    answer.headers_mut().insert("retry-after", http::HeaderValue::from_static("300"));
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, uri: &str) -> Answer {
        self.requests.lock().push(uri.to_owned());
        if uri.contains("watch=true") {
            let (sender, events) = mpsc::channel(1000);
            self.watches.lock().push(sender);
            let parts = stream::unfold(events, |mut events| async move {
                let text: String = events.recv().await?;
                Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from(text))), events))
            });
            return StreamBody::new(parts.boxed()).boxed_unsync();
        }
        let mut answer = list(1, "");
        answer["items"] = json!([node(1, *self.ready.lock())]);
        Full::new(Bytes::from(answer.to_string())).map_err(|never| match never {}).boxed_unsync()
    }

    fn send(&self, type_: &str, object: &Value) {
        // API servers send the type first.
        let line = format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n");
        let _ = self.watches.lock().last().unwrap().try_send(line);
    }

    fn count(&self, part: &str) -> usize {
        self.requests.lock().iter().filter(|uri| uri.contains(part)).count()
    }
}

/// Tasks that run, with a Machine of the Node `n1`.
struct Running {
    workloads: Workloads,
    writers: crate::core::watch::Writers,
    machines: mpsc::Receiver<ObjectRef<Machine>>,
    shutdown: CancellationToken,
}

impl Running {
    async fn start(server: &Server) -> Self {
        Self::of(server.workloads())
    }

    fn of(workloads: Workloads) -> Self {
        let (stores, mut writers) = stores();
        let machine = json!({ "metadata": { "namespace": "ns", "name": "m" }, "spec": { "clusterName": "c", "providerID": "p://1",
            "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "m" } } });
        writers.machines.apply_watcher_event(&Event::Apply(serde_json::from_value(machine).unwrap()));
        writers.clusters.apply_watcher_event(&Event::Apply(cluster()));
        let counters = Counters::default();
        let (machines, queued) = Queue::new(Kind::CoreMachine, &counters);
        let (checks, _) = Queue::new(Kind::HealthCheck, &counters);
        let (clusters, _) = Queue::new(Kind::CoreCluster, &counters);
        let shutdown = CancellationToken::new();
        let reports = Reports { stores, clusters, machines, checks };
        tokio::spawn(workloads.clone().run(reports, (Pulse::unwatched(), shutdown.clone())));
        workloads.look(&cluster(), None);
        Self { workloads, writers, machines: queued, shutdown }
    }

    /// Returns the number of times that the Machine was queued within some time.
    async fn queued(&mut self, seconds: u64) -> usize {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        std::iter::from_fn(|| self.machines.try_recv().ok()).count()
    }
}

#[tokio::test(start_paused = true)]
async fn m8_change_of_a_node_queues_its_machine_without_a_poll() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    assert_eq!(running.queued(1).await, 1, "the first list");
    assert!(is_found(&running.workloads, "p://1"));
    assert_eq!(running.queued(60).await, 0, "nothing is polled");
    server.send("MODIFIED", &node(1, "False"));
    assert_eq!(running.queued(1).await, 1);
    server.send("DELETED", &node(1, "False"));
    assert_eq!(running.queued(6).await, 1);
    assert_eq!(running.workloads.look(&cluster(), Some("p://1")).node, NodeView::Absent);
    server.send("ADDED", &node(1, "True"));
    assert_eq!(running.queued(6).await, 1);
    assert_eq!(server.count("limit="), 1, "one list: {:?}", server.requests.lock());
    running.shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn trust_4_flood_of_node_changes_queues_its_machine_each_five_seconds() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    running.queued(10).await;
    for n in 0..500 {
        server.send("MODIFIED", &node(1, if n % 2 == 0 { "False" } else { "True" }));
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    let queued = running.queued(0).await;
    assert!((3..=5).contains(&queued), "{queued} in 20 s");
}

#[tokio::test(start_paused = true)]
async fn m8_watch_continues_from_its_version_and_lists_again_after_410() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    running.queued(20).await;
    server.send(
        "BOOKMARK",
        &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "resourceVersion": "90" } }),
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.watches.lock().clear();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((server.count("resourceVersion=90"), server.count("limit=")), (1, 1));
    *server.ready.lock() = "False";
    let gone =
        json!({ "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "" });
    server.send("ERROR", &gone);
    assert_eq!(running.queued(10).await, 1, "the list shows the change");
    assert_eq!(server.count("limit="), 2);
}

#[tokio::test(start_paused = true)]
async fn m8_cluster_that_hangs_is_lost_after_five_probes_and_found_again() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    running.queued(20).await;
    *server.is_hanging.lock() = true;
    assert_eq!(running.queued(30).await, 0, "a short outage changes nothing");
    assert!(is_found(&running.workloads, "p://1"));
    assert_eq!(running.queued(120).await, 1, "its Machines show the loss");
    assert_eq!(running.workloads.look(&cluster(), Some("p://1")).node, NodeView::Unknown);
    *server.is_hanging.lock() = false;
    assert_eq!(running.queued(120).await, 1);
    assert!(is_found(&running.workloads, "p://1"));
}

/// A Node that was not ready before may be ready now. A health check must not judge it by the state of minutes ago.
#[tokio::test(start_paused = true)]
async fn hc6_nodes_of_a_server_that_asks_for_a_pause_become_unknown() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    running.queued(20).await;
    *server.is_busy.lock() = true;
    assert_eq!(running.queued(100).await, 1, "its Machines show the loss");
    assert_eq!(running.workloads.look(&cluster(), Some("p://1")).node, NodeView::Unknown);
    let requests = server.requests.lock().len();
    assert_eq!(running.queued(150).await, 0);
    assert_eq!(server.requests.lock().len(), requests, "no request is sent until the end of the pause");
    *server.is_busy.lock() = false;
    assert_eq!(running.queued(120).await, 1);
    assert!(is_found(&running.workloads, "p://1"));
}

#[tokio::test(start_paused = true)]
async fn k8_deleted_kubeconfig_is_noticed_while_the_watch_lasts() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    running.queued(20).await;
    *server.is_secret_deleted.lock() = true;
    assert_eq!(running.queued(120).await, 1, "its Machines show the loss");
    assert_eq!(running.workloads.look(&cluster(), Some("p://1")).node, NodeView::Unknown);
    *server.is_secret_deleted.lock() = false;
    assert_eq!(running.queued(120).await, 1);
    assert!(is_found(&running.workloads, "p://1"));
}

#[tokio::test(start_paused = true)]
async fn k8_watch_of_a_former_kubeconfig_ends() {
    let (former, present, is_changed) = (Server::new(), Server::new(), Arc::new(Lock::new(false)));
    *present.ready.lock() = "False";
    let (first, second) = (Workload::new(former.client()), Workload::new(present.client()));
    let changed = Arc::clone(&is_changed);
    let connect =
        move |_: &ClusterKey, _: &[u8]| Ok(if *changed.lock() { second.clone() } else { first.clone() });
    let workloads = Workloads::with(client(|_| (200, secret())), MANAGER, Box::new(connect));
    let mut running = Running::of(workloads);
    running.queued(20).await;
    *is_changed.lock() = true;
    assert_eq!(running.queued(20).await, 1, "the Node is that of the new server");
    assert_eq!((former.count("watch=true"), present.count("limit="), present.count("watch=true")), (1, 1, 1));
}

/// Lists of other clusters hold all places, for example because their servers hang.
#[tokio::test(start_paused = true)]
async fn hc6_nodes_are_unknown_while_their_list_waits_for_a_place() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    running.queued(20).await;
    let key =
        |n: usize| ClusterKey { namespace: (n / 2).to_string(), name: n.to_string(), uid: "u".to_owned() };
    let now = Instant::now().into_std();
    let lists = running.workloads.shared.lists.clone();
    let held: Vec<Place> = (0..8).map(|n| lists.take(&key(n), now).unwrap()).collect();
    let gone =
        json!({ "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "" });
    server.send("ERROR", &gone);
    assert_eq!(running.queued(30).await, 0);
    assert!(is_found(&running.workloads, "p://1"));
    assert_eq!(running.queued(60).await, 1, "health checks judge it no more");
    assert_eq!(running.workloads.look(&cluster(), Some("p://1")).node, NodeView::Unknown);
    drop(held);
    assert_eq!(running.queued(10).await, 1);
    assert!(is_found(&running.workloads, "p://1"));
}

#[tokio::test(start_paused = true)]
async fn k8_task_ends_with_its_cluster() {
    let server = Server::new();
    let mut running = Running::start(&server).await;
    running.queued(20).await;
    running.writers.clusters.apply_watcher_event(&Event::Delete(cluster()));
    running.queued(20).await;
    assert!(running.workloads.clusters.lock().is_empty());
    let requests = server.requests.lock().len();
    running.queued(600).await;
    assert_eq!(server.requests.lock().len(), requests, "no request is sent any more");
    assert_eq!(running.workloads.shared.budget.used(), 0);
}

#[tokio::test]
async fn k8_cluster_of_the_same_name_has_a_state_of_its_own() {
    let workloads = of(client(|_| (200, list(1, ""))));
    workloads.read(&cluster()).await;
    assert!(is_found(&workloads, "p://1"));
    let other = named("c", "other", &json!({}));
    assert_eq!(workloads.look(&other, Some("p://1")).node, NodeView::Unknown);
    workloads.forget(&cluster());
    assert_eq!(workloads.clusters.lock().len(), 1, "the earlier one is forgotten already");
    workloads.forget(&other);
    assert!(workloads.clusters.lock().is_empty());
}

#[tokio::test]
async fn k8_cluster_outside_of_the_scope_has_no_task() {
    let scope = Scope { filter: Some("blue".to_owned()), ..Scope::default() };
    let workloads = Workloads { scope, ..of(client(|_| (200, list(1, "")))) };
    assert_eq!(workloads.look(&cluster(), None).connection, UNWATCHED, "no Machine waits for it");
    assert!(workloads.clusters.lock().is_empty());
    workloads.look(&named("c", "u", &json!({ "cluster.x-k8s.io/watch-filter": "blue" })), None);
    assert_eq!(workloads.clusters.lock().len(), 1);
}

#[tokio::test]
async fn trust_4_clusters_of_a_namespace_leave_places_for_others() {
    let workloads = of(client(|_| (200, list(1, ""))));
    let mut cluster = named("c", "u", &json!({}));
    // Each namespace takes all that it can get, and the first one tries again.
    for (namespace, expected) in
        [("a", [1024, 0, 0]), ("b", [512, 512, 0]), ("c", [342, 341, 341]), ("a", [342, 341, 341])]
    {
        cluster.metadata.namespace = Some(namespace.to_owned());
        for n in 0..MAX_CLUSTERS {
            cluster.metadata.name = Some(n.to_string());
            workloads.look(&cluster, None);
        }
        let clusters = workloads.clusters.lock();
        let of = |of: &str| clusters.keys().filter(|(namespace, _)| namespace == of).count();
        let mut found = ["a", "b", "c"].map(of);
        found.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(found, expected, "{namespace}");
    }
}

/// Other namespaces have taken all bytes.
#[tokio::test]
async fn trust_4_cluster_keeps_nodes_although_the_bytes_are_taken() {
    let workloads = of(client(|_| (200, list(1, ""))));
    workloads.shared.budget.leave(0);
    workloads.read(&cluster()).await;
    assert!(is_found(&workloads, "p://1"));
}

/// All lists are read concurrently, so none has recorded its Nodes before the others start.
#[tokio::test]
async fn trust_4_concurrent_lists_stay_within_the_bytes_of_all() {
    let (budget, free) = (Budget::default(), 4 << 20);
    budget.leave(free);
    let text = "x".repeat(30_000);
    let large = remote(move |_| {
        let mut page = list(0, "");
        let items = (0..40).map(|number| {
            let mut node = node(number, "True");
            node["metadata"]["labels"] = json!({ "node.cluster.x-k8s.io/x": text });
            node
        });
        page["items"] = items.collect();
        (200, page)
    });
    let mut shares: Vec<Share> = (0..8).map(|n| budget.share(&n.to_string(), 0)).collect();
    let lists = shares.iter_mut().map(|share| nodes::list(&large, share));
    let read = futures::future::join_all(lists).await;
    let bytes: usize = read.iter().map(|list| list.as_ref().unwrap().0.bytes()).sum();
    assert!(bytes > free / 2 && bytes < free, "{bytes}");
    assert_eq!(budget.used(), budget::POOL_BYTES - free + bytes);
    let mut next = budget.share("next", 0);
    assert!(next.room() > 0, "{bytes}");
    next.resize(next.room());
}

#[tokio::test]
async fn m8_nodes_are_listed_page_by_page_up_to_a_limit() {
    let found =
        remote(|line| if line.contains("continue=2") { (200, list(2, "")) } else { (200, list(1, "2")) });
    let share = || Budget::default().share("ns", 0);
    let (index, version) = nodes::list(&found, &mut share()).await.unwrap();
    for id in ["p://1", "p://2"] {
        assert!(matches!(index.get(Some(id)), NodeView::Found(_)), "{id}");
    }
    assert_eq!(version, "4");
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let endless = remote(move |_| (200, list(counted.fetch_add(1, Ordering::Relaxed), "x")));
    let is_unknown = |index: &NodeIndex| index.get(Some("p://x")) == NodeView::Unknown;
    assert!(is_unknown(&nodes::list(&endless, &mut share()).await.unwrap().0));
    assert_eq!(requests.swap(0, Ordering::Relaxed), 50);
    let counted = Arc::clone(&requests);
    let large = remote(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let mut page = list(1, "x");
        page["items"][0]["metadata"]["annotations"] = json!({ "x": "y".repeat(9 << 20) });
        (200, page)
    });
    assert!(is_unknown(&nodes::list(&large, &mut share()).await.unwrap().0));
    assert_eq!(requests.load(Ordering::Relaxed), 8, "64 MiB of answers");
}

#[tokio::test]
async fn trust_4_event_without_an_end_ends_the_watch() {
    let server = Server::new();
    let remote = Remote::new(Workload::new(server.client()), MANAGER);
    let budget = Budget::default();
    let mut events = nodes::watch(&remote, "1", budget.share("ns", 0)).await.unwrap();
    let sender = server.watches.lock().last().unwrap().clone();
    for _ in 0..3 {
        sender.try_send("x".repeat(1 << 20)).unwrap();
    }
    assert_eq!(events.next().await, Err(RequestError::Answer));
    assert!(budget.used() > 0, "a line without an end counts");
    drop(events);
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn trust_4_requests_of_a_turn_end_after_thirty_seconds() {
    let service = tower::service_fn(|_: http::Request<Body>| async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        Ok::<_, kube::Error>(http::Response::new(Body::from(b"{}".to_vec())))
    });
    let workloads = of(Client::new(service, "default"));
    let (remote, start) = (workloads.connect(&cluster()).await.unwrap(), Instant::now());
    let mut late = 0;
    for _ in 0..20 {
        late += usize::from(remote.pods("n", "").await == Err(RequestError::Late));
    }
    assert_eq!((late, start.elapsed().as_secs()), (17, TURN_TIMEOUT.as_secs()));
}

#[tokio::test]
async fn m9_budget_holds_an_eviction_for_the_time_that_it_names() {
    let status = |causes: Value| {
        json!({ "kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429, "message": "secret",
            "details": { "retryAfterSeconds": 7, "causes": causes } })
    };
    let named = json!([{ "reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods and has 2 currently" }]);
    for (causes, text) in [
        (named, "PodDisruptionBudget web does not allow the eviction"),
        (
            json!([{ "message": "The disruption budget Secret.Token holds it" }]),
            "API server does not allow the eviction now (HTTP status 429)",
        ),
    ] {
        let answer = status(causes);
        let remote = remote(move |line| {
            assert!(line.starts_with("POST /api/v1/namespaces/n/pods/p/eviction"), "{line}");
            (429, answer.clone())
        });
        let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
        let held = Evicted::Held { again: Some(7), why: text.to_owned() };
        assert_eq!(remote.evict(&pod, None).await, Ok(held));
    }
}

#[tokio::test]
async fn m9_eviction_of_a_pod_that_is_gone_is_done() {
    let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
    let status = |code: u16| json!({ "kind": "Status", "status": "Failure", "reason": "x", "code": code, "message": "secret" });
    for (code, expected) in [
        (404, Ok(Evicted::Gone)),
        (409, Ok(Evicted::Gone)),
        (403, Err("API server of the workload cluster refused the credential of the kubeconfig (HTTP status 403)".to_owned())),
    ] {
        let remote = remote(move |_| (code, status(code)));
        assert_eq!(remote.evict(&pod, None).await, expected);
    }
}
