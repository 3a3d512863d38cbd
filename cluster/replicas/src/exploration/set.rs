//! Exploration of sets (MS2, MS3, MS6): the set's controller, its Machines, a health check and a user. Optionally two leaders.
//!
//! A plan is decided from live reads and written object by object. All other actors act between two writes, and the process may be killed
//! there. A former leader makes at most one more write: it checks its tenure before each one. Deletions are bound to what was read.

use std::cell::RefCell;

use super::{Report, Worlds, explore, processor_time};
use crate::set::tests::{at, machine, set};
use crate::{
    Amount, Health, Key, MachineView, OwnerView, Remediated, Remediation, SetPlan, SetView, plan_set,
};

const MACHINES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Machine {
    name: u16,
    deleting: bool,
    failed: bool,
    remediated: Option<Remediated>,
    owner: OwnerView,
}

/// Writes that a process has decided on and not made yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Held {
    adopt: [Option<u16>; 2],
    mark: [Option<(u16, Option<Remediated>)>; MACHINES],
    delete: [Option<Machine>; MACHINES],
    create: [Option<u16>; MACHINES],
    /// Replicas at the time of the decision.
    asked: u8,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.adopt == [None; 2] && self.mark == [None; MACHINES] && !self.changes_machines()
    }

    fn changes_machines(&self) -> bool {
        self.delete != [None; MACHINES] || self.create != [None; MACHINES]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    asked: u8,
    /// Resource version of the set: changes of its replicas and of its status.
    version: u8,
    /// Replicas in the status.
    status: u8,
    machines: [Option<Machine>; MACHINES],
    held: [Held; 2],
    /// The leader. The other one is a former leader.
    leader: u8,
    /// Changes that may still happen: leaders, replicas, deletions by the user, failed health checks.
    leaders: u8,
    scales: u8,
    deletions: u8,
    failures: u8,
    max_in_flight: Option<u8>,
    /// Machines beyond the replicas that a former leader can have made.
    late: u8,
}

thread_local! {
    static NAMES: RefCell<Vec<Key>> = RefCell::default();
}

fn intern(key: &Key) -> u16 {
    NAMES.with_borrow_mut(|names| {
        let index = names.iter().position(|name| name == key).unwrap_or_else(|| {
            names.push(key.clone());
            names.len() - 1
        });
        u16::try_from(index).unwrap()
    })
}

fn key(name: u16) -> Key {
    NAMES.with_borrow(|names| names[usize::from(name)].clone())
}

impl Machine {
    fn new(name: &str, owner: OwnerView) -> Self {
        Self { name: intern(&name.into()), deleting: false, failed: false, remediated: None, owner }
    }

    fn view(self) -> MachineView {
        let health = if self.failed { Health::Failed } else { Health::Succeeded };
        MachineView {
            key: key(self.name),
            is_deleting: self.deleting,
            health,
            remediated: self.remediated,
            owner: self.owner,
            ..machine("")
        }
    }

    fn is_present(&self) -> bool {
        !self.deleting && self.owner == OwnerView::This
    }

    fn is_in_flight(&self) -> bool {
        self.deleting && self.remediated == Some(Remediated::Deleting)
    }
}

impl World {
    fn start(asked: u8, machines: &[Machine]) -> Self {
        let mut slots = [None; MACHINES];
        for (slot, machine) in slots.iter_mut().zip(machines) {
            *slot = Some(*machine);
        }
        let mut world = Self {
            asked,
            version: 0,
            status: 0,
            machines: slots,
            held: [Held::default(); 2],
            leader: 0,
            leaders: 0,
            scales: 1,
            deletions: 1,
            failures: 2,
            max_in_flight: None,
            late: 0,
        };
        world.status = world.present();
        world
    }

    fn all(&self) -> impl Iterator<Item = Machine> {
        self.machines.into_iter().flatten()
    }

    fn present(&self) -> u8 {
        u8::try_from(self.all().filter(Machine::is_present).count()).unwrap()
    }

    fn in_flight(&self) -> u8 {
        u8::try_from(self.all().filter(Machine::is_in_flight).count()).unwrap()
    }

    fn view(&self, is_live: bool) -> SetView {
        SetView {
            live_version: is_live.then(|| self.version.to_string()),
            remediation: Remediation {
                is_current_revision: true,
                max_in_flight: self
                    .max_in_flight
                    .map(|count| (Amount::Count(count.into()), self.asked.into())),
            },
            ..set(self.asked.into(), self.all().map(Machine::view).collect())
        }
    }

