//! Cost of a new set of Machines: work for those that changed, none for the others.

use bedplate_api::id::SiteName;
use bedplate_process::liveness::Pulse;
use bedplate_process::reconcile::Task;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cluster::NoManifests;
use crate::machines::Machines;
use crate::machines::discovered::Discovered;
use crate::machines::source::kept;
use crate::machines::tests::machine;
use crate::status::StatusRegistry;
use crate::store::Store;
use crate::system_of_record::SystemOfRecord;

const A: &str = "52:54:00:00:00:0a";

struct Rig {
    directory: tempfile::TempDir,
    follower: Follower,
    updates: mpsc::Sender<Update>,
}

fn rig() -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
    let machines = Machines::default();
    let (registry, _events) = StatusRegistry::new(machines.clone(), &store, SystemOfRecord::Pxed).unwrap();
    let site = Site {
        name: SiteName::default(),
        instance: "test".to_owned(),
        record: SystemOfRecord::Pxed,
        discovered: Discovered::load(store.clone(), 1).unwrap(),
        source: watch::Sender::default(),
        writes: Arc::default(),
        store,
        machines,
        registry,
    };
    let (updates, receiver) = mpsc::channel(1);
    let follower = Follower::new(site, receiver, Arc::new(NoManifests), Vec::new(), Kept::new());
    Rig { directory, follower, updates }
}

fn run(mut follower: Follower) {
    tokio::spawn(async move {
        Task::new(Pulse::unwatched()).run(&mut follower, CancellationToken::new()).await;
    });
}

fn sourced(number: u32) -> Sourced {
    let mac = format!("52:54:00:00:01:{number:02x}");
    Sourced { origin: "a.yaml".to_owned(), machine: machine(&format!("m{number}"), &[&mac]).into() }
}

#[tokio::test]
async fn a_set_in_which_one_machine_changed_costs_the_work_of_one() {
    let Rig { directory: _directory, mut follower, .. } = rig();
    let mut set: Vec<Sourced> = (0..200).map(sourced).collect();
    follower.take(set.clone(), OtherManifests::NOTHING, Vec::new()).await;
    assert_eq!(follower.kept.len(), 200);
    let before = follower.site.machines.load();
    follower.site.registry.take_changes();

    let (changes, new, gone) = follower.plan_keep(&set);
    assert_eq!((changes.len(), new.len(), gone.len()), (0, 0, 0));

    set[7].machine = Arc::new(machine("m7", &[A]));
    set.remove(8);
    let (changes, new, gone) = follower.plan_keep(&set);
    assert_eq!(changes.len(), 2);
    assert_eq!(new.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["m7"]);
    assert_eq!(gone, HashSet::from(["m8".to_owned()]));

    follower.take(set, OtherManifests::NOTHING, Vec::new()).await;
    let after = follower.site.machines.load();
    let changed: Vec<_> = after.changed_since(&before).map(|known| known.name.to_string()).collect();
    assert_eq!(changed, ["m7"], "index and statuses look at no other");
    assert_eq!(follower.site.store.scan(Table::Machines).unwrap().len(), 199);
}

#[tokio::test]
async fn machine_that_others_released_is_checked_again() {
    let Rig { directory: _directory, mut follower, .. } = rig();
    let claim = |name: &str| Sourced { origin: String::new(), machine: machine(name, &[A]).into() };
    let (a, b, other) = (claim("a"), claim("b"), sourced(1));
    follower.take(vec![a.clone(), b.clone(), other.clone()], OtherManifests::NOTHING, Vec::new()).await;
    let contested = follower.site.machines.load();
    assert_eq!(contested.contested(&"a".parse().unwrap()).len(), 1);
    follower.take(vec![a, other], OtherManifests::NOTHING, Vec::new()).await;
    let free = follower.site.machines.load();
    let changed: Vec<_> = free.changed_since(&contested).map(|known| known.name.to_string()).collect();
    assert_eq!(changed, ["a"]);
    assert_eq!(free.contested(&"a".parse().unwrap()), []);
}

