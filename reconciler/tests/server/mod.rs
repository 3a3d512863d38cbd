//! An API server of answers: it writes down what it is asked, in order, and says what a test has it say.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_bmc::address::Reach;
use bedplate_engine::events::News;
use bedplate_process::events::{EventWriter, Source};
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Pulse;
use bedplate_reconciler::context::{Stores, World};
use bedplate_reconciler::metrics::Metrics;
use bedplate_reconciler::reach::RegistryReach;
use jiff::Timestamp;
use kube::client::Body;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::Event;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Named by its digest, because a tag would have to be resolved before a version is selected.
const NODE_IMAGE: &str =
    "registry.example/node@sha256:0000000000000000000000000000000000000000000000000000000000000001";

const EVENTS: &str = "POST /apis/events.k8s.io/v1/namespaces/default/events";

/// Objects of the cluster when a test starts.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) configurations: Vec<Value>,
    pub(crate) versions: Vec<Value>,
    pub(crate) machines: Vec<Value>,
    pub(crate) nodes: Vec<Value>,
    pub(crate) operations: Vec<Value>,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Method and path behind the group and version, without query.
    pub(crate) line: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// Returns the body of the last request with this line.
#[track_caller]
pub(crate) fn body<'a>(asked: &'a [Asked], line: &str) -> &'a Value {
    let found = asked.iter().rev().find(|asked| asked.line == line);
    &found.unwrap_or_else(|| panic!("no request {line}: {asked:?}")).body
}

/// Says what a request is answered: a code, and an object.
type Answer = dyn Fn(&Asked) -> (u16, Value) + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct Server {
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Lines of all requests, also of those that are not answered yet.
    received: Arc<Mutex<Vec<String>>>,
    time: Duration,
}

impl Server {
    /// One that takes this time for each answer.
    pub(crate) fn slow(time: Duration) -> Self {
        Self { time, ..Self::default() }
    }

    pub(crate) fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    /// Returns the requests and answers so far, without Events.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        let all = self.asked.lock().unwrap().clone();
        all.into_iter().filter(|asked| asked.line != EVENTS).collect()
    }

    /// Reason, object and note of each Event.
    pub(crate) fn events(&self) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = self.asked.lock().unwrap().clone();
        let events = all.into_iter().filter(|asked| asked.line == EVENTS).map(|asked| asked.body);
        let about = |event: &Value| {
            format!("{} {}", text(&event["regarding"]["kind"]), text(&event["regarding"]["name"]))
        };
        events.map(|event| (text(&event["reason"]), about(&event), text(&event["note"]))).collect()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }

    /// Returns a client whose requests are answered by `answer`, except watches, which deliver no events.
    pub(crate) fn client(&self, answer: Arc<Answer>) -> Client {
        let Self { asked, received, time } = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (asked, received, answer) = (asked.clone(), received.clone(), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let path = head.uri.path().to_owned();
                let path = path.strip_prefix("/apis/bedplate.dev/v1alpha1").unwrap_or(&path);
                let line = format!("{} {path}", head.method);
                received.lock().unwrap().push(line.clone());
                if !time.is_zero() {
                    tokio::time::sleep(time).await;
                }
                let body = body.collect_bytes().await?;
                let one = Asked {
                    line,
                    query: head.uri.query().unwrap_or_default().to_owned(),
                    body: serde_json::from_slice(&body).unwrap_or_default(),
                };
                if one.query.contains("watch=true") {
                    return std::future::pending().await;
                }
                let (code, object) = if one.line == EVENTS { (201, one.body.clone()) } else { answer(&one) };
                asked.lock().unwrap().push(one);
                let body = Body::from(object.to_string().into_bytes());
                Ok::<_, kube::Error>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// A world in which these objects were read.
    pub(crate) fn world(
        &self,
        objects: &Objects,
        tenure: Tenure,
        answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
    ) -> Arc<World> {
        let client = self.client(Arc::new(answer));
        // Registries of tests are on loopback.
        let reach = Reach { allowed: vec!["127.0.0.0/8".parse().unwrap()], ..Reach::default() };
        let world = World::new(client, stores(objects), tenure, Metrics::default());
        Arc::new(world.reaching(RegistryReach(reach)))
    }

    /// A world that publishes Events, and their writer.
    pub(crate) fn telling(
        &self,
        objects: &Objects,
        answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Arc<World>, Teller) {
        let client = self.client(Arc::new(answer));
        let (news, queue) = News::channel();
        let source = Source { controller: "test", instance: "test".to_owned(), field_manager: "test" };
        let teller = Teller(news.writer(queue, source, client.clone()));
        let world = World::new(client, stores(objects), Tenure::always(), Metrics::default());
        (Arc::new(world.telling(news)), teller)
    }
}

/// Writer of Events.
pub(crate) struct Teller(EventWriter);

impl Teller {
    /// Writes the Events that wait.
    pub(crate) async fn run(self) {
        let stop = tokio_util::sync::CancellationToken::new();
        stop.cancel();
        self.0.run(Pulse::unwatched(), stop).await;
    }
}

fn stores(objects: &Objects) -> Stores {
    let stores = Stores {
        machines: store(&objects.machines),
        configurations: store(&objects.configurations),
        versions: store(&objects.versions),
        nodes: store(&objects.nodes),
        requests: store(&[]),
        open: Arc::default(),
        operations: store(&objects.operations),
        claims: store(&[]),
        whose: Arc::default(),
        index: Arc::default(),
        heard: Arc::default(),
        waits: Arc::default(),
    };
    index(&stores);
    stores
}

/// Takes on what the stores have, as the watches do.
pub(crate) fn index(stores: &Stores) {
    for object in stores.configurations.state() {
        stores.index_mut().configuration(&object.name_any(), Some(object.clone()));
    }
    for object in stores.versions.state() {
        let (of, name) = (object.spec.configuration_name.clone(), object.name_any());
        stores.index_mut().version(&of, &name, Some(object));
    }
    for object in stores.operations.state() {
        stores.whose.put(&object, Timestamp::now());
    }
    for object in stores.machines.state() {
        stores.waits.put(&object);
        stores.index_mut().machine(&object.name_any(), Some(object.clone()));
    }
}

fn store<K>(objects: &[Value]) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
{
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Init);
    for value in objects {
        writer.apply_watcher_event(&Event::InitApply(object(value)));
    }
    writer.apply_watcher_event(&Event::InitDone);
    // Dropping the writer would end its readers.
    std::mem::forget(writer);
    store
}

