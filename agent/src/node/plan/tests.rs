//! The plan in a world of two slots, a Node and a controller, and what single inputs must not cause.

use bedplate_api::id::Digest;
use bedplate_api::machine::VersionRef;

use super::*;
use crate::model::{Health, MachineFacts, PerSlot};

mod control_plane;
mod leftover;
mod trials;

fn version(number: i64) -> VersionRef {
    VersionRef { name: "workers".to_owned(), version: number }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// A host, its API server and its controller, as simple as they can be.
#[derive(Debug, Clone)]
struct World {
    seen: Observed,
    /// Versions whose node never becomes healthy.
    bad: Vec<i64>,
    /// Versions whose Node becomes Ready, but in which no Pod starts.
    no_sandbox: Vec<i64>,
    nodes_made: u32,
    /// Steps until the host is cut off from power, if it is.
    power_cut_after: Option<u32>,
    /// Steps until the agent is killed in mid step, if it is.
    kill_after: Option<u32>,
    log: Vec<String>,
}

impl World {
    fn new(selected: Option<i64>) -> Self {
        let machine = MachineFacts {
            uid: "machine".to_owned(),
            generation: None,
            ours: true,
            paused: false,
            deleting: false,
            drain: false,
            claimed_by: None,
            selected: selected.map(version),
            node_ref: None,
        };
        let seen = Observed {
            now: at(0),
            boot_id: "boot-0".to_owned(),
            api: Api::Live,
            machine: Some(machine),
            node: NodeSeen::Absent,
            version: None,
            slots: PerSlot::default(),
            health: Health::default(),
            refused: Vec::new(),
            failures: 0,
            not_before: Timestamp::MIN,
            not_counted: SignedDuration::ZERO,
            annotations: Annotations::Written,
            kubelet_ended: None,
            joins_again: false,
            leave: Leave::Unasked,
        };
        Self {
            seen,
            bad: Vec::new(),
            no_sandbox: Vec::new(),
            nodes_made: 0,
            power_cut_after: None,
            kill_after: None,
            log: Vec::new(),
        }
    }

    fn machine(&mut self) -> &mut MachineFacts {
        self.seen.machine.as_mut().unwrap()
    }

    /// A person selects, as the controller would let it.
    fn select(&mut self, number: i64) {
        self.machine().selected = Some(version(number));
    }

    /// A person deletes the Node; the controller chooses and clears `nodeRef`.
    fn delete_node(&mut self) {
        self.seen.node = NodeSeen::Absent;
        self.machine().node_ref = None;
    }

    fn plan(&mut self) -> Plan {
        self.seen.version =
            self.seen.machine.as_ref().and_then(|m| m.selected.clone()).map(|reference| VersionFacts {
                template: format!("template-{}", reference.version),
                reference,
                timeout: SignedDuration::from_secs(600),
                node_ready: SignedDuration::from_secs(30),
            });
        plan(&self.seen)
    }

    fn running(&self) -> Option<SlotName> {
        let running: Vec<SlotName> =
            SlotName::ALL.into_iter().filter(|slot| runs(&self.seen, *slot)).collect();
        assert!(running.len() < 2, "two nodes run concurrently\n{}", self.log.join("\n"));
        running.first().copied()
    }

    /// Simulates events outside the agent. The running slot joins, unless its
    /// version is bad. The controller sees a new Node.
    fn live_on(&mut self) {
        self.seen.now = later(self.seen.now, SignedDuration::from_secs(40));
        let running = self.running();
        let number = running.and_then(|slot| record(&self.seen, slot)).map(|record| record.version.version);
        let healthy = number.is_some_and(|number| !self.bad.contains(&number));
        let sandbox = healthy && self.seen.health.sandbox;
        let bootstrap = if healthy { Bootstrap::Done } else { Bootstrap::Running };
        let message = self.seen.health.message.take().filter(|_| healthy);
        self.seen.health =
            Health { bootstrap, kubelet: healthy, runtime: healthy, sandbox, message, ..Health::default() };
        let ready_since = healthy.then_some(self.seen.now);
        match &mut self.seen.node {
            NodeSeen::Present { ready_since: ready, .. } if healthy => *ready = ready.or(ready_since),
            NodeSeen::Present { ready_since, .. } => *ready_since = None,
            _ if healthy => {
                self.nodes_made += 1;
                let uid = format!("node-{}", self.nodes_made);
                self.machine().node_ref = Some(uid.clone());
                self.seen.node = NodeSeen::Present { uid, ready_since };
            }
            _ => {}
        }
    }

    fn write(&mut self, slot: SlotName, stage: Stage) {
        let reference = match record(&self.seen, slot) {
            Some(record) if stage != Stage::Preparing => record.version.clone(),
            _ => self.seen.version.as_ref().unwrap().reference.clone(),
        };
        let of = |slot| record(&self.seen, slot).map_or(0, |record| record.generation);
        let generation = match stage {
            Stage::Preparing => 0,
            Stage::Applied { .. } => of(slot).max(of(other(slot)) + 1),
            _ => of(slot),
        };
        self.seen.slots[slot].record = Some(Record {
            template: format!("template-{}", reference.version),
            version: reference,
            image_digest: Digest::from_sha256([7; 32]),
            machine_uid: "machine".to_owned(),
            timeout_seconds: 600,
            min_ready_seconds: 30,
            generation,
            claim: None,
            stage,
        });
    }

    fn apply(&mut self, step: Step) {
        self.log.push(format!("{:?} in {:?}", step.act, step.slot));
        let killed = self.count_down();
        let (slot, now) = (step.slot, self.seen.now);
        let boot_id = self.seen.boot_id.clone();
        match step.act {
            Act::PrepareSlot { .. } => {
                assert!(!runs(&self.seen, slot), "filled while it runs");
                self.write(slot, Stage::Preparing);
                if !killed {
                    self.write(slot, Stage::Prepared);
                }
            }
            Act::BeginTrial | Act::RestartTrial => {
                let boots = match stage(&self.seen, slot) {
                    Some(Stage::Trial { boots, .. }) => boots + 1,
                    _ => 0,
                };
                self.write(slot, Stage::Trial { boot_id, since: now, boots });
            }
            Act::StopSlot => self.seen.slots[slot].runs = false,
            Act::StartSlot => {
                self.seen.slots[slot].runs = true;
                self.seen.health = Health::default();
            }
            Act::ProbeSandbox => {
                let number = record(&self.seen, slot).unwrap().version.version;
                let no_sandbox = self.no_sandbox.contains(&number);
                self.seen.health.sandbox = !killed && !no_sandbox;
                self.seen.health.message = no_sandbox.then(|| "no CNI plug-in".to_owned());
            }
            Act::AnnotateNode { .. } => self.seen.annotations = Annotations::Written,
            Act::Commit { node_uid } | Act::AdoptNode { node_uid } => {
                self.seen.annotations = Annotations::Due;
                self.write(slot, Stage::Applied { node_uid, since: now });
            }
            Act::LeaveCluster if killed => self.seen.slots[slot].leaving = true,
            Act::LeaveCluster => {
                self.seen.slots[slot].leaving = false;
                self.write(slot, Stage::Retired);
            }
            Act::Retire => self.write(slot, Stage::Retired),
            Act::Fail { reason, back_to, .. } => {
                if back_to.is_some() {
                    let version = record(&self.seen, slot).unwrap().version.clone();
                    self.seen.refused.push(version);
                }
                self.write(slot, Stage::Failed { reason });
            }
            Act::Abandon => self.seen.slots[slot].record = None,
            Act::RenewKubelet => self.seen.kubelet_ended = None,
        }
    }

    /// Returns true if this step is interrupted by a kill or a power loss.
    fn count_down(&mut self) -> bool {
        let strikes = |left: &mut Option<u32>| match left {
            Some(0) => {
                *left = None;
                true
            }
            Some(more) => {
                *more -= 1;
                false
            }
            None => false,
        };
        let killed = strikes(&mut self.kill_after);
        let cut = strikes(&mut self.power_cut_after);
        if cut {
            self.boot();
        }
        killed || cut
    }

    /// Reboots the host.
    fn boot(&mut self) {
        self.seen.boot_id.push('+');
        for slot in SlotName::ALL {
            self.seen.slots[slot].runs = false;
        }
    }

    /// Lives on until a step of this name was done; its slot.
    fn until(&mut self, name: &str) -> SlotName {
        for _ in 0..400 {
            if let Plan::Do(step) = self.plan() {
                let (done, slot) = (step.act.name() == name, step.slot);
                self.apply(step);
                if done {
                    return slot;
                }
            }
            self.live_on();
        }
        panic!("never {name}\n{}", self.log.join("\n"));
    }

    /// Runs until no step is left for a while.
    fn settle(&mut self) -> Wait {
        let mut calm = 0;
        let mut last = None;
        for _ in 0..400 {
            match self.plan() {
                Plan::Do(step) => {
                    calm = 0;
                    self.apply(step);
                }
                Plan::Wait(wait) => {
                    calm += 1;
                    if calm > 40 {
                        return wait;
                    }
                    last = Some(wait);
                }
            }
            self.live_on();
        }
        panic!("never calm, last {last:?}\n{}", self.log.join("\n"));
    }

    /// The version that runs and is applied.
    fn node(&self) -> Option<i64> {
        let (slot, uid) = applied(&self.seen)?;
        let NodeSeen::Present { uid: node, ready_since: Some(_) } = &self.seen.node else { return None };
        (self.running() == Some(slot) && node == uid)
            .then(|| record(&self.seen, slot).unwrap().version.version)
    }
}

#[test]
fn h2_h3_without_a_selected_version_nothing_is_made() {
    let mut world = World::new(None);
    let wait = world.settle();
    assert_eq!(wait.reason, PavedReason::NoVersionSelected);
    assert_eq!(world.log, Vec::<String>::new());
}

#[test]
fn a_selected_version_is_paved_joined_and_applied() {
    let mut world = World::new(Some(1));
    assert_eq!(world.settle().reason, PavedReason::Applied);
    assert_eq!(world.node(), Some(1), "{}", world.log.join("\n"));
}

#[test]
fn a_new_selection_alone_is_staged_and_disturbs_nothing() {
    let mut world = World::new(Some(1));
    world.settle();
    world.select(2);
    world.log.clear();
    assert_eq!(world.settle().reason, PavedReason::Applied);
    assert_eq!(world.node(), Some(1));
    assert_eq!(world.log.len(), 1, "{:?}", world.log);
    assert!(world.log[0].starts_with("PrepareSlot"));
}

#[test]
fn prepared_slot_of_another_template_or_version_is_filled_again() {
    let prepared = |change: fn(&mut Record)| {
        let mut world = World::new(Some(1));
        world.settle();
        world.select(2);
        world.settle();
        let slot = other(world.running().unwrap());
        change(world.seen.slots[slot].record.as_mut().unwrap());
        world.plan()
    };
    assert!(matches!(prepared(|_| {}), Plan::Wait(_)));
    // A MachineConfiguration that was deleted and created again starts with the same numbers.
    assert!(matches!(
        prepared(|record| record.template.push('x')),
        Plan::Do(Step { act: Act::PrepareSlot { .. }, .. })
    ));
    assert!(matches!(
        prepared(|record| record.version.version = 3),
        Plan::Do(Step { act: Act::PrepareSlot { .. }, .. })
    ));
}

#[test]
fn node_that_was_not_read_yet_starts_no_slot() {
    let mut world = World::new(Some(1));
    world.settle();
    world.boot();
    world.seen.node = NodeSeen::Unknown;
    let Plan::Wait(wait) = world.plan() else { panic!("{:?}", world.plan()) };
    assert_eq!(wait.reason, PavedReason::ApiServerUnreachable);
}

#[test]
fn passed_deadline_of_a_trial_wakes_nothing() {
    let world = World::new(Some(1));
    let until = |deadline| {
        let pending = Wait { reason: PavedReason::ApiServerUnreachable, message: String::new(), until: None };
        super::control_plane::until(&world.seen, SlotName::A, pending, deadline).until
    };
    assert_eq!(until(at(1)), Some(at(1)));
    assert_eq!(until(at(0)), None);
    assert_eq!(until(at(-1)), None);
}

#[test]
fn h6_a_deleted_node_is_paved_again_with_what_is_selected_then() {
    let mut world = World::new(Some(1));
    world.settle();
    world.select(2);
    world.settle();
    world.delete_node();
    world.settle();
    assert_eq!(world.node(), Some(2), "{}", world.log.join("\n"));
    // H7: and back.
    world.select(1);
    world.settle();
    world.delete_node();
    world.settle();
    assert_eq!(world.node(), Some(1), "{}", world.log.join("\n"));
}

/// The world after a first version, about to be paved with a second.
fn about_to_repave(bad: bool) -> World {
    let mut world = World::new(Some(1));
    world.settle();
    if bad {
        world.bad.push(2);
    }
    world.select(2);
    world.settle();
    world.log.clear();
    world.delete_node();
    world
}

#[test]
fn h6_a_kill_or_power_cut_at_any_step_ends_in_the_same_state() {
    for bad in [false, true] {
        let mut undisturbed = about_to_repave(bad);
        undisturbed.settle();
        let steps = u32::try_from(undisturbed.log.len()).unwrap();
        assert!(steps >= 6, "{:?}", undisturbed.log);
        for step in 0..steps + 2 {
            for cut in [false, true] {
                let mut world = about_to_repave(bad);
                if cut {
                    world.power_cut_after = Some(step);
                } else {
                    world.kill_after = Some(step);
                }
                world.settle();
                let expected = if bad { 1 } else { 2 };
                assert_eq!(world.node(), Some(expected), "step {step}, cut {cut}\n{}", world.log.join("\n"));
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_step_of_the_first_pave_ends_in_a_node() {
    for step in 0..8 {
        let mut world = World::new(Some(1));
        world.power_cut_after = Some(step);
        world.settle();
        assert_eq!(world.node(), Some(1), "step {step}\n{}", world.log.join("\n"));
    }
}

#[test]
fn held_machine_is_not_repaved() {
    type Change = fn(&mut World);
    let cases: [(&str, Change, PavedReason); 7] = [
        ("paused", |w| w.machine().paused = true, PavedReason::Paused),
        ("deleting", |w| w.machine().deleting = true, PavedReason::MachineDeleting),
        ("claimed", |w| w.machine().claimed_by = Some("worker-7".to_owned()), PavedReason::Claimed),
        ("another Machine", |w| w.machine().ours = false, PavedReason::MachineNotFound),
        ("restored empty", |w| w.seen.machine = None, PavedReason::MachineNotFound),
        (
            "controller away",
            |w| w.machine().node_ref = Some("node-1".to_owned()),
            PavedReason::AwaitingSelection,
        ),
        ("API unreachable", |w| w.seen.api = Api::Away, PavedReason::Applied),
    ];
    for (what, change, reason) in cases {
        let mut world = about_to_repave(false);
        change(&mut world);
        let Plan::Wait(wait) = world.plan() else { panic!("{what}: {:?}", world.plan()) };
        assert_eq!(wait.reason, reason, "{what}");
        assert!(!wait.message.is_empty());
        assert!(world.running().is_some(), "{what}");
    }
}

#[test]
fn an_api_server_that_was_only_not_asked_yet_is_not_said_to_be_away() {
    let mut world = World::new(Some(1));
    for (api, said) in [(Api::Unasked, "just started"), (Api::Away, "does not answer")] {
        world.seen.api = api;
        let Plan::Wait(wait) = world.plan() else { panic!("{api:?}: {:?}", world.plan()) };
        assert_eq!(wait.reason, PavedReason::ApiServerUnreachable);
        assert!(wait.message.contains(said), "{}", wait.message);
    }
}

#[test]
fn a_watch_that_broke_or_a_node_not_read_is_no_deletion() {
    let mut world = about_to_repave(false);
    world.seen.node = NodeSeen::Unknown;
    assert!(matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::Applied, .. })));
}

#[test]
fn a_rebooted_host_starts_its_slot_even_without_the_api_server() {
    let mut world = World::new(Some(1));
    world.settle();
    let slot = world.running().unwrap();
    world.seen.slots[slot].runs = false;
    world.seen.boot_id = "boot-1".to_owned();
    world.seen.api = Api::Unasked;
    assert!(matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::ApiServerUnreachable, .. })));
    world.seen.api = Api::Away;
    assert_eq!(world.plan(), Plan::step(slot, Act::StartSlot));
}

