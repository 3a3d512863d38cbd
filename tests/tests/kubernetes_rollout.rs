//! Rolling updates (C4) and `deletionPolicy: Drain` on a real API server: the real controller under the role that `deploy/` gives it, real
//! evictions and PodDisruptionBudgets; hosts and their agents are simulated (`rollout/fleet.rs`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "rollout/fleet.rs"]
mod fleet;
#[path = "rollout/site.rs"]
mod site;

use std::sync::Arc;

use bedplate_api::machine::DeletionPolicy;
use bedplate_tests::objects;
use serde_json::{Value, json};

use self::fleet::{Fleet, pod, workload};
use self::site::{Site, is_cordoned, rolling};

/// A configuration and Machines that have its first version.
async fn paved(site: &Site, name: &str, spec: &Value, names: &[&str]) -> Arc<Fleet> {
    site.configuration(name, spec, 1);
    for machine in names {
        site.apply(&objects::machine(machine).configuration(name).json());
    }
    let fleet = Fleet::start(site.client().await, site.objects(), names).await;
    for machine in names {
        site.has(machine, 1).await;
    }
    fleet.count().await;
    fleet
}

fn uids(site: &Site, names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| site.get("node", name).unwrap()["metadata"]["uid"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_on_delete_an_edit_alone_disturbs_nothing() {
    let (site, names) = (Site::shared(), ["still-1", "still-2"]);
    let fleet = paved(site, "still", &json!({}), &names).await;
    let before = uids(site, &names);
    site.configuration("still", &json!({}), 2);
    site.until(("mc", "still"), "outdated Machines", |mc| mc["status"]["machines"]["outdated"] == 2).await;
    site.until(("mc", "still"), "what to do", |mc| site::progressing(mc) == "AwaitingNodeDeletion").await;
    assert_eq!(uids(site, &names), before);
    for name in names {
        assert_eq!(site.get("machine", name).unwrap()["status"]["selected"]["version"], 1);
    }
    assert_eq!(fleet.most(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_machines_are_updated_one_by_one_within_a_disruption_budget() {
    let (site, names) = (Site::shared(), ["three-1", "three-2", "three-3"]);
    let fleet = paved(site, "three", &rolling(&json!({})), &names).await;
    site.namespace("three");
    site.budget("three", 2);
    tokio::spawn(workload(fleet.clone(), "three".to_owned(), 3));
    site.until_pods("three", 3).await;
    let before = uids(site, &names);
    // The third has a Pod that stays.
    pod(&fleet.client, "three", "network", "three-3", Some("DaemonSet")).await;
    site.configuration("three", &rolling(&json!({})), 2);
    for name in names {
        site.has(name, 2).await;
    }
    site.until(("mc", "three"), "its end", |mc| site::progressing(mc) == "UpToDate").await;
    assert_eq!(fleet.most(), 1);
    for (name, before) in names.iter().zip(before) {
        let node = site.get("node", name).unwrap();
        assert!(node["metadata"]["uid"] != before && !is_cordoned(&node), "{node:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_unavailable_nodes_use_up_the_budget_for_any_cause() {
    let (site, names) = (Site::shared(), ["budget-1", "budget-2", "budget-3", "budget-4"]);
    let spec = rolling(&json!({ "maxUnavailable": "50%" }));
    let fleet = paved(site, "budget", &spec, &names).await;
    fleet.ready("budget-3", false).await;
    fleet.ready("budget-4", false).await;
    site.until(("mc", "budget"), "two that are down", |mc| {
        site::message(mc, "Progressing").contains("run the version that a repave would select")
    })
    .await;
    site.configuration("budget", &spec, 2);
    let used =
        site.until(("mc", "budget"), "no room", |mc| site::progressing(mc) == "MaxUnavailableReached").await;
    let message = site::message(&used, "Progressing");
    assert!(
        message.contains("2 unavailable, maxUnavailable is 2: budget-3 (its Node is not Ready)"),
        "{message}"
    );
    assert!(names.iter().all(|name| !is_cordoned(&site.get("node", name).unwrap())));
    fleet.ready("budget-3", true).await;
    fleet.ready("budget-4", true).await;
    for name in names {
        site.has(name, 2).await;
    }
    assert!(fleet.most() <= 2, "{}", fleet.most());
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_persons_cordon_is_left_alone_and_named_and_the_others_go_on() {
    let (site, names) = (Site::shared(), ["hands-1", "hands-2", "hands-3"]);
    let spec = rolling(&json!({ "maxUnavailable": 2 }));
    let fleet = paved(site, "hands", &spec, &names).await;
    site.cordon("hands-2", true);
    site.configuration("hands", &spec, 2);
    for name in ["hands-1", "hands-3"] {
        site.has(name, 2).await;
    }
    let left =
        site.until(("mc", "hands"), "the others' end", |mc| site::progressing(mc) == "MachinesSkipped").await;
    let message = site::message(&left, "Progressing");
    assert!(message.contains("hands-2 (a user cordoned its Node"), "{message}");
    let node = site.get("node", "hands-2").unwrap();
    assert!(
        is_cordoned(&node) && node["metadata"]["annotations"]["bedplate.dev/cordoned-by"].is_null(),
        "{node:#}"
    );
    assert_eq!(fleet.most(), 2, "one at a time beside the person's");
    site.cordon("hands-2", false);
    site.has("hands-2", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_timed_out_drain_pauses_the_rollout_until_a_user_resolves_it() {
    let (site, names) = (Site::shared(), ["late-1", "late-2"]);
    let spec = rolling(&json!({ "drainTimeoutSeconds": 2 }));
    let fleet = paved(site, "late", &spec, &names).await;
    site.namespace("late");
    site.budget("late", 1);
    pod(&fleet.client, "late", "only", "late-1", Some("ReplicaSet")).await;
    let is_counted = |budget: &Value| budget["status"]["currentHealthy"] == 1;
    site.until_within("late", ("pdb", "late"), "the Pod is counted", is_counted).await;
    site.configuration("late", &spec, 2);
    let late = site.until(("mc", "late"), "the time-out", |mc| site::degraded(mc) == "DrainTimedOut").await;
    let message = site::message(&late, "Degraded");
    assert!(message.contains("late-1: not drained within 2 s: late/only (Cannot evict pod"), "{message}");
    assert_eq!(site::progressing(&late), "PausedOnFailure");
    assert!(!is_cordoned(&site.get("node", "late-1").unwrap()), "it was given free");
    assert_eq!(site.get("machine", "late-2").unwrap()["status"]["applied"]["version"], 1);
    site.without_budget("late");
    site.retry_drain("late-1");
    for name in names {
        site.has(name, 2).await;
    }
    site.until(("mc", "late"), "no trouble", |mc| site::degraded(mc).is_empty()).await;
    assert_eq!(fleet.most(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_pod_without_a_controller_is_not_evicted_nor_its_node_cordoned() {
    let site = Site::shared();
    let fleet = paved(site, "lone", &rolling(&json!({})), &["lone-1"]).await;
    site.namespace("lone");
    pod(&fleet.client, "lone", "mine", "lone-1", None).await;
    site.configuration("lone", &rolling(&json!({})), 2);
    let held = site.until(("mc", "lone"), "the Pod", |mc| site::degraded(mc) == "UnmanagedPods").await;
    assert!(site::message(&held, "Degraded").contains("lone/mine"), "{held:#}");
    assert_eq!(fleet.most(), 0);
    fleet::end(&fleet.client, "lone", "mine").await;
    site.retry_drain("lone-1");
    site.has("lone-1", 2).await;
    // If a person says so, it goes.
    pod(&fleet.client, "lone", "mine", "lone-1", None).await;
    site.configuration("lone", &rolling(&json!({ "drain": { "force": true } })), 3);
    site.has("lone-1", 3).await;
    site.until_pods("lone", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_host_that_does_not_get_the_version_keeps_no_other_from_its_turn() {
    let (site, names) = (Site::shared(), ["dry-1", "dry-2"]);
    let fleet = paved(site, "dry", &rolling(&json!({})), &names).await;
    fleet.starved.lock().unwrap().insert("dry-1".to_owned());
    site.configuration("dry", &rolling(&json!({})), 2);
    site.has("dry-2", 2).await;
    let left =
        site.until(("mc", "dry"), "the other's end", |mc| site::progressing(mc) == "AwaitingPrefetch").await;
    let message = site::message(&left, "Progressing");
    assert!(message.contains("dry-1 has not prepared dry-v2 (ImageUnavailable"), "{message}");
    let dry = site.get("machine", "dry-1").unwrap();
    assert!(site::message(&dry, "Ready").contains("dry-v2 is not prepared"), "{dry:#}");
    assert!(!is_cordoned(&site.get("node", "dry-1").unwrap()));
    fleet.starved.lock().unwrap().clear();
    site.has("dry-1", 2).await;
    assert_eq!(fleet.most(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn h6_reregistered_node_is_reported_until_it_is_deleted_again() {
    let site = Site::shared();
    let fleet = paved(site, "anew", &json!({}), &["anew-1"]).await;
    site.configuration("anew", &json!({}), 2);
    site.until(("mc", "anew"), "a newer version", |mc| mc["status"]["latestVersion"] == 2).await;
    fleet.away.lock().unwrap().insert("anew-1".to_owned());
    site.without_controller(|| {
        site.objects().delete("node", "anew-1").unwrap();
        site.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "anew-1" },
            "spec": { "providerID": "bedplate://anew-1" } }));
    });
    let recreated = |machine: &Value| site::reason(machine, "Ready") == "NodeReregistered";
    let machine = site.until(("machine", "anew-1"), "that it runs on as it was", recreated).await;
    let message = site::message(&machine, "Ready");
    assert!(
        ["anew-v1", "anew-v2", "delete the Node again"].iter().all(|word| message.contains(word)),
        "{message}"
    );
    assert_eq!(machine["status"]["selected"]["version"], 1);
    site.objects().delete("node", "anew-1").unwrap();
    fleet.away.lock().unwrap().clear();
    site.has("anew-1", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_version_that_does_not_come_up_stops_the_update_until_it_is_edited() {
    let (site, names) = (Site::shared(), ["bad-1", "bad-2"]);
    let fleet = paved(site, "bad", &rolling(&json!({})), &names).await;
    fleet.bad.lock().unwrap().insert(2);
    site.configuration("bad", &rolling(&json!({})), 2);
    let back = site.until(("mc", "bad"), "the rollback", |mc| site::degraded(mc) == "RolledBack").await;
    assert!(
        site::message(&back, "Degraded").contains("bad-1: bad-v2 failed and was rolled back"),
        "{back:#}"
    );
    assert_eq!(site::progressing(&back), "PausedOnFailure");
    let second = site.get("machine", "bad-2").unwrap();
    assert_eq!(second["status"]["applied"]["version"], 1);
    site.configuration("bad", &rolling(&json!({})), 3);
    for name in names {
        site.has(name, 3).await;
    }
    assert_eq!(fleet.most(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_another_strategy_or_a_pause_in_the_middle_gives_the_node_free() {
    let (site, names) = (Site::shared(), ["middle-1", "middle-2"]);
    let fleet = paved(site, "middle", &rolling(&json!({})), &names).await;
    site.namespace("middle");
    site.budget("middle", 1);
    pod(&fleet.client, "middle", "only", "middle-1", Some("ReplicaSet")).await;
    site.configuration("middle", &rolling(&json!({})), 2);
    let held =
        |node: &Value| node["metadata"]["annotations"]["bedplate.dev/cordoned-by"] == "rollout/middle-v2";
    site.until(("node", "middle-1"), "its turn", held).await;
    let is_updating = |m: &Value| m["status"]["phase"] == "Updating";
    site.until(("machine", "middle-1"), "its phase says so", is_updating).await;
    site.configuration("middle", &json!({}), 2);
    site.until(("node", "middle-1"), "its freedom", |node| !is_cordoned(node)).await;
    site.until(("machine", "middle-1"), "its phase says so", |m| m["status"]["phase"] == "Ready").await;
    site.configuration("middle", &rolling(&json!({})), 2);
    site.until(("node", "middle-1"), "its turn", held).await;
    site.apply(&objects::machine("middle-1").configuration("middle").paused(true).json());
    site.until(("node", "middle-1"), "its freedom", |node| !is_cordoned(node)).await;
    // The other one has its turn meanwhile.
    site.has("middle-2", 2).await;
    // An edit while it is paused: it continues with the newest.
    site.configuration("middle", &rolling(&json!({})), 3);
    site.has("middle-2", 3).await;
    site.without_budget("middle");
    site.apply(&objects::machine("middle-1").configuration("middle").json());
    site.has("middle-1", 3).await;
    assert_eq!(fleet.most(), 1);
}

/// A Machine whose deletion drains its Node.
fn drained(name: &str, configuration: &str) -> Value {
    let machine = objects::machine(name).configuration(configuration);
    machine.spec(|spec| spec.deletion_policy = DeletionPolicy::Drain).json()
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_deleted_with_drain_is_removed_after_pods_node_and_slot() {
    let (site, names) = (Site::shared(), ["leaves-1", "leaves-2"]);
    let fleet = paved(site, "leaves", &json!({}), &names).await;
    site.namespace("leaves");
    site.budget("leaves", 1);
    pod(&fleet.client, "leaves", "only", "leaves-1", Some("ReplicaSet")).await;
    site.apply(&drained("leaves-1", "leaves"));
    site.until(("machine", "leaves-1"), "its finalizer", |m| {
        m["metadata"]["finalizers"].to_string().contains("bedplate.dev/drain")
    })
    .await;
    for name in names {
        site.objects().begin_delete("machine", name).unwrap();
    }
    site.until_gone("machine", "leaves-2").await;
    assert!(!is_cordoned(&site.get("node", "leaves-2").unwrap()), "Retain touches nothing");
    site.until(("machine", "leaves-1"), "what it waits for", |m| {
        site::message(m, "Ready").contains("waiting for leaves/only (Cannot evict pod")
    })
    .await;
    // A user decides to keep the node.
    site.merge("machine", "leaves-1", &json!({ "spec": { "deletionPolicy": "Retain" } }));
    site.until_gone("machine", "leaves-1").await;
    let node = site.get("node", "leaves-1").unwrap();
    assert!(
        !is_cordoned(&node) && node["metadata"]["annotations"]["bedplate.dev/cordoned-by"].is_null(),
        "{node:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_machine_is_removed_once_its_agent_has_stopped_the_slot() {
    let site = Site::shared();
    let fleet = paved(site, "drained", &json!({}), &["drained-1"]).await;
    site.namespace("drained");
    pod(&fleet.client, "drained", "only", "drained-1", Some("ReplicaSet")).await;
    pod(&fleet.client, "drained", "lone", "drained-1", None).await;
    site.apply(&drained("drained-1", "drained"));
    site.until(("machine", "drained-1"), "its finalizer", |m| {
        m["metadata"]["finalizers"].to_string().contains("bedplate.dev/drain")
    })
    .await;
    site.objects().begin_delete("machine", "drained-1").unwrap();
    site.until_gone("node", "drained-1").await;
    site.until_gone("machine", "drained-1").await;
    site.until_pods("drained", 0).await;
}
