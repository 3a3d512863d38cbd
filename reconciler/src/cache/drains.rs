//! Node and Pod state beyond the stores, which lag: Nodes that this controller has cordoned or deleted.
//! Without this state a second Node could start in the place of the first one.
//!
//! The state may be lost. A new leader first compares it with the Nodes of the cluster (`rollout`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_engine::elapsed::Beginnings;
use bedplate_process::lock::Lock;
use bedplate_rules::drain::{CORDONED_BY, Pod, wait};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::cordon::{DRAIN_FAILED, Purpose};

/// Maximum number of Nodes whose blocked drain is remembered. An entry of a Node that another client deletes
/// is not removed.
const MAX_BLOCKED_NODES: usize = 10_000;

/// Drain state beyond the objects.
#[derive(Debug, Default)]
pub struct Memory {
    /// Time until which an eviction is not retried, and the reason why it is blocked, by the Pod's UID.
    held: Lock<BTreeMap<String, (Instant, String)>>,
    /// Recently written Nodes, by name.
    written: Lock<BTreeMap<String, Written>>,
    /// Drains, by the Node's UID, and departures (`deletion`).
    pub lasting: Beginnings,
    /// UIDs of Nodes whose blocked drain was reported.
    blocked: Lock<BTreeSet<String>>,
    /// True if the Nodes of the store were compared with those of the cluster.
    is_sure: AtomicBool,
}

#[derive(Debug)]
struct Written {
    uid: String,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Node that was cordoned, with the resource version after the write if it is known yet.
    Cordoned(Purpose, Option<String>),
    Gone,
}

impl Written {
    /// Returns true if the store shows this write.
    fn is_seen(&self, node: &Node) -> bool {
        if node.metadata.uid.as_ref() != Some(&self.uid) {
            return true;
        }
        match &self.what {
            What::Gone => false,
            What::Cordoned(purpose, version) => {
                let number =
                    |version: Option<&String>| version.and_then(|version| version.parse::<u64>().ok());
                match (number(version.as_ref()), number(node.metadata.resource_version.as_ref())) {
                    (Some(written), Some(shown)) => shown >= written,
                    _ => node.annotations().get(CORDONED_BY) == Some(&purpose.text()),
                }
            }
        }
    }
}

fn uid(node: &Node) -> String {
    node.metadata.uid.clone().unwrap_or_default()
}

impl Memory {
    /// Returns a Node of the store with the writes that the store does not show yet.
    pub(crate) fn as_written(&self, name: &str, node: Option<Arc<Node>>) -> Option<Arc<Node>> {
        let mut all = self.written.lock();
        let (Some(written), Some(shown)) = (all.get(name), &node) else {
            all.remove(name);
            return node;
        };
        if written.is_seen(shown) {
            all.remove(name);
            return node;
        }
        match &written.what {
            What::Gone => None,
            What::Cordoned(purpose, _) => {
                let mut node = (**shown).clone();
                node.annotations_mut().insert(CORDONED_BY.to_owned(), purpose.text());
                node.annotations_mut().remove(DRAIN_FAILED);
                node.spec.get_or_insert_default().unschedulable = Some(true);
                Some(Arc::new(node))
            }
        }
    }

    /// Records that a Node is being cordoned.
    pub fn cordons(&self, node: &Node, purpose: &Purpose) {
        self.writes(node, What::Cordoned(purpose.clone(), None));
    }

    /// Records that a Node was cordoned, and its resource version after the write.
    pub fn cordoned(&self, node: &Node, purpose: &Purpose, version: Option<&str>) {
        self.writes(node, What::Cordoned(purpose.clone(), version.map(str::to_owned)));
    }

    /// Records that a Node was deleted.
    pub fn removed(&self, node: &Node) {
        self.writes(node, What::Gone);
        self.over(node);
    }

    fn writes(&self, node: &Node, what: What) {
        self.written.lock().insert(node.name_any(), Written { uid: uid(node), what });
    }

    /// Forgets a Node that differs from its record.
    pub fn forget(&self, name: &str) {
        self.written.lock().remove(name);
    }

    /// Forgets the writes that the store shows by now. `nodes`: those of the store.
    pub fn tidy(&self, nodes: impl Fn(&str) -> Option<Arc<Node>>) {
        self.written.lock().retain(|name, written| nodes(name).is_some_and(|node| !written.is_seen(&node)));
    }

    /// Returns the reason why a Pod is not evicted now.
    pub fn held(&self, pod: &str) -> Option<String> {
        let now = Instant::now();
        self.held.lock().get(pod).filter(|(until, _)| now < *until).map(|(_, why)| why.clone())
    }

