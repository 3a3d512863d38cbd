//! The loop with stand-ins for everything that it acts upon, killed at every point where it writes or acts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::machine::VersionRef;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_bootstrap::diff::{Edit, InPlace};
use bedplate_process::file::FileError;
use bedplate_process::liveness::{Liveness, PULSE_INTERVAL, Pulse};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::apply::{ApplyError, Configuration};
use super::configuration::{Standing as Configured, Stays};
use super::journal::file::{Note, Notes};
use super::ledger::{Ledger, View, WriteOperationError};
use super::plan::Standing;
use super::run::{Parts, run};
use crate::bus::fake::{FakeMachines, FakeUnits, unit_state};
use crate::bus::{ActiveState, BusError, Exit, Inhibitor, Leader, Power, Ran};
use crate::kubelet::client::{AskNodeError, NodeApi, NodeView};
use crate::kubelet::node_name::{NodeName, ReadNodeNameError};
use bedplate_rules::drain::{Evicted, Pod};

/// Longer than any operation here, on a clock that only tests move.
const LONG: Duration = Duration::from_secs(7200);

/// Lets a number of points pass, then stops everything like a kill.
struct Fuse {
    left: AtomicI64,
    burned: Mutex<CancellationToken>,
}

impl Fuse {
    async fn pass(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.kill();
            std::future::pending::<()>().await;
        }
    }

    fn kill(&self) {
        self.burned.lock().unwrap().cancel();
    }
}

/// State that outlives the agent, with counts of its acts.
struct World {
    fuse: Fuse,
    views: watch::Sender<View>,
    written: AtomicU32,
    /// True if every write is refused as busy; and the number of attempts.
    busy: AtomicBool,
    /// UID of the operation whose writes are refused as busy.
    busy_for: Mutex<Option<&'static str>>,
    tried: AtomicU32,
    notes: Mutex<BTreeMap<String, Note>>,
    notes_in_memory: bool,
    boots: AtomicU32,
    ends: Mutex<Vec<&'static str>>,
    blocker: Mutex<Option<Inhibitor>>,
    units: FakeUnits,
    slot: FakeUnits,
    machines: FakeMachines,
    node: Mutex<FakeNode>,
    configured: Mutex<Configured>,
    /// Seconds until the version is prepared.
    ready_after: AtomicU32,
    captures: PathBuf,
    started: Instant,
}

#[derive(Default, Clone)]
struct FakeNode {
    cordoned: bool,
    by: Option<String>,
    pods: Vec<Pod>,
    held: u32,
    /// True if the kubelet's certificate names no Node.
    nameless: bool,
    calls: Vec<String>,
}

#[async_trait]
impl Ledger for World {
    async fn write(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        self.fuse.pass().await;
        self.tried.fetch_add(1, Ordering::SeqCst);
        let busy_for = *self.busy_for.lock().unwrap();
        let refused = busy_for.is_some() && operation.metadata.uid.as_deref() == busy_for;
        if refused || self.busy.load(Ordering::SeqCst) {
            return Err(WriteOperationError::Later("429".to_owned()));
        }
        let uid = &operation.metadata.uid;
        let now = self.views.borrow().operations.iter().find(|one| one.metadata.uid == *uid).cloned();
        let Some(now) = now else { return Err(WriteOperationError::Gone) };
        if now.metadata.resource_version != operation.metadata.resource_version {
            return Err(WriteOperationError::Conflict(Box::new((*now).clone())));
        }
        let mut after = (*now).clone();
        after.status = Some(status);
        let version = self.written.fetch_add(1, Ordering::SeqCst) + 2;
        after.metadata.resource_version = Some(version.to_string());
        let after = Arc::new(after);
        self.views.send_modify(|view| {
            let place = view.operations.iter_mut().find(|one| one.metadata.uid == after.metadata.uid);
            *place.unwrap() = Arc::clone(&after);
        });
        self.fuse.pass().await;
        Ok(after)
    }
}

#[async_trait]
impl Notes for World {
    async fn read(&self) -> Result<Vec<Note>, FileError> {
        Ok(self.notes.lock().unwrap().values().cloned().collect())
    }

    async fn put(&self, note: &Note) -> Result<(), FileError> {
        self.fuse.pass().await;
        self.notes.lock().unwrap().insert(note.uid.clone(), note.clone());
        self.fuse.pass().await;
        Ok(())
    }

