//! The engine against a simulated site, in simulated time.

mod world;

mod claims;
mod departure;
mod shutdown;
mod takeover;

use bedplate_api::machine::{Machine, PowerState};
use bedplate_api::operation::OperationState;
use bedplate_api::wire::Stage;
use serde_json::json;
use tokio::time::Instant;

use self::world::{World, machine};
use super::*;
use crate::power::bmc::destination::ANNOTATION;

fn one(power: PowerState) -> World {
    World::new([machine("node1", "bmc1", json!({}))], power)
}

/// One of the machines of an enclosure.
fn behind(address: &str, number: usize) -> Machine {
    let mut machine = machine(&format!("node{number}"), address, json!({}));
    let redfish = serde_json::from_value(json!({ "systemID": number.to_string() })).unwrap();
    machine.spec.bmc.as_mut().unwrap().redfish = Some(redfish);
    machine
}

fn asked(world: &World, address: &str) -> Vec<String> {
    world.bmc(address, |bmc| bmc.requests.iter().map(|(_, what)| what.clone()).collect())
}

fn power_of(world: &World, address: &str) -> PowerState {
    world.bmc(address, |bmc| bmc.states.last().unwrap().1)
}

#[tokio::test(start_paused = true)]
async fn bios_machine_is_asked_to_boot_as_bios_by_plan_and_by_operation() {
    let pxe = json!({"pxe": {"interfaces": [], "firmware": "BIOS"}});
    let world = World::new([machine("node1", "bmc1", pxe)], PowerState::Off);
    let pxed = world.start("a");
    assert!(world.until(1, |world| power_of(world, "bmc1") == PowerState::On).await);
    assert_eq!(asked(&world, "bmc1"), ["boot from Pxe as Legacy", "power on"]);
    world.operate("op", "node1", "powerCycle", json!({}));
    assert!(world.until(60, |world| asked(world, "bmc1").len() == 5).await, "{:?}", asked(&world, "bmc1"));
    let expected = ["forced power off", "boot from Pxe as Legacy", "power on"];
    assert_eq!(asked(&world, "bmc1")[2..], expected);
    pxed.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn h2_a_new_machine_is_switched_on_from_the_network_at_once_and_only_once() {
    let world = one(PowerState::Off);
    let pxed = world.start("a");
    assert!(world.until(1, |world| power_of(world, "bmc1") == PowerState::On).await);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), ["boot from Pxe", "power on"]);
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOn");
    assert_eq!(world.reason("node1", "BMCReachable"), "Reachable");
    let status = world.status("node1");
    assert_eq!(status.power.unwrap().attempts, Some(1));
    assert_eq!(status.hardware.unwrap().bmc.unwrap().vendor.as_deref(), Some("Acme"));
    assert_eq!(world.events(), ["PowerChanged"]);
    pxed.stop.cancel();
    pxed.task.await.unwrap();
    assert_eq!(world.bmc("bmc1", |bmc| bmc.closed), 1);
}

#[tokio::test(start_paused = true)]
async fn two_machines_that_claim_one_bmc_are_not_driven_until_one_lets_go() {
    let machines = [machine("node1", "bmc1", json!({})), machine("node2", "bmc1", json!({}))];
    let world = World::new(machines, PowerState::Off);
    let pxed = world.start("a");
    world.operate("op", "node2", "powerOn", json!({}));
    assert!(world.until(60, |world| world.ended("op").is_some()).await);
    assert_eq!(world.ended("op").unwrap(), (OperationState::Failed, "DuplicateBMC".to_owned()));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    assert_eq!(world.reason("node1", "BMCReachable"), "DuplicateBMC");
    assert_eq!(world.state().logins, 0);
    let events = world.events();
    assert!(events.contains(&"DuplicateBMC") && events.contains(&"OperationFailed"), "{events:?}");
    world.change("node2", |machine| machine.spec.bmc = None);
    assert!(world.until(5, |world| power_of(world, "bmc1") == PowerState::On).await);
    assert_eq!(world.reason("node1", "BMCReachable"), "Reachable");
    pxed.stop.cancel();
}

