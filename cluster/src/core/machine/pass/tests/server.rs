//! Objects of a management cluster and of a workload cluster, with the requests that were sent for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_engine::FieldManager;
use bedplate_engine::events::News;
use bedplate_engine::watches::Watches;
use bedplate_engine::write::WriteError;
use bedplate_process::lease::Tenure;
use bedplate_process::lock::Lock;
use bedplate_workload::Workload;
use kube::Client;
use kube::api::ApiResource;
use kube::client::Body;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use crate::core::context::World;
use crate::core::machine::fixture::{ID, cluster, machine, merge};
use crate::core::machine::memory::Memory;
use crate::core::machine::pass::Turn;
use crate::core::reference::Lookup;
use crate::core::watch::{Writers, stores};
use crate::core::workload::Workloads;
use crate::metrics::Counters;
use crate::scope::Scope;

const MANAGER: FieldManager = FieldManager::new("bedplate-cluster-core");

pub(super) const MACHINE: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/team-a/machines/m";
pub(super) const INFRASTRUCTURE: &str =
    "/apis/infrastructure.cluster.x-k8s.io/v1/namespaces/team-a/bedplatemachines/i";
pub(super) const CLUSTER: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/team-a/clusters/c";
pub(super) const BOOTSTRAP: &str = "/apis/bootstrap.cluster.x-k8s.io/v1/namespaces/team-a/kubeadmconfigs/b";
pub(super) const NODE: &str = "/api/v1/nodes/n";
pub(super) const EVICTION: &str = "/api/v1/namespaces/web/pods/p/eviction";

/// State of both API servers. Objects are stored by their paths.
#[derive(Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<String, Value>,
    /// Writes: method and path, and body.
    pub(super) writes: Vec<(String, Value)>,
    /// True if a PodDisruptionBudget holds all Pods.
    pub(super) has_budget: bool,
    /// True if the API server rejects changes of the spec of the Machine.
    pub(super) is_spec_rejected: bool,
    /// Request that is forbidden: method and path.
    pub(super) forbidden: Option<String>,
    /// True if the API server of the workload cluster fails.
    pub(super) is_down: bool,
    /// Number of writes that are still carried out. The process is killed after them. None: all.
    pub(super) left: Option<usize>,
    version: u64,
}

pub(super) type Shared = Arc<Lock<State>>;

fn status(code: u16, details: &Value) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "status": "Failure", "reason": if code == 404 { "NotFound" } else { "Test" }, "code": code, "message": "", "details": details }),
    )
}

impl State {
    fn answer(&mut self, method: &str, path: &str, sent: &Value) -> (u16, Value) {
        if self.forbidden.as_ref() == Some(&format!("{method} {path}")) {
            let (code, mut answer) = status(403, &json!(null));
            answer["message"] = json!("not permitted");
            return (code, answer);
        }
        if method == "GET" {
            return self.read(path);
        }
        if self.left == Some(0) {
            return status(503, &json!(null));
        }
        if self.is_spec_rejected && path == MACHINE && sent["spec"].is_object() {
            return status(422, &json!(null));
        }
        self.left = self.left.map(|left| left - 1);
        self.writes.push((format!("{method} {path}"), sent.clone()));
        match method {
            "POST" if path.ends_with("/eviction") => self.evict(path),
            "POST" => {
                let path = format!("{path}/{}", sent["metadata"]["name"].as_str().unwrap());
                self.put(path, sent.clone())
            }
            "DELETE" => self.delete(path, sent),
            _ => self.patch(path, sent),
        }
    }

