//! The Node: when it is skipped, when it is deleted, and its timeout.

use bedplate_api::reason::core::MachineDeletingReason as Reason;
use serde_json::json;

use crate::core::machine::deletion::fixture::{
    DELETED, at, cluster, draining, found, in_drain, machine, node, referenced, target, view,
};
use crate::core::machine::deletion::{Act, Needed, NodeAnswer, NodeFailure, NodeState, Observed, Plan, plan};
use crate::core::reference::Lookup;

/// Everything of the Machine is gone but its Node.
fn only_node() -> Observed {
    Observed { infrastructure: Lookup::Absent, bootstrap: Some(Lookup::Absent), ..in_drain() }
}

fn act(observed: &Observed) -> Act {
    plan(observed, at(1)).act
}

/// Checks that the Node is neither drained nor deleted.
fn is_skipped(case: &str, change: impl Fn(&mut Observed)) {
    let mut busy = Observed { pods: view(vec![target("a")]), ..in_drain() };
    change(&mut busy);
    assert!(matches!(act(&busy), Act::DeleteInfrastructure(_)), "{case}: {:?}", act(&busy));
    let mut last = only_node();
    change(&mut last);
    assert_eq!(act(&last), Act::RemoveFinalizer, "{case}");
}

#[test]
fn m9_node_is_skipped_when_its_cluster_or_control_plane_goes() {
    is_skipped("cluster deleting", |observed| {
        observed.cluster = Some(cluster(|object| object["metadata"]["deletionTimestamp"] = json!(DELETED)));
    });
    is_skipped("no cluster", |observed| observed.cluster = None);
    is_skipped("control plane deleting", |observed| observed.control_plane = Some(referenced("cp", true)));
    is_skipped("last control plane Machine", |observed| observed.active_control_plane_machines = 0);
    is_skipped("control plane object gone, no Machines", |observed| {
        observed.control_plane = Some(Lookup::Absent);
        observed.active_control_plane_machines = 0;
    });
}

#[test]
fn m9_node_is_skipped_without_a_node_of_the_machine() {
    is_skipped("no nodeRef, no provider ID", |observed| {
        observed.machine = machine(|object| {
            object["status"] = json!({});
            object["spec"]["providerID"] = json!(null);
        });
        observed.node = None;
    });
    is_skipped("node absent", |observed| observed.node = Some(Ok(NodeAnswer::Absent)));
    for id in [Some("p://2".to_owned()), None] {
        is_skipped("foreign provider ID", |observed| {
            observed.node = found(NodeState { provider_id: id.clone(), ..node() });
        });
    }
}

#[test]
fn m9_skipped_drain_is_named_with_its_cause() {
    let message = |observed: &Observed| plan(observed, at(1)).condition.unwrap().1;
    assert_eq!(message(&in_drain()), "BedplateMachine infra is being deleted");
    let annotated = machine(|object| {
        object["metadata"]["annotations"] = json!({ "machine.cluster.x-k8s.io/exclude-node-draining": "" });
    });
    let cluster = cluster(|object| object["metadata"]["deletionTimestamp"] = json!(DELETED));
    for (case, cause) in [
        (Observed { cluster: Some(cluster), ..in_drain() }, "its Cluster is being deleted"),
        (Observed { cluster: None, ..in_drain() }, "its Cluster does not exist"),
        (
            Observed { control_plane: Some(referenced("cp", true)), ..in_drain() },
            "the control plane is being deleted",
        ),
        (
            Observed { active_control_plane_machines: 0, ..in_drain() },
            "no other Machine of the control plane is left",
        ),
        (
            Observed { node: Some(Ok(NodeAnswer::Absent)), ..without_reference() },
            "no Node has the providerID of the Machine",
        ),
        (
            Observed { machine: annotated, ..in_drain() },
            "annotation machine.cluster.x-k8s.io/exclude-node-draining is set",
        ),
    ] {
        let expected = format!("BedplateMachine infra is being deleted; Node was not drained: {cause}");
        assert_eq!(message(&case), expected);
    }
}

/// A Machine whose Node is not recorded.
fn without_reference() -> Observed {
    let machine = machine(|object| object["status"]["nodeRef"] = json!(null));
    Observed { machine, ..in_drain() }
}

#[test]
fn m9_external_control_plane_has_no_machines_and_the_node_is_deleted() {
    let object = json!({ "metadata": { "name": "cp" }, "status": { "externalManagedControlPlane": true } });
    let control_plane = Lookup::Found(std::sync::Arc::new(serde_json::from_value(object).unwrap()));
    let mut observed = Observed { active_control_plane_machines: 0, ..only_node() };
    observed.control_plane = Some(control_plane);
    assert!(matches!(act(&observed), Act::DeleteNode { .. }));
}

#[test]
fn m9_control_plane_that_cannot_be_read_holds_the_deletion() {
    let unresolved = Lookup::Unresolved("kind is not installed".to_owned());
    let Plan { act, condition, .. } =
        plan(&Observed { control_plane: Some(unresolved), ..in_drain() }, at(1));
    assert_eq!((act, condition.unwrap().0), (Act::Wait, Reason::InternalError));
}

#[test]
fn m9_node_without_reference_is_looked_for_by_provider_id() {
    let mut observed = Observed { node: None, ..only_node() };
    observed.machine = machine(|object| {
        draining(object);
        object["status"]["nodeRef"] = json!(null);
    });
    assert_eq!(act(&observed), Act::Read(Needed::NodeOf("p://1".to_owned())));
    observed.node = Some(Err("timeout".to_owned()));
    assert_eq!(act(&observed), Act::RemoveFinalizer, "best effort");
    observed.node = found(NodeState { is_unschedulable: true, ..node() });
    assert!(matches!(act(&observed), Act::DeleteNode { .. }));
}

