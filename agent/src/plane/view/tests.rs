//! Observed state after each event.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::model::Api;

fn machine(uid: &str, status: &Value) -> Machine {
    let object = json!({ "metadata": { "name": "node-1", "uid": uid, "managedFields": [{ "manager": "x" }] },
        "spec": { "provider": "manual" }, "status": status });
    serde_json::from_value(object).unwrap()
}

fn node(name: &str) -> Node {
    let object = json!({ "metadata": { "name": name, "uid": "n" },
        "status": { "images": [{ "names": ["x"] }], "conditions": [{ "type": "Ready", "status": "True" }] } });
    serde_json::from_value(object).unwrap()
}

#[allow(clippy::needless_pass_by_value, reason = "it is written where it is used")]
fn operation(name: &str, of: &str, state: Value) -> MachineOperation {
    let object = json!({ "metadata": { "name": name },
        "spec": { "operationName": "reboot", "machineRef": { "name": of } }, "status": { "state": state } });
    serde_json::from_value(object).unwrap()
}

/// A view after the first lists, at its start.
fn listed(machines: Vec<Machine>, nodes: Vec<Node>) -> (View, Instant) {
    let start = Instant::now();
    let mut view = View::new("node-1".parse().unwrap(), start, Arc::default());
    view.reopened(Digest::from_sha256([0xab; 32]), start);
    view.take_machine(Event::Init);
    machines.into_iter().for_each(|machine| view.take_machine(Event::InitApply(machine)));
    view.take_machine(Event::InitDone);
    view.take_node(Event::Init);
    nodes.into_iter().for_each(|node| view.take_node(Event::InitApply(node)));
    view.take_node(Event::InitDone);
    (view, start)
}

fn gone(uid: &str) -> Asked {
    Asked::Gone(Box::new(machine(uid, &json!({}))))
}

#[test]
fn own_objects_are_kept_without_fields_that_are_not_read() {
    let status = json!({ "enrollment": { "certificateFingerprint": Digest::from_sha256([0xab; 32]) } });
    let (mut view, start) = listed(vec![machine("m", &status)], vec![node("node-2"), node("node-1")]);
    let (seen, _) = view.seen(start);
    assert_eq!((seen.api, seen.ours), (Api::Live, true));
    assert!(seen.machine.unwrap().metadata.managed_fields.as_ref().is_none_or(Vec::is_empty));
    let NodeState::Present(node) = seen.node else { panic!("{:?}", seen.node) };
    assert_eq!(node.metadata.name.as_deref(), Some("node-1"));
    let status = node.status.clone().unwrap();
    assert!(status.images.is_none() && status.conditions.is_some());
}

#[test]
fn a_node_is_absent_only_by_a_live_read_with_the_machine_at_hand() {
    let (mut view, start) = listed(vec![machine("m", &json!({}))], vec![]);
    assert!(view.asks_for_node());
    assert_eq!(view.seen(start).0.node, NodeState::Unknown, "a watch's word is not enough");
    view.answered(Asked::There);
    view.answered(gone("another"));
    assert_eq!(view.seen(start).0.node, NodeState::Unknown);
    view.answered(gone("m"));
    assert_eq!(view.seen(start).0.node, NodeState::Absent);
    assert!(!view.asks_for_node(), "asked once");
    view.take_node(Event::Apply(node("node-1")));
    assert!(matches!(view.seen(start).0.node, NodeState::Present(_)));
    view.answered(gone("m"));
    assert!(matches!(view.seen(start).0.node, NodeState::Present(_)), "an answer from before is old");
    view.take_node(Event::Delete(node("node-1")));
    assert!(view.asks_for_node());
    assert_eq!(view.seen(start).0.node, NodeState::Unknown);
}

#[test]
fn a_node_is_not_absent_where_the_machine_is_not_there_either() {
    let (mut view, start) = listed(vec![], vec![]);
    view.answered(gone("m"));
    let (seen, _) = view.seen(start);
    assert_eq!((seen.api, seen.machine, seen.node), (Api::Live, None, NodeState::Unknown));
}

#[test]
fn a_new_list_makes_what_was_known_of_an_absent_node_old() {
    let (mut view, start) = listed(vec![machine("m", &json!({}))], vec![]);
    view.answered(gone("m"));
    view.take_node(Event::Init);
    assert_eq!(view.seen(start).0.node, NodeState::Unknown);
    view.take_node(Event::InitDone);
    assert!(view.asks_for_node());
}

#[test]
fn broken_watch_keeps_its_data_which_is_outdated_after_a_while() {
    let (mut view, start) = listed(vec![machine("m", &json!({}))], vec![node("node-1")]);
    assert!(view.failed(Watched::Node, "no connection".to_owned(), start), "news");
    assert!(!view.failed(Watched::Node, "no connection".to_owned(), start), "no news");
    let later = start + Duration::from_secs(60);
    let (seen, _) = view.seen(later);
    assert_eq!(seen.api, Api::Away);
    assert!(matches!(seen.node, NodeState::Present(_)));
    assert!(
        seen.describe().contains("watch of Node of this host failed: no connection"),
        "{}",
        seen.describe()
    );
    view.taken(Watched::Node);
    let (seen, _) = view.seen(later);
    assert_eq!((seen.api, seen.trouble.len()), (Api::Live, 0));
}

