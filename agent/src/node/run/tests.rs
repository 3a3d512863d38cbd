//! The whole loop with slots in real directories, and stand-ins for systemd, the cluster, images and what a slot shows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use bedplate_api::claim::{MachineClaim, MachineClaimStatus};
use bedplate_api::configuration::{NodeRole, SecretRef, Taint};
use bedplate_api::id::Digest;
use bedplate_api::machine::{Machine, SlotName, SlotState, VersionRef};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::reason::machine::NodeReadyReason;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_api::wire::Report;
use bedplate_bootstrap::diff::Edit;
use bedplate_bootstrap::unit;
use bedplate_oci::node::{EnsureNodeImageError, NodeImage, NodeSource, Tell};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::*;
use crate::bus::fake::{FakeMachines, FakeUnits, Fault, unit_state};
use crate::bus::kill_points::KillPoints;
use crate::bus::{ActiveState, JobResult, Leader, UnitName};
use crate::kubelet::client::{AskNodeError, NodeApi, NodeView};
use crate::kubelet::node_name::NodeName;
use crate::node::effects::{Credential, Credentials, Disk, Gate, Images};
use crate::node::trash;
use crate::plane::{
    AskServerError, CertificateAnswer, Compared, Decider, Home, NodeState, ReadSecretError, SecretData,
    WriteOperationError,
};
use crate::slot::fill_record::Filled;
use crate::slot::paths::{Places, machine, service};
use crate::slot::store::Slots;
use bedplate_rules::drain::{Evicted, Pod};

mod certificates;
mod claims;
mod faults;
mod in_place;
mod kills;
mod leaving;
mod leftover;
mod liveness;
mod trials;

struct FakePlane {
    seen: watch::Sender<Seen>,
    reported: Mutex<Vec<NodeStatusReport>>,
    /// A live GET says that the Node is there, whatever the watch said.
    there: AtomicBool,
    standalone: AtomicBool,
    /// Answer to the comparison with another API server.
    compared: Mutex<Option<Compared>>,
    /// Requests for the kubelet's certificate, and who answers them.
    requests: certificates::Requests,
    /// Side of the provider and of its claimant.
    claims: claims::Provider,
    kills: KillPoints,
}

#[async_trait]
impl Decider for FakePlane {
    fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }
    async fn report(&self, _: &Report) -> Result<(), AskServerError> {
        Ok(())
    }
    fn report_node(&self, reported: NodeStatusReport) {
        self.reported.lock().unwrap().push(reported);
    }
    async fn write_operation(
        &self,
        operation: &MachineOperation,
        _: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        Ok(Arc::new(operation.clone()))
    }
    async fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
        self.kills.reach("secret to read").await;
        self.claims.secret(secret)
    }
    async fn write_claim(
        &self,
        claim: &MachineClaim,
        status: &MachineClaimStatus,
    ) -> Result<(), AskServerError> {
        self.kills.reach("report on a claim").await;
        self.claims.take_report(&self.seen, claim, status)
    }
    async fn configuration_allows(&self, _: &str, _: &str) -> Result<bool, AskServerError> {
        Ok(!self.claims.is_forbidden.load(Ordering::Relaxed))
    }
}

#[async_trait]
impl Home for FakePlane {
    fn follows_slot(&self) -> bool {
        self.standalone.load(Ordering::Relaxed)
    }
    async fn node_is_gone(&self, _: &Seen) -> Result<bool, AskServerError> {
        Ok(!self.there.load(Ordering::Relaxed))
    }
    async fn compare(&self, _: &str, _: &str) -> Compared {
        self.compared.lock().unwrap().clone().unwrap()
    }
    async fn kubelet_certificate(
        &self,
        name: &str,
        csr_pem: &str,
    ) -> Result<CertificateAnswer, AskServerError> {
        self.kills.reach("request a certificate").await;
        self.requests.ask(name, csr_pem)
    }
}

