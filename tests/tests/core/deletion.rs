//! Deletion of Machines and Clusters (M9, K5). The test stands in for the providers, so each step lasts until it has ended it.

use serde_json::{Value, json};

use super::doomed::{annotate, begin, disconnect, hold, is_alive, poke, release, running, until, until_gone};
use super::kubelet::Kubelet;
use super::owned::{CONTROL_PLANE, MACHINE, Owned, from_config, nodes, owner, reference};
use super::site::{Site, condition};

const PRE_DRAIN: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup";
const PRE_TERMINATE: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/storage";
const PAUSED: &str = "cluster.x-k8s.io/paused";

fn is_cordoned(owned: &Owned) -> bool {
    let node = nodes().get("node", &owned.node("m")).unwrap().expect("a Node");
    node["spec"]["unschedulable"] == true
}

#[test]
fn m9_pre_drain_hook_holds_the_deletion_before_the_cordon() {
    let owned = running("m9-hook");
    annotate(&owned, "m", PRE_DRAIN, json!("backup-operator"));
    begin(&owned, "m");
    let text = format!("annotations block the deletion: {PRE_DRAIN} (owner backup-operator)");
    let found = until(&owned, "WaitingForPreDrainHook", &text);
    assert_eq!(found["status"]["phase"], "Deleting");
    let shown = owned.kubectl(&["get", "machines.cluster.x-k8s.io", "m", "--no-headers"]);
    assert!(shown.contains("Deleting"), "{shown}");
    assert!(!is_cordoned(&owned) && is_alive(&owned, "bpm", "m"));
    annotate(&owned, "m", PRE_DRAIN, Value::Null);
    until_gone(&owned, "m");
}

#[test]
fn m9_pre_terminate_hook_holds_the_host_of_a_drained_node() {
    let owned = running("m9-hooked");
    let kubelet = Kubelet::of(&owned.node("m"));
    kubelet.pod("web");
    hold(&owned, "bpm", "m");
    annotate(&owned, "m", PRE_TERMINATE, json!(""));
    begin(&owned, "m");
    kubelet.until_leaving("web");
    let found = until(&owned, "DrainingNode", ": Pods m9-hooked-m/web are being deleted");
    assert!(found["status"]["deletion"]["nodeDrainStartTime"].is_string(), "{found:#}");
    assert!(is_cordoned(&owned));
    kubelet.end("web");
    poke(&owned, "m");
    let found = until(&owned, "WaitingForPreTerminateHook", PRE_TERMINATE);
    assert!(is_alive(&owned, "bpm", "m"));
    assert_eq!((condition(&found, "Ready").0, &found["status"]["phase"]), ("False", &json!("Deleting")));
    annotate(&owned, "m", PRE_TERMINATE, Value::Null);
    until(&owned, "WaitingForInfrastructureDeletion", "BedplateMachine m is being deleted");
    release(&owned, "bpm", "m");
    until_gone(&owned, "m");
}

#[test]
fn m9_infrastructure_goes_then_config_then_node_then_machine() {
    let owned = running("m9-order");
    hold(&owned, "bpm", "m");
    hold(&owned, "kubeadmconfig", "m");
    begin(&owned, "m");
    until(&owned, "WaitingForInfrastructureDeletion", "BedplateMachine m is being deleted");
    assert!(is_alive(&owned, "kubeadmconfig", "m"));
    release(&owned, "bpm", "m");
    let found = until(&owned, "WaitingForBootstrapDeletion", "KubeadmConfig m is being deleted");
    let expected = ("False", "ObjectDeleted", "BedplateMachine m was deleted");
    assert_eq!(condition(&found, "InfrastructureReady"), expected);
    assert!(nodes().get("node", &owned.node("m")).unwrap().is_some(), "the Node is last");
    release(&owned, "kubeadmconfig", "m");
    until_gone(&owned, "m");
    assert_eq!(nodes().get("node", &owned.node("m")).unwrap(), None);
}

#[test]
fn m9_machine_goes_if_its_parts_are_gone_already() {
    let owned = running("m9-gone");
    owned.objects.delete("bpm", "m").unwrap();
    owned.objects.delete("kubeadmconfig", "m").unwrap();
    nodes().delete("node", &owned.node("m")).unwrap();
    begin(&owned, "m");
    until_gone(&owned, "m");
}

#[test]
fn m9_machine_that_never_had_a_host_is_deleted() {
    let owned = Owned::initialized("m9-early");
    owned.bare_machine("nothing", &json!({ "data": "" }), &json!({}));
    owned.config("m");
    owned.machine("m", &from_config("m"), &json!({}));
    owned.until("bpm", "m", "its owner", |found| owner(found, "Machine").is_some());
    owned.until_phase("nothing", "Provisioning");
    begin(&owned, "nothing");
    begin(&owned, "m");
    until_gone(&owned, "nothing");
    until_gone(&owned, "m");
    assert_eq!(owned.objects.get("kubeadmconfig", "m").unwrap(), None);
    assert_eq!(owned.objects.get("bpm", "m").unwrap(), None);
}

