//! Nodes of one workload cluster, with all changes since its start: a watch can begin at any version.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Nodes that connections share.
pub(super) struct Shared {
    nodes: Mutex<Nodes>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct Nodes {
    nodes: BTreeMap<String, Value>,
    version: u64,
    /// Events, as a watch sends them.
    events: Vec<(u64, Bytes)>,
}

/// Reason why a write is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Absent,
    Conflict,
}

impl Default for Shared {
    fn default() -> Self {
        Self { nodes: Mutex::default(), version: watch::Sender::new(0) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().nodes.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        self.lock().nodes.get(name).cloned()
    }

    /// Returns all Nodes and the version of the list.
    pub(super) fn list(&self) -> (Vec<Value>, u64) {
        let nodes = self.lock();
        (nodes.nodes.values().cloned().collect(), nodes.version)
    }

    pub(super) fn add(&self, node: Value) {
        let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut nodes = self.lock();
        nodes.store(&name, node, "ADDED");
        self.version.send_replace(nodes.version);
    }

    /// Merges a change into a Node. A patch that changes nothing leaves the version.
    pub(super) fn patch(&self, name: &str, change: &Value) -> Result<Value, Refusal> {
        let mut nodes = self.lock();
        let known = nodes.nodes.get(name).ok_or(Refusal::Absent)?;
        let is_other = |field: &str| {
            let wanted = &change["metadata"][field];
            !wanted.is_null() && *wanted != known["metadata"][field]
        };
        if is_other("uid") || is_other("resourceVersion") {
            return Err(Refusal::Conflict);
        }
        let mut node = known.clone();
        merge(&mut node, change);
        if node != *known {
            node = nodes.store(name, node, "MODIFIED");
            self.version.send_replace(nodes.version);
        }
        Ok(node)
    }

    pub(super) fn delete(&self, name: &str) -> Result<Value, Refusal> {
        let mut nodes = self.lock();
        let node = nodes.nodes.remove(name).ok_or(Refusal::Absent)?;
        let node = nodes.record(node, "DELETED");
        self.version.send_replace(nodes.version);
        Ok(node)
    }

    /// Returns the events after a version, and the version of the last one.
    pub(super) fn since(&self, version: u64) -> (Vec<Bytes>, u64) {
        let nodes = self.lock();
        let later = nodes.events.iter().filter(|(of, _)| *of > version);
        (later.map(|(_, event)| event.clone()).collect(), nodes.version)
    }

    /// Returns the present version, which changes with each event.
    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

impl Nodes {
    fn store(&mut self, name: &str, node: Value, event: &str) -> Value {
        let node = self.record(node, event);
        self.nodes.insert(name.to_owned(), node.clone());
        node
    }

    fn record(&mut self, mut node: Value, event: &str) -> Value {
        self.version += 1;
        node["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.events.push((self.version, line(event, &node)));
        node
    }
}

/// Returns an event as a watch sends it.
pub(super) fn line(event: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({ "type": event, "object": object })).into()
}

/// Merges as a merge patch does (RFC 7396). Fields that only direct a strategic merge are skipped: no list of a Node that a core writes needs it.
fn merge(value: &mut Value, change: &Value) {
    let Value::Object(fields) = change else { return change.clone_into(value) };
    if !value.is_object() {
        *value = json!({});
    }
    for (field, change) in fields.iter().filter(|(field, _)| !field.starts_with('$')) {
        if change.is_null() {
            value.as_object_mut().and_then(|value| value.remove(field));
        } else {
            merge(&mut value[field], change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str) -> Value {
        json!({ "metadata": { "name": "a", "uid": uid, "labels": { "x": "1", "y": "2" } } })
    }

    #[test]
    fn patch_merges_and_is_bound_to_uid_and_version() {
        let nodes = Shared::default();
        nodes.add(node("u"));
        let change = json!({ "metadata": { "uid": "u", "resourceVersion": "1", "labels": { "x": null, "z": "3" } },
            "spec": { "$setElementOrder/taints": [], "taints": [{ "key": "t" }] } });
        let patched = nodes.patch("a", &change).unwrap();
        assert_eq!(patched["metadata"]["labels"], json!({ "y": "2", "z": "3" }));
        assert_eq!(patched["spec"], json!({ "taints": [{ "key": "t" }] }));
        assert_eq!(nodes.patch("a", &change), Err(Refusal::Conflict), "version 1 is old");
        let other = json!({ "metadata": { "uid": "v" } });
        assert_eq!(nodes.patch("a", &other), Err(Refusal::Conflict));
        assert_eq!(nodes.patch("b", &other), Err(Refusal::Absent));
    }

    #[test]
    fn watch_from_a_version_gets_the_later_events() {
        let nodes = Shared::default();
        nodes.add(node("u"));
        let (_, version) = nodes.list();
        nodes.patch("a", &json!({ "spec": { "unschedulable": true } })).unwrap();
        nodes.patch("a", &json!({ "spec": { "unschedulable": true } })).unwrap();
        nodes.delete("a").unwrap();
        let (events, last) = nodes.since(version);
        let events: Vec<Value> = events.iter().map(|line| serde_json::from_slice(line).unwrap()).collect();
        let types: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!((types, last), (vec!["MODIFIED", "DELETED"], 3));
        assert_eq!((nodes.since(last).0.len(), nodes.count()), (0, 0));
    }
}