struct FakeImages {
    layer: PathBuf,
    asked: AtomicU32,
    hangs: AtomicBool,
    /// Failures of the next images.
    fails: Mutex<VecDeque<EnsureNodeImageError>>,
    kills: KillPoints,
}

#[async_trait]
impl Images for FakeImages {
    async fn ensure(&self, source: &NodeSource, tell: Tell<'_>) -> Result<NodeImage, EnsureNodeImageError> {
        self.kills.reach("image to fetch").await;
        self.asked.fetch_add(1, Ordering::Relaxed);
        tell(bedplate_oci::node::Progress::Resolving);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if let Some(error) = self.fails.lock().unwrap().pop_front() {
            return Err(error);
        }
        Ok(NodeImage {
            digest: source.pinned().unwrap(),
            architecture: "amd64".to_owned(),
            layers: vec![self.layer.clone()],
            labels: Default::default(),
        })
    }
    async fn keep_only(&self, _: Vec<Digest>) {
        self.kills.reach("image to keep alone").await;
    }
}

#[derive(Default)]
struct FakeGate {
    probes: AtomicU32,
    no_sandbox: AtomicBool,
    /// Error of every kubelet; none: they are healthy.
    kubelet_ill: Mutex<Option<String>>,
    kills: KillPoints,
}

#[async_trait]
impl Gate for FakeGate {
    async fn kubelet(&self, _: Leader, _: &Filled) -> Result<(), String> {
        self.kubelet_ill.lock().unwrap().clone().map_or(Ok(()), Err)
    }
    async fn runtime(&self, _: Leader, _: &str) -> Result<(), String> {
        Ok(())
    }
    async fn control_plane(&self, _: Leader, _: &Filled) -> Result<(), String> {
        Ok(())
    }
    async fn sandbox(&self, _: Leader, _: &str, _: u32) -> Result<(), String> {
        self.kills.reach("probe of a sandbox").await;
        self.probes.fetch_add(1, Ordering::Relaxed);
        if self.no_sandbox.load(Ordering::Relaxed) { Err("no CNI plug-in".to_owned()) } else { Ok(()) }
    }
}

/// The Node as the slot's kubelet has it.
#[derive(Default)]
struct FakeNode {
    units: FakeUnits,
    /// It refuses for now.
    fails: AtomicBool,
    annotations: Mutex<Vec<Edit>>,
    taints: Mutex<Vec<Taint>>,
    kills: KillPoints,
}

#[async_trait]
impl NodeApi for FakeNode {
    async fn name(&self) -> Option<NodeName> {
        None
    }

    async fn node(&self) -> Result<Option<NodeView>, AskNodeError> {
        let taints = self.taints.lock().unwrap().clone();
        Ok(Some(NodeView { cordoned: false, cordoned_by: None, version: "1".to_owned(), taints }))
    }
    async fn cordon(&self, _: &NodeView, _: Option<&str>) -> Result<(), AskNodeError> {
        Ok(())
    }
    async fn edit(&self, _: Option<&Edit>, annotations: Option<&Edit>) -> Result<(), AskNodeError> {
        use crate::bus::Units as _;
        self.kills.reach("edit of the Node").await;
        let mut runs = false;
        for slot in SlotName::ALL {
            runs |= !self.units.state(&service(slot).parse().unwrap()).await.unwrap().active.is_down();
        }
        if !runs || self.fails.load(Ordering::Relaxed) {
            return Err(AskNodeError::Kubeconfig(
                "the file is missing because the slot has stopped".to_owned(),
            ));
        }
        self.annotations.lock().unwrap().extend(annotations.cloned());
        Ok(())
    }
    async fn pods(&self) -> Result<Vec<Pod>, AskNodeError> {
        Ok(Vec::new())
    }
    async fn evict(&self, _: &Pod, _: Option<u32>) -> Result<Evicted, AskNodeError> {
        Ok(Evicted::Gone)
    }
}

struct FakeCredentials;

#[async_trait]
impl Credentials for FakeCredentials {
    async fn current(&self) -> Result<Credential, String> {
        Ok(Credential {
            server: "https://k.example:6443".to_owned(),
            ca_pem: "CA".to_owned(),
            certificate_pem: "CERT".to_owned(),
        })
    }
}

