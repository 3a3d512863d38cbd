//! Cordon, drain, and the report about Pods.

use bedplate_api::reason::core::MachineDeletingReason as Reason;
use bedplate_rules::drain::Evicted;
use serde_json::json;

use crate::core::machine::deletion::fixture::{
    at, draining, found, in_drain, machine, node, observed, referenced, target, view,
};
use crate::core::machine::deletion::{
    Act, EVICTIONS_PER_TURN, Needed, NodeState, Observed, Plan, Target, Treatment, plan,
};
use crate::core::reference::Lookup;

fn busy(targets: Vec<Target>) -> Observed {
    Observed { pods: view(targets), ..in_drain() }
}

fn evicted(observed: &Observed, now: i64) -> Vec<String> {
    match plan(observed, at(now)).act {
        Act::Evict { pods, .. } => pods.into_iter().map(|pod| pod.name).collect(),
        _ => Vec::new(),
    }
}

fn message(observed: &Observed, now: i64) -> String {
    let (reason, message) = plan(observed, at(now)).condition.unwrap();
    assert_eq!(reason, Reason::DrainingNode);
    message
}

fn leaving(name: &str) -> Target {
    let mut target = target(name);
    target.pod.leaving = true;
    target
}

#[test]
fn m9_start_is_recorded_before_cordon_and_cordon_before_eviction() {
    let mut observed = Observed { node: found(node()), pods: None, ..observed() };
    assert_eq!(plan(&observed, at(7)).act, Act::RecordDrainStart(at(7)));
    observed.machine = machine(draining);
    let cordon = Act::Cordon { name: "node".to_owned(), uid: "node-uid".to_owned() };
    assert_eq!(plan(&observed, at(8)).act, cordon);
    observed.node = found(NodeState { is_unschedulable: true, ..node() });
    assert_eq!(plan(&observed, at(9)).act, Act::Read(Needed::Pods("node".to_owned())));
    observed.pods = view(vec![target("a")]);
    assert_eq!(evicted(&observed, 10), ["a"]);
}

#[test]
fn m9_drain_waits_for_pods_that_are_being_deleted() {
    let observed = busy(vec![leaving("a")]);
    let Plan { act, again, .. } = plan(&observed, at(1));
    assert_eq!((act, again), (Act::Wait, Some(at(21))));
    let expected = "Node node is being drained since 2026-01-01T00:00:00Z: Pods n/a are being deleted";
    assert_eq!(message(&observed, 1), expected);
    assert_eq!(message(&observed, 500), expected, "the message does not depend on the time");
}

#[test]
fn m9_evictions_of_a_turn_are_bounded_and_the_next_turn_is_soon() {
    let observed = busy((0..50).map(|number| target(&format!("{number:02}"))).collect());
    assert_eq!(evicted(&observed, 1).len(), EVICTIONS_PER_TURN);
    assert_eq!(plan(&observed, at(1)).again, Some(at(2)));
    let message = message(&observed, 1);
    assert!(message.contains("Pods n/00, n/01, n/02, n/03, n/04 and 45 more are evicted next"), "{message}");
}

#[test]
fn m9_rejected_evictions_do_not_stop_the_other_pods() {
    let mut observed = busy((0..30).map(|number| target(&format!("{number:02}"))).collect());
    let held =
        |name: &String| (format!("{name}-uid"), Ok(Evicted::Held { again: None, why: "budget x".into() }));
    let first = evicted(&observed, 1);
    observed.settle(first.iter().map(held).collect(), at(1));
    let second = evicted(&observed, 2);
    assert_eq!((second.len(), second[0].as_str()), (10, "20"));
    observed.settle(second.iter().map(held).collect(), at(2));
    assert_eq!(evicted(&observed, 3), [""; 0]);
    assert_eq!(plan(&observed, at(3)).again, Some(at(6)), "5 s after the first attempt");
    assert_eq!(evicted(&observed, 6).len(), EVICTIONS_PER_TURN);
    let text = message(&observed, 3);
    assert!(text.contains("n/04 and 25 more are not evicted: budget x"), "{text}");
    assert_eq!(message(&observed, 6), text, "another attempt does not change the message");
}

