//! pxed is killed, or stopped by a signal, at each step of an operation: its successor completes the operation exactly once.

use std::time::Duration;

use bedplate_tests::bmc::chassis::{Action, Delays};
use bedplate_tests::bmc::fault::Faults;
use bedplate_tests::guard::Process;
use serde_json::{Value, json};

use super::rig::{LIMIT, Protocol, Rig, Station};

/// Duration of every change of power: time to see it under way.
const DELAY: Duration = Duration::from_secs(2);
/// Delay of an answer. The request has its effect immediately, and pxed is killed before it gets the answer.
const LATE_MS: u64 = 250;

/// A killed pxed leaves sessions behind, and a full table of them is emptied after a minute.
const LONG: Duration = Duration::from_secs(150);

/// When pxed is killed.
#[derive(Debug, Clone, Copy)]
enum Point {
    /// The operation has just been made.
    Posted,
    /// A step is in the object.
    Step(&'static str),
    /// The BMC has taken a request, whose answer is on its way.
    Asked(Action),
    /// The machine is off, or on.
    Power(bool),
}

struct Site {
    rig: Rig,
    station: Station,
    pxed: Option<Process>,
    made: usize,
}

impl Site {
    /// A machine that is on.
    fn new(label: &str, protocol: Protocol) -> Self {
        let rig = Rig::new(label, "127.0.0.0/8");
        let delays = Delays { on: DELAY, off: DELAY, graceful: Some(DELAY) };
        let station = rig.station("server", protocol, 1, delays);
        rig.machine("server", &station.spec(1));
        station.bmc.set_faults(Faults { slow_ms: LATE_MS, ..Faults::default() }).unwrap();
        let pxed = Some(rig.start());
        let site = Self { rig, station, pxed, made: 0 };
        site.is_on();
        site
    }

    fn is_on(&self) {
        self.rig.wait("the machine to be on", LIMIT, || {
            let seen = self.rig.condition("server", "PoweredOn");
            (self.station.is_on() && seen["status"] == "True").then_some(())
        });
    }

    /// Makes an operation; gives its name.
    fn operate(&mut self, operation: &str, more: &Value) -> String {
        self.made += 1;
        let name = format!("operation-{}", self.made);
        self.rig.operate(&name, "server", operation, more);
        name
    }

    /// Makes an operation and kills pxed at the point; gives how it ended, with what was asked and what changed since.
    fn kill_at(&mut self, point: Point, operation: &str, more: &Value) -> Outcome {
        let before = (self.station.asked().len(), self.station.changes().len());
        let name = self.operate(operation, more);
        self.rig.wait(&format!("{operation} at {point:?}"), LIMIT, || {
            let there = match point {
                Point::Posted => true,
                Point::Step(step) => self.rig.step(&name) == step,
                Point::Asked(action) => self.station.asked()[before.0..].contains(&action),
                Point::Power(on) => self.station.changes()[before.1..].contains(&on),
            };
            there.then_some(())
        });
        self.pxed = self.pxed.take().map(|pxed| self.rig.restart(pxed));
        let (state, reason, message) = self.rig.ended(&name, LONG);
        Outcome {
            what: format!("{point:?}: {state} {reason}: {message}"),
            state,
            reason,
            asked: self.station.asked()[before.0..].to_vec(),
            changes: self.station.changes()[before.1..].to_vec(),
        }
    }
}

struct Outcome {
    what: String,
    state: String,
    reason: String,
    asked: Vec<Action>,
    changes: Vec<bool>,
}

/// Runs each case at a site of its own and all concurrently, because they mostly wait.
fn at_once<T: Copy + Send>(cases: &[T], test: impl Fn(T) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for case in cases.iter().copied() {
            scope.spawn(move || test(case));
        }
    });
}

fn cycles_once(protocol: Protocol) {
    let points = [
        Point::Posted,
        Point::Step("Off"),
        Point::Asked(Action::ForceOff),
        Point::Power(false),
        Point::Step("On"),
        Point::Asked(Action::On),
        Point::Power(true),
    ];
    at_once(&points, |point| {
        let mut site = Site::new("killed-cycle", protocol);
        let Outcome { what, state, changes, asked, .. } = site.kill_at(point, "powerCycle", &json!({}));
        assert_eq!((&*state, &changes[..]), ("Complete", &[false, true][..]), "{what}: {asked:?}");
        site.is_on();
        site.rig.keeps_its_secrets();
    });
}