/// A host, its cluster, and a controller that selects immediately.
struct World {
    directory: tempfile::TempDir,
    parts: Parts,
    plane: Arc<FakePlane>,
    images: Arc<FakeImages>,
    gate: Arc<FakeGate>,
    node: Arc<FakeNode>,
    claimed_node: Arc<claims::FakeClaimedNode>,
    units: FakeUnits,
    machines: FakeMachines,
    power: crate::bus::fake::FakePower,
    /// Points at which the agent is killed.
    kills: KillPoints,
    /// Versions whose kubeadm fails for good.
    bad: BTreeSet<i64>,
    nodes: u32,
    /// Slots whose kubelet has registered its Node since it was started: it does so once.
    registered: BTreeSet<u32>,
    /// Its versions are those of a further control plane of this cluster.
    etcd: Option<Arc<leaving::Etcd>>,
    /// Versions whose node joins at this endpoint.
    endpoints: BTreeMap<i64, &'static str>,
}

fn number(slot: SlotName) -> u32 {
    match slot {
        SlotName::A => 100,
        SlotName::B => 200,
    }
}

fn version_object(number: i64) -> MachineConfigurationVersion {
    let reference = format!("r.example/node@sha256:{}", format!("{number:02x}").repeat(32));
    let template = json!({ "image": { "reference": reference }, "kubernetes": { "version": "v1.34.4", "nodeAnnotations": { "example.com/row": "7" } },
        "healthGate": { "timeoutSeconds": 600, "minReadySeconds": 0 } });
    let object = json!({ "metadata": { "name": format!("workers-v{number}") },
        "spec": { "configurationName": "workers", "version": number, "template": template } });
    serde_json::from_value(object).unwrap()
}

impl World {
    fn new() -> Self {
        // In memory if possible: the slots are synced many times, and no test is about that.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let below = |name: &str| directory.path().join(name);
        for (path, text) in
            [("root/etc/resolv.conf", "nameserver 10.0.0.1\n"), ("layer/etc/os-release", "ID=test\n")]
        {
            std::fs::create_dir_all(below(path).parent().unwrap()).unwrap();
            std::fs::write(below(path), text).unwrap();
        }
        std::fs::create_dir_all(below("run")).unwrap();
        let (units, machines, disk) = (FakeUnits::default(), FakeMachines::default(), Arc::<Disk>::default());
        let kills = disk.kills.clone();
        units.set_kills(&kills);
        machines.set_kills(&kills);
        for slot in SlotName::ALL {
            machines.add(&machine(slot).parse().unwrap(), Leader::new(number(slot)).unwrap());
        }
        let seen = Seen { api: Api::Live, ours: true, node: NodeState::Absent, ..Seen::default() };
        let (reported, there, standalone, compared, requests, claims) = Default::default();
        let seen = watch::channel(seen).0;
        let plane = Arc::new(FakePlane {
            seen,
            reported,
            there,
            standalone,
            compared,
            requests,
            claims,
            kills: kills.clone(),
        });
        let images = Arc::new(FakeImages {
            layer: below("layer"),
            asked: AtomicU32::new(0),
            hangs: AtomicBool::new(false),
            fails: Mutex::default(),
            kills: kills.clone(),
        });
        let gate = Arc::new(FakeGate { kills: kills.clone(), ..FakeGate::default() });
        let node = Arc::new(FakeNode { units: units.clone(), kills: kills.clone(), ..FakeNode::default() });
        let claimed_node = Arc::new(claims::FakeClaimedNode { kills: kills.clone(), ..Default::default() });
        let power = crate::bus::fake::FakePower::default();
        power.set_kills(&kills);
        let places = Places { state: below("state"), run: below("run"), machines: below("machines") };
        let parts = Parts {
            machine: "node-1".parse().unwrap(),
            boot_id: "boot".to_owned(),
            root: below("root"),
            slots: Slots::new(places),
            units: Arc::new(units.clone()),
            machines: Arc::new(machines.clone()),
            power: Arc::new(power.clone()),
            images: images.clone(),
            gate: gate.clone(),
            decider: plane.clone(),
            home: plane.clone(),
            node: node.clone(),
            claimed_node: claimed_node.clone(),
            credentials: Arc::new(FakeCredentials),
            disk,
        };
        let world = Self {
            directory,
            parts,
            plane,
            images,
            gate,
            node,
            claimed_node,
            units,
            machines,
            power,
            kills,
            bad: BTreeSet::new(),
            nodes: 0,
            registered: BTreeSet::new(),
            etcd: None,
            endpoints: BTreeMap::new(),
        };
        world.write_machine(None, None);
        world
    }