    async fn remove(&self, uid: &str) -> Result<(), FileError> {
        self.notes.lock().unwrap().remove(uid);
        Ok(())
    }
}

#[async_trait]
impl Power for World {
    async fn blocker(&self) -> Result<Option<Inhibitor>, BusError> {
        Ok(self.blocker.lock().unwrap().clone())
    }

    async fn reboot(&self) -> Result<(), BusError> {
        self.end("reboot").await;
        Ok(())
    }

    async fn power_off(&self) -> Result<(), BusError> {
        self.end("power-off").await;
        Ok(())
    }
}

#[async_trait]
impl NodeApi for World {
    async fn name(&self) -> Option<NodeName> {
        None
    }

    async fn node(&self) -> Result<Option<NodeView>, AskNodeError> {
        let node = self.node.lock().unwrap();
        if node.nameless {
            let (machine, problem) = ("a".parse().unwrap(), ReadNodeNameError::Subject);
            return Err(AskNodeError::NodeName { machine, problem });
        }
        let (cordoned, cordoned_by) = (node.cordoned, node.by.clone());
        Ok(Some(NodeView { cordoned, cordoned_by, version: "1".into(), taints: Vec::new() }))
    }

    async fn cordon(&self, _: &NodeView, by: Option<&str>) -> Result<(), AskNodeError> {
        self.fuse.pass().await;
        let mut node = self.node.lock().unwrap();
        node.calls.push(if by.is_some() { "cordon" } else { "uncordon" }.to_owned());
        (node.cordoned, node.by) = (by.is_some(), by.map(str::to_owned));
        Ok(())
    }

    async fn edit(&self, _: Option<&Edit>, _: Option<&Edit>) -> Result<(), AskNodeError> {
        Ok(())
    }

    async fn pods(&self) -> Result<Vec<Pod>, AskNodeError> {
        Ok(self.node.lock().unwrap().pods.clone())
    }

    async fn evict(&self, pod: &Pod, grace: Option<u32>) -> Result<Evicted, AskNodeError> {
        self.fuse.pass().await;
        let mut node = self.node.lock().unwrap();
        if node.held > 0 {
            node.held -= 1;
            return Ok(Evicted::Held { again: Some(10), why: "disruption budget".into() });
        }
        node.calls.push(format!("evict {} {grace:?}", pod.full_name()));
        node.pods.retain(|one| one.uid != pod.uid);
        Ok(Evicted::Accepted)
    }
}

#[async_trait]
impl Configuration for World {
    async fn standing(&self) -> Result<Configured, String> {
        Ok(self.configured.lock().unwrap().clone())
    }

    async fn change(&self, changes: &[InPlace]) -> Result<(), ApplyError> {
        assert!(changes.is_empty());
        Ok(())
    }

    async fn may_repave(&self, _: &VersionRef) -> Result<(), ApplyError> {
        let ready = self.started + Duration::from_secs(self.ready_after.load(Ordering::SeqCst).into());
        if Instant::now() < ready { Err(ApplyError::Failed("it is fetched".to_owned())) } else { Ok(()) }
    }

    async fn repave(&self, version: &VersionRef) -> Result<(), ApplyError> {
        self.fuse.pass().await;
        self.ends.lock().unwrap().push("repave");
        self.configured.lock().unwrap().applied = Some(version.clone());
        Ok(())
    }
}

impl World {
    #[allow(clippy::needless_pass_by_value, reason = "it is written where it is used")]
    fn new(operation: &str, parameters: Value, notes_in_memory: bool) -> Arc<Self> {
        let operations = vec![object("u", operation, &parameters)];
        let view = View { operations, complete: true, standing: Standing::Ready, ..View::default() };
        let machines = FakeMachines::default();
        let slot = machines.add(&"bedplate-a".parse().unwrap(), Leader::new(100).unwrap());
        for units in [&slot, &FakeUnits::default()] {
            units.set(&"kubelet.service".parse().unwrap(), unit_state(ActiveState::Active, "running"));
        }
        let version = |version| Some(VersionRef { name: "w".into(), version });
        Arc::new(Self {
            fuse: Fuse { left: AtomicI64::new(i64::MAX), burned: Mutex::default() },
            views: watch::Sender::new(view),
            written: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            busy_for: Mutex::default(),
            tried: AtomicU32::new(0),
            notes: Mutex::default(),
            notes_in_memory,
            boots: AtomicU32::new(0),
            ends: Mutex::default(),
            blocker: Mutex::default(),
            units: FakeUnits::default(),
            slot,
            machines,
            node: Mutex::default(),
            configured: Mutex::new(Configured {
                unfinished: false,
                selected: version(2),
                applied: version(1),
                refused: false,
                paving: false,
                made_cluster: false,
                stays: None,
                difference: None,
            }),
            ready_after: AtomicU32::new(0),
            captures: PathBuf::from("/nonexistent"),
            started: Instant::now(),
        })
    }

