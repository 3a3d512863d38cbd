//! Two pxed's of one site, a real API server between them, and BMCs that count: whichever of them is killed or stopped at
//! whichever step of an operation, the other finishes it, and what was asked for happens once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/held.rs"]
mod held;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/pods.rs"]
mod pods;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_tests::bmc::chassis::{Action, Source};
use bedplate_tests::bmc::simulator::Simulator;
use bedplate_tests::objects;
use bedplate_tests::pxed::ask;
use bedplate_tests::timeline;
use held::Held;
use nix::sys::signal::Signal;
use pods::{NAMESPACE, Site, all_seen, apply, get, objects, secret, seen};
use serde_json::{Value, json};

/// State of an operation when its leader is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// powerCycle, taken, without a step.
    Taken,
    /// powerCycle, asked to go off and still on.
    GoesOff,
    /// powerCycle, off, which pxed has not read yet.
    IsOff,
    /// powerCycle, asked to power on and still off.
    GoesOn,
    /// powerCycle, on, which pxed has not read yet.
    IsOn,
    /// reset, taken, without a step.
    ResetTaken,
    /// reset, done, and its answer was lost.
    ResetUnanswered,
    /// powerOff, its system was asked, and shuts down while there is no leader.
    ShutsDown,
    /// powerOff, its system was asked, and does not listen.
    ShutsNever,
}

impl Stage {
    const ALL: [Self; 9] = [
        Self::Taken,
        Self::GoesOff,
        Self::IsOff,
        Self::GoesOn,
        Self::IsOn,
        Self::ResetTaken,
        Self::ResetUnanswered,
        Self::ShutsDown,
        Self::ShutsNever,
    ];

    const fn is_cycle(self) -> bool {
        matches!(self, Self::Taken | Self::GoesOff | Self::IsOff | Self::GoesOn | Self::IsOn)
    }

    const fn operation_name(self) -> &'static str {
        match self {
            Self::ResetTaken | Self::ResetUnanswered => "reset",
            Self::ShutsDown | Self::ShutsNever => "powerOff",
            _ => "powerCycle",
        }
    }

    /// Returns an operation with the name of its Machine.
    fn operation(self, machine: &str) -> Value {
        let operation = objects::operation(machine, self.operation_name()).on(machine);
        match self {
            Self::ResetUnanswered => operation.timeout(25),
            Self::ShutsDown | Self::ShutsNever => operation.parameter("gracePeriodSeconds", "20"),
            _ => operation,
        }
        .json()
    }

    const fn step(self) -> Option<&'static str> {
        match self {
            Self::Taken | Self::ResetTaken => None,
            Self::GoesOff | Self::IsOff => Some("Off"),
            Self::GoesOn | Self::IsOn => Some("On"),
            Self::ResetUnanswered => Some("Reset"),
            Self::ShutsDown | Self::ShutsNever => Some("GracefulOff"),
        }
    }

    /// Requests of its leader before it is killed.
    const fn asked_before(self) -> &'static [Action] {
        match self {
            Self::Taken | Self::ResetTaken => &[],
            Self::GoesOff | Self::IsOff => &[Action::ForceOff],
            Self::GoesOn | Self::IsOn => &[Action::ForceOff, Action::On],
            Self::ResetUnanswered => &[Action::Reset],
            Self::ShutsDown | Self::ShutsNever => &[Action::GracefulOff],
        }
    }

    /// Requests of its successor.
    const fn asked_after(self) -> &'static [Action] {
        match self {
            Self::Taken | Self::GoesOff => &[Action::ForceOff, Action::On],
            Self::IsOff | Self::GoesOn => &[Action::On],
            Self::ResetTaken => &[Action::Reset],
            Self::ShutsNever => &[Action::ForceOff],
            Self::IsOn | Self::ResetUnanswered | Self::ShutsDown => &[],
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::ResetTaken => "Reset",
            Self::ResetUnanswered => "TimedOut",
            Self::ShutsDown | Self::ShutsNever => "PoweredOff",
            _ => "PowerCycled",
        }
    }
}

/// A machine whose operation is to stand at a stage.
struct Case {
    stage: Stage,
    name: String,
    server: Held,
}

