//! The API server, its objects (followed by watches), and a scene: the objects of one run, which no other run touches.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bedplate_tests::kubernetes::Kubernetes;
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::feed::Feeds;

/// Timeout of each wait; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(25);
const CONTROLLER: &str = "system:serviceaccount:bedplate-system:bedplate-controller";

/// Kinds that are followed: group and version, kind, plural.
const KINDS: [(&str, &str, &str); 8] = [
    ("bedplate.dev/v1alpha1", "Machine", "machines"),
    ("bedplate.dev/v1alpha1", "MachineConfiguration", "machineconfigurations"),
    ("bedplate.dev/v1alpha1", "MachineConfigurationVersion", "machineconfigurationversions"),
    ("bedplate.dev/v1alpha1", "MachineOperation", "machineoperations"),
    ("v1", "Node", "nodes"),
    ("v1", "Pod", "pods"),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests"),
];

/// Objects by plural and name.
type Objects = BTreeMap<(&'static str, String), Value>;

pub(crate) struct Cluster {
    pub(crate) runtime: Runtime,
    /// With the rights of `deploy/`.
    pub(crate) controller: Client,
    pub(crate) feeds: Arc<Feeds>,
    admin: Client,
    objects: Mutex<Objects>,
    scenes: AtomicU32,
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

impl Cluster {
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Cluster>> = OnceLock::new();
        SHARED
            .get_or_init(|| {
                let kubernetes = Kubernetes::shared();
                kubernetes.protect_versions().unwrap();
                let account = kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
                let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
                let controller = runtime.block_on(client(&account));
                let admin = runtime.block_on(client(&kubernetes.admin()));
                // Object that a controller would create in the namespace.
                kubernetes.kubectl(&kubernetes.admin(), &["create", "serviceaccount", "default"]).unwrap();
                let feeds = Arc::new(Feeds::new(controller.clone(), runtime.handle().clone()));
                let (objects, scenes) = Default::default();
                let cluster = Arc::new(Self { runtime, controller, feeds, admin, objects, scenes });
                for (version, kind, plural) in KINDS {
                    cluster.runtime.spawn(cluster.clone().follow((version, kind, plural)));
                }
                cluster
            })
            .clone()
    }

    async fn follow(self: Arc<Self>, (api_version, kind, plural): (&str, &str, &'static str)) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(self.admin.clone(), &resource);
        let mut events = Box::pin(watcher(api, watcher::Config::default()));
        while let Some(event) = events.next().await {
            let mut objects = self.objects.lock().unwrap();
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    let mut value = serde_json::to_value(&object).unwrap();
                    value["metadata"].as_object_mut().unwrap().remove("managedFields");
                    objects.insert((plural, object.name_any()), value);
                }
                Ok(watcher::Event::Delete(object)) => drop(objects.remove(&(plural, object.name_any()))),
                Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => {}
            }
        }
    }

    /// Makes a scene. Its prefix never occurs in a UID.
    pub(crate) fn scene(self: &Arc<Self>) -> Scene {
        let number = self.scenes.fetch_add(1, Ordering::SeqCst);
        Scene { cluster: self.clone(), prefix: format!("run{number}-") }
    }

    async fn ask(&self, request: http::Request<Vec<u8>>) -> Result<Value, (u16, String)> {
        match self.admin.request::<Value>(request).await {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) => Err((status.code, status.message)),
            Err(error) => Err((0, error.to_string())),
        }
    }
}

fn place(plural: &str) -> String {
    let (version, _, plural) = KINDS.iter().find(|kind| kind.2 == plural).unwrap();
    match *plural {
        "pods" => "/api/v1/namespaces/default/pods".to_owned(),
        "poddisruptionbudgets" => format!("/apis/{version}/namespaces/default/{plural}"),
        plural if !version.contains('/') => format!("/api/{version}/{plural}"),
        plural => format!("/apis/{version}/{plural}"),
    }
}

/// The objects of one run: all begin with its prefix, which the functions here add.
#[derive(Clone)]
pub(crate) struct Scene {
    cluster: Arc<Cluster>,
    pub(crate) prefix: String,
}

impl Scene {
    pub(crate) fn name(&self, short: &str) -> String {
        format!("{}{short}", self.prefix)
    }

