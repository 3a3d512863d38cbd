//! Table tests of the planner of deployments, named after the rules. The numbers of MD2 and MD3 include upstream's own cases.

use super::*;
use crate::set::tests::at;
use crate::template::tests::template;

/// A set with `[asked, existing, available]`.
pub(crate) fn summary(name: &str, version: &str, created: i64, numbers: [u32; 3]) -> SetSummary {
    SetSummary {
        key: name.into(),
        created: at(created),
        template: template(version),
        asked: numbers[0],
        existing: numbers[1],
        available: numbers[2],
        deleting: 0,
        revision: 0,
        max_replicas: None,
        desired_replicas: None,
        is_observed: true,
        is_deleting: false,
    }
}

pub(crate) fn deployment(
    replicas: u32,
    strategy: Strategy,
    version: &str,
    sets: Vec<SetSummary>,
) -> DeploymentView {
    DeploymentView {
        uid: "uid".to_owned(),
        name: "md".into(),
        replicas,
        strategy,
        template: template(version),
        rollout_after: None,
        is_paused: false,
        sets,
        templates_exist: true,
    }
}

pub(crate) const fn rolling(surge: u32, unavailable: u32) -> Strategy {
    Strategy::RollingUpdate { surge: Amount::Count(surge), unavailable: Amount::Count(unavailable) }
}

/// Replicas, existing and available Machines of each set.
type Numbers<'a> = &'a [[u32; 3]];
type Targets<'a> = &'a [u32];
type Edit = fn(&mut DeploymentView);

fn plan(seen: &DeploymentView) -> DeploymentPlan {
    plan_deployment(seen, at(1000))
}

/// Sets with `[asked, existing, available]`, the last one current.
fn with_numbers(replicas: u32, strategy: Strategy, numbers: Numbers<'_>) -> DeploymentView {
    let sets = numbers
        .iter()
        .zip(0..)
        .map(|(numbers, index)| summary(&format!("ms{index}"), "old", index, *numbers));
    let mut sets: Vec<SetSummary> = sets.collect();
    if let Some(last) = sets.last_mut() {
        last.template = template("new");
    }
    deployment(replicas, strategy, "new", sets)
}

/// Replicas of each set after the plan.
fn targets(seen: &DeploymentView) -> Vec<u32> {
    let plan = plan(seen);
    seen.sets.iter().map(|set| plan.scale.get(&set.key).copied().unwrap_or(set.asked)).collect()
}

#[test]
fn md2_old_sets_shrink_by_what_stays_available() {
    // Replicas, surge, unavailable, sets from the oldest to the current one, expected replicas.
    let cases: [(u32, Strategy, Numbers<'_>, Targets<'_>); 19] = [
        (10, rolling(1, 0), &[[0, 0, 0], [10, 10, 10]], &[0, 10]),
        (3, rolling(1, 0), &[[2, 2, 2], [1, 1, 1]], &[2, 2]),
        (3, rolling(1, 0), &[[2, 2, 1], [1, 1, 1]], &[2, 2]),
        (3, rolling(1, 0), &[[2, 3, 3], [1, 1, 1]], &[2, 1]),
        (6, rolling(3, 1), &[[2, 3, 3], [3, 3, 3], [3, 0, 0]], &[2, 3, 3]),
        (3, rolling(1, 0), &[[3, 3, 0], [1, 1, 0]], &[3, 1]),
        (3, rolling(0, 1), &[[2, 2, 0], [1, 1, 0]], &[2, 1]),
        (3, rolling(1, 0), &[[3, 3, 2], [1, 1, 1]], &[2, 1]),
        (3, rolling(1, 0), &[[3, 3, 3], [1, 1, 1]], &[2, 1]),
        (3, rolling(1, 0), &[[2, 2, 2], [1, 1, 0], [2, 2, 0], [1, 1, 1]], &[2, 0, 0, 1]),
        (3, rolling(1, 0), &[[3, 3, 3], [1, 1, 0], [2, 2, 0], [1, 1, 1]], &[2, 0, 0, 1]),
        (3, rolling(1, 0), &[[4, 3, 3], [2, 1, 0], [5, 2, 0], [1, 1, 1]], &[2, 0, 0, 1]),
        (3, rolling(1, 0), &[[1, 1, 1], [1, 1, 0], [2, 2, 1], [1, 1, 1]], &[1, 0, 2, 1]),
        (3, rolling(1, 0), &[[2, 1, 1], [3, 1, 0], [3, 2, 1], [1, 1, 1]], &[1, 0, 2, 1]),
        (3, rolling(1, 0), &[[3, 4, 4], [2, 2, 2]], &[2, 2]),
        (1, rolling(2, 0), &[[5, 5, 5], [4, 4, 4]], &[0, 1]),
        (6, rolling(3, 1), &[[5, 5, 5], [2, 2, 2]], &[3, 4]),
        (12, rolling(0, 12), &[[12, 12, 12], [0, 0, 0]], &[0, 0]),
        (0, rolling(1, 0), &[[2, 2, 2], [1, 1, 1]], &[0, 0]),
    ];
    for (replicas, strategy, numbers, expected) in cases {
        let seen = with_numbers(replicas, strategy, numbers);
        assert_eq!(targets(&seen), expected, "{replicas} {strategy:?} {numbers:?}");
    }
}