    fn object(&self) -> Arc<MachineOperation> {
        Arc::clone(&self.views.borrow().operations[0])
    }

    /// The status of the one with this UID.
    fn status_of(&self, uid: &str) -> MachineOperationStatus {
        let view = self.views.borrow();
        let one = view.operations.iter().find(|one| one.metadata.uid.as_deref() == Some(uid));
        one.unwrap().status.clone().unwrap_or_default()
    }

    fn show(&self, object: Arc<MachineOperation>) {
        self.views.send_modify(|view| view.operations = vec![object]);
    }

    fn status(&self) -> MachineOperationStatus {
        self.object().status.clone().unwrap_or_default()
    }

    fn reason(&self) -> String {
        self.status().reason.unwrap_or_default()
    }

    /// Takes the host down and boots it again; running code is killed.
    async fn end(&self, how: &'static str) {
        self.fuse.pass().await;
        self.ends.lock().unwrap().push(how);
        self.boots.fetch_add(1, Ordering::SeqCst);
        if self.notes_in_memory {
            self.notes.lock().unwrap().clear();
        }
        self.fuse.pass().await;
        // Time for the agent's last reports while the host goes down.
        tokio::time::sleep(Duration::from_secs(1)).await;
        if how == "reboot" {
            self.fuse.kill();
        }
    }

    fn parts(self: &Arc<Self>) -> Parts {
        let started = self.started;
        let base: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let elapsed = move || SignedDuration::try_from(started.elapsed()).unwrap();
        Parts {
            machine: "a".parse().unwrap(),
            boot_id: format!("boot-{}", self.boots.load(Ordering::SeqCst)),
            clock: Arc::new(move || base + elapsed()),
            ledger: self.clone(),
            notes: self.clone(),
            units: Arc::new(self.units.clone()),
            machines: Arc::new(self.machines.clone()),
            power: self.clone(),
            node: self.clone(),
            configuration: self.clone(),
            captures: self.captures.clone(),
        }
    }

    /// Runs one agent until the operation has finished or the agent is killed
    /// after some points. Returns true if it was killed.
    async fn live(self: &Arc<Self>, points: i64) -> bool {
        let burned = CancellationToken::new();
        *self.fuse.burned.lock().unwrap() = burned.clone();
        self.fuse.left.store(points, Ordering::SeqCst);
        let parts = self.parts();
        let mut views = self.views.subscribe();
        let over = async {
            let over = |view: &View| {
                let state = view.operations.first().and_then(|one| one.status.as_ref()?.state);
                matches!(state, Some(OperationState::Complete | OperationState::Failed))
            };
            views.wait_for(over).await.map(drop).unwrap();
            // Nothing is done after it either.
            tokio::time::sleep(Duration::from_secs(60)).await;
        };
        let agent = run(parts, self.views.subscribe(), Pulse::unwatched(), CancellationToken::new());
        tokio::select! {
            () = agent => panic!("the loop has ended"),
            () = burned.cancelled() => true,
            () = over => false,
        }
    }

    async fn live_to_the_end(self: &Arc<Self>) {
        let lives = async { while self.live(i64::MAX).await {} };
        timeout(LONG, lives).await.expect("it ends");
    }

    fn is_complete(&self) -> bool {
        self.status().state == Some(OperationState::Complete)
    }
}

/// An operation for this Machine; `uid` is its name too, and the later ones are those with the longer one.
fn object(uid: &str, operation: &str, parameters: &Value) -> Arc<MachineOperation> {
    let created = format!("2026-01-01T00:00:0{}Z", uid.len() - 1);
    let object = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
        "metadata": {"name": uid, "uid": uid, "resourceVersion": "1", "creationTimestamp": created},
        "spec": {"machineRef": {"name": "a"}, "operationName": operation, "parameters": parameters}});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn pod(name: &str, controller: &str) -> Pod {
    Pod {
        namespace: "n".into(),
        name: name.into(),
        uid: name.into(),
        controller: Some(controller.into()),
        ..Pod::default()
    }
}