    fn run_directory(&self) -> &Path {
        &self.parts.slots.places().run
    }

    /// An agent that has just started.
    fn agent(&self) -> NodeLoop {
        NodeLoop::new(self.parts.clone(), self.run_directory().to_owned(), Arc::default())
    }

    fn write_machine(&self, selected: Option<i64>, node_uid: Option<&str>) {
        let mut object = json!({ "metadata": { "name": "node-1", "uid": "machine-uid" },
            "spec": { "provider": "manual" }, "status": {} });
        if let Some(number) = selected {
            object["status"]["selected"] =
                json!({ "name": "workers", "version": number, "source": "Reference" });
        }
        if let Some(uid) = node_uid {
            object["status"]["nodeRef"] = json!({ "name": "node-1", "uid": uid });
        }
        let machine: Machine = serde_json::from_value(object).unwrap();
        self.plane.seen.send_modify(|seen| {
            seen.machine = Some(Arc::new(machine));
            seen.version = selected.map(|number| Arc::new(self.version(number)));
        });
    }

    fn version(&self, number: i64) -> MachineConfigurationVersion {
        let mut version = version_object(number);
        if self.etcd.is_some() {
            let kubernetes = &mut version.spec.template.kubernetes;
            (kubernetes.role, kubernetes.join_configuration) = (NodeRole::ControlPlane, Some(json!({})));
        }
        let endpoint = self.endpoints.get(&number).map(|endpoint| (*endpoint).to_owned());
        version.spec.template.kubernetes.api_server_endpoint = endpoint;
        version
    }

    /// The controller selects.
    fn select(&self, number: i64) {
        let uid = self.node_uid();
        self.write_machine(Some(number), uid.as_deref());
    }

    fn node_uid(&self) -> Option<String> {
        match &self.plane.seen.borrow().node {
            NodeState::Present(node) => node.metadata.uid.clone(),
            _ => None,
        }
    }

    /// A person deletes the Node; the controller chooses this version.
    fn delete_node(&self, number: i64) {
        self.plane.seen.send_modify(|seen| seen.node = NodeState::Absent);
        self.write_machine(Some(number), None);
    }

    /// Deletes the Machine with `deletionPolicy: Drain`, as if the controller had drained and deleted the Node.
    fn drain(&self) {
        self.plane.seen.send_modify(|seen| {
            seen.node = NodeState::Absent;
            let mut machine = serde_json::to_value(seen.machine.as_deref().unwrap()).unwrap();
            machine["metadata"]["deletionTimestamp"] = json!("2026-11-22T08:00:00Z");
            machine["spec"]["deletionPolicy"] = json!("Drain");
            machine["status"]["nodeRef"] = json!(null);
            seen.machine = Some(Arc::new(serde_json::from_value(machine).unwrap()));
        });
    }

    fn record(&self, slot: SlotName) -> Option<crate::model::Record> {
        self.parts.slots.record(slot).unwrap()
    }

    async fn runs(&self, slot: SlotName) -> bool {
        let unit: UnitName = service(slot).parse().unwrap();
        use crate::bus::Units as _;
        !self.units.state(&unit).await.unwrap().active.is_down()
    }

