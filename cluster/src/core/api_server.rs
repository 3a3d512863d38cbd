//! API server in memory for tests of passes: it keeps objects, checks preconditions, records writes, and refuses writes after a number of them.
//!
//! An apply of conditions follows the rules of server-side apply: each field manager owns entries by their types.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bedplate_engine::FieldManager;
use bedplate_engine::events::News;
use bedplate_engine::watches::Watches;
use bedplate_process::lease::Tenure;
use bedplate_workload::Networks;
use kube::client::Body;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use super::context::{Stores, World};
use super::live::MachineLists;
use super::machine::memory::Memory;
use super::workload::Workloads;
use crate::metrics::Counters;
use crate::scope::Scope;

/// Path of the core kinds in the namespace of the tests.
pub(crate) const CORE: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/ns";
/// Path of the kinds of a provider in the namespace of the tests.
pub(crate) const PROVIDER: &str = "/apis/g.io/v1/namespaces/ns";

/// Write that was received.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Write {
    /// Method and path.
    pub line: String,
    /// Field manager.
    pub manager: String,
    /// Body.
    pub body: Value,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    writes: Vec<Write>,
    version: u64,
    /// Number of further writes that succeed. None: all.
    left: Option<usize>,
    /// Requests that are rejected: method and path, with code and reason.
    rejected: BTreeMap<String, (u16, &'static str)>,
    /// Types of conditions by path and field manager.
    owned: BTreeMap<(String, String), BTreeSet<String>>,
}

/// The API server. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ApiServer(Arc<Mutex<State>>);

type Answer = (u16, Value);

fn failure(code: u16, reason: &str) -> Answer {
    let status =
        json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": reason });
    (code, status)
}

impl ApiServer {
    /// Puts an object, without a record.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().insert(path, object);
    }

    /// Removes an object.
    pub(crate) fn remove(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// Returns an object.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    /// Returns the paths of the objects of a collection.
    pub(crate) fn paths(&self, collection: &str) -> Vec<String> {
        let prefix = format!("{collection}/");
        self.0.lock().unwrap().objects.keys().filter(|path| path.starts_with(&prefix)).cloned().collect()
    }

    /// Returns the objects of a collection.
    pub(crate) fn all<K: DeserializeOwned>(&self, collection: &str) -> Vec<K> {
        let paths = self.paths(collection);
        paths.iter().map(|path| from_value(self.get(path).unwrap()).unwrap()).collect()
    }

    /// Changes an object, without a record.
    pub(crate) fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(path).unwrap();
        change(&mut object);
        self.put(path, object);
    }

    /// Sets the number of further writes that succeed.
    pub(crate) fn limit(&self, writes: Option<usize>) {
        self.0.lock().unwrap().left = writes;
    }

    /// Rejects a request, given by method and path, as not valid.
    pub(crate) fn reject(&self, line: &str) {
        self.reject_as(line, (422, "Invalid"));
    }

    /// Rejects a request, given by method and path.
    pub(crate) fn reject_as(&self, line: &str, answer: (u16, &'static str)) {
        self.0.lock().unwrap().rejected.insert(line.to_owned(), answer);
    }

    /// Returns the writes since the last call.
    pub(crate) fn take(&self) -> Vec<Write> {
        std::mem::take(&mut self.0.lock().unwrap().writes)
    }

    /// Returns method and path of the writes since the last call.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.take().into_iter().map(|write| write.line).collect()
    }

    /// Returns a process that has just synced its stores.
    pub(crate) fn world(&self) -> Arc<World> {
        let core = |plural: &str| format!("{CORE}/{plural}");
        Arc::new(World {
            client: self.client(),
            manager: FieldManager::new("bedplate-cluster-core"),
            scope: Scope::default(),
            stores: Stores {
                clusters: self.store(&core("clusters")),
                deployments: self.store(&core("machinedeployments")),
                sets: self.store(&core("machinesets")),
                machines: self.store(&core("machines")),
                checks: self.store(&core("machinehealthchecks")),
            },
            watches: Watches::default(),
            workloads: Workloads::new(
                self.client(),
                FieldManager::new("bedplate-cluster-core"),
                Networks::default(),
                Scope::default(),
            ),
            lists: MachineLists::default(),
            memory: Memory::default(),
            tenure: Tenure::always(),
            counters: Counters::default(),
            news: News::channel().0,
        })
    }

    fn store<K>(&self, collection: &str) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
    {
        let (store, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Init);
        for object in self.all::<K>(collection) {
            writer.apply_watcher_event(&Event::InitApply(object));
        }
        writer.apply_watcher_event(&Event::InitDone);
        store
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
                let query = head.uri.query().unwrap_or_default().to_owned();
                let (code, answer) =
                    server.0.lock().unwrap().answer(head.method.as_str(), head.uri.path(), &query, body);
                let response = http::Response::builder().status(code);
                Ok::<_, kube::Error>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
            }
        });
        Client::new(service, "default")
    }
}

