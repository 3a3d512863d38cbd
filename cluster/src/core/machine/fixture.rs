//! A Machine with its objects, and a stand-in for the writes of the controller. Called by the tests of Machines.

use std::sync::Arc;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Cluster, Machine};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::data::DataSecret;
use super::node::{Connection, NodePatch, NodeView, Workload};
use super::plan::{Act, Observed, Plan, plan};
use super::references::Part;
use crate::core::reference::Lookup;

/// ID of the machine.
pub(crate) const ID: &str = "bedplate://host/u-i";

pub(crate) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Puts the fields of a map into another one, in depth. Null removes a field.
pub(crate) fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, change) => *into = change.clone(),
    }
}

pub(crate) fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// A Machine of a KubeadmConfig and a BedplateMachine, before any write.
pub(crate) fn machine(change: &Value) -> Machine {
    let mut value = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": { "name": "m", "namespace": "team-a", "uid": "u-m", "generation": 3, "resourceVersion": "1" },
        "spec": { "clusterName": "c", "version": "v1.34.4",
            "bootstrap": { "configRef": { "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": "b" } },
            "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": "i" } } });
    merge(&mut value, change);
    object(value)
}

/// An initialized Cluster with a KubeadmControlPlane.
pub(crate) fn cluster(change: &Value) -> Arc<Cluster> {
    let mut value = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "name": "c", "namespace": "team-a", "uid": "u-c" },
        "spec": { "controlPlaneRef": { "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "k" } },
        "status": { "initialization": { "infrastructureProvisioned": true, "controlPlaneInitialized": true },
            "conditions": [{ "type": "ControlPlaneInitialized", "status": "True", "reason": "Initialized", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
    merge(&mut value, change);
    Arc::new(object(value))
}

/// A referenced object with a UID of its name.
pub(crate) fn referenced(name: &str, change: &Value) -> Lookup {
    let mut value =
        json!({ "metadata": { "name": name, "namespace": "team-a", "uid": format!("u-{name}") } });
    merge(&mut value, change);
    Lookup::Found(Arc::new(object::<Referenced>(value)))
}

/// A bootstrap object whose Secret exists.
pub(crate) fn created() -> Lookup {
    referenced(
        "b",
        &json!({ "status": { "dataSecretName": "s", "initialization": { "dataSecretCreated": true } } }),
    )
}

/// An infrastructure object that is provisioned.
pub(crate) fn provisioned() -> Lookup {
    referenced(
        "i",
        &json!({ "spec": { "providerID": ID }, "status": { "initialization": { "provisioned": true },
        "failureDomain": "z-1", "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] } }),
    )
}

/// A Node that is ready, with its taint of kubeadm.
pub(crate) fn node(change: &Value) -> NodeView {
    let pressure = |type_: &str| json!({ "type": type_, "status": "False" });
    let mut value = json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n", "uid": "u-n", "resourceVersion": "7", "labels": { "kubernetes.io/hostname": "n" } },
        "spec": { "providerID": ID, "taints": [
            { "key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule" }, { "key": "other", "effect": "NoExecute" }] },
        "status": { "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:30:00Z" },
            pressure("MemoryPressure"), pressure("DiskPressure"), pressure("PIDPressure")],
            "nodeInfo": { "architecture": "amd64", "bootID": "x", "containerRuntimeVersion": "x", "kernelVersion": "6.12",
                "kubeProxyVersion": "", "kubeletVersion": "v1.34.4", "machineID": "x", "operatingSystem": "linux",
                "osImage": "x", "systemUUID": "x" } } });
    merge(&mut value, change);
    NodeView::Found(Arc::new(object::<Node>(value)))
}

/// The Machine with all of its objects, before any write.
pub(crate) fn observed(change: &Value) -> Observed {
    let connection = Connection { last_success: Some(now()), is_lost: false };
    Observed {
        machine: Arc::new(machine(change)),
        cluster: Some(cluster(&json!({}))),
        bootstrap: created(),
        infrastructure: provisioned(),
        data_secret: DataSecret::Absent,
        workload: Workload { connection, node: node(&json!({})) },
        set: None,
        deployment: None,
        refused: None,
        now: now(),
    }
}

/// The Machine after all writes. Its Node is ready.
pub(crate) fn running(change: &Value) -> Observed {
    let mut world = observed(change);
    settle(&mut world);
    world
}

impl Plan {
    /// Returns true if nothing is written.
    pub(crate) fn is_settled(&self) -> bool {
        self.act.is_none() && self.status.is_none()
    }
}

/// Carries out plans until nothing is written. Returns the acts.
pub(crate) fn settle(world: &mut Observed) -> Vec<Act> {
    let mut acts = Vec::new();
    for _ in 0..20 {
        let next = plan(world);
        if next.is_settled() {
            return acts;
        }
        apply(world, &next);
        acts.extend(next.act);
    }
    panic!("plans do not end: {acts:?}");
}

/// Carries out a plan as the controller does.
pub(crate) fn apply(world: &mut Observed, next: &Plan) {
    if let Some(act) = &next.act {
        write(world, act);
    } else if let Some(status) = &next.status {
        Arc::make_mut(&mut world.machine).status = Some((**status).clone());
    }
}

/// Carries out an act.
pub(crate) fn write(world: &mut Observed, act: &Act) {
    let machine = Arc::make_mut(&mut world.machine);
    match act {
        Act::SetMetadata(change) => {
            if let Some(finalizers) = &change.finalizers {
                machine.metadata.finalizers = Some(finalizers.clone());
            }
            if let Some(owners) = &change.owner_references {
                machine.metadata.owner_references = Some(owners.clone());
            }
            let name = change.cluster_name.clone();
            machine.labels_mut().extend(name.map(|name| ("cluster.x-k8s.io/cluster-name".to_owned(), name)));
        }
        Act::Adopt(adoption) => {
            let lookup = match adoption.part {
                Part::Bootstrap => &mut world.bootstrap,
                Part::Infrastructure => &mut world.infrastructure,
            };
            let Lookup::Found(object) = lookup else { panic!("adopted object is missing") };
            let object = Arc::make_mut(object);
            object.metadata.owner_references = Some(adoption.owner_references.clone());
            let label = ("cluster.x-k8s.io/cluster-name".to_owned(), adoption.cluster_name.clone());
            object.labels_mut().extend([label]);
        }
        Act::WriteDataSecret(_) => world.data_secret = DataSecret::Own { is_current: true },
        Act::SetSpec(change) => {
            let spec = &mut machine.spec;
            let name = change.data_secret_name.clone();
            spec.bootstrap.data_secret_name = name.or(spec.bootstrap.data_secret_name.take());
            spec.provider_id = change.provider_id.clone().or(spec.provider_id.take());
            spec.failure_domain = change.failure_domain.clone().or(spec.failure_domain.take());
        }
        Act::SyncNode(patch) => {
            let NodeView::Found(node) = &mut world.workload.node else { panic!("patched Node is missing") };
            patch_node(Arc::make_mut(node), patch);
        }
    }
}

fn patch_node(node: &mut Node, patch: &NodePatch) {
    for (key, value) in &patch.labels {
        match value {
            Some(value) => node.labels_mut().insert(key.clone(), value.clone()),
            None => node.labels_mut().remove(key),
        };
    }
    for (key, value) in &patch.annotations {
        match value {
            Some(value) => node.annotations_mut().insert(key.clone(), value.clone()),
            None => node.annotations_mut().remove(key),
        };
    }
    if let (Some(taints), Some(spec)) = (&patch.taints, &mut node.spec) {
        spec.taints = Some(taints.clone());
    }
}

/// Returns status, reason and message of a condition of the status that a plan would leave.
pub(crate) fn shown(world: &Observed, type_: &str) -> (String, String, String) {
    let next = plan(world).status.map(|status| *status).or_else(|| world.machine.status.clone());
    let conditions = next.unwrap_or_default().conditions;
    let found = conditions.into_iter().find(|condition| condition.type_ == type_);
    found.map_or_else(Default::default, |condition| (condition.status, condition.reason, condition.message))
}

/// Returns the Machine with a change of its JSON.
pub(crate) fn change(world: &mut Observed, change: &Value) {
    let mut value = serde_json::to_value(&*world.machine).unwrap();
    merge(&mut value, change);
    world.machine = Arc::new(object(value));
}
