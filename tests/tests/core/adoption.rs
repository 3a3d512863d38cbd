//! Adoption of Machines by MachineSets (MS3), and of objects by Machines, if the API server refuses it (M5, M9).

use bedplate_tests::kubernetes::Objects;
use serde_json::{Value, json};

use super::site::{PATIENCE, condition};
use super::workers::{Workers, controller, uids};

const SET: &str = "machineset";

fn selecting_tier_a() -> Value {
    json!({ "spec": { "selector": { "matchLabels": { "tier": "a" } }, "template": { "metadata": { "labels": { "tier": "a" } } } } })
}

#[test]
fn ms3_orphan_is_adopted_and_machines_of_others_are_left() {
    let workers = Workers::new("ms-orphans", 4);
    let orphan = workers.machine("orphan", &json!({ "labels": { "tier": "a" } }));
    let owner = json!({ "apiVersion": "example.com/v1", "kind": "Other", "name": "o", "controller": true,
        "uid": "3c9c1a62-50bd-4a1c-8e0c-0d3e0a8a2a11" });
    let other = workers.machine("other", &json!({ "labels": { "tier": "a" }, "ownerReferences": [owner] }));
    workers.set("w", 1, &selecting_tier_a());
    workers.until(("clustermachine", "orphan"), "its set", |machine| {
        controller(machine) == Some(("MachineSet", "w"))
    });
    let adopted = workers.until_machines("w", "the orphan", |machines| machines.len() == 1);
    workers.until_complete((SET, "w"), 1);
    assert_eq!(uids(&adopted), uids([&orphan]), "no Machine is made in addition to the orphan");
    assert_eq!(uids(&workers.machines("w")), uids([&orphan]));
    let other_now = workers.get("clustermachine", "other");
    assert_eq!(other_now["metadata"]["uid"], other["metadata"]["uid"]);
    assert_eq!(controller(&other_now), Some(("Other", "o")));
}

#[test]
fn ms3_refused_adoption_does_not_stop_the_set() {
    let workers = Workers::new("ms-refused", 4);
    workers.machine("orphan", &json!({ "labels": { "tier": "a" } }));
    let machines = json!({ "apiGroups": ["cluster.x-k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["machines"] });
    let is_adoption = "!object.metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'MachineSet') || object.metadata.name != 'orphan'";
    let adopt = |objects: &Objects| {
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "probe",
            "uid": "3c9c1a62-50bd-4a1c-8e0c-0d3e0a8a2a12" });
        objects.try_merge("clustermachine", "orphan", &json!({ "metadata": { "ownerReferences": [owner] } }))
    };
    let refusal = workers.refuse(&machines, is_adoption, adopt);
    workers.set("w", 1, &selecting_tier_a());
    workers.until_complete((SET, "w"), 1);
    let made = workers.machines("w");
    assert_ne!(made[0]["metadata"]["name"], "orphan");
    assert_eq!(controller(&workers.get("clustermachine", "orphan")), None);
    workers.until_event("Warning", "the test refuses it");
    // Once it is permitted, the set adopts the Machine, and has one too many.
    refusal.end(adopt);
    workers
        .merge((SET, "w"), &json!({ "metadata": { "annotations": { "tests.bedplate.dev/touched": "" } } }));
    let is_ours = |machines: &[&Value]| {
        (machines.len() == 1 && controller(machines[0]) == Some(("MachineSet", "w"))).then_some(())
    };
    workers.objects.until_among("clustermachine", PATIENCE, is_ours).unwrap();
    workers.until_complete((SET, "w"), 1);
}

/// A policy of the operator forbids changes and deletions of hosts. The Machine says so, and continues once they are permitted.
#[test]
fn m5_refused_adoption_and_m9_refused_deletion_are_shown() {
    let workers = Workers::new("m-refused", 1);
    let probe = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine",
        "metadata": { "name": "probe" }, "spec": { "configurationRef": { "name": "workers" } } });
    workers.objects.create(&probe).unwrap();
    let hosts = json!({ "apiGroups": ["infrastructure.cluster.x-k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE", "DELETE"],
        "resources": ["bedplatemachines"] });
    let expression = "request.operation == 'UPDATE' && !object.metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'Machine')";
    let delete = |objects: &Objects| objects.can_delete("bpm", "probe");
    let refusal = workers.refuse(&hosts, expression, delete);
    workers.machine("m", &json!({}));
    let shows = |type_: &'static str, start: &'static str| {
        move |machine: &Value| {
            let message = condition(machine, type_).2;
            message.starts_with(start) && message.contains("the test refuses it")
        }
    };
    let machine = ("clustermachine", "m");
    let found = workers.until(
        machine,
        "the refused adoption",
        shows("InfrastructureReady", "BedplateMachine m cannot be adopted: "),
    );
    let shown = condition(&found, "InfrastructureReady");
    assert_eq!((shown.0, shown.1), ("Unknown", "InternalError"), "{found:#}");
    workers.objects.begin_delete("clustermachine", "m").unwrap();
    let found = workers.until(
        machine,
        "the refused deletion",
        shows("Deleting", "BedplateMachine m cannot be deleted: "),
    );
    let shown = condition(&found, "Deleting");
    assert_eq!((shown.0, shown.1), ("True", "WaitingForInfrastructureDeletion"), "{found:#}");
    refusal.end(delete);
    // The next try follows up to 5 minutes later. Any change of the Machine starts it.
    workers.merge(machine, &json!({ "metadata": { "annotations": { "test.example/permitted": "" } } }));
    workers.until_gone(machine);
    assert_eq!(workers.objects.get("bpm", "m").unwrap(), None);
}
