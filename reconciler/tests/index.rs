//! Compares the index, updated one object at a time through random histories, with results computed from all
//! objects.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::configuration::{MachineConfiguration, MachineCounts};
use bedplate_api::machine::Machine;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::Facts;
use bedplate_engine::later::Later;
use bedplate_engine::store::Seen;
use bedplate_process::lease::Tenure;
use bedplate_reconciler::cache::index::Index;
use bedplate_reconciler::configuration::{self, plan};
use bedplate_reconciler::enqueue::{Queue, Queues};
use bedplate_reconciler::metrics::{Counters, Kind};
use bedplate_reconciler::rollout::{Clocks, NodeFacts, Wait};
use bedplate_rules::claim::is_claimed;
use bedplate_rules::selection::{Again, Choice, References, Write, choose, plan_versions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::ObjectRef;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

const CONFIGURATIONS: u32 = 3;
const MACHINES: u32 = 6;
const CLOCKS: Clocks<'_> = Clocks { silent: &|_| false, wait: &|_| Wait::default() };

/// Returns the Node `name` with this `providerID` and readiness.
fn node(name: &str, provider_id: &str, ready: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "uid": "1" },
        "spec": { "providerID": provider_id }, "status": { "conditions": [{ "type": "Ready", "status": ready }] } })
}

/// All objects, as the cluster has them.
#[derive(Default)]
struct All {
    configurations: BTreeMap<String, MachineConfiguration>,
    versions: BTreeMap<String, MachineConfigurationVersion>,
    machines: BTreeMap<String, Machine>,
    nodes: BTreeMap<String, Arc<Node>>,
}

impl All {
    /// Returns true if a Machine has a Ready Node. The reports of its agent do not count.
    fn is_available(&self, machine: &str) -> bool {
        let node = self.nodes.get(machine).map(|node| serde_json::to_value(&**node).unwrap());
        node.is_some_and(|node| {
            let is_its_own = node["spec"]["providerID"] == format!("bedplate://{machine}");
            is_its_own && node["status"]["conditions"][0]["status"] == "True"
        })
    }
}

/// The simple computation: every Machine, every version, each time.
struct Oracle<'a> {
    configurations: Vec<&'a MachineConfiguration>,
    versions: Vec<&'a MachineConfigurationVersion>,
    machines: Vec<&'a Machine>,
    all: &'a All,
}

impl<'a> Oracle<'a> {
    fn of(all: &'a All) -> Self {
        let mut versions: Vec<_> = all.versions.values().collect();
        versions.sort_by_key(|version| version.spec.version);
        Self {
            configurations: all.configurations.values().collect(),
            versions,
            machines: all.machines.values().collect(),
            all,
        }
    }

    fn references(&self) -> References {
        References::of(self.machines.iter().copied())
    }

    fn counts(&self, name: &str, made: Option<&MachineConfigurationVersion>) -> MachineCounts {
        let versions: Vec<_> = self.versions.iter().copied().chain(made).collect();
        let mut counts = MachineCounts::default();
        for machine in &self.machines {
            let Some(status) = &machine.status else { continue };
            if status.selected.as_ref().is_some_and(|selected| selected.name == name) {
                counts.selected += 1;
                let name = machine.metadata.name.as_deref().unwrap_or_default();
                // The Node of a claimed host is in another cluster.
                counts.unavailable += i32::from(!is_claimed(machine) && !self.all.is_available(name));
            }
            let Some(applied) = status.applied.as_ref().filter(|applied| applied.name == name) else {
                continue;
            };
            counts.applied += 1;
            let next = choose(machine, Some(Again::NodeGone), &self.configurations, &versions);
            if let Choice::Select(next) = next {
                let next = next.selected;
                counts.outdated +=
                    i32::from((next.name, next.version) != (applied.name.clone(), applied.version));
            }
        }
        counts
    }
}

/// A cluster, its index, and the configurations that each change was reported to concern.
struct World {
    all: All,
    index: Index,
    facts: Facts<Node, NodeFacts>,
    random: StdRng,
    /// Counts of each configuration at its last reconcile.
    counted: BTreeMap<String, MachineCounts>,
    touched: BTreeSet<String>,
}

fn object<K: DeserializeOwned>(kind: &str, metadata: &Value, spec: &Value, status: &Value) -> K {
    let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec,
        "status": status });
    serde_json::from_value(object).unwrap()
}

fn template(content: u32) -> Value {
    json!({ "image": { "reference": "registry.example/node:1", "allowTag": true },
        "kubernetes": { "version": "v1.34.0" }, "sysctls": { "kernel.panic": content.to_string() } })
}

