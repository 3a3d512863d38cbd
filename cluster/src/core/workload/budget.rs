//! Pure: the bytes that the Nodes of all workload clusters have: a tenant writes its Nodes. Called by `task` and `nodes`.
//!
//! ```text
//! cluster: some bytes of its own, then the pool;   namespace: at most as much of the pool as is left for all others
//! ```
//! A namespace that takes all that it can leaves half of the pool, and even without the pool each cluster keeps some Nodes.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_process::lock::Lock;

/// Size of the pool in bytes.
pub(crate) const POOL_BYTES: usize = 96 * 1024 * 1024;
/// Size of the Nodes of a cluster in bytes that is not taken from the pool.
pub(crate) const CLUSTER_BYTES: usize = 32 * 1024;

/// The pool. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Budget(Arc<Lock<Used>>);

#[derive(Debug, Default)]
struct Used {
    all: usize,
    /// Bytes of each namespace that has taken some.
    namespaces: HashMap<String, usize>,
}

/// Bytes of one list or one event, which are released when it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    namespace: String,
    /// Bytes that are not taken from the pool, or that the state which the list replaces has taken already.
    credit: usize,
    bytes: usize,
}

/// Returns the number of bytes of a cluster that are taken from the pool.
const fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(CLUSTER_BYTES)
}

impl Budget {
    /// Returns the number of bytes by which the Nodes of a cluster may grow.
    pub(crate) fn room_of_cluster(&self, namespace: &str, bytes: usize) -> usize {
        CLUSTER_BYTES.saturating_sub(bytes) + self.room(namespace)
    }

    /// Records that the Nodes of a cluster have another size.
    pub(crate) fn resize_cluster(&self, namespace: &str, before: usize, after: usize) {
        self.change(namespace, counted(before), counted(after));
    }

    /// Returns the number of bytes that a namespace may take from the pool.
    fn room(&self, namespace: &str) -> usize {
        let used = self.0.lock();
        let own = used.namespaces.get(namespace).copied().unwrap_or_default();
        POOL_BYTES.saturating_sub(used.all).saturating_sub(own) / 2
    }

    fn change(&self, namespace: &str, before: usize, after: usize) {
        if before == after {
            return;
        }
        let mut used = self.0.lock();
        used.all = (used.all + after).saturating_sub(before);
        let own = used.namespaces.entry(namespace.to_owned()).or_default();
        *own = (*own + after).saturating_sub(before);
        if *own == 0 {
            used.namespaces.remove(namespace);
        }
    }

    /// Makes the share of a list. `before`: size of the Nodes of the cluster that it replaces.
    pub(crate) fn share_of_list(&self, namespace: &str, before: usize) -> Share {
        self.share(namespace, before.max(CLUSTER_BYTES))
    }

    /// Makes a share. `credit`: number of bytes that it has without the pool.
    pub fn share(&self, namespace: &str, credit: usize) -> Share {
        Share { budget: self.clone(), namespace: namespace.to_owned(), credit, bytes: 0 }
    }
}

impl Share {
    /// Returns the number of bytes by which it may grow.
    pub fn room(&self) -> usize {
        self.credit.saturating_sub(self.bytes) + self.budget.room(&self.namespace)
    }

    /// Records its size.
    pub fn resize(&mut self, bytes: usize) {
        let taken = |bytes: usize| bytes.saturating_sub(self.credit);
        self.budget.change(&self.namespace, taken(self.bytes), taken(bytes));
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
impl Budget {
    /// Returns the number of bytes that are taken from the pool.
    pub(crate) fn used(&self) -> usize {
        self.0.lock().all
    }

    /// Leaves this number of bytes in the pool.
    pub(crate) fn leave(&self, bytes: usize) {
        self.change("greedy", 0, POOL_BYTES - bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that a namespace can get.
    fn take_all(budget: &Budget, namespace: &str) {
        while budget.room(namespace) > 0 {
            budget.change(namespace, 0, budget.room(namespace));
        }
    }

    #[test]
    fn trust_4_namespace_takes_half_of_what_the_others_leave() {
        let (budget, mut free) = (Budget::default(), POOL_BYTES);
        for namespace in ["a", "b", "c"] {
            take_all(&budget, namespace);
            let left = POOL_BYTES - budget.used();
            assert!(left.abs_diff(free / 2) <= 1, "{namespace}: {left} of {free}");
            free = left;
        }
        assert_eq!(budget.room("next"), free / 2);
    }

    #[test]
    fn trust_4_cluster_has_bytes_of_its_own() {
        let budget = Budget::default();
        budget.leave(0);
        assert_eq!(budget.room_of_cluster("a", 0), CLUSTER_BYTES);
        budget.resize_cluster("a", 0, CLUSTER_BYTES);
        assert_eq!((budget.used(), budget.room_of_cluster("a", CLUSTER_BYTES)), (POOL_BYTES, 0));
        let mut share = budget.share_of_list("a", 0);
        share.resize(CLUSTER_BYTES);
        assert_eq!((budget.used(), share.room()), (POOL_BYTES, 0));
    }

    #[test]
    fn trust_4_lists_count_while_they_are_read() {
        let budget = Budget::default();
        let mut shares = [budget.share_of_list("a", 0), budget.share_of_list("b", 0)];
        shares[0].resize(POOL_BYTES / 4 + CLUSTER_BYTES);
        assert_eq!(shares[1].room(), CLUSTER_BYTES + POOL_BYTES * 3 / 8);
        shares[0].resize(10);
        assert_eq!(budget.used(), 0, "it may shrink");
        shares[0].resize(CLUSTER_BYTES + 10);
        assert_eq!(budget.used(), 10);
        drop(shares);
        assert_eq!((budget.used(), budget.0.lock().namespaces.len()), (0, 0));
    }

    #[test]
    fn m8_list_may_have_the_bytes_of_the_state_that_it_replaces() {
        let budget = Budget::default();
        take_all(&budget, "a");
        let before = budget.used() + CLUSTER_BYTES;
        let mut share = budget.share_of_list("a", before);
        assert_eq!((share.room(), budget.room("a")), (before, 0));
        share.resize(before);
        assert_eq!((share.room(), budget.used()), (0, before - CLUSTER_BYTES));
    }
}
