//! A slot in which kubeadm has made a cluster: nothing ends it but a person.

use super::*;
use crate::model::SlotSeen;

/// A host on which the first control plane is the node.
fn made() -> World {
    let mut world = World::new(Some(1));
    world.until("start_slot");
    world.seen.slots[SlotName::A].made_cluster = true;
    world.settle();
    assert!(matches!(stage(&world.seen, SlotName::A), Some(Stage::Applied { .. })));
    world
}

#[test]
fn a_cluster_outlives_its_node_whatever_is_selected() {
    let mut world = made();
    world.select(2);
    let wait = world.settle();
    assert_eq!(wait.reason, PavedReason::ControlPlaneProtected);
    assert_eq!(record(&world.seen, SlotName::B), None, "nothing is filled that would make another cluster");
    world.delete_node();
    let Plan::Wait(wait) = world.plan() else { panic!("nothing is to be done") };
    assert_eq!(wait.reason, PavedReason::ControlPlaneProtected);
    assert!(wait.message.contains("restart kubelet"), "{}", wait.message);
    assert!(runs(&world.seen, SlotName::A));
}

#[test]
fn a_cluster_whose_node_is_gone_is_started_after_a_boot() {
    let mut world = made();
    world.delete_node();
    world.boot();
    assert_eq!(world.plan(), Plan::step(SlotName::A, Act::StartSlot));
}

#[test]
fn new_cluster_waits_for_its_user_across_any_time_and_boots() {
    let mut world = World::new(Some(1));
    world.bad = vec![1];
    world.until("start_slot");
    world.seen.slots[SlotName::A].made_cluster = true;
    for _ in 0..5 {
        let wait = world.settle();
        assert_eq!((wait.reason, wait.until), (PavedReason::Joining, None), "{wait:?}");
        world.boot();
    }
    assert!(!world.log.iter().any(|step| step.starts_with("Fail") || step.starts_with("Abandon")));
    world.select(2);
    world.settle();
    assert!(matches!(stage(&world.seen, SlotName::A), Some(Stage::Trial { .. })));
}

#[test]
fn a_trial_whose_kubeadm_has_not_made_a_cluster_fails_as_any_other() {
    let mut world = World::new(Some(1));
    world.bad = vec![1];
    world.until("fail");
}

#[test]
fn the_gate_of_a_control_plane_waits_for_its_own_api_server() {
    let mut world = World::new(Some(1));
    world.until("start_slot");
    world.live_on();
    world.seen.health.waits_for_control_plane = true;
    world.seen.health.message = Some("status 500".to_owned());
    let Plan::Wait(wait) = world.plan() else { panic!("the gate is passed") };
    assert_eq!(wait.message, "the API server of the slot is not ready: status 500");
}

/// A host on trial as a further control plane that never becomes healthy.
fn joined() -> World {
    let mut world = World::new(Some(1));
    world.bad = vec![1];
    world.until("start_slot");
    world.seen.slots[SlotName::A].joined_control_plane = true;
    world
}

#[test]
fn joined_control_plane_keeps_its_etcd_whatever_its_trial_does() {
    let mut world = joined();
    for _ in 0..5 {
        let wait = world.settle();
        assert!(wait.message.contains("is kept"), "{wait:?}");
        world.boot();
    }
    world.select(2);
    world.settle();
    assert!(matches!(stage(&world.seen, SlotName::A), Some(Stage::Trial { .. })));
    let ends = ["Fail", "Abandon", "StopSlot", "PrepareSlot { slot: B"];
    assert!(!world.log.iter().any(|step| ends.iter().any(|end| step.starts_with(end))), "{:?}", world.log);
    // Once a person has taken it out of the cluster, by `kubeadm reset`, the trial is one as any other.
    world.seen.slots[SlotName::A].joined_control_plane = false;
    world.until("abandon");
}

/// Creates a host on which a further control plane is the node, with version 2 prepared in the other slot.
fn further() -> World {
    let mut world = World::new(Some(1));
    world.settle();
    world.seen.slots[SlotName::A].joined_control_plane = true;
    world.select(2);
    world.settle();
    world.log.clear();
    world
}

#[test]
fn h6_further_control_plane_leaves_its_cluster_before_it_is_repaved() {
    let mut world = further();
    world.delete_node();
    world.settle();
    assert_eq!(world.node(), Some(2), "{}", world.log.join("\n"));
    let first: Vec<&str> = world.log.iter().take(3).map(|step| step.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["LeaveCluster", "StopSlot", "BeginTrial"]);
    world.select(3);
    world.settle();
    assert_eq!(
        stage(&world.seen, SlotName::A),
        Some(&Stage::Prepared),
        "a former slot of the node is filled again"
    );
}

