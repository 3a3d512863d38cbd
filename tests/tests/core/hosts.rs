//! Stand-in for the bootstrap provider, the infrastructure provider and the kubelets of one namespace.
//!
//! Each KubeadmConfig of a Machine gets data, and each BedplateMachine of a Machine gets a host with a Node. The Nodes exist before their
//! Machines.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Result;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::site::workload;

/// User that may claim a host for a BedplateMachine (policy `bedplate-claimed-fields`).
const INFRASTRUCTURE: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";

/// The stand-in. It ends when dropped.
pub(crate) struct Hosts {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Access to the namespace as the infrastructure provider.
    objects: Objects,
    state: Mutex<State>,
    /// Changes of the state. True: the stand-in ends.
    changed: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// Names of hosts without a Machine.
    free: Vec<String>,
    /// True if BedplateMachines get no host.
    are_held: bool,
    /// UIDs of objects that are ready.
    served: BTreeSet<String>,
}

impl Hosts {
    /// Creates this number of hosts with Nodes, whose names start with that of the namespace. Serves the namespace until dropped.
    pub(crate) fn start(namespace: &'static str, number: usize) -> Self {
        let all = Kubernetes::shared().objects().unwrap().within(namespace);
        let objects = all.impersonating(INFRASTRUCTURE, &["system:masters"]);
        let free: Vec<String> =
            (0..number).rev().map(|number| format!("{namespace}-host-{number}")).collect();
        free.iter().for_each(|host| join(host));
        let state = Mutex::new(State { free, ..State::default() });
        let shared = Arc::new(Shared { objects, state, changed: watch::Sender::new(false) });
        let serving = shared.clone();
        let thread = std::thread::spawn(move || serving.serve());
        Self { shared, thread: Some(thread) }
    }

    /// Gives no host to BedplateMachines that have none, until [`Self::release`].
    pub(crate) fn hold(&self) {
        self.shared.state().are_held = true;
    }

    /// Gives hosts to all BedplateMachines.
    pub(crate) fn release(&self) {
        self.shared.state().are_held = false;
        self.shared.changed.send_replace(false);
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.shared.changed.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut changes = ["kubeadmconfig", "bpm"].map(|kind| self.objects.changes(kind).unwrap());
        let mut changed = self.changed.subscribe();
        while !*changed.borrow_and_update() {
            for kind in ["kubeadmconfig", "bpm"] {
                for object in self.objects.all_seen(kind).unwrap() {
                    self.serve_object(kind, &object);
                }
            }
            let [configs, machines] = &mut changes;
            let _ = runtime.block_on(async {
                tokio::select! {
                    end = configs.changed() => end,
                    end = machines.changed() => end,
                    end = changed.changed() => end,
                }
            });
        }
    }

    fn serve_object(&self, kind: &str, object: &Value) {
        let metadata = &object["metadata"];
        let uid = metadata["uid"].as_str().unwrap();
        let name = metadata["name"].as_str().unwrap();
        let is_of_machine = metadata["ownerReferences"]
            .as_array()
            .is_some_and(|owners| owners.iter().any(|owner| owner["kind"] == "Machine"));
        if !is_of_machine || metadata["deletionTimestamp"].is_string() || self.state().served.contains(uid) {
            return;
        }
        let served = if kind == "bpm" { self.claim(name) } else { self.write_data(name).map(|()| true) };
        match served {
            Ok(true) => drop(self.state().served.insert(uid.to_owned())),
            Ok(false) => {}
            // It is deleted meanwhile. Any other cause fails the test by its deadline.
            Err(error) => println!("stand-in: {kind} {name}: {error:#}"),
        }
    }

    /// Does what the bootstrap provider does at the end.
    fn write_data(&self, name: &str) -> Result<()> {
        let status = json!({ "dataSecretName": name, "initialization": { "dataSecretCreated": true } });
        self.objects.merge_status("kubeadmconfig", name, &status).map(drop)
    }

    /// Does what the infrastructure provider does once the host has joined. Returns false if the claimant must wait for a host.
    fn claim(&self, name: &str) -> Result<bool> {
        let host = {
            let mut state = self.state();
            if state.are_held {
                return Ok(false);
            }
            state.free.pop()
        };
        let Some(host) = host else {
            println!("stand-in: no host is free for {name}");
            return Ok(false);
        };
        let claim = json!({ "spec": { "machineName": host, "providerID": id(&host) } });
        self.objects.merge("bpm", name, &claim)?;
        let status = json!({ "initialization": { "provisioned": true },
            "addresses": [{ "type": "InternalIP", "address": "10.7.0.5" }] });
        self.objects.merge_status("bpm", name, &status)?;
        Ok(true)
    }
}

fn id(host: &str) -> String {
    format!("bedplate://{host}/claim")
}

/// Creates the Node of a host, which is ready.
fn join(host: &str) {
    let conditions = conditions("True", Timestamp::now());
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": host },
        "spec": { "providerID": id(host) }, "status": { "conditions": conditions } });
    workload().objects().unwrap().create(&node).unwrap();
}

/// Sets condition `Ready` of a Node, as if it had changed some seconds ago.
pub(crate) fn node_ready(node: &str, status: &str, seconds: i64) {
    report(node, &conditions(status, ago(seconds)));
}

/// Adds a condition of another program to those of a Node that is ready, as if it had changed some seconds ago.
pub(crate) fn node_condition(node: &str, kind: &str, status: &str, seconds: i64) {
    let mut all = conditions("True", Timestamp::now());
    all.push(condition(kind, status, ago(seconds)));
    report(node, &all);
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

fn report(node: &str, conditions: &[Value]) {
    let status = json!({ "conditions": conditions });
    workload().objects().unwrap().merge_status("node", node, &status).unwrap();
}

fn condition(kind: &str, status: &str, since: Timestamp) -> Value {
    let time = since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "type": kind, "status": status, "reason": "Simulated", "message": "",
        "lastHeartbeatTime": time, "lastTransitionTime": time })
}

fn conditions(ready: &str, since: Timestamp) -> Vec<Value> {
    let pressures = ["MemoryPressure", "DiskPressure", "PIDPressure"];
    let pressures = pressures.map(|kind| condition(kind, "False", since));
    pressures.into_iter().chain([condition("Ready", ready, since)]).collect()
}