impl Case {
    /// Brings its operation to its stage; whether it is there.
    fn advance(&self) -> bool {
        let asked = self.server.asked();
        let is_there = asked == self.stage.asked_before();
        match self.stage {
            Stage::GoesOn | Stage::IsOn if asked == [Action::ForceOff] => self.server.hasten(),
            Stage::IsOff | Stage::IsOn if is_there && !self.server.bmc.faults().hung => {
                self.server.hangs();
                self.server.hasten();
            }
            _ => {}
        }
        is_there
    }
}

/// All stages, behind Redfish and behind RMCP+, all on.
fn cases(site: &Site, simulator: &Simulator) -> Vec<Case> {
    let new = |(number, (stage, is_redfish)): (usize, (Stage, bool))| {
        let protocol = if is_redfish { "redfish" } else { "ipmi" };
        let name = format!("{}-{protocol}-{stage:?}", site.name).to_lowercase();
        let server = Held::new(simulator, 100 + number, is_redfish, stage != Stage::ShutsNever);
        Case { stage, name, server }
    };
    let stages = Stage::ALL.into_iter().flat_map(|stage| [(stage, true), (stage, false)]);
    let cases: Vec<Case> = stages.enumerate().map(new).collect();
    let machine = |(number, case): (usize, &Case)| {
        let mac = format!("52:54:00:00:21:{number:02x}");
        site.machine_object(&case.name, &mac, &case.server.spec(NAMESPACE, site.name))
    };
    site.apply_all(&cases.iter().enumerate().map(machine).collect::<Vec<_>>());
    site.until("all are seen to be on", || {
        let machines = all_seen("machine");
        let on = |case: &Case| {
            machines.iter().any(|machine| {
                machine["metadata"]["name"] == *case.name && machine["status"]["power"]["state"] == "On"
            })
        };
        cases.iter().all(on).then_some(())
    });
    cases
}

fn status_of(operations: &[Arc<Value>], name: &str) -> Value {
    let found = operations.iter().find(|operation| operation["metadata"]["name"] == name);
    found.map(|operation| operation["status"].clone()).unwrap_or_default()
}

fn step_of(status: &Value) -> Option<&str> {
    status["step"]["name"].as_str()
}

/// Begins an operation for each and brings it to its stage, as `leader` carries it out.
fn bring_to_their_stages(site: &Site, cases: &[Case], leader: &str) {
    for case in cases {
        match case.stage {
            Stage::Taken | Stage::ResetTaken => case.server.hangs(),
            Stage::ResetUnanswered => case.server.loses_answers(),
            _ => {}
        }
    }
    // Operations whose time runs start last.
    for cycles in [true, false] {
        let some: Vec<&Case> = cases.iter().filter(|case| case.stage.is_cycle() == cycles).collect();
        let operation = |case: &&Case| case.stage.operation(&case.name);
        site.apply_all(&some.iter().map(operation).collect::<Vec<_>>());
        site.until("everybody at the stage", || {
            let late = some.iter().filter(|case| !case.advance()).count();
            (late == 0).then_some(())
        });
    }
    let executor = format!("pxed/{}/{leader}", site.name);
    site.until("all operations in progress, each in its step", || {
        let operations = all_seen("mop");
        let is_there = |case: &Case| {
            let status = status_of(&operations, &case.name);
            status["state"] == "InProgress"
                && status["executor"] == *executor
                && step_of(&status) == case.stage.step()
        };
        cases.iter().all(is_there).then_some(())
    });
}

/// Lets the power follow requests again, and BMCs answer.
fn release(cases: &[Case]) {
    for case in cases {
        if case.stage == Stage::ShutsDown {
            case.server.hasten();
        }
        case.server.lets_go();
        case.server.bmc.heal().unwrap();
    }
}

/// Waits until `successor` has ended all, and checks the counts of the chassis.
fn each_was_done_once(site: &Site, cases: &[Case], successor: &str) {
    let operations = site.until("the end of all operations", || {
        let operations = all_seen("mop");
        let ended = |case: &Case| {
            let state = status_of(&operations, &case.name)["state"].clone();
            state == "Complete" || state == "Failed"
        };
        cases.iter().all(ended).then_some(operations)
    });
    for case in cases {
        let Case { stage, name, server } = case;
        let status = status_of(&operations, name);
        assert_eq!(status["reason"], stage.reason(), "{name}: {status}");
        assert_eq!(status["executor"], format!("pxed/{}/{successor}", site.name), "{name}: {status}");
        assert_eq!(server.asked(), [stage.asked_before(), stage.asked_after()].concat(), "{name}");
        let changes: Vec<_> = server.changes().iter().map(|change| (change.on, change.boot)).collect();
        match stage.operation_name() {
            "powerCycle" => assert_eq!(changes, [(false, None), (true, Some(Source::Pxe))], "{name}"),
            "reset" => assert_eq!(changes, [], "{name}"),
            _ => assert_eq!(changes, [(false, None)], "{name}"),
        }
        if *stage == Stage::ResetUnanswered {
            assert!(status["message"].to_string().contains("it is not known"), "{status}");
        }
    }
}