#[test]
fn the_version_follows_what_is_selected() {
    let selected =
        |number: i64| json!({ "selected": { "name": "workers", "version": number, "source": "Selector" } });
    let version = |number: i64| -> MachineConfigurationVersion {
        let template = json!({ "image": { "reference": "r" }, "kubernetes": { "version": "v1.34.4" } });
        let object = json!({ "metadata": { "name": format!("workers-v{number}") },
            "spec": { "configurationName": "workers", "version": number, "template": template } });
        serde_json::from_value(object).unwrap()
    };
    let (mut view, start) = listed(vec![machine("m", &json!({}))], vec![]);
    assert_eq!(view.selected(), None);
    view.take_machine(Event::Apply(machine("m", &selected(1))));
    assert_eq!(view.selected().as_deref(), Some("workers-v1"));
    view.aim(Some("workers-v1"));
    view.take_version(Event::Init);
    view.take_version(Event::InitApply(version(1)));
    view.take_version(Event::InitDone);
    assert_eq!(view.seen(start).0.version_facts().unwrap().reference.version, 1);
    view.aim(Some("workers-v1"));
    assert!(view.seen(start).0.version.is_some(), "a renewed certificate does not forget it");
    view.aim(Some("workers-v2"));
    assert_eq!(view.seen(start).0.version, None);
    view.take_version(Event::Apply(version(1)));
    assert_eq!(view.seen(start).0.version, None, "a late word of the one before");
}

#[test]
fn operations_are_those_of_this_machine_that_have_not_ended() {
    let (mut view, start) = listed(vec![machine("m", &json!({}))], vec![]);
    view.take_operation(Event::Init);
    view.take_operation(Event::InitApply(operation("b", "node-1", json!("Pending"))));
    view.take_operation(Event::InitApply(operation("a", "node-1", json!(null))));
    view.take_operation(Event::InitApply(operation("done", "node-1", json!("Complete"))));
    view.take_operation(Event::InitApply(operation("other", "node-2", json!("Pending"))));
    let names = |view: &mut View| -> Vec<String> {
        view.seen(start).0.operations.iter().map(|operation| operation.name_any()).collect()
    };
    assert_eq!(names(&mut view), Vec::<String>::new(), "a list counts when it is whole");
    view.take_operation(Event::InitDone);
    assert_eq!(names(&mut view), ["a", "b"]);
    view.take_operation(Event::Apply(operation("a", "node-1", json!("Failed"))));
    view.take_operation(Event::Apply(operation("c", "node-1", json!("InProgress"))));
    view.take_operation(Event::Delete(operation("b", "node-1", json!("Pending"))));
    assert_eq!(names(&mut view), ["c"]);
}

#[test]
fn machine_stays_ours_only_while_its_next_certificate_is_pending() {
    let shows = |uid: &str, byte: u8| {
        machine(uid, &json!({ "enrollment": { "certificateFingerprint": Digest::from_sha256([byte; 32]) } }))
    };
    let (mut view, start) = listed(vec![shows("m", 0xab)], vec![]);
    assert!(view.seen(start).0.ours);
    view.expects.store(true, Ordering::Relaxed);
    view.take_machine(Event::Apply(shows("m", 0xcd)));
    assert!(view.seen(start).0.ours, "pxed writes it before it answers");
    view.take_machine(Event::Apply(shows("another", 0xcd)));
    assert!(!view.seen(start).0.ours);
    view.take_machine(Event::Apply(shows("m", 0xcd)));
    view.expects.store(false, Ordering::Relaxed);
    assert!(!view.seen(start).0.ours, "it did not arrive: another host has it");
    view.reopened(Digest::from_sha256([0xcd; 32]), start);
    assert!(view.seen(start).0.ours);
}

#[test]
fn a_heartbeat_is_no_news() {
    let at = |version: &str, beat: &str| {
        let status = json!({ "agent": { "version": "1", "lastHeartbeatTime": beat }, "hardware": { "vendor": "x" },
            "selected": { "name": "w", "version": 1, "source": "Selector" } });
        let mut machine = machine("m", &status);
        machine.metadata.resource_version = Some(version.to_owned());
        let object = json!({ "metadata": { "name": "node-1", "uid": "n", "resourceVersion": version },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": beat }] } });
        (machine, serde_json::from_value::<Node>(object).unwrap())
    };
    let (machine, node) = at("1", "2026-01-01T00:00:00Z");
    let (mut view, start) = listed(vec![machine], vec![node]);
    let before = view.seen(start).0;
    let (machine, node) = at("2", "2026-01-01T00:00:30Z");
    view.take_machine(Event::Apply(machine));
    view.take_node(Event::Apply(node));
    assert_eq!(view.seen(start).0, before);
    assert!(
        before.machine_facts().unwrap().selected.is_some()
            && before.node_seen() != crate::model::NodeSeen::Unknown
    );
}

#[test]
fn finished_operations_are_known_by_uid_once_listed() {
    let (mut view, start) = listed(vec![machine("m", &json!({}))], vec![]);
    assert!(!view.seen(start).0.operations_listed);
    let ended = |name: &str, reason: &str| {
        let mut ended = operation(name, "node-1", json!("Complete"));
        ended.metadata.uid = Some(format!("uid-{name}"));
        ended.status.as_mut().unwrap().reason = Some(reason.to_owned());
        ended
    };
    view.take_operation(Event::Init);
    view.take_operation(Event::InitApply(ended("a", "Rebooted")));
    view.take_operation(Event::InitDone);
    view.take_operation(Event::Apply(ended("b", "ShutDown")));
    view.take_operation(Event::Apply(operation("c", "node-2", json!("Complete"))));
    let seen = view.seen(start).0;
    assert!(seen.operations_listed && seen.operations.is_empty());
    assert_eq!(seen.ended, [("uid-a".to_owned(), false), ("uid-b".to_owned(), true)].into());
    view.take_operation(Event::Delete(ended("a", "Rebooted")));
    assert_eq!(view.seen(start).0.ended.len(), 1);
}