    /// Simulates a running slot: kubeadm joins, the kubelet registers its Node.
    async fn react(&mut self) {
        for slot in SlotName::ALL {
            let Some(record) = self.record(slot) else { continue };
            if !self.runs(slot).await {
                self.registered.remove(&number(slot));
                continue;
            }
            let kubeadm: UnitName = unit::NAME.parse().unwrap();
            let inside =
                self.machines.add(&machine(slot).parse().unwrap(), Leader::new(number(slot)).unwrap());
            if self.bad.contains(&record.version.version) {
                inside.set(&kubeadm, unit_state(ActiveState::Failed, "failed"));
                let log = self.parts.slots.places().kept(slot, "log").join("bedplate");
                std::fs::create_dir_all(&log).unwrap();
                std::fs::write(log.join("kubeadm.log"), "no such cluster\n").unwrap();
                continue;
            }
            inside.set(&kubeadm, unit_state(ActiveState::Active, "exited"));
            if let Some(etcd) = self.etcd.as_ref().filter(|_| !self.parts.slots.has_mark(slot, unit::JOINED))
            {
                etcd.join(&self.parts.slots, slot);
            }
            let kubelet = self.parts.slots.places().kept(slot, "kubelet");
            for mark in [unit::JOINED, unit::FINISHED] {
                std::fs::write(kubelet.join(Path::new(mark).file_name().unwrap()), "").unwrap();
            }
            if self.registered.insert(number(slot)) && self.node_uid().is_none() {
                self.nodes += 1;
                let node = json!({ "metadata": { "name": "node-1", "uid": format!("node-{}", self.nodes) },
                    "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z" }] } });
                let node: Node = serde_json::from_value(node).unwrap();
                self.plane.seen.send_modify(|seen| seen.node = NodeState::Present(Arc::new(node)));
                let selected = self.plane.seen.borrow().machine_facts().and_then(|machine| machine.selected);
                self.write_machine(selected.map(|version| version.version), self.node_uid().as_deref());
            }
        }
    }

    /// Runs until the plan waits for an outside event. A killed agent is followed by the next one.
    async fn settled(&mut self) -> String {
        let mut agent = self.agent();
        for _ in 0..200 {
            self.react().await;
            let Some(pause) = self.kills.run(agent.advance()).await else {
                agent = self.agent();
                continue;
            };
            let rests = matches!(&agent.standing.plan.wait, Some(why) if why == "Applied" || why == "VersionRejected" || why == "BackOff");
            if pause != Pause::None && rests {
                return agent.standing.plan.wait.unwrap_or_default();
            }
            if pause != Pause::None {
                // Time passes.
                agent.attempts = Attempts::default();
            }
        }
        panic!("it does not come to rest: {:?}", agent.standing);
    }

    fn reported(&self) -> NodeStatusReport {
        self.plane.reported.lock().unwrap().last().cloned().unwrap()
    }
}

fn in_runtime<T>(test: impl Future<Output = T>) -> T {
    // One thread for files: work that is queued later is done later.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(1).build().unwrap().block_on(test)
}

fn is_applied(world: &World, slot: SlotName, version: i64) -> bool {
    world.record(slot).is_some_and(|record| {
        record.version.version == version && matches!(record.stage, Stage::Applied { .. })
    })
}

