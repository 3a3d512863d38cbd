//! Copies of a Machine on its Node: labels, annotations and taints.

use std::sync::Arc;

use bedplate_api::cluster::full::{MachineDeployment, MachineSet};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use super::*;
use crate::core::machine::fixture::{change, node as found_node, object, running, settle};
use crate::core::machine::references::Part;
use crate::core::reference::Lookup;

fn node_of(world: &Observed) -> &Node {
    found(world).unwrap()
}

fn taints_of(world: &Observed) -> Vec<String> {
    let taints = node_of(world).spec.as_ref().unwrap().taints.clone().unwrap_or_default();
    let shown = |taint: &Taint| {
        format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect)
    };
    taints.iter().map(shown).collect()
}

fn edit_node(world: &mut Observed, change: &Value) {
    let mut value = serde_json::to_value(node_of(world)).unwrap();
    crate::core::machine::fixture::merge(&mut value, change);
    world.workload.node = NodeView::Found(Arc::new(object(value)));
}

#[test]
fn m8_labels_and_annotations_of_managed_domains_are_copied() {
    let world = running(&json!({ "metadata": {
        "labels": { "node.cluster.x-k8s.io/a": "1", "x.node.cluster.x-k8s.io/b": "2", "node-role.kubernetes.io/worker": "",
            "node-restriction.kubernetes.io/c": "3", "xnode.cluster.x-k8s.io/d": "4", "e": "5" },
        "annotations": { "node.cluster.x-k8s.io/f": "6", "g": "7" },
        "ownerReferences": [{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "s", "uid": "u-s", "controller": true }] } }));
    let node = node_of(&world);
    let labels: Vec<&str> = node.labels().keys().map(String::as_str).collect();
    let expected = [
        "kubernetes.io/hostname",
        "node-restriction.kubernetes.io/c",
        "node-role.kubernetes.io/worker",
        "node.cluster.x-k8s.io/a",
        "x.node.cluster.x-k8s.io/b",
    ];
    assert_eq!(labels, expected);
    let annotation = |key: &str| node.annotations().get(key).map(String::as_str);
    assert_eq!(annotation("cluster.x-k8s.io/labels-from-machine"), Some(expected[1..].join(",").as_str()));
    assert_eq!(annotation("cluster.x-k8s.io/annotations-from-machine"), Some("node.cluster.x-k8s.io/f"));
    assert_eq!(annotation("cluster.x-k8s.io/taints-from-machine"), Some(""));
    let common = ["cluster-name", "cluster-namespace", "machine", "owner-kind", "owner-name"];
    let common = common.map(|key| annotation(&format!("cluster.x-k8s.io/{key}")).unwrap());
    assert_eq!(common, ["c", "team-a", "m", "MachineSet", "s"]);
    assert_eq!(annotation("g"), None);
}

#[test]
fn m8_removed_label_is_removed_from_the_node_and_others_stay() {
    let mut world = running(&json!({ "metadata": { "labels": { "node.cluster.x-k8s.io/a": "1" },
        "annotations": { "node.cluster.x-k8s.io/b": "1" } } }));
    edit_node(&mut world, &json!({ "metadata": { "labels": { "node.cluster.x-k8s.io/other": "" } } }));
    change(
        &mut world,
        &json!({ "metadata": { "labels": { "node.cluster.x-k8s.io/a": null },
        "annotations": { "node.cluster.x-k8s.io/b": null } } }),
    );
    let patch = sync(&world).unwrap();
    assert_eq!(patch.labels, BTreeMap::from([("node.cluster.x-k8s.io/a".to_owned(), None)]));
    assert_eq!(patch.annotations["node.cluster.x-k8s.io/b"], None);
    assert_eq!((patch.name.as_str(), patch.resource_version.as_deref()), ("n", Some("7")));
    settle(&mut world);
    assert!(node_of(&world).labels().contains_key("node.cluster.x-k8s.io/other"));
}

