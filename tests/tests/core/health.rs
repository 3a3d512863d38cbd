//! MachineHealthChecks (HC1 to HC8), and the replacement of marked Machines by their sets (MS6).

use std::net::TcpListener;

use serde_json::{Value, json};

use super::hosts::{Hosts, node_condition, node_ready};
use super::recorder::is_available;
use super::site::{Site, Team, condition, workload};
use super::workers::{CLUSTER_NAME, DEPLOYMENT_NAME, SET_NAME, Workers, names, uids};

const CHECK: &str = "machinehealthcheck";
const MACHINE: &str = "clustermachine";

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn node(machine: &Value) -> &str {
    machine["status"]["nodeRef"]["name"].as_str().unwrap()
}

/// Rule about condition `Ready` of a Node.
fn not_ready(seconds: u32) -> Value {
    json!({ "unhealthyNodeConditions": [{ "type": "Ready", "status": "False", "timeoutSeconds": seconds }] })
}

/// Creates a health check of the Machines of set `w`.
fn check(workers: &Workers<'_>, checks: &Value, remediation: &Value) -> Value {
    let mut spec = json!({ "clusterName": workers.name, "selector": { "matchLabels": { SET_NAME: "w" } }, "checks": checks });
    if !remediation.is_null() {
        spec["remediation"] = remediation.clone();
    }
    let check = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": { "name": "h" }, "spec": spec });
    workers.objects.create(&check).unwrap()
}

/// Keeps a Machine that is being deleted, so that its conditions can be read.
fn hold(workers: &Workers<'_>, machine: &str) {
    workers.merge(("bpm", machine), &json!({ "metadata": { "finalizers": ["tests.bedplate.dev/held"] } }));
}

fn release(workers: &Workers<'_>, machine: &str) {
    workers.merge(("bpm", machine), &json!({ "metadata": { "finalizers": null } }));
}

fn is_deleting(machine: &Value) -> bool {
    machine["metadata"]["deletionTimestamp"].is_string()
}

/// Waits until a Machine is marked and its set deletes it. Returns the Machine.
fn until_remediated(workers: &Workers<'_>, machine: &str, reason: &str) -> Value {
    let found = workers.until((MACHINE, machine), reason, |found| {
        condition(found, "HealthCheckSucceeded").1 == reason && is_deleting(found)
    });
    let mark = condition(&found, "OwnerRemediated");
    assert_eq!((mark.0, mark.1), ("False", "MachineDeleting"), "{found:#}");
    found
}

#[test]
fn hc1_new_check_gets_label_and_owner_and_counts_its_targets() {
    let workers = Workers::new("hc-targets", 4);
    workers.set("w", 2, &json!({}));
    workers.set("other", 1, &json!({}));
    workers.until_complete(("machineset", "w"), 2);
    workers.until_complete(("machineset", "other"), 1);
    check(&workers, &not_ready(60), &Value::Null);
    let found = workers
        .until((CHECK, "h"), "that its targets are healthy", |found| found["status"]["currentHealthy"] == 2);
    assert_eq!(found["metadata"]["labels"][CLUSTER_NAME], "hc-targets");
    assert_eq!(found["metadata"]["ownerReferences"][0]["kind"], "Cluster");
    let machines = workers.machines("w");
    let targets: Vec<Value> = names(&machines).into_iter().map(Value::from).collect();
    assert_eq!(found["status"]["targets"], Value::from(targets));
    assert_eq!(condition(&found, "RemediationAllowed").0, "True");
    for machine in &machines {
        workers.until((MACHINE, name(machine)), "the result", |machine| {
            condition(machine, "HealthCheckSucceeded").0 == "True"
        });
    }
    assert_eq!(condition(&workers.machines("other")[0], "HealthCheckSucceeded").0, "");
    let shown = workers.kubectl(&["get", "machinehealthchecks.cluster.x-k8s.io", "h", "--no-headers"]);
    let columns: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(columns[..4], ["h", "hc-targets", "2", "2"], "{shown}");
    // A user excludes Machines.
    let exclude = |machine: &Value, annotation: &str| {
        workers
            .merge((MACHINE, name(machine)), &json!({ "metadata": { "annotations": { annotation: "" } } }));
    };
    exclude(&machines[0], "cluster.x-k8s.io/skip-remediation");
    exclude(&machines[1], "cluster.x-k8s.io/paused");
    workers.until((CHECK, "h"), "no targets", |found| found["status"]["expectedMachines"] == 0);
}

