//! MachineDeployments (MD1 to MD10).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::recorder::{Bounds, Recorder, is_available};
use super::site::{PATIENCE, condition, workload};
use super::workers::{
    CLUSTER_NAME, DEPLOYMENT_NAME, NEXT_VERSION, VERSION, Workers, controller, names, uids,
};

const DEPLOYMENT: &str = "machinedeployment";
const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
const HISTORY: &str = "machinedeployment.clusters.x-k8s.io/revision-history";
const LAST_VERSION: &str = "v1.34.6";

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// MachineSets of the namespace by age.
fn sets(workers: &Workers<'_>) -> Vec<Value> {
    let mut sets = workers.objects.list("machineset", "").unwrap();
    sets.sort_by_key(revision);
    sets
}

fn revision(object: &Value) -> u32 {
    object["metadata"]["annotations"][REVISION].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn rolling(surge: &Value, unavailable: &Value) -> Value {
    json!({ "rollout": { "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } } } })
}

/// True if there is this number of Machines, all available and of this version.
fn is_complete(machines: &[&Value], number: usize, version: &str) -> bool {
    machines.len() == number
        && machines.iter().all(|machine| machine["spec"]["version"] == version && is_available(machine))
}

#[test]
fn md1_first_set_has_all_replicas_and_revision_1() {
    let workers = Workers::new("md-first", 3);
    workers.deployment(
        "d",
        2,
        &json!({ "spec": { "template": { "metadata": { "labels": { "tier": "a" } } } } }),
    );
    let deployment = workers.until_complete((DEPLOYMENT, "d"), 2);
    let sets = sets(&workers);
    let [set] = &sets[..] else { panic!("not one set: {sets:#?}") };
    assert_eq!((revision(&deployment), revision(set)), (1, 1));
    assert_eq!(deployment["metadata"]["finalizers"], json!(["cluster.x-k8s.io/machinedeployment"]));
    assert_eq!(deployment["metadata"]["labels"][CLUSTER_NAME], "md-first");
    assert_eq!(deployment["metadata"]["ownerReferences"][0]["kind"], "Cluster");
    assert_eq!(controller(set), Some(("MachineDeployment", "d")));
    // The selector is implied, and that of the set has the hash of the template.
    assert_eq!(deployment["spec"]["selector"], Value::Null);
    assert_eq!(
        deployment["status"]["selector"],
        "cluster.x-k8s.io/cluster-name=md-first,cluster.x-k8s.io/deployment-name=d"
    );
    let hash = &set["metadata"]["labels"]["machine-template-hash"];
    assert!(hash.is_string(), "{set:#}");
    assert_eq!(set["spec"]["selector"]["matchLabels"]["machine-template-hash"], *hash);
    for machine in workers.machines("d") {
        let labels = &machine["metadata"]["labels"];
        assert_eq!((&labels[DEPLOYMENT_NAME], &labels["machine-template-hash"]), (&json!("d"), hash));
        assert_eq!(labels["tier"], "a");
        assert_eq!(condition(&machine, "UpToDate").0, "True");
    }
    let shown = workers.kubectl(&["get", "machinedeployments.cluster.x-k8s.io", "d", "--no-headers"]);
    let columns: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(columns[..8], ["d", "md-first", "True", "2", "2", "2", "2", "2"], "{shown}");
    for (kind, status, reason) in [
        ("Available", "True", "Available"),
        ("RollingOut", "False", "NotRollingOut"),
        ("ScalingUp", "False", "NotScalingUp"),
        ("ScalingDown", "False", "NotScalingDown"),
        ("MachinesReady", "True", "Ready"),
        ("MachinesUpToDate", "True", "UpToDate"),
        ("Remediating", "False", "NotRemediating"),
        ("Deleting", "False", "NotDeleting"),
        ("Paused", "False", "NotPaused"),
        ("FieldsSupported", "True", "FieldsSupported"),
    ] {
        let found = condition(&deployment, kind);
        assert_eq!((found.0, found.1), (status, reason), "{kind}: {found:?}");
    }
    workers.scale("machinedeployments", "d", 3);
    workers.until_complete((DEPLOYMENT, "d"), 3);
    assert_eq!(names(&self::sets(&workers)), names([set]), "scaling starts no rollout");
}

/// Never fewer available Machines than the replicas without `maxUnavailable`, and never more than the replicas with `maxSurge`.
#[test]
fn md2_rollouts_stay_within_surge_and_unavailable() {
    let workers = Workers::new("md-bounds", 20);
    workers.deployment("d", 4, &json!({ "spec": rolling(&json!(1), &json!(0)) }));
    workers.until_complete((DEPLOYMENT, "d"), 4);
    let recorder = Recorder::start("md-bounds");
    let rollouts = [
        (json!(1), json!(0), NEXT_VERSION, Bounds { existing: 5, available: 4 }),
        (json!(0), json!(1), LAST_VERSION, Bounds { existing: 4, available: 3 }),
        (json!("50%"), json!("25%"), VERSION, Bounds { existing: 6, available: 3 }),
    ];
    for (surge, unavailable, version, limits) in rollouts {
        let before = uids(&workers.machines("d"));
        workers.merge((DEPLOYMENT, "d"), &json!({ "spec": rolling(&surge, &unavailable) }));
        recorder.restart_bounds();
        workers.roll_out("d", version);
        let (after, bounds) = recorder.until(version, |machines| is_complete(machines, 4, version));
        assert!(uids(&after).is_disjoint(&before), "{surge} {unavailable}: all Machines are replaced");
        assert!(
            bounds.existing <= limits.existing && bounds.available >= limits.available,
            "{surge} {unavailable}: {bounds:?} is not within {limits:?}"
        );
        workers.until_complete((DEPLOYMENT, "d"), 4);
        workers.until((DEPLOYMENT, "d"), "the end", |found| condition(found, "RollingOut").0 == "False");
        workers.objects.until_among("machineset", PATIENCE, |sets| (sets.len() == 1).then_some(())).unwrap();
    }
    assert_eq!(recorder.names().len(), 16, "each Machine was made once");
}

/// A version without a Node replaces nothing but the surge. The user returns to the former template.
#[test]
fn md3_broken_version_stops_and_md5_rollback_by_edit_keeps_the_machines() {
    let workers = Workers::new("md-broken", 6);
    workers.deployment("d", 3, &json!({ "spec": rolling(&json!(1), &json!(0)) }));
    workers.until_complete((DEPLOYMENT, "d"), 3);
    let recorder = Recorder::start("md-broken");
    let before = workers.machines("d");
    workers.hosts.hold();
    workers.roll_out("d", NEXT_VERSION);
    let deployment = workers.until((DEPLOYMENT, "d"), "the rollout", |found| {
        found["status"]["replicas"] == 4
            && condition(found, "RollingOut").2.starts_with("Rolling out 3 not up-to-date replicas")
    });
    let message = condition(&deployment, "RollingOut").2;
    assert!(message.contains(VERSION) && message.contains(NEXT_VERSION), "{message}");
    assert_eq!(condition(&deployment, "Available").0, "True");
    assert_eq!(sets(&workers).iter().map(revision).collect::<Vec<_>>(), [1, 2]);
    // The user goes back.
    workers.roll_out("d", VERSION);
    let (after, bounds) = recorder.until("the former version", |machines| is_complete(machines, 3, VERSION));
    assert_eq!(uids(&after), uids(&before), "no Machine is replaced");
    assert_eq!(bounds, Bounds { existing: 4, available: 3 });
    workers.until((DEPLOYMENT, "d"), "revision 3", |found| {
        revision(found) == 3 && condition(found, "RollingOut").0 == "False"
    });
    workers.objects.until_among("machineset", PATIENCE, |sets| (sets.len() == 1).then_some(())).unwrap();
    let set = &sets(&workers)[0];
    assert_eq!((revision(set), &set["metadata"]["annotations"][HISTORY]), (3, &json!("1")));
}

#[test]
fn md4_on_delete_replaces_machines_that_a_user_deletes() {
    let workers = Workers::new("md-on-delete", 5);
    workers.deployment("d", 2, &json!({ "spec": { "rollout": { "strategy": { "type": "OnDelete" } } } }));
    workers.until_complete((DEPLOYMENT, "d"), 2);
    let before = workers.machines("d");
    workers.roll_out("d", NEXT_VERSION);
    workers.until((DEPLOYMENT, "d"), "the second revision", |found| {
        revision(found) == 2
            && condition(found, "MachinesUpToDate").0 == "False"
            && condition(found, "RollingOut").0 == "True"
    });
    let is_disabled =
        |set: &Value| set["metadata"]["annotations"]["cluster.x-k8s.io/disable-machine-create"] == "true";
    workers
        .objects
        .until_among("machineset", PATIENCE, |sets| {
            let first = sets.iter().find(|set| revision(set) == 1)?;
            let second = sets.iter().find(|set| revision(set) == 2)?;
            (is_disabled(first) && !is_disabled(second) && second["spec"]["replicas"] == 0).then_some(())
        })
        .unwrap();
    assert_eq!(uids(&workers.machines("d")), uids(&before), "no Machine is replaced by itself");
    for (number, machine) in before.iter().enumerate() {
        workers.objects.begin_delete("clustermachine", name(machine)).unwrap();
        workers.until_machines("d", "the replacement", |machines| {
            let of = |version: &str| {
                machines.iter().filter(|machine| machine["spec"]["version"] == version).count()
            };
            machines.len() == 2
                && of(NEXT_VERSION) == number + 1
                && machines.iter().all(|machine| {
                    is_available(machine) && machine["metadata"]["deletionTimestamp"].is_null()
                })
        });
    }
    workers.until_complete((DEPLOYMENT, "d"), 2);
    workers.until((DEPLOYMENT, "d"), "the end", |found| condition(found, "RollingOut").0 == "False");
}

#[test]
fn md6_rollout_after_replaces_all_machines_once() {
    let workers = Workers::new("md-after", 5);
    workers.deployment("d", 1, &json!({}));
    workers.until_complete((DEPLOYMENT, "d"), 1);
    let recorder = Recorder::start("md-after");
    let before = workers.machines("d");
    let after = (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(3))
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    workers.merge((DEPLOYMENT, "d"), &json!({ "spec": { "rollout": { "after": after } } }));
    let (machines, _) = recorder.until("a new Machine", |machines| {
        is_complete(machines, 1, VERSION) && uids(machines.iter().copied()).is_disjoint(&uids(&before))
    });
    workers.objects.until_among("machineset", PATIENCE, |sets| (sets.len() == 1).then_some(())).unwrap();
    // Another edit starts no second one.
    workers.scale("machinedeployments", "d", 2);
    workers.until_complete((DEPLOYMENT, "d"), 2);
    assert!(uids(&machines).is_subset(&uids(&workers.machines("d"))));
    assert_eq!(recorder.names().len(), 3);
}

#[test]
fn md7_paused_rollout_keeps_the_mixture_and_scales_in_proportion() {
    let workers = Workers::new("md-paused", 16);
    workers.deployment("d", 3, &json!({ "spec": rolling(&json!(1), &json!(0)) }));
    workers.until_complete((DEPLOYMENT, "d"), 3);
    let recorder = Recorder::start("md-paused");
    // The rollout stops at its first Machine, which gets no host.
    workers.hosts.hold();
    workers.roll_out("d", NEXT_VERSION);
    workers.until((DEPLOYMENT, "d"), "the first new Machine", |found| found["status"]["replicas"] == 4);
    workers.merge((DEPLOYMENT, "d"), &json!({ "spec": { "paused": true } }));
    let seen = |found: &Value| found["status"]["observedGeneration"] == found["metadata"]["generation"];
    workers.until((DEPLOYMENT, "d"), "the pause", seen);
    workers.hosts.release();
    let mixture = |machines: &[&Value]| {
        let of =
            |version: &str| machines.iter().filter(|machine| machine["spec"]["version"] == version).count();
        (of(VERSION), of(NEXT_VERSION))
    };
    recorder.until("the Machine of the pause", |machines| {
        mixture(machines) == (3, 1) && machines.iter().all(|machine| is_available(machine))
    });
    // In the middle the user doubles the replicas.
    workers.scale("machinedeployments", "d", 7);
    let (machines, _) = recorder.until("the share of each version", |machines| {
        machines.len() == 8 && machines.iter().all(|machine| is_available(machine))
    });
    let (old, new) = mixture(&machines.iter().collect::<Vec<_>>());
    assert_eq!((old, new), (6, 2), "in proportion");
    workers.until((DEPLOYMENT, "d"), "that it has not ended", |found| {
        condition(found, "RollingOut").0 == "True"
    });
    recorder.restart_bounds();
    workers.merge((DEPLOYMENT, "d"), &json!({ "spec": { "paused": false } }));
    let (_, bounds) =
        recorder.until("the end of the rollout", |machines| is_complete(machines, 7, NEXT_VERSION));
    assert_eq!(bounds, Bounds { existing: 8, available: 7 });
    workers.until_complete((DEPLOYMENT, "d"), 7);
}

#[test]
fn md7_fields_in_place_reach_machines_without_a_rollout() {
    let workers = Workers::new("md-in-place", 3);
    let labels = json!({ "node.cluster.x-k8s.io/zone": "a", "tier": "a" });
    workers.deployment(
        "d",
        2,
        &json!({ "metadata": { "annotations": { "team": "a" } },
        "spec": { "template": { "metadata": { "labels": labels } } } }),
    );
    workers.until_complete((DEPLOYMENT, "d"), 2);
    let (before, set) = (workers.machines("d"), sets(&workers).remove(0));
    assert_eq!(set["metadata"]["annotations"]["team"], "a");
    let taint = json!({ "key": "example.com/dedicated", "effect": "NoSchedule", "propagation": "Always" });
    let deletion = json!({ "nodeDrainTimeoutSeconds": 77, "nodeVolumeDetachTimeoutSeconds": 78, "nodeDeletionTimeoutSeconds": 79 });
    let gate = json!({ "conditionType": "Paused", "polarity": "Negative" });
    let spec =
        json!({ "deletion": deletion, "taints": [taint], "minReadySeconds": 1, "readinessGates": [gate] });
    let labels = json!({ "node.cluster.x-k8s.io/zone": "b", "tier": null });
    let template = json!({ "metadata": { "labels": labels, "annotations": { "note": "n" } }, "spec": spec });
    workers.merge(
        (DEPLOYMENT, "d"),
        &json!({ "metadata": { "annotations": { "team": null } },
        "spec": { "template": template, "deletion": { "order": "Newest" } } }),
    );
    let after = workers.until_machines("d", "the changes", |machines| {
        machines.iter().all(|machine| {
            let (metadata, spec) = (&machine["metadata"], &machine["spec"]);
            spec["deletion"] == deletion
                && spec["taints"] == json!([taint])
                && spec["minReadySeconds"] == 1
                && spec["readinessGates"] == json!([gate])
                && metadata["labels"]["node.cluster.x-k8s.io/zone"] == "b"
                && metadata["labels"]["tier"].is_null()
                && metadata["annotations"]["note"] == "n"
        })
    });
    assert_eq!(uids(&after), uids(&before), "no Machine is replaced");
    let deployment = workers.until_complete((DEPLOYMENT, "d"), 2);
    let after = sets(&workers);
    assert_eq!((revision(&deployment), uids(&after)), (1, uids([&set])), "no rollout");
    assert_eq!(after[0]["spec"]["deletion"]["order"], "Newest");
    assert_eq!(after[0]["metadata"]["annotations"]["team"], Value::Null);
    for machine in &before {
        let node = machine["status"]["nodeRef"]["name"].as_str().unwrap();
        workload()
            .objects()
            .unwrap()
            .until(("node", node), PATIENCE, |node| {
                let node = node?;
                let taints = node["spec"]["taints"].as_array()?;
                let has_taint = taints.iter().any(|taint| taint["key"] == "example.com/dedicated");
                (has_taint && node["metadata"]["labels"]["node.cluster.x-k8s.io/zone"] == "b").then_some(())
            })
            .unwrap();
    }
}

#[test]
fn md8_revision_only_rises_and_empty_sets_are_deleted() {
    let workers = Workers::new("md-revision", 5);
    workers.deployment("d", 1, &json!({}));
    workers.until_complete((DEPLOYMENT, "d"), 1);
    let mut made = uids(&sets(&workers));
    // The third edit returns to a template whose set is gone.
    for (number, version) in [(2, NEXT_VERSION), (3, LAST_VERSION), (4, VERSION)] {
        workers.roll_out("d", version);
        workers.until((DEPLOYMENT, "d"), "the end of the rollout", |found| {
            revision(found) == number && condition(found, "RollingOut").0 == "False"
        });
        let left = workers
            .objects
            .until_among("machineset", PATIENCE, |sets| match sets {
                [set] => Some((*set).clone()),
                _ => None,
            })
            .unwrap();
        assert_eq!(
            (revision(&left), &left["spec"]["template"]["spec"]["version"]),
            (number, &json!(version))
        );
        made.extend(uids([&left]));
    }
    workers.until_complete((DEPLOYMENT, "d"), 1);
    assert_eq!(made.len(), 4, "{made:?}");
}

#[test]
fn md9_dropped_replicas_keep_the_machines() {
    let workers = Workers::new("md-dropped", 3);
    workers.deployment("d", 2, &json!({}));
    workers.until_complete((DEPLOYMENT, "d"), 2);
    let before = uids(&workers.machines("d"));
    workers
        .objects
        .edit(DEPLOYMENT, "d", "", &json!([{ "op": "remove", "path": "/spec/replicas" }]))
        .unwrap();
    workers.until((DEPLOYMENT, "d"), "the number that it has", |found| found["spec"]["replicas"] == 2);
    workers.until_complete((DEPLOYMENT, "d"), 2);
    assert_eq!(uids(&workers.machines("d")), before);
}

#[test]
fn md10_deleted_deployment_removes_everything_in_order() {
    let workers = Workers::new("md-deleted", 3);
    workers.deployment("d", 2, &json!({}));
    workers.until_complete((DEPLOYMENT, "d"), 2);
    let machines = workers.machines("d");
    let set = sets(&workers).remove(0);
    let held = name(&machines[0]);
    let hold = |finalizers: Value| {
        workers.merge(("bpm", held), &json!({ "metadata": { "finalizers": finalizers } }));
    };
    hold(json!(["tests.bedplate.dev/held"]));
    workers.objects.begin_delete(DEPLOYMENT, "d").unwrap();
    workers.until_gone(("clustermachine", name(&machines[1])));
    let deployment = workers.until((DEPLOYMENT, "d"), "one Machine", |found| {
        condition(found, "Deleting").2 == "Deleting 1 Machine"
    });
    assert_eq!(condition(&deployment, "Deleting").1, "Deleting");
    let set_now = workers.get("machineset", name(&set));
    assert!(set_now["metadata"]["deletionTimestamp"].is_string(), "the set waits for its Machine");
    let machine = workers.get("clustermachine", held);
    assert!(machine["metadata"]["deletionTimestamp"].is_string(), "the Machine waits for its host");
    hold(json!(null));
    workers.until_gone((DEPLOYMENT, "d"));
    assert_eq!(workers.machines("d"), [Value::Null; 0]);
    assert_eq!(sets(&workers), [Value::Null; 0]);
    assert_eq!(workers.clones(), <(BTreeSet<String>, BTreeSet<String>)>::default());
}
