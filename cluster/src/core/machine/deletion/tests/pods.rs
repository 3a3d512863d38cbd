//! Treatment of Pods, and their view.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::cluster::full::MachineDrainRule;
use serde_json::{Value, json};

use crate::core::machine::deletion::fixture::{at, cluster, machine, rule};
use crate::core::machine::deletion::{PodCollector, PodsView, Selection, Treatment};

fn pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "metadata": { "namespace": "n", "name": "p", "uid": "u", "labels": { "app": "web" },
            "ownerReferences": [{ "kind": "ReplicaSet", "controller": true }] },
        "spec": { "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] },
        "status": { "phase": "Running" } });
    change(&mut object);
    object
}

fn selection(rules: &[Arc<MachineDrainRule>]) -> Selection {
    Selection::new(rules, &machine(|_| {}), Some(&cluster(|_| {}))).unwrap()
}

fn view(selection: &Selection, object: &Value, is_unreachable: bool) -> PodsView {
    let namespace = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    let mut collector = PodCollector::new(selection, is_unreachable, at(100));
    collector.add(object, Some(&namespace));
    collector.finish()
}

/// Order and treatment of a Pod under these rules. None: it stays.
fn treated(rules: &[Arc<MachineDrainRule>], object: &Value) -> Option<(i32, Treatment)> {
    let view = view(&selection(rules), object, false);
    view.targets.into_iter().next().map(|target| (target.order, target.treatment))
}

const EVICT: Option<(i32, Treatment)> = Some((0, Treatment::Evict));

#[test]
fn m9_pods_of_daemonsets_the_kubelet_and_finished_pods_stay() {
    assert_eq!(treated(&[], &pod(|_| {})), EVICT);
    assert_eq!(treated(&[], &pod(|pod| pod["metadata"]["ownerReferences"] = json!([]))), EVICT);
    let daemon = |pod: &mut Value| pod["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
    assert_eq!(treated(&[], &pod(daemon)), None);
    let mirror = |pod: &mut Value| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
    assert_eq!(treated(&[], &pod(mirror)), None);
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(treated(&[], &pod(|pod| pod["status"]["phase"] = json!(phase))), None);
    }
    let claims = |object: Value| view(&selection(&[]), &object, false).kept_claims.len();
    assert_eq!(claims(pod(daemon)), 1, "volumes of a Pod that stays are not waited for");
    assert_eq!(claims(pod(|pod| pod["status"]["phase"] = json!("Failed"))), 0);
    assert_eq!(claims(pod(|_| {})), 0);
}

#[test]
fn m9_deleting_pod_counts_as_gone_only_on_an_unreachable_node() {
    for (deleted, is_unreachable, is_waited_for) in
        [(98, true, false), (99, true, true), (110, true, true), (1, false, true)]
    {
        let time = json!(at(deleted).to_string());
        let object = pod(|pod| pod["metadata"]["deletionTimestamp"] = time);
        let view = view(&selection(&[]), &object, is_unreachable);
        assert_eq!(!view.targets.is_empty(), is_waited_for, "{deleted} {is_unreachable}");
    }
}

#[test]
fn m9_label_of_the_pod_counts_before_rules() {
    let labeled = |value: &str| pod(|pod| pod["metadata"]["labels"]["cluster.x-k8s.io/drain"] = json!(value));
    let rules = [rule("a", &json!({ "drain": { "behavior": "Drain", "order": 7 } }))];
    assert_eq!(treated(&rules, &labeled("skip")), None);
    assert_eq!(treated(&rules, &labeled("Skip")), None);
    assert_eq!(treated(&rules, &labeled("wait-completed")), Some((0, Treatment::Complete)));
    assert_eq!(treated(&rules, &labeled("other")), Some((7, Treatment::Evict)));
}

