//! Hosts with agents that speak to the API server as real ones do: they fetch the selected version, make a Node of it once the former is gone and the
//! controller has chosen, roll back a version that does not come up, and stop their slot when their Machine is drained away.
//!
//! And a workload: a number of Pods, each of which is re-created on a Node that accepts Pods when it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_api::machine::{DeletionPolicy, Machine, Selected};
use bedplate_tests::kubernetes::Objects;
use futures::StreamExt as _;
use futures::future::select_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Interval at which an agent reconciles even if no object has changed, because a test may have changed its host.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The hosts of a test; they end with its runtime.
pub(crate) struct Fleet {
    pub(crate) client: Client,
    objects: Objects,
    pub(crate) names: Vec<String>,
    /// Versions that do not come up.
    pub(crate) bad: Mutex<BTreeSet<i64>>,
    /// Hosts that fetch nothing.
    pub(crate) slow: Mutex<BTreeSet<String>>,
    /// Hosts that do not reach the registry.
    pub(crate) starved: Mutex<BTreeSet<String>>,
    /// Hosts whose agents do nothing for now.
    pub(crate) away: Mutex<BTreeSet<String>>,
    /// Maximum number of their Nodes that were gone, cordoned or not Ready concurrently.
    most: AtomicUsize,
}

/// State of a host's disk.
#[derive(Default)]
struct Host {
    applied: Option<(Selected, String)>,
    prepared: Option<(String, i64)>,
    rolled_back: Option<Value>,
    /// True if the selected version never arrives.
    starves: bool,
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

impl Fleet {
    /// Hosts that are enrolled for these Machines, which have to be there.
    pub(crate) async fn start(client: Client, objects: &Objects, names: &[&str]) -> Arc<Self> {
        let fleet = Arc::new(Self {
            client,
            objects: objects.clone(),
            names: names.iter().map(ToString::to_string).collect(),
            bad: Mutex::default(),
            slow: Mutex::default(),
            starved: Mutex::default(),
            away: Mutex::default(),
            most: AtomicUsize::new(0),
        });
        for name in &fleet.names {
            let enrolled = json!({ "conditions": [condition("Enrolled", "True", "Enrolled")] });
            fleet.apply(name, "pxed", &enrolled).await.unwrap();
            tokio::spawn(fleet.clone().host(name.clone()));
        }
        fleet
    }

    /// Counts the maximum that were unavailable concurrently, by its Nodes' watch from now on.
    pub(crate) async fn count(self: &Arc<Self>) {
        let (ready, counting) = tokio::sync::oneshot::channel();
        let fleet = self.clone();
        tokio::spawn(async move {
            let mut ready = Some(ready);
            let mut there: BTreeMap<String, bool> = BTreeMap::new();
            let nodes: Api<Node> = Api::all(fleet.client.clone());
            let mut events = Box::pin(watcher(nodes, watcher::Config::default()));
            while let Some(event) = events.next().await {
                match event.unwrap() {
                    Event::Apply(node) | Event::InitApply(node) => {
                        there.insert(node.name_any(), is_available(&node));
                    }
                    Event::Delete(node) => drop(there.remove(&node.name_any())),
                    Event::Init => continue,
                    Event::InitDone => drop(ready.take().map(|ready| ready.send(()))),
                }
                if ready.is_none() {
                    let away = fleet.names.iter().filter(|name| there.get(*name) != Some(&true)).count();
                    fleet.most.fetch_max(away, Ordering::SeqCst);
                }
            }
        });
        counting.await.unwrap();
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    fn machines(&self) -> Api<Machine> {
        Api::all(self.client.clone())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn apply(&self, name: &str, manager: &str, status: &Value) -> kube::Result<Machine> {
        let body = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name }, "status": status });
        let parameters = PatchParams::apply(manager).force();
        self.machines().patch_status(name, &parameters, &Patch::Apply(&body)).await
    }

    async fn host(self: Arc<Self>, name: String) {
        let mut host = Host::default();
        let mut reported = Value::Null;
        let mut changes = Changes::of(&self.objects, &[("machine", &name), ("node", &name)]);
        loop {
            let Some(machine) = self.machines().get_opt(&name).await.unwrap() else { return };
            if !self.away.lock().unwrap().contains(&name) {
                self.step(&mut host, &machine).await;
            }
            let now = host.status();
            if now != reported && self.apply(&name, "bedplate-agent", &now).await.is_ok() {
                reported = now;
            }
            changes.wait().await;
        }
    }

    async fn step(&self, host: &mut Host, machine: &Machine) {
        let (name, status) = (machine.name_any(), machine.status.clone().unwrap_or_default());
        let node = self.nodes().get_opt(&name).await.unwrap();
        let deleting = machine.metadata.deletion_timestamp.is_some();
        if deleting && machine.spec.deletion_policy == DeletionPolicy::Drain && node.is_none() {
            (host.applied, host.prepared) = (None, None);
            return;
        }
        let Some(selected) = status.selected.filter(|_| !deleting && !machine.spec.paused) else { return };
        match (&host.applied, node) {
            (Some((applied, uid)), Some(node)) if node.metadata.uid.as_ref() == Some(uid) => {
                let differs = (&applied.name, applied.version) != (&selected.name, selected.version);
                host.starves = differs && self.starved.lock().unwrap().contains(&name);
                if differs && !host.starves && !self.slow.lock().unwrap().contains(&name) {
                    host.prepared = Some((selected.name, selected.version));
                }
            }
            (former, None) if status.node_ref.is_none() => {
                let bad = self.bad.lock().unwrap().contains(&selected.version);
                let version =
                    |selected: &Selected| json!({ "name": selected.name, "version": selected.version });
                let comes = match former.as_ref().filter(|_| bad) {
                    Some((former, _)) => {
                        host.rolled_back = Some(json!({ "from": version(&selected), "to": version(former),
                            "message": "the kubelet is not healthy", "time": "2026-01-01T00:00:00Z" }));
                        former.clone()
                    }
                    None => selected,
                };
                let uid = self.join(&name).await;
                (host.applied, host.prepared) = (Some((comes, uid)), None);
            }
            _ => {}
        }
    }

