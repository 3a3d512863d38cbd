//! Pure: the Nodes of one workload cluster by their providerID, as far as the planners of Machines read them. Called by `workload`.
//!
//! Nodes without a providerID are not kept: no Machine has them.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::ResourceExt;

use crate::core::machine::node::NodeView;
use crate::watch::bare;

/// Maximum number of names of Nodes with one providerID that are shown.
const MAX_SHOWN: usize = 5;

/// The Nodes of a workload cluster.
#[derive(Debug, Clone, Default)]
pub struct NodeIndex {
    nodes: HashMap<String, Vec<Arc<Node>>>,
    is_partial: bool,
}

impl NodeIndex {
    /// Adds a Node.
    pub fn add(&mut self, mut node: Node) {
        prune(&mut node);
        let Some(id) = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()) else { return };
        if !id.is_empty() {
            self.nodes.entry(id).or_default().push(Arc::new(node));
        }
    }

    /// Replaces a Node by its state after a write. A Node that is not known is not added.
    pub fn replace(&mut self, mut node: Node) {
        prune(&mut node);
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        let known = self.nodes.get_mut(&id).into_iter().flatten();
        for known in known.filter(|known| known.metadata.uid == node.metadata.uid) {
            *known = Arc::new(node.clone());
        }
    }

    /// Records that the cluster has more Nodes than are kept.
    pub fn set_partial(&mut self) {
        self.is_partial = true;
    }

    /// Returns the Node with a providerID.
    pub fn get(&self, provider_id: Option<&str>) -> NodeView {
        let Some(id) = provider_id else { return NodeView::Absent };
        match self.nodes.get(id).map(Vec::as_slice) {
            Some([node]) => NodeView::Found(Arc::clone(node)),
            Some([]) | None if self.is_partial => NodeView::Unknown,
            Some([]) | None => NodeView::Absent,
            Some(nodes) => {
                let mut names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
                names.sort_unstable();
                names.truncate(MAX_SHOWN);
                NodeView::Ambiguous(names)
            }
        }
    }
}

/// Keeps of a Node only fields that decide about its Machine: images alone may have tens of KiB.
fn prune(node: &mut Node) {
    bare(node);
    let Some(status) = node.status.take() else { return };
    let (conditions, node_info) = (status.conditions, status.node_info);
    node.status = Some(NodeStatus { conditions, node_info, ..NodeStatus::default() });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, id: Option<&str>) -> Node {
        let object = json!({ "metadata": { "name": name, "uid": format!("u-{name}") }, "spec": { "providerID": id },
            "status": { "images": [{ "names": ["x"] }], "conditions": [] } });
        serde_json::from_value(object).unwrap()
    }

    fn index(nodes: &[(&str, Option<&str>)]) -> NodeIndex {
        let mut index = NodeIndex::default();
        nodes.iter().for_each(|(name, id)| index.add(node(name, *id)));
        index
    }

    #[test]
    fn m8_node_is_found_by_its_provider_id_only() {
        let index = index(&[("a", Some("p://1")), ("b", None), ("c", Some(""))]);
        let NodeView::Found(found) = index.get(Some("p://1")) else { panic!() };
        assert_eq!((found.name_any().as_str(), found.status.as_ref().unwrap().images.is_none()), ("a", true));
        assert_eq!(index.get(Some("a")), NodeView::Absent);
        assert_eq!((index.get(Some("")), index.get(None)), (NodeView::Absent, NodeView::Absent));
    }

    #[test]
    fn m8_two_nodes_with_one_provider_id_are_ambiguous() {
        let index = index(&[("b", Some("p://1")), ("a", Some("p://1"))]);
        assert_eq!(index.get(Some("p://1")), NodeView::Ambiguous(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn m8_node_beyond_the_limit_is_unknown_and_not_absent() {
        let mut index = index(&[("a", Some("p://1"))]);
        index.set_partial();
        assert_eq!(index.get(Some("p://2")), NodeView::Unknown);
        assert!(matches!(index.get(Some("p://1")), NodeView::Found(_)));
    }

    #[test]
    fn m8_node_after_a_write_replaces_the_one_that_was_read() {
        let mut index = index(&[("a", Some("p://1"))]);
        let mut changed = node("a", Some("p://1"));
        changed.metadata.resource_version = Some("8".to_owned());
        index.replace(changed);
        let NodeView::Found(found) = index.get(Some("p://1")) else { panic!() };
        assert_eq!(found.resource_version().as_deref(), Some("8"));
        index.replace(node("b", Some("p://1")));
        assert!(matches!(index.get(Some("p://1")), NodeView::Found(_)), "another Node is not added");
    }
}
