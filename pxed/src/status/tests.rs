//! Contract of the registry: no write without a change, coalescing, no history for a new Machine, reports of
//! contested addresses.

use std::time::Duration;

use bedplate_api::machine::{Phase, condition_type};
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::reason::machine::{
    BootedReason, ConfigurationPendingReason, EnrolledReason, NodeReadyReason, PavedReason,
};
use bedplate_api::wire::Stage;

use tokio_util::sync::CancellationToken;

use super::conditions::{booted, condition, is_true};
use super::*;
use crate::machines::Snapshot;
use crate::machines::tests::machine;
use crate::standalone::statuses::StoreOnly;
use bedplate_api::condition::set_ready;

const A: &str = "52:54:00:00:00:0a";
const B: &str = "52:54:00:00:00:0b";

struct Rig {
    _directory: tempfile::TempDir,
    store: Store,
    machines: Machines,
    registry: StatusRegistry,
    events: Queue,
}

fn rig(record: SystemOfRecord) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
    let machines = Machines::default();
    let (registry, events) = StatusRegistry::new(machines.clone(), &store, record).unwrap();
    Rig { _directory: directory, store, machines, registry, events }
}

impl Rig {
    fn know(&self, machines: Vec<Machine>) {
        let before = self.machines.load();
        self.machines.store(before.next(&"default".parse().unwrap(), machines));
        self.registry.follow(&before, &self.machines.load());
    }
}

