//! Objects that a change of a named object concerns.

use kube::runtime::watcher;
use serde_json::{Value, json};

use super::*;

fn reference(name: &str) -> Value {
    json!({ "apiGroup": "i.x", "kind": "HostMachine", "name": name })
}

fn machine(name: &str) -> Machine {
    serde_json::from_value(json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": { "namespace": "ns", "name": name }, "spec": { "clusterName": "c", "infrastructureRef": reference(name) } }))
    .unwrap()
}

fn object(name: &str, owner: Option<&str>) -> Referenced {
    let owners: Vec<Value> = owner
        .map(|name| json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name, "uid": "u" }))
        .into_iter()
        .collect();
    serde_json::from_value(
        json!({ "metadata": { "namespace": "ns", "name": name, "ownerReferences": owners } }),
    )
    .unwrap()
}

fn filled() -> Stores {
    let (stores, mut writers) = stores();
    for name in ["a", "b"] {
        writers.machines.apply_watcher_event(&watcher::Event::Apply(machine(name)));
    }
    stores
}

fn machines(concerned: &Concerned) -> Vec<String> {
    concerned.machines.iter().map(|machine| machine.name.clone()).collect()
}

#[test]
fn m5_object_queues_its_owner_and_no_other_machine() {
    let (stores, kind) = (filled(), GroupKind::new("i.x", "HostMachine"));
    let owned = object("a", Some("a"));
    assert!(is_of_machine(&owned) && !is_of_machine(&object("a", None)));
    assert_eq!(machines(&Concerned::owners(&kind, &owned, &stores)), ["a"]);
    let other = GroupKind::new("i.x", "Other");
    assert_eq!(machines(&Concerned::owners(&other, &owned, &stores)), [""; 0], "it does not name this kind");
}

#[test]
fn m5_object_without_an_owner_queues_the_machine_that_names_it() {
    let (stores, kind) = (filled(), GroupKind::new("i.x", "HostMachine"));
    let users: Vec<User> = ["a", "b"].map(|name| User::of(&machine(name))).into();
    assert_eq!(machines(&Concerned::by_object(&users, &kind, &object("b", None), &stores)), ["b"]);
    assert_eq!(machines(&Concerned::by_kind(&users)), ["a", "b"]);
}

#[test]
fn m1_only_facts_for_machines_of_a_cluster_queue_its_machines() {
    let cluster = |name: &str| -> Cluster {
        serde_json::from_value(json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": { "namespace": "ns", "name": name }, "spec": {} }))
        .unwrap()
    };
    let mut initialized = cluster("c");
    initialized.status = serde_json::from_value(json!({ "phase": "Provisioned" })).unwrap();
    assert_eq!(facts_of(&initialized), facts_of(&cluster("c")), "other parts of the status do not count");
    let latches = json!({ "initialization": { "controlPlaneInitialized": true } });
    initialized.status = serde_json::from_value(latches).unwrap();
    assert_ne!(facts_of(&initialized), facts_of(&cluster("c")));
    let stores = filled();
    assert_eq!(concerned::of(&cluster("c"), &stores.machines).len(), 2);
    assert!(concerned::of(&cluster("d"), &stores.machines).is_empty());
}

/// A deployment with a set and its Machine, and another set.
fn rollout(version: &str, change: &Value) -> (Stores, MachineDeployment) {
    let (stores, mut writers) = stores();
    let owner = |kind: &str, uid: &str| json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": uid, "uid": uid, "controller": true }]);
    let template =
        json!({ "spec": { "clusterName": "c", "version": version, "infrastructureRef": reference("t") } });
    let spec = json!({ "clusterName": "c", "selector": {}, "template": template });
    let mut deployment = json!({ "metadata": { "namespace": "ns", "name": "d", "uid": "d" }, "spec": spec });
    for (field, value) in change.as_object().unwrap() {
        deployment[field] = value.clone();
    }
    for (name, by) in [("own", "d"), ("other", "x")] {
        let set = json!({ "metadata": { "namespace": "ns", "name": name, "uid": name, "ownerReferences": owner("MachineDeployment", by) }, "spec": spec });
        writers.sets.apply_watcher_event(&watcher::Event::Apply(serde_json::from_value(set).unwrap()));
        let mut machine = machine(&format!("m-{name}"));
        machine.metadata.owner_references = serde_json::from_value(owner("MachineSet", name)).unwrap();
        writers.machines.apply_watcher_event(&watcher::Event::Apply(machine));
    }
    (stores, serde_json::from_value(deployment).unwrap())
}

#[test]
fn md1_changed_template_queues_the_machines_of_its_sets() {
    let mut facts = Facts::default();
    let mut is_changed = |(_, deployment): &(Stores, MachineDeployment)| {
        facts.changes(&Seen::There(Arc::new(deployment.clone())), of_deployment)
    };
    let first = rollout("v1.34.0", &json!({}));
    assert!(is_changed(&first));
    let names = |machines: Vec<ObjectRef<Machine>>| -> Vec<String> {
        machines.into_iter().map(|machine| machine.name).collect()
    };
    assert_eq!(names(machines_of_deployment(&first.1, &first.0)), ["m-own"]);
    let set = first.0.sets.state().into_iter().find(|set| set.metadata.name.as_deref() == Some("other"));
    assert_eq!(names(machines_of_sets(&[&set.unwrap()], &first.0)), ["m-other"]);
    assert!(
        !is_changed(&rollout("v1.34.0", &json!({ "status": { "replicas": 3 } }))),
        "a status does not count"
    );
    assert!(is_changed(&rollout("v1.35.0", &json!({}))));
    let annotations = json!({ "machinedeployment.clusters.x-k8s.io/revision": "2" });
    let revised =
        json!({ "metadata": { "namespace": "ns", "name": "d", "uid": "d", "annotations": annotations } });
    assert!(is_changed(&rollout("v1.35.0", &revised)));
    assert!(!is_changed(&rollout("v1.35.0", &revised)));
}
