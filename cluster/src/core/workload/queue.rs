//! Pure: the objects that become due when Nodes of a cluster change, and their pace. Called by `task`.
//!
//! ```text
//! changed providerIDs -> Machines with them, the health checks of the cluster -> Pace -> queues
//! ```
//! The first change of an object makes it due immediately. Further ones wait, and few objects are released in one second: a tenant can change
//! its Nodes without end.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_api::cluster::full::{Machine, MachineHealthCheck};
use bedplate_workload::ClusterKey;
use kube::ResourceExt;

/// Interval between two releases of a cluster.
pub(crate) const RELEASE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of objects of a cluster that are released together.
const MAX_RELEASED: usize = 100;
/// Minimum interval between two releases of one object.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of providerIDs that are kept apart. More changes concern all Machines of the cluster.
const MAX_IDS: usize = 1000;

/// Changes of the Nodes of a cluster since the last release.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    ids: BTreeSet<String>,
    is_all: bool,
}

/// Object that is due. Its namespace is that of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Due {
    /// The Cluster: its connection has changed.
    Cluster,
    /// Machine with this name.
    Machine(String),
    /// MachineHealthCheck with this name.
    Check(String),
}

impl Changes {
    /// Adds the providerIDs of Nodes that have changed.
    pub fn add(&mut self, ids: impl IntoIterator<Item = String>) {
        self.ids.extend(ids);
        if self.ids.len() > MAX_IDS {
            self.add_all();
        }
    }

    /// Adds all Machines and the Cluster.
    pub fn add_all(&mut self) {
        self.is_all = true;
        self.ids.clear();
    }

    /// Adds other changes.
    pub fn merge(&mut self, other: Self) {
        if other.is_all {
            self.add_all();
        } else if !self.is_all {
            self.add(other.ids);
        }
    }

    /// Returns true if nothing has changed.
    pub fn is_empty(&self) -> bool {
        !self.is_all && self.ids.is_empty()
    }

    /// Returns the providerIDs. None: all Machines are concerned.
    #[cfg(test)]
    pub fn ids(&self) -> Option<Vec<String>> {
        (!self.is_all).then(|| self.ids.iter().cloned().collect())
    }

    /// Returns the objects that are due. Health checks judge Nodes, so they follow the Machines.
    pub fn due(
        &self,
        cluster: &ClusterKey,
        machines: &[Arc<Machine>],
        checks: &[Arc<MachineHealthCheck>],
    ) -> Vec<Due> {
        let is_concerned = |machine: &&Arc<Machine>| {
            machine.spec.cluster_name == cluster.name
                && machine.metadata.namespace.as_ref() == Some(&cluster.namespace)
                && (self.is_all || machine.spec.provider_id.as_ref().is_some_and(|id| self.ids.contains(id)))
        };
        let machines = machines.iter().filter(is_concerned).map(|machine| Due::Machine(machine.name_any()));
        let mut due: Vec<Due> = self.is_all.then_some(Due::Cluster).into_iter().chain(machines).collect();
        if !due.is_empty() {
            let is_of = |check: &&Arc<MachineHealthCheck>| {
                check.spec.cluster_name == cluster.name
                    && check.metadata.namespace.as_ref() == Some(&cluster.namespace)
            };
            due.extend(checks.iter().filter(is_of).map(|check| Due::Check(check.name_any())));
        }
        due
    }
}

/// Pace of the objects of one cluster. Its size is bounded by their number.
#[derive(Debug)]
pub struct Pace<T> {
    waiting: VecDeque<T>,
    queued: HashSet<T>,
    /// Time of the last release of each object within [`MIN_INTERVAL`].
    released: HashMap<T, Instant>,
}

impl<T> Default for Pace<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), queued: HashSet::new(), released: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Pace<T> {
    /// Adds objects. One that waits already keeps its place.
    pub fn put(&mut self, objects: impl IntoIterator<Item = T>) {
        for object in objects {
            if self.queued.insert(object.clone()) {
                self.waiting.push_back(object);
            }
        }
    }