#[test]
fn h6_node_deleted_while_the_host_was_down_is_not_registered_again() {
    let mut world = about_to_repave(false);
    let slot = world.running().unwrap();
    world.seen.slots[slot].runs = false;
    world.seen.boot_id = "boot-1".to_owned();
    world.machine().node_ref = Some("node-1".to_owned());
    assert!(matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::AwaitingSelection, .. })));
    world.machine().node_ref = None;
    assert_eq!(world.plan(), Plan::step(other(slot), Act::BeginTrial));
}

#[test]
fn state_in_memory_is_paved_again_once_the_old_node_is_not_ready() {
    let mut world = World::new(Some(1));
    world.settle();
    world.seen.slots = PerSlot::default();
    world.seen.boot_id = "boot-1".to_owned();
    assert!(matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::NodeStillReady, .. })));
    world.live_on();
    assert!(matches!(world.plan(), Plan::Do(Step { act: Act::PrepareSlot { .. }, .. })));
    world.settle();
    assert_eq!(world.node(), Some(1), "{}", world.log.join("\n"));
}

#[test]
fn failure_reports_the_log_of_the_unhealthy_part() {
    let mut world = about_to_repave(true);
    let mut slot = None;
    while !matches!(world.plan(), Plan::Wait(_)) {
        let Plan::Do(step) = world.plan() else { unreachable!() };
        slot = Some(step.slot);
        world.apply(step);
    }
    world.seen.now = later(world.seen.now, SignedDuration::from_hours(3));
    let slot = slot.unwrap();
    let mut health = Health::default();
    let mut log = |health: &Health, node: NodeSeen| {
        (world.seen.health, world.seen.node) = (health.clone(), node);
        match world.plan() {
            Plan::Do(Step { act: Act::Fail { log, .. }, .. }) => log,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(log(&health, NodeSeen::Absent), Log::Kubeadm);
    health.bootstrap = Bootstrap::Done;
    assert_eq!(log(&health, NodeSeen::Absent), Log::Kubelet);
    health.kubelet = true;
    assert_eq!(log(&health, NodeSeen::Absent), Log::Runtime);
    health.runtime = true;
    assert_eq!(log(&health, NodeSeen::Absent), Log::Kubelet);
    health.message = Some("no CNI plug-in".to_owned());
    let ready = NodeSeen::Present { uid: "n".to_owned(), ready_since: Some(at(0)) };
    assert_eq!(log(&health, ready), Log::Runtime);
    world.seen.slots[slot].runs = false;
    world.seen.node = NodeSeen::Absent;
    assert!(
        matches!(world.plan(), Plan::Do(Step { act: Act::Fail { log: Log::Slot, .. }, .. })),
        "{:?}",
        world.plan()
    );
}

#[test]
fn expired_kubelet_certificate_is_renewed_unless_the_machine_is_paused() {
    let mut world = World::new(Some(1));
    world.settle();
    let slot = world.running().unwrap();
    let NodeSeen::Present { ready_since, .. } = &mut world.seen.node else { panic!() };
    *ready_since = None;
    world.seen.kubelet_ended = Some(at(0));
    assert_eq!(world.plan(), Plan::step(slot, Act::RenewKubelet));
    world.machine().paused = true;
    assert!(matches!(world.plan(), Plan::Wait(_)));
    world.machine().paused = false;
    world.seen.api = Api::Away;
    assert!(matches!(world.plan(), Plan::Wait(_)), "no API server could answer");
}

#[test]
fn a_drained_machine_has_its_slot_stopped_when_its_node_is_gone() {
    let mut world = about_to_repave(false);
    world.machine().deleting = true;
    world.machine().drain = true;
    let slot = world.running().unwrap();
    assert_eq!(world.plan(), Plan::step(slot, Act::StopSlot));
    world.seen.slots[slot].runs = false;
    // The kubelet's certificate goes with what is in it.
    assert_eq!(world.plan(), Plan::step(slot, Act::Abandon));
    world.apply(Step { slot, act: Act::Abandon });
    // The Secrets in the other slot do too.
    assert_eq!(world.plan(), Plan::step(other(slot), Act::Abandon));
    world.apply(Step { slot: other(slot), act: Act::Abandon });
    assert!(matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::MachineDeleting, .. })));
}

