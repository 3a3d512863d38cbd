//! State of Machines that are being deleted, kept in memory between turns: rejected evictions, failures to delete the Node, Events.
//!
//! A restart loses it: evictions are sent again, the Event about a long drain is published again, and the deletion of the Node is tried for some seconds more. Called by the pass.

use std::collections::{BTreeMap, HashMap};

use bedplate_process::lock::Lock;

use super::deletion::{Hold, NodeFailure};

/// Maximum number of Machines. Above it, the state of further ones is not kept.
const MAX_MACHINES: usize = 10_000;

/// State of one Machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remembered {
    /// Evictions that were rejected, by the UID of the Pod.
    pub holds: BTreeMap<String, Hold>,
    /// Failure to delete or to read the Node, once only the Node is left.
    pub node_failure: Option<NodeFailure>,
    /// True if the API server has rejected a write of the life, such as that of the providerID. The deletion does not wait for it.
    pub is_rejected: bool,
    /// True if the Event about a drain that takes long was published.
    pub is_drain_reported: bool,
}

/// States by the UID of the Machine.
#[derive(Debug, Default)]
pub struct Memory(Lock<HashMap<String, Remembered>>);

impl Memory {
    /// Returns the state of a Machine.
    pub fn get(&self, uid: &str) -> Remembered {
        self.0.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Keeps the state of a Machine. An empty one is dropped.
    pub fn set(&self, uid: &str, state: Remembered) {
        let mut states = self.0.lock();
        if state == Remembered::default() {
            states.remove(uid);
        } else if states.len() < MAX_MACHINES || states.contains_key(uid) {
            states.insert(uid.to_owned(), state);
        }
    }

    /// Forgets a Machine that was deleted.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Remembered {
        let failure = NodeFailure { since: jiff::Timestamp::UNIX_EPOCH, why: "down".to_owned() };
        Remembered { node_failure: Some(failure), ..Remembered::default() }
    }

    #[test]
    fn m9_memory_is_bounded_and_forgets() {
        let memory = Memory::default();
        (0..=MAX_MACHINES).for_each(|number| memory.set(&number.to_string(), failed()));
        assert_eq!(memory.0.lock().len(), MAX_MACHINES);
        assert_eq!(memory.get(&MAX_MACHINES.to_string()), Remembered::default());
        memory.set("0", failed());
        memory.set("0", Remembered::default());
        memory.forget("1");
        assert_eq!(memory.0.lock().len(), MAX_MACHINES - 2);
    }
}
