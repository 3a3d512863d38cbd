//! Pure: places for work that waits for workload clusters. A cluster that hangs, and a namespace with several of them, leave places for others.
//!
//! Called by the pass over Machines, before its first request to a workload cluster, and by `run`, before a list.

use std::sync::Arc;

use bedplate_process::lock::Lock;
use bedplate_workload::ClusterKey;

/// Numbers of places.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number for one cluster.
    pub cluster: usize,
    /// Maximum number for one namespace.
    pub namespace: usize,
    /// Maximum number in all.
    pub all: usize,
}

/// Limits of turns of Machines. Eight run concurrently, so two of them never wait for a workload cluster.
pub const TURNS: Limits = Limits { cluster: 2, namespace: 4, all: 6 };
/// Limits of lists of Nodes. A page has up to 16 MiB while it is read.
pub const LISTS: Limits = Limits { cluster: 1, namespace: 2, all: 8 };

/// The places. Clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    limits: Limits,
    /// Clusters of the places that are taken.
    taken: Arc<Lock<Vec<ClusterKey>>>,
}

/// Place that is taken until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    cluster: ClusterKey,
}

impl Places {
    /// Makes free places.
    pub fn new(limits: Limits) -> Self {
        Self { limits, taken: Arc::default() }
    }

    /// Takes a place. None: there is none for this cluster now.
    pub fn take(&self, cluster: &ClusterKey) -> Option<Place> {
        let mut taken = self.taken.lock();
        let of_namespace = taken.iter().filter(|other| other.namespace == cluster.namespace).count();
        let of_cluster = taken.iter().filter(|other| *other == cluster).count();
        let Limits { cluster: most, namespace, all } = self.limits;
        if of_cluster >= most || of_namespace >= namespace || taken.len() >= all {
            return None;
        }
        taken.push(cluster.clone());
        drop(taken);
        Some(Place { places: self.clone(), cluster: cluster.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(at) = taken.iter().position(|cluster| *cluster == self.cluster) {
            taken.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> ClusterKey {
        ClusterKey { namespace: namespace.to_owned(), name: name.to_owned(), uid: "u".to_owned() }
    }

    #[test]
    fn trust_4_hanging_clusters_leave_places_for_other_namespaces() {
        let places = Places::new(TURNS);
        let take = |namespace: &str, name: &str| places.take(&key(namespace, name));
        let first: Vec<Place> = (0..9).filter_map(|_| take("a", "one")).collect();
        assert_eq!(first.len(), 2);
        let second: Vec<Place> = (0..9).filter_map(|n| take("a", &n.to_string())).collect();
        assert_eq!(second.len(), 2, "four of a namespace");
        let third: Vec<Place> = (0..9).filter_map(|n| take("b", &n.to_string())).collect();
        assert_eq!(third.len(), 2, "six in all, of the eight turns");
        assert!(take("c", "x").is_none());
        drop(first);
        assert!(take("c", "x").is_some());
        assert_eq!(places.taken.lock().len(), 4, "a place that is dropped is free");
    }
}
