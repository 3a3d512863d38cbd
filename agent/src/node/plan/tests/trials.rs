//! Trials of a version: how they end, and where the node goes after a failure.

use super::*;

#[test]
fn failed_version_is_rolled_back_and_refused_until_another_is_selected() {
    let mut world = World::new(Some(1));
    world.settle();
    world.bad.push(2);
    world.select(2);
    world.settle();
    world.delete_node();
    assert_eq!(world.settle().reason, PavedReason::VersionRejected);
    assert_eq!(world.node(), Some(1), "{}", world.log.join("\n"));
    assert_eq!(world.seen.refused, [version(2)]);
    world.select(3);
    world.settle();
    world.delete_node();
    world.settle();
    assert_eq!(world.node(), Some(3), "{}", world.log.join("\n"));
}

#[test]
fn a_trial_is_not_judged_while_the_api_server_is_away() {
    let mut world = about_to_repave(true);
    while !matches!(world.plan(), Plan::Wait(_)) {
        let Plan::Do(step) = world.plan() else { unreachable!() };
        world.apply(step);
    }
    world.seen.api = Api::Away;
    world.seen.now = later(world.seen.now, SignedDuration::from_hours(3));
    assert!(matches!(world.plan(), Plan::Wait(_)));
    world.seen.api = Api::Live;
    // Time that is not the trial's fault does not count: `TrialTime`.
    world.seen.not_counted = SignedDuration::from_hours(3);
    assert!(matches!(world.plan(), Plan::Wait(_)));
    world.seen.not_counted = SignedDuration::ZERO;
    assert!(matches!(world.plan(), Plan::Do(Step { act: Act::Fail { back_to: Some(_), .. }, .. })));
}

#[test]
fn a_selection_that_changes_in_a_trial_without_a_node_ends_it() {
    let mut world = about_to_repave(true);
    for _ in 0..4 {
        let Plan::Do(step) = world.plan() else { break };
        world.apply(step);
    }
    world.select(3);
    world.settle();
    assert_eq!(world.node(), Some(3), "{}", world.log.join("\n"));
    assert_eq!(world.seen.refused, []);
}

#[test]
fn failed_first_trial_with_a_ready_node_is_stopped_and_retried() {
    let mut world = World::new(Some(1));
    world.no_sandbox.push(1);
    let slot = world.until("fail");
    assert!(matches!(world.seen.node, NodeSeen::Present { ready_since: Some(_), .. }));
    world.machine().paused = true;
    assert!(
        matches!(world.plan(), Plan::Wait(Wait { reason: PavedReason::Paused, .. })),
        "{:?}",
        world.plan()
    );
    world.machine().paused = false;
    assert_eq!(world.plan(), Plan::step(slot, Act::StopSlot));
    // A person mends what was outside of the slot.
    world.no_sandbox.clear();
    assert_eq!(world.settle().reason, PavedReason::Applied);
    assert_eq!(world.node(), Some(1), "{}", world.log.join("\n"));
}

#[test]
fn a_rollback_starts_the_former_slot_before_it_takes_the_node_for_its_own() {
    let mut world = about_to_repave(false);
    let former = world.running().unwrap();
    world.no_sandbox.push(2);
    let slot = world.until("fail");
    assert_eq!(world.plan(), Plan::step(slot, Act::StopSlot));
    world.apply(Step { slot, act: Act::StopSlot });
    assert_eq!(world.plan(), Plan::step(former, Act::StartSlot));
    assert_eq!(world.settle().reason, PavedReason::VersionRejected);
    assert_eq!(world.node(), Some(1), "{}", world.log.join("\n"));
    assert_eq!(world.seen.refused, [version(2)]);
}

#[test]
fn trial_keeps_the_running_node_while_held_or_without_an_api_server() {
    type Change = fn(&mut World);
    let cases: [(&str, Change, PavedReason); 4] = [
        ("paused", |w| w.machine().paused = true, PavedReason::Paused),
        ("deleting", |w| w.machine().deleting = true, PavedReason::MachineDeleting),
        ("claimed", |w| w.machine().claimed_by = Some("worker-7".to_owned()), PavedReason::Claimed),
        ("API away", |w| w.seen.api = Api::Away, PavedReason::ApiServerUnreachable),
    ];
    for (what, change, reason) in cases {
        let mut world = about_to_repave(false);
        let former = world.running().unwrap();
        world.until("begin_trial");
        assert_eq!(world.plan(), Plan::step(former, Act::StopSlot));
        change(&mut world);
        let Plan::Wait(wait) = world.plan() else { panic!("{what}: {:?}", world.plan()) };
        assert_eq!(wait.reason, reason, "{what}");
    }
    // Another version is selected: the trial is ended, and the node has never stopped.
    let mut world = about_to_repave(false);
    let slot = world.until("begin_trial");
    // Only the slot on trial is looked into.
    world.seen.health = Health::default();
    world.select(3);
    assert_eq!(world.plan(), Plan::step(slot, Act::Abandon));
}

