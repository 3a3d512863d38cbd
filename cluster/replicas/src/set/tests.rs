//! Table tests of the planner of sets, named after the rules.

use super::*;
use crate::preflight::Preflight;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A healthy Machine of the set.
pub(crate) fn machine(name: &str) -> MachineView {
    MachineView {
        key: name.into(),
        created: at(100),
        is_deleting: false,
        is_marked: false,
        has_remediate: false,
        has_node: true,
        is_node_healthy: Some(true),
        is_available: true,
        health: Health::NotChecked,
        remediated: None,
        owner: OwnerView::This,
    }
}

/// A Machine that a health check has marked.
fn marked(name: &str, created: i64) -> MachineView {
    let remediated = Some(Remediated::Waiting);
    MachineView { created: at(created), health: Health::Failed, remediated, ..machine(name) }
}

/// A live view of a set.
pub(crate) fn set(replicas: u32, machines: Vec<MachineView>) -> SetView {
    SetView {
        uid: "uid".to_owned(),
        live_version: Some("7".to_owned()),
        replicas: Some(replicas),
        autoscaler_minimum: None,
        order: Order::Random,
        machines,
        refused: BTreeSet::new(),
        taken: BTreeSet::new(),
        is_deleting: false,
        is_creation_disabled: false,
        remediation: Remediation { is_current_revision: true, max_in_flight: None },
        preflight: Vec::new(),
        names: NameTemplate::of_set("set"),
    }
}

fn plan(seen: &SetView) -> SetPlan {
    plan_set(seen, at(1000))
}

fn keys(names: &[&str]) -> Vec<Key> {
    names.iter().map(|name| Key::from(*name)).collect()
}

#[test]
fn ms2_deleting_machine_is_no_replica() {
    let deleting = MachineView { is_deleting: true, ..machine("a") };
    let seen = set(2, vec![deleting, machine("b")]);
    let plan = plan(&seen);
    assert_eq!((plan.create.len(), plan.delete), (1, vec![]));
}

#[test]
fn ms2_store_alone_creates_and_deletes_nothing() {
    for replicas in [0, 3] {
        let seen = SetView { live_version: None, ..set(replicas, vec![machine("a"), marked("b", 1)]) };
        let plan = plan(&seen);
        assert!(plan.needs_live_read, "{plan:?}");
        assert_eq!((plan.create, plan.delete, plan.mark), (vec![], vec![], vec![]));
    }
    let seen = SetView { live_version: None, ..set(1, vec![machine("a")]) };
    assert_eq!(plan(&seen), SetPlan { replicas: Some(1), ..SetPlan::default() });
}

#[test]
fn ms2_same_reads_give_the_same_names_and_others_give_others() {
    let seen = set(3, vec![]);
    let names = plan(&seen).create;
    assert_eq!(plan(&seen).create, names);
    // A kill after the first creation: the name that exists is not used again.
    let mut created = machine("x");
    created.key = names[0].clone();
    let after = plan(&set(3, vec![created])).create;
    assert_eq!(after, names[1..]);
    let later = SetView { live_version: Some("8".to_owned()), ..set(3, vec![]) };
    assert!(plan(&later).create.iter().all(|name| !names.contains(name)));
    let other = SetView { uid: "other".to_owned(), ..set(3, vec![]) };
    assert!(plan(&other).create.iter().all(|name| !names.contains(name)));
}

#[test]
fn ms2_huge_set_is_created_in_bounded_steps() {
    let huge = set(u32::MAX, vec![]);
    let first = plan(&huge);
    assert_eq!(
        (first.create.len(), first.next),
        (MAX_CREATIONS, Some(at(1000))),
        "the rest follows immediately"
    );
    let created = first.create.iter().map(|key| MachineView { key: key.clone(), ..machine("") });
    let second = plan(&set(u32::MAX, created.collect()));
    assert_eq!(second.create.len(), MAX_CREATIONS);
    assert!(second.create.iter().all(|key| !first.create.contains(key)));
    let stored = plan(&SetView { live_version: None, ..huge });
    assert_eq!((stored.create, stored.needs_live_read), (vec![], true));
    let last = plan(&set(u32::try_from(MAX_CREATIONS).unwrap(), vec![]));
    assert_eq!((last.create.len(), last.next), (MAX_CREATIONS, None));
}

