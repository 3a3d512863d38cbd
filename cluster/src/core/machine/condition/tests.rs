//! Conditions of a Machine: mirrors, Node, summary and availability.

use std::sync::Arc;

use bedplate_api::condition::MAX_MESSAGE;
use serde_json::{Value, json};

use super::*;
use crate::core::machine::fixture::{
    change, cluster, node, now, observed, referenced, running, settle, shown,
};
use crate::core::machine::node::{Connection, NodeView};
use crate::core::machine::plan::{plan, plan_deleted};
use crate::core::reference::Lookup;

fn text(shown: &(String, String, String)) -> (&str, &str, &str) {
    (&shown.0, &shown.1, &shown.2)
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:10:00Z" })
}

/// Gives the infrastructure object a condition `Ready`.
fn with_ready(world: &mut Observed, ready: &Value) {
    let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "m", "uid": "u-m", "controller": true });
    world.infrastructure = referenced(
        "i",
        &json!({ "metadata": { "labels": { "cluster.x-k8s.io/cluster-name": "c" }, "ownerReferences": [owner] },
            "spec": { "providerID": "bedplate://host/u-i" },
            "status": { "initialization": { "provisioned": true }, "conditions": [ready] } }),
    );
}

#[test]
fn mirror_has_reason_message_and_time_of_the_object() {
    let mut world = running(&json!({}));
    with_ready(&mut world, &condition("Ready", "False", "HostUnreachable", "host is silent"));
    assert_eq!(text(&shown(&world, "InfrastructureReady")), ("False", "HostUnreachable", "host is silent"));
    let status = plan(&world).status.unwrap();
    let since = get(&status, "InfrastructureReady").unwrap().last_transition_time.0;
    assert_eq!(since.to_string(), "2026-01-01T00:10:00Z");
}

#[test]
fn mirror_without_a_valid_reason_has_ours() {
    let mut world = running(&json!({}));
    for (state, reason, expected) in [
        ("True", "", "Ready"),
        ("False", "not a word", "NotReady"),
        ("False", "Bad:", "NotReady"),
        ("True", "1st", "Ready"),
    ] {
        with_ready(&mut world, &condition("Ready", state, reason, ""));
        assert_eq!(shown(&world, "InfrastructureReady").1, expected, "{reason}");
    }
    with_ready(&mut world, &json!({ "type": "Ready", "status": "Yes" }));
    assert_eq!(shown(&world, "InfrastructureReady").1, "InvalidConditionReported");
}

#[test]
fn missing_objects_have_the_reasons_of_upstream() {
    let mut world = observed(&json!({}));
    (world.bootstrap, world.infrastructure) = (Lookup::Absent, Lookup::Absent);
    for type_ in ["BootstrapConfigReady", "InfrastructureReady"] {
        let shown = shown(&world, type_);
        assert_eq!((shown.0.as_str(), shown.1.as_str()), ("False", "ObjectDoesNotExist"), "{type_}");
        assert!(shown.2.ends_with("does not exist; create it, or delete the Machine"), "{}", shown.2);
    }
}

#[test]
fn object_without_conditions_is_shown_by_its_latch() {
    let mut world = running(&json!({}));
    assert_eq!(shown(&world, "InfrastructureReady").1, "Ready");
    assert_eq!(shown(&world, "BootstrapConfigReady").1, "Ready");
    world = observed(&json!({}));
    world.infrastructure = referenced("i", &json!({}));
    let expected =
        ("False", "NotReady", "status.initialization.provisioned of BedplateMachine i is not true");
    assert_eq!(text(&shown(&world, "InfrastructureReady")), expected);
}