    /// A Node that is Ready.
    async fn join(&self, name: &str) -> String {
        let node = object(
            json!({ "metadata": { "name": name }, "spec": { "providerID": format!("bedplate://{name}") } }),
        );
        let node: Node = self.nodes().create(&PostParams::default(), &node).await.unwrap();
        self.ready(name, true).await;
        node.metadata.uid.unwrap()
    }

    pub(crate) async fn ready(&self, name: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let body = json!({ "status": { "conditions": [{ "type": "Ready", "status": status, "reason": "T", "message": "" }] } });
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }
}

impl Host {
    fn status(&self) -> Value {
        let running = self.applied.as_ref().map(|(version, uid)| {
            json!({ "name": version.name, "version": version.version, "slot": "a", "nodeUID": uid })
        });
        let slot_a = self.applied.as_ref().map_or(json!({ "name": "a", "state": "Empty" }), |(version, _)| {
            json!({ "name": "a", "configurationName": version.name, "version": version.version, "state": "Running" })
        });
        let slot_b = self.prepared.as_ref().map_or(json!({ "name": "b", "state": "Empty" }), |(name, version)| {
            json!({ "name": "b", "configurationName": name, "version": version, "state": "Prepared" })
        });
        let runs = if self.applied.is_some() { "True" } else { "False" };
        let mut status = json!({ "slots": [slot_a, slot_b],
            "agent": { "version": "t", "lastHeartbeatTime": "2100-01-01T00:00:00Z" },
            "conditions": [condition("Paved", runs, if self.starves { "ImageUnavailable" } else { "Applied" }), condition("NodeReady", runs, "NodeReady")] });
        if let Some(running) = running {
            status["applied"] = running;
        }
        if let Some(back) = &self.rolled_back {
            status["rolledBack"] = back.clone();
        }
        status
    }
}

fn is_available(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true))
}

/// Keeps `count` Pods `app=<name>` on the fleet's Nodes, one on each as far as they go; each is Ready a moment after it was made.
pub(crate) async fn workload(fleet: Arc<Fleet>, namespace: String, count: usize) {
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), &namespace);
    let mut made = 0;
    let mut changes = Changes::of(&fleet.objects.within(&namespace), &[("pod", ""), ("node", "")]);
    loop {
        let there = pods.list(&ListParams::default()).await.unwrap().items;
        let places: BTreeSet<String> = there.iter().filter_map(|pod| pod.spec.clone()?.node_name).collect();
        let nodes = fleet.nodes().list(&ListParams::default()).await.unwrap().items;
        let free = |node: &&Node| {
            is_available(node)
                && fleet.names.contains(&node.name_any())
                && node.metadata.deletion_timestamp.is_none()
        };
        let mut free: Vec<String> = nodes.iter().filter(free).map(ResourceExt::name_any).collect();
        free.sort_by_key(|name| places.contains(name));
        if let (true, Some(node)) = (there.len() < count, free.first()) {
            made += 1;
            pod(&fleet.client, &namespace, &format!("w{made}"), node, Some("ReplicaSet")).await;
        }
        changes.wait().await;
    }
}

/// Changes of some objects since the last check.
struct Changes {
    objects: Objects,
    /// Kind and name of each object. An empty name selects all objects of the kind.
    of: Vec<(&'static str, String)>,
    watches: Vec<watch::Receiver<u64>>,
    seen: Vec<String>,
}

impl Changes {
    fn of(objects: &Objects, of: &[(&'static str, &str)]) -> Self {
        let watches = of.iter().map(|(kind, _)| objects.changes(kind).unwrap()).collect();
        let of = of.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect();
        Self { objects: objects.clone(), of, watches, seen: Vec::new() }
    }

    /// Waits for the next change, or for the end of the interval.
    async fn wait(&mut self) {
        let next = tokio::time::Instant::now() + LOOK_INTERVAL;
        loop {
            let any = select_all(self.watches.iter_mut().map(|watch| Box::pin(watch.changed())));
            if tokio::time::timeout_at(next, any).await.is_err() {
                return;
            }
            let now = self.now();
            if now != self.seen {
                self.seen = now;
                return;
            }
        }
    }

    /// Returns the versions of all objects.
    fn now(&self) -> Vec<String> {
        let all = self.of.iter().flat_map(|(kind, name)| match name.as_str() {
            "" => self.objects.all_seen(kind).unwrap(),
            name => self.objects.seen(kind, name).unwrap().into_iter().collect(),
        });
        all.map(|object| object["metadata"]["resourceVersion"].to_string()).collect()
    }
}

/// A Pod that is Ready, made by a controller of this kind.
pub(crate) async fn pod(client: &Client, namespace: &str, name: &str, node: &str, controller: Option<&str>) {
    let owners = controller.map(|kind| {
        json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "0", "controller": true }])
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    // Without a grace period it ends immediately: there is no kubelet that would report its end.
    let pod = object(
        json!({ "metadata": { "name": name, "labels": { "app": namespace }, "ownerReferences": owners },
        "spec": { "nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": "registry.example/c" }] } }),
    );
    if pods.create(&PostParams::default(), &pod).await.is_ok() {
        let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
        let _ = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
    }
}

/// Ends a Pod.
pub(crate) async fn end(client: &Client, namespace: &str, name: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.delete(name, &DeleteParams::default()).await.unwrap();
}