#[test]
fn md2_pending_deletions_of_another_set_take_their_room() {
    // Upstream lowers the first set here. The second set may delete two available Machines meanwhile, so one too few would be available.
    let seen = with_numbers(3, rolling(4, 0), &[[4, 4, 1], [1, 3, 3], [1, 1, 1]]);
    assert_eq!(targets(&seen)[..2], [4, 1]);
}

#[test]
fn md2_deleting_set_counts_as_pending() {
    let mut seen = with_numbers(3, rolling(2, 1), &[[2, 2, 2], [2, 2, 2], [1, 1, 1]]);
    assert_eq!(targets(&seen), [0, 1, 1]);
    seen.sets[1].is_deleting = true;
    assert_eq!(targets(&seen), [2, 2, 1], "its Machines are about to go");
}

#[test]
fn md5_rollback_keeps_machines_that_are_about_to_go() {
    let seen = with_numbers(3, rolling(1, 0), &[[2, 2, 1], [1, 3, 3]]);
    assert_eq!(targets(&seen), [2, 2]);
    let alone = with_numbers(3, Strategy::OnDelete, &[[0, 0, 0], [0, 2, 2]]);
    assert_eq!(targets(&alone), [0, 3]);
}

#[test]
fn md3_broken_version_stops_after_surge() {
    let seen = with_numbers(6, rolling(3, 1), &[[5, 5, 5], [4, 4, 0]]);
    assert_eq!(targets(&seen), [5, 4]);
}