    fn read(&self, path: &str) -> (u16, Value) {
        if let Some(object) = self.objects.get(path) {
            return (200, object.clone());
        }
        let is_collection = ["nodes", "pods", "volumeattachments", "persistentvolumes", "machinedrainrules"];
        if is_collection.iter().any(|plural| path.ends_with(&format!("/{plural}"))) {
            let plural = path.rsplit('/').next().unwrap();
            let is_of = |key: &&String| key.contains(&format!("/{plural}/"));
            let items: Vec<&Value> =
                self.objects.keys().filter(is_of).map(|key| &self.objects[key]).collect();
            return (200, json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }));
        }
        status(404, &json!(null))
    }

    pub(super) fn put(&mut self, path: String, mut object: Value) -> (u16, Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path, object.clone());
        (200, object)
    }

    fn patch(&mut self, path: &str, sent: &Value) -> (u16, Value) {
        let path = path.trim_end_matches("/status");
        let Some(mut object) = self.objects.get(path).cloned() else { return status(404, &json!(null)) };
        for field in ["uid", "resourceVersion"] {
            let sent = &sent["metadata"][field];
            if !sent.is_null() && *sent != object["metadata"][field] {
                return status(409, &json!(null));
            }
        }
        merge(&mut object, sent);
        let is_gone = object["metadata"]["deletionTimestamp"].is_string()
            && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if is_gone {
            self.objects.remove(path);
            return (200, object);
        }
        self.put(path.to_owned(), object)
    }

    fn delete(&mut self, path: &str, sent: &Value) -> (u16, Value) {
        let Some(object) = self.objects.get(path) else { return status(404, &json!(null)) };
        for field in ["uid", "resourceVersion"] {
            let wanted = &sent["preconditions"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return status(409, &json!(null));
            }
        }
        let object = self.objects.remove(path).unwrap();
        (200, object)
    }

    fn evict(&mut self, path: &str) -> (u16, Value) {
        if self.has_budget {
            let text = "The disruption budget web needs 2 healthy pods and has 2 currently";
            return status(429, &json!({ "retryAfterSeconds": 7, "causes": [{ "message": text }] }));
        }
        self.objects.remove(path.trim_end_matches("/eviction"));
        (201, json!({}))
    }
}

