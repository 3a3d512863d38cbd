//! The life of a Machine until its Node is known.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::Machine;
use bedplate_engine::watches::GroupKind;
use serde_json::json;

use super::server::{
    BOOTSTRAP, CLUSTER, INFRASTRUCTURE, MACHINE, NODE, Process, Shared, change, get, lines, state,
};
use crate::core::machine::fixture::ID;
use crate::core::machine::pass::Turn;
use crate::core::reference::Lookup;

fn patch(path: &str) -> String {
    format!("PATCH {path}")
}

#[tokio::test(start_paused = true)]
async fn m12_writes_follow_each_other_and_end() {
    let state = state();
    let mut process = Process::start(&state);
    let after = process.settle().await;
    let status = format!("PATCH {MACHINE}/status");
    let expected =
        [patch(MACHINE), patch(BOOTSTRAP), patch(INFRASTRUCTURE), patch(MACHINE), patch(NODE), status];
    assert_eq!(lines(&state)[..6], expected);
    let machine = get(&state, MACHINE);
    assert_eq!(machine["spec"]["providerID"], ID);
    assert_eq!(machine["spec"]["bootstrap"]["dataSecretName"], "s");
    assert_eq!(machine["status"]["nodeRef"]["name"], "n");
    assert_eq!(after, None, "the watch of Nodes starts the next turn");
}

/// The latch of the Cluster follows this Node, so the Node must not wait for the latch.
#[tokio::test(start_paused = true)]
async fn k6_first_machine_without_control_plane_object_finds_its_node() {
    let uninitialized =
        json!({ "status": { "initialization": { "controlPlaneInitialized": null }, "conditions": null } });
    let (state, worker) = (state(), state());
    for state in [&state, &worker] {
        change(state, CLUSTER, &uninitialized);
    }
    let label = json!({ "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } } });
    change(&state, MACHINE, &label);
    Process::start(&state).settle().await;
    let machine = get(&state, MACHINE);
    assert_eq!(machine["status"]["nodeRef"]["name"], "n");
    let conditions = machine["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|condition| condition["type"] == "NodeReady").unwrap();
    assert_eq!(ready["status"], "True");
    Process::start(&worker).settle().await;
    assert!(get(&worker, MACHINE)["status"]["nodeRef"].is_null(), "a worker does not initialize the cluster");
}

#[tokio::test(start_paused = true)]
async fn m5_adoption_is_bound_to_the_version_and_drops_the_creator() {
    let state = state();
    Process::start(&state).settle().await;
    let owners = get(&state, INFRASTRUCTURE)["metadata"]["ownerReferences"].clone();
    let owners = owners.as_array().unwrap();
    assert_eq!(
        (owners.len(), &owners[0]["kind"], &owners[0]["controller"]),
        (1, &json!("Machine"), &json!(true))
    );
    let sent = state.lock().writes[2].1.clone();
    assert!(sent["metadata"]["resourceVersion"].is_string() && sent["metadata"]["uid"] == "u-i", "{sent}");
}

#[tokio::test(start_paused = true)]
async fn m5_object_of_another_machine_is_never_written() {
    let state = state();
    let owner =
        json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "other", "uid": "x" }]);
    change(&state, INFRASTRUCTURE, &json!({ "metadata": { "ownerReferences": owner } }));
    Process::start(&state).settle().await;
    assert!(!lines(&state).contains(&patch(INFRASTRUCTURE)), "{:?}", lines(&state));
    assert!(get(&state, MACHINE)["spec"]["providerID"].is_null());
    assert!(!lines(&state).contains(&patch(NODE)));
}

#[tokio::test(start_paused = true)]
async fn m3_data_of_the_machine_is_written_before_its_name() {
    let state = state();
    change(&state, MACHINE, &json!({ "spec": { "bootstrap": { "configRef": null, "data": "text" } } }));
    Process::start(&state).settle().await;
    let lines = lines(&state);
    let secrets = "POST /api/v1/namespaces/team-a/secrets";
    let at = lines.iter().position(|line| line == secrets).unwrap();
    assert_eq!(lines[at + 1], patch(MACHINE), "the name follows in the same turn: {lines:?}");
    assert_eq!(get(&state, MACHINE)["spec"]["bootstrap"]["dataSecretName"], "m-user-data");
    let secret = get(&state, "/api/v1/namespaces/team-a/secrets/m-user-data");
    assert_eq!(secret["data"]["value"], "dGV4dA==");
    assert_eq!(
        (&secret["type"], &secret["metadata"]["ownerReferences"][0]["uid"]),
        (&json!("cluster.x-k8s.io/secret"), &json!("u-m"))
    );
}

