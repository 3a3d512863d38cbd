//! Operations against a machine that lies, loses requests, and a pxed that is killed anywhere.

use bedplate_api::machine::BootSource;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::power::progress;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn order(kind: Kind, off: Off) -> Order {
    let timeout = SignedDuration::from_secs(600);
    Order { kind, off, boot: Boot::Network(BootSource::Pxe), timeout }
}

const GRACEFUL: Off = Off::Graceful(None);

fn written(step: Option<StepName>) -> Written {
    Written { start: at(0), step: step.map(|step| (step, at(0))), began_off: false }
}

fn taken() -> Memory {
    Memory { taken: Some(at(0)), ..Memory::default() }
}

fn seen(state: PowerState) -> Seen {
    Seen { reading: Some(Reading { state, at: at(100) }), ..Seen::default() }
}

/// The act at second 100.
fn act(order: &Order, step: Option<StepName>, memory: &Memory, state: PowerState) -> Act {
    next(order, Some(&written(step)), memory, &seen(state), at(100))
}

#[test]
fn each_step_leads_to_the_next_by_what_the_bmc_says() {
    let on = Act::Ask(PowerRequest::On, Boot::Network(BootSource::Pxe));
    let off = Act::Ask(PowerRequest::ForceOff, Boot::Default);
    let wait = Act::Wait(at(102));
    use PowerState::{Off as IsOff, On as IsOn, PoweringOff, PoweringOn, Unknown};
    for (kind, step, state, expected) in [
        (Kind::PowerOn, None, IsOff, Act::WriteStep(StepName::On)),
        (Kind::PowerOn, None, Unknown, wait.clone()),
        (Kind::PowerOn, Some(StepName::On), IsOff, on.clone()),
        (Kind::PowerOn, Some(StepName::On), PoweringOn, wait.clone()),
        (Kind::PowerOff, None, IsOn, Act::WriteStep(StepName::GracefulOff)),
        (Kind::PowerOff, Some(StepName::Off), IsOn, off.clone()),
        (Kind::PowerCycle, None, IsOn, Act::WriteStep(StepName::Off)),
        (Kind::PowerCycle, None, IsOff, Act::WriteStep(StepName::On)),
        (Kind::PowerCycle, None, PoweringOff, wait.clone()),
        (Kind::PowerCycle, Some(StepName::Off), IsOn, off),
        (Kind::PowerCycle, Some(StepName::Off), Unknown, wait),
        (Kind::PowerCycle, Some(StepName::Off), IsOff, Act::WriteStep(StepName::On)),
        (Kind::PowerCycle, Some(StepName::On), IsOff, on),
        (Kind::Reset, None, IsOn, Act::WriteStep(StepName::Reset)),
    ] {
        assert_eq!(
            act(&order(kind, GRACEFUL), step, &taken(), state),
            expected,
            "{kind:?} {step:?} {state:?}"
        );
    }
}

#[test]
fn power_cycle_off_time_counts_from_step_in_object() {
    let on = Act::Ask(PowerRequest::On, Boot::Network(BootSource::Pxe));
    let cycle = order(Kind::PowerCycle, GRACEFUL);
    let in_step =
        |since: i64, began_off| Written { start: at(0), step: Some((StepName::On, at(since))), began_off };
    // The object keeps whole seconds: one more is waited. A step of the future was written by a clock that was set back.
    for (since, began_off, expected) in [
        (100, false, Act::Wait(at(106))),
        (95, false, Act::Wait(at(101))),
        (94, false, on.clone()),
        (0, false, on.clone()),
        (200, false, on.clone()),
        (100, true, on.clone()),
    ] {
        let seen = seen(PowerState::Off);
        let found = next(&cycle, Some(&in_step(since, began_off)), &taken(), &seen, at(100));
        assert_eq!(found, expected, "{since} {began_off}");
    }
    // If the timeout would end during the rest, there is no rest.
    let short = Order { timeout: SignedDuration::from_secs(103), ..cycle };
    let found = next(&short, Some(&in_step(100, false)), &taken(), &seen(PowerState::Off), at(100));
    assert_eq!(found, on);
    // The operation did not ask for a power cycle.
    let found = next(
        &order(Kind::PowerOn, GRACEFUL),
        Some(&in_step(100, false)),
        &taken(),
        &seen(PowerState::Off),
        at(100),
    );
    assert_eq!(found, on);
}