impl World {
    fn new(seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let (all, index, facts, counted, touched) = Default::default();
        Self { all, index, facts, random, counted, touched }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn some_configuration(&mut self) -> String {
        format!("c{}", self.random.random_range(0..CONFIGURATIONS))
    }

    fn some_version(&mut self) -> Value {
        let number = self.random.random_range(1..4_u32);
        json!({ "name": self.some_configuration(), "version": number })
    }

    /// Adds, changes or deletes one object.
    fn step(&mut self) {
        match self.random.random_range(0..12) {
            0 => self.configuration(),
            1..4 => self.version(),
            4..6 => self.node(),
            _ => self.machine(),
        }
    }

    fn configuration(&mut self) {
        let name = self.some_configuration();
        let after = (!self.chance(4)).then(|| {
            let content = self.random.random_range(0..3);
            let rack = self.random.random_range(0..2_u32).to_string();
            let selector = json!({ "matchLabels": { "rack": rack } });
            let selector = if self.chance(2) { selector } else { Value::Null };
            let spec = json!({ "template": template(content), "machineSelector": selector });
            let metadata =
                json!({ "name": name, "uid": format!("uid-{name}"), "finalizers": ["bedplate.dev/in-use"] });
            object::<MachineConfiguration>("MachineConfiguration", &metadata, &spec, &Value::Null)
        });
        self.index.configuration(&name, after.clone().map(Arc::new));
        self.depends(&name);
        put(&mut self.all.configurations, name, after);
    }

    fn version(&mut self) {
        let of = self.some_configuration();
        let number = self.random.random_range(1..4_u32);
        let name = format!("{of}-v{number}");
        let after = (!self.chance(4)).then(|| {
            let owner = if self.chance(6) { "other".to_owned() } else { format!("uid-{of}") };
            let owner = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "name": of,
                "uid": owner, "controller": true }]);
            let mut metadata = json!({ "name": name, "uid": name, "ownerReferences": owner });
            if self.chance(5) {
                metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            let content = self.random.random_range(0..3);
            let spec = json!({ "configurationName": of, "version": number, "template": template(content) });
            let status = json!({ "deployed": self.chance(2), "machines": self.random.random_range(0..3_u32) });
            object::<MachineConfigurationVersion>("MachineConfigurationVersion", &metadata, &spec, &status)
        });
        self.index.version(&of, &name, after.clone().map(Arc::new));
        self.depends(&of);
        put(&mut self.all.versions, name, after);
    }

    fn machine(&mut self) {
        let name = format!("m{}", self.random.random_range(0..MACHINES));
        let after = (!self.chance(8)).then(|| self.some_machine(&name));
        let touched = self.index.machine(&name, after.clone().map(Arc::new));
        self.touched.extend(touched);
        put(&mut self.all.machines, name, after);
    }

    fn node(&mut self) {
        let name = format!("m{}", self.random.random_range(0..MACHINES));
        let own = format!("bedplate://{name}");
        let states = [(own.as_str(), "True"), (&own, "False"), (&own, "Unknown"), ("other://x", "True")];
        let after = (!self.chance(5)).then(|| {
            let (provider_id, ready) = states[self.random.random_range(0..states.len())];
            Arc::new(serde_json::from_value::<Node>(node(&name, provider_id, ready)).unwrap())
        });
        // As `trigger::Queues::dependents_of_node` has it.
        let gone = self.all.nodes.get(&name).cloned().map(Seen::Gone);
        let event = after.clone().map(Seen::There).or(gone);
        if event.is_some_and(|event| self.facts.changes(&event, NodeFacts::of)) {
            let status = self.all.machines.get(&name).and_then(|machine| machine.status.as_ref());
            self.touched.extend(status.and_then(|status| Some(status.selected.as_ref()?.name.clone())));
        }
        put(&mut self.all.nodes, name, after);
    }

    fn some_machine(&mut self, name: &str) -> Machine {
        let mut metadata =
            json!({ "name": name, "labels": { "rack": self.random.random_range(0..2_u32).to_string() } });
        if self.chance(6) {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let mut spec = json!({ "provider": "manual", "paused": self.chance(6) });
        if self.chance(2) {
            spec["configurationRef"] = self.some_version();
            if self.chance(2) {
                spec["configurationRef"].as_object_mut().unwrap().remove("version");
            }
        }
        let is_pooled = self.chance(5);
        if is_pooled {
            spec.as_object_mut().unwrap().remove("configurationRef");
            spec["claimPolicy"] = json!({ "namespaces": ["team-a"] });
        }
        let is = |kind: &str, status: bool| {
            json!({ "type": kind, "status": if status { "True" } else { "False" }, "reason": "Done", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let mut status =
            json!({ "conditions": [is("Enrolled", !self.chance(4)), is("NodeReady", self.chance(2))] });
        if !self.chance(4) {
            status["selected"] = self.some_version();
            status["selected"]["source"] =
                json!(if is_pooled && !self.chance(3) { "Claim" } else { "Selector" });
        }
        if !self.chance(3) {
            status["applied"] = self.some_version();
            status["applied"]["slot"] = json!("a");
            status["nodeRef"] = json!({ "name": name, "uid": "1" });
        }
        object("Machine", &metadata, &spec, &status)
    }

    /// Enqueues like `trigger::Queues::dependents_of`, except the configuration itself.
    fn depends(&mut self, configuration: &str) {
        self.touched.insert(configuration.to_owned());
        self.touched.extend(self.index.related_configurations(configuration));
    }

    fn check(&mut self, seed: u64) {
        let oracle = Oracle::of(&self.all);
        assert_eq!(*self.index.references(), oracle.references(), "seed {seed}");
        let nodes = |name: &str| self.all.nodes.get(name).cloned();
        for (name, configuration) in &self.all.configurations {
            let planned = plan(configuration, &self.index, (&nodes, CLOCKS), Timestamp::UNIX_EPOCH);
            let versions = plan_versions(configuration, &oracle.versions, &oracle.references());
            assert_eq!(planned.versions, versions, "seed {seed}: {name}");
            let made = match &versions.write {
                Some(Write::Create(object)) => Some(&**object),
                Some(Write::Copy(_)) | None => None,
            };
            let counts = oracle.counts(name, made);
            assert_eq!(planned.reckoned.counts, counts, "seed {seed}: {name}");
            if let Some(without) = &planned.without {
                assert_eq!(without.counts, oracle.counts(name, None), "seed {seed}: {name}");
            }
            for (version, counted) in &planned.counted {
                let machines = oracle.references().machines(name, *version);
                assert_eq!(usize::try_from(*counted).unwrap(), machines, "seed {seed}: {name}");
            }
            let before = self.counted.insert(name.clone(), counts.clone());
            let reported = before.as_ref() == Some(&counts) || self.touched.contains(name);
            assert!(
                reported,
                "seed {seed}: the counts of {name} changed without a report: {before:?} {counts:?}"
            );
        }
        for machine in self.all.machines.values() {
            let known = self.index.known(machine, None);
            let (configurations, versions) = known.slices();
            for again in [None, Some(Again::NodeGone), Some(Again::PersonChangedReference)] {
                let expected = choose(machine, again, &oracle.configurations, &oracle.versions);
                assert_eq!(choose(machine, again, &configurations, &versions), expected, "seed {seed}");
            }
        }
        self.counted.retain(|name, _| self.all.configurations.contains_key(name));
        self.touched.clear();
    }
}

fn put<K>(map: &mut BTreeMap<String, K>, name: String, after: Option<K>) {
    match after {
        Some(after) => map.insert(name, after),
        None => map.remove(&name),
    };
}

#[test]
fn index_equals_a_full_computation_in_any_history() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
            world.check(seed);
        }
    }
}

