//! Exhaustive exploration of the planner of Clusters: every order of reads, writes, kills and moves of other programs in a small world.
//!
//! ```text
//! World { actual: objects in the API server, seen: what each watch has shown } -> watch shows | act, then status or killed | others move
//! ```
//! A write of the Cluster needs that the watch has shown its present state, as its resourceVersion does.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::deletion::ChildKind;
use super::observed::{Component, Observed};
use super::plan::{Act, plan};
use super::tests::{deployment, machine, now, observed, referenced, set};
use crate::core::reference::Lookup;

/// Maximum number of worlds of one exploration.
const MAX_WORLDS: usize = 400_000;

/// Life of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Life {
    Gone,
    Live,
    Deleting,
}

use Life::{Deleting, Gone, Live};

/// The Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts of one object")]
struct Head {
    life: Life,
    has_finalizer: bool,
    is_paused: bool,
    /// Port of the endpoint. 0: unset.
    endpoint: u8,
    is_provisioned: bool,
    is_initialized: bool,
}

/// An infrastructure or control plane object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Named {
    life: Life,
    is_owned: bool,
    /// Port of the endpoint once the object is complete. 0: not complete.
    done: u8,
}

/// Objects of a world, or what the watches have shown of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Objects {
    head: Head,
    infrastructure: Named,
    control_plane: Named,
    deployment: Life,
    set: Life,
    worker: Life,
    /// Machine of the control plane.
    master: Life,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    actual: Objects,
    seen: Objects,
}

/// Decision of the planner for what the watches have shown.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Decision {
    act: Write,
    has_status: bool,
    is_provisioned: bool,
    is_initialized: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Write {
    None,
    AddFinalizer,
    Adopt(Component),
    SetEndpoint(u8),
    Delete(ChildKind, bool),
    DeleteComponent(Component),
    RemoveFinalizer,
}

type Decisions = HashMap<Objects, Decision>;

fn meta(life: Life) -> Value {
    if life == Deleting { json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }) } else { json!({}) }
}

fn lookup(named: Named, is_infrastructure: bool) -> Lookup {
    if named.life == Gone {
        return Lookup::Absent;
    }
    let mut metadata = meta(named.life);
    if !named.is_owned {
        metadata["ownerReferences"] = Value::Null;
    }
    let mut object = json!({ "metadata": metadata });
    if named.done > 0 {
        object["spec"] = json!({ "controlPlaneEndpoint": { "host": "h", "port": named.done } });
        let field = if is_infrastructure { "provisioned" } else { "controlPlaneInitialized" };
        object["status"] = json!({ "initialization": { field: true } });
    }
    referenced(object)
}

fn observe(seen: &Objects) -> Observed {
    let head = seen.head;
    let mut metadata = meta(head.life);
    if !head.has_finalizer {
        metadata["finalizers"] = Value::Null;
    }
    let mut object = json!({ "metadata": metadata, "spec": { "paused": head.is_paused } });
    if head.endpoint > 0 {
        object["spec"]["controlPlaneEndpoint"] = json!({ "host": "h", "port": head.endpoint });
    }
    let latch = |is_true: bool| if is_true { json!(true) } else { Value::Null };
    if head.is_provisioned || head.is_initialized {
        object["status"] = json!({ "initialization": {
            "infrastructureProvisioned": latch(head.is_provisioned),
            "controlPlaneInitialized": latch(head.is_initialized) } });
    }
    let mut world = observed(object);
    world.infrastructure = lookup(seen.infrastructure, true);
    world.control_plane = lookup(seen.control_plane, false);
    let is_there = |life: Life| life != Gone;
    world.deployments.extend(
        is_there(seen.deployment).then(|| deployment("d", json!({ "metadata": meta(seen.deployment) }))),
    );
    world.sets.extend(is_there(seen.set).then(|| set("s", json!({ "metadata": meta(seen.set) }))));
    let mut label = meta(seen.master);
    label["labels"] = json!({ "cluster.x-k8s.io/control-plane": "" });
    world.machines.extend(is_there(seen.master).then(|| machine("cp", json!({ "metadata": label }))));
    world
        .machines
        .extend(is_there(seen.worker).then(|| machine("w", json!({ "metadata": meta(seen.worker) }))));
    world
}