pub(crate) fn object<K: DeserializeOwned>(value: &Value) -> K {
    serde_json::from_value(value.clone()).unwrap()
}

/// An error as the API server says it.
pub(crate) fn refusal(code: u16, message: &str) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Test" };
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code });
    (code, status)
}

/// A list of Machines.
pub(crate) fn machine_list(machines: &[Value]) -> (u16, Value) {
    let list = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineList", "metadata": { "resourceVersion": "9" },
        "items": machines });
    (200, list)
}

/// A list of Nodes, without more of them than their heads.
pub(crate) fn node_heads(nodes: &[Value]) -> (u16, Value) {
    let head = |node: &Value| json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": node["metadata"] });
    let items: Vec<Value> = nodes.iter().map(head).collect();
    let list = json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": { "resourceVersion": "9" }, "items": items });
    (200, list)
}

fn ours(kind: &str, name: &str, more: &Value) -> Value {
    let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind,
        "metadata": { "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7", "generation": 1 } });
    for (key, value) in more.as_object().unwrap() {
        match key.as_str() {
            "metadata" => object[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone()),
            _ => object[key] = value.clone(),
        }
    }
    object
}

fn template(content: u32) -> Value {
    json!({ "image": { "reference": NODE_IMAGE },
        "kubernetes": { "version": "v1.34.0" }, "sysctls": { "kernel.panic": content.to_string() } })
}

/// The configuration `w`, which has our finalizer.
pub(crate) fn configuration(content: u32, status: &Value) -> Value {
    let finalizers = ["bedplate.dev/in-use"];
    let spec = json!({ "template": template(content) });
    ours(
        "MachineConfiguration",
        "w",
        &json!({ "metadata": { "finalizers": finalizers }, "spec": spec, "status": status }),
    )
}

/// A version of it.
pub(crate) fn version(number: u32, more: &Value) -> Value {
    let owner = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "name": "w", "uid": "uid-w",
        "controller": true }]);
    let mut object = ours(
        "MachineConfigurationVersion",
        &format!("w-v{number}"),
        &json!({
        "metadata": { "ownerReferences": owner, "finalizers": ["bedplate.dev/in-use"] },
        "spec": { "configurationName": "w", "version": number, "template": template(number) } }),
    );
    let more = ours("", "", more);
    let metadata = more["metadata"].as_object().unwrap().clone().into_iter();
    let known = ["name", "uid", "resourceVersion", "generation"];
    let metadata = metadata.filter(|(key, _)| !known.contains(&key.as_str()));
    object["metadata"].as_object_mut().unwrap().extend(metadata);
    object["status"] = more.get("status").cloned().unwrap_or(json!({ "deployed": false, "machines": 0 }));
    object
}

/// The Machine `a`, enrolled, with a reference to the configuration.
pub(crate) fn machine(status: &Value) -> Value {
    let enrolled = json!({ "type": "Enrolled", "status": "True", "reason": "Enrolled", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let mut whole = json!({ "conditions": [enrolled] });
    whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    let spec = json!({ "provider": "manual", "configurationRef": { "name": "w" } });
    ours("Machine", "a", &json!({ "spec": spec, "status": whole }))
}
