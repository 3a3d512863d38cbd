//! An agent that is killed at any point, and slots that are emptied.

use super::*;
use crate::bus::kill_points::kill_before_each_effect;

/// Effects of a first pave and of the repave after it, with the other slot prepared each time.
const EFFECTS_OF_TWO_PAVES: &[(&str, usize)] = &[
    ("daemon-reload", 6),
    ("disk", 127),
    ("edit", 2),
    ("image", 8),
    ("probe", 2),
    ("request", 2),
    ("reset-failed", 2),
    ("restart", 4),
    ("run", 3),
    ("start", 6),
    ("stop", 6),
];

/// Effects of a drain of a node with a prepared slot.
const EFFECTS_OF_A_DRAIN: &[(&str, usize)] = &[("disk", 20), ("run", 1), ("stop", 4), ("trash", 4)];

/// Name of a file that must not outlive a drained slot.
const KEY: &str = "kubelet-client-current.pem";

#[test]
fn agent_killed_before_any_effect_ends_where_an_undisturbed_one_does() {
    in_runtime(kill_before_each_effect(EFFECTS_OF_TWO_PAVES, async |kill_at| {
        let mut world = World::new();
        world.kills.arm(kill_at);
        world.select(1);
        let first = world.settled().await;
        world.delete_node(2);
        let second = world.settled().await;
        assert_eq!((first.as_str(), second.as_str()), ("Applied", "Applied"), "killed at {kill_at:?}");
        let runs = (world.runs(SlotName::A).await, world.runs(SlotName::B).await);
        assert_ne!(runs.0, runs.1, "killed at {kill_at:?}: {runs:?}");
        let applied = if runs.0 { SlotName::A } else { SlotName::B };
        assert!(is_applied(&world, applied, 2), "killed at {kill_at:?}");
        assert_eq!(world.parts.slots.ledger().unwrap(), Default::default(), "killed at {kill_at:?}");
        assert_eq!(world.plane.requests.names().len(), 2, "one for each join, killed at {kill_at:?}");
        assert_eq!(world.reported().applied.unwrap().version, 2);
        trash::remove(&world.parts.slots, &Beat::unwatched()).await;
        for slot in SlotName::ALL {
            let slots = &world.parts.slots;
            assert!(!slots.has_trash(slot).unwrap(), "killed at {kill_at:?}");
            let is_whole = world.record(slot).is_some() || !slots.places().slot(slot).exists();
            assert!(is_whole, "killed at {kill_at:?}: files without a record in slot {slot:?}");
        }
        world.kills
    }));
}

/// Returns true if a file of this name is anywhere below a directory.
fn is_below(directory: &Path, name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.map(Result::unwrap).any(|entry| {
        let is_directory = entry.file_type().unwrap().is_dir();
        entry.file_name() == name || is_directory && is_below(&entry.path(), name)
    })
}

/// A host whose slot a is the node and whose slot b is prepared, both with a key in them, and whose Machine was drained.
async fn drained() -> World {
    let mut world = World::new();
    for version in [1, 2] {
        world.select(version);
        assert_eq!(world.settled().await, "Applied");
    }
    let places = world.parts.slots.places();
    for directory in [places.kept(SlotName::A, "kubelet").join("pki"), places.upper(SlotName::B)] {
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(KEY), "KEY").unwrap();
    }
    world.drain();
    world
}

#[test]
fn trust_8_drained_slots_are_reported_empty_only_once_their_keys_are_gone() {
    in_runtime(kill_before_each_effect(EFFECTS_OF_A_DRAIN, async |kill_at| {
        let world = drained().await;
        let (kills, state) = (world.kills.clone(), world.directory.path().join("state"));
        kills.arm(kill_at);
        let (mut agent, mut is_empty) = (world.agent(), false);
        for _ in 0..50 {
            let work = async {
                agent.advance().await;
                kills.reach("trash to remove").await;
                trash::remove(&world.parts.slots, &Beat::unwatched()).await;
            };
            let is_killed = kills.run(work).await.is_none();
            let reported = world.reported();
            is_empty = reported.applied.is_none()
                && reported.slots.iter().all(|slot| slot.state == SlotState::Empty);
            let mut states = reported.slots.iter().map(|slot| slot.state);
            let is_busy = |state| matches!(state, SlotState::Running | SlotState::Emptying);
            // The controller releases the Machine otherwise.
            let is_held = reported.applied.is_some() || states.any(is_busy);
            assert!(is_held || !is_below(&state, KEY), "killed at {kill_at:?}: {:?}", reported.slots);
            if is_killed {
                agent = world.agent();
            } else if is_empty {
                break;
            }
        }
        assert!(is_empty, "killed at {kill_at:?}: {:?}", world.reported());
        kills
    }));
}

#[test]
fn logs_of_failed_trials_go_with_a_drained_machine_alone() {
    in_runtime(async {
        let mut world = World::new();
        world.bad.insert(1);
        world.select(1);
        assert_eq!(world.settled().await, "BackOff");
        let slots = world.parts.slots.clone();
        let logs = SlotName::ALL.map(|slot| slots.places().failed_log(slot));
        for log in &logs {
            std::fs::create_dir_all(log.join("pods")).unwrap();
        }
        world.agent().advance().await;
        assert!(logs.iter().all(|log| log.exists()));
        world.drain();
        let mut agent = world.agent();
        for _ in 0..20 {
            agent.advance().await;
            trash::remove(&slots, &Beat::unwatched()).await;
        }
        assert_eq!(world.reported().slots[0].state, SlotState::Empty);
        assert!(!logs.iter().any(|log| log.exists()));
    });
}

#[test]
fn slot_drained_on_trial_is_being_emptied_from_when_it_is_stopped() {
    in_runtime(async {
        let mut world = World::new();
        world.gate.no_sandbox.store(true, Ordering::Relaxed);
        world.select(1);
        let mut agent = world.agent();
        while !world.runs(SlotName::A).await {
            agent.advance().await;
        }
        world.react().await;
        world.drain();
        let mut states = Vec::new();
        while states.last() != Some(&SlotState::Empty) {
            agent.advance().await;
            states.push(world.reported().slots[0].state);
            if states.last() == Some(&SlotState::Emptying) && world.record(SlotName::A).is_none() {
                trash::remove(&world.parts.slots, &Beat::unwatched()).await;
            }
            assert!(states.len() < 20, "{states:?}");
        }
        states.dedup();
        assert_eq!(states, [SlotState::Running, SlotState::Emptying, SlotState::Empty]);
    });
}