/// Returns the decision, and checks that its status settles.
fn decide(decisions: &mut Decisions, seen: &Objects) -> Decision {
    if let Some(decision) = decisions.get(seen) {
        return *decision;
    }
    let mut world = observe(seen);
    let first = plan(&world, now());
    let act = match &first.act {
        Act::None => Write::None,
        Act::AddFinalizer => Write::AddFinalizer,
        Act::Adopt { component, .. } => Write::Adopt(*component),
        Act::SetEndpoint { endpoint, .. } => Write::SetEndpoint(u8::try_from(endpoint.port).unwrap()),
        Act::DeleteChildren(children) => {
            assert_eq!(children.len(), 1, "{seen:?}");
            Write::Delete(children[0].kind, children[0].name == "cp")
        }
        Act::DeleteComponent(component) => Write::DeleteComponent(*component),
        Act::RemoveFinalizer => Write::RemoveFinalizer,
        Act::MakeKubeconfig | Act::RenewKubeconfig => {
            panic!("the control plane makes the kubeconfig: {seen:?}")
        }
    };
    assert!(!seen.head.is_paused || act == Write::None, "paused: {seen:?}");
    let latch = first.status.as_ref().and_then(|status| status.initialization.clone()).unwrap_or_default();
    let has_status = first.status.is_some();
    if let Some(status) = first.status {
        let mut cluster = (*world.cluster).clone();
        cluster.status = Some(*status);
        world.cluster = std::sync::Arc::new(cluster);
        assert_eq!(plan(&world, now()).status, None, "a status is written once: {seen:?}");
    }
    let decision = Decision {
        act,
        has_status,
        is_provisioned: latch.infrastructure_provisioned == Some(true),
        is_initialized: latch.control_plane_initialized == Some(true),
    };
    decisions.insert(*seen, decision);
    decision
}

impl World {
    /// Returns the world after the act. A kill may follow.
    fn after_act(mut self, act: Write) -> Self {
        let is_current = self.seen.head == self.actual.head;
        let actual = &mut self.actual;
        let delete = |life: &mut Life| {
            if *life == Live {
                *life = Deleting;
            }
        };
        match act {
            Write::None => {}
            Write::AddFinalizer if is_current => actual.head.has_finalizer = true,
            Write::SetEndpoint(port) if is_current => {
                assert_eq!(actual.head.endpoint, 0, "an endpoint never changes");
                actual.head.endpoint = port;
            }
            Write::RemoveFinalizer if is_current && actual.is_childless() => {
                actual.head.has_finalizer = false;
                actual.head.life = Gone;
            }
            Write::AddFinalizer | Write::SetEndpoint(_) | Write::RemoveFinalizer => {}
            Write::Adopt(component) => {
                let is_current = self.seen.component(component) == actual.component(component);
                if is_current {
                    actual.component_mut(component).is_owned = true;
                }
            }
            Write::Delete(ChildKind::MachineDeployment, _) => delete(&mut actual.deployment),
            Write::Delete(ChildKind::MachineSet, _) => delete(&mut actual.set),
            Write::Delete(ChildKind::Machine, false) => delete(&mut actual.worker),
            Write::Delete(ChildKind::Machine, true) => delete(&mut actual.master),
            Write::DeleteComponent(component) => {
                let workers = [self.seen.deployment, self.seen.set, self.seen.worker];
                assert!(workers.iter().all(|life| *life == Gone), "workers first: {:?}", self.seen);
                delete(&mut actual.component_mut(component).life);
            }
        }
        self
    }

    /// Returns the world after the status.
    fn after_status(mut self, decision: Decision) -> Self {
        if decision.has_status && self.seen.head == self.actual.head && self.actual.head.life != Gone {
            let head = &mut self.actual.head;
            if !head.is_paused {
                assert!(decision.is_provisioned || !head.is_provisioned, "latch: {:?}", self.seen);
                assert!(decision.is_initialized || !head.is_initialized, "latch: {:?}", self.seen);
                head.is_provisioned = decision.is_provisioned;
                head.is_initialized = decision.is_initialized;
            }
        }
        self
    }

    /// Returns the worlds after one watch has shown its object.
    fn shown(self) -> [Self; 6] {
        let mut worlds = [self; 6];
        let actual = self.actual;
        worlds[0].seen.head = actual.head;
        worlds[1].seen.infrastructure = actual.infrastructure;
        worlds[2].seen.control_plane = actual.control_plane;
        worlds[3].seen.deployment = actual.deployment;
        worlds[4].seen.set = actual.set;
        (worlds[5].seen.worker, worlds[5].seen.master) = (actual.worker, actual.master);
        worlds
    }