#[test]
fn a_selected_version_is_paved_and_the_next_one_waits_prepared() {
    in_runtime(async {
        let mut world = World::new();
        let mut agent = world.agent();
        assert_eq!(agent.advance().await, Pause::Open);
        assert_eq!(world.reported().paved.unwrap().reason, PavedReason::NoVersionSelected);
        world.select(1);
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        let slot = world.parts.slots.places().root(SlotName::A);
        let read = |path: &str| std::fs::read_to_string(slot.join(path)).unwrap();
        assert_eq!(read("etc/hostname"), "node-1\n");
        assert!(read("etc/bedplate/kubeadm.sh").contains("kubeadm join --config /run/bedplate/kubeadm.yaml"));
        assert!(
            slot.join("etc/systemd/system/multi-user.target.wants/bedplate-kubeadm.service").is_symlink()
        );
        let shared = world.parts.slots.places().shared(SlotName::A);
        assert!(
            std::fs::read_to_string(shared.join("kubeconfig")).unwrap().contains("https://k.example:6443")
        );
        assert!(shared.join("kubeadm.yaml").exists());
        let reported = world.reported();
        assert_eq!(reported.applied.as_ref().map(|applied| applied.version), Some(1));
        assert_eq!(reported.paved.as_ref().unwrap().status, Truth::True);
        assert_eq!(reported.node_ready.as_ref().unwrap().reason, NodeReadyReason::NodeReady);
        // Another version is selected: nothing runs again, but the version is prepared.
        world.select(2);
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::A, 1) && !world.runs(SlotName::B).await);
        let reported = world.reported();
        assert_eq!(
            (reported.slots[0].state, reported.slots[1].state),
            (SlotState::Running, SlotState::Prepared)
        );
        let asked = world.images.asked.load(Ordering::Relaxed);
        world.delete_node(2);
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::B, 2) && !world.runs(SlotName::A).await);
        assert!(world.units.calls().contains(&"stop systemd-nspawn@bedplate-a.service".to_owned()));
        // Repaved from what was prepared; then the other slot is filled for the next time.
        assert_eq!(world.images.asked.load(Ordering::Relaxed), asked + 1);
    });
}

#[test]
fn failed_bootstrap_is_rolled_back_and_refused_until_a_new_selection() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        world.settled().await;
        world.bad.insert(2);
        world.delete_node(2);
        assert_eq!(world.settled().await, "VersionRejected");
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        assert!(!world.runs(SlotName::B).await);
        let reported = world.reported();
        let back = reported.rolled_back.unwrap();
        assert_eq!((back.from.version, back.to.version), (2, 1));
        assert!(
            back.message.contains("kubeadm failed") && back.message.contains("no such cluster"),
            "{}",
            back.message
        );
        assert_eq!(reported.slots[1].state, SlotState::Failed);
        world.delete_node(3);
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::B, 3));
        assert_eq!(world.parts.slots.ledger().unwrap().refused, []);
        assert_eq!(world.reported().rolled_back, None);
    });
}

#[test]
fn failed_trial_without_a_former_slot_is_counted_and_retried_later() {
    in_runtime(async {
        let mut world = World::new();
        world.bad.insert(1);
        world.select(1);
        assert_eq!(world.settled().await, "BackOff");
        let ledger = world.parts.slots.ledger().unwrap();
        assert_eq!((ledger.failures, ledger.refused.len()), (1, 0));
        assert!(ledger.not_before.unwrap() > Timestamp::now());
        let paved = world.reported().paved.unwrap();
        assert_eq!((paved.status, paved.reason), (Truth::False, PavedReason::BackOff));
        assert!(paved.message.contains("no such cluster"), "{}", paved.message);
        // A person mends it, and time passes.
        world.bad.clear();
        for slot in SlotName::ALL {
            let inside =
                world.machines.add(&machine(slot).parse().unwrap(), Leader::new(number(slot)).unwrap());
            inside.set(&unit::NAME.parse().unwrap(), unit_state(ActiveState::Activating, "start"));
        }
        let ledger = crate::slot::store::Ledger { not_before: None, ..ledger };
        world.parts.slots.write_ledger(&ledger).unwrap();
        assert_eq!(world.settled().await, "Applied");
        let log = world.parts.slots.places().failed_log(SlotName::A).join("bedplate/kubeadm.log");
        assert_eq!(std::fs::read_to_string(log).unwrap(), "no such cluster\n");
        assert_eq!(world.parts.slots.ledger().unwrap().failures, 0);
    });
}

#[test]
fn a_live_node_stops_a_repave_that_a_watch_asked_for() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        world.settled().await;
        world.select(2);
        world.settled().await;
        world.plane.there.store(true, Ordering::Relaxed);
        world.delete_node(2);
        let mut agent = world.agent();
        for _ in 0..5 {
            agent.advance().await;
        }
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        assert_eq!(world.record(SlotName::B).unwrap().stage, Stage::Prepared);
    });
}