/// Queues that no worker empties, except that of configurations to reconcile later.
fn queues() -> (Queues, Receiver<ObjectRef<MachineConfiguration>>) {
    let counters = Counters::default();
    let (later, touched) = Later::channel();
    let queues = Queues {
        configurations: Queue::new(Kind::Configuration, &counters).0,
        versions: Queue::new(Kind::Version, &counters).0,
        machines: Queue::new(Kind::Machine, &counters).0,
        requests: Queue::new(Kind::Request, &counters).0,
        operations: Queue::new(Kind::Operation, &counters).0,
        images: Queue::new(Kind::Image, &counters).0,
        rollouts: Queue::new(Kind::Rollout, &counters).0,
        departures: Queue::new(Kind::Deletion, &counters).0,
        later,
    };
    (queues, touched)
}

#[tokio::test]
async fn c4_node_counts_whatever_its_agent_reports_and_again_when_it_changes() {
    const STATUS: &str = "PATCH /machineconfigurations/w/status";
    let (queues, mut touched) = queues();
    let mut facts = Facts::default();
    let is = |type_: &str| json!({ "type": type_, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let machine = server::machine(&json!({ "conditions": [is("Enrolled"), is("NodeReady")],
        "selected": { "name": "w", "version": 1, "source": "Reference" },
        "applied": { "name": "w", "version": 1, "slot": "a", "nodeUID": "1" }, "nodeRef": { "name": "a", "uid": "1" } }));
    for (ready, unavailable, is_other) in
        [("True", 0, true), ("Unknown", 1, true), ("False", 1, false), ("True", 0, true)]
    {
        let node = node("a", "bedplate://a", ready);
        let configuration = server::configuration(1, &json!({}));
        let objects = server::Objects {
            configurations: vec![configuration.clone()],
            versions: vec![server::version(1, &json!({}))],
            machines: vec![machine.clone()],
            nodes: vec![node.clone()],
            ..server::Objects::default()
        };
        let server = server::Server::default();
        let world = server.world(&objects, Tenure::always(), |asked| match asked.line.contains("versions") {
            true => (200, server::version(1, &json!({}))),
            false => (200, server::configuration(1, &json!({}))),
        });
        // As `follow` does for each change of a Node.
        let given = Seen::There(Arc::new(serde_json::from_value::<Node>(node).unwrap()));
        assert_eq!(facts.changes(&given, NodeFacts::of), is_other, "{ready}");
        queues.dependents_of_node("a", &world.stores).await;
        assert_eq!(touched.try_recv().ok(), Some(ObjectRef::new("w")), "{ready}");
        let configuration = Arc::new(server::object(&configuration));
        configuration::reconcile(configuration, world).await.unwrap();
        let counts = server::body(&server.asked(), STATUS)["status"]["machines"].clone();
        assert_eq!(
            (&counts["selected"], &counts["unavailable"]),
            (&json!(1), &json!(unavailable)),
            "{ready}"
        );
    }
}