fn end(act: Act) -> (bool, &'static str, String) {
    match act {
        Act::Finish(end) => (end.complete, end.reason.as_str(), end.message),
        other => panic!("{other:?} is no end"),
    }
}

#[test]
fn an_operation_ends_when_the_bmc_says_so_or_says_why_not() {
    use PowerState::{Off as IsOff, On as IsOn};
    for (kind, step, state, complete, reason) in [
        (Kind::PowerOn, None, IsOn, true, "PoweredOn"),
        (Kind::PowerOn, Some(StepName::On), IsOn, true, "PoweredOn"),
        (Kind::PowerOff, None, IsOff, true, "PoweredOff"),
        (Kind::PowerOff, Some(StepName::GracefulOff), IsOff, true, "PoweredOff"),
        (Kind::PowerOff, Some(StepName::Off), IsOff, true, "PoweredOff"),
        (Kind::PowerCycle, Some(StepName::On), IsOn, true, "PowerCycled"),
        (Kind::Reset, None, IsOff, false, "Refused"),
    ] {
        let (c, r, message) = end(act(&order(kind, GRACEFUL), step, &taken(), state));
        assert_eq!((c, r), (complete, reason), "{kind:?} {step:?} {state:?}: {message}");
    }
}

#[test]
fn killed_after_each_write_a_successor_goes_on_from_the_step() {
    // A successor sees the step and the BMC's answers. It takes the operation first: an old state of the object is
    // rejected.
    for step in [None, Some(StepName::Off), Some(StepName::On)] {
        let order = order(Kind::PowerCycle, GRACEFUL);
        let found = next(&order, Some(&written(step)), &Memory::default(), &seen(PowerState::On), at(100));
        assert_eq!(found, Act::Take);
    }
    let cycle = order(Kind::PowerCycle, GRACEFUL);
    assert_eq!(end(act(&cycle, Some(StepName::On), &taken(), PowerState::On)).1, "PowerCycled");
}

#[test]
fn a_reset_that_may_have_been_sent_is_never_sent_again() {
    let reset = order(Kind::Reset, GRACEFUL);
    assert_eq!(act(&reset, Some(StepName::Reset), &taken(), PowerState::On), Act::Wait(at(102)));
    let own = Memory { wrote: Some(StepName::Reset), ..taken() };
    let ask = Act::Ask(PowerRequest::Reset, Boot::Default);
    assert_eq!(act(&reset, Some(StepName::Reset), &own, PowerState::On), ask);
    let lost = Sent { request: PowerRequest::Reset, at: at(90), accepted: false };
    let own = Memory { sent: Some(lost), ..own };
    assert_eq!(act(&reset, Some(StepName::Reset), &own, PowerState::On), Act::Wait(at(102)));
    let booted = Seen { seed_taken: Some(at(95)), ..seen(PowerState::On) };
    let done = next(&reset, Some(&written(Some(StepName::Reset))), &own, &booted, at(100));
    assert_eq!(end(done).1, "Reset");
    let late = next(&reset, Some(&written(Some(StepName::Reset))), &own, &seen(PowerState::On), at(600));
    let (complete, reason, message) = end(late);
    assert_eq!((complete, reason), (false, "TimedOut"));
    assert!(message.contains("it is not known whether"), "{message}");
}

#[test]
fn machine_that_does_not_shut_down_is_forced_only_on_request() {
    let own = Memory { wrote: Some(StepName::GracefulOff), ..taken() };
    let sent = Sent { request: PowerRequest::GracefulOff, at: at(1), accepted: true };
    let asked = Memory { sent: Some(sent), ..own.clone() };
    let cannot = Memory { no_graceful: true, ..own.clone() };
    let grace = |seconds| Off::Graceful(Some(SignedDuration::from_secs(seconds)));
    for (off, memory, expected) in [
        (GRACEFUL, &own, Act::Ask(PowerRequest::GracefulOff, Boot::Default)),
        (GRACEFUL, &asked, Act::Wait(at(102))),
        (grace(300), &asked, Act::Wait(at(102))),
        (grace(101), &asked, Act::Wait(at(101))),
        (grace(100), &asked, Act::WriteStep(StepName::Off)),
        (grace(300), &cannot, Act::WriteStep(StepName::Off)),
    ] {
        let act = act(&order(Kind::PowerOff, off), Some(StepName::GracefulOff), memory, PowerState::On);
        assert_eq!(act, expected, "{off:?} {memory:?}");
    }
    let never = order(Kind::PowerOff, GRACEFUL);
    assert_eq!(end(act(&never, Some(StepName::GracefulOff), &cannot, PowerState::On)).1, "NotSupported");
    let late =
        next(&never, Some(&written(Some(StepName::GracefulOff))), &asked, &late(PowerState::On), at(600));
    let (_, reason, message) = end(late);
    assert!(reason == "TimedOut" && message.contains("gracePeriodSeconds"), "{message}");
}

