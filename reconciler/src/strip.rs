//! Pure: what of objects is not read here, and is not kept.
//!
//! Everything that is written is an apply of own fields, bound to a resource version: what was left out of an object that was read
//! is never written back. Called by `follow` for each object that a watch brings.

use bedplate_api::machine::Machine;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};

/// Without what no reader of it needs.
pub fn bare<K: kube::Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// What kubectl keeps for itself: the whole object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Machine without what pxed and the agent know about its hardware, its network and how it booted.
pub fn machine(machine: &mut Machine) {
    bare(machine);
    if let Some(annotations) = &mut machine.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    machine.spec.pxe = None;
    let Some(status) = &mut machine.status else { return };
    (status.hardware, status.power, status.state_disk) = (None, None, None);
    status.addresses = Vec::new();
    if let Some(boot) = &mut status.boot {
        // Its stage is shown.
        (boot.timeline, boot.previous) = (Vec::new(), None);
    }
}

/// A Node without what its kubelet says but for whether it is Ready.
pub fn node(node: &mut Node) {
    bare(node);
    let conditions = node.status.take().and_then(|status| status.conditions);
    let ready = conditions.into_iter().flatten().filter(|condition| condition.type_ == "Ready");
    let ready = ready.map(|condition| NodeCondition { last_heartbeat_time: None, ..condition });
    node.status = Some(NodeStatus { conditions: Some(ready.collect()), ..NodeStatus::default() });
}