#[test]
fn m9_results_of_evictions_are_reported_in_the_same_turn() {
    let mut observed = busy(["a", "b", "c", "d"].map(target).to_vec());
    let results = vec![
        ("a-uid".to_owned(), Ok(Evicted::Accepted)),
        ("b-uid".to_owned(), Ok(Evicted::Gone)),
        ("c-uid".to_owned(), Ok(Evicted::Held { again: Some(30), why: "budget y\nneeds 2".to_owned() })),
        ("d-uid".to_owned(), Err("forbidden".to_owned())),
    ];
    observed.settle(results, at(1));
    let text = message(&observed, 1);
    for part in
        ["n/a are being deleted", "n/c are not evicted: budget y needs 2", "n/d are not evicted: forbidden"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("n/b"), "{text}");
    assert_eq!(observed.holds.keys().collect::<Vec<_>>(), ["c-uid", "d-uid"]);
    observed.pods = view(vec![target("d")]);
    observed.settle(Vec::new(), at(2));
    assert_eq!(
        observed.holds.keys().collect::<Vec<_>>(),
        ["d-uid"],
        "records of Pods that are gone are dropped"
    );
}

#[test]
fn m9_causes_of_rejected_evictions_are_bounded() {
    let targets: Vec<Target> = (0..40).map(|number| target(&format!("{number:02}"))).collect();
    let mut observed = busy(targets);
    let results =
        (0..40).map(|number| (format!("{number:02}-uid"), Err(format!("{number:02} {}", "x".repeat(5000)))));
    observed.settle(results.collect(), at(1));
    let text = message(&observed, 1);
    assert!(text.contains("37 Pods are not evicted for other causes"), "{text}");
    assert!(text.chars().count() < 1024, "{}", text.len());
}

#[test]
fn m9_lower_order_leaves_before_a_higher_one() {
    let ordered = |name: &str, order| Target { order, ..target(name) };
    let mut observed = busy(vec![ordered("a", -1), ordered("b", 5)]);
    assert_eq!(evicted(&observed, 1), ["a"]);
    assert!(message(&observed, 1).contains("1 Pod follows after these"));
    observed.pods = view(vec![Target { order: -1, ..leaving("a") }, ordered("b", 5)]);
    assert_eq!(evicted(&observed, 1), [""; 0], "a Pod of the lower order is still there");
    observed.pods = view(vec![ordered("b", 5)]);
    assert_eq!(evicted(&observed, 1), ["b"]);
}

#[test]
fn m9_pods_that_must_finish_or_are_undecided_hold_the_drain() {
    let finishing = Target { treatment: Treatment::Complete, ..target("a") };
    let undecided = Target { treatment: Treatment::Undecided("why".to_owned()), ..target("b") };
    let observed = busy(vec![finishing, undecided]);
    assert_eq!(plan(&observed, at(1)).act, Act::Wait);
    let text = message(&observed, 1);
    assert!(text.contains("Pods n/a are left to finish; Pods n/b are not evicted: why"), "{text}");
}

#[test]
fn m9_pods_beyond_the_view_hold_the_drain() {
    let mut observed = busy(Vec::new());
    if let Some(Ok(view)) = &mut observed.pods {
        view.more = 3;
    }
    assert_eq!(plan(&observed, at(1)).act, Act::Wait);
    assert!(message(&observed, 1).ends_with("3 Pods follow after these"));
}

#[test]
fn m9_pods_on_an_unreachable_node_get_one_second() {
    let mut observed = busy(vec![target("a")]);
    let grace = |observed: &Observed| match plan(observed, at(1)).act {
        Act::Evict { grace, .. } => grace,
        act => panic!("{act:?}"),
    };
    assert_eq!(grace(&observed), None);
    observed.node = found(NodeState { is_unschedulable: true, is_unreachable: true, ..node() });
    assert_eq!(grace(&observed), Some(1));
}

