//! An agent that is killed at any point, and slots that are emptied.

use super::*;

#[test]
fn an_agent_killed_at_any_wake_up_ends_where_an_undisturbed_one_does() {
    in_runtime(async {
        let mut kill_at = 1;
        loop {
            let mut world = World::new();
            let mut polls = 0;
            world.select(1);
            let first = world.settle(&mut polls, kill_at).await;
            world.delete_node(2);
            let second = world.settle(&mut polls, kill_at).await;
            assert_eq!((first.as_str(), second.as_str()), ("Applied", "Applied"), "killed at {kill_at}");
            let runs = (world.runs(SlotName::A).await, world.runs(SlotName::B).await);
            assert_ne!(runs.0, runs.1, "killed at {kill_at}: {runs:?}");
            let applied = if runs.0 { SlotName::A } else { SlotName::B };
            assert!(is_applied(&world, applied, 2), "killed at {kill_at}");
            assert_eq!(world.parts.slots.ledger().unwrap(), Default::default(), "killed at {kill_at}");
            assert_eq!(world.plane.requests.names().len(), 2, "one for each join, killed at {kill_at}");
            assert_eq!(world.told().applied.unwrap().version, 2);
            trash::remove(&world.parts.slots).await;
            for slot in [SlotName::A, SlotName::B] {
                let slots = &world.parts.slots;
                assert!(!slots.has_trash(slot).unwrap(), "killed at {kill_at}");
                let is_whole = world.record(slot).is_some() || !slots.places().slot(slot).exists();
                assert!(is_whole, "killed at {kill_at}: files without a record in slot {slot:?}");
            }
            if polls < kill_at {
                break;
            }
            kill_at += 1;
        }
        // Half of what an idle machine needs: blocking work that ends before it is awaited causes no wake-up.
        assert!(kill_at > 20, "only {kill_at} wake-ups");
    });
}

/// Returns true if a file of this name is anywhere below a directory.
fn is_below(directory: &Path, name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.map(Result::unwrap).any(|entry| {
        let is_directory = entry.file_type().unwrap().is_dir();
        entry.file_name() == name || is_directory && is_below(&entry.path(), name)
    })
}

#[test]
fn drained_slot_is_reported_empty_only_once_its_keys_are_gone() {
    const KEY: &str = "kubelet-client-current.pem";
    in_runtime(async {
        let mut kill_at = 1;
        loop {
            let mut world = World::new();
            world.select(1);
            world.settled().await;
            let (pki, state) = (
                world.parts.slots.places().kept(SlotName::A, "kubelet").join("pki"),
                world.directory.path().join("state"),
            );
            std::fs::create_dir_all(&pki).unwrap();
            std::fs::write(pki.join(KEY), "KEY").unwrap();
            world.drain();
            let (mut agent, mut polls, mut is_empty) = (world.agent(), 0, false);
            for _ in 0..50 {
                let work = async {
                    agent.turn().await;
                    trash::remove(&world.parts.slots).await;
                };
                let is_killed = limited(work, &mut polls, kill_at).await.is_none();
                // A kill would also have ended the blocking work of the dead agent.
                tokio::task::spawn_blocking(|| ()).await.unwrap();
                let told = world.told();
                is_empty = told.slots[0].state == SlotState::Empty && told.applied.is_none();
                assert!(!is_empty || !is_below(&state, KEY), "killed at {kill_at}");
                let (is_busy, is_there) = (
                    matches!(told.slots[0].state, SlotState::Running | SlotState::Emptying),
                    is_below(&state, KEY),
                );
                assert!(
                    is_busy || told.applied.is_some() || !is_there,
                    "killed at {kill_at}: {:?}",
                    told.slots
                );
                if is_killed {
                    agent = world.agent();
                } else if is_empty {
                    break;
                }
            }
            assert!(is_empty, "killed at {kill_at}: {:?}", world.told());
            if polls < kill_at {
                break;
            }
            kill_at += 1;
        }
        // Half of what an idle machine needs: blocking work that ends before it is awaited causes no wake-up.
        assert!(kill_at > 5, "only {kill_at} wake-ups");
    });
}

#[test]
fn logs_of_failed_trials_go_with_a_drained_machine_alone() {
    in_runtime(async {
        let mut world = World::new();
        world.bad.insert(1);
        world.select(1);
        assert_eq!(world.settled().await, "BackOff");
        let slots = world.parts.slots.clone();
        let logs = [SlotName::A, SlotName::B].map(|slot| slots.places().failed_log(slot));
        for log in &logs {
            std::fs::create_dir_all(log.join("pods")).unwrap();
        }
        world.agent().turn().await;
        assert!(logs.iter().all(|log| log.exists()));
        world.drain();
        let mut agent = world.agent();
        for _ in 0..20 {
            agent.turn().await;
            trash::remove(&slots).await;
        }
        assert_eq!(world.told().slots[0].state, SlotState::Empty);
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
            agent.turn().await;
        }
        world.react().await;
        world.drain();
        let mut states = Vec::new();
        while states.last() != Some(&SlotState::Empty) {
            agent.turn().await;
            states.push(world.told().slots[0].state);
            if states.last() == Some(&SlotState::Emptying) && world.record(SlotName::A).is_none() {
                trash::remove(&world.parts.slots).await;
            }
            assert!(states.len() < 20, "{states:?}");
        }
        states.dedup();
        assert_eq!(states, [SlotState::Running, SlotState::Emptying, SlotState::Empty]);
    });
}