#[test]
fn o1_successor_of_a_leader_killed_at_any_step_acts_exactly_once() {
    let site = Site::new("killed");
    let simulator = Simulator::new().unwrap();
    secret(NAMESPACE, site.name);
    let mut one = site.start("one");
    site.led_by("one");
    let mut two = site.start("two");
    let started = Instant::now();
    let cases = cases(&site, &simulator);
    bring_to_their_stages(&site, &cases, "one");
    let staged = started.elapsed();
    one.kill();
    let killed = Instant::now();
    release(&cases);
    site.led_by("two");
    let led = killed.elapsed();
    each_was_done_once(&site, &cases, "two");
    timeline::say(&format!(
        "failover: {} operations at their stages after {staged:.1?}; leader killed; the other leads after {led:.1?}, all \
         finished after {:.1?}",
        cases.len(),
        killed.elapsed()
    ));
    assert_eq!(two.terminate(pods::LIMIT).unwrap().code(), Some(0), "{}", two.said());
}

#[test]
fn pxed_that_was_stopped_beyond_its_lease_sends_nothing_afterwards() {
    let site = Site::new("stopped");
    let simulator = Simulator::new().unwrap();
    secret(NAMESPACE, site.name);
    let mut one = site.start("one");
    site.led_by("one");
    let _two = site.start("two");
    // On its way off; on its way on; asked something, with an answer that comes while pxed does not read it.
    let servers: Vec<Held> = (0..6).map(|n| Held::new(&simulator, 10 + n, n % 2 == 0, true)).collect();
    let names: Vec<String> = (0..6).map(|n| format!("stopped-{n}")).collect();
    let machines = names.iter().zip(&servers).enumerate().map(|(n, (name, server))| {
        site.machine_object(name, &format!("52:54:00:00:30:{n:02x}"), &server.spec(NAMESPACE, site.name))
    });
    site.apply_all(&machines.collect::<Vec<_>>());
    site.until("all are seen to be on", || {
        names.iter().all(|name| seen("machine", name)["status"]["power"]["state"] == "On").then_some(())
    });
    for server in &servers[4..] {
        server.is_slow(Duration::from_secs(2));
    }
    let cycle = |name: &String| objects::operation(name, "powerCycle").on(name).json();
    site.apply_all(&names.iter().map(cycle).collect::<Vec<_>>());
    let asked_on = site.until("two on their way off, two on their way on", || {
        for server in servers[2..4].iter().filter(|server| server.asked() == [Action::ForceOff]) {
            server.hasten();
        }
        let off = servers[..2].iter().all(|server| server.asked() == [Action::ForceOff]);
        let on = servers[2..4].iter().all(|server| server.asked() == [Action::ForceOff, Action::On]);
        (off && on).then(Instant::now)
    });
    // The step is written, what comes next is on its way: the system is read before it is switched.
    site.until_of(("mop", &names[4]), "a slow one in its step", |operation| {
        (step_of(&operation["status"]) == Some("Off")).then_some(())
    });
    one.signal(Signal::SIGSTOP).unwrap();
    let stopped = Instant::now();
    for server in &servers {
        server.lets_go();
        server.bmc.heal().unwrap();
    }
    site.led_by("two");
    for name in &names {
        let status = site.ended(name);
        assert_eq!(
            (&status["reason"], &status["executor"]),
            (&json!("PowerCycled"), &json!("pxed/stopped/two"))
        );
    }
    let finished = stopped.elapsed();
    // A machine on its way on is switched off: the stopped pxed knows only that it must be switched on.
    let off = |name: &String| {
        objects::operation(&format!("{name}-off"), "powerOff").on(name).parameter("force", "true").json()
    };
    site.apply_all(&names[2..4].iter().map(off).collect::<Vec<_>>());
    for name in &names[2..4] {
        assert_eq!(site.ended(&format!("{name}-off"))["reason"], "PoweredOff");
    }
    // After this time it would ask again.
    site.until("its patience to end", || (asked_on.elapsed() > Duration::from_secs(31)).then_some(()));
    let asked = || servers.iter().map(Held::asked).collect::<Vec<_>>();
    let before = asked();
    one.signal(Signal::SIGCONT).unwrap();
    one.wait_said("leadership lost", pods::LIMIT).unwrap();
    one.wait_said("power leadership lost", pods::LIMIT).unwrap();
    let last: Vec<_> = servers.iter().map(|server| server.bmc.report_times().last().copied()).collect();
    site.until("another look at each by the one that leads", || {
        let again =
            servers.iter().zip(&last).all(|(server, last)| server.bmc.report_times().last() > last.as_ref());
        again.then_some(())
    });
    assert_eq!(asked(), before, "{}", one.said());
    for (n, server) in servers.iter().enumerate() {
        let changes: Vec<bool> = server.changes().iter().map(|change| change.on).collect();
        let expected: &[bool] = if (2..4).contains(&n) { &[false, true, false] } else { &[false, true] };
        assert_eq!(changes, expected, "{n}");
    }
    assert_eq!(site.leader().as_deref(), Some("two"));
    assert!(one.is_running(), "{}", one.said());
    timeline::say(&format!("failover: SIGSTOP in mid step: the other has finished all after {finished:.1?}"));
}