#[test]
fn m9_drain_ends_at_its_timeout_and_never_without_one() {
    let with = |seconds: serde_json::Value| Observed {
        machine: machine(|object| {
            draining(object);
            object["spec"]["deletion"] = json!({ "nodeDrainTimeoutSeconds": seconds });
        }),
        ..busy(vec![leaving("a")])
    };
    for (timeout, now, ends) in [
        (json!(30), 29, false),
        (json!(30), 30, true),
        (json!(0), 1_000_000, false),
        (json!(null), 1_000_000, false),
    ] {
        let act = plan(&with(timeout.clone()), at(now)).act;
        assert_eq!(matches!(act, Act::DeleteInfrastructure(_)), ends, "{timeout} {now}");
    }
    assert_eq!(plan(&with(json!(30)), at(25)).again, Some(at(30)), "woken at the end");
    assert!(
        message(&with(json!(30)), 25)
            .ends_with("; the deletion continues without it at 2026-01-01T00:00:30Z")
    );
}

#[test]
fn m9_unreachable_workload_api_holds_the_drain_until_its_timeout() {
    let refused = || Some(Err("connection refused".to_owned()));
    let mut observed = Observed { node: refused().map(|error: Result<_, _>| error), ..observed() };
    assert_eq!(plan(&observed, at(3)).act, Act::RecordDrainStart(at(3)), "the timeout counts from now");
    let limited = machine(|object| {
        draining(object);
        object["spec"]["deletion"] =
            json!({ "nodeDrainTimeoutSeconds": 30, "nodeVolumeDetachTimeoutSeconds": 1 });
        object["status"]["deletion"]["waitForNodeVolumeDetachStartTime"] = json!("2026-01-01T00:00:01Z");
    });
    observed.machine = limited.clone();
    assert_eq!(plan(&observed, at(29)).act, Act::Wait);
    assert!(message(&observed, 29).contains("Node cannot be read: connection refused"));
    assert!(matches!(plan(&observed, at(30)).act, Act::DeleteInfrastructure(_)));
    let pods = Observed { pods: Some(Err("no answer".to_owned())), machine: limited, ..in_drain() };
    assert!(message(&pods, 29).contains("Pods cannot be read: no answer"));
}

#[test]
fn m9_unreachable_workload_api_holds_nothing_once_the_host_goes() {
    let failed = || Observed { pods: Some(Err("no answer".to_owned())), ..in_drain() };
    for infrastructure in [referenced("infra", true), Lookup::Absent] {
        let pods = Observed {
            infrastructure: infrastructure.clone(),
            volumes: Some(Err(String::new())),
            ..failed()
        };
        let node = Observed { infrastructure, node: Some(Err(String::new())), ..in_drain() };
        for observed in [pods, node] {
            let reason = plan(&observed, at(1)).condition.unwrap().0;
            assert!(reason != Reason::DrainingNode && reason != Reason::WaitingForVolumeDetach, "{reason:?}");
        }
    }
}

#[test]
fn m9_excluded_machine_is_not_drained() {
    let mut observed = Observed { node: found(node()), ..busy(vec![target("a")]) };
    observed.machine = machine(|object| {
        object["metadata"]["annotations"] = json!({ "machine.cluster.x-k8s.io/exclude-node-draining": "" });
    });
    assert!(matches!(plan(&observed, at(1)).act, Act::DeleteInfrastructure(_)));
}

#[test]
fn m9_control_plane_machine_is_drained_only_with_the_hook_of_kubeadm() {
    let hook = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup";
    for (is_control_plane, has_hook, is_drained) in
        [(true, false, false), (true, true, true), (false, false, true)]
    {
        let mut observed = busy(vec![target("a")]);
        observed.machine = machine(|object| {
            draining(object);
            if is_control_plane {
                object["metadata"]["labels"]["cluster.x-k8s.io/control-plane"] = json!("");
            }
            if has_hook {
                object["metadata"]["annotations"][hook] = json!("");
            }
            object["metadata"]["ownerReferences"] = json!([{ "kind": "KubeadmControlPlane", "name": "k", "uid": "k",
                "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2" }]);
        });
        assert_eq!(!evicted(&observed, 1).is_empty(), is_drained, "{is_control_plane} {has_hook}");
    }
}
