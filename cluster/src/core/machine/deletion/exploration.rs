//! Exhaustive exploration of the deletion of a Machine: every history of a small world.
//!
//! A turn reads the world, plans, and acts. Its environment may change the world between plan and act, and may restart the program
//! after each act. Times are ages: a start is fresh, or older than every timeout.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bedplate_api::cluster::full::Machine;
use serde_json::json;

use super::fixture::{at, cluster, machine, node, observed, referenced, target, view};
use super::{Act, Hold, NodeAnswer, NodeFailure, NodeState, Observed, PodsView, VolumesView, plan};
use crate::core::reference::Lookup;

/// Present time of each turn, in seconds after an old start.
const NOW: i64 = 1000;
/// Maximum number of changes until a fair world is finished.
const MAX_FAIR_STEPS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Age {
    Unset,
    Fresh,
    Old,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Unresolved,
    Alive,
    Deleting,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum NodeKind {
    Reachable,
    Unreachable,
    /// Same name, another provider ID and UID.
    Foreign,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PodKind {
    Running,
    Leaving,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    has_timeouts: bool,
    has_reference: bool,
    has_pre_drain: bool,
    has_pre_terminate: bool,
    is_cluster_deleting: bool,
    is_api_down: bool,
    node: NodeKind,
    is_cordoned: bool,
    pod: PodKind,
    has_budget: bool,
    is_attached: bool,
    infrastructure: Part,
    bootstrap: Part,
    deleted: Age,
    drain: Age,
    volume: Age,
    is_finished: bool,
    // Memory of the program.
    is_held: bool,
    failure: Age,
}

/// Machines by the fields that they depend on.
type Machines = HashMap<(bool, bool, bool, bool, Age, Age, Age), Arc<Machine>>;

fn time(age: Age) -> Option<String> {
    match age {
        Age::Unset => None,
        Age::Fresh => Some(at(NOW).to_string()),
        Age::Old => Some(at(0).to_string()),
    }
}

impl World {
    fn machine(&self, machines: &mut Machines) -> Arc<Machine> {
        let hooks = (self.has_pre_drain, self.has_pre_terminate);
        let key =
            (self.has_timeouts, self.has_reference, hooks.0, hooks.1, self.deleted, self.drain, self.volume);
        let make = || {
            machine(|object| {
                let domain = "delete.hook.machine.cluster.x-k8s.io/hook";
                for (has, prefix) in [(hooks.0, "pre-drain"), (hooks.1, "pre-terminate")] {
                    if has {
                        object["metadata"]["annotations"][format!("{prefix}.{domain}")] = json!("");
                    }
                }
                object["metadata"]["deletionTimestamp"] = json!(time(self.deleted));
                if !self.has_reference {
                    object["status"]["nodeRef"] = json!(null);
                }
                let seconds = if self.has_timeouts { 100 } else { 0 };
                object["spec"]["deletion"] = json!({ "nodeDrainTimeoutSeconds": seconds,
                    "nodeVolumeDetachTimeoutSeconds": seconds, "nodeDeletionTimeoutSeconds": seconds });
                object["status"]["deletion"] = json!({ "nodeDrainStartTime": time(self.drain),
                    "waitForNodeVolumeDetachStartTime": time(self.volume) });
            })
        };
        machines.entry(key).or_insert_with(make).clone()
    }

    fn answer<T>(&self, value: T) -> Option<Result<T, String>> {
        Some(if self.is_api_down { Err("down".to_owned()) } else { Ok(value) })
    }

    fn node(&self) -> NodeAnswer {
        let node = NodeState {
            is_unschedulable: self.is_cordoned,
            is_unreachable: self.node == NodeKind::Unreachable,
            ..node()
        };
        match self.node {
            NodeKind::Gone => NodeAnswer::Absent,
            NodeKind::Foreign if !self.has_reference => NodeAnswer::Absent,
            NodeKind::Foreign => NodeAnswer::Found(NodeState {
                uid: "foreign".to_owned(),
                provider_id: Some("p://2".to_owned()),
                ..node
            }),
            NodeKind::Reachable | NodeKind::Unreachable => NodeAnswer::Found(node),
        }
    }

    fn pods(&self) -> PodsView {
        let mut target = target("a");
        target.pod.leaving = self.pod == PodKind::Leaving;
        // The collector skips Pods that an unreachable kubelet should have ended.
        let is_lost = target.pod.leaving && self.node == NodeKind::Unreachable;
        let targets = if self.pod == PodKind::Gone || is_lost { Vec::new() } else { vec![target] };
        view(targets).unwrap().unwrap()
    }

    fn observed(&self, machines: &mut Machines) -> Observed {
        let part = |part: Part, name: &str| match part {
            Part::Unresolved => Lookup::Unresolved("not installed".to_owned()),
            Part::Alive => referenced(name, false),
            Part::Deleting => referenced(name, true),
            Part::Gone => Lookup::Absent,
        };
        let hold = |_| (String::from("a-uid"), Hold { until: at(NOW + 5), why: "budget".to_owned() });
        let since = match self.failure {
            Age::Unset => None,
            Age::Fresh => Some(NOW),
            Age::Old => Some(0),
        };
        let names = if self.is_attached { vec!["v".to_owned()] } else { Vec::new() };
        let deleting = |object: &mut serde_json::Value| {
            if self.is_cluster_deleting {
                object["metadata"]["deletionTimestamp"] = json!(time(Age::Old));
            }
        };
        Observed {
            machine: self.machine(machines),
            cluster: Some(cluster(deleting)),
            infrastructure: part(self.infrastructure, "infra"),
            bootstrap: Some(part(self.bootstrap, "boot")),
            node: self.answer(self.node()),
            pods: self.answer(self.pods()),
            volumes: self.answer(VolumesView { names, more: 0 }),
            holds: self.is_held.then_some(()).map(hold).into_iter().collect::<BTreeMap<_, _>>(),
            node_failure: since.map(|since| NodeFailure::after(None, "down", at(since))),
            ..observed()
        }
    }

    /// Carries out an act in this world. `planned`: world that the plan was made for.
    fn apply(mut self, act: &Act, planned: &Self) -> Self {
        let is_own = matches!(self.node, NodeKind::Reachable | NodeKind::Unreachable);
        match act {
            Act::Wait | Act::Read(_) => {
                let is_last = planned.infrastructure == Part::Gone && planned.bootstrap == Part::Gone;
                if is_last && planned.is_api_down && self.failure == Age::Unset {
                    self.failure = Age::Fresh;
                }
            }
            Act::RecordDrainStart(_) => self.drain = Age::Fresh,
            Act::RecordVolumeStart(_) => self.volume = Age::Fresh,
            Act::Cordon { .. } => {
                assert!(!planned.has_pre_drain, "no cordon before the hooks: {planned:?}");
                self.is_cordoned |= is_own && !self.is_api_down;
            }
            Act::Evict { .. } => {
                assert!(
                    !planned.has_pre_drain && planned.is_cordoned,
                    "no drain before the hooks: {planned:?}"
                );
                if self.pod == PodKind::Running && !self.is_api_down {
                    (self.pod, self.is_held) =
                        if self.has_budget { (PodKind::Running, true) } else { (PodKind::Leaving, false) };
                }
            }
            Act::DeleteInfrastructure(_) => {
                planned.check_drained();
                if self.infrastructure == Part::Alive {
                    self.infrastructure = Part::Deleting;
                }
            }
            Act::DeleteBootstrap(_) => {
                assert_eq!(planned.infrastructure, Part::Gone, "infrastructure first: {planned:?}");
                if self.bootstrap == Part::Alive {
                    self.bootstrap = Part::Deleting;
                }
            }
            Act::DeleteNode { uid, .. } => {
                assert_eq!(
                    (planned.infrastructure, planned.bootstrap),
                    (Part::Gone, Part::Gone),
                    "{planned:?}"
                );
                assert_eq!(uid, "node-uid", "never a foreign Node: {planned:?}");
                match (self.is_api_down, is_own) {
                    (true, _) if self.failure == Age::Unset => self.failure = Age::Fresh,
                    (false, true) => self.node = NodeKind::Gone,
                    _ => {}
                }
            }
            Act::RemoveFinalizer => {
                assert_eq!((self.infrastructure, self.bootstrap), (Part::Gone, Part::Gone), "{planned:?}");
                assert!(!planned.has_pre_terminate, "{planned:?}");
                self.is_finished = true;
            }
        }
        self
    }

    /// Checks that the infrastructure may be deleted.
    fn check_drained(&self) {
        assert!(!self.has_pre_terminate, "no deletion before the hooks: {self:?}");
        let is_own = matches!(self.node, NodeKind::Reachable | NodeKind::Unreachable);
        let is_known = self.has_reference || !self.is_api_down;
        if self.is_cluster_deleting || !is_own || !is_known {
            return;
        }
        assert!(!self.has_pre_drain, "{self:?}");
        let is_expired = |start: Age| self.has_timeouts && start == Age::Old;
        let is_lost = self.pod == PodKind::Leaving && self.node == NodeKind::Unreachable;
        let is_drained = !self.is_api_down && (self.pod == PodKind::Gone || is_lost);
        assert!(is_drained || is_expired(self.drain), "drained first: {self:?}");
        let is_detached = !self.is_api_down && (!self.is_attached || self.node == NodeKind::Unreachable);
        assert!(is_detached || is_expired(self.volume), "detached first: {self:?}");
    }

    /// Returns the world after all timeouts.
    fn tick(self) -> Self {
        let older = |age: Age| if age == Age::Fresh { Age::Old } else { age };
        Self {
            deleted: older(self.deleted),
            drain: older(self.drain),
            volume: older(self.volume),
            failure: older(self.failure),
            is_held: false,
            ..self
        }
    }

    /// Returns the worlds after one change of the environment.
    fn changes(self) -> Vec<Self> {
        let mut next = vec![
            self.tick(),
            Self { has_pre_drain: false, ..self },
            Self { has_pre_terminate: false, ..self },
            Self { is_cluster_deleting: true, ..self },
            Self { is_api_down: !self.is_api_down, ..self },
            // The program is restarted.
            Self { is_held: false, failure: Age::Unset, ..self },
        ];
        if self.node == NodeKind::Reachable {
            next.push(Self { node: NodeKind::Unreachable, ..self });
        }
        if self.infrastructure == Part::Gone && self.node != NodeKind::Foreign {
            next.push(Self { node: NodeKind::Foreign, is_cordoned: false, ..self });
        }
        next.push(self.ended());
        next.push(self.gone());
        next.retain(|world| *world != self);
        next
    }

    /// Returns the world after its Pod and its volume have ended, as far as the kubelet works.
    fn ended(self) -> Self {
        match (self.pod, self.node) {
            (_, NodeKind::Unreachable) => self,
            (PodKind::Leaving, _) => Self { pod: PodKind::Gone, ..self },
            (PodKind::Gone, _) => Self { is_attached: false, ..self },
            (PodKind::Running, _) => self,
        }
    }

    /// Returns the world after providers have finished what they delete.
    fn gone(self) -> Self {
        let end = |part: Part| match part {
            Part::Deleting => Part::Gone,
            Part::Unresolved => Part::Alive,
            part => part,
        };
        Self { infrastructure: end(self.infrastructure), bootstrap: end(self.bootstrap), ..self }
    }

    /// Returns the world after each party has done its part. With timeouts, the workload cluster may stay down and its Pods may stay.
    fn fair(self) -> Self {
        let world = Self { has_pre_drain: false, has_pre_terminate: false, ..self.tick().gone() };
        if self.has_timeouts {
            return world;
        }
        Self { is_api_down: false, has_budget: false, ..world }.ended()
    }
}

/// Explores all worlds that follow these, and returns their number.
fn explore(roots: Vec<World>) -> usize {
    let mut machines = Machines::new();
    let mut acts: HashMap<World, Act> = HashMap::new();
    let mut open = roots;
    while let Some(world) = open.pop() {
        if world.is_finished || acts.contains_key(&world) {
            continue;
        }
        let act = plan(&world.observed(&mut machines), at(NOW)).act;
        let changes = world.changes();
        open.push(world.apply(&act, &world));
        open.extend(changes.iter().map(|changed| changed.apply(&act, &world)));
        open.extend(changes);
        acts.insert(world, act);
    }
    let mut terminating = HashSet::new();
    for world in acts.keys() {
        let mut path = Vec::new();
        let mut world = *world;
        while !world.is_finished && !terminating.contains(&world) {
            assert!(path.len() < MAX_FAIR_STEPS, "does not finish: {:?}", path.first());
            path.push(world);
            let act = match acts.get(&world) {
                Some(act) => act.clone(),
                None => plan(&world.observed(&mut machines), at(NOW)).act,
            };
            let next = world.apply(&act, &world);
            world = if next == world { world.fair() } else { next };
        }
        terminating.extend(path);
    }
    acts.len()
}

/// A world before the first turn.
fn root() -> World {
    World {
        has_timeouts: true,
        has_reference: true,
        has_pre_drain: false,
        has_pre_terminate: false,
        is_cluster_deleting: false,
        is_api_down: false,
        node: NodeKind::Reachable,
        is_cordoned: false,
        pod: PodKind::Gone,
        has_budget: false,
        is_attached: false,
        infrastructure: Part::Alive,
        bootstrap: Part::Alive,
        deleted: Age::Fresh,
        drain: Age::Unset,
        volume: Age::Unset,
        is_finished: false,
        is_held: false,
        failure: Age::Unset,
    }
}

#[test]
fn m9_deletion_with_pods_and_volumes_is_safe_and_finishes() {
    let mut roots = Vec::new();
    for (has_timeouts, has_budget) in [(true, true), (true, false), (false, true), (false, false)] {
        let world = World { has_timeouts, has_budget, ..root() };
        roots.push(World { pod: PodKind::Running, is_attached: true, bootstrap: Part::Gone, ..world });
    }
    let worlds = explore(roots);
    assert!(worlds > 1000, "{worlds}");
}

#[test]
fn m9_deletion_with_hooks_and_objects_is_safe_and_finishes() {
    let mut roots = Vec::new();
    for (has_timeouts, has_reference) in [(true, true), (true, false), (false, true), (false, false)] {
        for node in [NodeKind::Reachable, NodeKind::Foreign, NodeKind::Gone] {
            let world = World { has_timeouts, has_reference, node, ..root() };
            let world = World { has_pre_drain: true, has_pre_terminate: true, ..world };
            roots.push(World { infrastructure: Part::Unresolved, bootstrap: Part::Unresolved, ..world });
        }
    }
    let worlds = explore(roots);
    assert!(worlds > 1000, "{worlds}");
}

#[test]
fn m9_deletion_with_hooks_and_pods_is_safe_and_finishes() {
    let world = World { has_pre_drain: true, has_pre_terminate: true, pod: PodKind::Running, ..root() };
    let roots = [true, false].map(|has_timeouts| World {
        has_timeouts,
        has_budget: has_timeouts,
        bootstrap: Part::Gone,
        ..world
    });
    let worlds = explore(roots.to_vec());
    assert!(worlds > 1000, "{worlds}");
}
