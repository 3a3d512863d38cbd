//! Table tests of MachineHealthChecks over objects, named after the rules.

use std::sync::Arc;

use bedplate_replicas::{ConditionView, NodeView};
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-02T00:00:00Z";
const BEFORE: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn condition(type_: &str, status: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": BEFORE })
}

fn cluster(spec: &Value) -> Cluster {
    serde_json::from_value(json!({ "metadata": { "name": "c", "uid": "cluster" }, "spec": spec,
        "status": { "conditions": [condition("ControlPlaneInitialized", "True"), condition("InfrastructureReady", "True")] } }))
    .unwrap()
}

fn check(spec: &Value) -> Value {
    let mut object = json!({ "metadata": { "name": "h", "generation": 3, "labels": { CLUSTER_NAME_LABEL: "c" },
        "ownerReferences": [{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "cluster" }] },
        "spec": { "clusterName": "c", "selector": { "matchLabels": { "pool": "a" } },
            "checks": { "unhealthyNodeConditions": [{ "type": "Ready", "status": "False", "timeoutSeconds": 60 }] } } });
    let more = spec.as_object().cloned().unwrap_or_default();
    object["spec"].as_object_mut().unwrap().extend(more);
    object
}

/// A Machine whose Node has this status of `Ready`. None: it has no Node yet.
fn machine(name: &str, ready: Option<&str>) -> ObservedMachine {
    let object = json!({ "metadata": { "name": name, "creationTimestamp": BEFORE, "labels": { CLUSTER_NAME_LABEL: "c", "pool": "a" } },
        "spec": { "clusterName": "c", "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": name } },
        "status": { "conditions": [condition("InfrastructureReady", "True")] } });
    let view = |status: &str| ConditionView {
        kind: "Ready".to_owned(),
        status: status.to_owned(),
        since: BEFORE.parse().unwrap(),
    };
    let node = ready.map_or(NodeView::Absent, |status| NodeView::Present(vec![view(status)]));
    ObservedMachine { machine: Arc::new(serde_json::from_value(object).unwrap()), node }
}