/// A host with addresses and without an ID is not provisioned, although its provider says so.
#[test]
fn m7_missing_result_of_a_provider_is_named() {
    let mut world = observed(&json!({}));
    world.infrastructure =
        referenced("i", &json!({ "status": { "initialization": { "provisioned": true } } }));
    let expected = ("False", "NotReady", "BedplateMachine i has no spec.providerID yet");
    assert_eq!(text(&shown(&world, "InfrastructureReady")), expected);
    world.bootstrap =
        referenced("b", &json!({ "status": { "initialization": { "dataSecretCreated": true } } }));
    let expected = ("False", "NotReady", "KubeadmConfig b has no status.dataSecretName yet");
    assert_eq!(text(&shown(&world, "BootstrapConfigReady")), expected);
}

#[test]
fn m8_node_conditions_wait_for_the_cluster() {
    let mut world = observed(&json!({}));
    for (status, start) in [
        (json!({ "initialization": { "infrastructureProvisioned": false } }), "infrastructure of Cluster c"),
        (
            json!({ "initialization": { "controlPlaneInitialized": null }, "conditions": [] }),
            "control plane of Cluster c",
        ),
    ] {
        world.cluster = Some(cluster(&json!({ "status": status })));
        let shown = shown(&world, "NodeHealthy");
        assert_eq!((shown.0.as_str(), shown.1.as_str()), ("Unknown", "InspectionFailed"));
        assert!(shown.2.starts_with(start), "{}", shown.2);
    }
}

#[test]
fn m8_machine_without_a_node_shows_what_it_waits_for() {
    let mut world = observed(&json!({}));
    world.workload.node = NodeView::Absent;
    world.infrastructure = referenced("i", &json!({}));
    settle(&mut world);
    let message = shown(&world, "NodeReady").2;
    assert_eq!(message, "BedplateMachine i has not reported spec.providerID yet");
    let mut world = observed(&json!({}));
    world.workload.node = NodeView::Absent;
    settle(&mut world);
    assert!(shown(&world, "NodeReady").2.starts_with("no Node has providerID bedplate://host/u-i yet"));
    let mut world = running(&json!({}));
    world.workload.node = NodeView::Absent;
    assert_eq!(
        text(&shown(&world, "NodeHealthy")),
        ("False", "NodeDeleted", "Node n was deleted; delete the Machine")
    );
}

#[test]
fn m8_lost_connection_keeps_conditions_for_five_minutes() {
    let mut world = running(&json!({}));
    world.workload.node = NodeView::Unknown;
    world.workload.connection.is_lost = true;
    world.now = "2026-01-01T01:04:00Z".parse().unwrap();
    let next = plan(&world);
    assert!(next.is_settled());
    assert_eq!(next.recheck, Some(Duration::from_secs(60)));
    world.now = "2026-01-01T01:05:00Z".parse().unwrap();
    let (state, reason, message) = shown(&world, "NodeReady");
    assert_eq!((state.as_str(), reason.as_str()), ("Unknown", "ConnectionDown"));
    assert!(
        message.starts_with("API server of Cluster c has not answered since 2026-01-01T01:00:00Z;"),
        "{message}"
    );
    settle(&mut world);
    // A new leader does not know the last success.
    world.workload.connection = Connection { last_success: None, is_lost: true };
    assert!(plan(&world).is_settled());
}

#[test]
fn m8_first_connection_is_waited_for() {
    let mut world = observed(&json!({}));
    world.workload.node = NodeView::Unknown;
    world.workload.connection = Connection { last_success: None, is_lost: false };
    let text = "API server of Cluster c is not connected yet; see Secret c-kubeconfig";
    assert_eq!(shown(&world, "NodeReady").2, text);
    world.workload.connection.is_lost = true;
    world.now = "2026-01-01T00:04:00Z".parse().unwrap();
    assert_eq!(plan(&world).recheck, Some(Duration::from_secs(60)), "the control plane is new");
}

#[test]
fn m8_node_that_is_not_kept_is_no_lost_connection() {
    let mut world = observed(&json!({}));
    world.workload.node = NodeView::Unknown;
    let (state, reason, message) = shown(&world, "NodeReady");
    assert_eq!((state.as_str(), reason.as_str()), ("Unknown", "InspectionFailed"));
    assert!(message.contains("have more bytes than the provider keeps"), "{message}");
    world.workload.connection.is_lost = true;
    assert_eq!(shown(&world, "NodeReady").1, "ConnectionDown");
}

