//! Random histories of edits, pauses, cordons, faults and a controller whose plan is carried out only in part
//! (C4). The controller never makes more than `maxUnavailable` Machines unavailable, and never changes a
//! user's cordon. At the end every Machine is updated or has a reason.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_reconciler::cordon::{DRAIN_FAILED, DRAIN_STARTED, Failed, UpdateFailure};
use bedplate_reconciler::rollout::{Clocks, Purpose, Rollout, Step, Wait, judge, plan, settings, standing};
use k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;
use serde_json::{Value, json};

const CLOCKS: Clocks<'_> = Clocks { silent: &|_| false, wait: &|_| Wait::default() };
const CORDONED_BY: &str = "bedplate.dev/cordoned-by";
const NOW: &str = "2026-01-01T00:00:00Z";

/// Event of a history.
#[derive(Debug, Clone)]
enum Event {
    /// The controller reconciles and does this number of its steps before it is killed.
    Look(usize),
    /// The agent of a host does its next step.
    Agent(usize),
    /// The last Pod of a Node leaves.
    Emptied(usize),
    /// A drain times out.
    TimedOut(usize),
    /// A user cordons or uncordons a Node.
    Cordon(usize, bool),
    /// A Node gets or loses its Ready.
    Ready(usize, bool),
    /// A Machine is paused or unpaused.
    Paused(usize, bool),
    /// The template is edited.
    Edit,
    /// The strategy is changed.
    Strategy(bool),
}

#[derive(Debug, Clone, Default)]
struct Host {
    selected: i64,
    applied: i64,
    applied_uid: u32,
    prepared: Option<i64>,
    refused: Option<i64>,
    paused: bool,
    node_ref: bool,
    node: Option<Seen>,
}

/// A Node.
#[derive(Debug, Clone, Default)]
struct Seen {
    uid: u32,
    ready: bool,
    unschedulable: bool,
    by: Option<String>,
    failed: Option<String>,
}

#[derive(Debug, Clone)]
struct World {
    hosts: Vec<Host>,
    newest: i64,
    generation: i64,
    rolls: bool,
    max: usize,
    pause: bool,
    bad: bool,
    uids: u32,
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

impl World {
    fn new(count: usize, max: usize, pause: bool, bad: bool) -> Self {
        let host = |uid: u32| Host {
            selected: 1,
            applied: 1,
            applied_uid: uid,
            node_ref: true,
            node: Some(Seen { uid, ready: true, ..Seen::default() }),
            ..Host::default()
        };
        let uids = u32::try_from(count).unwrap();
        Self {
            hosts: (0..uids).map(host).collect(),
            newest: 1,
            generation: 1,
            rolls: true,
            max,
            pause,
            bad,
            uids,
        }
    }

    fn configuration(&self) -> MachineConfiguration {
        let rolling = json!({ "type": "RollingUpdate", "rollingUpdate":
            { "maxUnavailable": self.max, "drainTimeoutSeconds": 600, "pauseOnFailure": self.pause } });
        let strategy = if self.rolls { rolling } else { json!({}) };
        object(json!({ "metadata": { "name": "w", "uid": "u", "generation": self.generation },
            "spec": { "updateStrategy": strategy, "template": template() } }))
    }

