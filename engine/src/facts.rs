//! Pure: the facts of objects that concern other objects, by which a watch tells if a change must queue these. Called by the watches of a program.

use std::collections::HashMap;
use std::fmt::Debug;

use kube::runtime::reflector::{Lookup, ObjectRef};

use crate::store::Seen;

/// Facts of each object as the last event has shown them. Objects change far more often than these.
#[derive(Debug)]
pub struct Facts<K: Lookup<DynamicType = ()>, F>(HashMap<ObjectRef<K>, F>);

impl<K: Lookup<DynamicType = ()>, F> Default for Facts<K, F> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Lookup<DynamicType = ()>, F: PartialEq + Clone> Facts<K, F> {
    /// Records the facts that an event shows. Returns those before and after it, if they have changed. A deletion is a change.
    pub fn change(&mut self, event: &Seen<K>, facts: impl FnOnce(&K) -> F) -> Option<(Option<F>, Option<F>)> {
        let key = ObjectRef::from_obj(&**event.object());
        let after = event.there().map(|object| facts(object));
        if after.is_some() && self.0.get(&key) == after.as_ref() {
            return None;
        }
        let before = match &after {
            Some(after) => self.0.insert(key, after.clone()),
            None => self.0.remove(&key),
        };
        Some((before, after))
    }

    /// Records the facts that an event shows. Returns true if they have changed.
    pub fn changes(&mut self, event: &Seen<K>, facts: impl FnOnce(&K) -> F) -> bool {
        self.change(event, facts).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Node;

    use super::*;

    fn node(version: &str) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.name = Some("a".to_owned());
        node.metadata.resource_version = Some(version.to_owned());
        Arc::new(node)
    }

    #[test]
    fn event_without_other_facts_is_no_change_and_a_deletion_is_one() {
        let mut facts = Facts::default();
        let mut change =
            |event: Seen<Node>| facts.change(&event, |node| node.metadata.resource_version.clone());
        let (one, two) = (Some("1".to_owned()), Some("2".to_owned()));
        assert_eq!(change(Seen::There(node("1"))), Some((None, Some(one.clone()))));
        assert_eq!(change(Seen::There(node("1"))), None);
        assert_eq!(change(Seen::There(node("2"))), Some((Some(one), Some(two.clone()))));
        assert_eq!(change(Seen::Gone(node("2"))), Some((Some(two.clone()), None)));
        assert_eq!(change(Seen::There(node("2"))), Some((None, Some(two))));
    }
}