impl State {
    fn insert(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-{}", self.version).into();
            metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        metadata["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &str, path: &str, query: &str, body: Value) -> Answer {
        if method == "GET" {
            let rejected = self.rejected.get(&format!("GET {path}"));
            return rejected.map_or_else(|| self.read(path), |(code, reason)| failure(*code, reason));
        }
        let manager = query.split('&').find_map(|part| part.strip_prefix("fieldManager="));
        let line = format!("{method} {path}");
        if self.left == Some(0) {
            return failure(503, "ServiceUnavailable");
        }
        self.left = self.left.map(|left| left - 1);
        let manager = manager.unwrap_or_default().to_owned();
        self.writes.push(Write { line: line.clone(), manager: manager.clone(), body: body.clone() });
        if let Some((code, reason)) = self.rejected.get(&line) {
            return failure(*code, reason);
        }
        match method {
            "POST" => self.create(path, body),
            "PATCH" => self.patch(path, &manager, body),
            _ => self.delete(path, &body),
        }
    }

    fn read(&self, path: &str) -> Answer {
        if path.contains("/customresourcedefinitions/") {
            let metadata = json!({ "name": "x", "labels": { "cluster.x-k8s.io/v1beta2": "v1" } });
            return (200, json!({ "metadata": metadata }));
        }
        // "", apis, group, version, namespaces, namespace, plural, name
        if path.split('/').count() > 7 {
            return self
                .objects
                .get(path)
                .map_or_else(|| failure(404, "NotFound"), |found| (200, found.clone()));
        }
        let prefix = format!("{path}/");
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&prefix))
            .map(|(_, object)| object)
            .collect();
        (200, json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }))
    }

    fn create(&mut self, collection: &str, object: Value) -> Answer {
        let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
        if self.objects.contains_key(&path) {
            return failure(409, "AlreadyExists");
        }
        (201, self.insert(&path, object))
    }

    /// Carries out a JSON patch that replaces fields.
    fn edit(&mut self, path: &str, edits: &[Value]) -> Answer {
        let Some(present) = self.objects.get(path).cloned() else { return failure(404, "NotFound") };
        let mut next = present.clone();
        for edit in edits {
            *next.pointer_mut(edit["path"].as_str().unwrap()).unwrap() = edit["value"].clone();
        }
        if next["metadata"]["resourceVersion"] != present["metadata"]["resourceVersion"] {
            return failure(409, "Conflict");
        }
        (200, self.insert(path, next))
    }

    fn patch(&mut self, path: &str, manager: &str, mut body: Value) -> Answer {
        let (path, is_status) = path.strip_suffix("/status").map_or((path, false), |path| (path, true));
        if let Some(edits) = body.as_array() {
            return self.edit(path, edits);
        }
        let Some(present) = self.objects.get(path).cloned() else { return failure(404, "NotFound") };
        for field in ["uid", "resourceVersion"] {
            let given = body["metadata"].as_object_mut().and_then(|metadata| metadata.remove(field));
            if given.is_some_and(|given| given != present["metadata"][field]) {
                return failure(409, "Conflict");
            }
        }
        if is_status && body["status"]["conditions"].is_array() {
            let types = |conditions: &Value| -> BTreeSet<String> {
                conditions
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|one| one["type"].as_str().unwrap().to_owned())
                    .collect()
            };
            let now = types(&body["status"]["conditions"]);
            let owned =
                self.owned.insert((path.to_owned(), manager.to_owned()), now.clone()).unwrap_or_default();
            let others = present["status"]["conditions"].as_array().cloned().unwrap_or_default().into_iter();
            let mut all: Vec<Value> = others
                .filter(|one| {
                    let type_ = one["type"].as_str().unwrap();
                    !now.contains(type_) && !owned.contains(type_)
                })
                .collect();
            all.extend(body["status"]["conditions"].as_array().unwrap().iter().cloned());
            body["status"]["conditions"] = all.into();
        }
        let mut next = present.clone();
        merge(&mut next, &body);
        let (metadata, version) = (&next["metadata"], next["metadata"]["resourceVersion"].clone());
        let is_held = metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !metadata["deletionTimestamp"].is_null() && !is_held {
            self.objects.remove(path);
            return (200, next);
        }
        if next == present {
            return (200, present);
        }
        if !is_status && next["spec"] != present["spec"] {
            next["metadata"]["generation"] =
                (next["metadata"]["generation"].as_i64().unwrap_or(1) + 1).into();
        }
        assert_eq!(version, present["metadata"]["resourceVersion"]);
        (200, self.insert(path, next))
    }

    fn delete(&mut self, path: &str, body: &Value) -> Answer {
        let Some(mut present) = self.objects.get(path).cloned() else { return failure(404, "NotFound") };
        for field in ["uid", "resourceVersion"] {
            let given = &body["preconditions"][field];
            if !given.is_null() && *given != present["metadata"][field] {
                return failure(409, "Conflict");
            }
        }
        if present["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()) {
            present["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            return (200, self.insert(path, present));
        }
        self.objects.remove(path);
        (200, json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }))
    }
}

/// Applies a merge patch.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            drop(target.as_object_mut().unwrap().remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}