fn has_reports(world: &World) -> bool {
    let status = world.status("node1");
    let has_bmc = status.hardware.is_some_and(|hardware| hardware.bmc.is_some());
    has_bmc || ["BMCReachable", "PoweredOn"].iter().any(|type_| !world.reason("node1", type_).is_empty())
}

#[tokio::test(start_paused = true)]
async fn bmc_that_was_removed_leaves_no_report_also_after_a_restart() {
    for provider in ["pxe", "manual"] {
        let world = World::new([machine("node1", "bmc1", json!({ "provider": provider }))], PowerState::Off);
        let first = world.start("a");
        assert!(world.until(5, |world| world.reason("node1", "BMCReachable") == "Reachable").await);
        assert!(world.until(5, |world| !world.reason("node1", "PoweredOn").is_empty()).await);
        world.change("node1", |machine| machine.spec.bmc = None);
        assert!(world.until(5, |world| !has_reports(world)).await, "{provider}: {:?}", world.status("node1"));
        assert_eq!(world.status("node1").power.is_some(), provider == "pxe", "it was switched on");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!has_reports(&world), "{provider}: {:?}", world.status("node1"));
        first.task.abort();
        // The next leader finds what the object had before.
        world.registry.update(&"node1".parse().unwrap(), |status| {
            status.power = serde_json::from_value(json!({ "state": "Off" })).unwrap();
            let reason = bedplate_api::reason::machine::PoweredOnReason::PoweredOff;
            crate::status::set_condition(status, false, reason, "off", None, Timestamp::now());
        });
        let second = world.start("b");
        assert!(world.until(5, |world| !has_reports(world)).await, "{provider}: {:?}", world.status("node1"));
        assert_eq!(world.status("node1").power, None, "{provider}");
        second.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn o7_power_off_counts_when_a_removed_bmc_comes_back() {
    let world = one(PowerState::On);
    let pxed = world.start("a");
    world.operate("off", "node1", "powerOff", json!({ "force": "true" }));
    assert!(world.until(60, |world| world.ended("off").is_some()).await);
    let mut bmc = None;
    world.change("node1", |machine| bmc = machine.spec.bmc.take());
    assert!(world.until(5, |world| !has_reports(world)).await);
    world.change("node1", |machine| machine.spec.bmc = bmc);
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!(asked(&world, "bmc1"), ["forced power off"]);
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
    pxed.stop.cancel();
}

/// The attack: a user may create Machines, and names the Secret of another rack with an address of their own.
#[tokio::test(start_paused = true)]
async fn credentials_are_not_sent_to_an_address_that_their_secret_does_not_list() {
    let machines = [
        machine("node1", "10.9.0.21", json!({})),
        machine("node2", "https://198.51.100.7", json!({})),
        machine("node3", "10-9-0-21.evil.example", json!({})),
    ];
    let world = World::new(machines, PowerState::Off);
    world.state().listed = Some("10.9.0.0/24, *.rack1.example".to_owned());
    let pxed = world.start("a");
    for node in ["node2", "node3"] {
        world.operate(node, node, "powerOn", json!({}));
        assert!(world.until(60, |world| world.ended(node).is_some()).await);
        let refused = (OperationState::Failed, "CredentialsNotForThisAddress".to_owned());
        assert_eq!(world.ended(node).unwrap(), refused);
        assert_eq!(world.reason(node, "BMCReachable"), "CredentialsNotForThisAddress");
        let message = world.message_of(node);
        assert!(message.contains("Secret n/s") && message.contains(ANNOTATION), "{message}");
        assert!(message.contains("docs/guides/bmc.md") && !message.contains("rack1"), "{message}");
    }
    assert!(world.until(5, |world| power_of(world, "10.9.0.21") == PowerState::On).await);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.state().dialed, ["10.9.0.21"]);
    let count = world.events().into_iter().filter(|reason| *reason == "CredentialsNotForThisAddress").count();
    assert_eq!(count, 2, "once for each Machine");
    // Listed later, it is used without a change of the Machine.
    world.state().listed = Some("10.9.0.0/24,198.51.100.7".to_owned());
    assert!(world.until(120, |world| world.reason("node2", "BMCReachable") == "Reachable").await);
    assert_eq!(world.reason("node3", "BMCReachable"), "CredentialsNotForThisAddress");
    pxed.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn credentials_are_not_sent_where_their_secret_lists_no_address() {
    let world = one(PowerState::Off);
    world.state().listed = Some(String::new());
    let pxed = world.start("a");
    assert!(world.until(60, |w| w.reason("node1", "BMCReachable") == "CredentialsNotForThisAddress").await);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.state().dialed, Vec::<String>::new());
    pxed.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn plain_http_and_unverified_certificates_are_used_only_if_allowed() {
    for allowed in [false, true] {
        let insecure = |name: &str, address: &str| {
            let mut machine = machine(name, address, json!({}));
            let redfish = serde_json::from_value(json!({ "tls": { "mode": "Insecure" } })).unwrap();
            machine.spec.bmc.as_mut().unwrap().redfish = Some(redfish);
            machine
        };
        let machines = [insecure("node1", "http://bmc1"), insecure("node2", "bmc2")];
        let world = World::new(machines, PowerState::Off);
        world.state().allows_insecure = allowed;
        world.state().listed = Some("bmc1,bmc2".to_owned());
        let pxed = world.start("a");
        let expected = if allowed { "Reachable" } else { "InsecureNotAllowed" };
        for node in ["node1", "node2"] {
            assert!(world.until(60, |world| world.reason(node, "BMCReachable") == expected).await, "{node}");
        }
        assert_eq!(world.state().dialed.is_empty(), !allowed, "{:?}", world.state().dialed);
        pxed.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_switched_before_the_source_of_machines_has_spoken() {
    let world = one(PowerState::Off);
    world.source.send_replace(SourceState::default());
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    world.source.send_replace(SourceState { synced: true, ..SourceState::default() });
    assert!(world.until(2, |world| power_of(world, "bmc1") == PowerState::On).await);
}

#[tokio::test(start_paused = true)]
async fn power_loops_end_with_the_source_of_operations() {
    let world = one(PowerState::On);
    let mut pxed = world.start("a");
    assert!(world.until(2, |world| world.state().logins > 0).await);
    world.end_operations();
    let ended = tokio::time::timeout(Duration::from_secs(600), &mut pxed.task).await;
    ended.expect("no loop is left").unwrap();
}

#[tokio::test(start_paused = true)]
async fn machine_that_does_not_stay_on_is_left_after_five_attempts() {
    let world = one(PowerState::Off);
    let _pxed = world.start("a");
    for _ in 0..7200 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.bmc("bmc1", |bmc| bmc.states.push((Instant::now(), PowerState::Off)));
    }
    let times: Vec<_> = world.bmc("bmc1", |bmc| {
        let ons = bmc.requests.iter().filter(|(_, what)| what == "power on");
        ons.map(|(at, _)| *at).collect()
    });
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert_eq!(times.len(), 5, "{pauses:?}");
    for (pause, expected) in pauses.iter().zip([60, 120, 240, 480]) {
        assert!((expected..expected + 75).contains(pause), "{pauses:?}");
    }
    assert_eq!(world.reason("node1", "PoweredOn"), "PowerOnAttemptsExhausted");
    world.operate("on", "node1", "powerOn", json!({}));
    assert!(world.until(10, |world| world.ended("on").is_some()).await);
    assert_eq!(world.ended("on").unwrap(), (OperationState::Complete, "PoweredOn".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn machine_that_keeps_going_off_is_not_switched_on_forever() {
    let world = one(PowerState::Off);
    let _pxed = world.start("a");
    for _ in 0..90 {
        tokio::time::sleep(Duration::from_secs(50)).await;
        if power_of(&world, "bmc1") == PowerState::On {
            world.comes_up("node1");
        }
        tokio::time::sleep(Duration::from_secs(50)).await;
        world.bmc("bmc1", |bmc| bmc.states.push((Instant::now(), PowerState::Off)));
    }
    let count = asked(&world, "bmc1").iter().filter(|what| *what == "power on").count();
    assert_eq!(count, 5);
    assert_eq!(world.reason("node1", "PoweredOn"), "PowerOnAttemptsExhausted");
    // The count starts over after a machine has stayed up for a while.
    world.operate("on", "node1", "powerOn", json!({}));
    assert!(world.until(10, |world| power_of(world, "bmc1") == PowerState::On).await);
    for _ in 0..3 {
        world.comes_up("node1");
        tokio::time::sleep(Duration::from_secs(700)).await;
        world.bmc("bmc1", |bmc| bmc.states.push((Instant::now(), PowerState::Off)));
        assert!(world.until(75, |world| power_of(world, "bmc1") == PowerState::On).await);
        assert_eq!(world.status("node1").power.unwrap().attempts, Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn operations_are_carried_out_and_hold_what_was_switched_off() {
    let world = one(PowerState::On);
    let _pxed = world.start("a");
    for (name, parameters, reason) in [
        ("powerCycle", json!({}), "PowerCycled"),
        ("reset", json!({}), "Reset"),
        ("powerOff", json!({}), "PoweredOff"),
        ("powerOff", json!({"force": "perhaps"}), "InvalidParameters"),
    ] {
        let operation = format!("{}-{}", name.to_lowercase(), reason.to_lowercase());
        world.operate(&operation, "node1", name, parameters);
        assert!(world.until(60, |world| world.ended(&operation).is_some()).await, "{operation}");
        assert_eq!(world.ended(&operation).unwrap().1, reason);
    }
    let expected = ["forced power off", "boot from Pxe", "power on", "reset", "graceful power off"];
    assert_eq!(asked(&world, "bmc1"), expected);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(power_of(&world, "bmc1"), PowerState::Off);
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
}

#[tokio::test(start_paused = true)]
async fn o7_power_of_other_providers_is_switched_by_operations_alone() {
    for provider in ["manual", "azure"] {
        let mut node = machine("node1", "bmc1", json!({"provider": provider}));
        node.spec.pxe = None;
        let world = World::new([node], PowerState::Off);
        let _pxed = world.start("a");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(asked(&world, "bmc1"), Vec::<String>::new(), "{provider}");
        assert_eq!(world.reason("node1", "BMCReachable"), "Reachable", "{provider}");
        assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOff", "{provider}");
        for (operation, reason) in [("powerOn", "PoweredOn"), ("powerCycle", "PowerCycled")] {
            let name = format!("{provider}-{}", operation.to_lowercase());
            world.operate(&name, "node1", operation, json!({}));
            assert!(world.until(60, |world| world.ended(&name).is_some()).await, "{name}");
            assert_eq!(world.ended(&name).unwrap().1, reason, "{name}");
        }
        let expected = ["power on", "forced power off", "power on"];
        assert_eq!(asked(&world, "bmc1"), expected, "its own boot order decides: {provider}");
    }
}

#[tokio::test(start_paused = true)]
async fn operation_whose_answer_panicked_is_answered_later() {
    let world = one(PowerState::Off);
    world.change("node1", |machine| machine.spec.bmc = None);
    world.state().panics = true;
    let _pxed = world.start("a");
    world.operate("first", "node1", "powerCycle", json!({}));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.ended("first"), None);
    world.operate("second", "node1", "powerCycle", json!({}));
    assert!(
        world.until(60, |world| ["first", "second"].iter().all(|name| world.ended(name).is_some())).await
    );
}

#[tokio::test(start_paused = true)]
async fn one_dead_bmc_delays_no_other() {
    let names = |n: usize| (format!("node{n}"), format!("bmc{n}"));
    let machines = (0..50).map(|n| machine(&names(n).0, &names(n).1, json!({})));
    let world = World::new(machines, PowerState::Off);
    world.bmc("bmc7", |bmc| bmc.hangs = usize::MAX);
    let _pxed = world.start("a");
    let others_on =
        |world: &World| (0..50).filter(|n| *n != 7).all(|n| power_of(world, &names(n).1) == PowerState::On);
    assert!(world.until(1, others_on).await);
    assert!(world.until(600, |world| world.reason("node7", "BMCReachable") == "TimedOut").await);
}

#[tokio::test(start_paused = true)]
async fn an_operation_interrupts_a_look_that_hangs() {
    let world = one(PowerState::On);
    world.bmc("bmc1", |bmc| bmc.hangs = 1);
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.operate("cycle", "node1", "powerCycle", json!({}));
    assert!(world.until(10, |world| world.ended("cycle").is_some()).await);
}

#[tokio::test(start_paused = true)]
async fn a_dead_bmc_is_asked_less_and_less_and_says_when_again() {
    let world = one(PowerState::On);
    world.bmc("bmc1", |bmc| bmc.dead = true);
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let looks = world.bmc("bmc1", |bmc| bmc.looks.clone());
    let pauses: Vec<_> = looks.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    for (pause, expected) in pauses.iter().zip([2.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0]) {
        assert!((pause - expected).abs() <= 0.25 * expected + 0.2, "{pauses:?}");
    }
    assert!(looks.len() < 26, "{pauses:?}");
    assert_eq!(world.reason("node1", "BMCReachable"), "BMCUnreachable");
    assert_eq!(world.events(), ["BMCUnreachable"]);
    // A user's operation is tried immediately, even if the breaker is open.
    world.bmc("bmc1", |bmc| bmc.dead = false);
    world.operate("off", "node1", "powerOff", json!({"force": "true"}));
    assert!(world.until(5, |world| world.ended("off").is_some()).await);
    assert_eq!(world.reason("node1", "BMCReachable"), "Reachable");
}

#[tokio::test(start_paused = true)]
async fn an_operation_at_a_dead_bmc_fails_after_45_seconds() {
    let world = one(PowerState::On);
    world.bmc("bmc1", |bmc| bmc.dead = true);
    let _pxed = world.start("a");
    let started = Instant::now();
    world.operate("on", "node1", "powerOn", json!({}));
    assert!(world.until(100, |world| world.ended("on").is_some()).await);
    assert_eq!(world.ended("on").unwrap(), (OperationState::Failed, "BMCUnreachable".to_owned()));
    assert!((40..55).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn wrong_password_is_tried_once_for_all_machines_of_an_address() {
    let machines = (0..10).map(|n| behind("bmc", n));
    let world = World::new(machines, PowerState::On);
    world.state().password = "right".to_owned();
    world.state().secret = "wrong".to_owned();
    let _pxed = world.start("a");
    world.operate("on", "node3", "powerOn", json!({}));
    tokio::time::sleep(Duration::from_secs(7200)).await;
    assert_eq!(world.state().logins, 1);
    assert_eq!(world.ended("on").unwrap().1, "AuthenticationFailed");
    assert_eq!(world.reason("node9", "BMCReachable"), "AuthenticationFailed");
    world.state().secret = "right".to_owned();
    let all =
        |world: &World| (0..10).all(|n| world.reason(&format!("node{n}"), "BMCReachable") == "Reachable");
    assert!(world.until(70, all).await);
}

#[tokio::test(start_paused = true)]
async fn killed_at_each_write_and_request_a_successor_makes_exactly_one_cycle() {
    for place in 0..12 {
        let world = one(PowerState::On);
        world.bmc("bmc1", |bmc| bmc.lag = Duration::from_secs(10));
        let first = world.start("a");
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.state().killed_after = Some(place);
        world.operate("cycle", "node1", "powerCycle", json!({}));
        let killed = tokio::time::timeout(Duration::from_secs(300), world.killed.notified()).await.is_ok();
        first.task.abort();
        world.state().killed_after = None;
        let _second = world.start("b");
        assert!(world.until(120, |world| world.ended("cycle").is_some()).await, "{place}");
        assert_eq!(world.ended("cycle").unwrap().1, "PowerCycled", "{place}");
        assert_eq!(world.bmc("bmc1", |bmc| bmc.changes()), (1, 1), "{place}");
        assert_eq!(killed, place < 12, "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_switched_before_it_is_known_what_operations_there_are() {
    let world = one(PowerState::On);
    let first = world.start("a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // pxed is killed after the BMC has switched the machine off: it is off, and should run.
    world.state().killed_after = Some(5);
    world.operate("cycle", "node1", "powerCycle", json!({}));
    world.killed.notified().await;
    first.task.abort();
    world.state().killed_after = None;
    assert_eq!(power_of(&world, "bmc1"), PowerState::Off);
    let second = world.start_unreported("b");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(
        world.bmc("bmc1", |bmc| bmc.changes()),
        (1, 0),
        "switched on while its cycle stands in step Off"
    );
    world.tell_all();
    assert!(world.until(60, |world| world.ended("cycle").is_some()).await);
    assert_eq!(world.bmc("bmc1", |bmc| bmc.changes()), (1, 1));
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn machine_switched_off_stays_off_when_pxed_is_killed_before_store() {
    let world = one(PowerState::On);
    let first = world.start("a");
    assert!(world.until(5, |world| world.status("node1").power.is_some()).await);
    let kept = world.status("node1");
    world.operate("off", "node1", "powerOff", json!({"force": "true"}));
    assert!(world.until(60, |world| world.ended("off").is_some()).await);
    first.task.abort();
    world.registry.update(&"node1".parse().unwrap(), |status| *status = kept);
    let _second = world.start("b");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), ["forced power off"]);
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
}

#[tokio::test(start_paused = true)]
async fn lost_leadership_stops_requests_and_successor_finishes_step() {
    let world = one(PowerState::On);
    world.bmc("bmc1", |bmc| bmc.lag = Duration::from_secs(10));
    let first = world.start("a");
    world.operate("cycle", "node1", "powerCycle", json!({}));
    assert!(world.until(5, |world| power_of(world, "bmc1") == PowerState::Off).await);
    first.lead.send_replace(None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(asked(&world, "bmc1"), ["forced power off"]);
    assert_eq!(world.bmc("bmc1", |bmc| bmc.closed), 1);
    let _second = world.start("b");
    assert!(world.until(60, |world| world.ended("cycle").is_some()).await);
    assert_eq!(world.bmc("bmc1", |bmc| bmc.changes()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_stops_requests_by_itself() {
    let world = one(PowerState::On);
    let first = world.start("a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.lead.send_replace(Some(Instant::now() + Duration::from_secs(3)));
    tokio::time::sleep(Duration::from_secs(4)).await;
    world.operate("off", "node1", "powerOff", json!({"force": "true"}));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    first.lead.send_replace(Some(Instant::now() + Duration::from_secs(600)));
    assert!(world.until(10, |world| world.ended("off").is_some()).await);
}

#[tokio::test(start_paused = true)]
async fn two_thousand_workers_at_rest_only_look_once_a_minute() {
    let machines = (0..2000).map(|n| machine(&format!("node{n}"), &format!("bmc{n}"), json!({})));
    let world = World::new(machines, PowerState::On);
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(30)).await;
    let looks = |world: &World| world.state().bmcs.values().map(|bmc| bmc.looks.len()).sum::<usize>();
    let before = looks(&world);
    assert_eq!(before, 2000);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let looked = looks(&world) - before;
    assert!((18_000..=22_000).contains(&looked), "{looked}");
}

#[tokio::test(start_paused = true)]
async fn standalone_operation_without_machine_reports_it_and_times_out() {
    let force = json!({"force": "true"});
    let machines = ["node1", "late"].map(|name| machine(name, &format!("bmc-{name}"), json!({})));
    let world = World::new(machines.clone(), PowerState::On);
    world.know(machines[..1].to_vec());
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    for name in ["late", "never"] {
        world.operate(name, name, "powerOff", force.clone());
    }
    let is_unknown =
        |name: &str| world.message_of(name).contains(&format!("this site has no Machine {name}"));
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(is_unknown("late") && is_unknown("never"), "{}", world.message_of("late"));
    // The Machine may be in the file that has an error.
    let mistaken =
        SourceState { synced: true, problems: vec!["broken".to_owned()], ..SourceState::default() };
    world.source.send_replace(mistaken);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((world.ended("late"), world.ended("never")), (None, None));
    world.source.send_replace(SourceState { synced: true, ..SourceState::default() });
    world.know(machines.to_vec());
    assert!(world.until(10, |world| world.ended("late").is_some()).await);
    assert_eq!(world.ended("late").unwrap().1, "PoweredOff");
    assert!(world.until(60, |world| world.ended("never").is_some()).await);
    assert_eq!(world.ended("never").unwrap(), (OperationState::Failed, "MachineNotFound".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn in_a_cluster_an_operation_for_no_machine_is_the_controllers() {
    let world = one(PowerState::On);
    world.state().is_cluster = true;
    let _pxed = world.start("a");
    world.operate("never", "never", "powerOff", json!({}));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.message_of("never"), "");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_others_write_to_does_not_make_a_reset_forgotten() {
    let world = one(PowerState::On);
    let _pxed = world.start("a");
    world.touch_at_the_end("reset");
    world.operate("reset", "node1", "reset", json!({}));
    assert!(world.until(60, |world| world.ended("reset").is_some()).await);
    assert_eq!(world.ended("reset").unwrap().1, "Reset");
    assert_eq!(asked(&world, "bmc1"), ["reset"]);
}

#[tokio::test(start_paused = true)]
async fn trust_6_a_switch_is_a_request_that_was_sent() {
    let switched = |world: &World| world.status("node1").power.and_then(|power| power.last_switch_time);
    let world = one(PowerState::On);
    let _pxed = world.start("a");
    let last = |world: &World| world.status("node1").power.and_then(|power| power.last_action);
    world.operate("on", "node1", "powerOn", json!({}));
    assert!(world.until(60, |world| last(world).is_some()).await);
    assert_eq!(switched(&world), None, "the machine was already on");
    world.operate("reset", "node1", "reset", json!({}));
    assert!(world.until(60, |world| switched(world).is_some()).await);
    let off = one(PowerState::Off);
    let _pxed = off.start("a");
    assert!(off.until(60, |world| switched(world).is_some()).await, "powered on without an operation");
}

#[tokio::test(start_paused = true)]
async fn conditions_of_the_power_follow_each_edit_of_the_machine() {
    let world = one(PowerState::On);
    let _pxed = world.start("a");
    let observed = |world: &World| -> Vec<_> {
        let status = world.status("node1");
        let power = status.conditions.iter().filter(|c| !["Ready", "Stalled"].contains(&c.type_.as_str()));
        power.map(|c| (c.type_.clone(), c.observed_generation)).collect()
    };
    let of = |generation| {
        [("BMCReachable", generation), ("PoweredOn", generation)].map(|(t, g)| (t.to_owned(), Some(g)))
    };
    let edit = |generation, paused| {
        world.change("node1", |machine| {
            (machine.metadata.generation, machine.spec.paused) = (Some(generation), paused);
        });
    };
    edit(1, false);
    assert!(world.until(60, |world| observed(world) == of(1)).await, "{:?}", observed(&world));
    edit(2, true);
    assert!(world.until(60, |world| observed(world) == of(2)).await, "{:?}", observed(&world));
    // While pxed waits before its next try at a BMC that does not answer.
    world.bmc("bmc1", |bmc| bmc.dead = true);
    assert!(world.until(600, |world| world.reason("node1", "BMCReachable") == "BMCUnreachable").await);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    edit(3, false);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(observed(&world), of(3));
}