#[test]
fn h6_slot_is_started_after_the_api_server_was_restored() {
    let mut settled = World::new(Some(1));
    settled.settle();
    let slot = applied(&settled.seen).unwrap().0;
    for case in ["without the Machine", "with an older certificate", "with another Machine"] {
        let mut world = settled.clone();
        match case {
            "without the Machine" => {
                (world.seen.machine, world.seen.node) = (None, NodeSeen::Unknown);
            }
            "with an older certificate" => world.machine().ours = false,
            _ => {
                world.machine().ours = false;
                world.machine().uid = "another".to_owned();
            }
        }
        let Plan::Wait(wait) = world.plan() else { panic!("{case}: nothing is done to a node that runs") };
        assert_eq!(wait.reason, PavedReason::MachineNotFound, "{case}");
        assert_eq!(wait.message.contains("restored from a backup"), case == "with an older certificate");
        world.seen.boot_id = "boot-1".to_owned();
        world.seen.slots[slot].runs = false;
        match (case, world.plan()) {
            ("with another Machine", Plan::Wait(wait)) => {
                assert_eq!(wait.reason, PavedReason::MachineNotFound);
            }
            (_, plan) => assert_eq!(plan, Plan::step(slot, Act::StartSlot), "{case}"),
        }
    }
}