#[tokio::test(start_paused = true)]
async fn m3_foreign_secret_is_not_overwritten() {
    let state = state();
    change(&state, MACHINE, &json!({ "spec": { "bootstrap": { "configRef": null, "data": "text" } } }));
    let path = "/api/v1/namespaces/team-a/secrets/m-user-data";
    change(&state, path, &json!({ "metadata": { "name": "m-user-data" }, "data": { "value": "eA==" } }));
    Process::start(&state).settle().await;
    assert_eq!(get(&state, path)["data"]["value"], "eA==");
    assert!(get(&state, MACHINE)["spec"]["bootstrap"]["dataSecretName"].is_null());
}

#[tokio::test(start_paused = true)]
async fn m11_paused_machine_gets_one_condition_and_no_other_write() {
    let state = state();
    change(&state, MACHINE, &json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } }));
    Process::start(&state).settle().await;
    assert_eq!(lines(&state), [format!("PATCH {MACHINE}/status")]);
    let sent = state.lock().writes[0].1["status"]["conditions"].clone();
    assert_eq!((sent.as_array().unwrap().len(), &sent[0]["type"]), (1, &json!("Paused")));
}

#[tokio::test(start_paused = true)]
async fn m12_conditions_of_other_writers_are_not_sent() {
    let state = state();
    let foreign = json!({ "type": "Foreign", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    change(&state, MACHINE, &json!({ "status": { "conditions": [foreign] } }));
    Process::start(&state).settle().await;
    let writes = state.lock().writes.clone();
    let status = writes.iter().find(|(line, _)| line.ends_with("/status")).unwrap();
    assert!(!status.1.to_string().contains("Foreign"), "{}", status.1);
}

#[tokio::test(start_paused = true)]
async fn m8_node_that_changed_meanwhile_is_read_again() {
    let state = state();
    let mut process = Process::start(&state);
    for _ in 0..4 {
        process.turn().await.unwrap().unwrap();
    }
    process.is_lagging = true;
    change(&state, NODE, &json!({ "metadata": { "labels": { "other": "x" } } }));
    assert!(process.turn().await.unwrap().is_err(), "the write is bound to the version that was read");
    process.turn().await.unwrap().unwrap();
    let node = get(&state, NODE);
    assert_eq!(node["metadata"]["labels"]["other"], "x");
    assert_eq!(node["metadata"]["annotations"]["cluster.x-k8s.io/machine"], "m");
}

#[tokio::test(start_paused = true)]
async fn m12_process_that_is_killed_after_each_write_reaches_the_same_state() {
    let state = state();
    for _ in 0..20 {
        state.lock().left = Some(1);
        let _ = Process::start(&state).turn().await;
    }
    state.lock().left = None;
    let before = state.lock().writes.len();
    Process::start(&state).settle().await;
    assert_eq!(state.lock().writes.len(), before, "nothing is left to write: {:?}", lines(&state));
    assert_eq!(get(&state, MACHINE)["status"]["nodeRef"]["name"], "n");
    assert_eq!(lines(&state).iter().filter(|line| **line == patch(NODE)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn m5_core_kind_is_refused_by_name() {
    let state = state();
    let core = json!({ "apiGroup": "cluster.x-k8s.io", "kind": "Machine", "name": "cp" });
    let spec = json!({ "infrastructureRef": core, "bootstrap": { "configRef": core } });
    change(&state, MACHINE, &json!({ "spec": spec }));
    let process = Process::start(&state);
    let machine: Machine = serde_json::from_value(get(&state, MACHINE)).unwrap();
    let turn = Turn::observe(Arc::new(machine), &process.world);
    for lookup in [&turn.observed.infrastructure, &turn.observed.bootstrap] {
        let Lookup::Unresolved(why) = lookup else { panic!("{lookup:?}") };
        assert!(why.starts_with("Machine is a kind of cluster.x-k8s.io"), "{why}");
    }
    let named = GroupKind::new("cluster.x-k8s.io", "Machine");
    assert!(process.world.watches.users(&named).is_empty(), "the kind is not watched");
}

/// Returns status, reason and message of a condition of the Machine.
fn condition(state: &Shared, type_: &str) -> (String, String, String) {
    let conditions = get(state, MACHINE)["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == type_).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn m12_refused_write_is_shown_in_the_condition_that_it_serves() {
    let credential = "API server of the workload cluster refused the credential of the kubeconfig (HTTP status 403); see the user of Secret c-kubeconfig";
    for (path, type_, shown, text) in [
        (MACHINE, "Deleting", ("Unknown", "InternalError"), "finalizer cannot be added: 403: not permitted"),
        (
            BOOTSTRAP,
            "BootstrapConfigReady",
            ("Unknown", "InternalError"),
            "KubeadmConfig b cannot be adopted: 403: not permitted",
        ),
        (
            INFRASTRUCTURE,
            "InfrastructureReady",
            ("Unknown", "InternalError"),
            "BedplateMachine i cannot be adopted: 403: not permitted",
        ),
        (
            NODE,
            "NodeReady",
            ("True", "NodeReady"),
            &format!("labels, annotations and taints of Node n cannot be changed: {credential}"),
        ),
    ] {
        let state = state();
        state.lock().forbidden = Some(patch(path));
        let mut process = Process::start(&state);
        let mut last = None;
        for _ in 0..8 {
            last = process.turn().await;
        }
        assert!(last.unwrap().is_err_and(|error| error.refusal().is_some()), "{path}: it is tried again");
        let (status, reason, message) = condition(&state, type_);
        assert_eq!((status.as_str(), reason.as_str()), shown, "{path}");
        assert_eq!(message, format!("{text}; permit it"), "{path}");
        let writes = lines(&state).len();
        drop(process.turn().await);
        assert_eq!(lines(&state).len(), writes, "{path}: the status is written once");
        state.lock().forbidden = None;
        process.settle().await;
        assert!(!condition(&state, type_).2.contains("permit it"), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn m3_refused_request_for_the_data_is_shown() {
    for (line, text) in [
        ("GET /api/v1/namespaces/team-a/secrets/m-user-data", "cannot be read"),
        ("POST /api/v1/namespaces/team-a/secrets", "cannot be written"),
    ] {
        let state = state();
        change(&state, MACHINE, &json!({ "spec": { "bootstrap": { "configRef": null, "data": "text" } } }));
        state.lock().forbidden = Some(line.to_owned());
        let mut process = Process::start(&state);
        for _ in 0..6 {
            drop(process.turn().await);
        }
        let (status, reason, message) = condition(&state, "BootstrapConfigReady");
        assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "InternalError"));
        assert_eq!(message, format!("Secret m-user-data {text}: 403: not permitted; permit it"));
        let writes = lines(&state).len();
        assert!(process.turn().await.unwrap().is_err());
        assert_eq!(lines(&state).len(), writes, "the status is written once");
        state.lock().forbidden = None;
        process.settle().await;
        assert_eq!(get(&state, MACHINE)["spec"]["bootstrap"]["dataSecretName"], "m-user-data");
    }
}

#[tokio::test(start_paused = true)]
async fn m8_refused_write_of_a_node_stays_shown_without_a_place() {
    let state = state();
    state.lock().forbidden = Some(patch(NODE));
    let mut process = Process::start(&state);
    for _ in 0..8 {
        drop(process.turn().await);
    }
    let cluster = process.world.stores.clusters.state().remove(0);
    let _places: Vec<_> = (0..2).map(|_| process.world.workloads.enter(&cluster).unwrap()).collect();
    let before = lines(&state);
    assert_eq!(process.turn().await.unwrap().unwrap(), Some(Duration::from_secs(5)));
    assert_eq!(lines(&state), before, "nothing has changed");
    assert!(condition(&state, "NodeReady").2.ends_with("permit it"));
}

#[tokio::test(start_paused = true)]
async fn m8_node_that_finds_no_place_is_written_later() {
    let state = state();
    let mut process = Process::start(&state);
    for _ in 0..4 {
        process.turn().await.unwrap().unwrap();
    }
    let cluster = process.world.stores.clusters.state().remove(0);
    let places: Vec<_> = (0..2).map(|_| process.world.workloads.enter(&cluster).unwrap()).collect();
    assert_eq!(process.turn().await.unwrap().unwrap(), Some(Duration::from_secs(5)));
    assert!(!lines(&state).contains(&patch(NODE)), "{:?}", lines(&state));
    assert_eq!(get(&state, MACHINE)["status"]["nodeRef"]["name"], "n", "the status does not wait");
    drop(places);
    process.settle().await;
    assert!(lines(&state).contains(&patch(NODE)));
}