    /// Checks the plan itself.
    fn plan(&self) -> SetPlan {
        let plan = plan_set(&self.view(true), at(1000));
        let stored = plan_set(&self.view(false), at(1000));
        assert!(stored.create.is_empty() && stored.delete.is_empty(), "a store decides: {self:#?}");
        assert_eq!(stored.needs_live_read, !(plan.create.is_empty() && plan.delete.is_empty()), "{self:#?}");
        let after = usize::from(self.present()) + plan.create.len();
        assert!(plan.create.is_empty() || after <= usize::from(self.asked), "a successor is early: {plan:?}");
        let of_others = |key: &Key| self.all().any(|one| intern(key) == one.name && !one.is_present());
        assert!(!plan.delete.iter().any(of_others), "deletes a Machine that is not its own: {plan:?}");
        plan
    }

    fn decide(&self) -> Held {
        let plan = self.plan();
        let mut held = Held { asked: self.asked, ..Held::default() };
        for (slot, key) in held.adopt.iter_mut().zip(&plan.adopt) {
            *slot = Some(intern(key));
        }
        let differs = |name: u16, reason| self.all().any(|one| one.name == name && one.remediated != reason);
        let marks = plan.mark.iter().map(|(key, mark)| (intern(key), mark.reason()));
        for (slot, mark) in held.mark.iter_mut().zip(marks.filter(|(name, reason)| differs(*name, *reason))) {
            *slot = Some(mark);
        }
        for (slot, key) in held.delete.iter_mut().zip(&plan.delete) {
            // The deletion is bound to the Machine with its mark.
            let mut seen = self.all().find(|one| one.name == intern(key)).unwrap();
            if let Some((_, mark)) = plan.mark.iter().find(|(marked, _)| marked == key) {
                seen.remediated = mark.reason();
            }
            *slot = Some(seen);
        }
        assert!(plan.create.len() <= MACHINES);
        for (slot, key) in held.create.iter_mut().zip(&plan.create) {
            *slot = Some(intern(key));
        }
        held
    }

    fn find(&mut self, name: u16) -> Option<&mut Machine> {
        self.machines.iter_mut().flatten().find(|one| one.name == name)
    }

    /// Makes the next write of a process. A former leader makes one.
    fn write(&mut self, process: usize) {
        let mut held = self.held[process];
        if let Some(name) = take(&mut held.adopt) {
            if let Some(one) = self.find(name).filter(|one| one.owner == OwnerView::Orphan) {
                one.owner = OwnerView::This;
            }
        } else if let Some((name, reason)) = take(&mut held.mark) {
            if let Some(one) = self.find(name) {
                one.remediated = reason;
            }
        } else if let Some(seen) = take(&mut held.delete) {
            if let Some(one) = self.find(seen.name).filter(|one| **one == seen) {
                one.deleting = true;
            }
        } else if let Some(name) = take(&mut held.create) {
            self.create(name);
            assert!(self.present() <= held.asked.max(self.asked) + self.late, "too many Machines: {self:#?}");
        }
        let is_former = process != usize::from(self.leader);
        self.held[process] = if held.is_empty() || is_former { Held::default() } else { held };
        if let Some(limit) = self.max_in_flight {
            assert!(self.in_flight() <= limit + self.late, "too many remediations: {self:#?}");
        }
    }

    /// The creation is an apply: it changes nothing if the Machine exists.
    fn create(&mut self, name: u16) {
        if self.find(name).is_none() {
            let slot = self.machines.iter_mut().find(|slot| slot.is_none()).expect("a free slot");
            let owner = OwnerView::This;
            *slot = Some(Machine { name, deleting: false, failed: false, remediated: None, owner });
        }
    }

    fn processes(&self, after: &mut Vec<Self>) {
        for process in 0..2 {
            let is_leader = process == usize::from(self.leader);
            let mut next = *self;
            if !self.held[process].is_empty() {
                next.write(process);
                after.push(next);
                let mut killed = *self;
                killed.held[process] = Held::default();
                after.push(killed);
            } else if is_leader {
                next.held[process] = self.decide();
                if !next.held[process].is_empty() {
                    after.push(next);
                }
                if self.status != self.present() {
                    after.push(Self { status: self.present(), version: self.version + 1, ..*self });
                }
            }
        }
        if self.leaders > 0 {
            after.push(Self {
                leaders: self.leaders - 1,
                leader: 1 - self.leader,
                late: self.late + 1,
                ..*self
            });
        }
    }