#[test]
fn a_probe_that_fails_until_the_time_is_over_is_a_failed_gate() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        world.settled().await;
        world.gate.no_sandbox.store(true, Ordering::Relaxed);
        world.delete_node(2);
        let mut agent = world.agent();
        let probes = world.gate.probes.load(Ordering::Relaxed);
        for _ in 0..40 {
            world.react().await;
            agent.attempts = Attempts::default();
            agent.advance().await;
            if world.gate.probes.load(Ordering::Relaxed) > probes + 1 {
                break;
            }
        }
        assert_eq!(world.reported().paved.unwrap().reason, PavedReason::SandboxFailed);
        // Its time is over.
        let mut record = world.record(SlotName::B).unwrap();
        record.timeout_seconds = 0;
        world.parts.slots.write_record(SlotName::B, &record).unwrap();
        assert_eq!(world.settled().await, "VersionRejected");
        let back = world.reported().rolled_back.unwrap();
        assert!(back.message.starts_with("failed to start a Pod sandbox: "), "{}", back.message);
    });
}

#[test]
fn a_long_step_ends_when_another_version_is_selected() {
    in_runtime(async {
        let mut world = World::new();
        world.images.hangs.store(true, Ordering::Relaxed);
        world.select(1);
        let mut agent = world.agent();
        let select = async {
            while world.images.asked.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            world.images.hangs.store(false, Ordering::Relaxed);
            world.select(2);
        };
        tokio::join!(agent.advance(), select);
        assert_eq!(agent.standing.progress.as_deref(), Some("resolves the node image"));
        assert_eq!(world.settled().await, "Applied");
        assert!(is_applied(&world, SlotName::A, 2));
    });
}

#[test]
fn failure_is_reported_with_its_reason_and_retried() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        world.units.job_ends("start systemd-nspawn@bedplate-a.service", JobResult::Failed);
        let mut agent = world.agent();
        let mut seen = BTreeSet::new();
        for _ in 0..12 {
            world.react().await;
            agent.advance().await;
            seen.insert(world.reported().paved.unwrap().reason);
        }
        assert!(seen.contains(&PavedReason::UnitFailed), "{seen:?}");
        let error = agent.standing.last_error.clone().unwrap();
        assert!(error.contains("start_slot") && error.contains("exit-code"), "{error}");
        assert!(agent.standing.next_try.is_some());
        // D-Bus goes away for a while.
        world.units.fail("state", Fault::Away);
        assert_eq!(agent.advance().await, Pause::AtMost(RETRY_DELAY));
        let paved = world.reported().paved.unwrap();
        assert_eq!((paved.status, paved.reason), (Truth::Unknown, PavedReason::DbusError));
        assert_eq!(world.reported().slots.len(), 2, "what was known stays");
        assert_eq!(world.settled().await, "Applied");
        assert!(world.directory.path().join("run/node.json").exists());
        let version = VersionRef { name: "workers".to_owned(), version: 1 };
        assert_eq!(world.record(SlotName::A).unwrap().version, version);
    });
}

#[test]
fn at_rest_only_changes_wake_the_loop() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        world.settled().await;
        let mut agent = world.agent();
        while agent.advance().await == Pause::None {}
        // The first turn asks for changes and is followed by another one immediately, the second one only by a change.
        assert!(matches!(agent.turn(Activation::Start).await, Turn::At(_)));
        assert!(matches!(agent.turn(Activation::Due).await, Turn::Idle));
        let unit: UnitName = service(SlotName::A).parse().unwrap();
        let (mut woken, units) = (agent, world.units.clone());
        let change = async { units.set(&unit, unit_state(ActiveState::Failed, "failed")) };
        tokio::join!(woken.changed(), change);
        woken.advance().await;
        assert!(world.runs(SlotName::A).await, "a slot that is the node and has ended is started");
    });
}
