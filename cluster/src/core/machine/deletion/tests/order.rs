//! Order of the steps, hooks, infrastructure, bootstrap and finalizer.

use bedplate_api::reason::core::MachineDeletingReason as Reason;
use serde_json::json;

use crate::core::machine::deletion::fixture::{
    at, cluster, in_drain, machine, node, observed, referenced, view,
};
use crate::core::machine::deletion::fixture::{draining, found, target};
use crate::core::machine::deletion::{Act, NodeAnswer, Observed, Plan, plan};
use crate::core::reference::Lookup;

fn decided(observed: &Observed) -> (Act, Reason, String) {
    let Plan { act, condition, .. } = plan(observed, at(1));
    let (reason, message) = condition.unwrap();
    (act, reason, message)
}

/// Everything of the Machine is gone but its Node.
fn only_node() -> Observed {
    Observed { infrastructure: Lookup::Absent, bootstrap: Some(Lookup::Absent), ..in_drain() }
}

#[test]
fn m9_steps_follow_each_other_until_the_finalizer_is_removed() {
    let mut observed = in_drain();
    assert_eq!(decided(&observed).0, Act::DeleteInfrastructure("infra-uid".to_owned()));
    observed.infrastructure = referenced("infra", true);
    let (act, reason, _) = decided(&observed);
    assert_eq!((act, reason), (Act::Wait, Reason::WaitingForInfrastructureDeletion));
    observed.infrastructure = Lookup::Absent;
    assert_eq!(decided(&observed).0, Act::DeleteBootstrap("boot-uid".to_owned()));
    observed.bootstrap = Some(referenced("boot", true));
    let (act, reason, message) = decided(&observed);
    assert_eq!((act, reason), (Act::Wait, Reason::WaitingForBootstrapDeletion));
    assert_eq!(message, "KubeadmConfig boot is being deleted");
    observed.bootstrap = Some(Lookup::Absent);
    let delete = Act::DeleteNode { name: "node".to_owned(), uid: "node-uid".to_owned() };
    let (act, reason, _) = decided(&observed);
    assert_eq!((act, reason), (delete, Reason::DeletingNode));
    observed.node = Some(Ok(NodeAnswer::Absent));
    let (act, reason, _) = decided(&observed);
    assert_eq!((act, reason), (Act::RemoveFinalizer, Reason::DeletionCompleted));
}

#[test]
fn m9_machine_that_is_not_deleted_says_so() {
    let machine = machine(|object| object["metadata"]["deletionTimestamp"] = json!(null));
    let (act, reason, _) = decided(&Observed { machine, ..observed() });
    assert_eq!((act, reason), (Act::Wait, Reason::NotDeleting));
}

#[test]
fn m9_machine_without_the_finalizer_is_left_alone() {
    let machine = machine(|object| object["metadata"]["finalizers"] = json!(["other"]));
    let (act, reason, _) = decided(&Observed { machine, ..observed() });
    assert_eq!((act, reason), (Act::Wait, Reason::DeletionCompleted));
}

#[test]
fn m9_paused_machine_is_not_touched() {
    let observed = Observed { is_paused: true, ..in_drain() };
    assert_eq!(plan(&observed, at(1)), Plan::default());
}

#[test]
fn m9_pre_drain_hook_holds_cordon_and_names_its_owner() {
    let key = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup";
    let mut observed = Observed { node: found(node()), ..observed() };
    observed.machine = machine(|object| object["metadata"]["annotations"][key] = json!("velero"));
    let (act, reason, message) = decided(&observed);
    assert_eq!((act, reason), (Act::Wait, Reason::WaitingForPreDrainHook));
    assert!(message.contains(key) && message.contains("(owner velero)"), "{message}");
}