    /// Returns the moves of other programs and users. `is_ending`: a user deletes the Cluster.
    fn moved(self, is_ending: bool) -> Vec<Self> {
        let mut worlds = Vec::new();
        let mut add = |change: &dyn Fn(&mut Objects)| {
            let mut world = self;
            change(&mut world.actual);
            worlds.push(world);
        };
        let actual = self.actual;
        if actual.head.is_paused {
            add(&|to| to.head.is_paused = false);
        }
        if is_ending && actual.head.life == Live {
            add(&|to| to.head.life = if actual.head.has_finalizer { Deleting } else { Gone });
        }
        for (component, port) in [(Component::Infrastructure, 1), (Component::ControlPlane, 2)] {
            let named = actual.component(component);
            match named.life {
                Gone if actual.head.life == Live && !is_ending => {
                    add(&|to| *to.component_mut(component) = Named { life: Live, is_owned: false, done: 0 });
                }
                // K3: a provider waits for the owner.
                Live if named.is_owned && named.done == 0 => {
                    add(&|to| to.component_mut(component).done = port);
                }
                Live if named.done == 1 => add(&|to| to.component_mut(component).done = 3),
                // A user deletes the infrastructure of a live Cluster, and makes it again.
                Live if named.done == 3 && !is_ending => {
                    add(&|to| to.component_mut(component).life = Deleting);
                }
                Deleting => {
                    add(&|to| *to.component_mut(component) = Named { life: Gone, is_owned: false, done: 0 });
                }
                Gone | Live => {}
            }
        }
        if actual.deployment == Deleting && actual.set == Gone {
            add(&|to| to.deployment = Gone);
        }
        if actual.deployment == Deleting && actual.set == Live {
            add(&|to| to.set = Deleting);
        }
        if actual.set == Deleting && actual.worker == Gone {
            add(&|to| to.set = Gone);
        }
        if actual.set == Deleting && actual.worker == Live || actual.worker == Deleting {
            add(&|to| to.worker = if actual.worker == Live { Deleting } else { Gone });
        }
        if actual.set == Live && actual.worker == Gone {
            add(&|to| to.worker = Live);
        }
        if actual.control_plane.life == Deleting && actual.master == Live || actual.master == Deleting {
            add(&|to| to.master = if actual.master == Live { Deleting } else { Gone });
        }
        worlds
    }
}

impl Objects {
    fn component(&self, component: Component) -> Named {
        match component {
            Component::Infrastructure => self.infrastructure,
            Component::ControlPlane => self.control_plane,
        }
    }

    fn component_mut(&mut self, component: Component) -> &mut Named {
        match component {
            Component::Infrastructure => &mut self.infrastructure,
            Component::ControlPlane => &mut self.control_plane,
        }
    }

    /// Returns true if no child is left. The pass reads that before it removes the finalizer.
    fn is_childless(&self) -> bool {
        [self.deployment, self.set, self.worker, self.master].into_iter().all(|life| life == Gone)
    }

    /// Returns true if nothing is left that the Cluster has adopted.
    fn is_empty(&self) -> bool {
        let is_left = |named: Named| named.life != Gone && named.is_owned;
        self.is_childless() && !is_left(self.infrastructure) && !is_left(self.control_plane)
    }

    fn is_reached(&self) -> bool {
        match self.head.life {
            Gone => true,
            Deleting => false,
            Live => {
                let head = self.head;
                let is_adopted = self.infrastructure.is_owned && self.control_plane.is_owned;
                is_adopted && head.is_provisioned && head.is_initialized && head.endpoint > 0
            }
        }
    }
}

/// Explores every history from the worlds, and a fair one to the goal from each world. Returns the number of worlds.
fn explore(starts: Vec<Objects>, is_ending: bool) -> usize {
    let mut decisions = Decisions::new();
    let mut open: Vec<World> = starts.into_iter().map(|actual| World { actual, seen: actual }).collect();
    let mut known: HashSet<World> = open.iter().copied().collect();
    let mut good: HashSet<World> = HashSet::new();
    while let Some(world) = open.pop() {
        if world.actual.head.life == Gone {
            continue;
        }
        let decision = decide(&mut decisions, &world.seen);
        let acted = world.after_act(decision.act);
        check(&world, &acted);
        let mut next = vec![acted, acted.after_status(decision)];
        next.extend(world.shown());
        next.extend(world.moved(is_ending));
        open.extend(next.into_iter().filter(|world| known.insert(*world)));
        assert!(known.len() < MAX_WORLDS, "too many worlds");
        reach(world, &mut decisions, &mut good);
    }
    known.len()
}

