//! The pass over a MachineHealthCheck with an API server in memory, named after the rules.

use bedplate_engine::write::WriteError;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, from_value, json};

use super::pass::reconcile;
use crate::core::api_server::{ApiServer, CORE};

const TIME: &str = "2026-01-01T00:00:00Z";

fn path(kind: &str, name: &str) -> String {
    format!("{CORE}/{kind}/{name}")
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": TIME })
}

/// A server with a health check that is adopted, and with Machines whose Nodes have this status.
fn server(nodes: &[(&str, &str)]) -> ApiServer {
    let server = ApiServer::default();
    let conditions =
        [condition("ControlPlaneInitialized", "True", "R"), condition("InfrastructureReady", "True", "R")];
    let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "name": "c", "namespace": "ns", "uid": "cluster" }, "spec": {}, "status": { "conditions": conditions } });
    server.put(&path("clusters", "c"), cluster);
    let owner = json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "cluster" }]);
    let check = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
        "metadata": { "name": "h", "namespace": "ns", "uid": "check", "generation": 1, "ownerReferences": owner,
            "labels": { "cluster.x-k8s.io/cluster-name": "c" } },
        "spec": { "clusterName": "c", "selector": { "matchLabels": { "pool": "a" } },
            "checks": { "unhealthyNodeConditions": [{ "type": "Ready", "status": "False", "timeoutSeconds": 60 }] } } });
    server.put(&path("machinehealthchecks", "h"), check);
    for (name, ready) in nodes {
        let reason = if *ready == "True" { "NodeReady" } else { "NodeNotReady" };
        let conditions = [
            condition("InfrastructureReady", "True", "R"),
            condition("NodeReady", ready, reason),
            condition("example.org/Other", "True", "R"),
        ];
        let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": { "name": name, "namespace": "ns", "creationTimestamp": TIME,
                "labels": { "cluster.x-k8s.io/cluster-name": "c", "pool": "a" } },
            "spec": { "clusterName": "c", "providerID": format!("p://{name}"), "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": name } },
            "status": { "nodeRef": { "name": name }, "conditions": conditions } });
        server.put(&path("machines", name), machine);
    }
    server
}

/// Returns the Node of a Machine, with the state that the Machine shows.
fn node(machine: &Value) -> Node {
    let conditions = machine["status"]["conditions"].as_array().unwrap();
    let mut ready = conditions.iter().find(|one| one["type"] == "NodeReady").unwrap().clone();
    ready["type"] = "Ready".into();
    from_value(json!({ "metadata": { "name": machine["metadata"]["name"], "uid": "u" },
        "spec": { "providerID": machine["spec"]["providerID"] }, "status": { "conditions": [ready] } }))
    .unwrap()
}

async fn pass(server: &ApiServer) -> Result<(), WriteError> {
    pass_of(server, "h").await
}

async fn pass_of(server: &ApiServer, name: &str) -> Result<(), WriteError> {
    let world = server.world();
    let nodes = server.all::<Value>(&format!("{CORE}/machines")).iter().map(node).collect();
    world.workloads.set_nodes(&world.stores.clusters.state()[0], nodes);
    let check = world.stores.checks.get(&ObjectRef::new(name).within("ns")).unwrap();
    reconcile(check, world).await.map(drop)
}

/// Runs the passes of several checks in turn until nothing is written.
async fn settle(server: &ApiServer, checks: &[&str]) {
    for _ in 0..10 {
        drop(server.take());
        for check in checks {
            pass_of(server, check).await.unwrap();
        }
        if server.lines().is_empty() {
            return;
        }
    }
    panic!("the checks write against each other");
}

/// Adds a check that selects the same Machines, and counts another status of their Nodes.
fn put_second(server: &ApiServer, status: &str, seconds: u32) {
    let mut check = server.get(&path("machinehealthchecks", "h")).unwrap();
    (check["metadata"]["name"], check["metadata"]["uid"]) = ("g".into(), "second".into());
    let rule = json!({ "type": "Ready", "status": status, "timeoutSeconds": seconds });
    check["spec"]["checks"] = json!({ "unhealthyNodeConditions": [rule] });
    server.put(&path("machinehealthchecks", "g"), check);
}

/// Returns status, reason and message of a condition of a Machine.
fn shown(server: &ApiServer, machine: &str, type_: &str) -> Option<[String; 3]> {
    let all = server.get(&path("machines", machine)).unwrap()["status"]["conditions"].clone();
    let one = all.as_array().unwrap().iter().find(|one| one["type"] == type_)?.clone();
    Some(["status", "reason", "message"].map(|field| one[field].as_str().unwrap().to_owned()))
}

