//! What a new set of Machines costs: work for those that changed, none for the others.

use super::*;
use crate::machine::tests::machine;

const A: &str = "52:54:00:00:00:0a";

struct Rig {
    _directory: tempfile::TempDir,
    follower: Follower,
}

fn rig() -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
    let machines = Machines::default();
    let (registry, _events) = StatusRegistry::new(machines.clone(), &store, true).unwrap();
    let follower = Follower {
        site: SiteName::default(),
        machines,
        store,
        registry,
        state: Arc::default(),
        kept: Kept::new(),
    };
    Rig { _directory: directory, follower }
}

fn sourced(number: u32) -> Sourced {
    let mac = format!("52:54:00:00:01:{number:02x}");
    Sourced { origin: "a.yaml".to_owned(), machine: machine(&format!("m{number}"), &[&mac]).into() }
}

#[tokio::test]
async fn a_set_in_which_one_machine_changed_costs_the_work_of_one() {
    let Rig { _directory, mut follower } = rig();
    let mut set: Vec<Sourced> = (0..200).map(sourced).collect();
    follower.take(set.clone(), Vec::new()).await;
    assert_eq!(follower.kept.len(), 200);
    let before = follower.machines.load();
    follower.registry.take_changes();

    let (changes, new, gone) = follower.plan_keep(set.clone());
    assert_eq!((changes.len(), new.len(), gone.len()), (0, 0, 0));

    set[7].machine = Arc::new(machine("m7", &[A]));
    set.remove(8);
    let (changes, new, gone) = follower.plan_keep(set.clone());
    assert_eq!(changes.len(), 2);
    assert_eq!(new.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["m7"]);
    assert_eq!(gone, HashSet::from(["m8".to_owned()]));

    follower.take(set, Vec::new()).await;
    let after = follower.machines.load();
    let changed: Vec<_> = after.changed_since(&before).map(|known| known.name.to_string()).collect();
    assert_eq!(changed, ["m7"], "index and statuses look at no other");
    assert_eq!(follower.store.scan(Table::Machines).unwrap().len(), 199);
}

#[tokio::test]
async fn a_machine_that_others_let_go_of_is_looked_at_again() {
    let Rig { _directory, mut follower } = rig();
    let claim = |name: &str| Sourced { origin: String::new(), machine: machine(name, &[A]).into() };
    let (a, b, other) = (claim("a"), claim("b"), sourced(1));
    follower.take(vec![a.clone(), b.clone(), other.clone()], Vec::new()).await;
    let contested = follower.machines.load();
    assert_eq!(contested.contested(&"a".parse().unwrap()).len(), 1);
    follower.take(vec![a, other], Vec::new()).await;
    let free = follower.machines.load();
    let changed: Vec<_> = free.changed_since(&contested).map(|known| known.name.to_string()).collect();
    assert_eq!(changed, ["a"]);
    assert_eq!(free.contested(&"a".parse().unwrap()), []);
}

#[tokio::test]
async fn what_the_store_kept_is_not_written_again_after_a_restart() {
    let Rig { _directory, mut follower } = rig();
    let set: Vec<Sourced> = (0..3).map(sourced).collect();
    follower.take(set, Vec::new()).await;
    let (machines, kept) = kept(&follower.store).unwrap();
    follower.kept = kept;
    let (changes, new, gone) = follower.plan_keep(machines);
    assert_eq!((changes.len(), new.len(), gone.len()), (0, 0, 0));
}
