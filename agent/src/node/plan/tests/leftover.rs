//! Slots whose version will not run, and the Secrets in them.

use super::*;

/// Applies what is planned until the plan waits.
fn until_waits(world: &mut World) -> Wait {
    for _ in 0..8 {
        match world.plan() {
            Plan::Do(step) => world.apply(step),
            Plan::Wait(wait) => return wait,
        }
    }
    panic!("it does not come to rest\n{}", world.log.join("\n"));
}

fn drain(world: &mut World) {
    world.seen.node = NodeSeen::Absent;
    let machine = world.machine();
    (machine.deleting, machine.drain, machine.node_ref) = (true, true, None);
    world.log.clear();
}

#[test]
fn trust_8_drained_machine_empties_its_prepared_slot_despite_kills() {
    let drained = |kill: Option<u32>, cut: Option<u32>| {
        let mut world = about_to_repave(false);
        (world.kill_after, world.power_cut_after) = (kill, cut);
        drain(&mut world);
        let wait = until_waits(&mut world);
        assert_eq!(wait.reason, PavedReason::MachineDeleting, "{kill:?} {cut:?}");
        for slot in SlotName::ALL {
            assert_eq!(record(&world.seen, slot), None, "{kill:?} {cut:?}\n{}", world.log.join("\n"));
        }
        world.log
    };
    let steps = drained(None, None);
    let names: Vec<&str> = steps.iter().map(|step| step.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["StopSlot", "Abandon", "Abandon"]);
    for step in 0..3 {
        drained(Some(step), None);
        drained(None, Some(step));
    }
}

#[test]
fn trust_8_drained_machine_keeps_no_slot_in_any_stage() {
    for stage in [
        Stage::Preparing,
        Stage::Prepared,
        Stage::Retired,
        Stage::Failed { reason: "why".to_owned() },
        Stage::Trial { boot_id: "boot-0".to_owned(), since: at(0), boots: 0 },
    ] {
        let mut world = World::new(Some(1));
        world.plan();
        world.write(SlotName::B, stage.clone());
        assert_eq!(until_waits_while_retained(&mut world), 1, "{stage:?}: its Machine is not drained");
        drain(&mut world);
        until_waits(&mut world);
        assert_eq!(record(&world.seen, SlotName::B), None, "{stage:?}");
    }
}

/// Number of filled slots of a Machine that is deleted with another policy.
fn until_waits_while_retained(world: &mut World) -> usize {
    world.machine().deleting = true;
    until_waits(world);
    SlotName::ALL.into_iter().filter(|slot| record(&world.seen, *slot).is_some()).count()
}

#[test]
fn trust_8_slot_is_emptied_when_its_version_is_not_selected_any_more() {
    for stage in [Stage::Preparing, Stage::Prepared, Stage::Retired] {
        let mut world = about_to_repave(false);
        world.seen.node = NodeSeen::Present { uid: "node-1".to_owned(), ready_since: Some(at(0)) };
        world.machine().node_ref = Some("node-1".to_owned());
        let (node, slot) = (world.running().unwrap(), other(world.running().unwrap()));
        world.plan();
        world.write(slot, stage.clone());
        world.machine().selected = None;
        for held in [true, false] {
            world.machine().paused = held;
            let wait = until_waits(&mut world);
            assert_eq!(wait.reason, PavedReason::Applied);
            assert_eq!(record(&world.seen, slot).is_some(), held, "{stage:?}");
        }
        assert_eq!(world.running(), Some(node), "the node runs on");
        assert!(record(&world.seen, node).is_some());
    }
}

#[test]
fn trust_8_prepared_slot_without_a_node_is_emptied_if_unselected() {
    let mut world = World::new(Some(1));
    let slot = world.until("prepare_slot");
    world.machine().selected = None;
    assert_eq!(world.plan(), Plan::step(slot, Act::Abandon));
    world.apply(Step { slot, act: Act::Abandon });
    assert_eq!(until_waits(&mut world).reason, PavedReason::NoVersionSelected);
}

#[test]
fn slot_of_a_selected_version_or_with_a_failed_trial_stays() {
    let mut world = about_to_repave(false);
    world.seen.node = NodeSeen::Present { uid: "node-1".to_owned(), ready_since: Some(at(0)) };
    world.machine().node_ref = Some("node-1".to_owned());
    assert_eq!(until_waits(&mut world).reason, PavedReason::Applied);
    let slot = other(world.running().unwrap());
    assert_eq!(stage(&world.seen, slot), Some(&Stage::Prepared));
    world.write(slot, Stage::Failed { reason: "its log is in the slot".to_owned() });
    world.machine().selected = None;
    assert_eq!(until_waits(&mut world).reason, PavedReason::Applied);
    assert!(record(&world.seen, slot).is_some());
}