#[test]
fn m9_first_rule_by_name_that_selects_the_pod_counts() {
    let skip = |name: &str| rule(name, &json!({ "drain": { "behavior": "Skip" } }));
    let drain = |name: &str| rule(name, &json!({ "drain": { "behavior": "Drain", "order": 3 } }));
    assert_eq!(treated(&[skip("b"), drain("a")], &pod(|_| {})), Some((3, Treatment::Evict)));
    assert_eq!(treated(&[drain("b"), skip("a")], &pod(|_| {})), None);
    let other = json!({ "drain": { "behavior": "Skip" }, "pods": [{ "selector": { "matchLabels": { "app": "db" } } }] });
    assert_eq!(treated(&[rule("a", &other), drain("b")], &pod(|_| {})), Some((3, Treatment::Evict)));
    let wait = rule("a", &json!({ "drain": { "behavior": "WaitCompleted" } }));
    assert_eq!(treated(&[wait], &pod(|_| {})), Some((0, Treatment::Complete)));
}

#[test]
fn m9_rule_of_a_later_version_leaves_the_pod_and_is_named() {
    let rules = [rule("later", &json!({ "drain": { "behavior": "Teleport" } }))];
    let Some((0, Treatment::Undecided(why))) = treated(&rules, &pod(|_| {})) else { panic!("not undecided") };
    assert_eq!(why, "behavior of MachineDrainRule later is not supported");
}

#[test]
fn m9_rule_selects_machines_by_their_labels_and_those_of_the_cluster() {
    let skips = |machines: Value| {
        let spec = json!({ "drain": { "behavior": "Skip" }, "machines": machines });
        treated(&[rule("a", &spec)], &pod(|_| {})).is_none()
    };
    let labels = |key: &str, value: &str| json!({ "matchLabels": { key: value } });
    assert!(skips(json!([{ "selector": labels("pool", "a") }])));
    assert!(!skips(json!([{ "selector": labels("pool", "b") }])));
    assert!(skips(json!([{ "selector": labels("pool", "b") }, { "clusterSelector": labels("zone", "z") }])));
    assert!(!skips(json!([{ "selector": labels("pool", "a"), "clusterSelector": labels("zone", "y") }])));
}

#[test]
fn m9_rule_selects_pods_by_the_labels_of_their_namespace() {
    let rules = |team: &str| {
        let namespaces = json!({ "matchLabels": { "team": team } });
        [rule(
            "a",
            &json!({ "drain": { "behavior": "Skip" }, "pods": [{ "namespaceSelector": namespaces }] }),
        )]
    };
    assert_eq!(treated(&rules("a"), &pod(|_| {})), None);
    assert_eq!(treated(&rules("b"), &pod(|_| {})), EVICT);
    let selection = selection(&rules("a"));
    assert!(selection.needs_namespaces());
    let mut collector = PodCollector::new(&selection, false, at(100));
    collector.add(&pod(|_| {}), None);
    let view = collector.finish();
    assert!(matches!(view.targets[0].treatment, Treatment::Undecided(_)), "it may be one that stays");
}

#[test]
fn m9_invalid_selector_of_a_rule_is_named() {
    let invalid = json!({ "matchExpressions": [{ "key": "a", "operator": "Gt", "values": ["1"] }] });
    let rule = rule("broken", &json!({ "drain": { "behavior": "Skip" }, "pods": [{ "selector": invalid }] }));
    let error = Selection::new(&[rule], &machine(|_| {}), None).unwrap_err();
    assert!(error.starts_with("MachineDrainRule broken has an invalid selector"), "{error}");
}

#[test]
fn m9_view_of_pods_is_bounded_and_keeps_the_lowest_order() {
    let first = json!({ "drain": { "behavior": "Drain", "order": -5 },
        "pods": [{ "selector": { "matchLabels": { "app": "first" } } }] });
    let selection = selection(&[rule("a", &first)]);
    let mut collector = PodCollector::new(&selection, false, at(100));
    for number in 0..700 {
        collector.add(&pod(|pod| pod["metadata"]["name"] = json!(format!("p{number:03}"))), None);
    }
    collector.add(&pod(|pod| pod["metadata"]["labels"]["app"] = json!("first")), None);
    let view = collector.finish();
    assert_eq!((view.targets.len(), view.more), (500, 201));
    assert_eq!((view.targets[0].order, view.targets[1].pod.name.as_str()), (-5, "p000"));
}

#[test]
fn m9_pods_of_any_form_are_read() {
    for object in
        [json!(null), json!({ "metadata": 3 }), json!({ "metadata": { "labels": { "a": 1 } }, "spec": [] })]
    {
        assert_eq!(view(&selection(&[]), &object, true).targets.len(), 1, "{object}");
    }
}
