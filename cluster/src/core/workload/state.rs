//! Pure: the state of one workload cluster: its connection and its Nodes, and what a change of either concerns. Called by `task` and `run`.
//!
//! ```text
//! not read -> read: list, then events
//!      ^        |
//!      |        v  the probe decides (`connection`)
//!      +--- unreachable: the Nodes are unknown until the next list
//! ```

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::connection::Link;
use super::index::NodeIndex;
use super::queue::Changes;
use super::remote::RemoteError;
use crate::core::machine::node::{NodeView, Workload};

/// State of one workload cluster.
#[derive(Debug, Clone, Default)]
pub struct State {
    link: Link,
    /// None: they were not read yet.
    nodes: Option<NodeIndex>,
}

/// Time of an outcome.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// The time.
    pub now: Timestamp,
    /// Time since the start of this process.
    pub elapsed: Duration,
}

/// Change of a Node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeChange {
    /// The Node exists, and has this state.
    There(Box<Node>),
    /// The Node of this name was deleted.
    Gone(String),
}

impl State {
    /// Returns the connection, and the Node with a providerID. Before the first list, and while the cluster is unreachable, it is unknown.
    pub fn look(&self, provider_id: Option<&str>) -> Workload {
        let nodes = self.nodes.as_ref().filter(|_| self.link.lost().is_none());
        let node = nodes.map_or(NodeView::Unknown, |nodes| nodes.get(provider_id));
        Workload { connection: self.link.connection(), node }
    }

    /// Returns the state of the connection.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the size of the Nodes in bytes.
    pub fn bytes(&self) -> usize {
        self.nodes.as_ref().map_or(0, NodeIndex::bytes)
    }

    /// Returns true if there are Nodes that are not kept.
    pub fn is_partial(&self) -> bool {
        self.nodes.as_ref().is_some_and(NodeIndex::is_partial)
    }

    /// Records a complete list. The first one concerns all Machines, a later one those whose Nodes differ.
    pub fn listed(&mut self, nodes: NodeIndex, at: At, changes: &mut Changes) {
        match &self.nodes {
            Some(before) if before.is_complete() == nodes.is_complete() => changes.add(nodes.changes(before)),
            Some(_) | None => changes.add_all(),
        }
        self.nodes = Some(nodes);
        self.answered(at, changes);
    }

    /// Records an answer of the API server.
    pub fn answered(&mut self, at: At, changes: &mut Changes) {
        if self.link.answered(at.now, at.elapsed) {
            changes.add_all();
        }
    }

    /// Records a failure.
    pub fn failed(&mut self, error: RemoteError, at: At, changes: &mut Changes) {
        if self.link.failed(error, at.elapsed) {
            changes.add_all();
        }
    }

    /// Records the change of a Node. `room`: number of bytes that are left for it.
    pub fn changed(&mut self, change: NodeChange, room: usize, changes: &mut Changes) {
        let Some(nodes) = &mut self.nodes else { return };
        let was_complete = nodes.is_complete();
        match change {
            NodeChange::There(node) => changes.add(nodes.put(*node, room)),
            NodeChange::Gone(name) => changes.add(nodes.remove(&name)),
        }
        // The absence of a Node becomes unknown, or known.
        if nodes.is_complete() != was_complete {
            changes.add_all();
        }
    }

    /// Records that the Nodes are not followed any more. They are unknown until the next list.
    pub fn unread(&mut self, changes: &mut Changes) {
        if self.nodes.take().is_some() {
            changes.add_all();
        }
    }

