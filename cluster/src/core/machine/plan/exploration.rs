//! Exhaustive exploration: every order of writes, kills, stale reads and events of the other programs over small states.
//!
//! A state is the Machine, its objects and the Node. From each state the plan is carried out with the present objects and with stale ones of
//! the state before. Only a part of a plan is written each time, as by a controller that is killed. A write on an object that has changed since
//! is refused, as by the API server.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::machine::MachinePhase;
use serde_json::json;

use super::*;
use crate::core::machine::fixture::{ID, apply, node, observed, referenced, write};
use crate::core::machine::node::{Connection, NodeView};
use crate::core::machine::references::{Ownership, ownership};

/// Upper bound of the states. An endless exploration is a fault of the planner.
const MAX_STATES: usize = 20_000;

/// State of the cluster: what the controller sees, and the Node that may not be connected.
#[derive(Debug, Clone)]
struct World {
    seen: Observed,
    node: NodeView,
    is_connected: bool,
}

impl World {
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let seen = &self.seen;
        serde_json::to_vec(&*seen.machine).unwrap().hash(&mut hasher);
        for object in [&seen.bootstrap, &seen.infrastructure].into_iter().filter_map(Lookup::found) {
            let (contract, owners) = (&object.contract, object.metadata.owner_references.as_ref());
            (owners.map(Vec::len), contract.provisioned, contract.data_secret_created).hash(&mut hasher);
            contract.provider_id.hash(&mut hasher);
        }
        if let NodeView::Found(node) = &self.node {
            serde_json::to_vec(&**node).unwrap().hash(&mut hasher);
        }
        (self.is_connected, seen.data_secret == DataSecret::Absent).hash(&mut hasher);
        hasher.finish()
    }

    /// Puts the Node into the view, as the watch of Nodes shows it.
    fn refreshed(mut self) -> Self {
        let is_own = |node: &k8s_openapi::api::core::v1::Node| {
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
            self.seen.provider_id().is_some() && id == self.seen.provider_id()
        };
        let view = match &self.node {
            NodeView::Found(node) if is_own(node) => self.node.clone(),
            _ => NodeView::Absent,
        };
        self.seen.workload.node = if self.is_connected { view } else { NodeView::Unknown };
        self
    }

    fn infrastructure(&mut self) -> Option<&mut Referenced> {
        match &mut self.seen.infrastructure {
            Lookup::Found(object) => Some(Arc::make_mut(object)),
            Lookup::Absent | Lookup::NotSynced | Lookup::Unresolved(_) => None,
        }
    }
}

/// Event of another program.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The Secret of the bootstrap object exists.
    Created,
    /// The infrastructure is provisioned and has this ID.
    Provisioned(&'static str),
    /// The infrastructure is not provisioned any more.
    Unprovisioned,
    /// The Node with this name and ID is there, and no other.
    Joined(&'static str, &'static str),
    /// The Node is deleted.
    NodeDeleted,
    /// The connection to the workload cluster is lost or regained.
    Reconnected,
}

/// Events of a life without faults.
const REGULAR: [Event; 3] = [Event::Created, Event::Provisioned(ID), Event::Joined("n", ID)];
/// Events with an infrastructure provider that contradicts itself.
const CONTRADICTORY: [Event; 4] = [
    Event::Provisioned(ID),
    Event::Provisioned("other"),
    Event::Unprovisioned,
    Event::Joined("second", "other"),
];
/// Events with a workload cluster that loses its Node and its connection.
const LOSSY: [Event; 4] =
    [Event::Provisioned(ID), Event::Joined("n", ID), Event::NodeDeleted, Event::Reconnected];

