//! Pure: the part of a Node that is kept in memory, with bounds: the tenant of a cluster writes its Nodes. Called by `index`.
//!
//! Only fields that decide about a Machine are kept. Texts that reach the status of a Machine are cut. A list that a write replaces, such as
//! the taints, is never cut: a Node with a part above its bound is kept by its name and its providerID alone.

use bedplate_api::cluster::part::annotation;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use kube::api::ObjectMeta;

use crate::core::machine::node::{is_copied_annotation, is_copied_label};

/// Maximum size of the kept part of a Node in bytes.
pub(crate) const MAX_NODE: usize = 32 * 1024;
/// Maximum length of a providerID in bytes.
const MAX_ID: usize = 1024;
/// Maximum length of a text of `nodeInfo` in bytes.
const MAX_INFO: usize = 256;
/// Maximum number of conditions.
const MAX_CONDITIONS: usize = 64;
/// Maximum length of the type and of the reason of a condition in bytes, as definitions of Cluster API have it.
const MAX_TYPE: usize = 316;
/// Maximum length of the message of a condition in bytes.
const MAX_MESSAGE: usize = 1024;
/// Annotations that record earlier copies.
const RECORDS: [&str; 3] =
    [annotation::LABELS_FROM_MACHINE, annotation::ANNOTATIONS_FROM_MACHINE, annotation::TAINTS_FROM_MACHINE];

/// Part of a Node that is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Kept {
    /// The Node has no providerID, so no Machine has it.
    Nothing,
    /// The Node, and its size in bytes.
    Whole(Box<Node>, usize),
    /// The Node is above a bound. Its providerID, unless that is too long.
    TooLarge(Option<String>),
}

/// Returns the part of a Node that is kept.
pub fn kept(node: Node) -> Kept {
    let spec = node.spec.unwrap_or_default();
    let Some(id) = spec.provider_id.filter(|id| !id.is_empty()) else { return Kept::Nothing };
    if id.len() > MAX_ID {
        return Kept::TooLarge(None);
    }
    let (taints, unschedulable) = (spec.taints, spec.unschedulable);
    let node = Node {
        metadata: metadata(node.metadata),
        spec: Some(NodeSpec { provider_id: Some(id.clone()), taints, unschedulable, ..NodeSpec::default() }),
        status: node.status.map(status),
    };
    match size(&node) {
        bytes if bytes <= MAX_NODE => Kept::Whole(Box::new(node), bytes),
        _ => Kept::TooLarge(Some(id)),
    }
}

fn size(node: &Node) -> usize {
    serde_json::to_vec(node).map_or(usize::MAX, |text| text.len())
}

fn metadata(all: ObjectMeta) -> ObjectMeta {
    let mut kept = ObjectMeta {
        name: all.name,
        uid: all.uid,
        resource_version: all.resource_version,
        deletion_timestamp: all.deletion_timestamp,
        labels: all.labels,
        annotations: all.annotations,
        ..ObjectMeta::default()
    };
    if let Some(labels) = &mut kept.labels {
        labels.retain(|key, _| is_copied_label(key));
    }
    if let Some(annotations) = &mut kept.annotations {
        annotations.retain(|key, _| is_copied_annotation(key) || RECORDS.contains(&key.as_str()));
    }
    kept
}

fn status(all: NodeStatus) -> NodeStatus {
    let mut conditions = all.conditions.unwrap_or_default();
    conditions.retain(|condition| condition.type_.len() <= MAX_TYPE);
    conditions.truncate(MAX_CONDITIONS);
    conditions.iter_mut().for_each(bound);
    NodeStatus { conditions: Some(conditions), node_info: all.node_info.map(info), ..NodeStatus::default() }
}

fn bound(condition: &mut NodeCondition) {
    // It changes each few minutes, and decides nothing.
    condition.last_heartbeat_time = None;
    cut(&mut condition.status, MAX_TYPE);
    for (text, limit) in [(&mut condition.reason, MAX_TYPE), (&mut condition.message, MAX_MESSAGE)] {
        if let Some(text) = text {
            cut(text, limit);
        }
    }
}

fn info(mut info: NodeSystemInfo) -> NodeSystemInfo {
    for text in [
        &mut info.architecture,
        &mut info.boot_id,
        &mut info.container_runtime_version,
        &mut info.kernel_version,
        &mut info.kube_proxy_version,
        &mut info.kubelet_version,
        &mut info.machine_id,
        &mut info.operating_system,
        &mut info.os_image,
        &mut info.system_uuid,
    ] {
        cut(text, MAX_INFO);
    }
    info
}

