//! Takeover tokens, and servers that were on before pxed knew them (H2).

use bedplate_api::wire::Stage;

use super::*;
use crate::store::Table;

fn with_token(token: Option<&str>) -> World {
    let pxe = json!({"pxe": {"interfaces": [], "takeover": token}});
    World::new([machine("node1", "bmc1", pxe)], PowerState::On)
}

fn set_token(world: &World, token: &str) {
    world.change("node1", |machine| machine.spec.pxe.as_mut().unwrap().takeover = Some(token.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn h2_a_server_that_is_found_running_is_left_alone_and_says_so() {
    let world = with_token(None);
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new(), "not even its next boot is changed");
    assert_eq!(world.reason("node1", "PoweredOn"), "FoundRunning");
    let ready = world.status("node1").conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.reason, "FoundRunning");
    assert!(
        ready.message.contains("bedplate power cycle") && ready.message.contains("takeover"),
        "{ready:?}"
    );
    // It boots from the network by itself.
    world.asks_to_boot("node1");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.reason("node1", "PoweredOn"), "FoundRunning", "anyone can send a packet");
    world.boots("node1", Stage::RootFs);
    assert!(world.until(120, |world| world.reason("node1", "PoweredOn") == "PoweredOn").await);
}

#[tokio::test(start_paused = true)]
async fn h2_a_takeover_token_cycles_a_running_server_once() {
    let world = with_token(Some("one"));
    let first = world.start("a");
    let cycle = ["forced power off", "boot from Pxe", "power on"];
    assert!(world.until(60, |world| asked(world, "bmc1") == cycle).await, "{:?}", asked(&world, "bmc1"));
    let (off, on) = world.bmc("bmc1", |bmc| (bmc.requests[0].0, bmc.requests[2].0));
    assert!((on - off).as_secs() >= 10, "it is off for a while");
    // The host does not boot from the network; another pxed leads.
    first.task.abort();
    let _second = world.start("b");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(asked(&world, "bmc1"), cycle);
    assert_eq!(world.status("node1").power.unwrap().takeover_token.as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn h2_a_takeover_token_is_used_at_most_once_over_kills() {
    for place in 0..4 {
        let world = with_token(Some("one"));
        world.state().killed_after = Some(place);
        let first = world.start("a");
        assert!(
            tokio::time::timeout(Duration::from_secs(300), world.killed.notified()).await.is_ok(),
            "{place}"
        );
        first.task.abort();
        world.state().killed_after = None;
        let _second = world.start("b");
        tokio::time::sleep(Duration::from_secs(600)).await;
        let offs = world.bmc("bmc1", |bmc| bmc.changes().0);
        // Killed between the record and the request, the token is used up, and the machine says so.
        let expected = usize::from(!(1..=2).contains(&place));
        assert_eq!(offs, expected, "{place}");
        assert_eq!(power_of(&world, "bmc1"), PowerState::On, "{place}");
        if expected == 0 {
            assert_eq!(world.reason("node1", "PoweredOn"), "FoundRunning");
            set_token(&world, "two");
            assert!(
                world.until(60, |world| world.bmc("bmc1", |bmc| bmc.changes() == (1, 1))).await,
                "{place}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn h2_tokens_that_may_have_been_used_before_a_loss_are_not_used() {
    let world = with_token(Some("one"));
    world.state().tokens_lost = true;
    let _pxed = world.start("a");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    set_token(&world, "two");
    assert!(world.until(60, |world| world.bmc("bmc1", |bmc| bmc.changes() == (1, 1))).await);
}

#[tokio::test(start_paused = true)]
async fn h2_a_packet_does_not_make_a_found_server_pxes() {
    let world = with_token(None);
    let _pxed = world.start("a");
    world.asks_to_boot("node1");
    assert!(world.until(60, |world| world.reason("node1", "PoweredOn") == "FoundRunning").await);
    let ready = world.status("node1").conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.reason, "FoundRunning", "{ready:?}");
    set_token(&world, "one");
    assert!(world.until(120, |world| world.bmc("bmc1", |bmc| bmc.changes() == (1, 1))).await, "taken over");
}

#[tokio::test(start_paused = true)]
async fn h2_a_manifest_that_comes_back_does_not_use_its_token_again() {
    let pxe = json!({"pxe": {"interfaces": [], "takeover": "one"}});
    let (node, other) = (machine("node1", "bmc1", pxe), machine("node2", "bmc2", json!({})));
    let world = World::new([node.clone(), other.clone()], PowerState::On);
    let cycle = ["forced power off", "boot from Pxe", "power on"];
    for instance in ["a", "b"] {
        let pxed = world.start(instance);
        assert!(world.until(60, |world| asked(world, "bmc1") == cycle).await, "{:?}", asked(&world, "bmc1"));
        // Moved away and back.
        world.know(vec![other.clone()]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(world.status("node1").power, None, "its status is gone");
        world.know(vec![node.clone(), other.clone()]);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(asked(&world, "bmc1"), cycle, "{instance}");
        assert_eq!(world.reason("node1", "PoweredOn"), "FoundRunning");
        pxed.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn h2_a_machine_whose_agent_has_enrolled_is_not_taken_over() {
    let pxe = json!({"pxe": {"interfaces": [], "takeover": "one"}});
    let (node, other) = (machine("node1", "bmc1", pxe), machine("node2", "bmc2", json!({})));
    let row = json!({"uid": "directory:node1", "key": "k"}).to_string();
    for by_status in [true, false] {
        let world = World::new([node.clone(), other.clone()], PowerState::On);
        if by_status {
            world.registry.update(&"node1".parse().unwrap(), |status| {
                status.enrollment = serde_json::from_value(json!({"generation": 1})).unwrap();
            });
        } else {
            // The status is lost completely.
            world.store.put(Table::Certificates, b"machine/node1", row.clone().into()).await.unwrap();
        }
        let _pxed = world.start("a");
        assert!(world.until(60, |world| world.reason("node1", "PoweredOn") == "PoweredOn").await);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(asked(&world, "bmc1"), Vec::<String>::new(), "{by_status}");
    }
}

#[tokio::test(start_paused = true)]
async fn h2_a_machine_of_a_name_that_enrolled_before_is_not_taken_over() {
    // Made again: another UID, no status, any token. Its server may run the node of the one before.
    let world = with_token(Some("new"));
    let row = json!({"uid": "of the one before", "key": "k"}).to_string();
    world.store.put(Table::Certificates, b"machine/node1", row.into()).await.unwrap();
    let _pxed = world.start("a");
    assert!(world.until(60, |world| world.reason("node1", "PoweredOn") == "FoundRunning").await);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    let ready = world.status("node1").conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert!(
        ready.message.contains("earlier Machine of this name")
            && ready.message.contains("bedplate power cycle"),
        "{ready:?}"
    );
}

/// Makes node1 a Machine of a cluster, in its third generation.
fn in_cluster(world: &World) {
    world.state().is_cluster = true;
    world.change("node1", |machine| machine.metadata.generation = Some(3));
}

/// Writes the observation of a Node, as bedplate-controller does.
fn observe(world: &World, state: &str, generation: i64) {
    let node = (state == "Own").then(|| json!({"name": "node1", "uid": "n1"}));
    let observed = json!({"state": state, "observedGeneration": generation});
    let status = json!({"phase": "Pending", "nodeRef": node, "observedNode": observed});
    world.change("node1", |machine| machine.status = Some(serde_json::from_value(status).unwrap()));
}

fn found_running(world: &World) -> String {
    let all = world.status("node1").conditions;
    let powered = all.into_iter().find(|c| c.type_ == "PoweredOn" && c.reason == "FoundRunning");
    powered.map(|powered| powered.message).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn h2_a_takeover_in_a_cluster_waits_for_its_controller() {
    for has_node in [true, false] {
        let world = with_token(Some("one"));
        in_cluster(&world);
        let _pxed = world.start("a");
        let waits = |world: &World| found_running(world).contains("waits for bedplate-controller");
        assert!(world.until(60, waits).await, "{}", found_running(&world));
        // Neither a phase nor an observation from before the token says anything.
        observe(&world, "Absent", 2);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(asked(&world, "bmc1"), Vec::<String>::new(), "the controller has reported nothing");
        assert!(waits(&world), "{}", found_running(&world));
        observe(&world, if has_node { "Own" } else { "Absent" }, 3);
        let expected = if has_node { (0, 0) } else { (1, 1) };
        assert!(world.until(30, |world| world.bmc("bmc1", |bmc| bmc.changes() == expected)).await);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(world.bmc("bmc1", |bmc| bmc.changes()), expected, "{has_node}");
        assert_eq!(world.reason("node1", "PoweredOn"), "PoweredOn", "{has_node}");
    }
}

#[tokio::test(start_paused = true)]
async fn h2_a_server_with_a_foreign_node_of_its_name_is_left_running() {
    let world = with_token(Some("one"));
    in_cluster(&world);
    observe(&world, "Foreign", 3);
    let _pxed = world.start("a");
    let says = |world: &World| found_running(world).contains("may run the Node of its name");
    assert!(world.until(60, says).await, "{}", found_running(&world));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(asked(&world, "bmc1"), Vec::<String>::new());
    // The Node is deleted: the token counts.
    observe(&world, "Absent", 3);
    let since = tokio::time::Instant::now();
    assert!(world.until(30, |world| world.bmc("bmc1", |bmc| bmc.changes().0 == 1)).await);
    assert!(
        since.elapsed() < Duration::from_secs(5),
        "the observation wakes the worker: {:?}",
        since.elapsed()
    );
    assert!(world.until(30, |world| world.bmc("bmc1", |bmc| bmc.changes() == (1, 1))).await);
}
