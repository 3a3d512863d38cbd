//! Pure: the Nodes of one workload cluster by their providerID. Called by `state`.
//!
//! The number of Nodes and their size are bounded. A Node above a bound makes the absence of a Node unknown: it may be the one that is sought.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::kept::{Kept, is_same, kept};
use crate::core::machine::node::NodeView;

/// Maximum number of Nodes with a providerID.
pub const MAX_NODES: usize = 10_000;
/// Size of the tables for one Node in bytes, without its texts.
const ENTRY_BYTES: usize = 256;
/// Maximum number of names of Nodes with one providerID that are shown.
const MAX_SHOWN: usize = 5;

/// The Nodes of a workload cluster.
#[derive(Debug, Clone, Default)]
pub struct NodeIndex {
    /// Nodes by their providerIDs.
    ids: HashMap<String, Vec<Slot>>,
    /// ProviderID of each Node by its name. None: it is too long.
    names: HashMap<String, Option<String>>,
    /// Size of the Nodes in bytes, with their entries.
    bytes: usize,
    /// Number of Nodes whose providerID is too long.
    nameless: usize,
    /// True if there are Nodes that are not kept.
    is_partial: bool,
}

/// Node with a providerID.
#[derive(Debug, Clone)]
struct Slot {
    name: String,
    /// The Node, and its size in bytes. None: it is above a bound.
    node: Option<(Arc<Node>, usize)>,
}

impl NodeIndex {
    /// Adds or replaces a Node. `room`: number of bytes by which the index may grow. Returns the providerIDs whose view has changed.
    pub fn put(&mut self, node: Node, room: usize) -> Vec<String> {
        let name = node.name_any();
        let (id, kept) = match kept(node) {
            Kept::Nothing => return self.remove(&name).into_iter().collect(),
            Kept::Whole(node, bytes) => {
                let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
                (id, Some((Arc::from(node), bytes)))
            }
            Kept::TooLarge(id) => (id, None),
        };
        // The Node takes the place of its former state.
        let rest = room.saturating_add(self.size(&name)).checked_sub(entry(&name, id.as_deref()));
        let kept = kept.filter(|(_, bytes)| rest.is_some_and(|rest| *bytes <= rest));
        if let (Some(id), Some((node, _))) = (&id, &kept)
            && let Some(before) = self.node(id, &name)
            && is_same(&before, node)
        {
            self.keep(name, Some(id.clone()), kept);
            return Vec::new();
        }
        let before = self.remove(&name);
        if rest.is_some() {
            self.keep(name, id.clone(), kept);
        } else {
            self.is_partial = true;
        }
        before.into_iter().filter(|before| Some(before) != id.as_ref()).chain(id.clone()).collect()
    }

    fn slot(&self, id: &str, name: &str) -> Option<&(Arc<Node>, usize)> {
        self.ids.get(id)?.iter().find(|slot| slot.name == name)?.node.as_ref()
    }

    fn node(&self, id: &str, name: &str) -> Option<Arc<Node>> {
        self.slot(id, name).map(|(node, _)| Arc::clone(node))
    }

    /// Returns the size of a Node with its entries. 0: it is not known.
    fn size(&self, name: &str) -> usize {
        let Some(id) = self.names.get(name).map(Option::as_deref) else { return 0 };
        let node = id.and_then(|id| self.slot(id, name));
        entry(name, id) + node.map_or(0, |(_, bytes)| *bytes)
    }

    fn keep(&mut self, name: String, id: Option<String>, node: Option<(Arc<Node>, usize)>) {
        self.remove(&name);
        if self.names.len() >= MAX_NODES {
            self.is_partial = true;
            return;
        }
        self.bytes += entry(&name, id.as_deref()) + node.as_ref().map_or(0, |(_, bytes)| *bytes);
        match &id {
            Some(id) => self.ids.entry(id.clone()).or_default().push(Slot { name: name.clone(), node }),
            None => self.nameless += 1,
        }
        self.names.insert(name, id);
    }