fn after(world: &World, event: Event) -> World {
    let mut world = world.clone();
    match event {
        Event::Created => {
            if let Lookup::Found(object) = &mut world.seen.bootstrap {
                Arc::make_mut(object).contract.data_secret_created = Some(true);
            }
        }
        Event::Provisioned(id) => {
            if let Some(object) = world.infrastructure() {
                (object.contract.provisioned, object.contract.provider_id) =
                    (Some(true), Some(id.to_owned()));
            }
        }
        Event::Unprovisioned => {
            if let Some(object) = world.infrastructure() {
                object.contract.provisioned = Some(false);
            }
        }
        Event::Joined(name, id) => {
            world.node = node(&json!({ "metadata": { "name": name }, "spec": { "providerID": id } }));
        }
        Event::NodeDeleted => world.node = NodeView::Absent,
        Event::Reconnected => world.is_connected = !world.is_connected,
    }
    world.refreshed()
}

/// States after a plan that was decided with `view`. Each part of the plan may be the only one that is written.
fn written(world: &World, view: &Observed) -> Vec<World> {
    let next = plan(view);
    let mut worlds = Vec::new();
    let is_current = |act: &Act| match act {
        Act::SetMetadata(_) | Act::SetSpec(_) => view.machine == world.seen.machine,
        Act::Adopt(adoption) => adoption.part.lookup(view) == adoption.part.lookup(&world.seen),
        Act::WriteDataSecret(_) => view.data_secret == world.seen.data_secret,
        Act::SyncNode(_) => view.workload.node == world.node && world.is_connected,
    };
    if let Some(act) = next.act.filter(is_current) {
        if let Act::Adopt(adoption) = &act {
            let object = adoption.part.lookup(view).found().unwrap();
            let ownership = ownership(&view.machine, view.cluster.as_deref(), object);
            assert!(!matches!(ownership, Ownership::Foreign(_)), "foreign object is adopted");
        }
        let mut changed = world.clone();
        changed.seen.workload.node = changed.node.clone();
        write(&mut changed.seen, &act);
        changed.node = changed.seen.workload.node.clone();
        worlds.push(changed.refreshed());
    }
    if let Some(status) = next.status.filter(|_| view.machine == world.seen.machine) {
        let mut changed = world.clone();
        Arc::make_mut(&mut changed.seen.machine).status = Some(*status);
        worlds.push(changed.refreshed());
    }
    worlds
}

/// Views of a state in which one store is that of the state before.
fn stale(before: &World, world: &World) -> [Observed; 4] {
    let (old, new) = (&before.seen, &world.seen);
    [
        Observed { machine: old.machine.clone(), ..new.clone() },
        Observed { bootstrap: old.bootstrap.clone(), ..new.clone() },
        Observed { infrastructure: old.infrastructure.clone(), ..new.clone() },
        Observed { workload: old.workload.clone(), ..new.clone() },
    ]
}

/// Checks that a step took nothing back.
fn check(before: &World, after: &World) {
    let (old, new) = (&before.seen.machine, &after.seen.machine);
    if let Some(id) = &old.spec.provider_id {
        assert_eq!(new.spec.provider_id.as_ref(), Some(id), "providerID has changed");
    }
    if let Some(name) = &old.spec.bootstrap.data_secret_name {
        assert_eq!(new.spec.bootstrap.data_secret_name.as_ref(), Some(name), "dataSecretName has changed");
    }
    let (old, new) = (old.status.clone().unwrap_or_default(), new.status.clone().unwrap_or_default());
    let (first, second) = (old.initialization.unwrap_or_default(), new.initialization.unwrap_or_default());
    assert!(first.infrastructure_provisioned <= second.infrastructure_provisioned, "latch went back");
    assert!(first.bootstrap_data_secret_created <= second.bootstrap_data_secret_created, "latch went back");
    if old.node_ref.is_some() {
        assert_eq!(old.node_ref, new.node_ref, "nodeRef has changed");
    } else if let Some(node) = &new.node_ref {
        let expected =
            if after.seen.machine.spec.provider_id.as_deref() == Some(ID) { "n" } else { "second" };
        assert_eq!(node.name, expected, "nodeRef names a Node with another providerID");
    }
}