#[test]
fn failed_trial_stays_in_its_slot_until_a_retry_or_new_selection() {
    let mut world = World::new(Some(1));
    world.no_sandbox.push(1);
    world.until("fail");
    world.seen.not_before = later(world.seen.now, SignedDuration::from_secs(500));
    world.until("stop_slot");
    world.live_on();
    let plan = world.plan();
    assert!(matches!(plan, Plan::Wait(Wait { reason: PavedReason::BackOff, .. })), "{plan:?}");
    world.select(2);
    let plan = world.plan();
    assert!(matches!(plan, Plan::Do(Step { act: Act::PrepareSlot { .. }, .. })), "{plan:?}");
    world.select(1);
    world.seen.now = world.seen.not_before;
    assert!(matches!(world.plan(), Plan::Do(Step { act: Act::PrepareSlot { .. }, .. })));
}

#[test]
fn a_version_that_ends_the_host_again_and_again_is_taken_back() {
    let mut world = about_to_repave(false);
    let slot = world.until("start_slot");
    for _ in 0..2 {
        world.boot();
        assert_eq!(world.plan(), Plan::step(slot, Act::RestartTrial));
        world.until("start_slot");
    }
    world.boot();
    let Plan::Do(Step { act: Act::Fail { reason, back_to: Some(_), .. }, .. }) = world.plan() else {
        panic!("{:?}", world.plan())
    };
    assert_eq!(reason, "the host booted 3 times during the trial");
    world.settle();
    assert_eq!(world.node(), Some(1), "{}", world.log.join("\n"));
}

#[test]
fn the_time_of_a_trial_does_not_run_while_it_cannot_go_on() {
    let mut world = about_to_repave(false);
    world.until("begin_trial");
    assert!(is_timed(&world.seen));
    world.machine().paused = true;
    assert!(!is_timed(&world.seen));
    world.machine().paused = false;
    world.machine().claimed_by = Some("worker-7".to_owned());
    assert!(!is_timed(&world.seen));
    world.machine().claimed_by = None;
    world.seen.api = Api::Away;
    assert!(!is_timed(&world.seen));
}

#[test]
fn annotations_that_cannot_be_written_hold_nothing_up() {
    let mut world = World::new(Some(1));
    let slot = world.until("commit");
    let plan = world.plan();
    assert!(
        matches!(plan, Plan::Do(Step { slot: of, act: Act::AnnotateNode { .. } }) if of == slot),
        "{plan:?}"
    );
    world.seen.annotations = Annotations::Failing;
    assert!(
        matches!(world.plan(), Plan::Do(Step { act: Act::PrepareSlot { .. }, .. })),
        "the next version goes before"
    );
    world.until("prepare_slot");
    let plan = world.plan();
    assert!(matches!(plan, Plan::Do(Step { act: Act::AnnotateNode { .. }, .. })), "{plan:?}");
    world.delete_node();
    let plan = world.plan();
    assert!(
        matches!(plan, Plan::Do(Step { act: Act::BeginTrial, .. })),
        "a deletion is no failed trial: {plan:?}"
    );
}

#[test]
fn a_clock_that_is_set_back_once_the_node_is_ready_fails_no_trial() {
    let mut world = World::new(Some(1));
    world.until("start_slot");
    world.live_on();
    let Plan::Wait(wait) = world.plan() else { panic!("{:?}", world.plan()) };
    assert!(wait.message.contains("must stay Ready"), "{}", wait.message);
    // By an hour, which is not counted; what the Node says stays as it was written.
    world.seen.now = later(world.seen.now, SignedDuration::from_secs(-3600));
    world.seen.not_counted = SignedDuration::from_secs(-3600);
    let slot = SlotName::A;
    assert_eq!(world.plan(), Plan::step(slot, Act::ProbeSandbox));
    world.seen.health.sandbox = true;
    assert!(matches!(world.plan(), Plan::Do(Step { act: Act::Commit { .. }, .. })), "{:?}", world.plan());
}

#[test]
fn overdue_trial_waits_for_the_api_server_without_a_deadline() {
    let mut world = World::new(Some(1));
    world.bad = vec![1];
    world.until("start_slot");
    world.live_on();
    world.seen.now = later(world.seen.now, SignedDuration::from_secs(601));
    assert!(matches!(world.plan(), Plan::Do(Step { act: Act::Fail { .. }, .. })), "{:?}", world.plan());
    world.seen.api = Api::Away;
    for _ in 0..3 {
        let Plan::Wait(wait) = world.plan() else { panic!("{:?}", world.plan()) };
        assert!(
            wait.until.is_none_or(|until| until > world.seen.now),
            "it would look without a pause: {wait:?}"
        );
        world.seen.now = later(world.seen.now, SignedDuration::from_secs(3600));
    }
}
