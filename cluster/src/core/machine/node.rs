//! Pure: the Node of a Machine, and what the Machine copies to it: labels, annotations and taints of certain domains.
//!
//! The Node is that with the providerID of the Machine, and none by its name alone. Keys of earlier copies are in annotations of the Node
//! (`labels-from-machine`, `annotations-from-machine`, `taints-from-machine`), as upstream has them. A copy is removed only if its key is in a
//! domain that is copied, so an edited annotation removes no other label. Called by `plan`, `status` and `condition`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::cluster::part::{annotation, label};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};

use super::plan::Observed;
use super::taint::{self, NodeTaints};

/// Domain of labels and annotations that are copied, with its subdomains.
const MANAGED_DOMAIN: &str = "node.cluster.x-k8s.io";
/// Domain of labels that a kubelet cannot set, with its subdomains.
const RESTRICTED_DOMAIN: &str = "node-restriction.kubernetes.io";
/// Domain of the labels of roles.
const ROLE_DOMAIN: &str = "node-role.kubernetes.io";
/// Annotations that each Node of a Machine has. They are not in `annotations-from-machine`.
const COMMON_ANNOTATIONS: [&str; 5] = [
    annotation::NODE_CLUSTER_NAME,
    annotation::NODE_CLUSTER_NAMESPACE,
    annotation::NODE_MACHINE,
    annotation::NODE_OWNER_KIND,
    annotation::NODE_OWNER_NAME,
];

/// Workload cluster of a Machine, as far as this process knows it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Connection to the API server of the cluster.
    pub connection: Connection,
    /// The Node with the providerID of the Machine.
    pub node: NodeView,
}

/// Connection to the API server of a workload cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connection {
    /// Time of the last successful probe.
    pub last_success: Option<Timestamp>,
    /// True if the cluster counts as unreachable. The probes of its task decide.
    pub is_lost: bool,
}

/// Node with the providerID of a Machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum NodeView {
    /// The Node.
    Found(Arc<Node>),
    /// The Nodes were read, and none has the providerID. Or the Machine has no providerID.
    Absent,
    /// Several Nodes have the providerID.
    Ambiguous(Vec<String>),
    /// The Nodes were not read yet, the cluster is unreachable, or it has Nodes above the bounds.
    #[default]
    Unknown,
}

/// Change of a Node. A label or an annotation that is None is removed.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePatch {
    /// Name of the Node.
    pub name: String,
    /// The UID.
    pub uid: Option<String>,
    /// The version that was read. The write is bound to it.
    pub resource_version: Option<String>,
    /// Labels that change.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations that change.
    pub annotations: BTreeMap<String, Option<String>>,
    /// All taints, if they change.
    pub taints: Option<NodeTaints>,
}

/// Returns the Node, if exactly one has the providerID of the Machine.
pub fn found(observed: &Observed) -> Option<&Node> {
    let NodeView::Found(node) = &observed.workload.node else { return None };
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    (observed.provider_id().is_some() && id == observed.provider_id()).then_some(node)
}

/// Returns the change of the Node that is due.
pub fn sync(observed: &Observed) -> Option<NodePatch> {
    let node = found(observed)?;
    // Without the infrastructure object it is not known whether the Node is interruptible.
    if !observed.infrastructure.is_known() || node.meta().deletion_timestamp.is_some() {
        return None;
    }
    let labels = labels(observed);
    let annotations = annotations(observed);
    let tracked = taint::tracked(&observed.machine.spec.taints);
    let taints = taint::taints(node, observed);
    let label_changes =
        changes(node.labels(), &labels, tracked_keys(node, annotation::LABELS_FROM_MACHINE), is_copied_label);
    let earlier = tracked_keys(node, annotation::ANNOTATIONS_FROM_MACHINE);
    let earlier = earlier.into_iter().chain(COMMON_ANNOTATIONS.map(str::to_owned)).collect();
    let mut annotation_changes = changes(node.annotations(), &annotations, earlier, is_copied_annotation);
    let is_common = |key: &&String| COMMON_ANNOTATIONS.contains(&key.as_str());
    let records = [
        (annotation::LABELS_FROM_MACHINE, joined(labels.keys())),
        (annotation::ANNOTATIONS_FROM_MACHINE, joined(annotations.keys().filter(|key| !is_common(key)))),
        (annotation::TAINTS_FROM_MACHINE, tracked),
    ];
    for (key, record) in records {
        if node.annotations().get(key) != Some(&record) {
            annotation_changes.insert(key.to_owned(), Some(record));
        }
    }
    if label_changes.is_empty() && annotation_changes.is_empty() && taints.is_none() {
        return None;
    }
    Some(NodePatch {
        name: node.name_any(),
        uid: node.uid(),
        resource_version: node.resource_version(),
        labels: label_changes,
        annotations: annotation_changes,
        taints,
    })
}