#[test]
fn m9_object_that_was_never_adopted_is_deleted_with_its_machine() {
    let owned = running("m9-free");
    annotate(&owned, "m", PAUSED, json!(""));
    owned.until_condition((MACHINE, "m"), "Paused", ["True", "Paused", ""]);
    owned.objects.merge("bpm", "m", &json!({ "metadata": { "ownerReferences": null } })).unwrap();
    begin(&owned, "m");
    annotate(&owned, "m", PAUSED, Value::Null);
    until_gone(&owned, "m");
    assert_eq!(owned.objects.get("bpm", "m").unwrap(), None);
}

/// An object of an unknown kind may exist: its host would be left running.
#[test]
fn m9_kind_that_cannot_be_read_holds_the_deletion_and_is_named() {
    let owned = Owned::provisioned("m9-unknown");
    let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "m" },
        "spec": { "clusterName": "m9-unknown", "bootstrap": { "data": "" },
            "infrastructureRef": reference("infrastructure", "CrateMachine", "m") } });
    owned.create_machine(&machine).unwrap();
    owned.until_phase("m", "Provisioning");
    begin(&owned, "m");
    let text = "CrateMachine m cannot be read: CustomResourceDefinition cratemachines.infrastructure.cluster.x-k8s.io does not exist";
    until(&owned, "WaitingForInfrastructureDeletion", text);
    // A user who knows that there is no host removes the finalizer.
    release(&owned, MACHINE, "m");
    until_gone(&owned, "m");
}

#[test]
fn m9_object_of_another_machine_stays() {
    let owned = running("m9-foreign");
    let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "second" },
        "spec": { "clusterName": "m9-foreign", "bootstrap": { "data": "" },
            "infrastructureRef": reference("infrastructure", "BedplateMachine", "m") } });
    owned.create_machine(&machine).unwrap();
    owned.until(MACHINE, "second", "the report", |found| {
        condition(found, "InfrastructureReady").2.contains("Machine m")
    });
    begin(&owned, "second");
    until_gone(&owned, "second");
    assert!(is_alive(&owned, "bpm", "m") && !is_cordoned(&owned));
    owned.until_phase("m", "Running");
}

#[test]
fn m9_node_of_the_last_control_plane_machine_is_not_drained() {
    let owned = running("m9-last");
    let kubelet = Kubelet::of(&owned.node("m"));
    kubelet.pod("web");
    let label = json!({ "metadata": { "labels": { CONTROL_PLANE: "" } } });
    owned.objects.merge(MACHINE, "m", &label).unwrap();
    begin(&owned, "cp");
    until_gone(&owned, "cp");
    begin(&owned, "m");
    until_gone(&owned, "m");
    assert!(kubelet.stays("web") && !is_cordoned(&owned), "no API server would be left to write it");
}

#[test]
fn m9_paused_machine_is_deleted_once_it_is_unpaused() {
    let owned = running("m9-paused");
    annotate(&owned, "m", PAUSED, json!(""));
    owned.until_condition((MACHINE, "m"), "Paused", ["True", "Paused", ""]);
    begin(&owned, "m");
    // A Machine that is deleted later is gone first.
    owned.bare_machine("next", &json!({ "data": "" }), &json!({}));
    owned.until_phase("next", "Provisioning");
    begin(&owned, "next");
    until_gone(&owned, "next");
    assert!(is_alive(&owned, "bpm", "m") && !is_cordoned(&owned));
    annotate(&owned, "m", PAUSED, Value::Null);
    until_gone(&owned, "m");
}

#[test]
fn m9_unreachable_cluster_holds_the_deletion_until_the_timeouts() {
    let owned = running("m9-cut");
    disconnect(&owned);
    hold(&owned, "bpm", "m");
    begin(&owned, "m");
    until(
        &owned,
        "DrainingNode",
        ": Node cannot be read: API server of the workload cluster cannot be reached",
    );
    assert!(is_alive(&owned, "bpm", "m"));
    let timeouts = json!({ "nodeDrainTimeoutSeconds": 1, "nodeVolumeDetachTimeoutSeconds": 1, "nodeDeletionTimeoutSeconds": 1 });
    owned.objects.merge(MACHINE, "m", &json!({ "spec": { "deletion": timeouts } })).unwrap();
    until(&owned, "WaitingForInfrastructureDeletion", "BedplateMachine m is being deleted");
    release(&owned, "bpm", "m");
    // The deletion of the Node is tried for some time.
    until(
        &owned,
        "DeletingNode",
        "Node m9-cut-m is not deleted yet: API server of the workload cluster cannot be reached",
    );
    until_gone(&owned, "m");
    assert!(nodes().get("node", &owned.node("m")).unwrap().is_some(), "no API server was reached");
}