#[test]
fn control_plane_stays_until_its_successor_is_prepared_and_selected() {
    let mut world = World::new(Some(1));
    world.settle();
    world.seen.slots[SlotName::A].joined_control_plane = true;
    world.seen.node = NodeSeen::Absent;
    let Plan::Wait(wait) = world.plan() else { panic!("{:?}", world.plan()) };
    assert_eq!(wait.reason, PavedReason::AwaitingSelection);
    world.select(2);
    world.delete_node();
    assert!(
        matches!(world.plan(), Plan::Do(Step { slot: SlotName::B, act: Act::PrepareSlot { .. } })),
        "{:?}",
        world.plan()
    );
    world.until("prepare_slot");
    world.seen.node = NodeSeen::Absent;
    world.machine().paused = true;
    assert!(matches!(world.plan(), Plan::Wait(_)));
}

#[test]
fn leaving_control_plane_leaves_whatever_its_api_server_reports() {
    let mut world = further();
    world.delete_node();
    world.kill_after = Some(0);
    let Plan::Do(step) = world.plan() else { panic!("{:?}", world.plan()) };
    world.apply(step);
    assert!(world.seen.slots[SlotName::A].leaving);
    for (runs, api) in [(true, Api::Live), (false, Api::Live), (true, Api::Away), (false, Api::Away)] {
        (world.seen.slots[SlotName::A].runs, world.seen.api) = (runs, api);
        world.seen.node = NodeSeen::Unknown;
        let plan = world.plan();
        assert_eq!(plan, Plan::step(SlotName::A, Act::LeaveCluster), "{runs} {api:?}");
    }
    (world.seen.slots[SlotName::A].runs, world.seen.api) = (true, Api::Live);
    let Plan::Do(step) = world.plan() else { panic!("{:?}", world.plan()) };
    world.apply(step);
    assert_eq!(world.plan(), Plan::step(SlotName::A, Act::StopSlot), "its API server is not asked again");
}

#[test]
fn one_that_was_taken_out_is_no_way_back_for_its_etcd_would_be_no_member() {
    let mut world = further();
    world.bad.push(2);
    world.delete_node();
    let slot = world.until("fail");
    assert_eq!(slot, SlotName::B);
    assert_eq!(world.seen.refused, [], "there is nothing to go back to: it is tried again");
    world.seen.not_before = later(world.seen.now, SignedDuration::from_hours(24));
    assert_eq!(world.settle().reason, PavedReason::BackOff);
    assert_eq!(world.running(), None);
}

#[test]
fn drained_machine_first_removes_its_control_plane_from_the_cluster() {
    for trial in [false, true] {
        let mut world = if trial { joined() } else { further() };
        world.delete_node();
        (world.machine().deleting, world.machine().drain) = (true, true);
        world.log.clear();
        for _ in 0..4 {
            if let Plan::Do(step) = world.plan() {
                world.apply(step);
            }
        }
        let steps: Vec<&str> = world.log.iter().map(|step| step.split(' ').next().unwrap()).collect();
        let prepared: &[&str] = if trial { &[] } else { &["Abandon"] };
        let expected = [&["LeaveCluster", "StopSlot", "Abandon"], prepared].concat();
        assert_eq!(steps, expected, "on trial: {trial}");
        assert!(SlotName::ALL.into_iter().all(|slot| record(&world.seen, slot).is_none()));
    }
}

#[test]
fn control_plane_that_came_while_its_trial_failed_becomes_the_node() {
    for cluster in [true, false] {
        let mut world = World::new(Some(1));
        world.bad = vec![1];
        let slot = world.until("fail");
        let seen = &mut world.seen.slots[slot];
        (seen.made_cluster, seen.joined_control_plane) = (cluster, !cluster);
        assert_eq!(world.plan(), Plan::step(slot, Act::RestartTrial), "it is not stopped");
        world.log.clear();
        world.bad.clear();
        assert_eq!(world.settle().reason, PavedReason::Applied);
        assert!(!world.log.iter().any(|step| step.starts_with("StopSlot")), "{:?}", world.log);
    }
}

#[test]
fn control_plane_of_a_failed_trial_does_not_stop_the_running_node() {
    let mut world = World::new(Some(1));
    world.settle();
    world.bad.push(2);
    world.select(2);
    world.settle();
    world.delete_node();
    let slot = world.until("fail");
    world.settle();
    world.seen.slots[slot].joined_control_plane = true;
    world.select(3);
    assert_eq!(world.settle().reason, PavedReason::ControlPlaneProtected);
    assert_eq!(world.running(), Some(other(slot)));
    assert!(matches!(stage(&world.seen, slot), Some(Stage::Failed { .. })));
}

