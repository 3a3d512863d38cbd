//! Exploration of deployments (MD2, MD3, MD4, MD10): the deployment's controller, the controllers of its sets, their Machines and a user.
//!
//! A plan is decided from one state and written set by set. All other actors act between two writes, and the process may be killed there. A
//! set may delete an available Machine although it has an unavailable one: a user may have marked it. Machines of one set are alike, so
//! states are numbers.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use super::{FastBuild, Report, Worlds, explore, processor_time};
use crate::deployment::tests::{deployment, rolling, summary};
use crate::set::tests::at;
use crate::{Current, Key, Note, Strategy, plan_deployment};

const SETS: usize = 3;

/// The MachineSet of one template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Set {
    exists: bool,
    /// Order of creation among the sets.
    age: u8,
    asked: u8,
    /// Available Machines.
    ready: u8,
    /// Unavailable Machines.
    waiting: u8,
}

impl Set {
    fn existing(self) -> u8 {
        self.ready + self.waiting
    }

    fn pending(self) -> u8 {
        self.existing().saturating_sub(self.asked)
    }
}

/// Writes that a process has decided on and not made yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Held {
    /// Template and first replicas of the set to create.
    create: Option<(u8, u8)>,
    /// For each set the replicas that were read, and the new ones.
    scale: [Option<(u8, u8)>; SETS],
    delete: [bool; SETS],
    /// Set that loses a Machine to unblock the rollout.
    unblock: Option<u8>,
    /// The current set.
    current: u8,
    minimum: u8,
    maximum: u8,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.create.is_none() && self.scale == [None; SETS] && self.delete == [false; SETS]
    }
}

/// Parts of a world that never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Setting {
    /// None: OnDelete.
    rolling: Option<(u8, u8)>,
    leaders: u8,
    /// True if the user changes the replicas by one.
    scales: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    setting: Setting,
    replicas: u8,
    /// The template of the deployment.
    template: u8,
    sets: [Set; SETS],
    held: [Held; 2],
    /// Changes of the template and of the replicas that the user may still make.
    edits: u8,
    scales: u8,
    /// Available Machines that may still become unavailable, and Machines that the user may still delete.
    failures: u8,
    deletions: u8,
    /// Minimum of available Machines that deletions must leave, and the number of deletions that may go below.
    floor: u8,
    excused: u8,
    /// Maximum of Machines.
    ceiling: u8,
}

/// State as the planner sees it.
type Observed = (Setting, u8, u8, [Set; SETS]);

thread_local! {
    static PLANS: RefCell<HashMap<Observed, Held, FastBuild>> = RefCell::default();
    static NAMES: RefCell<BTreeMap<u8, Key>> = RefCell::default();
}

impl World {
    /// A deployment whose set has some unavailable Machines. The user has just changed its template to the second one.
    fn start(setting: Setting, replicas: u8, waiting: u8) -> Self {
        let first = Set { exists: true, age: 0, asked: replicas, ready: replicas - waiting, waiting };
        let mut world = Self {
            setting,
            replicas,
            template: 1,
            sets: [first, Set::default(), Set::default()],
            held: [Held::default(); 2],
            edits: 0,
            scales: u8::from(setting.scales),
            failures: 1,
            deletions: if setting.rolling.is_none() { 3 } else { 0 },
            floor: 0,
            excused: 0,
            ceiling: 0,
        };
        world.floor = world.bounds().0;
        world.ceiling = world.bounds().1;
        world
    }

    fn strategy(setting: Setting) -> Strategy {
        match setting.rolling {
            Some((surge, unavailable)) => rolling(surge.into(), unavailable.into()),
            None => Strategy::OnDelete,
        }
    }

    /// Minimum of available Machines and maximum of Machines.
    fn bounds(&self) -> (u8, u8) {
        let Some((surge, unavailable)) = self.setting.rolling else { return (0, self.replicas) };
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        (self.replicas.saturating_sub(unavailable), self.replicas + surge)
    }

    fn ready(&self) -> u8 {
        self.sets.iter().map(|set| set.ready).sum()
    }

    fn reserved(&self) -> u8 {
        self.sets.iter().map(|set| set.asked.max(set.existing())).sum()
    }