    /// Returns true if no object waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Releases the objects whose time was reached.
    pub fn release(&mut self, now: Instant) -> Vec<T> {
        self.released.retain(|_, at| now.duration_since(*at) < MIN_INTERVAL);
        let mut released = Vec::new();
        for object in std::mem::take(&mut self.waiting) {
            if released.len() < MAX_RELEASED && !self.released.contains_key(&object) {
                self.queued.remove(&object);
                self.released.insert(object.clone(), now);
                released.push(object);
            } else {
                self.waiting.push_back(object);
            }
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn machine(name: &str, cluster: &str, id: Option<&str>) -> Arc<Machine> {
        from_value(json!({ "metadata": { "namespace": "ns", "name": name }, "spec": { "clusterName": cluster, "providerID": id,
            "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": name } } }))
        .map(Arc::new)
        .unwrap()
    }

    fn check(name: &str, cluster: &str) -> Arc<MachineHealthCheck> {
        from_value(json!({ "metadata": { "namespace": "ns", "name": name }, "spec": { "clusterName": cluster, "selector": {} } }))
            .map(Arc::new)
            .unwrap()
    }

    fn due(changes: &Changes) -> Vec<Due> {
        let key = ClusterKey { namespace: "ns".into(), name: "c".into(), uid: "u".into() };
        let machines = [
            machine("a", "c", Some("p://1")),
            machine("b", "c", Some("p://2")),
            machine("new", "c", None),
            machine("other", "d", Some("p://1")),
        ];
        changes.due(&key, &machines, &[check("h", "c"), check("other", "d")])
    }

    fn named(name: &str) -> Due {
        Due::Machine(name.to_owned())
    }

    #[test]
    fn m8_changed_node_makes_its_machine_and_the_health_checks_due() {
        let mut changes = Changes::default();
        changes.add(["p://2".to_owned()]);
        assert_eq!(due(&changes), [named("b"), Due::Check("h".to_owned())]);
        let mut foreign = Changes::default();
        foreign.add(["p://9".to_owned()]);
        assert_eq!(due(&foreign), [], "no Machine has this Node");
        changes.add_all();
        let all = [Due::Cluster, named("a"), named("b"), named("new"), Due::Check("h".to_owned())];
        assert_eq!(due(&changes), all);
    }

    #[test]
    fn trust_4_number_of_changed_ids_is_bounded() {
        let mut changes = Changes::default();
        changes.add((0..=MAX_IDS).map(|n| n.to_string()));
        assert!(changes.ids().is_none() && changes.ids.is_empty() && !changes.is_empty());
        let mut few = Changes::default();
        few.add(["p://1".to_owned()]);
        changes.merge(few.clone());
        assert!(changes.ids.is_empty());
        few.merge(changes);
        assert!(few.ids().is_none());
    }

    #[test]
    fn trust_4_flood_of_changes_releases_a_machine_each_five_seconds() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let mut times = Vec::new();
        for tenth in 0..200 {
            pace.put(["a"]);
            if !pace.release(start + Duration::from_millis(tenth * 100)).is_empty() {
                times.push(tenth / 10);
            }
        }
        assert_eq!(times, [0, 5, 10, 15], "the first change is released immediately");
    }

    #[test]
    fn trust_4_changes_of_all_nodes_release_hundred_machines_a_second() {
        let start = Instant::now();
        let mut pace = Pace::default();
        pace.put(0..1000);
        pace.put(0..1000);
        for second in 0..10 {
            let released = pace.release(start + Duration::from_secs(second));
            let first = usize::try_from(second).unwrap() * MAX_RELEASED;
            assert_eq!(released, (first..first + MAX_RELEASED).collect::<Vec<_>>(), "in their order");
        }
        assert!(pace.is_empty() && pace.queued.is_empty());
        pace.release(start + Duration::from_secs(60));
        assert!(pace.released.is_empty());
    }
}