#[test]
fn k5_cluster_that_cannot_be_reached_is_deleted_with_its_machines() {
    let owned = running("k5-cut");
    disconnect(&owned);
    begin(&owned, "m");
    until(&owned, "DrainingNode", ": Node cannot be read: ");
    assert!(is_alive(&owned, "bpm", "m"));
    owned.objects.begin_delete("cluster", "k5-cut").unwrap();
    for (kind, name) in
        [(MACHINE, "m"), (MACHINE, "cp"), ("bpm", "m"), ("bpc", "k5-cut"), ("cluster", "k5-cut")]
    {
        Site::shared().until_gone(&owned.team, (kind, name));
    }
}

/// Waits until condition `Deleting` of the Cluster has a reason and a text.
fn until_cluster(owned: &Owned, reason: &str, text: &str) {
    let found = owned.until_condition(("cluster", owned.name), "Deleting", ["True", reason, text]);
    assert_eq!(found["status"]["phase"], "Deleting");
}

#[test]
fn k5_cluster_deletes_workers_then_control_plane_then_infrastructure() {
    let owned = running("k5-order");
    owned.host("cp");
    owned.until("bpm", "cp", "its owner", |found| owner(found, "Machine").is_some());
    for (kind, name) in [("bpm", "m"), ("bpm", "cp"), ("bpc", "k5-order")] {
        hold(&owned, kind, name);
    }
    owned.objects.begin_delete("cluster", "k5-order").unwrap();
    until_cluster(&owned, "WaitingForWorkersDeletion", "* Machine m");
    until(&owned, "WaitingForInfrastructureDeletion", "BedplateMachine m is being deleted");
    assert!(is_alive(&owned, MACHINE, "cp"));
    release(&owned, "bpm", "m");
    until_cluster(&owned, "WaitingForControlPlaneDeletion", "* Machine cp");
    assert!(is_alive(&owned, "bpc", "k5-order"));
    release(&owned, "bpm", "cp");
    until_cluster(&owned, "WaitingForInfrastructureDeletion", "BedplateCluster k5-order is being deleted");
    let shown = owned.kubectl(&["get", "clusters.cluster.x-k8s.io", "k5-order", "--no-headers"]);
    assert!(shown.contains("Deleting"), "{shown}");
    release(&owned, "bpc", "k5-order");
    Site::shared().until_gone(&owned.team, ("cluster", "k5-order"));
    assert!(nodes().get("node", &owned.node("m")).unwrap().is_some(), "a cluster ends with its hosts");
}

#[test]
fn k5_control_plane_object_goes_before_its_machines_and_after_workers() {
    let name = "k5-plane";
    let owned = Owned::new(name);
    owned.infrastructure_cluster();
    owned.provision_cluster();
    super::workers::control_plane(&owned.objects, name, "v1.34.4", None);
    owned.cluster(&json!({ "controlPlaneRef": reference("controlplane", "KubeadmControlPlane", name) }));
    owned.until_condition(("cluster", name), "ControlPlaneInitialized", ["True", "Initialized", ""]);
    let template = json!({ "spec": { "clusterName": name, "bootstrap": { "dataSecretName": "" },
        "infrastructureRef": reference("infrastructure", "BedplateMachineTemplate", "none") } });
    let deployment = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": { "name": "md" },
        "spec": { "clusterName": name, "replicas": 0, "template": template } });
    owned.objects.create(&deployment).unwrap();
    owned.until("machinedeployment", "md", "its status", |found| found["status"]["observedGeneration"] == 1);
    for (name, labels) in [("w", json!({})), ("cp", json!({ CONTROL_PLANE: "" }))] {
        owned.machine(name, &json!({ "data": "" }), &labels);
        hold(&owned, "bpm", name);
        owned.until_phase(name, "Provisioning");
    }
    hold(&owned, "kcp", name);
    owned.kubectl(&["delete", "clusters.cluster.x-k8s.io", name, "--wait=false"]);
    Site::shared().until_gone(&owned.team, ("machinedeployment", "md"));
    until_cluster(&owned, "WaitingForWorkersDeletion", "* Machine w");
    assert!(is_alive(&owned, "kcp", name) && is_alive(&owned, MACHINE, "cp"));
    release(&owned, "bpm", "w");
    until_cluster(&owned, "WaitingForControlPlaneDeletion", "KubeadmControlPlane k5-plane is being deleted");
    assert!(is_alive(&owned, MACHINE, "cp") && is_alive(&owned, "bpc", name));
    release(&owned, "kcp", name);
    until_cluster(&owned, "WaitingForControlPlaneDeletion", "* Machine cp");
    assert!(is_alive(&owned, "bpc", name));
    release(&owned, "bpm", "cp");
    Site::shared().until_gone(&owned.team, ("cluster", name));
    assert_eq!(owned.objects.get("bpc", name).unwrap(), None);
}
