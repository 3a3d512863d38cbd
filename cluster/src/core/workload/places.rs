//! Pure: places for work that waits for workload clusters. A cluster that hangs, and a namespace with several of them, leave places for others.
//!
//! ```text
//! take: limit of the cluster or the namespace reached -> none
//!       more free places than namespaces that wait longer -> a place; the namespace waits from now on behind all others
//!       otherwise -> none; the namespace waits, as long as it asks again
//! ```
//! Called by the pass over Machines, before its first request to a workload cluster, and by `run`, before a list.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_process::lock::Lock;
use bedplate_workload::ClusterKey;

/// Numbers of places, and the time for which a namespace keeps its turn.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number for one cluster.
    pub cluster: usize,
    /// Maximum number for one namespace.
    pub namespace: usize,
    /// Maximum number in all.
    pub all: usize,
    /// Time after which a namespace that does not ask again waits no longer.
    pub patience: Duration,
}

/// Limits of turns of Machines. Eight run concurrently, so two of them never wait for a workload cluster. A turn is repeated after 5 s.
pub const TURNS: Limits = Limits { cluster: 2, namespace: 4, all: 6, patience: Duration::from_secs(20) };
/// Limits of lists of Nodes. A page has up to 16 MiB while it is read. A task asks each second.
pub const LISTS: Limits = Limits { cluster: 1, namespace: 2, all: 8, patience: Duration::from_secs(5) };

/// The places. Clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    limits: Limits,
    state: Arc<Lock<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Clusters of the places that are taken.
    taken: Vec<ClusterKey>,
    /// Namespaces that have found no free place, by the time since which they wait.
    waiting: Vec<Waiting>,
}

/// Namespace that waits.
#[derive(Debug)]
struct Waiting {
    namespace: String,
    /// Time at which it has asked last.
    asked: Instant,
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
        Self { limits, state: Arc::default() }
    }

    /// Takes a place. None: there is none for this cluster now. Namespaces get places in the order in which they have asked.
    pub fn take(&self, cluster: &ClusterKey, now: Instant) -> Option<Place> {
        let mut state = self.state.lock();
        let Limits { cluster: most, namespace, all, patience } = self.limits;
        let of_cluster = state.taken.iter().filter(|other| *other == cluster).count();
        if of_cluster >= most || state.of(&cluster.namespace) >= namespace {
            return None;
        }
        state.waiting.retain(|waiting| now.duration_since(waiting.asked) < patience);
        let at = state.waiting.iter().position(|waiting| waiting.namespace == cluster.namespace);
        let earlier = &state.waiting[..at.unwrap_or(state.waiting.len())];
        let ahead = earlier.iter().filter(|waiting| state.of(&waiting.namespace) < namespace).count();
        if state.taken.len() + ahead >= all {
            match at {
                Some(at) => state.waiting[at].asked = now,
                None => {
                    let namespace = cluster.namespace.clone();
                    state.waiting.push(Waiting { namespace, asked: now });
                }
            }
            return None;
        }
        if let Some(at) = at {
            state.waiting.remove(at);
        }
        state.taken.push(cluster.clone());
        drop(state);
        Some(Place { places: self.clone(), cluster: cluster.clone() })
    }
}

impl State {
    /// Returns the number of places of a namespace.
    fn of(&self, namespace: &str) -> usize {
        self.taken.iter().filter(|cluster| cluster.namespace == namespace).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
        if let Some(at) = state.taken.iter().position(|cluster| *cluster == self.cluster) {
            state.taken.swap_remove(at);
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
        let (places, now) = (Places::new(TURNS), Instant::now());
        let take = |namespace: &str, name: &str| places.take(&key(namespace, name), now);
        let first: Vec<Place> = (0..9).filter_map(|_| take("a", "one")).collect();
        assert_eq!(first.len(), 2);
        let second: Vec<Place> = (0..9).filter_map(|n| take("a", &n.to_string())).collect();
        assert_eq!(second.len(), 2, "four of a namespace");
        let third: Vec<Place> = (0..9).filter_map(|n| take("b", &n.to_string())).collect();
        assert_eq!(third.len(), 2, "six in all, of the eight turns");
        assert!(take("c", "x").is_none());
        drop(first);
        assert!(take("c", "x").is_some());
        assert_eq!(places.state.lock().taken.len(), 4, "a place that is dropped is free");
    }

    /// Clusters of many namespaces hang in their lists, for the longest time of a list. Each second they ask first.
    #[test]
    fn trust_4_first_list_waits_a_minute_for_each_eight_namespaces_that_hang() {
        const MINUTE: u64 = 60;
        for (namespaces, longest) in [(8, 2 * MINUTE), (20, 3 * MINUTE), (100, 13 * MINUTE)] {
            let (places, start) = (Places::new(LISTS), Instant::now());
            let at = |second: u64| start + Duration::from_secs(second);
            let hostile: Vec<ClusterKey> =
                (0..namespaces).flat_map(|n| ["x", "y"].map(|name| key(&n.to_string(), name))).collect();
            let mut held: Vec<(u64, Place)> = Vec::new();
            let served = (0..3600).find(|second| {
                held.retain(|(end, _)| end > second);
                let taken = hostile.iter().filter_map(|cluster| places.take(cluster, at(*second)));
                held.extend(taken.map(|place| (second + MINUTE, place)));
                // It comes after all others have taken their places.
                *second >= 30 && places.take(&key("new", "c"), at(*second)).is_some()
            });
            let waited = served.map(|second| second - 30);
            assert!(waited.is_some_and(|waited| waited <= longest), "{namespaces}: {waited:?}");
        }
    }

    #[test]
    fn trust_4_namespace_that_asks_no_more_holds_no_place_up() {
        let (places, start) = (Places::new(LISTS), Instant::now());
        let mut held: Vec<Place> = (0..4)
            .flat_map(|n| ["x", "y"].map(|name| key(&n.to_string(), name)))
            .filter_map(|cluster| places.take(&cluster, start))
            .collect();
        assert_eq!(held.len(), 8);
        assert!(places.take(&key("gone", "c"), start).is_none());
        held.pop();
        let late = start + LISTS.patience;
        let before = late - Duration::from_secs(1);
        assert!(places.take(&key("next", "c"), before).is_none(), "the other one has asked before");
        assert!(places.take(&key("next", "c"), late).is_some());
        assert!(places.state.lock().waiting.is_empty());
    }
}