    pub(crate) fn get(&self, plural: &'static str, short: &str) -> Option<Value> {
        self.cluster.objects.lock().unwrap().get(&(plural, self.name(short))).cloned()
    }

    /// All of a kind, by their short names.
    pub(crate) fn all(&self, plural: &str) -> Vec<(String, Value)> {
        let objects = self.cluster.objects.lock().unwrap();
        let own =
            objects.iter().filter(|((kind, name), _)| *kind == plural && name.starts_with(&self.prefix));
        own.map(|((_, name), object)| (name.replacen(&self.prefix, "", 1), object.clone())).collect()
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        (type_, body): (&str, &Value),
        headers: &[(&str, String)],
    ) -> Result<Value, (u16, String)> {
        let mut request = http::Request::builder().method(method).uri(path).header("content-type", type_);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let started = Instant::now();
        loop {
            let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
            let request = request_of(&request, body);
            match self.cluster.ask(request).await {
                // The API server is unreachable, or busy.
                Err((0 | 429 | 500.., _)) if started.elapsed() < PATIENCE => tokio::time::sleep(LOOK).await,
                other => return other,
            }
        }
    }

    /// Applies an object (its name gets the prefix) as a person does.
    pub(crate) async fn apply(&self, plural: &'static str, mut object: Value) {
        let (version, kind, _) = KINDS.iter().find(|kind| kind.2 == plural).unwrap();
        let name = self.name(object["metadata"]["name"].as_str().unwrap());
        object["metadata"]["name"] = json!(name);
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        let path = format!("{}/{name}?fieldManager=person&force=true", place(plural));
        let done = self.send("PATCH", &path, ("application/apply-patch+yaml", &object), &[]).await;
        done.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }

    /// Makes an object as another user.
    pub(crate) async fn create_as(&self, plural: &'static str, object: &Value, who: &[(&str, String)]) {
        let done = self.send("POST", &place(plural), ("application/json", object), who).await;
        // One that was made without an answer is there.
        if let Err((code, why)) = done {
            assert_eq!(code, 409, "{why}");
        }
    }

    pub(crate) fn as_controller(&self) -> Vec<(&'static str, String)> {
        vec![("Impersonate-User", CONTROLLER.to_owned())]
    }

    /// Merges into an object's status.
    pub(crate) async fn status(&self, plural: &'static str, short: &str, status: &Value) {
        let patch = json!({ "status": status });
        let path = format!("{}/{}/status", place(plural), self.name(short));
        let done = self.send("PATCH", &path, ("application/merge-patch+json", &patch), &[]).await;
        done.unwrap_or_else(|error| panic!("{short}: {error:?}"));
    }

    /// Changes the status of an object by its current state; again after each conflict. `None`: there is no such object.
    pub(crate) async fn change(
        &self,
        plural: &'static str,
        short: &str,
        change: impl Fn(&mut Value),
    ) -> Option<()> {
        let path = format!("{}/{}", place(plural), self.name(short));
        loop {
            let mut object = match self.send("GET", &path, ("application/json", &Value::Null), &[]).await {
                Ok(object) => object,
                Err((404, _)) => return None,
                Err(error) => panic!("{short}: {error:?}"),
            };
            change(&mut object);
            match self.send("PUT", &format!("{path}/status"), ("application/json", &object), &[]).await {
                Ok(_) => return Some(()),
                Err((409 | 404, _)) => {}
                Err(error) => panic!("{short}: {error:?}"),
            }
        }
    }

    /// Deletes an object; again, while a policy does not yet know that it is not in use.
    pub(crate) async fn delete(&self, plural: &'static str, short: &str) {
        let path = format!("{}/{}?gracePeriodSeconds=0", place(plural), self.name(short));
        let started = Instant::now();
        loop {
            match self.send("DELETE", &path, ("application/json", &Value::Null), &[]).await {
                Ok(_) | Err((404, _)) => return,
                Err((403 | 409 | 422, _)) if started.elapsed() < PATIENCE => tokio::time::sleep(LOOK).await,
                Err(error) => panic!("{short}: {error:?}"),
            }
        }
    }