#[test]
fn hc2_machine_without_a_node_is_replaced_after_the_startup_timeout() {
    let workers = Workers::new("hc-startup", 2);
    workers.hosts.hold();
    workers.set("w", 1, &json!({}));
    let machine = workers.until_machines("w", "a Machine", |machines| machines.len() == 1).remove(0);
    hold(&workers, name(&machine));
    check(&workers, &json!({ "nodeStartupTimeoutSeconds": 30 }), &Value::Null);
    let found = until_remediated(&workers, name(&machine), "NodeStartupTimeout");
    let message = condition(&found, "HealthCheckSucceeded").2;
    assert_eq!(message, "Machine has no Node after 30 s");
    let [created, deleted] = ["creationTimestamp", "deletionTimestamp"]
        .map(|field| found["metadata"][field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap());
    let lived = deleted.duration_since(created).as_secs();
    assert!(lived >= 30, "{lived} s");
    workers.hosts.release();
    workers.until_machines("w", "the successor", |machines| {
        machines.iter().any(|found| name(found) != name(&machine) && is_available(found))
    });
    release(&workers, name(&machine));
    workers.until_complete(("machineset", "w"), 1);
}

#[test]
fn hc2_condition_of_a_node_counts_only_after_its_timeout() {
    let workers = Workers::new("hc-timeout", 4);
    workers.set("w", 2, &json!({}));
    workers.until_complete(("machineset", "w"), 2);
    let machines = workers.machines("w");
    let [long, short] = &machines[..] else { panic!("{machines:#?}") };
    hold(&workers, name(long));
    check(&workers, &not_ready(1000), &Value::Null);
    node_ready(node(short), "False", 10);
    workers.until((MACHINE, name(short)), "the state of its Node", |machine| {
        condition(machine, "NodeReady").0 == "False"
    });
    workers.until((CHECK, "h"), "that one is not healthy", |found| found["status"]["currentHealthy"] == 1);
    node_ready(node(long), "False", 1100);
    let found = until_remediated(&workers, name(long), "UnhealthyNode");
    let message = condition(&found, "HealthCheckSucceeded").2;
    assert_eq!(message, "Node condition Ready is False for more than 1000 s");
    let short = workers.get(MACHINE, name(short));
    assert_eq!((condition(&short, "OwnerRemediated").0, is_deleting(&short)), ("", false));
    let set = workers
        .until(("machineset", "w"), "that it remediates", |set| condition(set, "Remediating").0 == "True");
    assert!(condition(&set, "Remediating").2.contains(name(long)), "{set:#}");
    release(&workers, name(long));
    workers.until_gone((MACHINE, name(long)));
}

/// Programs other than the kubelet set conditions too, such as the node problem detector. The Node is ready all the time.
#[test]
fn hc2_other_condition_of_a_node_fails_its_machine_until_it_recovers() {
    let workers = Workers::new("hc-problem", 3);
    workers.set("w", 2, &json!({}));
    workers.until_complete(("machineset", "w"), 2);
    let machines = workers.machines("w");
    let [recovered, broken] = &machines[..] else { panic!("{machines:#?}") };
    let rule = json!({ "type": "KernelDeadlock", "status": "True", "timeoutSeconds": 60 });
    let at_most = |number: u32| json!({ "triggerIf": { "unhealthyLessThanOrEqualTo": number } });
    check(&workers, &json!({ "unhealthyNodeConditions": [rule] }), &at_most(0));
    workers.until((CHECK, "h"), "both are healthy", |found| found["status"]["currentHealthy"] == 2);
    for machine in [recovered, broken] {
        node_condition(node(machine), "KernelDeadlock", "True", 90);
    }
    for machine in [recovered, broken] {
        let found = workers.until((MACHINE, name(machine)), "the condition", |machine| {
            condition(machine, "HealthCheckSucceeded").1 == "UnhealthyNode"
        });
        let message = condition(&found, "HealthCheckSucceeded").2;
        assert_eq!(message, "Node condition KernelDeadlock is True for more than 60 s");
        assert_eq!((condition(&found, "OwnerRemediated").0, is_deleting(&found)), ("", false), "{found:#}");
        assert_eq!(condition(&found, "NodeReady").0, "True", "{found:#}");
    }
    let found =
        workers.until((CHECK, "h"), "that none is healthy", |found| found["status"]["currentHealthy"] == 0);
    assert_eq!(condition(&found, "RemediationAllowed").1, "TooManyUnhealthy");
    node_condition(node(recovered), "KernelDeadlock", "False", 1);
    workers.until((MACHINE, name(recovered)), "the recovery", |machine| {
        condition(machine, "HealthCheckSucceeded").0 == "True"
    });
    workers.until((CHECK, "h"), "that one is healthy", |found| found["status"]["currentHealthy"] == 1);
    hold(&workers, name(broken));
    workers.merge((CHECK, "h"), &json!({ "spec": { "remediation": at_most(1) } }));
    until_remediated(&workers, name(broken), "UnhealthyNode");
    release(&workers, name(broken));
    workers.until_complete(("machineset", "w"), 2);
    assert!(uids(&workers.machines("w")).is_superset(&uids([recovered])));
}

#[test]
fn hc2_condition_of_a_machine_counts_after_its_timeout() {
    let workers = Workers::new("hc-machine", 3);
    workers.hosts.hold();
    workers.set("w", 1, &json!({}));
    let machine = workers.until_machines("w", "a Machine", |machines| machines.len() == 1).remove(0);
    hold(&workers, name(&machine));
    let rule = json!({ "type": "InfrastructureReady", "status": "False", "timeoutSeconds": 2 });
    check(&workers, &json!({ "unhealthyMachineConditions": [rule] }), &Value::Null);
    let found = until_remediated(&workers, name(&machine), "UnhealthyMachine");
    let message = condition(&found, "HealthCheckSucceeded").2;
    assert_eq!(message, "Machine condition InfrastructureReady is False for more than 2 s");
    release(&workers, name(&machine));
    workers.hosts.release();
}

#[test]
fn hc4_too_many_unhealthy_machines_are_not_marked() {
    let workers = Workers::new("hc-limit", 5);
    workers.set("w", 3, &json!({}));
    workers.until_complete(("machineset", "w"), 3);
    let machines = workers.machines("w");
    machines[..2].iter().for_each(|machine| node_ready(node(machine), "False", 60));
    // Otherwise the first one could be replaced before the second one is seen.
    for machine in &machines[..2] {
        workers.until((MACHINE, name(machine)), "the state of its Node", |machine| {
            condition(machine, "NodeReady").0 == "False"
        });
    }
    check(&workers, &not_ready(1), &json!({ "triggerIf": { "unhealthyLessThanOrEqualTo": "40%" } }));
    let found = workers.until((CHECK, "h"), "that it marks nothing", |found| {
        condition(found, "RemediationAllowed").1 == "TooManyUnhealthy"
            && found["status"]["currentHealthy"] == 1
    });
    assert_eq!(
        condition(&found, "RemediationAllowed").2,
        "2 of 3 Machines are not healthy, and unhealthyLessThanOrEqualTo is 40%"
    );
    assert_eq!(found["status"]["remediationsAllowed"], 0);
    for machine in &machines[..2] {
        let found = workers.until((MACHINE, name(machine)), "the result", |machine| {
            condition(machine, "HealthCheckSucceeded").1 == "UnhealthyNode"
        });
        assert_eq!((condition(&found, "OwnerRemediated").0, is_deleting(&found)), ("", false));
    }
    // One recovers, and the other one is replaced.
    hold(&workers, name(&machines[0]));
    node_ready(node(&machines[1]), "True", 1);
    until_remediated(&workers, name(&machines[0]), "UnhealthyNode");
    let recovered = workers.until((MACHINE, name(&machines[1])), "that it is healthy", |machine| {
        condition(machine, "HealthCheckSucceeded").0 == "True"
    });
    assert!(!is_deleting(&recovered));
    release(&workers, name(&machines[0]));
    workers.until_complete(("machineset", "w"), 3);
}

#[test]
fn hc4_machines_are_marked_within_the_range_only() {
    let workers = Workers::new("hc-range", 6);
    workers.set("w", 3, &json!({}));
    workers.until_complete(("machineset", "w"), 3);
    let machines = workers.machines("w");
    check(&workers, &not_ready(1), &json!({ "triggerIf": { "unhealthyInRange": "[2-2]" } }));
    node_ready(node(&machines[0]), "False", 60);
    let found = workers.until((CHECK, "h"), "that one is too few", |found| {
        condition(found, "RemediationAllowed").1 == "TooManyUnhealthy"
            && found["status"]["currentHealthy"] == 2
    });
    let message = condition(&found, "RemediationAllowed").2;
    assert_eq!(message, "1 of 3 Machines are not healthy, and unhealthyInRange is [2-2]");
    machines[..2].iter().for_each(|machine| hold(&workers, name(machine)));
    node_ready(node(&machines[1]), "False", 60);
    for machine in &machines[..2] {
        until_remediated(&workers, name(machine), "UnhealthyNode");
        release(&workers, name(machine));
    }
    workers.until_complete(("machineset", "w"), 3);
    assert!(names(&workers.machines("w")).contains(name(&machines[2])));
}

/// A health check marks Machines, and deletes none.
#[test]
fn hc3_machine_without_an_owner_is_marked_and_stays() {
    let workers = Workers::new("hc-alone", 2);
    workers.machine("alone", &json!({ "labels": { SET_NAME: "w" } }));
    let machine = workers.until((MACHINE, "alone"), "that it is available", is_available);
    check(&workers, &not_ready(1), &Value::Null);
    node_ready(node(&machine), "False", 60);
    let found = workers.until((MACHINE, "alone"), "the mark", |machine| {
        condition(machine, "OwnerRemediated").1 == "WaitingForRemediation"
    });
    assert_eq!(condition(&found, "HealthCheckSucceeded").1, "UnhealthyNode");
    workers.until((CHECK, "h"), "that none is healthy", |found| found["status"]["currentHealthy"] == 0);
    // It has recovered: the owner, which is a user, still has the mark.
    node_ready(node(&machine), "True", 1);
    let found = workers.until((MACHINE, "alone"), "that it is healthy", |machine| {
        condition(machine, "HealthCheckSucceeded").0 == "True"
    });
    assert_eq!((uids([&found]), is_deleting(&found)), (uids([&machine]), false));
    assert_eq!(condition(&found, "OwnerRemediated").0, "False");
}

#[test]
fn hc7_deleted_node_and_annotation_of_a_user_mark_immediately() {
    let workers = Workers::new("hc-deleted", 5);
    workers.set("w", 2, &json!({}));
    workers.until_complete(("machineset", "w"), 2);
    let machines = workers.machines("w");
    machines.iter().for_each(|machine| hold(&workers, name(machine)));
    check(&workers, &not_ready(3600), &Value::Null);
    workload().objects().unwrap().delete("node", node(&machines[0])).unwrap();
    let found = until_remediated(&workers, name(&machines[0]), "NodeDeleted");
    let message = format!("Node {} was deleted", node(&machines[0]));
    assert_eq!(condition(&found, "HealthCheckSucceeded").2, message);
    let annotations = json!({ "cluster.x-k8s.io/remediate-machine": "" });
    workers.merge((MACHINE, name(&machines[1])), &json!({ "metadata": { "annotations": annotations } }));
    until_remediated(&workers, name(&machines[1]), "HasRemediateAnnotation");
    machines.iter().for_each(|machine| release(&workers, name(machine)));
    workers.until_complete(("machineset", "w"), 2);
}

/// Checks that a failed Machine is not marked, and that the field with the cause is named.
fn marks_nothing(namespace: &'static str, remediation: &Value, field: &str) {
    let workers = Workers::new(namespace, 2);
    workers.set("w", 1, &json!({}));
    workers.until_complete(("machineset", "w"), 1);
    check(&workers, &not_ready(1), remediation);
    let machine = workers.machines("w").remove(0);
    node_ready(node(&machine), "False", 60);
    let found = workers.until((MACHINE, name(&machine)), "the result", |machine| {
        condition(machine, "HealthCheckSucceeded").1 == "UnhealthyNode"
    });
    assert_eq!((condition(&found, "OwnerRemediated").0, is_deleting(&found)), ("", false));
    let message = format!("fields are not supported: {field}; remove them");
    workers.until((CHECK, "h"), "the field", |found| {
        condition(found, "FieldsSupported") == ("False", "UnsupportedFields", message.as_str())
    });
}

#[test]
fn hc5_limit_without_a_meaning_marks_nothing() {
    let trigger = json!({ "triggerIf": { "unhealthyInRange": "[0-99999999999]" } });
    marks_nothing("hc-no-meaning", &trigger, "spec.remediation.triggerIf.unhealthyInRange");
}

#[test]
fn hc8_external_remediation_is_reported_and_marks_nothing() {
    let template = json!({ "apiVersion": "example.com/v1", "kind": "Remediation", "name": "t" });
    marks_nothing("hc-external", &json!({ "templateRef": template }), "spec.remediation.templateRef");
}

#[test]
fn hc6_unreachable_cluster_judges_no_machine() {
    let team = Team::without_cluster("hc-unreachable");
    // A port that is refused.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = std::fs::read_to_string(workload().admin()).unwrap();
    team.kubeconfig_with(&text.replace(&workload().address().to_string(), &address.to_string()));
    team.cluster();
    let workers = Workers::of(Site::shared(), team, Hosts::start("hc-unreachable", 1));
    workers.templates();
    workers.set("w", 1, &json!({}));
    let machine = workers.until_machines("w", "a Machine", |machines| machines.len() == 1).remove(0);
    let rule = json!({ "type": "NodeHealthy", "status": "Unknown", "timeoutSeconds": 0 });
    check(
        &workers,
        &json!({ "unhealthyMachineConditions": [rule] }),
        &json!({ "triggerIf": { "unhealthyLessThanOrEqualTo": 0 } }),
    );
    workers.until((MACHINE, name(&machine)), "the lost connection", |machine| {
        condition(machine, "NodeHealthy").1 == "ConnectionDown"
    });
    // A turn after the condition of the Machine has the new generation.
    workers.merge((CHECK, "h"), &json!({ "spec": { "checks": { "nodeStartupTimeoutSeconds": 601 } } }));
    let found = workers.until((CHECK, "h"), "the cause", |found| {
        condition(found, "RemediationAllowed").1 == "ConnectionDown"
            && found["status"]["observedGeneration"] == found["metadata"]["generation"]
    });
    assert_eq!(condition(&found, "RemediationAllowed").0, "Unknown");
    assert_eq!(
        (&found["status"]["expectedMachines"], &found["status"]["currentHealthy"]),
        (&json!(1), &json!(0))
    );
    let machine = workers.get(MACHINE, name(&machine));
    assert!(!is_deleting(&machine), "{machine:#}");
    for kind in ["HealthCheckSucceeded", "OwnerRemediated"] {
        assert_eq!(condition(&machine, kind).0, "", "{machine:#}");
    }
}

#[test]
fn ms6_as_many_machines_are_replaced_concurrently_as_max_in_flight_allows() {
    let workers = Workers::new("ms-in-flight", 8);
    workers.deployment("w", 3, &json!({ "spec": { "remediation": { "maxInFlight": 1 } } }));
    workers.until_complete(("machinedeployment", "w"), 3);
    let machines = workers.machines("w");
    machines.iter().for_each(|machine| hold(&workers, name(machine)));
    let selector = json!({ "matchLabels": { DEPLOYMENT_NAME: "w" } });
    let check = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": { "name": "h" },
        "spec": { "clusterName": workers.name, "selector": selector, "checks": not_ready(1) } });
    machines.iter().for_each(|machine| node_ready(node(machine), "False", 60));
    workers.objects.create(&check).unwrap();
    let reasons = |machines: &[&Value]| {
        let mut reasons: Vec<String> =
            machines.iter().map(|machine| condition(machine, "OwnerRemediated").1.to_owned()).collect();
        reasons.retain(|reason| !reason.is_empty());
        reasons.sort_unstable();
        reasons
    };
    let old = names(&machines);
    let mut left = 3;
    while left > 0 {
        let mut expected = vec!["MachineDeleting"];
        expected.extend(vec!["RemediationDeferred"; left - 1]);
        let marked = workers.until_machines("w", "one replacement", |machines| {
            let is_marked = |machine: &&&Value| condition(machine, "OwnerRemediated").1 == "MachineDeleting";
            reasons(machines) == expected
                && machines.iter().filter(is_marked).all(|machine| is_deleting(machine))
        });
        let deleting: Vec<&Value> = marked.iter().filter(|machine| is_deleting(machine)).collect();
        assert_eq!(deleting.len(), 1);
        release(&workers, name(deleting[0]));
        workers.until_gone((MACHINE, name(deleting[0])));
        left -= 1;
    }
    workers.until_complete(("machinedeployment", "w"), 3);
    assert!(names(&workers.machines("w")).is_disjoint(&old));
}