    fn versions(&self) -> Vec<MachineConfigurationVersion> {
        let owner = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "name": "w", "uid": "u", "controller": true }]);
        let version = |number: i64| {
            object(json!({ "metadata": { "name": format!("w-v{number}"), "ownerReferences": owner },
                "spec": { "configurationName": "w", "version": number, "template": template() } }))
        };
        (1..=self.newest).map(version).collect()
    }

    fn machines(&self) -> Vec<Machine> {
        let machine = |(number, host): (usize, &Host)| {
            let mut slots = vec![
                json!({ "name": "a", "configurationName": "w", "version": host.applied, "state": "Running" }),
            ];
            slots.extend(host.prepared.map(|version| {
                json!({ "name": "b", "configurationName": "w", "version": version, "state": "Prepared" })
            }));
            let version = |version: i64| json!({ "name": "w", "version": version });
            let refused = host.refused.map(|from| {
                json!({ "from": version(from), "to": version(host.applied), "message": "bad", "time": NOW })
            });
            object(json!({ "metadata": { "name": number.to_string() },
                "spec": { "provider": "manual", "paused": host.paused, "configurationRef": { "name": "w" } },
                "status": { "selected": { "name": "w", "version": host.selected, "source": "Reference" }, "slots": slots,
                    "applied": { "name": "w", "version": host.applied, "slot": "a", "nodeUID": host.applied_uid.to_string() },
                    "agent": { "lastHeartbeatTime": NOW }, "rolledBack": refused } }))
        };
        self.hosts.iter().enumerate().map(machine).collect()
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        let seen = self.hosts[name.parse::<usize>().unwrap()].node.as_ref()?;
        let ready = if seen.ready { "True" } else { "False" };
        let mut annotations = BTreeMap::new();
        annotations.extend(seen.by.clone().map(|by| (CORDONED_BY, by)));
        annotations.extend(seen.by.clone().map(|_| (DRAIN_STARTED, NOW.to_owned())));
        annotations.extend(seen.failed.clone().map(|failed| (DRAIN_FAILED, failed)));
        Some(Arc::new(object(
            json!({ "metadata": { "name": name, "uid": seen.uid.to_string(), "annotations": annotations },
            "spec": { "providerID": format!("bedplate://{name}"), "unschedulable": seen.unschedulable },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] } }),
        )))
    }

    fn judged(&self) -> Rollout {
        let (machines, versions) = (self.machines(), self.versions());
        let nodes = |name: &str| self.node(name);
        let machines: Vec<_> = machines.iter().collect();
        let versions: Vec<_> = versions.iter().collect();
        judge(&self.configuration(), &machines, &nodes, &versions, CLOCKS)
    }

    fn steps(&self) -> Vec<Step> {
        plan(&self.judged(), settings(&self.configuration()).as_ref())
    }

    fn unavailable(&self) -> usize {
        self.judged().unavailable()
    }

    /// Applies a step like `rollout`.
    fn apply(&mut self, step: &Step) {
        let of = |machine: &String| machine.parse::<usize>().unwrap();
        match step {
            Step::Take { machine } => self.hosts[of(machine)].selected = self.newest,
            Step::Cordon { machine, version, .. } => {
                let node = self.hosts[of(machine)].node.as_mut().unwrap();
                assert!(!node.unschedulable, "a foreign cordon is not taken over");
                (node.unschedulable, node.failed) = (true, None);
                node.by = Some(Purpose::Rollout(version.clone()).text());
            }
            Step::Free { machine, failed, .. } => {
                let node = self.hosts[of(machine)].node.as_mut().unwrap();
                assert!(node.by.is_some(), "only what is ours is given free");
                (node.unschedulable, node.by) = (false, None);
                if let Some(failed) = failed {
                    node.failed = Some(serde_json::to_string(failed).unwrap());
                }
            }
            // Its Pods leave, or do not, by an event of its own.
            Step::Drain { .. } => {}
        }
    }

    fn happens(&mut self, event: &Event) {
        let count = self.hosts.len();
        match event {
            Event::Look(steps) => {
                for step in self.steps().iter().take(*steps) {
                    let before = self.unavailable();
                    self.apply(step);
                    if self.unavailable() > before {
                        assert!(self.unavailable() <= self.max, "{step:?} in {self:#?}");
                    }
                }
            }
            Event::Agent(host) => self.agent(host % count),
            Event::Emptied(host) => {
                let draining = self.draining(host % count);
                if draining {
                    self.hosts[host % count].node = None;
                }
            }
            Event::TimedOut(host) => {
                if self.draining(host % count) {
                    let version = format!("w-v{}", self.newest);
                    let failed = Failed {
                        version,
                        generation: self.generation,
                        reason: UpdateFailure::DrainTimedOut,
                        message: "late".to_owned(),
                    };
                    let node = self.hosts[host % count].node.as_mut().unwrap();
                    (node.unschedulable, node.by) = (false, None);
                    node.failed = Some(serde_json::to_string(&failed).unwrap());
                }
            }
            Event::Cordon(host, cordoned) => {
                if let Some(node) = &mut self.hosts[host % count].node {
                    node.unschedulable = *cordoned;
                }
            }
            Event::Ready(host, ready) => {
                if let Some(node) = &mut self.hosts[host % count].node {
                    node.ready = *ready;
                }
            }
            Event::Paused(host, paused) => self.hosts[host % count].paused = *paused,
            Event::Edit => (self.newest, self.generation) = (self.newest + 1, self.generation + 1),
            Event::Strategy(rolls) => (self.rolls, self.generation) = (*rolls, self.generation + 1),
        }
    }

    /// Returns true if the controller would check this Node's Pods now.
    fn draining(&self, host: usize) -> bool {
        self.steps()
            .iter()
            .any(|step| matches!(step, Step::Drain { machine, .. } if *machine == host.to_string()))
    }

    fn agent(&mut self, host: usize) {
        self.uids += 1;
        let (newest, bad, uid) = (self.newest, self.bad, self.uids);
        let host = &mut self.hosts[host];
        if host.paused {
            return;
        }
        match &host.node {
            Some(node) if node.uid == host.applied_uid => {
                host.prepared = (host.selected != host.applied).then_some(host.selected);
            }
            Some(node) if node.ready => host.applied_uid = node.uid,
            Some(_) => {}
            // The controller's choice, and the end of nodeRef, in one.
            None if host.node_ref => (host.selected, host.node_ref) = (newest, false),
            None => {
                if bad && host.selected == 2 {
                    host.refused = Some(2);
                } else {
                    host.applied = host.selected;
                }
                (host.prepared, host.node_ref, host.applied_uid) = (None, true, uid);
                host.node = Some(Seen { uid, ready: true, ..Seen::default() });
            }
        }
    }

    /// Runs the cluster undisturbed, and Pods leave.
    fn settle(&mut self) {
        // A turn takes six rounds.
        for _ in 0..6 * self.hosts.len() + 6 {
            self.happens(&Event::Look(usize::MAX));
            for step in self.steps() {
                if let Step::Drain { machine, .. } = step {
                    self.hosts[machine.parse::<usize>().unwrap()].node = None;
                }
            }
            for host in 0..self.hosts.len() {
                self.happens(&Event::Agent(host));
            }
        }
    }
}