    /// Waits until an object is in a state, and gives it.
    pub(crate) async fn until(
        &self,
        (plural, short): (&'static str, &str),
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let found = self.wait(|| self.get(plural, short).filter(|object| is(object))).await;
        found.unwrap_or_else(|| {
            panic!("{plural} {short}: no {what}: {:#}", self.get(plural, short).unwrap_or_default())
        })
    }

    /// Waits until it is gone, and gives it.
    pub(crate) async fn until_gone(&self, plural: &'static str, short: &str) {
        let gone = self.wait(|| self.get(plural, short).is_none().then_some(())).await;
        gone.unwrap_or_else(|| {
            panic!("{plural} {short} is there: {:#}", self.get(plural, short).unwrap_or_default())
        });
    }

    /// Waits for something to be there.
    pub(crate) async fn wait<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        let started = Instant::now();
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            if started.elapsed() > PATIENCE {
                return None;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Everything of the run, as it is compared: without this run's names, UIDs, times and resource versions. A UID is replaced by what has it.
    pub(crate) fn picture(&self) -> BTreeMap<String, Value> {
        let objects: Vec<_> =
            KINDS.iter().flat_map(|kind| self.all(kind.2).into_iter().map(|own| (kind.2, own))).collect();
        let mut uids = BTreeMap::new();
        for (plural, (name, object)) in &objects {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            uids.insert(uid, format!("{plural}/{}", name.replace(&self.prefix, "")));
        }
        let normal = objects.into_iter().map(|(plural, (name, mut object))| {
            object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            if let Some(spec) =
                object["spec"].as_object_mut().filter(|_| plural == "certificatesigningrequests")
            {
                // The key differs each time.
                spec.remove("request");
            }
            normalize(&mut object, &self.prefix, &uids);
            (format!("{plural}/{}", name.replace(&self.prefix, "")), object)
        });
        normal.collect()
    }

    /// Takes everything away.
    pub(crate) async fn clear(&self) {
        for (_, _, plural) in KINDS {
            for (short, object) in self.all(plural) {
                let path = format!("{}/{}", place(plural), self.name(&short));
                if object["metadata"].get("finalizers").is_some() {
                    let free = json!({ "metadata": { "finalizers": null } });
                    let who = if plural == "machineconfigurationversions" {
                        self.as_controller()
                    } else {
                        Vec::new()
                    };
                    let _ = self.send("PATCH", &path, ("application/merge-patch+json", &free), &who).await;
                }
                let _ = self
                    .send(
                        "DELETE",
                        &format!("{path}?gracePeriodSeconds=0"),
                        ("application/json", &Value::Null),
                        &[],
                    )
                    .await;
            }
        }
    }
}

fn request_of(builder: &http::request::Builder, body: Vec<u8>) -> http::Request<Vec<u8>> {
    let mut request = http::Request::new(body);
    *request.method_mut() = builder.method_ref().unwrap().clone();
    *request.uri_mut() = builder.uri_ref().unwrap().clone();
    *request.headers_mut() = builder.headers_ref().unwrap().clone();
    request
}

fn normalize(value: &mut Value, prefix: &str, uids: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => *text = plain(text, prefix, uids),
        Value::Array(items) => {
            items.iter_mut().for_each(|item| normalize(item, prefix, uids));
            // A list by type: who came first is chance.
            if items.iter().all(|item| item.get("type").is_some()) {
                items.sort_by_key(|item| item["type"].to_string());
            }
        }
        Value::Object(fields) => {
            let before = std::mem::take(fields);
            for (key, mut value) in before {
                normalize(&mut value, prefix, uids);
                fields.insert(key.replace(prefix, ""), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A text without names of this run, UIDs and times.
fn plain(text: &str, prefix: &str, uids: &BTreeMap<String, String>) -> String {
    let mut text = text.replace(prefix, "");
    for (uid, of) in uids {
        text = text.replace(uid.as_str(), &format!("<UID of {of}>"));
    }
    let is_time =
        text.len() >= 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T' && text.as_bytes()[4] == b'-';
    if is_time {
        return "<time>".to_owned();
    }
    // UID of an object that is gone.
    let is_uid = |word: &str| word.len() == 36 && word.bytes().filter(|byte| *byte == b'-').count() == 4;
    if is_uid(&text) { "<UID of what is gone>".to_owned() } else { text }
}
