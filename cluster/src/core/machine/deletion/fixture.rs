//! Objects of the tests of the deletion.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Cluster, Machine, MachineDrainRule};
use bedplate_rules::drain::Pod;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{NodeAnswer, NodeState, Observed, PodsView, Target, Treatment, VolumesView};
use crate::core::reference::Lookup;

/// Time at which the Machine was deleted.
pub(super) const DELETED: &str = "2026-01-01T00:00:00Z";

/// A time after the deletion.
pub(super) fn at(seconds: i64) -> Timestamp {
    DELETED.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// A Machine of a worker that is being deleted, with changes.
pub(super) fn machine(change: impl FnOnce(&mut Value)) -> Arc<Machine> {
    let mut object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": { "namespace": "n", "name": "m", "uid": "m-uid", "deletionTimestamp": DELETED,
            "finalizers": ["machine.cluster.x-k8s.io"], "labels": { "pool": "a" }, "annotations": {} },
        "spec": { "clusterName": "c", "providerID": "p://1",
            "bootstrap": { "configRef": { "apiGroup": "b.x", "kind": "KubeadmConfig", "name": "boot" } },
            "infrastructureRef": { "apiGroup": "i.x", "kind": "BedplateMachine", "name": "infra" } },
        "status": { "nodeRef": { "name": "node" } },
    });
    change(&mut object);
    Arc::new(serde_json::from_value(object).unwrap())
}

/// A Cluster, with changes.
pub(super) fn cluster(change: impl FnOnce(&mut Value)) -> Arc<Cluster> {
    let mut object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "namespace": "n", "name": "c", "labels": { "zone": "z" } }, "spec": {},
    });
    change(&mut object);
    Arc::new(serde_json::from_value(object).unwrap())
}

/// An object that a Machine names.
pub(super) fn referenced(name: &str, is_deleting: bool) -> Lookup {
    let mut object = json!({ "metadata": { "name": name, "uid": format!("{name}-uid") } });
    if is_deleting {
        object["metadata"]["deletionTimestamp"] = json!(DELETED);
    }
    let object: Referenced = serde_json::from_value(object).unwrap();
    Lookup::Found(Arc::new(object))
}

/// The Node of the Machine.
pub(super) fn node() -> NodeState {
    let text = str::to_owned;
    NodeState {
        name: text("node"),
        uid: text("node-uid"),
        provider_id: Some(text("p://1")),
        ..NodeState::default()
    }
}

/// A Node as it was read.
pub(super) fn found(node: NodeState) -> Option<Result<NodeAnswer, String>> {
    Some(Ok(NodeAnswer::Found(node)))
}

/// A Machine with all its objects. Its Node is cordoned, and has neither Pods nor volumes.
pub(super) fn observed() -> Observed {
    Observed {
        machine: machine(|_| {}),
        cluster: Some(cluster(|_| {})),
        is_paused: false,
        control_plane: None,
        active_control_plane_machines: 1,
        infrastructure: referenced("infra", false),
        bootstrap: Some(referenced("boot", false)),
        node: found(NodeState { is_unschedulable: true, ..node() }),
        pods: Some(Ok(PodsView::default())),
        volumes: Some(Ok(VolumesView::default())),
        holds: BTreeMap::new(),
        node_failure: None,
    }
}

/// Sets the recorded start of the drain.
pub(super) fn draining(object: &mut Value) {
    object["status"]["deletion"] = json!({ "nodeDrainStartTime": DELETED });
}

/// Sets the recorded start of drain and wait for volumes.
pub(super) fn detaching(object: &mut Value) {
    object["status"]["deletion"] =
        json!({ "nodeDrainStartTime": DELETED, "waitForNodeVolumeDetachStartTime": DELETED });
}

/// A Machine with all its objects whose drain has started.
pub(super) fn in_drain() -> Observed {
    Observed { machine: machine(draining), ..observed() }
}

/// A Pod that is evicted.
pub(super) fn target(name: &str) -> Target {
    let pod = Pod { namespace: "n".into(), name: name.into(), uid: format!("{name}-uid"), ..Pod::default() };
    Target { pod, order: 0, treatment: Treatment::Evict }
}

/// Pods of a Node.
pub(super) fn view(targets: Vec<Target>) -> Option<Result<PodsView, String>> {
    Some(Ok(PodsView { targets, ..PodsView::default() }))
}

/// A rule for Pods.
pub(super) fn rule(name: &str, spec: &Value) -> Arc<MachineDrainRule> {
    let object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
        "metadata": { "namespace": "n", "name": name }, "spec": spec });
    Arc::new(serde_json::from_value(object).unwrap())
}
