//! Pods and volumes of the Node of a Machine that is deleted (M9). The test stands in for the kubelet, so a Pod that was evicted stays until then.

use serde_json::{Value, json};

use super::doomed::{annotate, begin, hold, is_alive, poke, release, running, until, until_gone};
use super::kubelet::Kubelet;
use super::owned::{MACHINE, Owned, nodes};

fn rule(owned: &Owned, name: &str, drain: &Value, app: &str, machines: Option<Value>) {
    let pods = json!([{ "selector": { "matchLabels": { "app": app } } }]);
    let mut rule = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule", "metadata": { "name": name },
        "spec": { "drain": drain, "pods": pods } });
    if let Some(machines) = machines {
        rule["spec"]["machines"] = machines;
    }
    owned.objects.create(&rule).unwrap();
}

#[test]
fn m9_budget_holds_its_pod_and_no_other() {
    let owned = running("m9-budget");
    let kubelet = Kubelet::of(&owned.node("m"));
    kubelet.pod("web");
    kubelet.pod("other");
    kubelet.budget("web", 0);
    begin(&owned, "m");
    let text = "Pods m9-budget-m/web are not evicted: PodDisruptionBudget web does not allow the eviction";
    until(&owned, "DrainingNode", text);
    let node = nodes().get("node", &owned.node("m")).unwrap().expect("a Node");
    assert_eq!(node["spec"]["unschedulable"], true);
    kubelet.until_leaving("other");
    assert!(kubelet.stays("web") && is_alive(&owned, "bpm", "m"));
    kubelet.end("other");
    kubelet.permit("web", 1);
    kubelet.until_leaving("web");
    kubelet.end("web");
    poke(&owned, "m");
    until_gone(&owned, "m");
}

#[test]
fn m9_drain_rules_order_pods_wait_for_them_and_skip_them() {
    let owned = running("m9-rules");
    let kubelet = Kubelet::of(&owned.node("m"));
    for pod in ["first", "job", "late", "stay"] {
        kubelet.pod(pod);
    }
    kubelet.pod_of("DaemonSet", "agent", &json!({}));
    rule(&owned, "late", &json!({ "behavior": "Drain", "order": 10 }), "late", None);
    rule(&owned, "job", &json!({ "behavior": "WaitCompleted" }), "job", None);
    rule(&owned, "stay", &json!({ "behavior": "Skip" }), "stay", None);
    let others = json!([{ "selector": { "matchLabels": { "pool": "other" } } }]);
    rule(&owned, "a", &json!({ "behavior": "Skip" }), "first", Some(others));
    begin(&owned, "m");
    kubelet.until_leaving("first");
    until(
        &owned,
        "DrainingNode",
        "Pods m9-rules-m/first are being deleted; Pods m9-rules-m/job are left to finish; 1 Pod follows after these",
    );
    kubelet.end("first");
    poke(&owned, "m");
    until(&owned, "DrainingNode", ": Pods m9-rules-m/job are left to finish");
    assert!(kubelet.stays("late") && kubelet.stays("job"));
    kubelet.finish("job");
    poke(&owned, "m");
    kubelet.until_leaving("late");
    kubelet.end("late");
    poke(&owned, "m");
    until_gone(&owned, "m");
    assert!(["stay", "job", "agent"].into_iter().all(|pod| kubelet.stays(pod)));
}

#[test]
fn m9_volumes_of_pods_that_stay_are_not_waited_for() {
    let owned = running("m9-claims");
    let kubelet = Kubelet::of(&owned.node("m"));
    kubelet.attach("data");
    let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "logs" } }]);
    kubelet.pod_of("DaemonSet", "agent", &json!({ "spec": { "volumes": volumes } }));
    kubelet.attach("logs");
    begin(&owned, "m");
    let found = until(&owned, "WaitingForVolumeDetach", ": PersistentVolumeClaim m9-claims-m/data");
    assert!(!found["status"]["conditions"].to_string().contains("m9-claims-m/logs"), "{found:#}");
    assert!(found["status"]["deletion"]["waitForNodeVolumeDetachStartTime"].is_string(), "{found:#}");
    assert!(is_alive(&owned, "bpm", "m"));
    kubelet.detach("data");
    poke(&owned, "m");
    until_gone(&owned, "m");
}

#[test]
fn m9_drain_and_detach_end_at_their_timeouts() {
    let owned = running("m9-timeouts");
    let kubelet = Kubelet::of(&owned.node("m"));
    kubelet.pod("web");
    kubelet.attach("data");
    let timeouts = json!({ "nodeDrainTimeoutSeconds": 3, "nodeVolumeDetachTimeoutSeconds": 3 });
    owned.objects.merge(MACHINE, "m", &json!({ "spec": { "deletion": timeouts } })).unwrap();
    hold(&owned, "bpm", "m");
    begin(&owned, "m");
    until(&owned, "DrainingNode", "web are being deleted; the deletion continues without it at 20");
    until(&owned, "WaitingForVolumeDetach", "data; the deletion continues without it at 20");
    until(&owned, "WaitingForInfrastructureDeletion", "BedplateMachine m is being deleted");
    assert!(!kubelet.stays("web"));
    release(&owned, "bpm", "m");
    until_gone(&owned, "m");
}

#[test]
fn m9_unreachable_node_ends_no_pods_and_detaches_no_volumes() {
    let owned = running("m9-dark");
    let kubelet = Kubelet::of(&owned.node("m"));
    kubelet.pod("web");
    kubelet.attach("data");
    owned.ready("m", "Unknown");
    begin(&owned, "m");
    let pod = kubelet.until_leaving("web");
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 1);
    until_gone(&owned, "m");
    // The API server keeps the Pod until its garbage collector removes it.
    assert!(!kubelet.stays("web"));
}

#[test]
fn m9_annotations_exclude_drain_and_detach() {
    let owned = running("m9-excluded");
    let kubelet = Kubelet::of(&owned.node("m"));
    kubelet.pod("web");
    kubelet.attach("data");
    annotate(&owned, "m", "machine.cluster.x-k8s.io/exclude-node-draining", json!(""));
    annotate(&owned, "m", "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach", json!(""));
    hold(&owned, "bpm", "m");
    begin(&owned, "m");
    until(&owned, "WaitingForInfrastructureDeletion", "BedplateMachine m is being deleted");
    let node = nodes().get("node", &owned.node("m")).unwrap().expect("a Node");
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    release(&owned, "bpm", "m");
    until_gone(&owned, "m");
    assert!(kubelet.stays("web"));
}