    fn others(&self, after: &mut Vec<Self>) {
        for index in 0..MACHINES {
            let Some(one) = self.machines[index] else { continue };
            let mut change = |edit: &dyn Fn(&mut Self, &mut Machine)| {
                let (mut next, mut changed) = (*self, one);
                edit(&mut next, &mut changed);
                next.machines[index] = Some(changed);
                after.push(next);
            };
            if !one.deleting && self.deletions > 0 {
                change(&|next, one| (next.deletions, one.deleting) = (next.deletions - 1, true));
            }
            if !one.deleting && !one.failed && self.failures > 0 {
                change(&|next, one| {
                    next.failures -= 1;
                    (one.failed, one.remediated) = (true, Some(Remediated::Waiting));
                });
            }
            if one.failed && !one.deleting {
                change(&|_, one| one.failed = false);
            }
            if one.deleting {
                let mut next = *self;
                next.machines[index] = None;
                after.push(next);
            }
        }
        if self.scales > 0 {
            let version = self.version + 1;
            after.push(Self { scales: 0, asked: self.asked + 1, version, ..*self });
            if self.asked > 0 {
                after.push(Self { scales: 0, asked: self.asked - 1, version, ..*self });
            }
        }
    }

    /// Merges states that differ by the places of Machines.
    fn canonical(mut self) -> Self {
        self.machines.sort_by_key(|slot| slot.map_or(u16::MAX, |one| one.name));
        self
    }

    /// Follows the controllers until nothing changes.
    fn settle(mut self, settled: &mut Worlds<Self>) {
        self.held = [Held::default(); 2];
        (self.leaders, self.scales, self.deletions, self.failures, self.late) = (0, 0, 0, 0, 0);
        let mut path = Vec::new();
        while !settled.contains(&self) {
            path.push(self);
            assert!(path.len() < 30, "does not end: {self:#?}");
            let mut next = self;
            let process = usize::from(self.leader);
            next.held[process] = next.decide();
            while !next.held[process].is_empty() {
                next.write(process);
            }
            // A second decision from the same objects only continues with what waits for the first.
            let again = next.decide();
            let deleting = |world: &Self| world.all().filter(|one| one.deleting).count();
            let is_first =
                self.all().any(|one| one.owner == OwnerView::Orphan) || deleting(&next) > deleting(&self);
            assert!(
                is_first || !again.changes_machines(),
                "a decision is not complete: {self:#?} {again:#?}"
            );
            if next.status != next.present() {
                (next.status, next.version) = (next.present(), next.version.wrapping_add(1));
            }
            for slot in &mut next.machines {
                *slot = slot.filter(|one| !one.deleting);
            }
            next = next.canonical();
            if next == self {
                assert_eq!(self.present(), self.asked, "settled with other replicas: {self:#?}");
                let is_left =
                    |one: Machine| one.owner == OwnerView::This && one.failed && one.remediated.is_some();
                assert!(!self.all().any(is_left), "a marked Machine stays: {self:#?}");
                assert!(self.all().all(|one| one.owner != OwnerView::Orphan), "an orphan stays: {self:#?}");
                break;
            }
            self = next;
        }
        settled.extend(path);
    }
}

/// Takes the first write.
fn take<T>(writes: &mut [Option<T>]) -> Option<T> {
    writes.iter_mut().find_map(Option::take)
}

impl super::World for World {
    fn check(&self, settled: &mut Worlds<Self>) {
        self.settle(settled);
    }

    fn next(&self, after: &mut Vec<Self>) {
        self.processes(after);
        self.others(after);
        for world in after {
            *world = world.canonical();
        }
    }
}

fn machines(count: usize) -> Vec<Machine> {
    ["a", "b", "c"][..count].iter().map(|name| Machine::new(name, OwnerView::This)).collect()
}

fn run(starts: Vec<World>, least_states: usize) {
    let start = processor_time();
    let mut report = Report::default();
    report.add(explore(starts.into_iter().map(World::canonical)));
    report.end(start, least_states);
}

#[test]
fn ms2_every_history_reaches_its_count() {
    let starts = (0..=2).flat_map(|asked| (0..=3).map(move |count| World::start(asked, &machines(count))));
    run(starts.map(|world| World { failures: 1, ..world }).collect(), 1000);
}

#[test]
fn ms2_two_leaders_make_at_most_one_machine_too_many() {
    let starts = (1..=2).flat_map(|asked| (0..=2).map(move |count| World::start(asked, &machines(count))));
    run(starts.map(|world| World { leaders: 1, failures: 0, ..world }).collect(), 1000);
}

#[test]
fn ms3_orphans_are_adopted_and_others_are_left_in_every_history() {
    let orphan = Machine::new("o", OwnerView::Orphan);
    let other = Machine::new("x", OwnerView::Other);
    let starts = (0..=2).map(|asked| World::start(asked, &[orphan, other, machines(1)[0]]));
    run(starts.map(|world| World { failures: 1, ..world }).collect(), 1000);
}

#[test]
fn ms6_max_in_flight_holds_in_every_history() {
    let starts = (1..=3).map(|asked| World::start(asked, &machines(asked.into())));
    run(starts.map(|world| World { max_in_flight: Some(1), scales: 0, ..world }).collect(), 1000);
}