#[tokio::test(start_paused = true)]
async fn operation_that_hangs_is_named_by_the_watchdog_and_a_drain_is_not() {
    let world = World::new("reboot", json!({"drain": "true"}), false);
    *world.node.lock().unwrap() =
        FakeNode { held: 200, pods: vec![pod("web", "ReplicaSet")], ..Default::default() };
    let liveness = Liveness::new(CancellationToken::new());
    let (patience, shutdown) = (PULSE_INTERVAL * 4, CancellationToken::new());
    let pulse = liveness.part("operations", patience);
    tokio::spawn(run(world.parts(), world.views.subscribe(), pulse, shutdown));
    tokio::time::sleep(patience * 3).await;
    assert_eq!(liveness.check(), Ok(()), "{:?}", world.status());
    assert!(world.status().message.is_some_and(|message| message.contains("draining")));
    world.fuse.left.store(0, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60) + patience).await;
    assert!(liveness.check().unwrap_err().starts_with("operations sent no"));
}

#[tokio::test(start_paused = true)]
async fn o1_reboot_and_shutdown_are_done_at_most_once_despite_kills() {
    for (operation, in_memory, drain) in [
        ("reboot", false, false),
        ("reboot", true, false),
        ("reboot", false, true),
        ("shutdown", false, false),
    ] {
        let mut points = 0;
        loop {
            let parameters = if drain { json!({"drain": "true"}) } else { json!({}) };
            let world = World::new(operation, parameters, in_memory);
            world.node.lock().unwrap().pods = vec![pod("web", "ReplicaSet"), pod("cni", "DaemonSet")];
            let first_was_killed = world.live(points).await;
            let spent = world.fuse.left.load(Ordering::SeqCst) < 0;
            world.live_to_the_end().await;
            let ends = world.ends.lock().unwrap().len();
            let place = format!("{operation}, in memory {in_memory}, drain {drain}, killed at {points}");
            assert!(ends <= 1, "{place}: done {ends} times");
            assert_eq!(world.is_complete(), ends == 1, "{place}: {:?}", world.status());
            if drain && ends == 1 {
                let node = world.node.lock().unwrap().clone();
                assert!(!node.cordoned && node.pods.len() == 1, "{place}: {:?}", node.calls);
            }
            if !(first_was_killed && spent) {
                assert!(points >= 8, "only {points} points");
                assert_eq!(ends, 1, "{place}");
                break;
            }
            points += 1;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn o1_a_service_is_restarted_at_most_once_wherever_the_agent_is_killed() {
    for points in 0..20 {
        let world = World::new("restartService", json!({"service": "kubelet"}), false);
        world.live(points).await;
        world.live_to_the_end().await;
        let restarts = world.slot.calls().iter().filter(|call| *call == "restart kubelet.service").count();
        assert!(restarts <= 1, "killed at {points}: {:?}", world.slot.calls());
        assert!(restarts == 1 || world.reason() == "Interrupted", "killed at {points}: {}", world.reason());
    }
}

#[tokio::test(start_paused = true)]
async fn o1_an_api_server_that_forgot_that_it_was_done_has_it_not_done_again() {
    let world = World::new("reboot", json!({}), false);
    let before = world.object();
    world.live_to_the_end().await;
    world.show(before);
    world.written.store(0, Ordering::SeqCst);
    world.live_to_the_end().await;
    assert_eq!((world.ends.lock().unwrap().len(), world.is_complete()), (1, true));
}

#[tokio::test(start_paused = true)]
async fn o7_a_drain_waits_for_budgets_and_only_what_it_cordoned_is_given_free() {
    for by_a_person in [false, true] {
        let world = World::new("reboot", json!({"drain": "true", "gracePeriodSeconds": "5"}), false);
        *world.node.lock().unwrap() = FakeNode {
            cordoned: by_a_person,
            pods: vec![pod("web", "ReplicaSet")],
            held: 3,
            ..FakeNode::default()
        };
        world.live_to_the_end().await;
        assert_eq!(world.reason(), "Rebooted");
        let node = world.node.lock().unwrap().clone();
        let calls: Vec<&str> = node.calls.iter().map(String::as_str).collect();
        let expected: &[&str] = if by_a_person {
            &["evict n/web Some(5)"]
        } else {
            &["cordon", "evict n/web Some(5)", "uncordon"]
        };
        assert_eq!((calls.as_slice(), node.cordoned), (expected, by_a_person));
        assert!(world.started.elapsed() >= Duration::from_secs(30), "the API server's time was waited for");
    }
}

#[tokio::test(start_paused = true)]
async fn o7_drain_that_times_out_uncordons_the_node_and_does_not_reboot() {
    for (parameters, pods, held, reason) in [
        (
            json!({"drain": "true", "drainTimeoutSeconds": "30"}),
            vec![pod("web", "ReplicaSet")],
            1000,
            "DrainTimedOut",
        ),
        (json!({"drain": "true"}), vec![Pod { controller: None, ..pod("lone", "") }], 0, "UnmanagedPods"),
    ] {
        let world = World::new("reboot", parameters, false);
        *world.node.lock().unwrap() = FakeNode { pods, held, ..FakeNode::default() };
        world.live_to_the_end().await;
        assert_eq!(world.reason(), reason);
        assert!(world.ends.lock().unwrap().is_empty() && !world.node.lock().unwrap().cordoned);
    }
}

#[tokio::test(start_paused = true)]
async fn o7_an_inhibitor_is_named_before_any_pod_has_to_leave() {
    let world = World::new("shutdown", json!({"drain": "true"}), false);
    let blocker = Inhibitor { who: "backup".to_owned(), why: "writes a tape".to_owned() };
    *world.blocker.lock().unwrap() = Some(blocker);
    world.live_to_the_end().await;
    assert_eq!(world.reason(), "ShutdownInhibited");
    assert!(world.status().message.unwrap().contains("backup (writes a tape)"));
    assert!(world.node.lock().unwrap().calls.is_empty());
}

#[tokio::test(start_paused = true)]
async fn o7_a_service_that_does_not_stay_up_fails_with_its_journal() {
    let world = World::new("restartService", json!({"service": "kubelet"}), false);
    world.slot.job_ends("restart kubelet.service", crate::bus::JobResult::Failed);
    world.slot.command_ends(Ran { exit: Exit::Code(0), output: "no such flag\n".to_owned(), cut: false });
    world.live_to_the_end().await;
    assert_eq!(world.reason(), "ServiceFailed");
    assert!(world.status().message.unwrap().contains("no such flag"));
    let missing = World::new("restartService", json!({"service": "nothing", "in": "host"}), false);
    missing.live_to_the_end().await;
    assert_eq!(missing.reason(), "ServiceNotFound");
    let no_slot = World::new("restartService", json!({"service": "kubelet"}), false);
    no_slot.machines.remove(&"bedplate-a".parse().unwrap());
    no_slot.live_to_the_end().await;
    assert_eq!(no_slot.reason(), "NoRunningSlot");
}

#[tokio::test(start_paused = true)]
async fn d5_drain_without_a_certificate_of_a_node_fails_and_nothing_goes_down() {
    for operation in ["reboot", "shutdown"] {
        let world = World::new(operation, json!({"drain": "true"}), false);
        world.node.lock().unwrap().nameless = true;
        world.live_to_the_end().await;
        let status = world.status();
        assert_eq!((status.state, world.reason().as_str()), (Some(OperationState::Failed), "DrainFailed"));
        let message = status.message.unwrap_or_default();
        assert!(message.contains("the Node of Machine a"), "{message}");
        assert_eq!(world.ends.lock().unwrap().as_slice(), [""; 0], "{operation}");
        assert_eq!(world.node.lock().unwrap().calls, [""; 0], "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn o8_a_repave_is_asked_for_only_with_leave_and_after_a_drain() {
    let denied = World::new("applyConfiguration", json!({}), false);
    denied.live_to_the_end().await;
    assert_eq!((denied.reason().as_str(), denied.ends.lock().unwrap().len()), ("RepaveRequired", 0));
    for points in 0..16 {
        let world = World::new("applyConfiguration", json!({"disruption": "allow"}), false);
        world.node.lock().unwrap().pods = vec![Pod { controller: None, empty_dir: true, ..pod("web", "") }];
        world.live(points).await;
        world.live_to_the_end().await;
        assert_eq!(
            (world.reason().as_str(), world.ends.lock().unwrap().as_slice()),
            ("Applied", &["repave"][..])
        );
        assert!(world.node.lock().unwrap().pods.is_empty());
    }
    let world = World::new("applyConfiguration", json!({"disruption": "allow"}), false);
    world.live_to_the_end().await;
    let status = world.views.borrow().operations[0].status.clone();
    assert!(
        super::progress::is_drained(status.as_ref()),
        "so that its Node is deleted by who may: {status:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn o8_pods_stay_until_the_version_is_ready_and_have_their_whole_time_then() {
    let world = World::new("applyConfiguration", json!({"disruption": "allow"}), false);
    *world.node.lock().unwrap() =
        FakeNode { pods: vec![pod("web", "ReplicaSet")], held: 20, ..FakeNode::default() };
    world.ready_after.store(1200, Ordering::SeqCst);
    let untouched = async {
        tokio::time::sleep(Duration::from_secs(1190)).await;
        let calls = world.node.lock().unwrap().calls.clone();
        assert!(calls.is_empty(), "{calls:?}");
        assert_eq!(world.status().message.as_deref(), Some("it is fetched"));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = world.live_to_the_end() => {}
        () = untouched => {}
    }
    assert_eq!(world.reason(), "Applied");
    assert_eq!(world.node.lock().unwrap().calls[0], "cordon");
}

#[tokio::test(start_paused = true)]
async fn o8_last_control_plane_after_a_drain_is_kept_and_uncordoned() {
    for at_once in [true, false] {
        let world = World::new("applyConfiguration", json!({"disruption": "allow"}), false);
        *world.node.lock().unwrap() =
            FakeNode { pods: vec![pod("web", "ReplicaSet")], held: 5, ..FakeNode::default() };
        let lost = async {
            while !at_once && !world.node.lock().unwrap().cordoned {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let stays = Stays::Kept("the member is the only one".to_owned());
            world.configured.lock().unwrap().stays = Some(stays);
        };
        tokio::join!(lost, world.live_to_the_end());
        let status = world.status();
        assert_eq!(status.reason.as_deref(), Some("ControlPlaneProtected"), "{status:?}");
        assert!(!super::progress::is_drained(Some(&status)), "its Node is not deleted: {status:?}");
        let node = world.node.lock().unwrap();
        assert!(!node.cordoned && world.ends.lock().unwrap().is_empty());
        assert_eq!(node.calls.is_empty(), at_once, "{:?}", node.calls);
    }
}

#[tokio::test(start_paused = true)]
async fn operation_deleted_during_its_drain_is_canceled_and_uncordons() {
    let world = World::new("reboot", json!({"drain": "true"}), false);
    *world.node.lock().unwrap() =
        FakeNode { pods: vec![pod("web", "ReplicaSet")], held: 1000, ..FakeNode::default() };
    let agent = world.live(i64::MAX);
    let person = async {
        while !world.node.lock().unwrap().cordoned {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        world.views.send_modify(|view| view.operations.clear());
        while world.node.lock().unwrap().cordoned {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        _ = agent => panic!("it does not end by itself"),
        () = person => {}
    }
    assert!(world.ends.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_takes_no_write_is_asked_ever_more_rarely() {
    let world = World::new("reboot", json!({}), false);
    world.busy.store(true, Ordering::SeqCst);
    timeout(Duration::from_secs(600), world.live(i64::MAX)).await.expect_err("it waits");
    let tried = world.tried.load(Ordering::SeqCst);
    assert!((5..20).contains(&tried), "{tried}");
    world.busy.store(false, Ordering::SeqCst);
    world.live_to_the_end().await;
    assert!(world.is_complete());
}

#[tokio::test(start_paused = true)]
async fn node_of_a_finished_operation_is_uncordoned_but_not_after_a_shutdown() {
    for (by, ended, complete, calls) in [
        (Some("gone"), None, true, vec!["uncordon"]),
        (Some("gone"), Some(false), true, vec!["uncordon"]),
        (Some("gone"), Some(true), true, vec![]),
        (Some("gone"), None, false, vec![]),
        (None, None, true, vec![]),
    ] {
        let world = World::new("reboot", json!({}), false);
        world.views.send_modify(|view| {
            view.operations.clear();
            view.complete = complete;
            view.ended = ended.map(|shut_down| ("gone".to_owned(), shut_down)).into_iter().collect();
        });
        *world.node.lock().unwrap() =
            FakeNode { cordoned: true, by: by.map(str::to_owned), ..FakeNode::default() };
        timeout(Duration::from_secs(600), world.live(i64::MAX)).await.expect_err("it waits");
        assert_eq!(world.node.lock().unwrap().calls, calls, "{by:?} {ended:?} {complete}");
    }
}

#[tokio::test(start_paused = true)]
async fn o7_replaced_host_ends_no_operation_of_its_successor() {
    let world = World::new("reboot", json!({}), false);
    let mut taken = (*world.object()).clone();
    taken.status = Some(super::progress::taken(
        None,
        "bedplate-agent/a",
        "boot-of-another-host",
        "2026-01-01T00:00:00Z".parse().unwrap(),
    ));
    world.show(Arc::new(taken));
    world.views.send_modify(|view| view.standing = Standing::Unknown);
    timeout(Duration::from_secs(600), world.live(i64::MAX)).await.expect_err("no call is made");
    assert_eq!(
        (world.tried.load(Ordering::SeqCst), world.status().state),
        (0, Some(OperationState::InProgress))
    );
}

#[tokio::test(start_paused = true)]
async fn o7_service_restarts_during_a_drain_but_not_the_kubelet() {
    let world = World::new("reboot", json!({"drain": "true"}), false);
    *world.node.lock().unwrap() =
        FakeNode { pods: vec![pod("web", "ReplicaSet")], held: 30, ..FakeNode::default() };
    let others = [
        object("uu", "restartService", &json!({"service": "kubelet"})),
        object("uuu", "applyConfiguration", &json!({})),
    ];
    world.views.send_modify(|view| view.operations.extend(others));
    world.live_to_the_end().await;
    let times = |uid: &str| {
        let status = world.status_of(uid);
        (status.start_time.unwrap().0, status.completion_time.map(|time| time.0))
    };
    assert_eq!(
        (world.reason(), world.status_of("uu").reason.unwrap()),
        ("Rebooted".into(), "Restarted".into())
    );
    let (reboot, restart, apply) = (times("u"), times("uu"), times("uuu"));
    let drained_for = reboot.1.unwrap().duration_since(reboot.0).as_secs();
    assert!(drained_for >= 300 && restart.1.unwrap().duration_since(reboot.0).as_secs() < 30, "{restart:?}");
    assert!(apply.0 >= reboot.1.unwrap(), "{apply:?} {reboot:?}");
}

#[tokio::test(start_paused = true)]
async fn o1_operation_during_a_drain_is_done_at_most_once_despite_kills() {
    let mut points = 0;
    loop {
        let world = World::new("reboot", json!({"drain": "true"}), false);
        world.node.lock().unwrap().pods = vec![pod("web", "ReplicaSet")];
        let restart = object("uu", "restartService", &json!({"service": "kubelet"}));
        world.views.send_modify(|view| view.operations.push(restart));
        let killed = world.live(points).await && world.fuse.left.load(Ordering::SeqCst) < 0;
        world.live_to_the_end().await;
        let restarts = world.slot.calls().iter().filter(|call| *call == "restart kubelet.service").count();
        let ends = world.ends.lock().unwrap().len();
        assert!(ends <= 1 && restarts <= 1, "killed at {points}: {ends} {restarts}");
        let reason = world.status_of("uu").reason.unwrap_or_default();
        assert_ne!(reason, "HostRebooted", "killed at {points}");
        if !killed {
            assert!(points >= 12, "only {points} points");
            assert_eq!((ends, restarts, reason.as_str()), (1, 1, "Restarted"));
            break;
        }
        points += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn o7_operation_not_taken_before_the_drain_ends_is_not_started() {
    let world = World::new("reboot", json!({"drain": "true"}), false);
    *world.node.lock().unwrap() =
        FakeNode { pods: vec![pod("web", "ReplicaSet")], held: 30, ..FakeNode::default() };
    let restart = object("uu", "restartService", &json!({"service": "kubelet"}));
    world.views.send_modify(|view| view.operations.push(restart));
    *world.busy_for.lock().unwrap() = Some("uu");
    assert!(world.live(i64::MAX).await, "the host goes down, and nothing is waited for");
    assert_eq!(world.ends.lock().unwrap().as_slice(), ["reboot"]);
    let status = world.status_of("uu");
    assert!(status.start_time.is_none(), "{status:?}");
    assert!(!world.slot.calls().iter().any(|call| call == "restart kubelet.service"));
    // It is the next boot's.
    *world.busy_for.lock().unwrap() = None;
    world.live_to_the_end().await;
}
