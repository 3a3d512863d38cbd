//! Machines that their agents have shut down (O4).

use bedplate_api::machine::PowerActionKind;
use bedplate_api::wire::Stage;

use super::*;

fn goes_off(world: &World) {
    world.bmc("bmc1", |bmc| bmc.states.push((Instant::now(), PowerState::Off)));
}

#[tokio::test(start_paused = true)]
async fn o4_a_machine_that_its_agent_shut_down_stays_off() {
    let world = one(PowerState::On);
    let first = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.operate("down", "node1", "shutdown", json!({}));
    world.agent_writes("down", OperationState::InProgress, "InProgress");
    // The host is off before its agent can report the shutdown.
    goes_off(&world);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
    world.agent_writes("down", OperationState::Complete, "ShutDown");
    tokio::time::sleep(Duration::from_secs(70)).await;
    // The time to live of the operation has ended, and another pxed leads.
    world.forget_operation("down");
    first.task.abort();
    let _second = world.start("b");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
    let last = world.status("node1").power.unwrap().last_action.unwrap();
    assert_eq!(
        (last.action, last.message.as_deref()),
        (PowerActionKind::Shutdown, Some("shut down by operation down"))
    );
    world.operate("on", "node1", "powerOn", json!({}));
    assert!(world.until(60, |world| world.ended("on").is_some()).await);
    goes_off(&world);
    assert!(world.until(120, |world| power_of(world, "bmc1") == PowerState::On).await, "managed again");
}

#[tokio::test(start_paused = true)]
async fn o4_a_failed_shutdown_holds_nothing_off() {
    let world = one(PowerState::On);
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.operate("down", "node1", "shutdown", json!({"drain": "true"}));
    world.agent_writes("down", OperationState::InProgress, "InProgress");
    world.agent_writes("down", OperationState::Failed, "DrainTimedOut");
    goes_off(&world);
    assert!(world.until(120, |world| power_of(world, "bmc1") == PowerState::On).await);
}

#[tokio::test(start_paused = true)]
async fn o4_a_user_who_switches_a_shut_down_machine_on_ends_the_hold() {
    let world = one(PowerState::On);
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.operate("down", "node1", "shutdown", json!({}));
    world.agent_writes("down", OperationState::Complete, "ShutDown");
    goes_off(&world);
    assert!(world.until(120, |world| world.reason("node1", "PoweredOn") == "PoweredOffByOperation").await);
    goes_on(&world);
    world.boots("node1", Stage::Enrolled);
    tokio::time::sleep(Duration::from_secs(120)).await;
    goes_off(&world);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation", "it was on for two minutes");
    goes_on(&world);
    world.boots("node1", Stage::Enrolled);
    tokio::time::sleep(Duration::from_secs(700)).await;
    goes_off(&world);
    assert!(world.until(120, |world| power_of(world, "bmc1") == PowerState::On).await);
}

fn goes_on(world: &World) {
    world.bmc("bmc1", |bmc| bmc.states.push((Instant::now(), PowerState::On)));
}

#[tokio::test(start_paused = true)]
async fn o4_a_manifest_that_comes_back_is_held_off_as_before() {
    let machines = [machine("node1", "bmc1", json!({})), machine("node2", "bmc2", json!({}))];
    let world = World::new(machines.clone(), PowerState::On);
    let first = world.start("a");
    world.operate("off", "node1", "powerOff", json!({"force": "true"}));
    assert!(world.until(60, |world| world.ended("off").is_some()).await);
    world.forget_operation("off");
    world.know(machines[1..].to_vec());
    tokio::time::sleep(Duration::from_secs(120)).await;
    first.task.abort();
    let _second = world.start("b");
    world.know(machines.to_vec());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), ["forced power off"]);
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
}

#[tokio::test(start_paused = true)]
async fn o4_a_seed_and_a_stage_report_do_not_switch_on_what_was_shut_down() {
    let world = one(PowerState::On);
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.operate("down", "node1", "shutdown", json!({}));
    world.agent_writes("down", OperationState::Complete, "ShutDown");
    goes_off(&world);
    assert!(world.until(120, |world| world.reason("node1", "PoweredOn") == "PoweredOffByOperation").await);
    // Another client forges its MAC address, and enrolls in the end.
    for stage in [Stage::Userspace, Stage::Enrolled] {
        world.boots("node1", stage);
        tokio::time::sleep(Duration::from_secs(1200)).await;
        assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation", "{stage:?}");
    }
    // A user tests the machine: it is on without a boot of its own, and off again.
    goes_on(&world);
    tokio::time::sleep(Duration::from_secs(1200)).await;
    goes_off(&world);
    tokio::time::sleep(Duration::from_secs(1200)).await;
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn o4_a_machine_that_a_user_switched_on_is_not_held_by_a_later_packet() {
    let world = one(PowerState::On);
    let first = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.operate("down", "node1", "shutdown", json!({}));
    world.agent_writes("down", OperationState::Complete, "ShutDown");
    goes_off(&world);
    assert!(world.until(120, |world| world.reason("node1", "PoweredOn") == "PoweredOffByOperation").await);
    goes_on(&world);
    world.boots("node1", Stage::Enrolled);
    tokio::time::sleep(Duration::from_secs(700)).await;
    let last = world.status("node1").power.unwrap().last_action.unwrap();
    assert_eq!(last.action, PowerActionKind::PowerOn);
    assert!(last.message.unwrap().starts_with("powered on by a user"));
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new(), "and is left alone");
    world.asks_to_boot("node1");
    first.task.abort();
    let _second = world.start("b");
    tokio::time::sleep(Duration::from_secs(120)).await;
    goes_off(&world);
    assert!(world.until(120, |world| power_of(world, "bmc1") == PowerState::On).await);
}

#[tokio::test(start_paused = true)]
async fn o4_restart_does_not_reorder_shutdown_and_later_power_on() {
    let world = one(PowerState::On);
    world.state().hosts_are_ahead = jiff::SignedDuration::from_hours(1);
    let first = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.operate("down", "node1", "shutdown", json!({}));
    world.agent_writes("down", OperationState::Complete, "ShutDown");
    goes_off(&world);
    assert!(world.until(120, |world| world.reason("node1", "PoweredOn") == "PoweredOffByOperation").await);
    world.operate("on", "node1", "powerOn", json!({}));
    assert!(world.until(60, |world| world.ended("on").is_some()).await);
    tokio::time::sleep(Duration::from_secs(120)).await;
    first.task.abort();
    let _second = world.start("b");
    tokio::time::sleep(Duration::from_secs(120)).await;
    let last = world.status("node1").power.unwrap().last_action.unwrap();
    assert_eq!(last.action, PowerActionKind::PowerOn);
    goes_off(&world);
    assert!(world.until(120, |world| power_of(world, "bmc1") == PowerState::On).await);
}