#[test]
fn later_of_two_applied_slots_counts_whatever_the_clock_was() {
    let mut world = World::new(Some(1));
    world.settle();
    let old = applied(&world.seen).unwrap().0;
    world.plan();
    world.write(other(old), Stage::Preparing);
    // Killed between the two writes of a repave, after the clock was set back.
    let since = at(-1_000_000);
    world.write(other(old), Stage::Applied { node_uid: "new".to_owned(), since });
    assert_eq!(applied(&world.seen), Some((other(old), "new")));
    assert_eq!(world.plan(), Plan::step(old, Act::Retire));
}

#[test]
fn drained_machine_has_its_trial_emptied_and_a_retained_one_keeps_it() {
    let mut world = World::new(Some(1));
    let slot = world.until("start_slot");
    world.machine().deleting = true;
    assert!(matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::MachineDeleting, .. })));
    world.machine().drain = true;
    assert_eq!(world.plan(), Plan::step(slot, Act::StopSlot));
    world.apply(Step { slot, act: Act::StopSlot });
    assert_eq!(world.plan(), Plan::step(slot, Act::Abandon));
    world.apply(Step { slot, act: Act::Abandon });
    assert!(matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::MachineDeleting, .. })));
}

#[test]
fn a_node_that_the_running_slot_registered_again_is_no_deletion() {
    let mut world = about_to_repave(false);
    let slot = world.running().unwrap();
    world.seen.node = NodeSeen::Present { uid: "again".to_owned(), ready_since: Some(at(0)) };
    let plan = world.plan();
    assert!(matches!(plan, Plan::Wait(Wait { reason: PavedReason::AwaitingSelection, .. })), "{plan:?}");
    world.machine().node_ref = Some("again".to_owned());
    assert_eq!(world.plan(), Plan::step(slot, Act::AdoptNode { node_uid: "again".to_owned() }));
}