fn set_ready(server: &ApiServer, machine: &str, status: &str, reason: &str) {
    server.edit(&path("machines", machine), |machine| {
        let conditions = machine["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|one| one["type"] != "NodeReady");
        conditions.push(condition("NodeReady", status, reason));
    });
}

fn types(conditions: &Value) -> Vec<&str> {
    conditions.as_array().unwrap().iter().map(|one| one["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn hc3_marks_have_an_own_field_manager_and_keep_other_conditions() {
    let server = server(&[("bad", "False"), ("good", "True")]);
    pass(&server).await.unwrap();
    let writes = server.take();
    let machine = |name: &str| format!("PATCH {}/status", path("machines", name));
    let lines: Vec<&str> = writes.iter().map(|write| write.line.as_str()).collect();
    let status = format!("PATCH {}/status", path("machinehealthchecks", "h"));
    assert_eq!(lines, [&machine("bad"), &machine("good"), &status]);
    let [bad, good, own] = &writes[..] else { panic!() };
    assert_eq!(
        (bad.manager.as_str(), good.manager.as_str()),
        ("bedplate-cluster-health", "bedplate-cluster-health")
    );
    assert_eq!(own.manager, "bedplate-cluster-core");
    assert_eq!(types(&bad.body["status"]["conditions"]), ["HealthCheckSucceeded", "OwnerRemediated"]);
    assert_eq!(types(&good.body["status"]["conditions"]), ["HealthCheckSucceeded"]);
    assert!(bad.body["metadata"]["resourceVersion"].is_string() && bad.body["metadata"]["uid"].is_string());
    let all = server.get(&path("machines", "bad")).unwrap()["status"]["conditions"].clone();
    for type_ in
        ["InfrastructureReady", "NodeReady", "example.org/Other", "HealthCheckSucceeded", "OwnerRemediated"]
    {
        assert!(types(&all).contains(&type_), "{type_}");
    }
    assert_eq!(
        (&own.body["status"]["expectedMachines"], &own.body["status"]["currentHealthy"]),
        (&json!(2), &json!(1))
    );
}

#[tokio::test]
async fn hc3_unchanged_machines_cause_no_write() {
    let server = server(&[("bad", "False"), ("good", "True")]);
    pass(&server).await.unwrap();
    drop(server.take());
    for _ in 0..3 {
        pass(&server).await.unwrap();
    }
    assert_eq!(server.lines(), [""; 0]);
}

#[tokio::test]
async fn hc3_recovered_machine_keeps_the_mark_for_its_owner() {
    let server = server(&[("bad", "False")]);
    pass(&server).await.unwrap();
    drop(server.take());
    set_ready(&server, "bad", "True", "NodeReady");
    pass(&server).await.unwrap();
    let all = server.get(&path("machines", "bad")).unwrap()["status"]["conditions"].clone();
    let status = |type_: &str| {
        let all = all.as_array().unwrap();
        all.iter().find(|one| one["type"] == type_).map(|one| one["status"].as_str().unwrap().to_owned())
    };
    assert_eq!(status("HealthCheckSucceeded").as_deref(), Some("True"));
    assert_eq!(status("OwnerRemediated").as_deref(), Some("False"), "the owner removes it");
}

#[tokio::test]
async fn hc1_new_check_gets_label_and_owner_before_its_status() {
    let server = server(&[]);
    server.edit(&path("machinehealthchecks", "h"), |check| {
        check["metadata"]["labels"] = json!({ "other": "y" });
        check["metadata"]["ownerReferences"] = json!([]);
    });
    pass(&server).await.unwrap();
    let line = format!("PATCH {}", path("machinehealthchecks", "h"));
    assert_eq!(server.lines(), [line.as_str()]);
    let metadata = server.get(&path("machinehealthchecks", "h")).unwrap()["metadata"].clone();
    assert_eq!(metadata["labels"], json!({ "other": "y", "cluster.x-k8s.io/cluster-name": "c" }));
    assert_eq!(metadata["ownerReferences"][0]["uid"], "cluster");
    pass(&server).await.unwrap();
    assert_eq!(server.lines(), [format!("{line}/status")]);
}

#[tokio::test]
async fn hc3_failure_about_one_machine_does_not_hold_up_the_others() {
    let server = server(&[("bad", "False"), ("good", "True")]);
    server.reject(&format!("PATCH {}/status", path("machines", "bad")));
    assert!(pass(&server).await.is_err());
    assert_eq!(server.lines().len(), 3);
    assert!(server.get(&path("machines", "good")).unwrap().to_string().contains("HealthCheckSucceeded"));
}

#[tokio::test]
async fn hc3_one_failed_check_of_two_decides_and_both_end_their_writes() {
    let server = server(&[("m", "False")]);
    put_second(&server, "Unknown", 60);
    settle(&server, &["g", "h"]).await;
    let message = "Node condition Ready is False for more than 60 s";
    let failed = |message: &str| Some(["False", "UnhealthyNode", message].map(str::to_owned));
    assert_eq!(shown(&server, "m", "HealthCheckSucceeded"), failed(message));
    assert!(shown(&server, "m", "OwnerRemediated").is_some());
    // Both fail: each writes both causes.
    put_second(&server, "False", 30);
    settle(&server, &["h", "g"]).await;
    let both = format!("Node condition Ready is False for more than 30 s; {message}");
    assert_eq!(shown(&server, "m", "HealthCheckSucceeded"), failed(&both));
    set_ready(&server, "m", "True", "NodeReady");
    settle(&server, &["g", "h"]).await;
    assert_eq!(shown(&server, "m", "HealthCheckSucceeded").unwrap()[0], "True");
}

#[tokio::test]
async fn hc3_machine_succeeds_only_if_all_of_its_checks_succeed() {
    let server = server(&[("m", "True")]);
    // The Node has the status, and the timeout has not expired.
    put_second(&server, "True", 2_000_000_000);
    settle(&server, &["h", "g"]).await;
    assert_eq!(shown(&server, "m", "HealthCheckSucceeded"), None);
    server.edit(&path("machinehealthchecks", "g"), |check| {
        check["metadata"]["annotations"] = json!({ "cluster.x-k8s.io/paused": "" });
    });
    settle(&server, &["h", "g"]).await;
    assert_eq!(shown(&server, "m", "HealthCheckSucceeded").unwrap()[0], "True", "a paused check has no vote");
}

#[tokio::test]
async fn hc3_deleted_check_does_not_keep_its_failure() {
    let server = server(&[("m", "False")]);
    put_second(&server, "Unknown", 60);
    settle(&server, &["g", "h"]).await;
    server.remove(&path("machinehealthchecks", "h"));
    settle(&server, &["g"]).await;
    assert_eq!(shown(&server, "m", "HealthCheckSucceeded").unwrap()[0], "True");
}

#[tokio::test]
async fn hc1_refused_adoption_does_not_hide_the_status() {
    let server = server(&[("bad", "False")]);
    server.edit(&path("machinehealthchecks", "h"), |check| check["metadata"]["ownerReferences"] = json!([]));
    let line = format!("PATCH {}", path("machinehealthchecks", "h"));
    server.reject_as(&line, (403, "Forbidden"));
    let refused = pass(&server).await.unwrap_err();
    assert!(refused.refusal().is_some());
    let status = server.get(&path("machinehealthchecks", "h")).unwrap()["status"].clone();
    assert_eq!(status["expectedMachines"], 1);
}

#[tokio::test]
async fn hc2_each_condition_of_a_node_is_judged() {
    let server = server(&[("bad", "True"), ("good", "True")]);
    server.edit(&path("machinehealthchecks", "h"), |check| {
        let rule = json!({ "type": "KernelDeadlock", "status": "True", "timeoutSeconds": 60 });
        check["spec"]["checks"]["unhealthyNodeConditions"] = json!([rule]);
    });
    let world = server.world();
    let mut nodes: Vec<Node> = server.all::<Value>(&format!("{CORE}/machines")).iter().map(node).collect();
    let deadlock =
        from_value(json!({ "type": "KernelDeadlock", "status": "True", "lastTransitionTime": TIME }))
            .unwrap();
    nodes[0].status.as_mut().unwrap().conditions.as_mut().unwrap().push(deadlock);
    world.workloads.set_nodes(&world.stores.clusters.state()[0], nodes);
    let check = world.stores.checks.state().remove(0);
    reconcile(check, world).await.unwrap();
    let machine = |name: &str| server.get(&path("machines", name)).unwrap().to_string();
    assert!(machine("bad").contains("Node condition KernelDeadlock is True for more than 60 s"));
    assert!(!machine("good").contains("OwnerRemediated"));
    let check = server.get(&path("machinehealthchecks", "h")).unwrap();
    assert!(types(&check["status"]["conditions"]).contains(&"FieldsSupported"));
    assert!(!check.to_string().contains("UnsupportedFields"));
}

#[tokio::test]
async fn hc2_machine_whose_nodes_were_not_read_is_not_judged() {
    let server = server(&[("bad", "False")]);
    let world = server.world();
    let check = world.stores.checks.state().remove(0);
    reconcile(check, world).await.unwrap();
    assert!(!server.get(&path("machines", "bad")).unwrap().to_string().contains("HealthCheckSucceeded"));
}