fn name(text: &str) -> MachineName {
    text.parse().unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_condition_keeps_its_transition_time_while_its_status_stays() {
    let mut status = MachineStatus::default();
    set_condition(&mut status, false, BootedReason::Booting, "first", None, at(1));
    set_condition(&mut status, false, BootedReason::BootStalled, "second", None, at(2));
    let c = condition(&status, "Booted").unwrap();
    assert_eq!(
        (c.last_transition_time.0, c.reason.as_str(), c.message.as_str()),
        (at(1), "BootStalled", "second")
    );
    set_condition(&mut status, true, BootedReason::UserspaceStarted, &"x".repeat(5000), None, at(3));
    let c = condition(&status, "Booted").unwrap();
    assert_eq!((c.last_transition_time.0, c.message.len()), (at(3), 1024));
    assert_eq!(status.conditions.len(), 1);
}

#[tokio::test]
async fn unchanged_status_causes_no_write() {
    let rig = rig(SystemOfRecord::Cluster);
    rig.know(vec![machine("a", &[A])]);
    rig.registry.take_changes();
    rig.registry.update(&name("a"), |_| {});
    assert_eq!(rig.registry.take_changes().0, []);
    rig.registry.update(&name("a"), |status| boot_mut(status).attempts = Some(1));
    assert_eq!(rig.registry.take_changes().0, [(name("a"), Parts { boot: true, power: false })]);
}

#[tokio::test]
async fn statuses_are_there_after_a_restart_and_go_with_their_machine() {
    let rig = rig(SystemOfRecord::Pxed);
    rig.know(vec![machine("a", &[A]), machine("b", &[B])]);
    rig.registry.update(&name("a"), |status| boot_mut(status).stage = Some(Stage::Script));
    let shutdown = CancellationToken::new();
    let counters = Arc::default();
    let sink = Arc::new(StoreOnly);
    let (writer, _) = Writer::new(rig.registry.clone(), rig.store.clone(), sink, counters);
    let task = tokio::spawn(writer.run(bedplate_process::liveness::Pulse::unwatched(), shutdown.clone()));
    until(|| {
        let (again, _events) =
            StatusRegistry::new(Machines::default(), &rig.store, SystemOfRecord::Pxed).unwrap();
        again.get(&name("a")).and_then(|status| status.boot?.stage) == Some(Stage::Script)
    })
    .await;
    rig.machines.store(Snapshot::build(&"default".parse().unwrap(), [machine("b", &[B])]));
    rig.registry.follow(&Snapshot::default(), &rig.machines.load());
    until(|| rig.store.get(Table::Status, b"a").unwrap().is_none()).await;
    rig.registry.update(&name("b"), |status| boot_mut(status).attempts = Some(7));
    shutdown.cancel();
    task.await.unwrap();
    let (again, _events) =
        StatusRegistry::new(Machines::default(), &rig.store, SystemOfRecord::Pxed).unwrap();
    assert_eq!(
        again.get(&name("b")).unwrap().boot.unwrap().attempts,
        Some(7),
        "the last change is written at the end"
    );
}

#[tokio::test]
async fn statuses_of_many_machines_that_are_gone_are_removed_in_one_commit() {
    let rig = rig(SystemOfRecord::Pxed);
    let all: Vec<_> =
        (0..50).map(|n| machine(&format!("m{n}"), &[&format!("52:54:00:00:01:{n:02x}")])).collect();
    rig.know(all);
    for n in 0..50 {
        rig.registry.update(&name(&format!("m{n}")), |status| boot_mut(status).attempts = Some(1));
        rig.store.put(Table::Status, format!("m{n}").as_bytes(), Vec::new()).await.unwrap();
    }
    rig.know(Vec::new());
    let before = rig.store.counters().commits.load(std::sync::atomic::Ordering::Relaxed);
    let (shutdown, counters) = (CancellationToken::new(), Arc::default());
    let (registry, store) = (rig.registry.clone(), rig.store.clone());
    let (writer, _) = Writer::new(registry, store, Arc::new(StoreOnly), counters);
    let task = tokio::spawn(writer.run(bedplate_process::liveness::Pulse::unwatched(), shutdown.clone()));
    until(|| rig.store.scan(Table::Status).unwrap().is_empty()).await;
    shutdown.cancel();
    task.await.unwrap();
    let commits = rig.store.counters().commits.load(std::sync::atomic::Ordering::Relaxed) - before;
    assert_eq!(commits, 1);
}

#[tokio::test]
async fn recreated_machine_of_the_same_name_has_no_history() {
    let rig = rig(SystemOfRecord::Cluster);
    let mut first = machine("a", &[A]);
    first.metadata.uid = Some("1".to_owned());
    rig.know(vec![first.clone()]);
    rig.registry.update(&name("a"), |status| boot_mut(status).attempts = Some(3));
    first.metadata.uid = Some("2".to_owned());
    rig.know(vec![first]);
    assert_eq!(rig.registry.get(&name("a")).unwrap().boot, None);
}

#[tokio::test]
async fn contested_address_is_reported_on_both_machines_until_resolved() {
    let mut rig = rig(SystemOfRecord::Pxed);
    rig.know(vec![machine("a", &[A]), machine("b", &[A, B])]);
    for (one, other) in [("a", "b"), ("b", "a")] {
        let status = rig.registry.get(&name(one)).unwrap();
        let c = booted(&status).unwrap();
        assert_eq!((c.status.as_str(), c.reason.as_str()), ("False", "DuplicateMACAddress"));
        assert_eq!(c.message, format!("{A} is also claimed by {other}; none of them is served"));
        assert_eq!(status.phase, Some(Phase::Failed));
        assert_eq!(rig.events.try_next().unwrap().reason, PxedEvent::DuplicateMacAddress.as_str());
    }
    rig.know(vec![machine("a", &[A]), machine("b", &[A, B])]);
    assert!(rig.events.try_next().is_none(), "an unchanged state is not reported again");
    rig.know(vec![machine("a", &[A]), machine("b", &[B])]);
    let status = rig.registry.get(&name("a")).unwrap();
    assert_eq!(booted(&status).unwrap().reason, "AwaitingBoot");
    assert_eq!(status.phase, Some(Phase::Pending));
}

#[tokio::test]
async fn contested_claim_is_an_event_once_whatever_its_message_says() {
    let mut rig = rig(SystemOfRecord::Pxed);
    let paused = || {
        let mut machine = machine("a", &[A]);
        machine.spec.paused = true;
        machine
    };
    rig.know(vec![machine("a", &[A]), machine("b", &[A])]);
    while rig.events.try_next().is_some() {}
    let other = |c: &mut bedplate_api::machine::Condition| "another text".clone_into(&mut c.message);
    rig.registry.update(&name("a"), |status| status.conditions.iter_mut().for_each(other));
    rig.know(vec![paused(), machine("b", &[A])]);
    assert!(rig.events.try_next().is_none());
    rig.know(vec![paused(), machine("b", &[A]), machine("c", &[A])]);
    let notes: Vec<_> = std::iter::from_fn(|| rig.events.try_next()).map(|event| event.note).collect();
    let expected = format!("{A} is also claimed by b and c; none of them is served");
    assert!(notes.contains(&expected), "another claimant: {notes:?}");
}

#[tokio::test]
async fn status_waits_until_the_sink_has_it() {
    let rig = rig(SystemOfRecord::Cluster);
    rig.know(vec![machine("a", &[A])]);
    rig.registry.update(&name("a"), |status| boot_mut(status).attempts = Some(1));
    let counters = Arc::<super::write::WriteCounters>::default();
    let unwritten = || counters.unwritten(&rig.registry);
    assert_eq!(unwritten(), 1, "the writer has not taken it");
    let (sink, shutdown) = (Arc::new(Slow(tokio::sync::Semaphore::new(0))), CancellationToken::new());
    let (writer, _) = Writer::new(rig.registry.clone(), rig.store.clone(), sink.clone(), counters.clone());
    let task = tokio::spawn(writer.run(bedplate_process::liveness::Pulse::unwatched(), shutdown.clone()));
    until(|| rig.store.counters().commits.load(std::sync::atomic::Ordering::Relaxed) == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(unwritten(), 1, "it is being written");
    sink.0.add_permits(1);
    until(|| unwritten() == 0).await;
    shutdown.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn age_of_a_reported_power_state_is_shown_and_not_written() {
    let rig = rig(SystemOfRecord::Pxed);
    rig.know(vec![machine("a", &[A])]);
    let power = |second: i64| serde_json::json!({ "state": "On", "observedTime": at(second).to_string() });
    rig.registry.update(&name("a"), |status| status.power = serde_json::from_value(power(0)).unwrap());
    let shown = |rig: &Rig| {
        let known = rig.registry.inner.machines.load().by_name(&name("a")).cloned().unwrap();
        let power = rig.registry.describe(&known).status.unwrap().power.unwrap();
        power.observed_time.unwrap().0
    };
    assert_eq!(shown(&rig), at(0));
    let before = rig.registry.get(&name("a"));
    rig.registry.observed_power(&name("a"), at(60));
    assert_eq!(shown(&rig), at(60));
    assert_eq!(rig.registry.get(&name("a")), before);
    rig.registry.update(&name("a"), |status| status.power = serde_json::from_value(power(90)).unwrap());
    assert_eq!(shown(&rig), at(90));
}

#[tokio::test]
async fn only_our_own_fields_reach_the_api_server() {
    let mut status =
        MachineStatus { phase: Some(Phase::Ready), provider_id: Some("x".into()), ..Default::default() };
    boot_mut(&mut status).attempts = Some(1);
    set_condition(&mut status, true, BootedReason::UserspaceStarted, "", None, at(1));
    set_ready(&mut status, true, "Ready", "", None, at(1));
    set_condition(&mut status, true, PavedReason::Applied, "", None, at(1));
    let body = project::apply_body("a", "uid-1", &status, Part::Boot).unwrap();
    let keys: Vec<_> = body["status"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["boot", "conditions"]);
    assert_eq!(body["status"]["conditions"].as_array().unwrap().len(), 1);
    assert_eq!(body["metadata"]["uid"], "uid-1");
}

#[tokio::test]
async fn without_a_cluster_the_summary_has_the_generation_of_the_manifest() {
    let rig = rig(SystemOfRecord::Pxed);
    for generation in [1, 2] {
        let mut known = machine("a", &[A]);
        known.metadata.generation = Some(generation);
        known.spec.paused = generation == 2;
        rig.know(vec![known]);
        let status = rig.registry.get(&name("a")).unwrap();
        let ready = condition(&status, condition_type::READY).unwrap();
        assert_eq!(status.observed_generation, Some(generation));
        assert_eq!(ready.observed_generation, Some(generation));
    }
}

#[tokio::test]
async fn lost_store_is_restored_from_the_object_without_a_write() {
    let rig = rig(SystemOfRecord::Cluster);
    let mut known = machine("a", &[A]);
    known.metadata.uid = Some("1".to_owned());
    let status = known.status.get_or_insert_default();
    boot_mut(status).attempts = Some(4);
    set_ready(status, true, "Ready", "", None, at(1));
    rig.know(vec![known]);
    let status = rig.registry.get(&name("a")).unwrap();
    assert_eq!(status.boot.as_ref().unwrap().attempts, Some(4));
    assert!(condition(&status, condition_type::READY).is_none(), "that one is the controller's");
    rig.registry.take_changes();
    rig.registry.resync(&rig.machines.load());
    assert_eq!(rig.registry.take_changes().0, []);
    rig.registry.update(&name("a"), |status| boot_mut(status).attempts = Some(5));
    rig.registry.take_changes();
    rig.registry.resync(&rig.machines.load());
    let boot = Parts { boot: true, power: false };
    assert_eq!(rig.registry.take_changes().0, [(name("a"), boot)], "what the server has not got is marked");
}

#[tokio::test(start_paused = true)]
async fn only_leader_writes_power_and_new_leader_starts_from_the_object() {
    let rig = rig(SystemOfRecord::Cluster);
    let power = |state: &str| serde_json::from_value(serde_json::json!({ "state": state })).unwrap();
    let mut known = machine("a", &[A]);
    known.metadata.uid = Some("1".to_owned());
    known.status.get_or_insert_default().power = power("On");
    rig.know(vec![known]);
    rig.registry.update(&name("a"), |status| status.power = power("Off"));
    boot_mut(rig.registry.get(&name("a")).as_mut().unwrap());
    let shown = |rig: &Rig| {
        let known = rig.machines.load().by_name(&name("a")).cloned().unwrap();
        serde_json::to_value(rig.registry.describe(&known)).unwrap()["status"]["power"]["state"].clone()
    };
    assert!(!rig.registry.writes_power());
    assert_eq!(shown(&rig), "On", "the leader's word, not what this one remembers");
    let (tell, tenure) = tokio::sync::watch::channel(None);
    rig.registry.lead_with(Tenure::new(tenure));
    rig.registry.take_changes();
    rig.registry.adopt_all_power();
    assert_eq!(rig.registry.take_changes().0, [(name("a"), Parts::default())], "kept, and not sent back");
    assert_eq!(rig.registry.get(&name("a")).unwrap().power, power("On"));
    tell.send_replace(Some(tokio::time::Instant::now() + Duration::from_secs(10)));
    rig.registry.update(&name("a"), |status| status.power = power("Off"));
    assert!(rig.registry.writes_power());
    assert_eq!(shown(&rig), "Off");
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(!rig.registry.writes_power());
}

#[test]
fn display_names_the_first_condition_that_is_not_met() {
    let mut known = machine("a", &[A]);
    let mut status = MachineStatus::default();
    display::derive(&known, &mut status, at(1));
    let ready = |status: &MachineStatus| condition(status, condition_type::READY).unwrap().message.clone();
    assert_eq!(
        (status.phase, ready(&status).as_str()),
        (Some(Phase::Pending), "waiting for its first DHCP packet")
    );
    boot_mut(&mut status).stage = Some(Stage::Script);
    set_condition(&mut status, false, BootedReason::BootStalled, "stopped at kernel", None, at(3));
    display::derive(&known, &mut status, at(3));
    assert_eq!((status.phase, ready(&status).as_str()), (Some(Phase::Booting), "stopped at kernel"));
    set_condition(&mut status, true, BootedReason::UserspaceStarted, "", None, at(4));
    set_condition(&mut status, true, EnrolledReason::Enrolled, "", None, at(4));
    display::derive(&known, &mut status, at(4));
    assert!(
        status.phase == Some(Phase::Enrolled) && !is_true(&status, condition_type::READY),
        "it has no node"
    );
    known.spec.paused = true;
    display::derive(&known, &mut status, at(5));
    assert_eq!(status.phase, Some(Phase::Paused));
}

#[test]
fn machine_with_a_blocked_selection_is_degraded_without_a_cluster() {
    let known = machine("a", &[A]);
    for (reason, phase) in [
        (ConfigurationPendingReason::Selected, Phase::Ready),
        (ConfigurationPendingReason::ControlPlaneProtected, Phase::Ready),
        (ConfigurationPendingReason::ConfigurationNotFound, Phase::Degraded),
        (ConfigurationPendingReason::VersionNotFound, Phase::Degraded),
        (ConfigurationPendingReason::ImageUnresolved, Phase::Degraded),
    ] {
        let mut status: MachineStatus = serde_json::from_value(serde_json::json!({
            "nodeRef": { "name": "a", "uid": "n1" },
            "selected": { "name": "w", "version": 1, "source": "Reference" },
            "applied": { "name": "w", "version": 1, "slot": "a" },
        }))
        .unwrap();
        set_condition(&mut status, true, EnrolledReason::Enrolled, "", None, at(1));
        set_condition(&mut status, true, PavedReason::Applied, "", None, at(1));
        set_condition(&mut status, true, NodeReadyReason::NodeReady, "", None, at(1));
        set_condition(&mut status, false, reason, "w-v1 stays: why", None, at(1));
        display::derive(&known, &mut status, at(2));
        let ready = condition(&status, condition_type::READY).unwrap();
        assert_eq!(
            (status.phase, ready.status == "True"),
            (Some(phase), phase == Phase::Ready),
            "{reason:?}"
        );
        if phase == Phase::Degraded {
            assert_eq!((ready.reason.as_str(), ready.message.as_str()), (reason.as_str(), "w-v1 stays: why"));
        }
    }
}

/// A sink that writes when it gets permits.
struct Slow(tokio::sync::Semaphore);

#[async_trait::async_trait]
impl StatusSink for Slow {
    async fn write(&self, _: &MachineName, _: &Kept, _: Part) -> super::write::WriteOutcome {
        self.0.acquire().await.unwrap().forget();
        super::write::WriteOutcome::Written(None)
    }
}

#[tokio::test]
async fn idle_waits_until_the_sink_has_every_change() {
    let rig = rig(SystemOfRecord::Cluster);
    rig.know(vec![machine("a", &[A]), machine("b", &[B])]);
    let (sink, shutdown) = (Arc::new(Slow(tokio::sync::Semaphore::new(0))), CancellationToken::new());
    let (writer, statuses) =
        Writer::new(rig.registry.clone(), rig.store.clone(), sink.clone(), Arc::default());
    let task = tokio::spawn(writer.run(bedplate_process::liveness::Pulse::unwatched(), shutdown.clone()));
    statuses.idle().await;
    for name in [name("a"), name("b")] {
        rig.registry.update(&name, |status| boot_mut(status).attempts = Some(1));
    }
    let waiting = statuses.clone();
    let idle = tokio::spawn(async move { waiting.idle().await });
    sink.0.add_permits(1);
    until(|| sink.0.available_permits() == 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!idle.is_finished(), "one of two writes is missing");
    sink.0.add_permits(1);
    tokio::time::timeout(Duration::from_secs(20), idle).await.expect("all are written").unwrap();
    shutdown.cancel();
    task.await.unwrap();
    statuses.idle().await;
}

/// A sink that records which parts it begins to write, and writes when it gets permits.
#[derive(Default)]
struct Recorder {
    permits: Lock<Option<Arc<tokio::sync::Semaphore>>>,
    started: Lock<Vec<Part>>,
    written: Lock<Vec<Part>>,
}

#[async_trait::async_trait]
impl StatusSink for Recorder {
    async fn write(&self, _: &MachineName, _: &Kept, part: Part) -> super::write::WriteOutcome {
        self.started.lock().push(part);
        let permits = self.permits.lock().clone();
        if let Some(permits) = permits {
            permits.acquire().await.unwrap().forget();
        }
        self.written.lock().push(part);
        super::write::WriteOutcome::Written(None)
    }
}

#[tokio::test]
async fn a3_power_is_not_written_after_the_tenure_has_ended() {
    let rig = rig(SystemOfRecord::Cluster);
    rig.know(vec![machine("a", &[A])]);
    let end = tokio::time::Instant::now() + Duration::from_secs(3600);
    let (tell, tenure) = tokio::sync::watch::channel(Some(end));
    rig.registry.lead_with(Tenure::new(tenure));
    let permits = Arc::new(tokio::sync::Semaphore::new(0));
    let sink = Arc::new(Recorder { permits: Lock::new(Some(permits.clone())), ..Recorder::default() });
    let (writer, statuses) =
        Writer::new(rig.registry.clone(), rig.store.clone(), sink.clone(), Arc::default());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(writer.run(bedplate_process::liveness::Pulse::unwatched(), shutdown.clone()));
    rig.registry.update(&name("a"), |status| {
        status.power = serde_json::from_value(serde_json::json!({ "state": "On" })).unwrap();
        boot_mut(status).attempts = Some(1);
    });
    until(|| *sink.started.lock() == [Part::Power]).await;
    tell.send_replace(None);
    // Immediately, not after the deadline of the write.
    let next = until(|| *sink.started.lock() == [Part::Power, Part::Boot]);
    tokio::time::timeout(Duration::from_secs(5), next).await.expect("the write of power is dropped");
    permits.add_permits(2);
    statuses.idle().await;
    assert_eq!(*sink.written.lock(), [Part::Boot], "another pxed may lead by now");
    shutdown.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn event_has_the_action_of_its_reason() {
    let mut rig = rig(SystemOfRecord::Cluster);
    for (reason, action) in [
        (PxedEvent::BootStalled, "Boot"),
        (PxedEvent::KeyChanged, "Enroll"),
        (PxedEvent::PowerChanged, "SwitchPower"),
        (PxedEvent::BmcUnreachable, "AskBMC"),
        (PxedEvent::OperationFailed, "Operate"),
    ] {
        rig.registry.event(&name("a"), reason, "note");
        assert_eq!(rig.events.try_next().unwrap().action, action);
    }
}

#[test]
fn every_answer_of_the_api_server_has_its_meaning() {
    use super::write::WriteOutcome;
    use crate::cluster::status::judge;
    for code in [404, 409] {
        assert!(matches!(judge(code, String::new()), WriteOutcome::Gone), "{code}");
    }
    assert!(matches!(judge(422, String::new()), WriteOutcome::Rejected(_)));
    for code in [401, 403, 410, 429, 500, 502, 503, 504] {
        assert!(matches!(judge(code, String::new()), WriteOutcome::Later(_)), "{code}");
    }
}

/// Polls for a state, for at most 20 s.
async fn until(condition: impl Fn() -> bool) {
    let poll = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), poll).await.expect("the state is reached");
}