/// The Secret may be missing, and a Machine has no other hint.
#[test]
fn m8_conditions_without_a_connection_name_the_secret() {
    let mut world = observed(&json!({}));
    world.workload.node = NodeView::Unknown;
    world.workload.connection = Connection { last_success: None, is_lost: true };
    world.now = "2026-01-02T00:00:00Z".parse().unwrap();
    for type_ in ["NodeReady", "NodeHealthy"] {
        let (_, reason, message) = shown(&world, type_);
        assert_eq!(reason, "ConnectionDown");
        assert!(message.contains("see Secret c-kubeconfig"), "{message}");
    }
}

#[test]
fn node_conditions_follow_the_node() {
    let conditions = |ready: &str, memory: &str, message: &str| {
        json!({ "status": { "conditions": [
            { "type": "Ready", "status": ready, "message": message, "lastTransitionTime": "2026-01-01T00:40:00Z" },
            { "type": "MemoryPressure", "status": memory, "message": message },
            { "type": "DiskPressure", "status": "False" }, { "type": "PIDPressure", "status": "False" }] } })
    };
    for (node_change, ready, healthy) in [
        (conditions("True", "False", "ok"), ("True", "NodeReady", ""), ("True", "NodeHealthy", "")),
        (
            conditions("False", "False", "no network"),
            ("False", "NodeNotReady", "* Node.Ready: no network"),
            ("False", "NodeNotHealthy", "* Node.Ready: no network"),
        ),
        (
            conditions("Unknown", "Unknown", "kubelet is silent"),
            ("Unknown", "NodeReadyUnknown", "* Node.Ready: kubelet is silent"),
            ("Unknown", "NodeHealthyUnknown", "* Node.AllConditions: kubelet is silent"),
        ),
        (
            conditions("True", "True", ""),
            ("True", "NodeReady", ""),
            ("False", "NodeNotHealthy", "* Node.MemoryPressure: condition is True"),
        ),
    ] {
        let mut world = running(&json!({}));
        world.workload.node = node(&node_change);
        assert_eq!(text(&shown(&world, "NodeReady")), ready);
        assert_eq!(text(&shown(&world, "NodeHealthy")), healthy);
    }
    let mut world = running(&json!({}));
    world.workload.node = node(&json!({ "status": { "conditions": [] } }));
    assert_eq!(shown(&world, "NodeReady").2, "* Node.Ready: condition is not reported yet");
    assert_eq!(shown(&world, "NodeHealthy").1, "NodeHealthyUnknown");
}

#[test]
fn ready_sums_up_conditions_and_gates() {
    let mut world = running(&json!({}));
    assert_eq!(text(&shown(&world, "Ready")), ("True", "Ready", ""));
    change(
        &mut world,
        &json!({ "spec": { "readinessGates": [
        { "conditionType": "Good" }, { "conditionType": "Bad", "polarity": "Negative" }] } }),
    );
    let expected = ("Unknown", "ReadyUnknown", "* Good: Condition not yet reported");
    let seen = shown(&world, "Ready");
    assert_eq!((seen.0.as_str(), seen.1.as_str()), (expected.0, expected.1));
    assert!(seen.2.contains("* Good:") && seen.2.contains("* Bad:"), "{}", seen.2);
    let add = |world: &mut Observed, value: Value| {
        let condition = serde_json::from_value(value).unwrap();
        Arc::make_mut(&mut world.machine).status.as_mut().unwrap().conditions.push(condition);
    };
    add(&mut world, condition("Good", "True", "Good", ""));
    add(&mut world, condition("Bad", "True", "Bad", "it is bad"));
    assert_eq!(text(&shown(&world, "Ready")), ("False", "NotReady", "* Bad: it is bad"));
    let conditions = &mut Arc::make_mut(&mut world.machine).status.as_mut().unwrap().conditions;
    conditions.last_mut().unwrap().status = "False".to_owned();
    assert_eq!(shown(&world, "Ready").0, "True");
    add(&mut world, condition("HealthCheckSucceeded", "False", "UnhealthyNode", "Node is silent"));
    assert_eq!(
        text(&shown(&world, "Ready")),
        ("False", "NotReady", "* HealthCheckSucceeded: Node is silent")
    );
}