fn client(state: &Shared, is_workload: bool) -> Client {
    let state = Arc::clone(state);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let state = Arc::clone(&state);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = if is_workload && state.lock().is_down {
                status(500, &json!(null))
            } else {
                state.lock().answer(head.method.as_str(), head.uri.path(), &sent)
            };
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

/// A process: stores that show the objects, and memory.
pub(super) struct Process {
    pub(super) world: Arc<World>,
    /// Path of an object that another writer changes after it was read.
    pub(super) change_on_write: Option<&'static str>,
    /// Path of an object that its store does not show.
    pub(super) hidden: Option<&'static str>,
    /// True if the Nodes are not listed before each turn.
    pub(super) is_lagging: bool,
    state: Shared,
    writers: Writers,
}

impl Process {
    /// Starts a process over the objects.
    pub(super) fn start(state: &Shared) -> Self {
        let (client, workload) = (client(state, false), Workload::new(client(state, true)));
        let (stores, writers) = stores();
        let workloads = Workloads::with(client.clone(), MANAGER, Box::new(move |_, _| Ok(workload.clone())));
        let world = Arc::new(World {
            client,
            manager: MANAGER,
            scope: Scope::default(),
            stores,
            watches: Watches::<Referenced>::default(),
            workloads,
            lists: crate::core::live::MachineLists::default(),
            memory: Memory::default(),
            tenure: Tenure::always(),
            counters: Counters::default(),
            news: News::channel().0,
        });
        Self {
            world,
            change_on_write: None,
            hidden: None,
            is_lagging: false,
            state: Arc::clone(state),
            writers,
        }
    }

    /// Fills the stores. Returns the Machine.
    fn sync(&mut self) -> Option<Arc<Machine>> {
        let objects = self.state.lock().objects.clone();
        let mut found = None;
        for (path, object) in objects {
            if path.contains("/clusters/") {
                let cluster: Cluster = serde_json::from_value(object).unwrap();
                self.writers.clusters.apply_watcher_event(&Event::Apply(cluster));
            } else if path.contains("/machines/") {
                let machine: Machine = serde_json::from_value(object).unwrap();
                if path == MACHINE {
                    found = Some(Arc::new(machine.clone()));
                }
                self.writers.machines.apply_watcher_event(&Event::Apply(machine));
            }
        }
        found
    }

    /// Returns an object that the Machine names, as its watch shows it.
    fn named(&self, path: &str, kind: &str) -> (Lookup, Option<ApiResource>) {
        let group = path.split('/').nth(2).unwrap().to_owned();
        let resource = ApiResource {
            api_version: format!("{group}/v1"),
            group,
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: format!("{}s", kind.to_lowercase()),
        };
        let object = self.state.lock().objects.get(path).cloned().filter(|_| self.hidden != Some(path));
        let found = object.map(|object| Lookup::Found(Arc::new(serde_json::from_value(object).unwrap())));
        (found.unwrap_or(Lookup::Absent), Some(resource))
    }

    /// Carries out one turn. None: the Machine is gone.
    pub(super) async fn turn(&mut self) -> Option<Result<Option<Duration>, WriteError>> {
        let machine = self.sync()?;
        let world = Arc::clone(&self.world);
        if let Some(cluster) = world.stores.clusters.state().first().filter(|_| !self.is_lagging) {
            world.workloads.read(cluster).await;
        }
        let mut turn = Turn::observe(machine, &world);
        (turn.observed.infrastructure, turn.infrastructure) = self.named(INFRASTRUCTURE, "BedplateMachine");
        (turn.observed.bootstrap, turn.bootstrap) = self.named(BOOTSTRAP, "KubeadmConfig");
        if let Some(path) = self.change_on_write {
            change(&self.state, path, &json!({ "metadata": { "labels": { "other": "x" } } }));
        }
        Some(turn.run().await)
    }

    /// Carries out turns until one writes nothing. The Nodes are listed before each turn.
    pub(super) async fn settle(&mut self) -> Option<Duration> {
        for _ in 0..30 {
            let before = self.state.lock().writes.len();
            let after = self.turn().await?;
            if self.state.lock().writes.len() == before {
                return after.unwrap();
            }
            tokio::time::advance(Duration::from_secs(11)).await;
        }
        panic!("turns do not end: {:?}", lines(&self.state));
    }
}

/// Returns method and path of the writes.
pub(super) fn lines(state: &Shared) -> Vec<String> {
    state.lock().writes.iter().map(|(line, _)| line.clone()).collect()
}

/// Returns the object of a path.
pub(super) fn get(state: &Shared, path: &str) -> Value {
    state.lock().objects.get(path).cloned().unwrap_or_default()
}

/// Changes an object.
pub(super) fn change(state: &Shared, path: &str, change: &Value) {
    let mut object = get(state, path);
    merge(&mut object, change);
    state.lock().put(path.to_owned(), object);
}

/// A Machine with its Cluster, bootstrap object, infrastructure, and Node. No write was made.
pub(super) fn state() -> Shared {
    let mut state = State::default();
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n", "uid": "u-n" },
        "spec": { "providerID": ID }, "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let owned = |name: &str| {
        json!({ "metadata": { "name": name, "namespace": "team-a", "uid": format!("u-{name}"), "ownerReferences": [
        { "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "ms", "uid": "u-ms" }] } })
    };
    let mut bootstrap = owned("b");
    merge(
        &mut bootstrap,
        &json!({ "status": { "dataSecretName": "s", "initialization": { "dataSecretCreated": true } } }),
    );
    let mut infrastructure = owned("i");
    merge(
        &mut infrastructure,
        &json!({ "spec": { "providerID": ID }, "status": { "initialization": { "provisioned": true } } }),
    );
    let kubeconfig = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "c-kubeconfig" }, "data": { "value": "eA==" } });
    let cluster = serde_json::to_value(&*cluster(&json!({ "spec": { "controlPlaneRef": null } }))).unwrap();
    for (path, object) in [
        (MACHINE, serde_json::to_value(machine(&json!({}))).unwrap()),
        (CLUSTER, cluster),
        ("/apis/cluster.x-k8s.io/v1beta2/namespaces/team-a/machines/cp", control_plane()),
        ("/api/v1/namespaces/team-a/secrets/c-kubeconfig", kubeconfig),
        (BOOTSTRAP, bootstrap),
        (INFRASTRUCTURE, infrastructure),
        (NODE, node),
    ] {
        state.put(path.to_owned(), object);
    }
    Arc::new(Lock::new(state))
}

/// A Machine of the control plane. Without one, no Node is drained.
fn control_plane() -> Value {
    let change = json!({ "metadata": { "name": "cp", "uid": "u-cp", "labels": { "cluster.x-k8s.io/control-plane": "" } } });
    serde_json::to_value(machine(&change)).unwrap()
}

/// The Machine after the writes of its life, deleted. Its writes are not recorded.
pub(super) async fn deleted() -> Shared {
    let state = state();
    Process::start(&state).settle().await;
    change(&state, MACHINE, &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    state.lock().writes.clear();
    state
}

/// A Pod on the Node.
pub(super) fn add_pod(state: &Shared) {
    let pod =
        json!({ "metadata": { "namespace": "web", "name": "p", "uid": "u-p" }, "spec": { "nodeName": "n" } });
    state.lock().put("/api/v1/namespaces/web/pods/p".to_owned(), pod);
}