#[test]
fn m8_edited_record_removes_no_label_of_another_domain() {
    let mut world = running(&json!({}));
    edit_node(
        &mut world,
        &json!({ "metadata": { "annotations": {
        "cluster.x-k8s.io/labels-from-machine": "kubernetes.io/hostname,node.cluster.x-k8s.io/gone",
        "cluster.x-k8s.io/annotations-from-machine": "cluster.x-k8s.io/machine,volumes.kubernetes.io/controller-managed-attach-detach",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true" } } }),
    );
    let patch = sync(&world).unwrap();
    assert!(patch.labels.is_empty() && patch.annotations.values().all(Option::is_some), "{patch:?}");
    settle(&mut world);
    assert_eq!(node_of(&world).labels()["kubernetes.io/hostname"], "n");
}

#[test]
fn m8_uninitialized_taint_is_removed_with_the_first_copy() {
    let world = running(&json!({}));
    assert_eq!(taints_of(&world), ["other=:NoExecute"]);
}

#[test]
fn taints_of_the_machine_are_set_and_removed() {
    let always =
        |value: &str| json!({ "key": "a", "value": value, "effect": "NoSchedule", "propagation": "Always" });
    let once = json!({ "key": "b", "effect": "NoExecute", "propagation": "OnInitialization" });
    let mut world = running(&json!({ "spec": { "taints": [always("1"), once] } }));
    assert_eq!(taints_of(&world), ["other=:NoExecute", "a=1:NoSchedule", "b=:NoExecute"]);
    change(&mut world, &json!({ "spec": { "taints": [always("2"), once] } }));
    edit_node(
        &mut world,
        &json!({ "spec": { "taints": [{ "key": "a", "value": "1", "effect": "NoSchedule" }] } }),
    );
    settle(&mut world);
    assert_eq!(taints_of(&world), ["a=2:NoSchedule"], "the taint of the initialization is not set again");
    change(&mut world, &json!({ "spec": { "taints": null } }));
    settle(&mut world);
    assert_eq!(taints_of(&world), [""; 0]);
}

#[test]
fn taint_of_a_later_version_and_an_edited_record_do_no_harm() {
    let later = json!([{ "key": "a", "effect": "Later", "propagation": "Always" },
        { "key": "b", "effect": "NoSchedule", "propagation": "Later" }]);
    let mut world = running(&json!({ "spec": { "taints": later } }));
    assert_eq!(taints_of(&world), ["other=:NoExecute"]);
    edit_node(
        &mut world,
        &json!({ "metadata": { "annotations": { "cluster.x-k8s.io/taints-from-machine": "x,a:b:c,:" } } }),
    );
    settle(&mut world);
    assert_eq!(taints_of(&world), ["other=:NoExecute"]);
}

#[test]
fn node_of_an_outdated_set_has_a_taint() {
    let revision = |kind: &str, number: &str| {
        json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
            "metadata": { "name": "s", "annotations": { "machinedeployment.clusters.x-k8s.io/revision": number } },
            "spec": { "clusterName": "c", "selector": {}, "template": { "spec": { "clusterName": "c", "bootstrap": {},
                "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "n" } } } } })
    };
    let mut world = running(&json!({}));
    let outdated = "node.cluster.x-k8s.io/outdated-revision=:PreferNoSchedule";
    for (set, deployment, is_outdated) in [("1", "2", true), ("2", "2", false), ("1", "x", false)] {
        world.set = Some(Arc::new(object::<MachineSet>(revision("MachineSet", set))));
        world.deployment =
            Some(Arc::new(object::<MachineDeployment>(revision("MachineDeployment", deployment))));
        settle(&mut world);
        assert_eq!(taints_of(&world).contains(&outdated.to_owned()), is_outdated, "{set} {deployment}");
    }
}

#[test]
fn interruptible_infrastructure_gives_a_label() {
    let mut world = running(&json!({}));
    let key = "cluster.x-k8s.io/interruptible";
    for is_interruptible in [true, false] {
        let Lookup::Found(infrastructure) = &mut world.infrastructure else { panic!() };
        Arc::make_mut(infrastructure).contract.interruptible = is_interruptible;
        settle(&mut world);
        assert_eq!(node_of(&world).labels().contains_key(key), is_interruptible);
    }
    edit_node(&mut world, &json!({ "metadata": { "labels": { "a": "b" } } }));
    world.infrastructure = Lookup::NotSynced;
    change(&mut world, &json!({ "metadata": { "labels": { "node.cluster.x-k8s.io/a": "1" } } }));
    assert_eq!(sync(&world), None, "it is not known whether the machine is interruptible");
    assert!(Part::Infrastructure.lookup(&world).unknown("K").is_some());
}

#[test]
fn node_that_is_deleted_is_not_written() {
    let mut world = running(&json!({}));
    world.workload.node = found_node(&json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    assert_eq!(sync(&world), None);
}