#[test]
fn readiness_gate_that_waits_for_itself_is_reported() {
    let world = running(&json!({ "spec": { "readinessGates": [{ "conditionType": "Ready" }] } }));
    let seen = shown(&world, "Ready");
    assert_eq!((seen.0.as_str(), seen.1.as_str()), ("Unknown", "InternalError"));
}

#[test]
fn available_follows_ready_after_min_ready_seconds() {
    let mut world = observed(&json!({ "spec": { "minReadySeconds": 30 } }));
    settle(&mut world);
    assert_eq!(shown(&world, "Available").1, "WaitingForMinReadySeconds");
    assert_eq!(plan(&world).recheck, Some(Duration::from_secs(30)));
    world.now = "2026-01-01T01:00:30Z".parse().unwrap();
    assert_eq!(shown(&world, "Available").1, "Available");
    assert_eq!(plan(&world).recheck, None);
    world.workload.node = NodeView::Absent;
    assert_eq!(text(&shown(&world, "Available")), ("False", "NotReady", ""));
}

#[test]
fn m9_objects_that_are_gone_are_expected_while_a_machine_is_deleted() {
    let mut world = running(&json!({}));
    change(&mut world, &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:30:00Z" } }));
    (world.bootstrap, world.infrastructure) = (Lookup::Absent, Lookup::Absent);
    world.workload.node = NodeView::Absent;
    let reason = MachineDeletingReason::WaitingForInfrastructureDeletion;
    let deleting = Deleting { reason, message: "long ".repeat(500), status: None };
    let status = plan_deleted(&world, &deleting).status.unwrap();
    let ready = get(&status, "Ready").unwrap();
    let expected =
        "* Deleting: Machine is being deleted for more than 15m, stage: WaitingForInfrastructureDeletion";
    assert_eq!((ready.status.as_str(), ready.message.as_str()), ("False", expected));
    let deleting = get(&status, "Deleting").unwrap();
    assert_eq!((deleting.status.as_str(), deleting.message.chars().count()), ("True", MAX_MESSAGE));
    assert_eq!(get(&status, "NodeHealthy").unwrap().reason, "NodeDeleted");
    assert_eq!(get(&status, "BootstrapConfigReady").unwrap().reason, "ObjectDeleted");
}

#[test]
fn fields_that_are_not_carried_out_are_named() {
    let world = running(&json!({}));
    assert_eq!(text(&shown(&world, "FieldsSupported")), ("True", "FieldsSupported", ""));
    let taint = json!([{ "key": "a", "effect": "NoSchedule", "propagation": "Later" }]);
    let world = running(&json!({ "spec": { "taints": taint } }));
    let expected = ("False", "UnsupportedFields", "fields are not supported: spec.taints[0]; remove them");
    assert_eq!(text(&shown(&world, "FieldsSupported")), expected);
}

#[test]
fn conditions_of_other_writers_stay() {
    let mut world = running(&json!({}));
    let other =
        serde_json::from_value(condition("OwnerRemediated", "False", "WaitingForRemediation", "")).unwrap();
    Arc::make_mut(&mut world.machine).status.as_mut().unwrap().conditions.push(other);
    world.workload.node = NodeView::Absent;
    settle(&mut world);
    assert_eq!(shown(&world, "OwnerRemediated").1, "WaitingForRemediation");
    assert_eq!(get(world.machine.status.as_ref().unwrap(), "UpToDate"), None, "its owner writes it");
    assert_eq!(world.now, now());
}