    fn is_quiet(&self) -> bool {
        self.sets.iter().all(|set| set.pending() == 0) && self.held.iter().all(Held::is_empty)
    }

    fn decide(&self) -> Held {
        let observed = (self.setting, self.replicas, self.template, self.sets);
        PLANS.with_borrow_mut(|plans| *plans.entry(observed).or_insert_with(|| self.plan()))
    }

    fn plan(&self) -> Held {
        let key = |template: usize| Key(format!("set-{template}"));
        let existing = (0..SETS).filter(|template| self.sets[*template].exists).map(|template| {
            let set = self.sets[template];
            let numbers = [set.asked, set.existing(), set.ready].map(u32::from);
            summary(&key(template).0, &format!("v1.{template}.0"), i64::from(set.age), numbers)
        });
        let template = format!("v1.{}.0", self.template);
        let view =
            deployment(self.replicas.into(), Self::strategy(self.setting), &template, existing.collect());
        let plan = plan_deployment(&view, at(1000));
        let (minimum, maximum) = self.bounds();
        let mut held = Held { minimum, maximum, current: self.template, ..Held::default() };
        let count = |number: u32| u8::try_from(number).unwrap();
        match plan.current {
            Current::Is(current) => assert_eq!(current, key(self.template.into())),
            Current::Create { name, replicas, .. } => {
                // The name is the same in every history, so no set is made twice.
                NAMES.with_borrow_mut(|names| {
                    assert_eq!(*names.entry(self.template).or_insert_with(|| name.clone()), name);
                });
                held.create = Some((self.template, count(replicas)));
            }
            Current::Wait(_) | Current::Paused => panic!("{plan:?}"),
        }
        for template in 0..SETS {
            let key = key(template);
            let set = self.sets[template];
            held.scale[template] = plan.scale.get(&key).map(|asked| (set.asked, count(*asked)));
            held.delete[template] = plan.delete.contains(&key);
            if plan.notes.get(&key).is_some_and(|notes| notes.contains(&Note::Unblock)) {
                held.unblock = Some(u8::try_from(template).unwrap());
            }
        }
        held
    }

    /// Makes the next write of a process: the current set, then the others from the oldest on, then deletions.
    fn write(&mut self, leader: usize) {
        let mut held = self.held[leader];
        let mut order = [0, 1, 2];
        order.sort_by_key(|template| (*template != usize::from(held.current), self.sets[*template].age));
        if let Some((template, asked)) = held.create.take() {
            let age = self.sets.iter().filter(|set| set.exists).count();
            let set = &mut self.sets[usize::from(template)];
            // A live read shows whether it exists.
            if !set.exists {
                *set = Set { exists: true, age: u8::try_from(age).unwrap(), asked, ready: 0, waiting: 0 };
            }
        } else if let Some(template) = order.into_iter().find(|template| held.scale[*template].is_some()) {
            let (seen, asked) = held.scale[template].take().unwrap();
            let set = &mut self.sets[template];
            // The write is bound to what was read.
            if set.exists && set.asked == seen {
                set.asked = asked;
                if held.unblock == Some(u8::try_from(template).unwrap()) {
                    self.excused += 1;
                }
                if template == usize::from(held.current) {
                    self.excused += seen.saturating_sub(asked);
                }
            }
        } else if let Some(template) = order.into_iter().find(|template| held.delete[*template]) {
            held.delete[template] = false;
            self.delete_set(template);
        }
        self.held[leader] = if held.is_empty() { Held::default() } else { held };
    }

    fn delete_set(&mut self, template: usize) {
        let set = self.sets[template];
        if !set.exists || set.asked > 0 {
            return;
        }
        assert_eq!(set.existing(), 0, "a set is deleted with its Machines: {self:#?}");
        self.sets[template] = Set::default();
        for other in self.sets.iter_mut().filter(|other| other.exists && other.age > set.age) {
            other.age -= 1;
        }
    }

    /// Returns true if the controller of the set may create a Machine.
    fn creates(&self, template: usize) -> bool {
        let set = self.sets[template];
        let is_enabled = self.setting.rolling.is_some() || template == usize::from(self.template);
        set.exists && set.existing() < set.asked && is_enabled
    }