fn late(state: PowerState) -> Seen {
    Seen { reading: Some(Reading { state, at: at(600) }), ..Seen::default() }
}

#[test]
fn transient_failures_are_retried_45_seconds_wrong_password_is_not() {
    let failure = |transient| Failure {
        fault: BmcFault::BmcUnreachable,
        message: String::new(),
        transient,
        sent: false,
    };
    let trouble = |transient, since| {
        let trouble =
            Trouble { since: at(since), again: at(101), asking: false, failure: failure(transient) };
        Memory { trouble: Some(trouble), ..taken() }
    };
    let on = order(Kind::PowerOn, GRACEFUL);
    assert_eq!(act(&on, None, &trouble(true, 60), PowerState::Off), Act::Wait(at(101)));
    assert_eq!(end(act(&on, None, &trouble(true, 55), PowerState::Off)).1, "BMCUnreachable");
    assert_eq!(end(act(&on, None, &trouble(false, 99), PowerState::Off)).1, "BMCUnreachable");
    // Switched off to be switched on: it is not left off early.
    let cycle = order(Kind::PowerCycle, GRACEFUL);
    assert_eq!(act(&cycle, Some(StepName::On), &trouble(true, 1), PowerState::Off), Act::Wait(at(101)));
}

#[test]
fn a_state_that_contradicts_what_was_just_done_begins_nothing() {
    let last = |leaves_on, second| Some(LastAct { leaves_on, at: at(second) });
    let on = order(Kind::PowerOn, GRACEFUL);
    for (state, last, expected) in [
        (PowerState::Off, last(true, 90), Act::Wait(at(102))),
        (PowerState::Off, last(true, 85), Act::WriteStep(StepName::On)),
        (PowerState::Off, last(false, 99), Act::WriteStep(StepName::On)),
    ] {
        let seen = Seen { last, ..seen(state) };
        assert_eq!(next(&on, Some(&written(None)), &taken(), &seen, at(100)), expected, "{last:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_neither_hides_new_readings_nor_keeps_old_ones() {
    let on = order(Kind::PowerOn, GRACEFUL);
    let ahead = Memory { taken: Some(at(5000)), ..taken() };
    assert_eq!(act(&on, None, &ahead, PowerState::Off), Act::WriteStep(StepName::On));
    let before = Seen { reading: Some(Reading { state: PowerState::Off, at: at(5000) }), ..Seen::default() };
    assert_eq!(next(&on, Some(&written(None)), &ahead, &before, at(100)), Act::Read);
}

/// A machine behind a BMC that tells what was so `lag` ago.
struct Machine {
    states: Vec<(Timestamp, PowerState)>,
    lag: SignedDuration,
    offs: u32,
    resets: u32,
    booted: Option<Timestamp>,
}

impl Machine {
    fn at(&self, time: Timestamp) -> PowerState {
        let state = self.states.iter().rev().find(|(since, _)| *since <= time);
        state.map_or(self.states[0].1, |(_, state)| *state)
    }

    fn reported_state(&self, now: Timestamp) -> PowerState {
        self.at(now - self.lag)
    }

    fn ons(&self) -> usize {
        self.states.iter().skip(1).filter(|(_, state)| *state == PowerState::On).count()
    }

    fn carry_out(&mut self, request: PowerRequest, now: Timestamp) {
        match (request, self.at(now)) {
            (PowerRequest::On, PowerState::Off) => self.states.push((now, PowerState::On)),
            (PowerRequest::ForceOff | PowerRequest::GracefulOff, PowerState::On) => {
                self.states.push((now, PowerState::Off));
                self.offs += 1;
            }
            (PowerRequest::Reset, PowerState::On) => {
                self.resets += 1;
                self.booted = Some(now + SignedDuration::from_secs(5));
            }
            _ => {}
        }
    }
}

/// Fault at an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Fine,
    KilledBefore,
    KilledAfter,
    Lost,
    AnswerLost,
    NotSent,
}

struct World {
    order: Order,
    machine: Machine,
    status: Option<MachineOperationStatus>,
    memory: Memory,
    reading: Option<Reading>,
    now: Timestamp,
}

impl World {
    fn new(order: Order, state: PowerState, lag: i64) -> Self {
        let lag = SignedDuration::from_secs(lag);
        let machine = Machine { states: vec![(at(-100), state)], lag, offs: 0, resets: 0, booted: None };
        Self { order, machine, status: None, memory: Memory::default(), reading: None, now: at(0) }
    }

    fn pass(&mut self, milliseconds: i64) {
        self.now += SignedDuration::from_millis(milliseconds);
    }

    fn killed(&mut self) {
        (self.memory, self.reading) = (Memory::default(), None);
        self.pass(20_000);
    }

    fn write(&mut self, status: MachineOperationStatus, fate: Fate) -> bool {
        if matches!(fate, Fate::Lost | Fate::NotSent) {
            return false;
        }
        // As the object keeps it: in whole seconds.
        let kept = serde_json::to_value(status).unwrap();
        self.status = Some(serde_json::from_value(kept).unwrap());
        if fate == Fate::AnswerLost {
            // The next write is rejected, and the operation is taken again.
            (self.memory, self.reading) = (Memory::default(), None);
            return false;
        }
        true
    }

    fn ask(&mut self, request: PowerRequest, fate: Fate) {
        if !matches!(fate, Fate::Lost | Fate::NotSent) {
            self.machine.carry_out(request, self.now);
        }
        let sent = matches!(fate, Fate::Lost | Fate::AnswerLost);
        if matches!(fate, Fate::Fine | Fate::KilledAfter) {
            self.memory.asked(request, self.now);
        } else {
            let failure =
                Failure { fault: BmcFault::BmcUnreachable, message: String::new(), transient: true, sent };
            self.memory.refused(request, failure, self.now, 0.0);
        }
    }

    fn step(&mut self, fate: Fate) -> bool {
        let written = Written::of(self.status.as_ref(), self.now);
        let seed_taken = self.machine.booted.filter(|booted| *booted <= self.now);
        let seen = Seen { reading: self.reading, seed_taken, last: None };
        let act = next(&self.order, written.as_ref(), &self.memory, &seen, self.now);
        if fate == Fate::KilledBefore && !matches!(act, Act::Wait(_) | Act::Read) {
            self.killed();
            return false;
        }
        self.pass(100);
        let (now, before) = (self.now, self.status.clone());
        match act {
            Act::Take => {
                if self.write(progress::taken(before.as_ref(), "pxed/a/b", now), fate) {
                    self.memory = Memory { taken: Some(now), ..Memory::default() };
                }
            }
            Act::WriteStep(step) => {
                if self.write(progress::with_step(before.as_ref(), step, now), fate) {
                    self.memory.stepped(step);
                }
            }
            Act::Read => self.reading = Some(Reading { state: self.machine.reported_state(now), at: now }),
            Act::Ask(request, _) => self.ask(request, fate),
            Act::Wait(until) => self.now = until,
            Act::Finish(ref end) => {
                let object = json!({ "metadata": { "name": "x" }, "status": before,
                    "spec": { "operationName": "powerOn", "machineRef": { "name": "a" } } });
                let object: MachineOperation = serde_json::from_value(object).unwrap();
                self.write(progress::ended(&object, end, "pxed/a/b", now), fate);
            }
        }
        if fate == Fate::KilledAfter && !matches!(act, Act::Wait(_) | Act::Read) {
            self.killed();
        }
        progress::is_finished(self.status.as_ref())
    }

    fn run(&mut self, fates: &[Fate]) {
        let mut fates = fates.iter().copied();
        for _ in 0..10_000 {
            // Looks and pauses use up no fate: what goes wrong, goes wrong at what counts.
            let quiet = matches!(self.peek(), Act::Wait(_) | Act::Read);
            let fate = if quiet { Fate::Fine } else { fates.next().unwrap_or(Fate::Fine) };
            if self.step(fate) {
                return;
            }
        }
        panic!("it does not end: {:?}", self.status);
    }

    fn peek(&self) -> Act {
        let written = Written::of(self.status.as_ref(), self.now);
        let seed_taken = self.machine.booted.filter(|booted| *booted <= self.now);
        let seen = Seen { reading: self.reading, seed_taken, last: None };
        next(&self.order, written.as_ref(), &self.memory, &seen, self.now)
    }

    fn complete(&self) -> bool {
        self.status.as_ref().and_then(|status| status.state) == Some(OperationState::Complete)
    }
}

#[test]
fn killed_at_any_act_a_power_cycle_is_one_cycle() {
    for lag in [0, 3, 10] {
        for place in 0..8 {
            for fate in [Fate::KilledBefore, Fate::KilledAfter, Fate::Lost, Fate::AnswerLost] {
                let mut fates = vec![Fate::Fine; place];
                fates.push(fate);
                let mut world = World::new(order(Kind::PowerCycle, GRACEFUL), PowerState::On, lag);
                world.run(&fates);
                assert!(world.complete(), "{fate:?} at act {place}, lag {lag}: {:?}", world.status);
                assert_eq!(
                    (world.machine.offs, world.machine.ons()),
                    (1, 1),
                    "{fate:?} at {place}, lag {lag}"
                );
                let [_, off, on] = world.machine.states[..] else { panic!("{:?}", world.machine.states) };
                assert!(
                    on.0.duration_since(off.0) >= POWER_CYCLE_OFF_TIME,
                    "{fate:?} at {place}, lag {lag}: {off:?} {on:?}"
                );
            }
        }
    }
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        4 => Just(Fate::Fine),
        1 => Just(Fate::KilledBefore),
        1 => Just(Fate::KilledAfter),
        1 => Just(Fate::Lost),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::NotSent),
    ];
    proptest::collection::vec(fate, 0..20)
}

