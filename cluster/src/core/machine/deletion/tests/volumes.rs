//! Volumes of a Node, and the wait for them.

use std::collections::BTreeSet;

use bedplate_api::reason::core::MachineDeletingReason as Reason;
use serde_json::{Value, json};

use crate::core::machine::deletion::fixture::{at, detaching, found, in_drain, machine, node, referenced};
use crate::core::machine::deletion::{Act, Needed, NodeState, Observed, VolumeCollector, VolumesView, plan};

fn attached() -> Observed {
    let names = vec!["PersistentVolumeClaim n/data".to_owned()];
    Observed { machine: machine(detaching), volumes: Some(Ok(VolumesView { names, more: 0 })), ..in_drain() }
}

#[test]
fn m9_volumes_are_read_recorded_and_waited_for() {
    let mut observed = Observed { volumes: None, ..in_drain() };
    assert_eq!(plan(&observed, at(1)).act, Act::Read(Needed::Volumes("node".to_owned())));
    observed.volumes = attached().volumes;
    assert_eq!(plan(&observed, at(2)).act, Act::RecordVolumeStart(at(2)));
    observed.machine = machine(detaching);
    let waiting = plan(&observed, at(3));
    assert_eq!((waiting.act, waiting.again), (Act::Wait, Some(at(23))));
    let (reason, message) = waiting.condition.unwrap();
    assert_eq!(reason, Reason::WaitingForVolumeDetach);
    let expected = "volumes are attached to Node node, waited for since 2026-01-01T00:00:00Z: PersistentVolumeClaim n/data";
    assert_eq!(message, expected);
}

#[test]
fn m9_wait_for_volumes_ends_at_its_timeout_and_never_without_one() {
    for (timeout, now, ends) in [
        (json!(30), 29, false),
        (json!(30), 30, true),
        (json!(0), 1_000_000, false),
        (json!(null), 1_000_000, false),
    ] {
        let machine = machine(|object| {
            detaching(object);
            object["spec"]["deletion"] = json!({ "nodeVolumeDetachTimeoutSeconds": timeout });
        });
        let act = plan(&Observed { machine, ..attached() }, at(now)).act;
        assert_eq!(matches!(act, Act::DeleteInfrastructure(_)), ends, "{timeout} {now}");
    }
}

#[test]
fn m9_volumes_of_an_unreachable_node_are_not_waited_for() {
    let node = found(NodeState { is_unschedulable: true, is_unreachable: true, ..node() });
    let observed = Observed { node, ..attached() };
    assert!(matches!(plan(&observed, at(1)).act, Act::DeleteInfrastructure(_)));
}

#[test]
fn m9_excluded_machine_does_not_wait_for_volumes() {
    let mut observed = attached();
    observed.machine = machine(|object| {
        detaching(object);
        let key = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
        object["metadata"]["annotations"] = json!({ key: "" });
    });
    assert!(matches!(plan(&observed, at(1)).act, Act::DeleteInfrastructure(_)));
}

#[test]
fn m9_volumes_that_cannot_be_read_are_waited_for_while_the_host_stays() {
    let mut observed = Observed { volumes: Some(Err("no answer".to_owned())), ..attached() };
    let (reason, message) = plan(&observed, at(1)).condition.unwrap();
    assert_eq!(reason, Reason::WaitingForVolumeDetach);
    assert!(message.contains("volumes cannot be read: no answer"), "{message}");
    observed.infrastructure = referenced("infra", true);
    assert_eq!(plan(&observed, at(1)).condition.unwrap().0, Reason::WaitingForInfrastructureDeletion);
}

fn node_object(volumes: &[&str]) -> Value {
    let volumes: Vec<Value> = volumes.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
    json!({ "metadata": { "name": "node" }, "status": { "volumesAttached": volumes } })
}

fn attachment(node: &str, volume: Option<&str>, is_attached: bool) -> Value {
    json!({ "metadata": { "name": "va" }, "spec": { "nodeName": node, "source": { "persistentVolumeName": volume } },
        "status": { "attached": is_attached } })
}

fn volume(name: &str, handle: &str, claim: Option<&str>) -> Value {
    let claim =
        claim.map(|claim| json!({ "kind": "PersistentVolumeClaim", "namespace": "n", "name": claim }));
    json!({ "metadata": { "name": name }, "spec": { "csi": { "driver": "d", "volumeHandle": handle }, "claimRef": claim } })
}

#[test]
fn m9_only_attached_volumes_of_this_node_count() {
    let mut collector = VolumeCollector::new(&node_object(&[]), BTreeSet::new());
    collector.attachment(&attachment("other", Some("a"), true));
    collector.attachment(&attachment("node", Some("b"), false));
    assert!(collector.is_empty());
    collector.attachment(&attachment("node", Some("c"), true));
    assert!(!collector.is_empty());
    for name in ["a", "b", "c"] {
        collector.volume(&volume(name, name, Some(name)));
    }
    assert_eq!(collector.finish().names, ["PersistentVolumeClaim n/c"]);
}

#[test]
fn m9_volume_in_node_status_and_attachment_counts_once() {
    let mut collector = VolumeCollector::new(&node_object(&["kubernetes.io/csi/d^h"]), BTreeSet::new());
    collector.attachment(&attachment("node", Some("pv"), true));
    collector.volume(&volume("pv", "h", Some("data")));
    assert_eq!(collector.finish().names, ["PersistentVolumeClaim n/data"]);
}

#[test]
fn m9_volumes_of_pods_that_stay_do_not_count() {
    let kept = BTreeSet::from(["n/log".to_owned()]);
    let mut collector = VolumeCollector::new(&node_object(&["kubernetes.io/csi/d^h"]), kept);
    collector.volume(&volume("pv", "h", Some("log")));
    assert_eq!(collector.finish(), VolumesView::default());
}

#[test]
fn m9_attachment_without_volume_or_claim_counts() {
    let mut collector = VolumeCollector::new(&node_object(&["kubernetes.io/nfs/x"]), BTreeSet::new());
    collector.attachment(&attachment("node", Some("lost"), true));
    collector.attachment(&attachment("node", Some("raw"), true));
    collector.attachment(&attachment("node", None, true));
    collector.volume(&volume("raw", "h", None));
    let expected = [
        "PersistentVolume lost",
        "PersistentVolume raw",
        "VolumeAttachment va",
        "volume kubernetes.io/nfs/x",
    ];
    assert_eq!(collector.finish().names, expected);
}

#[test]
fn m9_view_of_volumes_is_bounded() {
    let names: Vec<String> = (0..3000).map(|number| format!("v{number:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let view = VolumeCollector::new(&node_object(&names), BTreeSet::new()).finish();
    assert_eq!((view.names.len(), view.more), (5, 2995));
}
