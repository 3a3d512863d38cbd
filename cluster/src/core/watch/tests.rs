//! Objects that a change of a named object concerns.

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
    assert_eq!(facts(&initialized), facts(&cluster("c")), "other parts of the status do not count");
    let latches = json!({ "initialization": { "controlPlaneInitialized": true } });
    initialized.status = serde_json::from_value(latches).unwrap();
    assert_ne!(facts(&initialized), facts(&cluster("c")));
    let stores = filled();
    assert_eq!(concerned::of(&cluster("c"), &stores.machines).len(), 2);
    assert!(concerned::of(&cluster("d"), &stores.machines).is_empty());
}