    /// Deletes an available Machine. Enough must stay available.
    fn delete_ready(&mut self, template: usize) {
        self.sets[template].ready -= 1;
        if self.ready() < self.floor {
            assert!(self.excused > 0, "too few Machines stay available: {self:#?}");
            self.excused -= 1;
        }
    }

    /// Corrects the bounds after a step: they follow the replicas once earlier decisions have ended.
    fn with_bounds(mut self, before: &Self) -> Self {
        let (minimum, maximum) = self.bounds();
        let held = |number: fn(&Held) -> u8| {
            self.held.iter().filter(|held| !held.is_empty()).map(number).collect::<Vec<u8>>()
        };
        let highest = held(|held| held.maximum).into_iter().fold(maximum, u8::max);
        assert!(
            self.reserved() <= before.ceiling.max(highest).max(before.reserved()),
            "too many Machines: {before:#?} {self:#?}"
        );
        self.ceiling = highest.max(before.ceiling.min(self.reserved()));
        if self.is_quiet() {
            self.floor = minimum;
            self.excused = 0;
        } else {
            // A Machine that became available after the decision does not count.
            let lowest = held(|held| held.minimum).into_iter().fold(minimum.min(self.ready()), u8::min);
            self.floor = self.floor.min(lowest);
        }
        self
    }

    fn leaders(&self, add: &mut impl FnMut(Self)) {
        for leader in 0..usize::from(self.setting.leaders) {
            let mut next = *self;
            if self.held[leader].is_empty() {
                next.held[leader] = self.decide();
                if !next.held[leader].is_empty() {
                    add(next);
                }
            } else {
                next.write(leader);
                add(next);
                let mut killed = *self;
                killed.held[leader] = Held::default();
                add(killed);
            }
        }
    }

    fn machines(&self, add: &mut impl FnMut(Self)) {
        for template in 0..SETS {
            let set = self.sets[template];
            if self.creates(template) {
                let mut next = *self;
                next.sets[template].waiting += 1;
                // A plan that removes a replica without a Machine may be held. The new Machine has no Node, so the set deletes it before
                // others, unless a user has marked one.
                let removes = |held: &Held| held.scale[template].is_some_and(|(seen, asked)| asked < seen);
                next.excused += u8::from(self.held.iter().any(removes));
                add(next);
            }
            if set.pending() > 0 && set.ready > 0 {
                let mut next = *self;
                next.delete_ready(template);
                add(next);
            }
            if set.pending() > 0 && set.waiting > 0 {
                let mut next = *self;
                next.sets[template].waiting -= 1;
                add(next);
            }
            if set.waiting > 0 {
                let mut next = *self;
                next.sets[template].waiting -= 1;
                next.sets[template].ready += 1;
                add(next);
            }
            if set.ready > 0 && self.failures > 0 {
                let mut next = *self;
                next.failures -= 1;
                next.sets[template].ready -= 1;
                next.sets[template].waiting += 1;
                next.excused += u8::from(!self.is_quiet());
                add(next);
            }
        }
    }

    fn user(&self, add: &mut impl FnMut(Self)) {
        if self.edits > 0 {
            // To the third template, or back.
            for template in [0, 2] {
                add(Self { edits: self.edits - 1, template, ..*self });
            }
        }
        if self.scales > 0 {
            add(Self { scales: 0, replicas: self.replicas + 1, ..*self });
            if self.replicas > 0 {
                add(Self { scales: 0, replicas: self.replicas - 1, ..*self });
            }
        }
        for template in (0..SETS).filter(|template| self.deletions > 0 && self.sets[*template].existing() > 0)
        {
            let mut next = Self { deletions: self.deletions - 1, ..*self };
            let set = &mut next.sets[template];
            if set.ready > 0 {
                set.ready -= 1;
            } else {
                set.waiting -= 1;
            }
            add(next);
        }
    }

    /// Decides and writes without an interruption. A few decisions must leave nothing to do until another actor acts.
    fn reconciled(&self) -> Self {
        let mut next = Self { held: [Held::default(); 2], ..*self };
        for _ in 0..3 {
            next.held[0] = next.decide();
            while !next.held[0].is_empty() {
                next.write(0);
            }
        }
        let again = next.decide();
        assert!(again.is_empty(), "decisions do not end: {self:#?} {again:#?}");
        next
    }