    /// Removes a Node. Returns its providerID.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.bytes -= self.size(name);
        let Some(id) = self.names.remove(name)? else {
            self.nameless -= 1;
            return None;
        };
        let slots = self.ids.get_mut(&id)?;
        let at = slots.iter().position(|slot| slot.name == name)?;
        slots.swap_remove(at);
        if slots.is_empty() {
            self.ids.remove(&id);
        }
        Some(id)
    }

    /// Replaces a Node by its state after a write. A Node that is not known is not added, and a later state stays: the watch may have shown it
    /// before the write was answered.
    pub fn replace(&mut self, node: Node) {
        let Some(Some(id)) = self.names.get(&node.name_any()).cloned() else { return };
        let Some(known) = self.node(&id, &node.name_any()) else { return };
        if known.metadata.uid == node.metadata.uid && version(&known) <= version(&node) {
            self.put(node, usize::MAX);
        }
    }

    /// Records that the cluster has more Nodes than are kept.
    pub(crate) fn set_partial(&mut self) {
        self.is_partial = true;
    }

    /// Returns true if a Node that is not found is absent.
    pub fn is_complete(&self) -> bool {
        !self.is_partial && self.nameless == 0
    }

    /// Returns true if there are Nodes that are not kept.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns the size of the Nodes in bytes, with their entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the providerIDs whose view differs from that of an earlier list.
    pub fn changes(&self, before: &Self) -> Vec<String> {
        let ids = self.ids.keys().chain(before.ids.keys().filter(|id| !self.ids.contains_key(*id)));
        let is_changed = |id: &&String| match (self.get(Some(id.as_str())), before.get(Some(id.as_str()))) {
            (NodeView::Found(now), NodeView::Found(before)) => !is_same(&now, &before),
            (now, before) => now != before,
        };
        ids.filter(is_changed).cloned().collect()
    }

    /// Returns the Node with a providerID.
    pub fn get(&self, provider_id: Option<&str>) -> NodeView {
        let Some(id) = provider_id.filter(|id| !id.is_empty()) else { return NodeView::Absent };
        match self.ids.get(id).map(Vec::as_slice) {
            Some([Slot { node: Some((node, _)), .. }]) => NodeView::Found(Arc::clone(node)),
            Some([Slot { node: None, .. }]) => NodeView::Unknown,
            Some([]) | None if self.is_complete() => NodeView::Absent,
            Some([]) | None => NodeView::Unknown,
            Some(slots) => {
                let mut names: Vec<String> = slots.iter().map(|slot| slot.name.clone()).collect();
                names.sort_unstable();
                names.truncate(MAX_SHOWN);
                NodeView::Ambiguous(names)
            }
        }
    }
}

/// Returns the version of a Node as a number. API servers count up. A text that is not a number comes first.
fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.as_deref()?.parse().ok()
}