    /// Records that a Pod must not be evicted now. `named` is the number of seconds that the API server
    /// requested.
    pub fn hold(&self, pod: &str, named: Option<u32>, why: &str) {
        self.held.lock().insert(pod.to_owned(), (Instant::now() + wait(named), why.to_owned()));
    }

    /// Starts a drain. The cause that blocked a Pod in an earlier drain may be gone.
    pub fn begins(&self, pods: &[Pod]) {
        let mut held = self.held.lock();
        pods.iter().for_each(|pod| drop(held.remove(&pod.uid)));
    }

    /// Forgets evictions that are due for a retry.
    pub(crate) fn forget_expired(&self) {
        let now = Instant::now();
        self.held.lock().retain(|_, (until, _)| now < *until);
    }

    /// Returns true if a Node's blocked drain has not been reported yet.
    pub fn blocks(&self, node: &Node) -> bool {
        let mut blocked = self.blocked.lock();
        if blocked.len() >= MAX_BLOCKED_NODES {
            blocked.clear();
        }
        blocked.insert(uid(node))
    }

    /// Records that the drain of a Node is no longer blocked.
    pub fn unblock(&self, node: &Node) {
        self.blocked.lock().remove(&uid(node));
    }

    /// Records that the drain of a Node has finished.
    pub fn over(&self, node: &Node) {
        self.unblock(node);
        self.lasting.ends(&uid(node));
    }

    /// Returns true if the Nodes of the store were compared with those of the cluster since this controller
    /// became the leader.
    pub(crate) fn is_sure(&self) -> bool {
        self.is_sure.load(Ordering::Acquire)
    }

    /// Records the comparison, or that another writer may have changed the Nodes since.
    pub fn sure(&self, is_sure: bool) {
        self.is_sure.store(is_sure, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cordon::{Cordon, cordon_of};

    fn node(uid: &str, version: &str, by: Option<&str>) -> Arc<Node> {
        let annotations = by.map(|by| json!({ CORDONED_BY: by }));
        let object = json!({ "metadata": { "name": "a", "uid": uid, "resourceVersion": version, "annotations": annotations },
            "spec": { "unschedulable": by.is_some() } });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn is_cordoned(memory: &Memory, shown: &Arc<Node>) -> bool {
        memory.as_written("a", Some(shown.clone())).is_some_and(|node| cordon_of(&node) != Cordon::Free)
    }

    #[test]
    fn c4_cordoned_node_stays_so_until_the_store_shows_that_write() {
        let (memory, purpose) = (Memory::default(), Purpose::Rollout("w-v2".to_owned()));
        let text = purpose.text();
        let free = node("n1", "7", None);
        memory.cordons(&free, &purpose);
        assert!(is_cordoned(&memory, &free), "its answer is not there yet, or was lost");
        // Uncordoned and cordoned again: the store shows both writes, one after the other.
        memory.cordoned(&free, &purpose, Some("12"));
        for (version, by) in [("9", Some(text.as_str())), ("10", None)] {
            assert!(is_cordoned(&memory, &node("n1", version, by)), "{version}");
        }
        assert!(!is_cordoned(&memory, &node("n1", "13", None)), "uncordoned by another writer since");
        assert!(!is_cordoned(&memory, &free), "and then nothing is remembered");
    }

    #[test]
    fn c4_deleted_node_is_gone_until_the_store_shows_a_new_one() {
        let memory = Memory::default();
        let shown = node("n1", "7", None);
        memory.removed(&shown);
        assert!(memory.as_written("a", Some(shown.clone())).is_none());
        memory.tidy(|_| Some(shown.clone()));
        assert!(memory.as_written("a", Some(shown)).is_none());
        assert!(memory.as_written("a", Some(node("n2", "9", None))).is_some());
        assert!(memory.written.lock().is_empty());
    }

    #[test]
    fn c4_restarted_drain_retries_pods_that_were_blocked_before() {
        let memory = Memory::default();
        let pod = Pod::read(&json!({ "metadata": { "namespace": "n", "name": "web", "uid": "u1" } }));
        memory.hold("u1", Some(10), "the budget");
        memory.hold("u2", Some(10), "the budget");
        memory.begins(&[pod]);
        assert_eq!(memory.held("u1"), None);
        assert!(memory.held("u2").is_some(), "of another Node");
    }

    #[test]
    fn node_that_the_store_shows_is_forgotten() {
        let (memory, purpose) = (Memory::default(), Purpose::Deletion);
        memory.cordoned(&node("n1", "7", None), &purpose, Some("8"));
        memory.tidy(|_| Some(node("n1", "7", None)));
        assert_eq!(memory.written.lock().len(), 1);
        memory.tidy(|_| None);
        assert!(memory.written.lock().is_empty());
    }
}