#[test]
fn m9_pre_drain_hook_does_not_count_without_a_drain() {
    let key = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup";
    let mut observed = observed();
    observed.machine = machine(|object| object["metadata"]["annotations"][key] = json!(""));
    observed.cluster =
        Some(cluster(|object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
    assert_eq!(decided(&observed).0, Act::DeleteInfrastructure("infra-uid".to_owned()));
}

#[test]
fn m9_pre_terminate_hook_holds_the_infrastructure_and_not_the_drain() {
    let key = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/snapshot";
    let mut observed = in_drain();
    observed.machine = machine(|object| {
        draining(object);
        object["metadata"]["annotations"][key] = json!("");
    });
    let (act, reason, message) = decided(&observed);
    assert_eq!((act, reason), (Act::Wait, Reason::WaitingForPreTerminateHook));
    assert!(message.contains(key) && !message.contains("owner"), "{message}");
    observed.pods = view(vec![target("a")]);
    assert!(matches!(decided(&observed).0, Act::Evict { .. }));
}

#[test]
fn m9_many_hooks_are_named_in_order_and_counted() {
    let machine = machine(|object| {
        for number in 0..8 {
            let key = format!("pre-terminate.delete.hook.machine.cluster.x-k8s.io/h{number}");
            object["metadata"]["annotations"][key] = json!("");
        }
        draining(object);
    });
    let message = decided(&Observed { machine, ..in_drain() }).2;
    assert!(
        message.contains("/h0, ") && message.contains("/h4 and 3 more") && !message.contains("/h5"),
        "{message}"
    );
}

#[test]
fn m9_kind_that_cannot_be_read_holds_the_deletion_with_a_cause() {
    let unresolved = || Lookup::Unresolved("kind is not installed".to_owned());
    let mut observed = Observed { infrastructure: unresolved(), ..in_drain() };
    let (act, reason, message) = decided(&observed);
    assert_eq!((act, reason), (Act::Wait, Reason::WaitingForInfrastructureDeletion));
    assert_eq!(message, "BedplateMachine infra cannot be read: kind is not installed");
    observed.infrastructure = Lookup::Absent;
    observed.bootstrap = Some(unresolved());
    let (act, reason, _) = decided(&observed);
    assert_eq!((act, reason), (Act::Wait, Reason::WaitingForBootstrapDeletion));
}

#[test]
fn m9_watch_that_is_not_synced_changes_nothing() {
    let infrastructure = Observed { infrastructure: Lookup::NotSynced, ..in_drain() };
    let bootstrap = Observed { bootstrap: Some(Lookup::NotSynced), ..only_node() };
    let control_plane = Observed { control_plane: Some(Lookup::NotSynced), ..in_drain() };
    for observed in [infrastructure, bootstrap, control_plane] {
        assert_eq!(plan(&observed, at(1)), Plan::default());
    }
}

#[test]
fn m9_machine_without_bootstrap_object_deletes_none() {
    let machine = machine(|object| {
        draining(object);
        object["spec"]["bootstrap"] = json!({ "dataSecretName": "data" });
    });
    let observed = Observed { machine, bootstrap: None, ..only_node() };
    assert!(matches!(decided(&observed).0, Act::DeleteNode { .. }));
}

/// Every user of the namespace may name a Machine of another one.
#[test]
fn m9_core_kind_is_not_deleted_as_an_object_of_the_machine() {
    let core = json!({ "apiGroup": "cluster.x-k8s.io", "kind": "Machine", "name": "other" });
    let machine = machine(|object| {
        draining(object);
        object["spec"]["infrastructureRef"] = core.clone();
        object["spec"]["bootstrap"]["configRef"] = core.clone();
    });
    let refused = || Lookup::Unresolved("it is refused".to_owned());
    let observed = Observed { machine, ..in_drain() };
    assert!(matches!(decided(&observed).0, Act::DeleteNode { .. }));
    let observed = Observed { infrastructure: refused(), bootstrap: Some(refused()), ..observed };
    assert!(matches!(decided(&observed).0, Act::DeleteNode { .. }), "nothing is waited for");
}

#[test]
fn m9_object_that_another_machine_manages_is_not_deleted() {
    let owned = |name: &str, controller: Option<bool>| {
        let object = json!({ "metadata": { "name": "infra", "uid": "u", "ownerReferences": [{
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name, "uid": "x", "controller": controller }] } });
        Lookup::Found(std::sync::Arc::new(serde_json::from_value(object).unwrap()))
    };
    // Without `controller`: the other Machine has not adopted it yet.
    for controller in [Some(true), None] {
        let own = Observed { infrastructure: owned("m", controller), ..in_drain() };
        assert_eq!(decided(&own).0, Act::DeleteInfrastructure("u".to_owned()));
        let other = Observed { infrastructure: owned("other", controller), ..in_drain() };
        assert_eq!(decided(&other).0, Act::DeleteBootstrap("boot-uid".to_owned()));
    }
}