fn observed(check: Value, machines: Vec<ObservedMachine>) -> Observed {
    Observed {
        check: Arc::new(serde_json::from_value(check).unwrap()),
        cluster: Some(Arc::new(cluster(
            &json!({ "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "c" } }),
        ))),
        machines,
        others: Vec::new(),
    }
}

/// Carries out a plan.
fn applied(mut observed: Observed, plan: &Plan) -> Observed {
    if let Some(status) = &plan.status {
        Arc::make_mut(&mut observed.check).status = Some((**status).clone());
    }
    for marks in &plan.marks {
        let mut named = observed.machines.iter_mut().filter(|one| one.machine.name_any() == marks.machine);
        let machine = Arc::make_mut(&mut named.next().unwrap().machine);
        let conditions = &mut machine.status.get_or_insert_default().conditions;
        conditions.retain(|one| marks.conditions.iter().all(|changed| changed.type_ != one.type_));
        conditions.extend(marks.conditions.clone());
    }
    observed
}

fn shown(marks: &Marks) -> Vec<String> {
    let shown = |one: &Condition| format!("{} {} {}: {}", one.type_, one.status, one.reason, one.message);
    marks.conditions.iter().map(shown).collect()
}

/// Returns status, reason and message of a condition in the planned status.
fn own(plan: &Plan, type_: &str) -> (String, String, String) {
    let status = plan.status.as_ref().unwrap();
    let one = status.conditions.iter().find(|one| one.type_ == type_).unwrap();
    (one.status.clone(), one.reason.clone(), one.message.clone())
}

#[test]
fn hc2_unhealthy_machine_is_marked_and_healthy_ones_are_not() {
    let site = observed(check(&json!({})), vec![machine("b", Some("False")), machine("a", Some("True"))]);
    let planned = plan(&site, now());
    assert_eq!(shown(&planned.marks[0]), ["HealthCheckSucceeded True HealthCheckSucceeded: "]);
    assert_eq!(
        shown(&planned.marks[1]),
        [
            "HealthCheckSucceeded False UnhealthyNode: Node condition Ready is False for more than 60 s",
            "OwnerRemediated False WaitingForRemediation: A health check has marked the Machine. Its owner has not acted yet.",
        ]
    );
    let status = planned.status.clone().unwrap();
    assert_eq!(
        (status.expected_machines, status.current_healthy, status.remediations_allowed),
        (Some(2), Some(1), Some(1))
    );
    assert_eq!((status.targets, status.observed_generation), (vec!["a".to_owned(), "b".to_owned()], Some(3)));
    // Nothing has changed, so nothing is written again.
    let again = plan(&applied(site, &planned), now());
    assert_eq!(again, Plan { again: planned.again, ..Plan::default() });
}

#[test]
fn hc3_mark_of_an_owner_is_not_written_again() {
    let mut site = observed(check(&json!({})), vec![machine("a", Some("False"))]);
    let owners = serde_json::from_value(condition("OwnerRemediated", "False")).unwrap();
    Arc::make_mut(&mut site.machines[0].machine).status.as_mut().unwrap().conditions.push(owners);
    let planned = plan(&site, now());
    let types: Vec<&str> = planned.marks[0].conditions.iter().map(|one| &*one.type_).collect();
    assert_eq!(types, ["HealthCheckSucceeded"]);
}

#[test]
fn hc1_only_machines_of_the_cluster_and_selector_are_targets() {
    let mut other = machine("other", Some("False"));
    Arc::make_mut(&mut other.machine).labels_mut().insert("pool".to_owned(), "b".to_owned());
    let mut foreign = machine("foreign", Some("False"));
    Arc::make_mut(&mut foreign.machine).spec.cluster_name = "d".to_owned();
    let planned = plan(&observed(check(&json!({})), vec![other.clone(), foreign]), now());
    assert_eq!((planned.marks.len(), planned.status.unwrap().targets.len()), (0, 0));
    let expression = json!([{ "key": "pool", "operator": "In", "values": ["b", "c"] }]);
    let by_expression = check(&json!({ "selector": { "matchExpressions": expression } }));
    assert_eq!(plan(&observed(by_expression, vec![other.clone()]), now()).marks.len(), 1);
    for selector in
        [json!({}), json!({ "matchExpressions": [{ "key": "pool", "operator": "Near", "values": ["b"] }] })]
    {
        let planned = plan(&observed(check(&json!({ "selector": selector })), vec![other.clone()]), now());
        assert!(planned.marks.is_empty(), "{selector}");
    }
}

#[test]
fn hc5_too_many_unhealthy_machines_are_reported_and_not_marked() {
    let machines =
        || vec![machine("a", Some("False")), machine("b", Some("False")), machine("c", Some("True"))];
    for (trigger, message) in [
        (
            json!({ "unhealthyLessThanOrEqualTo": 1 }),
            "2 of 3 Machines are not healthy, and unhealthyLessThanOrEqualTo is 1",
        ),
        (
            json!({ "unhealthyLessThanOrEqualTo": "40%" }),
            "2 of 3 Machines are not healthy, and unhealthyLessThanOrEqualTo is 40%",
        ),
        (
            json!({ "unhealthyInRange": "[0-1]" }),
            "2 of 3 Machines are not healthy, and unhealthyInRange is [0-1]",
        ),
    ] {
        let planned =
            plan(&observed(check(&json!({ "remediation": { "triggerIf": trigger } })), machines()), now());
        let expected = ("False".to_owned(), "TooManyUnhealthy".to_owned(), message.to_owned());
        assert_eq!(own(&planned, "RemediationAllowed"), expected);
        let is_marked = |marks: &Marks| marks.conditions.iter().any(|one| one.type_ == "OwnerRemediated");
        assert!(planned.marks.len() == 3 && !planned.marks.iter().any(is_marked), "{:?}", planned.marks);
    }
}

#[test]
fn hc5_limit_without_a_meaning_marks_nothing_and_is_reported() {
    for (trigger, path) in [
        (
            json!({ "unhealthyLessThanOrEqualTo": "99999999999%" }),
            "spec.remediation.triggerIf.unhealthyLessThanOrEqualTo",
        ),
        (json!({ "unhealthyInRange": "[9-1]" }), "spec.remediation.triggerIf.unhealthyInRange"),
    ] {
        let spec = json!({ "remediation": { "triggerIf": trigger } });
        let planned = plan(&observed(check(&spec), vec![machine("a", Some("False"))]), now());
        assert_eq!(
            own(&planned, "FieldsSupported").2,
            format!("fields are not supported: {path}; remove them")
        );
        assert_eq!(shown(&planned.marks[0]).len(), 1, "{:?}", planned.marks);
    }
}

#[test]
fn hc6_connection_that_is_down_is_not_reported_as_too_many() {
    let mut unknown = machine("a", None);
    unknown.node = NodeView::Unknown;
    let spec = json!({ "remediation": { "triggerIf": { "unhealthyLessThanOrEqualTo": 0 } } });
    let planned = plan(&observed(check(&spec), vec![unknown]), now());
    let (status, reason, _) = own(&planned, "RemediationAllowed");
    assert_eq!((&*status, &*reason, planned.marks.len()), ("Unknown", "ConnectionDown", 0));
}

#[test]
fn hc7_next_decision_is_at_the_next_timeout() {
    let mut late = machine("a", None);
    let created = serde_json::from_value(json!("2026-01-01T23:59:00Z")).unwrap();
    Arc::make_mut(&mut late.machine).metadata.creation_timestamp = Some(created);
    let planned = plan(&observed(check(&json!({})), vec![late]), now());
    assert_eq!((planned.again, planned.marks.len()), (Some(Duration::from_secs(541)), 0));
}

#[test]
fn hc8_external_remediation_is_reported_and_marks_no_owner() {
    let template = json!({ "apiVersion": "g.example/v1", "kind": "T", "name": "t" });
    let spec = json!({ "remediation": { "templateRef": template } });
    let planned = plan(&observed(check(&spec), vec![machine("a", Some("False"))]), now());
    let expected = (
        "False".to_owned(),
        "UnsupportedFields".to_owned(),
        "fields are not supported: spec.remediation.templateRef; remove them".to_owned(),
    );
    assert_eq!(own(&planned, "FieldsSupported"), expected);
    assert_eq!(
        shown(&planned.marks[0]),
        ["HealthCheckSucceeded False UnhealthyNode: Node condition Ready is False for more than 60 s"]
    );
}

#[test]
fn paused_check_writes_its_condition_only() {
    let site = observed(check(&json!({})), vec![machine("a", Some("False"))]);
    let paused = Arc::new(cluster(
        &json!({ "paused": true, "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "c" } }),
    ));
    let planned = plan(&Observed { cluster: Some(paused), ..site.clone() }, now());
    assert_eq!((planned.marks.len(), own(&planned, "Paused").0), (0, "True".to_owned()));
    assert_eq!(planned.status.unwrap().conditions.len(), 1);
    assert_eq!(plan(&Observed { cluster: None, ..site }, now()), Plan::default());
}

#[test]
fn check_is_adopted_by_its_cluster() {
    let mut object = check(&json!({}));
    object["metadata"]["ownerReferences"] = Value::Null;
    assert!(plan(&observed(object, Vec::new()), now()).adopt);
    let mut object = check(&json!({}));
    object["metadata"]["labels"] = json!({});
    assert!(plan(&observed(object, Vec::new()), now()).adopt);
    assert!(!plan(&observed(check(&json!({})), Vec::new()), now()).adopt);
}