fn template() -> Value {
    json!({ "image": { "reference": "registry.example/node:1", "allowTag": true }, "kubernetes": { "version": "v1.34.0" } })
}

fn event() -> impl Strategy<Value = Event> {
    let host = 0..8_usize;
    prop_oneof![
        6 => (0..4_usize).prop_map(Event::Look),
        8 => host.clone().prop_map(Event::Agent),
        4 => host.clone().prop_map(Event::Emptied),
        1 => host.clone().prop_map(Event::TimedOut),
        1 => (host.clone(), any::<bool>()).prop_map(|(host, cordoned)| Event::Cordon(host, cordoned)),
        1 => (host.clone(), any::<bool>()).prop_map(|(host, ready)| Event::Ready(host, ready)),
        1 => (host, any::<bool>()).prop_map(|(host, paused)| Event::Paused(host, paused)),
        1 => Just(Event::Edit),
        1 => any::<bool>().prop_map(Event::Strategy),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn c4_max_unavailable_holds_and_each_machine_is_updated_or_has_a_reason(
        count in 1..5_usize, max in 1..4_usize, pause in any::<bool>(), bad in any::<bool>(),
        events in proptest::collection::vec(event(), 0..40),
    ) {
        let mut world = World::new(count, max, pause, bad);
        for event in &events {
            world.happens(event);
        }
        world.settle();
        let persons = |world: &World| -> Vec<bool> {
            let is_theirs = |host: &Host| host.node.as_ref().is_some_and(|node| node.unschedulable && node.by.is_none());
            world.hosts.iter().map(is_theirs).collect()
        };
        let before = persons(&world);
        world.happens(&Event::Look(usize::MAX));
        prop_assert_eq!(persons(&world), before, "a user's cordon stays");
        let configuration = world.configuration();
        let (machines, versions) = (world.machines(), world.versions());
        let nodes = |name: &str| world.node(name);
        let all: Vec<_> = machines.iter().collect();
        let of: Vec<_> = versions.iter().collect();
        let ours = world.hosts.iter().filter(|host| host.node.as_ref().is_some_and(|node| node.by.is_some() && node.unschedulable)).count();
        let Some(standing) = standing(&configuration, &all, &nodes, &of, CLOCKS) else {
            prop_assert_eq!(ours, 0, "nothing is held that does not roll");
            return Ok(());
        };
        let done = world.hosts.iter().all(|host| host.applied == world.newest);
        let (_, reason, message) = &standing.progressing;
        if done {
            prop_assert!(["UpToDate", "RollingOut"].contains(&reason.as_str()), "{} {}", reason, message);
        } else {
            let reported = ["PausedOnFailure", "MachinesSkipped", "MaxUnavailableReached", "RollingOut", "AwaitingPrefetch"].contains(&reason.as_str());
            prop_assert!(reported, "{} {} {:#?}", reason, message, world);
            if reason.as_str() == "PausedOnFailure" {
                prop_assert!(standing.degraded.is_some());
            }
        }
        // Each remaining Machine has a reason of its own.
        let at_rest = world.hosts.iter().all(|host| {
            !host.paused && host.node.as_ref().is_some_and(|node| node.ready && !node.unschedulable && node.failed.is_none())
        });
        if at_rest && !bad {
            prop_assert!(done, "{:#?}", world);
        }
    }
}