    /// Follows the controllers until nothing changes. Only Machines of the current set become available, and a set deletes available ones
    /// first: the rollout must end nevertheless.
    fn settle(mut self, settled: &mut Worlds<Self>) {
        self.held = [Held::default(); 2];
        (self.floor, self.excused, self.ceiling) = (0, 0, 0);
        let mut path = Vec::new();
        while !settled.contains(&self) {
            path.push(self);
            let mut next = self.reconciled();
            for template in 0..SETS {
                while next.creates(template) {
                    next.sets[template].waiting += 1;
                }
                let set = &mut next.sets[template];
                let pending = set.pending();
                let ready = pending.min(set.ready);
                set.ready -= ready;
                set.waiting -= pending - ready;
            }
            let current = &mut next.sets[usize::from(self.template)];
            current.ready += std::mem::take(&mut current.waiting);
            next.excused = 0;
            if next == self {
                self.check_settled();
                break;
            }
            self = next;
            assert!(path.len() < 60, "does not end: {self:#?}");
        }
        settled.extend(path);
    }

    fn check_settled(&self) {
        let current = self.sets[usize::from(self.template)];
        let total: u8 = self.sets.iter().map(|set| set.existing()).sum();
        assert_eq!(total, self.replicas, "settled with other replicas: {self:#?}");
        if self.setting.rolling.is_some() {
            assert!(current.exists && current.ready == self.replicas, "not complete: {self:#?}");
            assert_eq!(self.sets.iter().filter(|set| set.exists).count(), 1, "old sets stay: {self:#?}");
        }
    }
}

impl super::World for World {
    fn check(&self, settled: &mut Worlds<Self>) {
        self.settle(settled);
    }

    fn next(&self, after: &mut Vec<Self>) {
        let mut add = |next: Self| after.push(next.with_bounds(self));
        self.leaders(&mut add);
        self.machines(&mut add);
        self.user(&mut add);
    }
}

fn run(settings: impl Iterator<Item = (Setting, u8)>, edits: u8, failures: u8, least_states: usize) {
    let start = processor_time();
    let mut report = Report::default();
    for (setting, replicas) in settings {
        let starts = (0..=replicas).map(|waiting| World {
            edits,
            failures,
            ..World::start(setting, replicas, waiting)
        });
        report.add(explore(starts));
    }
    report.end(start, least_states);
}

fn all_bounds(highest: u8) -> impl Iterator<Item = (u8, u8)> + Clone {
    (0..=highest).flat_map(move |surge| (0..=highest).map(move |unavailable| (surge, unavailable)))
}

#[test]
fn md2_bounds_hold_in_every_history() {
    let setting = |bounds| Setting { rolling: Some(bounds), leaders: 1, scales: false };
    let settings = (0..=4).flat_map(|replicas| all_bounds(2).map(move |bounds| (setting(bounds), replicas)));
    run(settings, 0, 1, 10_000);
}

#[test]
fn md2_bounds_hold_when_the_template_is_edited_in_the_middle() {
    let setting = |bounds| Setting { rolling: Some(bounds), leaders: 1, scales: false };
    let settings = (1..=3).flat_map(|replicas| all_bounds(2).map(move |bounds| (setting(bounds), replicas)));
    run(settings, 1, 1, 10_000);
}

#[test]
fn md2_bounds_hold_when_the_replicas_change_in_the_middle() {
    let setting = |bounds| Setting { rolling: Some(bounds), leaders: 1, scales: true };
    let settings = (0..=4).flat_map(|replicas| all_bounds(2).map(move |bounds| (setting(bounds), replicas)));
    run(settings, 0, 1, 10_000);
}

#[test]
fn md10_two_leaders_keep_the_bounds() {
    let setting = |bounds| Setting { rolling: Some(bounds), leaders: 2, scales: false };
    let settings = (1..=4).flat_map(|replicas| all_bounds(2).map(move |bounds| (setting(bounds), replicas)));
    run(settings, 0, 0, 10_000);
}

#[test]
fn md4_deleted_machines_come_back_new_in_every_history() {
    let setting = Setting { rolling: None, leaders: 1, scales: true };
    run((0..=3).map(|replicas| (setting, replicas)), 1, 1, 1000);
}