/// Checks that the goal is reached once all other programs have done their part. `good` has the states from which it was reached.
fn check_goal(world: &World, is_foreign: bool, good: &mut BTreeSet<u64>) {
    let mut world = world.clone();
    let id = world.seen.machine.spec.provider_id.clone().unwrap_or_else(|| ID.to_owned());
    if let Some(object) = world.infrastructure() {
        (object.contract.provisioned, object.contract.provider_id) = (Some(true), Some(id.clone()));
    }
    world.node = node(&json!({ "spec": { "providerID": id } }));
    world.is_connected = true;
    world = after(&world, Event::Created);
    let mut path = Vec::new();
    loop {
        path.push(world.key());
        assert!(path.len() < 20, "plans do not end");
        if good.contains(&world.key()) {
            break;
        }
        let next = plan(&world.seen);
        if next.is_settled() {
            let machine = &world.seen.machine;
            let phase = machine.status.as_ref().unwrap().phase;
            let expected = if is_foreign {
                (None, Some(MachinePhase::Provisioning))
            } else {
                (Some(&id), Some(MachinePhase::Running))
            };
            assert_eq!((machine.spec.provider_id.as_ref(), phase), expected);
            break;
        }
        apply(&mut world.seen, &next);
        if let NodeView::Found(_) = &world.seen.workload.node {
            world.node = world.seen.workload.node.clone();
        }
        world = world.refreshed();
    }
    good.extend(path);
}

fn explore(start: Observed, events: &[Event], is_foreign: bool) -> usize {
    let start = World { seen: start, node: NodeView::Absent, is_connected: true }.refreshed();
    let (mut known, mut good) = (BTreeSet::from([start.key()]), BTreeSet::new());
    let mut open = vec![(start.clone(), start)];
    while let Some((before, world)) = open.pop() {
        check_goal(&world, is_foreign, &mut good);
        let mut next: Vec<World> = events.iter().map(|event| after(&world, *event)).collect();
        next.extend(written(&world, &world.seen));
        for view in stale(&before, &world) {
            next.extend(written(&world, &view));
        }
        for after in next {
            check(&world, &after);
            if known.insert(after.key()) {
                assert!(known.len() < MAX_STATES, "endless");
                open.push((world.clone(), after));
            }
        }
    }
    known.len()
}

/// The Machine with objects that other programs have not finished.
fn start(bootstrap: &serde_json::Value) -> Observed {
    let mut seen = observed(&json!({ "spec": { "bootstrap": bootstrap } }));
    if let Lookup::Found(object) = &mut seen.bootstrap {
        Arc::make_mut(object).contract.data_secret_created = None;
    }
    if let Lookup::Found(object) = &mut seen.infrastructure {
        let contract = &mut Arc::make_mut(object).contract;
        (contract.provisioned, contract.provider_id) = (None, None);
    }
    seen.workload.connection = Connection { last_success: Some(seen.now), is_lost: false };
    seen
}

/// Bootstrap data that needs no object and no Secret.
fn empty_data() -> serde_json::Value {
    json!({ "configRef": null, "data": "" })
}

#[test]
fn m4_m5_m7_m8_every_order_of_steps_reaches_the_goal() {
    for bootstrap in [json!({}), json!({ "configRef": null, "data": "x" }), empty_data()] {
        let states = explore(start(&bootstrap), &REGULAR, false);
        assert!(states > 50, "{states}");
    }
}

#[test]
fn m7_provider_that_contradicts_itself_takes_nothing_back() {
    let states = explore(start(&empty_data()), &CONTRADICTORY, false);
    assert!(states > 50, "{states}");
}

#[test]
fn m8_lost_node_and_connection_take_nothing_back() {
    let states = explore(start(&empty_data()), &LOSSY, false);
    assert!(states > 50, "{states}");
}

#[test]
fn m5_object_of_another_machine_is_not_adopted_in_any_order() {
    let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "other", "uid": "u-other",
        "controller": true });
    let mut seen = start(&empty_data());
    seen.infrastructure = referenced("i", &json!({ "metadata": { "ownerReferences": [owner] } }));
    let states = explore(seen, &REGULAR, true);
    assert!(states > 10, "{states}");
}