proptest! {
    #[test]
    fn whatever_fails_there_is_one_cycle_one_reset_and_an_end(
        fates in fates(), lag in 0_i64..=10, kind in 0_usize..4, on in any::<bool>(), off in 0_usize..3,
    ) {
        let off = [Off::Forced, GRACEFUL, Off::Graceful(Some(SignedDuration::from_secs(30)))][off];
        let order = order(Kind::ALL[kind], off);
        let state = if on { PowerState::On } else { PowerState::Off };
        let mut world = World::new(order, state, lag);
        world.run(&fates);
        let (offs, ons, resets) = (world.machine.offs, world.machine.ons(), world.machine.resets);
        prop_assert!(offs <= 1 && ons <= 1 && resets <= 1);
        let expected = match (order.kind, on) {
            (Kind::PowerOn, on) => (0, usize::from(!on), 0),
            (Kind::PowerOff, on) => (u32::from(on), 0, 0),
            (Kind::PowerCycle, on) => (u32::from(on), 1, 0),
            (Kind::Reset, _) => (0, 0, 1),
        };
        if world.complete() {
            prop_assert_eq!((offs, ons, resets), expected);
        }
        prop_assert!(world.now < at(600 + 20 * 21));
    }
}

#[test]
fn machine_is_not_switched_off_before_required_network_boot_is_set() {
    let boot = Boot::OnlyNetwork(BootSource::Pxe);
    let cycle = Order { boot, ..order(Kind::PowerCycle, GRACEFUL) };
    let off = act(&cycle, Some(StepName::Off), &taken(), PowerState::On);
    assert_eq!(off, Act::Ask(PowerRequest::ForceOff, boot));
    let mut memory = taken();
    let cannot = Failure {
        fault: BmcFault::NotSupported,
        message: "no boot override".to_owned(),
        transient: false,
        sent: false,
    };
    memory.refused(PowerRequest::ForceOff, cannot, at(100), 0.0);
    assert_eq!(end(act(&cycle, Some(StepName::Off), &memory, PowerState::On)).1, "NotSupported");
}

#[test]
fn where_force_is_allowed_a_bmc_that_refuses_to_ask_is_made_to_force() {
    let grace = Off::Graceful(Some(SignedDuration::from_secs(300)));
    for (off, forced) in [(grace, true), (GRACEFUL, false)] {
        let mut memory = Memory { wrote: Some(StepName::GracefulOff), ..taken() };
        let message = "not in this state".to_owned();
        let refused = Failure { fault: BmcFault::Refused, message, transient: false, sent: false };
        memory.refused(PowerRequest::GracefulOff, refused, at(100), 0.0);
        let act = act(&order(Kind::PowerOff, off), Some(StepName::GracefulOff), &memory, PowerState::On);
        if forced {
            assert_eq!(act, Act::WriteStep(StepName::Off));
        } else {
            assert_eq!(end(act).1, "Refused");
        }
    }
}