fn labels(observed: &Observed) -> BTreeMap<String, String> {
    let copied = observed.machine.labels().iter().filter(|(key, _)| is_copied_label(key));
    let mut labels: BTreeMap<String, String> =
        copied.map(|(key, value)| (key.clone(), value.clone())).collect();
    if observed.infrastructure.found().is_some_and(|object| object.contract.interruptible) {
        labels.insert(label::INTERRUPTIBLE.to_owned(), String::new());
    }
    labels
}

fn annotations(observed: &Observed) -> BTreeMap<String, String> {
    let machine = &*observed.machine;
    let own = |(key, _): &(&String, &String)| in_domain(key, MANAGED_DOMAIN);
    let copied = machine.annotations().iter().filter(own);
    let mut annotations: BTreeMap<String, String> =
        copied.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut set = |key: &str, value: &str| annotations.insert(key.to_owned(), value.to_owned());
    set(annotation::NODE_CLUSTER_NAME, &machine.spec.cluster_name);
    set(annotation::NODE_CLUSTER_NAMESPACE, &machine.namespace().unwrap_or_default());
    set(annotation::NODE_MACHINE, &machine.name_any());
    let controller = machine.owner_references().iter().find(|owner| owner.controller == Some(true));
    if let Some(owner) = controller {
        set(annotation::NODE_OWNER_KIND, &owner.kind);
        set(annotation::NODE_OWNER_NAME, &owner.name);
    }
    annotations
}

/// Returns the keys that change from `present` to `wanted`. A key of an earlier copy is removed if it is of those that are copied.
fn changes(
    present: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
    earlier: BTreeSet<String>,
    is_copied: fn(&str) -> bool,
) -> BTreeMap<String, Option<String>> {
    let set = wanted.iter().filter(|(key, value)| present.get(*key) != Some(*value));
    let set = set.map(|(key, value)| (key.clone(), Some(value.clone())));
    let is_removed = |key: &String| present.contains_key(key) && !wanted.contains_key(key) && is_copied(key);
    let removed = earlier.into_iter().filter(is_removed).map(|key| (key, None));
    set.chain(removed).collect()
}

fn tracked_keys(node: &Node, key: &str) -> BTreeSet<String> {
    let keys = node.annotations().get(key).map(String::as_str).unwrap_or_default();
    keys.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

fn joined<'a>(keys: impl Iterator<Item = &'a String>) -> String {
    keys.map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Returns true if a label of a Machine belongs on its Node, or the controller sets it there.
pub(crate) fn is_copied_label(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    domain == ROLE_DOMAIN
        || in_domain(key, RESTRICTED_DOMAIN)
        || in_domain(key, MANAGED_DOMAIN)
        || key == label::INTERRUPTIBLE
}

/// Returns true if an annotation of a Machine belongs on its Node, or the controller sets it there.
pub(crate) fn is_copied_annotation(key: &str) -> bool {
    in_domain(key, MANAGED_DOMAIN) || COMMON_ANNOTATIONS.contains(&key)
}

/// Returns true if the prefix of a key is a domain or one of its subdomains.
fn in_domain(key: &str, domain: &str) -> bool {
    let prefix = key.split('/').next().unwrap_or_default();
    prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests;