#[test]
fn power_cycle_by_redfish_killed_at_each_step_is_one_off_and_one_on() {
    cycles_once(Protocol::Redfish);
}

#[test]
fn power_cycle_by_ipmi_killed_at_each_step_is_one_off_and_one_on() {
    cycles_once(Protocol::Ipmi);
}

fn stays_off(protocol: Protocol) {
    let graceful = json!({ "parameters": { "gracePeriodSeconds": "6" } });
    let forced = json!({ "parameters": { "force": "true" } });
    let cases = [
        (Point::Posted, &graceful),
        (Point::Step("GracefulOff"), &graceful),
        (Point::Asked(Action::GracefulOff), &graceful),
        (Point::Asked(Action::ForceOff), &forced),
        (Point::Power(false), &forced),
    ];
    at_once(&cases, |(point, more)| {
        let mut site = Site::new("killed-off", protocol);
        let Outcome { what, state, changes, asked, .. } = site.kill_at(point, "powerOff", more);
        assert_eq!((&*state, &changes[..]), ("Complete", &[false][..]), "{what}: {asked:?}");
        let pressed = asked.iter().filter(|action| **action == Action::GracefulOff).count();
        assert!(pressed <= 1, "{what}: {asked:?}");
        site.rig.wait(&format!("it to be held off after {point:?}"), LIMIT, || {
            (site.rig.condition("server", "PoweredOn")["reason"] == "PoweredOffByOperation").then_some(())
        });
        assert!(!site.station.is_on(), "after {point:?}");
        let on = site.operate("powerOn", &json!({}));
        assert_eq!(site.rig.ended(&on, LONG).0, "Complete");
        site.is_on();
    });
}

#[test]
fn a_power_off_over_redfish_that_is_killed_is_one_off_and_stays_off() {
    stays_off(Protocol::Redfish);
}

#[test]
fn a_power_off_over_ipmi_that_is_killed_is_one_off_and_stays_off() {
    stays_off(Protocol::Ipmi);
}

fn is_reset_once_at_most(protocol: Protocol, killed: Option<Point>) {
    let mut site = Site::new("killed-reset", protocol);
    if let Some(point) = killed {
        let short = json!({ "timeoutSeconds": 8 });
        let Outcome { what, state, reason, asked, changes } = site.kill_at(point, "reset", &short);
        assert_eq!((&*state, &*reason), ("Failed", "TimedOut"), "{what}");
        assert!(what.contains("it is not known whether"), "{what}");
        assert!(asked.len() <= 1 && changes.is_empty(), "{what}: {asked:?}");
    }
    // An undisturbed one.
    let before = site.station.asked().len();
    let name = site.operate("reset", &json!({}));
    let (state, reason, message) = site.rig.ended(&name, LONG);
    assert_eq!((&*state, &*reason), ("Complete", "Reset"), "{message}");
    assert_eq!(site.station.asked()[before..], [Action::Reset]);
}

#[test]
fn a_reset_that_is_killed_is_never_asked_for_twice() {
    let points = [Some(Point::Step("Reset")), Some(Point::Asked(Action::Reset)), None];
    let cases: Vec<_> =
        points.iter().flat_map(|point| [(Protocol::Redfish, *point), (Protocol::Ipmi, *point)]).collect();
    at_once(&cases, |(protocol, point)| is_reset_once_at_most(protocol, point));
}

fn drains(protocol: Protocol, step: &str) {
    let mut site = Site::new("drained", protocol);
    let before = site.station.changes().len();
    let name = site.operate("powerCycle", &json!({}));
    site.rig.wait(&format!("step {step}"), LIMIT, || (site.rig.step(&name) == step).then_some(()));
    let mut pxed = site.pxed.take().unwrap();
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    assert_eq!(site.station.bmc.counters().open_sessions, 0, "in step {step}");
    site.pxed = Some(site.rig.restart(pxed));
    let (state, _, message) = site.rig.ended(&name, LONG);
    let changes = &site.station.changes()[before..];
    assert_eq!((&*state, changes), ("Complete", &[false, true][..]), "{step}: {message}");
    site.is_on();
}

#[test]
fn stopped_pxed_leaves_no_bmc_session_and_its_successor_continues() {
    let cases = ["Off", "On"].map(|step| [(Protocol::Redfish, step), (Protocol::Ipmi, step)]).concat();
    at_once(&cases, |(protocol, step)| drains(protocol, step));
}