#[test]
fn ms2_name_in_use_by_another_machine_is_not_tried_again() {
    let mut seen = set(1, vec![]);
    let first = plan(&seen).create;
    // The creation has found a Machine that the selector does not match.
    seen.taken = first.iter().cloned().collect();
    let second = plan(&seen).create;
    assert_eq!((second.len(), second == first), (1, false));
}

#[test]
fn ms2_growing_set_does_not_wait_for_a_refused_deletion() {
    // A policy may refuse the deletion for ever.
    let plan = plan(&set(4, vec![marked("a", 1), machine("b")]));
    assert_eq!(
        (plan.delete, plan.create.len()),
        (keys(&["a"]), 2),
        "the successor of a follows its deletion"
    );
}

#[test]
fn ms2_surplus_is_deleted_in_order() {
    let sick = MachineView { has_node: false, ..machine("z") };
    let seen = set(1, vec![machine("a"), sick, machine("b")]);
    assert_eq!(plan(&seen).delete, keys(&["z", "a"]));
}

#[test]
fn ms3_orphan_is_adopted_before_any_machine_is_made() {
    let orphan = MachineView { owner: OwnerView::Orphan, ..machine("a") };
    for live_version in [None, Some("7".to_owned())] {
        let seen = SetView { live_version, ..set(2, vec![orphan.clone(), marked("b", 1)]) };
        let plan = plan(&seen);
        assert_eq!(plan.adopt, keys(&["a"]));
        assert_eq!((plan.create, plan.delete, plan.blocked), (vec![], vec![], vec![Wait::Adoption]));
    }
}

#[test]
fn ms3_refused_adoption_does_not_stop_the_set() {
    let orphan = |name| MachineView { owner: OwnerView::Orphan, ..machine(name) };
    let mut seen = set(2, vec![orphan("a"), marked("b", 1), machine("c")]);
    seen.refused = keys(&["a"]).into_iter().collect();
    let refused = Wait::AdoptionRefused(keys(&["a"]));
    let without = plan(&seen);
    assert_eq!((without.adopt, without.delete), (vec![], keys(&["b"])));
    assert_eq!(without.blocked, std::slice::from_ref(&refused));
    seen.machines.push(orphan("d"));
    let with_another = plan(&seen);
    assert_eq!((with_another.adopt, with_another.delete), (keys(&["d"]), vec![]));
    assert_eq!(with_another.blocked, [refused, Wait::Adoption]);
}

#[test]
fn ms3_other_and_deleting_machines_are_left() {
    let other = MachineView { owner: OwnerView::Other, ..marked("a", 1) };
    let gone = MachineView { owner: OwnerView::Orphan, is_deleting: true, ..machine("b") };
    let plan = plan(&set(0, vec![other, gone]));
    assert_eq!(plan, SetPlan { replicas: Some(0), ..SetPlan::default() });
}

#[test]
fn ms5_failed_preflight_holds_creation_and_not_deletion() {
    let preflight = vec![Preflight::Provisioning];
    let held = plan(&SetView { preflight: preflight.clone(), ..set(2, vec![machine("a")]) });
    assert_eq!((held.create, held.blocked), (vec![], vec![Wait::Preflight(preflight.clone())]));
    assert_eq!(held.next, Some(at(1015)));
    let shrinks = plan(&SetView { preflight, ..set(0, vec![machine("a")]) });
    assert_eq!(shrinks.delete, keys(&["a"]));
}

#[test]
fn ms6_marked_machine_is_deleted_before_its_successor_is_made() {
    let mut seen = set(2, vec![marked("a", 1), machine("b")]);
    let first = plan(&seen);
    assert_eq!(first.mark, [("a".into(), Mark::Deleting)]);
    assert_eq!((first.delete, first.create), (keys(&["a"]), vec![]));
    seen.machines[0].is_deleting = true;
    seen.machines[0].remediated = Some(Remediated::Deleting);
    let second = plan(&seen);
    assert_eq!((second.mark, second.delete, second.create.len()), (vec![], vec![], 1));
}