/// Returns the size of the entries of a Node in bytes. Two tables have its name and its providerID.
fn entry(name: &str, id: Option<&str>) -> usize {
    ENTRY_BYTES + 2 * (name.len() + id.map_or(0, str::len))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    const ROOM: usize = usize::MAX;

    fn of(name: &str, id: Option<&str>, change: impl FnOnce(&mut Value)) -> Node {
        let mut object = json!({ "metadata": { "name": name, "uid": format!("u-{name}"), "resourceVersion": "1" },
            "spec": { "providerID": id }, "status": { "conditions": [] } });
        change(&mut object);
        from_value(object).unwrap()
    }

    fn node(name: &str, id: Option<&str>) -> Node {
        of(name, id, |_| {})
    }

    fn index(nodes: &[(&str, Option<&str>)]) -> NodeIndex {
        let mut index = NodeIndex::default();
        for (name, id) in nodes {
            index.put(node(name, *id), ROOM);
        }
        index
    }

    fn found(index: &NodeIndex, id: &str) -> Option<String> {
        let NodeView::Found(node) = index.get(Some(id)) else { return None };
        Some(node.name_any())
    }

    #[test]
    fn m8_node_is_found_by_its_provider_id_only() {
        let index = index(&[("a", Some("p://1")), ("b", None), ("c", Some(""))]);
        assert_eq!(found(&index, "p://1").as_deref(), Some("a"));
        assert_eq!(index.get(Some("a")), NodeView::Absent);
        assert_eq!((index.get(Some("")), index.get(None)), (NodeView::Absent, NodeView::Absent));
    }

    #[test]
    fn m8_two_nodes_with_one_provider_id_are_ambiguous() {
        let mut index = index(&[("b", Some("p://1")), ("a", Some("p://1"))]);
        assert_eq!(index.get(Some("p://1")), NodeView::Ambiguous(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(index.remove("b").as_deref(), Some("p://1"));
        assert_eq!(found(&index, "p://1").as_deref(), Some("a"));
    }

    #[test]
    fn m8_node_beyond_a_bound_is_unknown_and_not_absent() {
        let mut index = index(&[("a", Some("p://1"))]);
        index.put(node("b", Some("p://2")), entry("b", Some("p://2")) + 10);
        assert_eq!(index.get(Some("p://2")), NodeView::Unknown);
        assert_eq!(index.get(Some("p://3")), NodeView::Absent, "the ID of the large Node is known");
        index.put(node("c", Some(&"x".repeat(2000))), ROOM);
        assert_eq!(index.get(Some("p://3")), NodeView::Unknown);
        index.remove("c");
        assert_eq!(index.get(Some("p://3")), NodeView::Absent);
        index.set_partial();
        assert_eq!(index.get(Some("p://3")), NodeView::Unknown);
        assert!(found(&index, "p://1").is_some());
    }

    #[test]
    fn m8_number_of_nodes_is_bounded() {
        let mut index = NodeIndex::default();
        for n in 0..=MAX_NODES {
            index.put(node(&n.to_string(), Some(&format!("p://{n}"))), ROOM);
        }
        assert!(index.is_partial() && index.names.len() == MAX_NODES);
    }

    #[test]
    fn m8_changed_node_stays_although_no_room_is_left() {
        let mut index = index(&[("a", Some("p://1"))]);
        let cordoned = of("a", Some("p://1"), |node| node["spec"]["unschedulable"] = json!(true));
        let bytes = index.bytes();
        index.put(cordoned.clone(), 30);
        let NodeView::Found(kept) = index.get(Some("p://1")) else {
            panic!("{:?}", index.get(Some("p://1")))
        };
        assert_eq!(kept.spec.as_ref().and_then(|spec| spec.unschedulable), Some(true));
        assert!(index.bytes() > bytes && index.bytes() <= bytes + 30);
        index.put(node("a", Some("p://1")), 0);
        assert_eq!((found(&index, "p://1").as_deref(), index.bytes()), (Some("a"), bytes));
        index.put(cordoned, 0);
        assert_eq!(index.get(Some("p://1")), NodeView::Unknown, "it has grown");
    }

    #[test]
    fn trust_4_names_and_ids_of_nodes_count() {
        let mut index = NodeIndex::default();
        let id = format!("p://{}", "x".repeat(1000));
        index.put(node("a", Some(&id)), entry("a", Some(&id)));
        assert_eq!((index.get(Some(&id)), index.bytes()), (NodeView::Unknown, entry("a", Some(&id))));
        assert!(!index.is_partial());
        index.put(node("b", Some("p://2")), entry("b", Some("p://2")) - 1);
        assert!(index.is_partial() && index.names.len() == 1, "the name of a Node has no room either");
        assert_eq!(index.get(Some("p://2")), NodeView::Unknown);
        index.put(node("c", Some(&"x".repeat(2000))), ROOM);
        assert_eq!(index.bytes(), entry("a", Some(&id)) + entry("c", None));
        index.remove("a");
        index.remove("c");
        assert_eq!(index.bytes(), 0);
    }

    #[test]
    fn m8_change_of_a_node_names_the_ids_that_it_concerns() {
        let mut index = index(&[("a", Some("p://1"))]);
        let version = of("a", Some("p://1"), |node| node["metadata"]["resourceVersion"] = json!("2"));
        assert_eq!(index.put(version, ROOM), [""; 0], "a version alone is no change");
        let NodeView::Found(kept) = index.get(Some("p://1")) else { panic!() };
        assert_eq!(kept.resource_version().as_deref(), Some("2"), "and it is kept");
        let cordoned = of("a", Some("p://1"), |node| node["spec"]["unschedulable"] = json!(true));
        assert_eq!(index.put(cordoned, ROOM), ["p://1"]);
        assert_eq!(index.put(node("a", Some("p://2")), ROOM), ["p://1", "p://2"]);
        assert_eq!(index.put(node("a", None), ROOM), ["p://2"]);
        assert_eq!((index.bytes(), index.names.len()), (0, 0));
    }

    #[test]
    fn m8_later_list_names_what_has_changed() {
        let before = index(&[("a", Some("p://1")), ("b", Some("p://2")), ("c", Some("p://3"))]);
        let now = index(&[("a", Some("p://1")), ("x", Some("p://2")), ("d", Some("p://4"))]);
        let mut changes = now.changes(&before);
        changes.sort_unstable();
        assert_eq!(changes, ["p://2", "p://3", "p://4"]);
    }

    #[test]
    fn m8_node_after_a_write_replaces_the_one_that_was_read() {
        let mut index = index(&[("a", Some("p://1"))]);
        let changed = of("a", Some("p://1"), |node| node["metadata"]["resourceVersion"] = json!("8"));
        index.replace(changed);
        let NodeView::Found(found) = index.get(Some("p://1")) else { panic!() };
        assert_eq!(found.resource_version().as_deref(), Some("8"));
        let earlier = of("a", Some("p://1"), |node| {
            node["metadata"]["resourceVersion"] = json!("7");
            node["spec"]["unschedulable"] = json!(true);
        });
        index.replace(earlier);
        let NodeView::Found(found) = index.get(Some("p://1")) else { panic!() };
        assert_eq!(found.resource_version().as_deref(), Some("8"), "the watch has shown a later state");
        index.replace(node("b", Some("p://1")));
        index.replace(of("a", Some("p://9"), |node| node["metadata"]["uid"] = json!("other")));
        assert!(matches!(index.get(Some("p://1")), NodeView::Found(_)), "another Node is not added");
    }
}
