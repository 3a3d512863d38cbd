//! Manifests that are gone, and Machines that are deleted.

use bedplate_api::machine::DeletionPolicy;

use super::*;
use crate::store::Table;

#[tokio::test(start_paused = true)]
async fn without_a_cluster_a_manifest_that_is_gone_switches_its_machine_off() {
    let policy = json!({"deletionPolicy": "PowerOff"});
    let machines = || vec![machine("node1", "bmc1", policy.clone()), machine("node2", "bmc2", json!({}))];
    let other = machine("node2", "bmc2", json!({}));
    let world = World::new(machines(), PowerState::On);
    let pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    // An editor's pause is not a deletion.
    world.know(vec![other.clone()]);
    world.departing(1).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    world.know(machines());
    world.departing(0).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    // Nor is another name for the same machine.
    let renamed = machine("renamed", "bmc1", policy.clone());
    world.know(vec![renamed, other.clone()]);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    // An error in the manifests is not a deletion either.
    let mistaken = SourceState { synced: true, problems: vec!["twice".to_owned()], ..SourceState::default() };
    world.source.send_replace(mistaken);
    world.know(vec![other.clone()]);
    world.departing(1).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    // Nor is a directory that nothing is in: it may not be mounted.
    world.source.send_replace(SourceState { synced: true, ..SourceState::default() });
    world.know(vec![]);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    pxed.stop.cancel();
    pxed.task.await.unwrap();
    // A restart does not forget it.
    world.know(vec![other]);
    let _second = world.start("b");
    assert!(world.until(120, |world| power_of(world, "bmc1") == PowerState::Off).await);
    assert!(world.until(60, |world| world.store.scan(Table::Departing).unwrap().is_empty()).await);
    assert_eq!(asked(&world, "bmc1"), ["graceful power off"]);
    assert_eq!(asked(&world, "bmc2"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_machine_of_a_new_name_stays_on_however_its_bmc_is_written_there() {
    let policy = json!({"deletionPolicy": "PowerOff"});
    for address in ["https://BMC1:443/", "bmc1:443", "https://bmc1"] {
        let old = machine("node1", "bmc1", policy.clone());
        let renamed = machine("renamed", address, json!({"deletionPolicy": "PowerOff", "paused": true}));
        let world = World::new([old.clone(), renamed.clone()], PowerState::On);
        world.know(vec![old]);
        let _pxed = world.start("a");
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.know(vec![renamed]);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(asked(&world, "bmc1"), Vec::<String>::new(), "{address}");
    }
}

#[tokio::test(start_paused = true)]
async fn standalone_editor_pause_does_not_end_operations_of_its_machine() {
    let machines = ["node1", "node2"].map(|name| machine(name, &format!("bmc-{name}"), json!({})));
    let world = World::new(machines.clone(), PowerState::On);
    world.bmc("bmc-node1", |bmc| bmc.lag = Duration::from_secs(10));
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.operate("cycle", "node1", "powerCycle", json!({}));
    assert!(world.until(5, |world| power_of(world, "bmc-node1") == PowerState::Off).await);
    world.know(machines[1..].to_vec());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.ended("cycle"), None);
    world.know(machines.to_vec());
    assert!(world.until(60, |world| world.ended("cycle").is_some()).await);
    assert_eq!(world.ended("cycle").unwrap().1, "PowerCycled");
    assert_eq!(world.bmc("bmc-node1", |bmc| bmc.changes()), (1, 1));
    // It does not come back.
    world.operate("again", "node1", "powerCycle", json!({}));
    assert!(world.until(5, |world| !world.message_of("again").is_empty()).await);
    world.know(machines[1..].to_vec());
    assert!(world.until(60, |world| world.ended("again").is_some()).await);
    assert_eq!(world.ended("again").unwrap().1, "MachineDeleting");
}

#[tokio::test(start_paused = true)]
async fn manifest_moved_to_another_site_or_provider_is_not_gone() {
    let policy = json!({"deletionPolicy": "PowerOff"});
    for more in [json!({"site": "other"}), json!({"provider": "manual"})] {
        let machines = [machine("node1", "bmc1", policy.clone()), machine("node2", "bmc2", json!({}))];
        let world = World::new(machines, PowerState::On);
        let _pxed = world.start("a");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let mut elsewhere = machine("node1", "bmc1", policy.clone());
        elsewhere.spec = machine("node1", "bmc1", more.clone()).spec;
        world.know(vec![elsewhere, machine("node2", "bmc2", json!({}))]);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(asked(&world, "bmc1"), Vec::<String>::new(), "{more}");
    }
}

#[tokio::test(start_paused = true)]
async fn manifest_that_comes_back_restarts_a_later_departure() {
    let policy = json!({"deletionPolicy": "PowerOff"});
    let machines = || {
        ["node1", "node2"].map(|node| machine(node, &node.replace("node", "bmc"), policy.clone())).to_vec()
    };
    let world = World::new(machines(), PowerState::On);
    world.bmc("bmc1", |bmc| bmc.deaf = true);
    let _pxed = world.start("a");
    let gone = |world: &World| world.know(vec![machine("node2", "bmc2", json!({}))]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    gone(&world);
    world.departing(1).await;
    assert!(world.until(100, |world| asked(world, "bmc1").len() == 1).await);
    world.know(machines());
    world.departing(0).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    gone(&world);
    world.departing(1).await;
    // Simulated time does not include disk writes.
    world.until(1000, |world| asked(world, "bmc1").len() > 1).await;
    assert_eq!(asked(&world, "bmc1"), ["graceful power off", "graceful power off"]);
}

#[tokio::test(start_paused = true)]
async fn deleted_machine_keeps_finalizer_until_off_or_policy_changes() {
    let policy = json!({"deletionPolicy": "PowerOff"});
    let machines = (1..4).map(|n| machine(&format!("node{n}"), &format!("bmc{n}"), policy.clone()));
    let world = World::new(machines, PowerState::On);
    world.state().is_cluster = true;
    let _pxed = world.start("a");
    assert!(world.until(5, |world| world.state().holds.len() == 3).await);
    world.bmc("bmc1", |bmc| bmc.deaf = true);
    world.bmc("bmc2", |bmc| bmc.dead = true);
    world.bmc("bmc3", |bmc| bmc.refuses = true);
    for node in ["node1", "node2", "node3"] {
        world.delete(node);
        assert!(world.is_there(node), "held");
    }
    let started = Instant::now();
    for (node, bmc) in [("node1", "bmc1"), ("node3", "bmc3")] {
        assert!(world.until(200, |world| !world.is_there(node)).await, "{node}");
        assert!(started.elapsed() >= Duration::from_secs(119), "forced only after two minutes");
        assert_eq!(power_of(&world, bmc), PowerState::Off);
        assert_eq!(asked(&world, bmc).last().unwrap(), "forced power off");
    }
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(world.is_there("node2"), "the power state is not known");
    assert!(world.events().contains(&"PowerOffPending"));
    let status = world.status("node2");
    let condition = status.conditions.iter().find(|c| c.type_ == "PoweredOn").unwrap();
    assert!(condition.message.contains("set deletionPolicy to Retain"), "{condition:?}");
    world.change("node2", |machine| machine.spec.deletion_policy = DeletionPolicy::Retain);
    assert!(world.until(1, |world| !world.is_there("node2")).await, "released immediately");
    assert_eq!(asked(&world, "bmc2"), Vec::<String>::new());
    assert_eq!(world.state().holds.len(), 6, "once on, once off");
}

#[tokio::test(start_paused = true)]
async fn finalizer_that_cannot_be_written_delays_no_other() {
    let policy = json!({"deletionPolicy": "PowerOff"});
    let machines = (1..3).map(|n| machine(&format!("node{n}"), &format!("bmc{n}"), policy.clone()));
    let world = World::new(machines, PowerState::On);
    world.state().is_cluster = true;
    world.state().refuses_finalizer = Some("node1".to_owned());
    let (_pxed, start) = (world.start("a"), Instant::now());
    let held = |world: &World| world.state().holds.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert!(world.until(1, |world| held(world) == ["node2"]).await);
    world.change("node2", |machine| machine.spec.deletion_policy = DeletionPolicy::Retain);
    assert!(world.until(1, |world| held(world) == ["node2", "node2"]).await);
    assert!(start.elapsed() < Duration::from_secs(5), "while the other one waits for its retry");
    world.state().refuses_finalizer = None;
    assert!(world.until(13, |world| held(world) == ["node2", "node2", "node1"]).await);
}

#[tokio::test(start_paused = true)]
async fn deleted_paused_machine_reports_it_and_goes_when_unpaused() {
    let policy = json!({"deletionPolicy": "PowerOff", "paused": true});
    let world = World::new([machine("node1", "bmc1", policy)], PowerState::On);
    world.state().is_cluster = true;
    let _pxed = world.start("a");
    assert!(world.until(5, |world| world.state().holds.len() == 1).await);
    world.delete("node1");
    assert!(world.until(5, |world| world.events().contains(&"PowerOffPending")).await);
    let status = world.status("node1");
    let condition = status.conditions.iter().find(|c| c.type_ == "PoweredOn").unwrap();
    let says = ["paused", "set deletionPolicy to Retain"].iter().all(|what| condition.message.contains(what));
    assert!(says && condition.status == "True", "{condition:?}");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    world.change("node1", |machine| machine.spec.paused = false);
    assert!(world.until(10, |world| !world.is_there("node1")).await);
    assert_eq!(asked(&world, "bmc1"), ["graceful power off"]);
}

#[tokio::test(start_paused = true)]
async fn unmanaged_machine_is_switched_off_on_deletion_if_policy_asks() {
    let policy = json!({"deletionPolicy": "PowerOff", "powerPolicy": "Unmanaged"});
    for is_cluster in [true, false] {
        let other = machine("node2", "bmc2", json!({"powerPolicy": "Unmanaged"}));
        let world = World::new([machine("node1", "bmc1", policy.clone()), other.clone()], PowerState::On);
        world.state().is_cluster = is_cluster;
        let _pxed = world.start("a");
        tokio::time::sleep(Duration::from_secs(5)).await;
        if is_cluster {
            world.delete("node1");
        } else {
            world.know(vec![other]);
            world.departing(1).await;
        }
        assert!(world.until(120, |world| power_of(world, "bmc1") == PowerState::Off).await, "{is_cluster}");
        assert_eq!(asked(&world, "bmc1"), ["graceful power off"]);
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_machine_without_pending_work_waits_for_nothing() {
    let world = one(PowerState::On);
    world.state().is_cluster = true;
    world.bmc("bmc1", |bmc| bmc.dead = true);
    let others = Some(vec!["example.com/other".to_owned()]);
    world.change("node1", |machine| machine.metadata.finalizers = others);
    world.delete("node1");
    let _pxed = world.start("a");
    assert!(world.until(60, |world| world.reason("node1", "BMCReachable") == "BMCUnreachable").await);
    assert!(!world.events().contains(&"PowerOffPending"));
}

#[tokio::test(start_paused = true)]
async fn h2_a_name_in_two_files_removes_no_status() {
    let (node, other) = (machine("node1", "bmc1", json!({})), machine("node2", "bmc2", json!({})));
    let world = World::new([node.clone(), other.clone()], PowerState::On);
    let _pxed = world.start("a");
    assert!(world.until(60, |world| world.status("node1").power.is_some()).await);
    world.know(vec![node.clone(), node.clone(), other.clone()]);
    assert!(world.status("node1").power.is_some(), "the name is in two files");
    world.know(vec![other]);
    assert!(world.status("node1").power.is_none(), "the manifest is gone");
}