#[test]
fn pxed_without_the_lease_neither_asks_a_bmc_nor_writes_power_fields() {
    let site = Site::new("waits");
    // Led by one that this test plays.
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "bedplate-pxed-waits", "namespace": NAMESPACE },
        "spec": { "holderIdentity": "other_1", "leaseDurationSeconds": 600 },
    });
    apply(&lease);
    secret(NAMESPACE, site.name);
    let simulator = Simulator::new().unwrap();
    let server = Held::new(&simulator, 50, true, true);
    let mac = "52:54:00:00:40:01";
    site.machine("waits-a", mac, &server.spec(NAMESPACE, site.name));
    site.machine("waits-b", mac, &json!({}));
    let condition = json!({ "type": "PoweredOn", "status": "False", "reason": "PoweredOff", "message": "the leader's",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let power = json!({ "power": { "state": "Off" }, "conditions": [condition], "hardware": { "bmc": { "vendor": "V" } } });
    objects().apply_status("pxed-power", ("machine", "waits-a"), &power).unwrap();
    let mut one = site.start("one");
    let mut two = site.start("two");
    let says = |status: &Value, what: &str| status["conditions"].to_string().contains(what);
    site.until("both know the leader's word, and one has said its own", || {
        let shown = ["one", "two"].map(|pod| ask(&site.path(&format!("{pod}.sock")), "/v1/machines/waits-a"));
        let known =
            shown.into_iter().all(|shown| shown.is_ok_and(|m| m["status"]["power"]["state"] == "Off"));
        (known && says(&seen("machine", "waits-a")["status"], "DuplicateMACAddress")).then_some(())
    });
    let status = get("machine", "waits-a")["status"].clone();
    assert_eq!(
        (&status["power"]["state"], &status["hardware"]["bmc"]["vendor"]),
        (&json!("Off"), &json!("V"))
    );
    assert_eq!(server.bmc.counters().connections, 0);
    // Given up: one of them leads, and then the other. What either has said of the boot stays all the time.
    lease["spec"]["holderIdentity"] = Value::Null;
    apply(&lease);
    let status_of_the_power = |state: &str| {
        site.until_of(("machine", "waits-a"), &format!("the power state {state}"), |machine| {
            let status = &machine["status"];
            assert!(says(status, "DuplicateMACAddress") && says(status, "PoweredOn"), "{status}");
            (status["power"]["state"] == state).then_some(())
        });
    };
    status_of_the_power("On");
    let first = site.leader().unwrap();
    let (first, other) = if first == "one" { (&mut one, &mut two) } else { (&mut two, &mut one) };
    assert!(!other.said().contains("power leadership acquired"), "{}", other.said());
    first.terminate(pods::LIMIT).unwrap();
    server.lets_go();
    site.operation("waits-off", "powerOff", "waits-a");
    status_of_the_power("Off");
    assert_eq!(site.ended("waits-off")["reason"], "PoweredOff");
    assert_eq!(other.terminate(pods::LIMIT).unwrap().code(), Some(0), "{}", other.said());
}