/// A Machine without `nodeRef` whose Nodes were not read.
fn not_read(is_expected: bool, timeout: Option<i32>) -> Observed {
    let machine = machine(|object| {
        object["status"] = json!({});
        if let Some(seconds) = timeout {
            object["spec"]["deletion"] = json!({ "nodeDrainTimeoutSeconds": seconds });
        }
    });
    Observed { machine, node: Some(Ok(NodeAnswer::NotRead { is_expected })), ..in_drain() }
}

#[test]
fn m9_node_that_was_not_read_yet_holds_the_deletion_for_a_bounded_time() {
    for (is_expected, timeout, now, ends) in [
        (false, None, 299, false),
        (false, None, 300, true),
        (false, Some(60), 59, false),
        (false, Some(60), 60, true),
        (false, Some(0), 299, false),
        (false, Some(9000), 300, true),
        (true, Some(60), 9000, false),
    ] {
        let plan = plan(&not_read(is_expected, timeout), at(now));
        let case = format!("{is_expected} {timeout:?} {now}: {plan:?}");
        assert_eq!(matches!(plan.act, Act::DeleteInfrastructure(_)), ends, "{case}");
        if !ends {
            assert_eq!(plan.act, Act::Wait, "{case}");
            assert!(plan.again.is_some_and(|again| again > at(now) && again <= at(now + 20)), "{case}");
        }
    }
    let mut doomed = not_read(true, None);
    doomed.control_plane = Some(referenced("cp", true));
    assert!(matches!(act(&doomed), Act::DeleteInfrastructure(_)), "it has no Node to drain then");
}

#[test]
fn m9_node_is_read_before_it_is_drained_or_deleted() {
    let needed = Act::Read(Needed::Node("node".to_owned()));
    assert_eq!(act(&Observed { node: None, ..in_drain() }), needed);
    let machine = machine(|object| {
        object["metadata"]["annotations"] = json!({
            "machine.cluster.x-k8s.io/exclude-node-draining": "",
            "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach": "" });
    });
    assert_eq!(act(&Observed { node: None, machine, ..only_node() }), needed);
}

#[test]
fn m9_node_that_is_being_deleted_is_not_deleted_again() {
    let node = found(NodeState { is_deleting: true, is_unschedulable: true, ..node() });
    assert_eq!(act(&Observed { node, ..only_node() }), Act::RemoveFinalizer);
}

/// A Machine whose Node cannot be read, or deleted, since this time.
fn failing(timeout: Option<i32>, since: Option<i64>, is_read: bool) -> Observed {
    let mut observed = only_node();
    observed.machine = machine(|object| {
        draining(object);
        if let Some(seconds) = timeout {
            object["spec"]["deletion"] = json!({ "nodeDeletionTimeoutSeconds": seconds });
        }
    });
    if !is_read {
        observed.node = Some(Err("connection refused".to_owned()));
    }
    observed.node_failure = since.map(|since| NodeFailure::after(None, "connection refused", at(since)));
    observed
}

#[test]
fn m9_node_deletion_ends_at_its_timeout_after_ten_seconds_of_attempts() {
    for is_read in [true, false] {
        for (timeout, since, now, ends) in [
            (None, Some(0), 9, false),
            (None, Some(0), 10, true),
            (None, Some(300), 305, false),
            (None, Some(300), 310, true),
            (Some(60), Some(0), 59, false),
            (Some(60), Some(0), 60, true),
            (Some(0), Some(0), 100_000, false),
            (None, None, 100_000, false),
        ] {
            let plan = plan(&failing(timeout, since, is_read), at(now));
            assert_eq!(plan.act == Act::RemoveFinalizer, ends, "{timeout:?} {since:?} {now} {is_read}");
            if !ends {
                let delete = Act::DeleteNode { name: "node".to_owned(), uid: "node-uid".to_owned() };
                assert_eq!(plan.act, if is_read { delete } else { Act::Wait });
                assert!(plan.again.is_some_and(|again| again > at(now) && again <= at(now + 2)));
            }
        }
    }
}

#[test]
fn m9_failed_node_deletion_reports_cause_and_end() {
    let message = plan(&failing(None, Some(0), false), at(1)).condition.unwrap().1;
    let expected = "Node node is not deleted yet: connection refused; the deletion continues without it at 2026-01-01T00:00:10Z";
    assert_eq!(message, expected);
    let failure = NodeFailure::after(None, "a", at(1));
    assert_eq!(
        NodeFailure::after(Some(&failure), "b", at(5)),
        NodeFailure { since: at(1), why: "b".to_owned() }
    );
}

#[test]
fn m9_infrastructure_of_another_machine_names_no_node() {
    let infrastructure = |owner: &str| {
        let owner =
            json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": owner, "uid": "x" });
        let metadata = json!({ "name": "infra", "uid": "u", "ownerReferences": [owner] });
        let object = json!({ "metadata": metadata, "spec": { "providerID": "p://1" } });
        Lookup::Found(std::sync::Arc::new(serde_json::from_value(object).unwrap()))
    };
    let machine = machine(|object| {
        object["spec"]["providerID"] = json!(null);
        object["status"] = json!({});
    });
    let with = |owner| Observed {
        machine: machine.clone(),
        infrastructure: infrastructure(owner),
        node: None,
        ..in_drain()
    };
    assert_eq!(plan(&with("m"), at(1)).act, Act::Read(Needed::NodeOf("p://1".to_owned())));
    assert_eq!(plan(&with("other"), at(1)).act, Act::DeleteBootstrap("boot-uid".to_owned()));
}
