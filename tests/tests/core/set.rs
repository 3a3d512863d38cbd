//! MachineSets (MS1 to MS10).

use bedplate_tests::kubernetes::Objects;
use bedplate_tests::wait;
use serde_json::{Value, json};

use super::recorder::is_available;
use super::site::{PATIENCE, condition, workload};
use super::workers::{
    CLUSTER_NAME, SET_NAME, VERSION, Workers, bootstrap_template, control_plane, controller, names, uids,
};

const SET: &str = "machineset";
const CREATING: &str = "bedplate.dev/creating";

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

#[test]
fn ms1_new_set_gets_finalizer_label_owner_and_selector() {
    let workers = Workers::new("ms-new", 2);
    workers.set("w", 1, &json!({}));
    let set = workers.until_complete((SET, "w"), 1);
    let metadata = &set["metadata"];
    assert_eq!(metadata["finalizers"], json!(["cluster.x-k8s.io/machineset"]));
    assert_eq!(metadata["labels"][CLUSTER_NAME], "ms-new");
    let owner = &metadata["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("Cluster"), &json!("ms-new")));
    // Nothing is written into the spec: the selector is implied.
    assert_eq!(set["spec"]["selector"], Value::Null);
    assert_eq!(set["status"]["selector"], "cluster.x-k8s.io/cluster-name=ms-new,cluster.x-k8s.io/set-name=w");
    let shown = workers.kubectl(&["get", "machinesets.cluster.x-k8s.io", "w", "--no-headers"]);
    let columns: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(columns[..6], ["w", "ms-new", "1", "1", "1", "1"], "{shown}");
    for (kind, status, reason) in [
        ("ScalingUp", "False", "NotScalingUp"),
        ("ScalingDown", "False", "NotScalingDown"),
        ("MachinesReady", "True", "Ready"),
        ("Remediating", "False", "NotRemediating"),
        ("Deleting", "False", "NotDeleting"),
        ("Paused", "False", "NotPaused"),
        ("FieldsSupported", "True", "FieldsSupported"),
    ] {
        let found = condition(&set, kind);
        assert_eq!((found.0, found.1), (status, reason), "{kind}: {found:?}");
    }
}

#[test]
fn ms7_machine_and_its_objects_are_clones_under_one_name() {
    let workers = Workers::new("ms-clones", 2);
    let metadata = json!({ "labels": { "tier": "a" }, "annotations": { "note": "n" } });
    workers.set("w", 1, &json!({ "spec": { "template": { "metadata": metadata } } }));
    let set = workers.until_complete((SET, "w"), 1);
    assert_eq!(set["metadata"]["annotations"][CREATING], Value::Null, "no name is recorded any more");
    let machines = workers.machines("w");
    let machine = &machines[0];
    assert_eq!(controller(machine), Some(("MachineSet", "w")));
    assert_eq!(machine["spec"]["version"], VERSION);
    assert_eq!(machine["metadata"]["finalizers"], json!(["machine.cluster.x-k8s.io"]));
    for (field, kind) in [("infrastructureRef", "BedplateMachine"), ("bootstrap", "KubeadmConfig")] {
        let spec = &machine["spec"][field];
        let reference = if field == "bootstrap" { &spec["configRef"] } else { spec };
        assert_eq!((&reference["kind"], &reference["name"]), (&json!(kind), &json!(name(machine))));
        let object = workers.get(kind, name(machine));
        assert_eq!(controller(&object), Some(("Machine", name(machine))), "{kind}");
        let owners = object["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!(owners.len(), 1, "the set gives way to the Machine: {owners:?}");
        assert_eq!(object["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-name"], "workers");
        for object in [machine, &object] {
            let (labels, annotations) = (&object["metadata"]["labels"], &object["metadata"]["annotations"]);
            assert_eq!(
                (&labels["tier"], &labels[SET_NAME], &labels[CLUSTER_NAME], &annotations["note"]),
                (&json!("a"), &json!("w"), &json!("ms-clones"), &json!("n")),
                "{kind}"
            );
        }
    }
    // Labels and annotations of the templates' own.
    let host = workers.get("bpm", name(machine));
    assert_eq!(host["metadata"]["labels"]["from"], "infrastructure");
    assert_eq!(host["spec"]["releaseTimeoutSeconds"], 1200);
    let config = workers.get("kubeadmconfig", name(machine));
    assert_eq!(config["metadata"]["annotations"]["from"], "bootstrap");
    assert_eq!(config["spec"]["preKubeadmCommands"], json!(["echo workers"]));
}

#[test]
fn ms7_missing_template_is_reported_and_used_once_it_exists() {
    let workers = Workers::new("ms-template", 1);
    let reference = json!({ "template": { "spec": { "bootstrap": { "configRef": { "name": "later" } } } } });
    workers.set("w", 1, &json!({ "spec": reference }));
    let set = workers.until((SET, "w"), "the report of the template", |set| {
        condition(set, "ScalingUp").2.contains("KubeadmConfigTemplate later does not exist; create it")
    });
    let expected = "Scaling up from 0 to 1 replicas is blocked because:\n* KubeadmConfigTemplate later does not exist; create it";
    assert_eq!(condition(&set, "ScalingUp"), ("True", "ScalingUp", expected));
    assert_eq!(set["metadata"]["annotations"][CREATING], Value::Null, "no name is recorded");
    assert_eq!(workers.clones().0.len(), 0);
    workers.objects.apply(&bootstrap_template("later")).unwrap();
    workers.until_complete((SET, "w"), 1);
}

#[test]
fn ms2_set_follows_kubectl_scale() {
    let workers = Workers::new("ms-scale", 4);
    workers.set("w", 0, &json!({}));
    workers.until_complete((SET, "w"), 0);
    workers.scale("machinesets", "w", 3);
    workers.until_complete((SET, "w"), 3);
    let before = uids(&workers.machines("w"));
    workers.scale("machinesets", "w", 1);
    workers.until_complete((SET, "w"), 1);
    let left = workers.machines("w");
    assert!(left.len() == 1 && uids(&left).is_subset(&before));
    let clones = names(&left);
    assert_eq!(workers.clones(), (clones.clone(), clones), "the objects go with their Machines");
    workers.scale("machinesets", "w", 0);
    workers.until_complete((SET, "w"), 0);
    workers.until((SET, "w"), "the report", |set| condition(set, "MachinesReady").1 == "NoReplicas");
}

#[test]
fn ms2_controller_replaces_a_machine_that_a_user_deletes() {
    let workers = Workers::new("ms-replaced", 4);
    workers.set("w", 2, &json!({}));
    workers.until_complete((SET, "w"), 2);
    let before = workers.machines("w");
    workers.objects.begin_delete("clustermachine", name(&before[0])).unwrap();
    workers.until_gone(("clustermachine", name(&before[0])));
    workers.until_complete((SET, "w"), 2);
    let after = workers.machines("w");
    assert_eq!(uids(&after).intersection(&uids(&before)).count(), 1);
}

/// Creation of KubeadmConfigs.
fn create_config(objects: &Objects) -> anyhow::Result<Value> {
    let config = json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig", "metadata": { "name": "probe" } });
    objects.try_create(&config)
}

#[test]
fn ms3_recorded_name_survives_a_refused_creation() {
    let workers = Workers::new("ms-recorded", 4);
    let configs = json!({ "apiGroups": ["bootstrap.cluster.x-k8s.io"], "apiVersions": ["*"], "operations": ["CREATE"],
        "resources": ["kubeadmconfigs"] });
    let refusal = workers.refuse(&configs, "false", create_config);
    workers.set("w", 2, &json!({}));
    let recorded = workers.until((SET, "w"), "the record of two names", |set| recorded_names(set).len() == 2);
    let recorded = recorded_names(&recorded);
    workers.objects.until_among("bpm", PATIENCE, |hosts| (!hosts.is_empty()).then_some(())).unwrap();
    workers.until_event("Warning", "the test refuses it");
    // The names that are not needed any more are cleaned up.
    workers.scale("machinesets", "w", 1);
    let left = workers.until((SET, "w"), "one name", |set| recorded_names(set).len() == 1);
    let left = recorded_names(&left);
    assert!(recorded.contains(&left[0]), "{left:?} of {recorded:?}");
    workers
        .objects
        .until_among("bpm", PATIENCE, |hosts| hosts.iter().all(|host| name(host) == left[0]).then_some(()))
        .unwrap();
    refusal.end(create_config);
    workers
        .merge((SET, "w"), &json!({ "metadata": { "annotations": { "tests.bedplate.dev/touched": "" } } }));
    workers.until_complete((SET, "w"), 1);
    assert_eq!(names(&workers.machines("w")), left.into_iter().collect());
}

fn recorded_names(set: &Value) -> Vec<String> {
    let text = set["metadata"]["annotations"][CREATING].as_str().unwrap_or("[]");
    let entries: Vec<Value> = serde_json::from_str(text).unwrap();
    entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
}

/// Adds a Machine to a set. It is created in a later second than the others.
fn grow(workers: &Workers<'_>, replicas: u32) -> String {
    let before = workers.machines("w");
    let latest = before
        .iter()
        .map(|machine| machine["metadata"]["creationTimestamp"].as_str().unwrap().to_owned())
        .max();
    wait::until("the next second", PATIENCE, || {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Ok(latest.as_ref().is_none_or(|latest| *latest < now).then_some(()))
    })
    .unwrap();
    workers.scale("machinesets", "w", replicas);
    let machines =
        workers.until_machines("w", "one more Machine", |machines| machines.len() == before.len() + 1);
    let added = names(&machines).difference(&names(&before)).next().cloned();
    added.unwrap()
}

/// Scales down, and returns the Machine that is gone.
fn shrink(workers: &Workers<'_>, replicas: u32) -> String {
    let before = names(&workers.machines("w"));
    workers.scale("machinesets", "w", replicas);
    let after = workers.until_machines("w", "fewer Machines", |machines| machines.len() == replicas as usize);
    let gone: Vec<String> = before.difference(&names(&after)).cloned().collect();
    assert_eq!(gone.len(), 1, "{gone:?}");
    gone.into_iter().next().unwrap()
}

#[test]
fn ms4_scale_down_takes_marked_then_unhealthy_then_by_age() {
    let workers = Workers::new("ms-order", 8);
    workers.set("w", 0, &json!({ "spec": { "deletion": { "order": "Oldest" } } }));
    let [oldest, second, third, fourth] = [1, 2, 3, 4].map(|replicas| grow(&workers, replicas));
    workers.until_complete((SET, "w"), 4);
    workers.hosts.hold();
    let without_node = grow(&workers, 5);
    workers.merge(
        ("clustermachine", &third),
        &json!({ "metadata": { "annotations": { "cluster.x-k8s.io/delete-machine": "" } } }),
    );
    assert_eq!(shrink(&workers, 4), third, "the user has marked it");
    assert_eq!(shrink(&workers, 3), without_node, "it is not healthy");
    assert_eq!(shrink(&workers, 2), oldest);
    workers.merge((SET, "w"), &json!({ "spec": { "deletion": { "order": "Newest" } } }));
    assert_eq!(shrink(&workers, 1), fourth);
    assert_eq!(names(&workers.machines("w")), [second].into());
}

#[test]
fn ms7_labels_taints_and_times_reach_machines_in_place() {
    let workers = Workers::new("ms-in-place", 3);
    let labels = json!({ "node.cluster.x-k8s.io/zone": "a", "tier": "a" });
    workers.set("w", 2, &json!({ "spec": { "template": { "metadata": { "labels": labels } } } }));
    workers.until_complete((SET, "w"), 2);
    let before = workers.machines("w");
    let taint = json!({ "key": "example.com/dedicated", "value": "w", "effect": "NoSchedule", "propagation": "Always" });
    let spec =
        json!({ "deletion": { "nodeDrainTimeoutSeconds": 77 }, "taints": [taint], "minReadySeconds": 1 });
    let labels = json!({ "node.cluster.x-k8s.io/zone": "b", "tier": null });
    let template = json!({ "metadata": { "labels": labels, "annotations": { "note": "n" } }, "spec": spec });
    workers.merge((SET, "w"), &json!({ "spec": { "template": template } }));
    let after = workers.until_machines("w", "the changes", |machines| {
        machines.iter().all(|machine| {
            let metadata = &machine["metadata"];
            machine["spec"]["deletion"]["nodeDrainTimeoutSeconds"] == 77
                && machine["spec"]["taints"] == json!([taint])
                && machine["spec"]["minReadySeconds"] == 1
                && metadata["labels"]["node.cluster.x-k8s.io/zone"] == "b"
                && metadata["labels"]["tier"].is_null()
                && metadata["annotations"]["note"] == "n"
        })
    });
    assert_eq!(uids(&after), uids(&before), "no Machine is replaced");
    for machine in &after {
        for kind in ["bpm", "kubeadmconfig"] {
            workers.until((kind, name(machine)), "the labels", |object| {
                let labels = &object["metadata"]["labels"];
                labels["node.cluster.x-k8s.io/zone"] == "b" && labels["tier"].is_null()
            });
        }
        let node = machine["status"]["nodeRef"]["name"].as_str().unwrap();
        workload()
            .objects()
            .unwrap()
            .until(("node", node), PATIENCE, |node| {
                let node = node?;
                let has_taint = node["spec"]["taints"].as_array().is_some_and(|taints| {
                    taints
                        .iter()
                        .any(|taint| taint["key"] == "example.com/dedicated" && taint["value"] == "w")
                });
                (has_taint && node["metadata"]["labels"]["node.cluster.x-k8s.io/zone"] == "b").then_some(())
            })
            .unwrap();
    }
    workers.until_complete((SET, "w"), 2);
}

#[test]
fn ms8_names_follow_the_naming_template() {
    let workers = Workers::new("ms-names", 2);
    let naming = json!({ "template": "{{ .cluster.name }}-edge-{{ .random }}" });
    workers.set("w", 1, &json!({ "spec": { "machineNaming": naming } }));
    workers.until_complete((SET, "w"), 1);
    let machines = workers.machines("w");
    assert!(name(&machines[0]).starts_with("ms-names-edge-"), "{}", name(&machines[0]));
}

#[test]
fn ms9_paused_set_and_disabled_creation_make_no_machine() {
    let workers = Workers::new("ms-paused", 3);
    workers.set("w", 1, &json!({}));
    workers.until_complete((SET, "w"), 1);
    let annotate = |key: &str, value: Value| {
        workers.merge((SET, "w"), &json!({ "metadata": { "annotations": { key: value } } }));
    };
    annotate("cluster.x-k8s.io/paused", json!(""));
    workers.until((SET, "w"), "that it is paused", |set| condition(set, "Paused").0 == "True");
    workers.scale("machinesets", "w", 2);
    let set = workers.until((SET, "w"), "that its edit was seen", |set| {
        let conditions = set["status"]["conditions"].as_array().unwrap();
        let paused = conditions.iter().find(|condition| condition["type"] == "Paused").unwrap();
        paused["observedGeneration"] == set["metadata"]["generation"]
    });
    assert_eq!(condition(&set, "Paused").0, "True");
    assert_eq!(workers.machines("w").len(), 1);
    // The creation is disabled before the set continues.
    annotate("cluster.x-k8s.io/disable-machine-create", json!("true"));
    annotate("cluster.x-k8s.io/paused", Value::Null);
    let set = workers.until((SET, "w"), "the cause", |set| condition(set, "ScalingUp").0 == "True");
    let message = condition(&set, "ScalingUp").2;
    assert_eq!(
        message,
        "Scaling up from 1 to 2 replicas is blocked because:\n* Machine creation is disabled for this MachineSet"
    );
    assert_eq!(workers.machines("w").len(), 1);
    annotate("cluster.x-k8s.io/disable-machine-create", json!(null));
    workers.until_complete((SET, "w"), 2);
}

#[test]
fn ms9_dropped_replicas_keep_the_machines() {
    let workers = Workers::new("ms-dropped", 3);
    workers.set("w", 2, &json!({}));
    workers.until_complete((SET, "w"), 2);
    let before = uids(&workers.machines("w"));
    workers.objects.edit(SET, "w", "", &json!([{ "op": "remove", "path": "/spec/replicas" }])).unwrap();
    workers.until((SET, "w"), "the number that it has", |set| set["spec"]["replicas"] == 2);
    workers.until_complete((SET, "w"), 2);
    assert_eq!(uids(&workers.machines("w")), before);
}

#[test]
fn ms10_deleted_set_goes_after_its_machines() {
    let workers = Workers::new("ms-deleted", 3);
    workers.set("w", 2, &json!({}));
    workers.until_complete((SET, "w"), 2);
    let machines = workers.machines("w");
    assert!(machines.iter().all(is_available));
    // A host that is not released yet.
    let held = name(&machines[0]);
    let hold = |finalizers: Value| {
        workers.merge(("bpm", held), &json!({ "metadata": { "finalizers": finalizers } }));
    };
    hold(json!(["tests.bedplate.dev/held"]));
    workers.objects.begin_delete(SET, "w").unwrap();
    workers.until_gone(("clustermachine", name(&machines[1])));
    let set =
        workers.until((SET, "w"), "one Machine", |set| condition(set, "Deleting").2 == "Deleting 1 Machine");
    assert_eq!(condition(&set, "Deleting").1, "Deleting");
    assert_eq!(names(&workers.machines("w")), [held.to_owned()].into());
    hold(json!(null));
    workers.until_gone((SET, "w"));
    assert_eq!(workers.machines("w"), [Value::Null; 0]);
    assert_eq!(workers.clones(), Default::default());
}

#[test]
fn ms5_failed_preflight_check_holds_creation_and_names_its_cause() {
    let workers = Workers::new("ms-preflight", 3);
    control_plane(&workers.objects, "plane", "v1.34.5", Some("v1.34.4"));
    let reference = json!({ "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "plane" });
    workers.merge(("cluster", "ms-preflight"), &json!({ "spec": { "controlPlaneRef": reference } }));
    workers.until(("kcp", "plane"), "its Cluster", |plane| plane["metadata"]["ownerReferences"].is_array());
    let blocked = |set: &str, cause: &str| {
        let set = workers.until((SET, set), cause, |set| condition(set, "ScalingUp").2.contains(cause));
        let expected = format!("Scaling up from 0 to 1 replicas is blocked because:\n* {cause}");
        assert_eq!(condition(&set, "ScalingUp").2, expected);
    };
    workers.set("w", 1, &json!({}));
    blocked(
        "w",
        "the control plane is being upgraded from v1.34.4 to v1.34.5 (preflight check ControlPlaneIsStable)",
    );
    let newer = json!({ "spec": { "template": { "spec": { "version": "v1.35.0" } } } });
    workers.set("newer", 1, &newer);
    let skip = json!({ "machineset.cluster.x-k8s.io/skip-preflight-checks": "ControlPlaneIsStable,KubeadmVersionSkew" });
    workers.merge((SET, "newer"), &json!({ "metadata": { "annotations": skip } }));
    blocked(
        "newer",
        "version v1.35.0 is newer than the control plane (v1.34.5) (preflight check KubernetesVersionSkew)",
    );
    assert_eq!(workers.clones().0.len(), 0, "nothing is made");
    workers.objects.merge_status("kcp", "plane", &json!({ "version": "v1.34.5" })).unwrap();
    workers.until_complete((SET, "w"), 1);
    let skip = json!({ "machineset.cluster.x-k8s.io/skip-preflight-checks": "All" });
    workers.merge((SET, "newer"), &json!({ "metadata": { "annotations": skip } }));
    workers.until_complete((SET, "newer"), 1);
}
