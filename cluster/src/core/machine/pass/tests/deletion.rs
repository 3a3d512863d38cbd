//! The deletion of a Machine.

use std::time::Duration;

use serde_json::{Value, json};

use super::server::{
    BOOTSTRAP, EVICTION, INFRASTRUCTURE, MACHINE, NODE, Process, add_pod, change, deleted, get, lines,
};
use crate::core::machine::memory::Remembered;

const STATUS: &str = "PATCH /apis/cluster.x-k8s.io/v1beta2/namespaces/team-a/machines/m/status";

fn line(method: &str, path: &str) -> String {
    format!("{method} {path}")
}

/// Returns reason and message of condition `Deleting`.
fn deleting(state: &super::server::Shared) -> (String, String) {
    let conditions = get(state, MACHINE)["status"]["conditions"].clone();
    let conditions = conditions.as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == "Deleting").unwrap();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    (text("reason"), text("message"))
}

fn without_status(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| line != STATUS).collect()
}

/// Order of the writes of a deletion without Pods.
fn order() -> Vec<String> {
    [("PATCH", NODE), ("DELETE", INFRASTRUCTURE), ("DELETE", BOOTSTRAP), ("DELETE", NODE), ("PATCH", MACHINE)]
        .map(|(method, path)| line(method, path))
        .into()
}

#[tokio::test(start_paused = true)]
async fn m9_deletion_cordons_then_deletes_objects_node_and_finalizer() {
    let state = deleted().await;
    Process::start(&state).settle().await;
    assert_eq!(without_status(lines(&state)), order());
    assert_eq!(get(&state, MACHINE), Value::Null);
    let cordon = state.lock().writes[1].1.clone();
    assert_eq!(
        (&cordon["spec"], &cordon["metadata"]),
        (&json!({ "unschedulable": true }), &json!({ "uid": "u-n" }))
    );
}

#[tokio::test(start_paused = true)]
async fn m9_start_of_the_drain_is_recorded_before_the_cordon() {
    let state = deleted().await;
    let mut process = Process::start(&state);
    process.turn().await.unwrap().unwrap();
    assert_eq!(lines(&state), [STATUS]);
    let start = get(&state, MACHINE)["status"]["deletion"]["nodeDrainStartTime"].clone();
    process.turn().await.unwrap().unwrap();
    assert_eq!(lines(&state)[1], line("PATCH", NODE));
    assert!(start.is_string());
    assert_eq!(get(&state, MACHINE)["status"]["deletion"]["nodeDrainStartTime"], start, "it stays");
}

#[tokio::test(start_paused = true)]
async fn m9_budget_holds_the_drain_and_its_name_is_shown() {
    let state = deleted().await;
    add_pod(&state);
    state.lock().has_budget = true;
    let mut process = Process::start(&state);
    let after = process.settle_drain().await;
    assert!(after <= Duration::from_secs(20), "{after:?}");
    let (reason, message) = deleting(&state);
    assert_eq!(reason, "DrainingNode");
    assert!(message.contains("PodDisruptionBudget web does not allow the eviction"), "{message}");
    let evictions = || lines(&state).iter().filter(|one| **one == line("POST", EVICTION)).count();
    let (before, writes) = (evictions(), lines(&state).len());
    process.turn().await.unwrap().unwrap();
    assert_eq!(
        (evictions(), lines(&state).len()),
        (before, writes),
        "a held eviction is not repeated immediately"
    );
    assert_ne!(process.world.memory.get("u-m"), Remembered::default());
    state.lock().has_budget = false;
    Process::start(&state).settle().await;
    assert_eq!(get(&state, MACHINE), Value::Null);
    assert!(evictions() > before);
}

impl Process {
    /// Carries out turns until Pods were evicted.
    async fn settle_drain(&mut self) -> Duration {
        for _ in 0..3 {
            let after = self.turn().await.unwrap().unwrap();
            if self.world.memory.get("u-m") != Remembered::default() {
                return after.unwrap();
            }
        }
        panic!("no eviction was held");
    }
}

#[tokio::test(start_paused = true)]
async fn m5_object_of_another_machine_is_not_deleted() {
    for controller in [json!(true), json!(null)] {
        let state = deleted().await;
        let owner = json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "other", "uid": "x",
            "controller": controller }]);
        for path in [INFRASTRUCTURE, BOOTSTRAP] {
            change(&state, path, &json!({ "metadata": { "ownerReferences": owner } }));
        }
        Process::start(&state).settle().await;
        assert_eq!(get(&state, MACHINE), Value::Null);
        for path in [INFRASTRUCTURE, BOOTSTRAP] {
            assert!(!lines(&state).contains(&line("DELETE", path)), "{:?}", lines(&state));
        }
    }
}

/// The Machine has no providerID of its own, so nothing shows that the Node is its own.
#[tokio::test(start_paused = true)]
async fn m9_node_of_another_machines_infrastructure_is_not_touched() {
    let state = deleted().await;
    let owner =
        json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "other", "uid": "x" }]);
    change(&state, INFRASTRUCTURE, &json!({ "metadata": { "ownerReferences": owner } }));
    change(&state, MACHINE, &json!({ "spec": { "providerID": null }, "status": { "nodeRef": null } }));
    Process::start(&state).settle().await;
    assert_eq!(get(&state, MACHINE), Value::Null);
    assert!(lines(&state).iter().all(|line| !line.ends_with(NODE)), "{:?}", lines(&state));
}