/// Cuts a text to a number of bytes, between two characters.
fn cut(text: &mut String, limit: usize) {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

/// Returns true if two states of a Node differ in their version alone.
pub fn is_same(one: &Node, other: &Node) -> bool {
    let facts = |node: &Node| {
        let meta = &node.metadata;
        (meta.name.clone(), meta.uid.clone(), meta.deletion_timestamp.clone())
    };
    facts(one) == facts(other)
        && one.metadata.labels == other.metadata.labels
        && one.metadata.annotations == other.metadata.annotations
        && one.spec == other.spec
        && one.status == other.status
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn of(node: &Value) -> Kept {
        kept(from_value(node.clone()).unwrap())
    }

    fn node(change: impl FnOnce(&mut Value)) -> Value {
        let mut node = json!({ "metadata": { "name": "n", "uid": "u", "resourceVersion": "7", "managedFields": [{}],
                "labels": { "zone": "a", "node-role.kubernetes.io/x": "" },
                "annotations": { "volumes": "v", "cluster.x-k8s.io/labels-from-machine": "" } },
            "spec": { "providerID": "p://1", "podCIDR": "10.0.0.0/24", "unschedulable": true },
            "status": { "images": [{ "names": ["x"] }], "conditions": [{ "type": "Ready", "status": "True",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z" }] } });
        change(&mut node);
        node
    }

    fn whole(node: &Value) -> Node {
        let Kept::Whole(node, _) = of(node) else { panic!("{:?}", of(node)) };
        *node
    }

    #[test]
    fn m8_only_fields_that_decide_about_a_machine_are_kept() {
        let kept = json!(whole(&node(|_| {})));
        let expected = json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n", "uid": "u", "resourceVersion": "7", "labels": { "node-role.kubernetes.io/x": "" },
                "annotations": { "cluster.x-k8s.io/labels-from-machine": "" } },
            "spec": { "providerID": "p://1", "unschedulable": true },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        assert_eq!(kept, expected);
    }

    #[test]
    fn m8_node_without_a_provider_id_is_not_kept() {
        for id in [json!(null), json!("")] {
            assert_eq!(of(&node(|node| node["spec"]["providerID"] = id)), Kept::Nothing);
        }
    }

    #[test]
    fn trust_4_texts_of_a_node_are_cut_before_a_machine_shows_them() {
        let texts = json!({ "architecture": "é".repeat(500), "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "v".repeat(9000), "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "" });
        let condition = |n: usize| json!({ "type": format!("T{n}"), "status": "True" });
        let found = whole(&node(|node| {
            node["status"]["nodeInfo"] = texts;
            let mut conditions: Vec<Value> = (0..100).map(condition).collect();
            conditions[0]["message"] = json!("m".repeat(5000));
            conditions[1]["type"] = json!("T".repeat(317));
            node["status"]["conditions"] = json!(conditions);
        }));
        let status = found.status.unwrap();
        let (info, conditions) = (status.node_info.unwrap(), status.conditions.unwrap());
        assert_eq!((info.architecture.len(), info.kubelet_version.len()), (256, 256));
        assert_eq!((conditions.len(), conditions[1].type_.as_str()), (MAX_CONDITIONS, "T2"));
        assert_eq!(conditions[0].message.as_ref().unwrap().len(), MAX_MESSAGE);
    }

    #[test]
    fn trust_4_node_above_its_bound_is_kept_by_its_id_alone() {
        let taint = |n: usize| json!({ "key": format!("k{n}"), "effect": "NoSchedule" });
        let large = node(|node| node["spec"]["taints"] = (0..2000).map(taint).collect());
        assert_eq!(of(&large), Kept::TooLarge(Some("p://1".to_owned())));
        assert_eq!(
            of(&node(|node| node["spec"]["providerID"] = json!("x".repeat(1025)))),
            Kept::TooLarge(None)
        );
    }

    #[test]
    fn m8_heartbeat_and_version_are_no_change_of_a_node() {
        let before = whole(&node(|_| {}));
        let beat = whole(&node(|node| {
            node["metadata"]["resourceVersion"] = json!("8");
            node["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:05:00Z");
        }));
        assert!(is_same(&before, &beat));
        for (path, value) in [
            ("/status/conditions/0/status", "False"),
            ("/metadata/labels/node-role.kubernetes.io~1x", "y"),
            ("/metadata/uid", "v"),
        ] {
            let changed = whole(&node(|node| *node.pointer_mut(path).unwrap() = json!(value)));
            assert!(!is_same(&before, &changed), "{path}");
        }
    }
}