fn check(before: &World, after: &World) {
    let (old, new) = (before.actual, after.actual);
    let removed = old.head.has_finalizer && !new.head.has_finalizer;
    assert!(!removed || new.is_empty(), "the finalizer stays until nothing is left: {before:?}");
    assert!(old.head.endpoint == 0 || old.head.endpoint == new.head.endpoint, "{before:?}");
}

/// Runs a fair history: every watch shows its object, the process acts, every other program moves.
fn reach(world: World, decisions: &mut Decisions, good: &mut HashSet<World>) {
    let mut path = Vec::new();
    let mut world = world;
    while !good.contains(&world) && !world.actual.is_reached() {
        assert!(path.len() < 40, "the goal is not reached: {:?}", path.first());
        path.push(world);
        world.seen = world.actual;
        let decision = decide(decisions, &world.seen);
        world = world.after_act(decision.act).after_status(decision);
        // A set that makes Machines and the deletion of the set are one order here: the first move of each round.
        if let Some(moved) = world.moved(false).into_iter().find(|moved| is_progress(&world, moved)) {
            world = moved;
        }
    }
    good.extend(path);
}

/// Returns true if a move is not one that may be repeated for ever.
fn is_progress(before: &World, after: &World) -> bool {
    let is_made = before.actual.worker == Gone && after.actual.worker == Live;
    let (old, new) = (before.actual.infrastructure, after.actual.infrastructure);
    let is_changed = old.done == 1 && new.done == 3 || old.life == Live && new.life == Deleting;
    !is_made && !is_changed
}

fn named(life: Life, is_owned: bool, done: u8) -> Named {
    Named { life, is_owned, done }
}

#[test]
fn k4_every_history_of_a_live_cluster_reaches_the_goal() {
    let mut starts = Vec::new();
    for is_paused in [false, true] {
        for endpoint in [0, 9] {
            let head = Head {
                life: Live,
                has_finalizer: false,
                is_paused,
                endpoint,
                is_provisioned: false,
                is_initialized: false,
            };
            let absent = named(Gone, false, 0);
            starts.push(Objects {
                head,
                infrastructure: absent,
                control_plane: absent,
                deployment: Gone,
                set: Gone,
                worker: Gone,
                master: Gone,
            });
        }
    }
    let worlds = explore(starts, false);
    assert!(worlds > 1000, "{worlds}");
}

#[test]
fn k5_every_history_of_a_deletion_leaves_nothing() {
    let mut starts = Vec::new();
    let components = [named(Gone, false, 0), named(Live, false, 0), named(Live, true, 3)];
    for infrastructure in components {
        for control_plane in components {
            for (deployment, set, worker, master) in [
                (Gone, Gone, Gone, Gone),
                (Live, Live, Live, Live),
                (Gone, Live, Gone, Live),
                (Gone, Gone, Live, Live),
            ] {
                let head = Head {
                    life: Deleting,
                    has_finalizer: true,
                    is_paused: false,
                    endpoint: 1,
                    is_provisioned: true,
                    is_initialized: true,
                };
                starts.push(Objects { head, infrastructure, control_plane, deployment, set, worker, master });
            }
        }
    }
    let worlds = explore(starts, true);
    assert!(worlds > 1000, "{worlds}");
}

#[test]
fn k5_cluster_deleted_at_any_time_of_its_start_leaves_nothing() {
    let head = Head {
        life: Live,
        has_finalizer: false,
        is_paused: false,
        endpoint: 0,
        is_provisioned: false,
        is_initialized: false,
    };
    let free = named(Live, false, 0);
    let start = Objects {
        head,
        infrastructure: free,
        control_plane: free,
        deployment: Gone,
        set: Gone,
        worker: Gone,
        master: Gone,
    };
    let worlds = explore(vec![start], true);
    assert!(worlds > 1000, "{worlds}");
}