#[tokio::test]
async fn stored_machines_are_not_written_again_after_a_restart() {
    let Rig { directory: _directory, mut follower, .. } = rig();
    let set = || -> Vec<Sourced> { (0..3).map(sourced).collect() };
    follower.take(set(), OtherManifests::NOTHING, Vec::new()).await;
    let (_, kept) = kept(&follower.site.store).unwrap();
    follower.kept = kept;
    // The source makes objects of its own, which are equal and not the same.
    let (changes, new, gone) = follower.plan_keep(&set());
    assert_eq!((changes.len(), new.len(), gone.len()), (0, 3, 0));
}

/// Follows a set of `count`. Returns the store and the statuses.
async fn following(
    follower: Follower,
    updates: &mpsc::Sender<Update>,
    count: u32,
) -> (Store, StatusRegistry) {
    let (store, registry) = (follower.site.store.clone(), follower.site.registry.clone());
    run(follower);
    let machines = (0..count).map(sourced).collect();
    updates
        .send(Update::Set { machines, others: OtherManifests::NOTHING, problems: Vec::new() })
        .await
        .unwrap();
    reached("the set is kept", || store.scan(Table::Machines).is_ok_and(|kept| kept.len() == count as usize))
        .await;
    (store, registry)
}

async fn reached(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "not reached: {what}");
        // The store has a thread of its own, which no paused clock waits for.
        tokio::time::sleep(Duration::from_millis(20)).await;
        tokio::task::spawn_blocking(std::thread::yield_now).await.unwrap();
    }
}

#[tokio::test]
async fn recreated_store_gets_every_machine_and_status_without_a_new_set() {
    let Rig { directory, follower, updates } = rig();
    let (store, registry) = following(follower, &updates, 20).await;
    registry.take_changes();
    crate::store::tests::damage(&store, &directory.path().join("pxed.redb"));
    assert!(store.put(Table::Boots, b"a", Vec::new()).await.is_err());
    reached("every machine is in the new file", || {
        store.scan(Table::Machines).is_ok_and(|kept| kept.len() == 20)
    })
    .await;
    assert_eq!(registry.take_changes().0.len(), 20, "statuses are written again");
    assert!(directory.path().join("pxed.redb.damaged-1").exists());
}

#[tokio::test]
async fn store_recreated_before_the_source_answers_gets_the_loaded_machines() {
    let Rig { directory, mut follower, updates: _updates } = rig();
    follower.take((0..5).map(sourced).collect(), OtherManifests::NOTHING, Vec::new()).await;
    let (site, store) = (follower.site.clone(), follower.site.store.clone());
    let (machines, rows) = kept(&store).unwrap();
    let (_sender, updates) = mpsc::channel(1);
    let follower = Follower::new(site, updates, Arc::new(NoManifests), machines, rows);
    crate::store::tests::damage(&store, &directory.path().join("pxed.redb"));
    assert!(store.put(Table::Boots, b"a", Vec::new()).await.is_err());
    run(follower);
    reached("what is known is in the new file", || {
        store.scan(Table::Machines).is_ok_and(|kept| kept.len() == 5)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn machines_whose_write_failed_are_written_again_without_a_new_set() {
    let Rig { directory: _directory, follower, updates } = rig();
    let (store, _) = following(follower, &updates, 3).await;
    crate::store::tests::break_next_write(&store);
    let machines = (0..4).map(sourced).collect();
    updates
        .send(Update::Set { machines, others: OtherManifests::NOTHING, problems: Vec::new() })
        .await
        .unwrap();
    reached("the write failed", || store.counters().failures.load(std::sync::atomic::Ordering::Relaxed) == 1)
        .await;
    reached("all are kept", || store.scan(Table::Machines).is_ok_and(|kept| kept.len() == 4)).await;
}