#[test]
fn cluster_without_a_record_is_kept_and_no_other_is_made() {
    for slot in SlotName::ALL {
        for runs in [true, false] {
            let mut world = World::new(Some(1));
            world.seen.slots[slot] = SlotSeen { runs, made_cluster: true, ..SlotSeen::default() };
            let Plan::Wait(wait) = world.plan() else { panic!("{:?}", world.plan()) };
            assert_eq!(wait.reason, PavedReason::ControlPlaneProtected);
            assert!(wait.message.contains("record.json"), "{}", wait.message);
        }
    }
}

#[test]
fn cluster_restored_into_a_prepared_slot_is_started_and_kept() {
    let mut world = World::new(Some(1));
    world.until("prepare_slot");
    world.seen.slots[SlotName::A].made_cluster = true;
    assert_eq!(world.plan(), Plan::step(SlotName::A, Act::BeginTrial));
    world.select(2);
    let Plan::Wait(wait) = world.plan() else { panic!("{:?}", world.plan()) };
    assert_eq!(wait.reason, PavedReason::ControlPlaneProtected);
}

#[test]
fn expired_kubelet_certificate_is_reported_if_the_cluster_is_silent() {
    let mut world = World::new(Some(1));
    world.settle();
    world.seen.kubelet_ended = Some(at(0));
    let reason = |world: &mut World| match world.plan() {
        Plan::Wait(wait) => (wait.reason, wait.message),
        step @ Plan::Do(_) => panic!("{step:?}"),
    };
    world.seen.api = Api::Away;
    let (away, message) = reason(&mut world);
    assert_eq!(away, PavedReason::KubeletCertificateExpired);
    assert!(
        message.contains("2023-11-14T22:13:20Z") && message.contains("docs/concepts/node.md"),
        "{message}"
    );
    world.seen.api = Api::Live;
    assert_eq!(reason(&mut world).0, PavedReason::Applied, "its Node is reported");
    world.seen.node = NodeSeen::Unknown;
    assert_eq!(reason(&mut world).0, PavedReason::KubeletCertificateExpired);
    // The version says by what it has joined.
    world.seen.joins_again = true;
    assert_eq!(world.plan(), Plan::step(SlotName::A, Act::RenewKubelet));
    world.seen.api = Api::Away;
    assert_eq!(world.plan(), Plan::step(SlotName::A, Act::RenewKubelet));
    world.machine().paused = true;
    assert_eq!(reason(&mut world).0, PavedReason::KubeletCertificateExpired, "as reported last");
}

#[test]
fn standalone_trial_that_cannot_join_yields_to_another_version() {
    let mut world = World::new(Some(1));
    world.bad = vec![1];
    world.until("start_slot");
    world.select(2);
    // The kubelet has no credential, so the API server cannot be asked.
    world.seen.node = NodeSeen::Unknown;
    assert!(matches!(world.plan(), Plan::Wait(_)), "a Node may have come of it");
    world.seen.health.no_credential = true;
    assert_eq!(world.plan(), Plan::step(SlotName::A, Act::StopSlot));
    world.seen.slots[SlotName::A].joined_control_plane = true;
    assert!(matches!(world.plan(), Plan::Wait(_)), "its etcd has joined");
}

#[test]
fn o8_etcd_refusal_is_reported_before_preparation_and_node_deletion() {
    let mut world = World::new(Some(1));
    world.settle();
    world.seen.slots[SlotName::A].joined_control_plane = true;
    world.select(2);
    world.seen.leave = Leave::MayNot("the member is the only one".to_owned());
    let Plan::Wait(wait) = world.plan() else { panic!("{:?}", world.plan()) };
    assert_eq!(wait.reason, PavedReason::ControlPlaneProtected);
    assert!(wait.message.starts_with("workers-v2 is selected"), "{}", wait.message);
    assert!(wait.message.ends_with("the member is the only one"), "{}", wait.message);
    assert!(wait.until.is_some_and(|until| until > world.seen.now), "etcd is asked again");
    // Another one has joined.
    world.seen.leave = Leave::May;
    let Plan::Do(Step { slot, act: Act::PrepareSlot { .. } }) = world.plan() else {
        panic!("{:?}", world.plan())
    };
    assert_eq!(slot, SlotName::B);
    let wait = world.settle();
    assert_eq!(wait.reason, PavedReason::Applied);
    assert!(wait.until.is_some(), "who could let it go may be gone before its turn comes");
}