#[tokio::test(start_paused = true)]
async fn m9_object_that_changed_meanwhile_is_not_deleted_in_that_turn() {
    let state = deleted().await;
    let mut process = Process::start(&state);
    process.turn().await.unwrap().unwrap();
    change(
        &state,
        MACHINE,
        &json!({ "metadata": { "annotations": { "machine.cluster.x-k8s.io/exclude-node-draining": "",
        "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach": "" } } }),
    );
    process.change_on_write = Some(INFRASTRUCTURE);
    assert!(process.turn().await.unwrap().is_err());
    assert!(!get(&state, INFRASTRUCTURE).is_null());
    process.change_on_write = None;
    process.settle().await;
    assert!(get(&state, INFRASTRUCTURE).is_null());
}

/// The finalizer is the only record of the object.
#[tokio::test(start_paused = true)]
async fn m9_finalizer_stays_while_the_api_server_shows_an_object() {
    let state = deleted().await;
    let mut process = Process::start(&state);
    process.hidden = Some(INFRASTRUCTURE);
    let mut after = None;
    for _ in 0..8 {
        after = process.turn().await.unwrap().unwrap();
    }
    assert!(!get(&state, MACHINE).is_null() && !get(&state, INFRASTRUCTURE).is_null());
    assert!(after.is_some_and(|after| after <= Duration::from_secs(5)), "{after:?}");
    process.hidden = None;
    process.settle().await;
    assert!(get(&state, MACHINE).is_null() && get(&state, INFRASTRUCTURE).is_null());
}

#[tokio::test(start_paused = true)]
async fn m9_rejected_write_of_the_provider_id_does_not_hold_the_deletion() {
    let state = deleted().await;
    change(&state, MACHINE, &json!({ "spec": { "providerID": null }, "status": { "nodeRef": null } }));
    state.lock().is_spec_rejected = true;
    let mut process = Process::start(&state);
    assert!(process.turn().await.unwrap().is_err());
    process.settle().await;
    assert_eq!(get(&state, MACHINE), Value::Null);
    let lines = without_status(lines(&state));
    assert_eq!(lines.first(), Some(&line("PATCH", NODE)), "it is drained first: {lines:?}");
}

#[tokio::test(start_paused = true)]
async fn m9_refused_request_of_the_deletion_is_shown() {
    for (method, path, text) in [
        ("DELETE", INFRASTRUCTURE, "BedplateMachine i cannot be deleted"),
        ("DELETE", BOOTSTRAP, "KubeadmConfig b cannot be deleted"),
        ("PATCH", MACHINE, "finalizer cannot be removed"),
    ] {
        let state = deleted().await;
        state.lock().forbidden = Some(line(method, path));
        let mut process = Process::start(&state);
        let mut last = None;
        for _ in 0..10 {
            last = process.turn().await;
        }
        assert!(last.unwrap().is_err_and(|error| error.refusal().is_some()), "{path}: it is tried again");
        assert_eq!(deleting(&state).1, format!("{text}: 403: not permitted; permit it"), "{path}");
        let writes = lines(&state).len();
        drop(process.turn().await);
        assert_eq!(lines(&state).len(), writes, "{path}: the status is written once");
        state.lock().forbidden = None;
        process.settle().await;
        assert_eq!(get(&state, MACHINE), Value::Null);
    }
}

#[tokio::test(start_paused = true)]
async fn m9_failure_to_delete_the_node_ends_at_its_timeout() {
    let state = deleted().await;
    let mut process = Process::start(&state);
    while !get(&state, BOOTSTRAP).is_null() {
        process.turn().await.unwrap().unwrap();
    }
    state.lock().is_down = true;
    let after = process.turn().await.unwrap().unwrap();
    assert_eq!(deleting(&state).0, "DeletingNode");
    assert!(after.is_some_and(|after| after <= Duration::from_secs(2)), "{after:?}");
    assert_ne!(process.world.memory.get("u-m"), Remembered::default());
    let writes = lines(&state).len();
    process.turn().await.unwrap().unwrap();
    assert_eq!(lines(&state).len(), writes, "the same failure is not reported again");
}

#[tokio::test(start_paused = true)]
async fn m9_process_that_is_killed_after_each_request_deletes_in_the_same_order() {
    let state = deleted().await;
    for _ in 0..30 {
        state.lock().left = Some(1);
        let _ = Process::start(&state).turn().await;
    }
    state.lock().left = None;
    Process::start(&state).settle().await;
    assert_eq!(get(&state, MACHINE), Value::Null);
    assert_eq!(without_status(lines(&state)), order());
}

#[tokio::test(start_paused = true)]
async fn m9_turn_without_a_place_is_repeated_and_writes_nothing() {
    let state = deleted().await;
    let mut process = Process::start(&state);
    process.turn().await.unwrap().unwrap();
    let cluster = process.world.stores.clusters.state().remove(0);
    let places: Vec<_> = (0..2).map(|_| process.world.workloads.enter(&cluster).unwrap()).collect();
    let before = lines(&state);
    for _ in 0..3 {
        let after = process.turn().await.unwrap().unwrap();
        assert_eq!(after, Some(Duration::from_secs(5)));
    }
    assert_eq!(lines(&state), before);
    drop(places);
    process.settle().await;
    assert_eq!(get(&state, MACHINE), Value::Null);
}