#[test]
fn ms6_at_most_max_in_flight_newest_first() {
    let mut in_flight = marked("a", 1);
    in_flight.is_deleting = true;
    in_flight.remediated = Some(Remediated::Deleting);
    let users_choice = MachineView { has_remediate: true, ..marked("b", 1) };
    let mut seen = set(5, vec![in_flight, marked("d", 5), marked("e", 9), users_choice, marked("c", 5)]);
    let limit = |amount| Remediation { is_current_revision: true, max_in_flight: Some((amount, 5)) };
    let cases = [
        (Amount::Count(1), &[][..]),
        (Amount::Count(2), &["b"]),
        (Amount::Count(3), &["b", "e"]),
        (Amount::Percent(61), &["b", "e", "c"]),
        (Amount::Count(9), &["b", "e", "c", "d"]),
    ];
    for (amount, expected) in cases {
        seen.remediation = limit(amount);
        let plan = plan(&seen);
        assert_eq!(plan.delete, keys(expected), "{amount}");
        let deferred = plan.mark.iter().filter(|(_, mark)| *mark == Mark::TooManyInFlight(amount));
        assert_eq!(deferred.count(), 4 - expected.len(), "{amount}");
    }
}

#[test]
fn ms6_old_revision_is_not_remediated() {
    let mut seen = set(1, vec![marked("a", 1)]);
    seen.remediation.is_current_revision = false;
    let plan = plan(&seen);
    assert_eq!((plan.mark, plan.delete), (vec![("a".into(), Mark::CannotBe)], vec![]));
}

#[test]
fn ms6_failed_preflight_defers_remediation() {
    let preflight = vec![Preflight::Provisioning];
    let plan = plan(&SetView { preflight: preflight.clone(), ..set(1, vec![marked("a", 1)]) });
    assert_eq!((plan.mark, plan.delete), (vec![("a".into(), Mark::Preflight(preflight))], vec![]));
    assert_eq!(plan.next, Some(at(1015)));
}

#[test]
fn ms6_healthy_or_unchecked_machine_loses_its_mark() {
    let healed = MachineView { health: Health::Succeeded, ..marked("a", 1) };
    // The health check was deleted.
    let unchecked = MachineView { health: Health::NotChecked, ..marked("b", 1) };
    let plan = plan(&set(2, vec![healed, unchecked]));
    let removed = vec![("a".into(), Mark::Remove), ("b".into(), Mark::Remove)];
    assert_eq!((plan.mark, plan.delete), (removed, vec![]));
}

#[test]
fn ms6_remediation_counts_as_scaling_down() {
    let plan = plan(&set(1, vec![machine("a"), marked("b", 1)]));
    assert_eq!(plan.delete, keys(&["b"]));
}

#[test]
fn ms9_dropped_replicas_keep_the_machines() {
    let cases = [
        (vec![machine("a"), machine("b")], Some(1), 2),
        (vec![], Some(3), 3),
        (vec![], None, 1),
        (vec![MachineView { is_deleting: true, ..machine("a") }], None, 1),
    ];
    for (machines, autoscaler_minimum, expected) in cases {
        let mut seen = SetView { replicas: None, autoscaler_minimum, ..set(0, machines) };
        let live = plan(&seen);
        assert_eq!(live.replicas, Some(expected));
        assert_eq!(live.delete, []);
        seen.live_version = None;
        let stored = plan(&seen);
        assert_eq!((stored.replicas, stored.needs_live_read), (None, true));
    }
}

#[test]
fn ms9_disabled_creation_still_deletes() {
    let disabled = |replicas| SetView { is_creation_disabled: true, ..set(replicas, vec![machine("a")]) };
    let held = plan(&disabled(2));
    assert_eq!((held.create, held.blocked), (vec![], vec![Wait::CreationDisabled]));
    assert_eq!(plan(&disabled(0)).delete, keys(&["a"]));
}

#[test]
fn ms10_deleting_set_goes_after_its_machines() {
    let orphan = MachineView { owner: OwnerView::Orphan, ..machine("o") };
    let deleting = MachineView { is_deleting: true, ..machine("b") };
    let cases = [
        (vec![machine("a"), deleting.clone(), orphan.clone()], true, &["a"][..], false, false),
        (vec![deleting], true, &[], false, false),
        (vec![orphan], true, &[], true, false),
        (vec![], false, &[], false, true),
    ];
    for (machines, is_live, delete, remove_finalizer, needs_live_read) in cases {
        let mut seen = SetView { is_deleting: true, ..set(3, machines) };
        seen.live_version = seen.live_version.filter(|_| is_live);
        let plan = plan(&seen);
        assert_eq!((plan.delete, plan.adopt, plan.create), (keys(delete), vec![], vec![]));
        assert_eq!((plan.remove_finalizer, plan.needs_live_read), (remove_finalizer, needs_live_read));
    }
}
