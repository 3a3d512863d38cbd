//! Machines with `powerPolicy: OnClaim`.

use bedplate_api::machine::{AgentStatus, Time};
use jiff::SignedDuration;

use super::*;

fn on_claim() -> World {
    let policy = json!({"powerPolicy": "OnClaim", "claimPolicy": {"namespaces": ["n"]}});
    let world = World::new([machine("node1", "bmc1", policy)], PowerState::Off);
    world.state().is_cluster = true;
    world
}

fn claim(world: &World, names: &[&str]) {
    world.claims.send_replace(Claims::known(names.iter().map(|name| (*name).to_owned()).collect()));
}

/// The agent writes its part of the status: a heartbeat, and its record of the claim.
fn agent_reports(world: &World, state: Option<&str>) {
    let now = world.now();
    world.change("node1", |machine| {
        let status = machine.status.get_or_insert_default();
        let agent = status.agent.get_or_insert_with(|| serde_json::from_value::<AgentStatus>(json!({})).unwrap());
        agent.last_heartbeat_time = Some(Time(now));
        status.claim = state.map(|state| {
            let record = json!({"providerID": "bedplate://node1/u", "claimant": {"namespace": "n", "name": "w"}, "state": state,
                "since": "2026-01-01T00:00:00Z"});
            serde_json::from_value(record).unwrap()
        });
    });
}

/// Requests that change the power. The boot override changes nothing.
fn switched(world: &World) -> Vec<String> {
    asked(world, "bmc1").into_iter().filter(|request| !request.starts_with("boot from")).collect()
}

async fn passes(minutes: i64) {
    let time = SignedDuration::from_mins(minutes);
    tokio::time::sleep(Duration::try_from(time).unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn m6_the_bmc_sees_no_power_on_before_the_claim_and_off_after_the_release() {
    let world = on_claim();
    let _pxed = world.start("a");
    passes(10).await;
    assert_eq!(world.reason("node1", "PoweredOn"), "ClaimPending");
    claim(&world, &["other"]);
    passes(10).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    claim(&world, &["other", "node1"]);
    assert!(world.until(10, |world| power_of(world, "bmc1") == PowerState::On).await);
    world.boots("node1", Stage::Enrolled);
    agent_reports(&world, Some("Joined"));
    passes(30).await;
    agent_reports(&world, Some("Joined"));
    passes(10).await;
    assert_eq!(switched(&world), ["power on"]);
    // D7: the claim object is lost, and the host still runs it.
    claim(&world, &["other"]);
    passes(10).await;
    agent_reports(&world, Some("Joined"));
    passes(10).await;
    assert_eq!(switched(&world), ["power on"]);
    agent_reports(&world, Some("Released"));
    assert!(world.until(300, |world| power_of(world, "bmc1") == PowerState::Off).await);
    passes(30).await;
    assert_eq!(switched(&world), ["power on", "graceful power off"]);
    assert_eq!(world.reason("node1", "PoweredOn"), "ClaimPending");
    claim(&world, &["node1"]);
    assert!(world.until(10, |world| power_of(world, "bmc1") == PowerState::On).await);
}

#[tokio::test(start_paused = true)]
async fn d7_a_restored_machine_without_a_record_is_not_switched_off() {
    let world = on_claim();
    let _pxed = world.start("a");
    claim(&world, &["node1"]);
    assert!(world.until(10, |world| power_of(world, "bmc1") == PowerState::On).await);
    world.boots("node1", Stage::Enrolled);
    agent_reports(&world, Some("Joined"));
    passes(5).await;
    // Claim and status come from a backup; the agent has not reported since.
    world.change("node1", |machine| {
        let status = machine.status.get_or_insert_default();
        status.claim = None;
        let before = Time("2020-01-01T00:00:00Z".parse().unwrap());
        status.agent.as_mut().unwrap().last_heartbeat_time = Some(before);
    });
    claim(&world, &[]);
    passes(60).await;
    assert_eq!(switched(&world), ["power on"]);
}

#[tokio::test(start_paused = true)]
async fn d8_a_host_that_an_operation_switched_off_stays_off_for_a_claim() {
    let world = on_claim();
    let _pxed = world.start("a");
    claim(&world, &["node1"]);
    assert!(world.until(10, |world| power_of(world, "bmc1") == PowerState::On).await);
    world.operate("fence", "node1", "powerOff", json!({"force": "true"}));
    assert!(world.until(60, |world| world.ended("fence").is_some()).await);
    passes(30).await;
    assert_eq!(power_of(&world, "bmc1"), PowerState::Off);
    assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOffByOperation");
}