#[test]
fn md3_unavailable_old_machines_do_not_block() {
    let cases: [(Numbers<'_>, u32); 7] = [
        (&[[5, 5, 3], [5, 5, 5]], 4),
        (&[[5, 5, 5], [5, 5, 5]], 5),
        (&[[5, 5, 4], [6, 5, 5]], 5),
        (&[[4, 5, 4], [5, 5, 5]], 4),
        (&[[5, 5, 4], [5, 5, 3]], 5),
        (&[[0, 0, 0], [10, 10, 10]], 0),
        (&[[5, 5, 0], [5, 5, 5]], 4),
    ];
    for (numbers, expected) in cases {
        let seen = with_numbers(10, rolling(0, 0), numbers);
        // The rules before leave everything as it is: 10 Machines, and too few are available.
        let bounds = Bounds { replicas: 10, surge: 0, ..Bounds::of(rolling(1, 0), 10) };
        let mut parts: Vec<Part> = seen.sets.iter().rev().map(Part::of).collect();
        rolling::scale(&bounds, &mut parts);
        assert_eq!(part::to_count(parts[1].target), expected, "{numbers:?}");
    }
}

#[test]
fn md4_old_sets_do_not_recreate_deleted_machines() {
    // Replicas, sets, expected replicas. The current set is the last one.
    let cases: [(u32, Numbers<'_>, Targets<'_>); 7] = [
        (4, &[[3, 3, 3], [1, 1, 1], [0, 0, 0]], &[3, 1, 0]),
        (3, &[[3, 2, 2], [1, 0, 0], [0, 0, 0]], &[2, 0, 0]),
        (3, &[[1, 1, 1], [2, 2, 2], [2, 2, 2]], &[0, 1, 2]),
        (3, &[[1, 0, 0], [2, 2, 2], [2, 2, 2]], &[0, 1, 2]),
        (3, &[[2, 2, 2], [0, 0, 0]], &[2, 1]),
        (3, &[[3, 2, 2], [2, 2, 2]], &[1, 2]),
        (1, &[[3, 3, 3], [5, 5, 5]], &[0, 1]),
    ];
    for (replicas, numbers, expected) in cases {
        let seen = with_numbers(replicas, Strategy::OnDelete, numbers);
        assert_eq!(targets(&seen), expected, "{replicas} {numbers:?}");
        let disabled: Vec<Key> = plan(&seen).disable_creation.into_iter().collect();
        let old: Vec<Key> = seen.sets[..seen.sets.len() - 1].iter().map(|set| set.key.clone()).collect();
        assert_eq!(disabled, old);
    }
    assert!(plan(&with_numbers(3, rolling(1, 0), &[[3, 3, 3], [0, 0, 0]])).disable_creation.is_empty());
}

#[test]
fn md1_first_set_is_created_with_all_replicas() {
    let first = plan(&deployment(3, rolling(1, 0), "new", vec![]));
    let Current::Create { name, reason: CreateReason::First, replicas: 3 } = first.current else {
        panic!("{first:?}")
    };
    assert!(name.0.starts_with("md-") && name.0.len() == 8, "{name}");
    assert_eq!(first.revision, Some(Revision { number: 1, replaces: None }));
    let waits = DeploymentView { templates_exist: false, ..deployment(3, rolling(1, 0), "new", vec![]) };
    assert_eq!(plan(&waits).current, Current::Wait(Wait::TemplateMissing));
}

#[test]
fn md1_edit_creates_a_set_within_the_surge() {
    let old = summary("ms0", "old", 1, [3, 3, 3]);
    let edited = plan(&deployment(3, rolling(1, 0), "new", vec![old]));
    let Current::Create { reason, replicas: 1, .. } = edited.current else { panic!("{edited:?}") };
    assert_eq!(reason.to_string(), "MachineSet ms0: version old, new required");
    assert_eq!(edited.scale, BTreeMap::new());
}

#[test]
fn md5_earlier_template_finds_its_set() {
    let former = SetSummary { revision: 1, ..summary("ms0", "old", 1, [1, 1, 1]) };
    let newer = SetSummary { revision: 2, ..summary("ms1", "new", 2, [2, 2, 2]) };
    let back = plan(&deployment(3, rolling(1, 0), "old", vec![former, newer]));
    assert_eq!(back.current, Current::Is("ms0".into()));
    assert_eq!(back.revision, Some(Revision { number: 3, replaces: Some(1) }));
    assert_eq!(back.notes[&Key::from("ms0")][0], Note::IsCurrent);
    assert_eq!(back.scale, BTreeMap::from([("ms0".into(), 2)]));
}

#[test]
fn md5_of_equal_sets_the_largest_then_oldest_then_first_name_is_current() {
    let cases: [([u32; 3], [i64; 3], &str); 3] =
        [([1, 2, 2], [1, 3, 2], "c"), ([1, 2, 1], [1, 3, 2], "b"), ([1, 1, 1], [1, 1, 1], "a")];
    for (asked, created, expected) in cases {
        let sets = ["a", "b", "c"].iter().zip(asked.into_iter().zip(created));
        let sets = sets.map(|(name, (asked, created))| summary(name, "new", created, [asked, asked, asked]));
        let plan = plan(&deployment(3, rolling(1, 0), "new", sets.collect()));
        assert_eq!(plan.current, Current::Is(expected.into()));
    }
}

#[test]
fn md6_restart_makes_one_set() {
    let mut seen = deployment(3, rolling(1, 0), "new", vec![summary("ms0", "new", 1, [3, 3, 3])]);
    let plain = plan(&DeploymentView { sets: vec![], ..seen.clone() });
    seen.rollout_after = Some(at(1001));
    let early = plan(&seen);
    assert_eq!((early.current, early.next), (Current::Is("ms0".into()), Some(at(1001))));
    seen.rollout_after = Some(at(1000));
    let due = plan(&seen);
    let Current::Create { name, reason: CreateReason::RolloutAfter(_), replicas: 1 } = due.current else {
        panic!("{due:?}")
    };
    assert_ne!(
        Current::Create { name: name.clone(), reason: CreateReason::First, replicas: 3 },
        plain.current
    );
    // The clock of the API server is behind, so the new set seems to be older than the time.
    seen.sets.push(summary(&name.0, "new", 999, [1, 0, 0]));
    assert_eq!(plan(&seen).current, Current::Is(name));
    // Another time is another rollout.
    seen.rollout_after = Some(at(1000) - jiff::SignedDuration::from_millis(1));
    assert!(matches!(plan(&seen).current, Current::Create { .. }));
    seen.rollout_after = Some(at(999));
    assert!(matches!(plan(&seen).current, Current::Is(_)));
}

#[test]
fn md7_paused_deployment_starts_no_rollout() {
    let paused = |version, numbers: &[[u32; 3]]| DeploymentView {
        is_paused: true,
        template: template(version),
        ..with_numbers(6, rolling(3, 0), numbers)
    };
    let edited = paused("newest", &[[6, 6, 6]]);
    let plan = plan(&edited);
    assert_eq!((plan.current, plan.scale.len(), plan.revision), (Current::Paused, 0, None));
    let cases: [(Numbers<'_>, Targets<'_>); 7] = [
        (&[[3, 3, 3]], &[6]),
        (&[[0, 0, 0]], &[6]),
        (&[[0, 0, 0], [4, 4, 4]], &[0, 6]),
        (&[[0, 0, 0], [0, 0, 0]], &[0, 6]),
        (&[[2, 2, 2], [6, 6, 6]], &[0, 6]),
        (&[[4, 4, 4], [2, 2, 2]], &[6, 3]),
        (&[[8, 8, 8], [4, 4, 4]], &[6, 3]),
    ];
    for (numbers, expected) in cases {
        assert_eq!(targets(&paused("new", numbers)), expected, "{numbers:?}");
    }
    let none = DeploymentView { is_paused: true, ..deployment(3, rolling(1, 0), "new", vec![]) };
    assert_eq!(super::plan_deployment(&none, at(1)).current, Current::Paused);
}

#[test]
fn md7_deleting_set_gets_no_replicas() {
    let mut seen = with_numbers(3, rolling(1, 0), &[[0, 0, 0], [0, 2, 2]]);
    // Neither set has the template, and the newer one is being deleted.
    seen.template = template("newest");
    seen.is_paused = true;
    seen.sets[1].is_deleting = true;
    assert_eq!(targets(&seen), [3, 0]);
    seen.sets[0].is_deleting = true;
    assert_eq!(targets(&seen), [0, 0]);
}

#[test]
fn md10_no_set_is_created_under_a_name_in_use() {
    let mut seen = deployment(3, rolling(1, 0), "new", vec![]);
    let mut names = BTreeSet::new();
    loop {
        match plan(&seen).current {
            Current::Create { name, .. } => {
                assert!(names.insert(name.clone()), "{name} is created twice");
                // A user has changed the template of the set.
                seen.sets.push(summary(&name.0, "other", 1, [0, 0, 0]));
            }
            current => {
                assert_eq!(current, Current::Wait(Wait::NamesTaken));
                break;
            }
        }
    }
    assert_eq!(names.len(), 8);
    seen.is_paused = true;
    assert_eq!(plan(&seen).current, Current::Paused);
}

#[test]
fn md7_proportions_sum_up() {
    let sizes = 0..=5_u32;
    for replicas in 0..=7 {
        for (first, second, third) in
            sizes.clone().flat_map(|a| (0..=5).flat_map(move |b| (0..=5).map(move |c| (a, b, c))))
        {
            for recorded in [None, Some(0), Some(1), Some(4), Some(12)] {
                let mut seen = with_numbers(
                    replicas,
                    rolling(2, 0),
                    &[[first, first, first], [second, 0, 0], [third, third, 0]],
                );
                seen.is_paused = true;
                for set in &mut seen.sets {
                    set.max_replicas = recorded;
                }
                let after: Vec<u32> = targets(&seen);
                let active = [first, second, third].iter().filter(|asked| **asked > 0).count();
                let expected = if active > 1 && replicas > 0 { replicas + 2 } else { replicas };
                assert_eq!(after.iter().sum::<u32>(), expected, "{seen:?} {after:?}");
                let before = [first, second, third];
                let grows = before.iter().sum::<u32>() < expected;
                let is_one_way = before.iter().zip(&after).all(|(b, a)| if grows { a >= b } else { a <= b });
                assert!(active < 2 || is_one_way, "{before:?} {after:?}");
            }
        }
    }
}

#[test]
fn md8_revision_only_rises() {
    let cases: [(&[u64], u64, Revision); 5] = [
        (&[], 0, Revision { number: 1, replaces: None }),
        (&[2, 1], 3, Revision { number: 3, replaces: None }),
        (&[3, 2], 1, Revision { number: 4, replaces: Some(1) }),
        (&[3], 3, Revision { number: 4, replaces: Some(3) }),
        (&[3], 9, Revision { number: 9, replaces: None }),
    ];
    for (others, current, expected) in cases {
        let of = |index: usize, revision: u64| SetSummary {
            revision,
            ..summary(&format!("ms{index}"), "old", 1, [0; 3])
        };
        let mut sets: Vec<SetSummary> =
            others.iter().enumerate().map(|(i, revision)| of(i, *revision)).collect();
        sets.push(SetSummary { revision: current, ..summary("current", "new", 2, [3, 3, 3]) });
        assert_eq!(plan(&deployment(3, rolling(1, 0), "new", sets)).revision, Some(expected), "{others:?}");
    }
}

#[test]
fn md8_empty_old_sets_go_once_the_deployment_is_complete() {
    let base = with_numbers(3, rolling(1, 0), &[[0, 0, 0], [3, 3, 3]]);
    let with = |edit: fn(&mut DeploymentView)| {
        let mut seen = base.clone();
        edit(&mut seen);
        plan(&seen).delete
    };
    assert_eq!(with(|_| ()), ["ms0".into()]);
    let with_old_machine = with_numbers(3, rolling(1, 0), &[[0, 1, 1], [3, 3, 3]]);
    assert!(plan(&base).is_complete && !plan(&with_old_machine).is_complete);
    let kept: [(&str, Edit); 7] = [
        ("deleting Machines", |seen| seen.sets[0].deleting = 1),
        ("not observed", |seen| seen.sets[0].is_observed = false),
        ("already deleting", |seen| seen.sets[0].is_deleting = true),
        ("not available", |seen| seen.sets[1].available = 2),
        ("not all replicas", |seen| seen.replicas = 4),
        ("old Machines", |seen| seen.sets[0].existing = 1),
        ("paused", |seen| seen.is_paused = true),
    ];
    for (name, edit) in kept {
        assert_eq!(with(edit), [], "{name}");
    }
}

#[test]
fn md9_no_surge_frees_first() {
    let seen = with_numbers(3, rolling(0, 1), &[[3, 3, 3], [0, 0, 0]]);
    assert_eq!(targets(&seen), [2, 0]);
    // The Machine is deleting: it is not a replica, so its successor is created, and waits for the host.
    let freed = with_numbers(3, rolling(0, 1), &[[2, 2, 2], [0, 0, 0]]);
    assert_eq!(targets(&freed), [2, 1]);
}

#[test]
fn md10_stale_cache_makes_no_second_set() {
    let old = summary("ms0", "old", 1, [3, 3, 3]);
    let mut seen = deployment(3, rolling(1, 0), "new", vec![old]);
    let names: Vec<Current> = (0..2).map(|_| plan(&seen).current).collect();
    assert_eq!(names[0], names[1]);
    // Another state of the old set, and other replicas, are the same decision.
    seen.sets[0].asked = 2;
    seen.replicas = 5;
    let (Current::Create { name, .. }, Current::Create { name: later, .. }) =
        (&names[0], &plan(&seen).current)
    else {
        panic!("{names:?}")
    };
    assert_eq!(name, later);
    // Another template under the name: a user has changed the set.
    seen.sets.push(summary(&name.0, "strange", 2, [1, 1, 1]));
    let Current::Create { name: free, .. } = plan(&seen).current else { panic!("no set is created") };
    assert_ne!(*name, free);
    // The deployment was deleted and made again.
    seen.uid = "other".to_owned();
    seen.sets.pop();
    let Current::Create { name: other, .. } = plan(&seen).current else { panic!("no set is created") };
    assert_ne!(*name, other);
}

#[test]
fn md10_deleting_current_set_is_waited_for() {
    let mut seen = with_numbers(3, rolling(1, 0), &[[1, 1, 1], [3, 3, 3]]);
    seen.sets[1].is_deleting = true;
    let plan = plan(&seen);
    assert_eq!(plan.current, Current::Wait(Wait::SetDeleting("ms1".into())));
    assert_eq!((plan.scale.len(), plan.delete.len()), (0, 0));
}

#[test]
fn md9_dropped_replicas_are_those_that_the_deployment_had() {
    let mut sets = vec![summary("a", "old", 1, [2, 2, 2]), summary("b", "new", 2, [2, 2, 2])];
    assert_eq!(implied_replicas(&sets, Some(9)), 4);
    sets[1].desired_replicas = Some(3);
    assert_eq!(implied_replicas(&sets, Some(9)), 3, "the surge does not become permanent");
    assert_eq!(implied_replicas(&[], Some(2)), 2);
    assert_eq!(implied_replicas(&[], None), 1);
}

#[test]
fn numbers_of_any_size_do_not_overflow() {
    let most = u32::MAX;
    for is_paused in [false, true] {
        for strategy in [rolling(most, most), Strategy::OnDelete] {
            let mut seen = with_numbers(most, strategy, &[[most; 3], [most; 3], [most; 3]]);
            seen.is_paused = is_paused;
            seen.sets[0].max_replicas = Some(1);
            seen.sets[1].revision = u64::MAX;
            let plan = plan(&seen);
            assert_eq!(plan.max_replicas, most, "{plan:?}");
        }
    }
}