    /// Keeps a Node as it is after a write of this process.
    pub fn replace(&mut self, node: Node) {
        if let Some(nodes) = &mut self.nodes {
            nodes.replace(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    const fn at(seconds: u64) -> At {
        At { now: Timestamp::UNIX_EPOCH, elapsed: Duration::from_secs(seconds) }
    }

    fn node(name: &str, ready: &str) -> Node {
        from_value(json!({ "metadata": { "name": name, "uid": name }, "spec": { "providerID": format!("p://{name}") },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] } }))
        .unwrap()
    }

    fn index(names: &[&str]) -> NodeIndex {
        let mut index = NodeIndex::default();
        for name in names {
            index.put(node(name, "True"), usize::MAX);
        }
        index
    }

    /// Returns what an event concerns: IDs, or all.
    fn concerns(state: &mut State, event: impl FnOnce(&mut State, &mut Changes)) -> Option<Vec<String>> {
        let mut changes = Changes::default();
        event(state, &mut changes);
        changes.ids()
    }

    fn is_found(state: &State, name: &str) -> bool {
        matches!(state.look(Some(&format!("p://{name}"))).node, NodeView::Found(_))
    }

    #[test]
    fn m8_first_list_concerns_all_machines_and_a_later_one_the_changed() {
        let mut state = State::default();
        assert_eq!(state.look(Some("p://a")).node, NodeView::Unknown, "it was not read yet");
        assert_eq!(concerns(&mut state, |state, all| state.listed(index(&["a"]), at(0), all)), None);
        assert!(is_found(&state, "a"));
        let later = concerns(&mut state, |state, all| state.listed(index(&["a", "b"]), at(9), all));
        assert_eq!(later, Some(vec!["p://b".to_owned()]));
    }

    #[test]
    fn m8_each_change_of_a_node_concerns_its_machine_alone() {
        let mut state = State::default();
        state.listed(index(&["a", "b"]), at(0), &mut Changes::default());
        let put = |state: &mut State, node: Node| {
            let change = NodeChange::There(Box::new(node));
            concerns(state, |state, all| state.changed(change, usize::MAX, all)).unwrap()
        };
        assert_eq!(put(&mut state, node("a", "False")), ["p://a"]);
        assert_eq!(put(&mut state, node("a", "False")), [""; 0]);
        assert_eq!(put(&mut state, node("new", "True")), ["p://new"]);
        let gone = |state: &mut State, all: &mut Changes| state.changed(NodeChange::Gone("b".into()), 0, all);
        assert_eq!(concerns(&mut state, gone), Some(vec!["p://b".to_owned()]));
        assert!(!is_found(&state, "b") && is_found(&state, "new"));
        state.replace(node("a", "True"));
        assert_eq!(
            put(&mut state, node("a", "True")),
            [""; 0],
            "a write of this process concerns no Machine"
        );
    }

    #[test]
    fn m8_nodes_of_an_unreachable_cluster_are_unknown_until_it_answers() {
        let mut state = State::default();
        state.listed(index(&["a"]), at(0), &mut Changes::default());
        let error = || RemoteError::Kubeconfig("down".to_owned());
        for n in 1..5 {
            let few = concerns(&mut state, |state, all| state.failed(error(), at(n * 10), all));
            assert_eq!(few, Some(Vec::new()));
            assert!(is_found(&state, "a"), "one failure changes nothing");
        }
        assert_eq!(concerns(&mut state, |state, all| state.failed(error(), at(50), all)), None);
        assert_eq!(state.look(Some("p://a")).node, NodeView::Unknown);
        assert_eq!(concerns(&mut state, |state, all| state.listed(index(&["a"]), at(90), all)), None);
        assert!(is_found(&state, "a"));
    }

    #[test]
    fn m8_absence_that_becomes_known_concerns_all_machines() {
        let long = |name: &str| -> Node {
            from_value(json!({ "metadata": { "name": name }, "spec": { "providerID": "x".repeat(2000) } }))
                .unwrap()
        };
        let mut state = State::default();
        state.listed(index(&["a"]), at(0), &mut Changes::default());
        let put = NodeChange::There(Box::new(long("l")));
        assert_eq!(concerns(&mut state, |state, all| state.changed(put, usize::MAX, all)), None);
        assert_eq!(state.look(Some("p://x")).node, NodeView::Unknown);
        let gone = NodeChange::Gone("l".to_owned());
        assert_eq!(concerns(&mut state, |state, all| state.changed(gone, usize::MAX, all)), None);
        assert_eq!(state.look(Some("p://x")).node, NodeView::Absent);
        let mut partial = index(&["a"]);
        partial.set_partial();
        assert_eq!(concerns(&mut state, |state, all| state.listed(partial, at(1), all)), None);
        assert_eq!(concerns(&mut state, |state, all| state.listed(index(&["a"]), at(2), all)), None);
    }

    #[test]
    fn hc6_nodes_that_are_not_followed_are_unknown() {
        let mut state = State::default();
        assert_eq!(concerns(&mut state, State::unread), Some(Vec::new()));
        state.listed(index(&["a"]), at(0), &mut Changes::default());
        assert_eq!(concerns(&mut state, State::unread), None);
        let seen = state.look(Some("p://a"));
        assert_eq!((seen.node, seen.connection.is_lost), (NodeView::Unknown, false));
        assert_eq!(concerns(&mut state, |state, all| state.listed(index(&["a"]), at(9), all)), None);
    }

    #[test]
    fn m8_first_node_above_the_bounds_concerns_all_machines() {
        let mut state = State::default();
        let full: Vec<String> = (0..super::super::index::MAX_NODES).map(|n| n.to_string()).collect();
        let full: Vec<&str> = full.iter().map(String::as_str).collect();
        state.listed(index(&full), at(0), &mut Changes::default());
        assert_eq!(state.look(Some("p://x")).node, NodeView::Absent);
        let change = NodeChange::There(Box::new(node("x", "True")));
        assert_eq!(concerns(&mut state, |state, all| state.changed(change, usize::MAX, all)), None);
        assert!(state.is_partial() && state.look(Some("p://x")).node == NodeView::Unknown);
    }
}
