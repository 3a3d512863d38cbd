//! A host of a pool from claim to release, with a provider that grants and a slot that runs the user data.

use bedplate_api::claim::ClaimState;
use bedplate_api::configuration::SecretRef;
use bedplate_bootstrap::user_data;
use jiff::SignedDuration;
use zeroize::Zeroizing;

use super::*;
use crate::bus::kill_points::kill_before_each_effect;
use crate::bus::{Inhibitor, MainExit};
use crate::kubelet::claimed_node::{ClaimedNode, RegisteredNode};
use crate::node::claim_record::ClaimRecord;
use crate::plane::ClaimObject;

/// Effects of a claim that joins and is released.
const EFFECTS_OF_A_CLAIM: &[(&str, usize)] = &[
    ("daemon-reload", 2),
    ("disk", 101),
    ("image", 2),
    ("mark", 1),
    ("report", 5),
    ("reset-failed", 1),
    ("restart", 2),
    ("run", 2),
    ("secret", 1),
    ("start", 2),
    ("stop", 7),
];

/// Effects of a release with a wipe.
const EFFECTS_OF_A_WIPE: &[(&str, usize)] =
    &[("disk", 49), ("reboot", 1), ("report", 3), ("run", 1), ("stop", 6)];

const USER_DATA: &str = "#cloud-config\nwrite_files:\n- path: /etc/kubeadm.yaml\n  content: token-of-the-claimant-0123\nruncmd:\n- kubeadm init\n";

const LOG: &str = "[kubelet-check] not ready\nread token-of-the-claimant-0123\n";

/// The provider and the claimant's Secret.
#[derive(Default)]
pub(super) struct Provider {
    /// Number of reads of the Secret that are refused first.
    pub(super) refusals: AtomicU32,
    /// The configuration does not allow the claimant.
    pub(super) is_forbidden: AtomicBool,
    /// Number of reports that fail first.
    pub(super) lost_reports: AtomicU32,
    reads: AtomicU32,
    user_data: Mutex<Option<String>>,
    reports: Mutex<Vec<MachineClaimStatus>>,
}

/// Takes one of what is left. False: nothing is left.
fn take_one(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

impl Provider {
    pub(super) fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
        let SecretRef { namespace, name } = secret.clone();
        self.reads.fetch_add(1, Ordering::Relaxed);
        if take_one(&self.refusals) {
            return Err(ReadSecretError::Forbidden { namespace, name, remedy: String::new() });
        }
        let Some(text) = self.user_data.lock().unwrap().clone() else {
            return Err(ReadSecretError::Missing { namespace, name });
        };
        let data = [("value".to_owned(), Zeroizing::new(text.into_bytes()))].into();
        Ok(SecretData { kind: "cluster.x-k8s.io/secret".to_owned(), data })
    }

    pub(super) fn take_report(
        &self,
        seen: &watch::Sender<Seen>,
        claim: &MachineClaim,
        status: &MachineClaimStatus,
    ) -> Result<(), AskServerError> {
        let refused = |status| AskServerError::Refused {
            what: "status".to_owned(),
            status,
            reason: String::new(),
            message: String::new(),
        };
        if take_one(&self.lost_reports) {
            return Err(refused(503));
        }
        let mut is_there = false;
        seen.send_modify(|seen| {
            let ClaimObject::Present(now) = &seen.claim else { return };
            if now.metadata.uid != claim.metadata.uid {
                return;
            }
            is_there = true;
            let mut new = MachineClaim::clone(now);
            let conditions = new.status.take().unwrap_or_default().conditions;
            new.status = Some(MachineClaimStatus { conditions, ..status.clone() });
            seen.claim = ClaimObject::Present(Arc::new(new));
        });
        if !is_there {
            return Err(refused(404));
        }
        self.reports.lock().unwrap().push(status.clone());
        Ok(())
    }

    fn states(&self) -> Vec<ClaimState> {
        self.reports.lock().unwrap().iter().filter_map(|report| report.state).collect()
    }
}

/// The Node in the claimant's cluster.
#[derive(Default)]
pub(super) struct FakeClaimedNode {
    pub(super) node: Mutex<Option<RegisteredNode>>,
    pub(super) kills: KillPoints,
}

#[async_trait]
impl ClaimedNode for FakeClaimedNode {
    async fn find(
        &self,
        name: &bedplate_api::id::MachineName,
    ) -> Result<Option<RegisteredNode>, AskNodeError> {
        assert!(name.as_str().starts_with("w-"), "the Node has the name of its claim: {name}");
        Ok(self.node.lock().unwrap().clone())
    }
    async fn mark(
        &self,
        _: &bedplate_api::id::MachineName,
        uid: &str,
        provider_id: &str,
    ) -> Result<(), AskNodeError> {
        self.kills.reach("mark of the Node").await;
        let mut node = self.node.lock().unwrap();
        let node = node.as_mut().unwrap();
        assert_eq!(node.uid, uid);
        (node.provider_id, node.is_labeled) = (Some(provider_id.to_owned()), true);
        Ok(())
    }
}

/// End of the user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Succeeds,
    Hangs,
    Fails(i32),
}

/// A host of a pool with its claimant.
struct Pool {
    world: World,
    script: Script,
    /// Log of the user data.
    log: &'static str,
    /// Number of runs of user data.
    ran: u32,
    claims: u32,
}

impl Pool {
    fn new() -> Self {
        let world = World::new();
        *world.plane.claims.user_data.lock().unwrap() = Some(USER_DATA.to_owned());
        let uptime = world.directory.path().join("root/proc/uptime");
        std::fs::create_dir_all(uptime.parent().unwrap()).unwrap();
        std::fs::write(uptime, "60.00 0.00\n").unwrap();
        let pool = Self { world, script: Script::Succeeds, log: LOG, ran: 0, claims: 0 };
        pool.change_machine(|machine| machine["spec"]["claimPolicy"] = json!({ "namespaces": ["team-a"] }));
        pool.world.plane.seen.send_modify(|seen| seen.claim = ClaimObject::Absent);
        pool
    }

    fn change_machine(&self, change: impl FnOnce(&mut serde_json::Value)) {
        self.world.plane.seen.send_modify(|seen| {
            let mut machine = serde_json::to_value(seen.machine.as_deref().unwrap()).unwrap();
            change(&mut machine);
            seen.machine = Some(Arc::new(serde_json::from_value(machine).unwrap()));
        });
    }

    /// Creates a granted claim, and selects a version for it.
    fn claim(&mut self) {
        self.claims += 1;
        let number = self.claims;
        let claim = json!({ "metadata": { "name": "node-1", "uid": format!("claim-{number}") },
            "spec": { "claimant": { "namespace": "team-a", "name": format!("w-{number}"), "uid": format!("u-{number}") },
                "clusterName": "c", "role": "ControlPlane", "nodeName": format!("w-{number}"),
                "providerID": format!("bedplate://node-1/u-{number}"), "configurationRef": { "name": "workers" },
                "bootstrapSecretName": format!("w-{number}"), "release": "Empty" } });
        let claim: MachineClaim = serde_json::from_value(claim).unwrap();
        self.world.plane.seen.send_modify(|seen| {
            seen.claim = ClaimObject::Present(Arc::new(claim));
            seen.version = Some(Arc::new(version_object(1)));
        });
        self.grant("True");
        let selected = json!({ "name": "workers", "version": 1, "source": "Claim",
            "providerID": format!("bedplate://node-1/u-{number}") });
        self.change_machine(|machine| machine["status"]["selected"] = selected);
    }

    fn change_claim(&self, change: impl FnOnce(&mut serde_json::Value)) {
        self.world.plane.seen.send_modify(|seen| {
            let mut claim = serde_json::to_value(&**seen.claim.present().unwrap()).unwrap();
            change(&mut claim);
            seen.claim = ClaimObject::Present(Arc::new(serde_json::from_value(claim).unwrap()));
        });
    }

    fn grant(&self, status: &str) {
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap().to_string();
        let condition = json!([{ "type": "Granted", "status": status, "reason": "Granted", "message": "",
            "lastTransitionTime": now }]);
        self.change_claim(|claim| claim["status"]["conditions"] = condition);
    }

    fn delete_claim(&self) {
        self.change_claim(|claim| claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    }

    /// Removes the claim object, as the provider does after the release, or as a restored backup does.
    fn lose_claim(&self) {
        self.world.plane.seen.send_modify(|seen| seen.claim = ClaimObject::Absent);
    }

    fn state(&self) -> Option<ClaimState> {
        let seen = self.world.plane.seen.borrow();
        seen.claim.present()?.status.as_ref()?.state
    }

    fn record(&self) -> Option<ClaimRecord> {
        ClaimRecord::read(&self.world.parts.slots.places().state).unwrap()
    }

    fn mark(&self, mark: &str) -> std::path::PathBuf {
        self.world.parts.slots.places().upper(SlotName::A).join(mark.trim_start_matches('/'))
    }

    /// Acts as the slot does by itself, and as the agent's status writer does.
    async fn react(&mut self) {
        if let Some(reported) = self.world.plane.reported.lock().unwrap().last() {
            let claim = serde_json::to_value(&reported.claim).unwrap();
            if !claim.is_null() {
                self.change_machine(|machine| machine["status"]["claim"] = claim);
            }
        }
        if !self.world.runs(SlotName::A).await {
            return;
        }
        let data = self.world.parts.slots.places().shared(SlotName::A).join("user-data");
        let (started, finished) = (self.mark(user_data::STARTED), self.mark(user_data::FINISHED));
        if finished.exists() {
            return;
        }
        assert_eq!(self.state(), Some(ClaimState::Bootstrapping), "the report comes before the start");
        let inside = self
            .world
            .machines
            .add(&machine(SlotName::A).parse().unwrap(), Leader::new(number(SlotName::A)).unwrap());
        let unit: UnitName = user_data::NAME.parse().unwrap();
        if !started.exists() {
            assert!(data.join("steps.sh").exists());
            std::fs::create_dir_all(started.parent().unwrap()).unwrap();
            std::fs::write(&started, "").unwrap();
            self.ran += 1;
        }
        match self.script {
            Script::Hangs => {
                self.write_log();
                inside.set(&unit, unit_state(ActiveState::Activating, "start"));
            }
            Script::Fails(code) => {
                self.write_log();
                let mut state = unit_state(ActiveState::Failed, "failed");
                state.main_exit = Some(MainExit::Code(code));
                inside.set(&unit, state);
            }
            Script::Succeeds => {
                std::fs::write(&finished, "").unwrap();
                std::fs::remove_dir_all(&data).unwrap();
                let node = RegisteredNode { uid: "n".to_owned(), provider_id: None, is_labeled: false };
                *self.world.claimed_node.node.lock().unwrap() = Some(node);
            }
        }
    }

    fn write_log(&self) {
        let log = self.world.parts.slots.places().kept(SlotName::A, "log").join("bedplate");
        std::fs::create_dir_all(&log).unwrap();
        std::fs::write(log.join("user-data.log"), self.log).unwrap();
    }

    /// Turns until a state is reported and nothing is left to do. A killed agent is followed by another one.
    async fn settled(&mut self, state: ClaimState) {
        self.settled_if(|pool, agent| pool.state() == Some(state) && agent.standing.plan.wait.is_some())
            .await;
    }

    async fn settled_if(&mut self, is_over: impl Fn(&Self, &NodeLoop) -> bool) {
        let mut agent = self.world.agent();
        for _ in 0..200 {
            self.react().await;
            let turn = self.world.kills.run(agent.advance()).await;
            // As the background task does, which no kill of this test reaches.
            trash::remove(&self.world.parts.slots, &Beat::unwatched()).await;
            let Some(pause) = turn else {
                agent = self.world.agent();
                continue;
            };
            if pause == Pause::None {
                continue;
            }
            if is_over(self, &agent) {
                return;
            }
            // Time passes.
            agent.attempts = Attempts::default();
            agent.claim.delayed = None;
        }
        panic!("it does not come to rest: {:?} {:?}", agent.standing, self.record());
    }

    /// The host boots: nothing runs, and its memory is empty.
    fn boot(&mut self) {
        let unit: UnitName = service(SlotName::A).parse().unwrap();
        self.world.units.set(&unit, unit_state(ActiveState::Inactive, "dead"));
        let run = self.world.run_directory().to_owned();
        std::fs::remove_dir_all(&run).unwrap();
        std::fs::create_dir_all(&run).unwrap();
        self.world.parts.boot_id += "-next";
    }

    fn uptime(&self, seconds: u32) {
        let path = self.world.directory.path().join("root/proc/uptime");
        std::fs::write(path, format!("{seconds}.00 0.00\n")).unwrap();
    }

    fn paved(&self) -> (Truth, PavedReason, String) {
        let paved = self.world.reported().paved.unwrap();
        (paved.status, paved.reason, paved.message)
    }

    fn is_empty(&self) -> bool {
        let slots = &self.world.parts.slots;
        let is_clear = |slot| slots.record(slot).unwrap().is_none() && !slots.has_trash(slot).unwrap();
        SlotName::ALL.into_iter().all(is_clear)
    }
}

#[test]
fn d1_claimed_host_joins_is_released_and_is_claimed_again() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.settled_if(|_, agent| agent.standing.plan.wait.is_some()).await;
        assert_eq!(pool.paved().1, PavedReason::AwaitingClaim);
        for run in 1..=2 {
            pool.claim();
            pool.settled(ClaimState::Joined).await;
            assert_eq!((pool.ran, pool.world.runs(SlotName::A).await), (run, true));
            let (status, reason, _) = pool.paved();
            assert_eq!((status, reason), (Truth::True, PavedReason::Applied));
            let slots = &pool.world.parts.slots;
            let read =
                |path: &str| std::fs::read_to_string(slots.places().root(SlotName::A).join(path)).unwrap();
            assert_eq!(read("etc/hostname"), format!("w-{run}\n"));
            let wants = "etc/systemd/system/multi-user.target.wants";
            let root = slots.places().root(SlotName::A);
            assert!(root.join(wants).join("bedplate-user-data.service").is_symlink());
            assert!(!root.join(wants).join("bedplate-kubeadm.service").is_symlink());
            let nspawn = pool.world.run_directory().join("systemd/nspawn/bedplate-a.nspawn");
            assert!(std::fs::read_to_string(nspawn).unwrap().contains(&format!("Hostname=w-{run}\n")));
            assert!(!pool.world.run_directory().join("bedplate/claim/user-data.json").exists());
            let node = pool.world.claimed_node.node.lock().unwrap().take().unwrap();
            assert_eq!(node.provider_id, Some(format!("bedplate://node-1/u-{run}")));
            let reported = pool.world.reported();
            assert_eq!(reported.claim.unwrap().state, ClaimState::Joined);
            assert_eq!(reported.applied, None);
            let report = pool.world.plane.claims.reports.lock().unwrap().last().cloned().unwrap();
            assert_eq!(
                report.node.map(|node| (node.name, node.uid)),
                Some((format!("w-{run}"), "n".to_owned()))
            );
            pool.delete_claim();
            pool.settled(ClaimState::Released).await;
            assert!(pool.is_empty() && !pool.world.runs(SlotName::A).await);
            assert_eq!(pool.world.reported().claim.unwrap().state, ClaimState::Released);
            pool.lose_claim();
        }
        use ClaimState::{Bootstrapping, Joined, Preparing, Released, Releasing};
        let one = [Preparing, Bootstrapping, Joined, Releasing, Released];
        assert_eq!(pool.world.plane.claims.states(), [one, one].concat());
    });
}

#[test]
fn claim_killed_before_any_effect_joins_once_and_is_released() {
    in_runtime(kill_before_each_effect(EFFECTS_OF_A_CLAIM, async |kill_at| {
        let mut pool = Pool::new();
        pool.world.kills.arm(kill_at);
        pool.claim();
        pool.settled(ClaimState::Joined).await;
        assert_eq!(pool.ran, 1, "killed at {kill_at:?}");
        assert!(pool.world.runs(SlotName::A).await, "killed at {kill_at:?}");
        assert_eq!(pool.state(), Some(ClaimState::Joined), "killed at {kill_at:?}");
        pool.delete_claim();
        pool.settled(ClaimState::Released).await;
        assert!(pool.is_empty() && !pool.world.runs(SlotName::A).await, "killed at {kill_at:?}");
        assert_eq!(pool.ran, 1, "killed at {kill_at:?}");
        let reported = pool.world.reported().claim.map(|claim| claim.state);
        assert_eq!(reported, Some(ClaimState::Released), "killed at {kill_at:?}");
        pool.world.kills
    }));
}

/// Token of the wipe that the state disk asks for.
fn requested_wipe(pool: &Pool) -> Option<String> {
    let path = pool.world.directory.path().join("root/run/bedplate/state/.bedplate-wipe.json");
    let request: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).unwrap();
    Some(request["token"].as_str().unwrap().to_owned())
}

/// Writes what stage-1 leaves: a state disk that this token has made.
fn write_boot_facts(pool: &Pool, wipe_token: Option<&str>) {
    let run = pool.world.directory.path().join("root/run/bedplate");
    let _ = std::fs::remove_dir_all(run.join("state"));
    std::fs::create_dir_all(run.join("state")).unwrap();
    let facts = json!({ "machine": "node-1", "site": "default", "bootId": "ab".repeat(16), "bootUrl": "http://10.7.0.1/",
        "interface": "eth0", "mac": "52:54:00:00:00:01", "address": "10.7.0.9", "dhcpServer": "10.7.0.1",
        "rootfs": format!("sha256:{}", "01".repeat(32)), "failures": 0, "clockWasSet": false,
        "state": { "kind": "disk", "device": "/dev/vda", "made": wipe_token.is_some(), "wipeToken": wipe_token } });
    std::fs::write(run.join("boot.json"), facts.to_string()).unwrap();
}

/// A host with a state disk, whose claim asks for a wipe.
fn wiped_pool() -> Pool {
    let mut pool = Pool::new();
    pool.has_state_disk();
    pool.claim();
    pool.change_claim(|claim| claim["spec"]["release"] = json!("Wipe"));
    pool
}

impl Pool {
    /// pxed boots the host, with a state disk that its Machine selects.
    fn has_state_disk(&self) {
        write_boot_facts(self, None);
        let interfaces = json!([{ "macAddress": "52:54:00:00:00:01" }]);
        self.change_machine(|machine| {
            machine["spec"]["pxe"] = json!({ "interfaces": interfaces, "stateDisk": { "serial": "s" } });
        });
    }

    /// The boot that wipes the host: nothing is left on its state disk.
    fn boot_and_wipe(&mut self) {
        let token = requested_wipe(self).unwrap();
        std::fs::remove_dir_all(&self.world.parts.slots.places().state).unwrap();
        write_boot_facts(self, Some(&token));
        self.boot();
    }

    async fn until_reboot(&mut self) {
        self.settled_if(|pool, _| !pool.world.power.calls().is_empty()).await;
    }
}

#[test]
fn d7_emptied_host_reboots_is_wiped_and_is_released() {
    in_runtime(async {
        let mut pool = wiped_pool();
        pool.settled(ClaimState::Joined).await;
        assert_eq!(requested_wipe(&pool), None);
        pool.delete_claim();
        pool.until_reboot().await;
        assert_eq!(
            (pool.state(), requested_wipe(&pool).as_deref()),
            (Some(ClaimState::Wiping), Some("claim-1"))
        );
        assert!(pool.is_empty() && !pool.world.runs(SlotName::A).await);
        let (status, reason, _) = pool.paved();
        assert_eq!((status, reason), (Truth::False, PavedReason::Wiping));
        let reported = pool.world.reported().claim.unwrap();
        assert_eq!((reported.state, reported.wipe_token.as_deref()), (ClaimState::Wiping, Some("claim-1")));
        pool.boot_and_wipe();
        pool.settled(ClaimState::Released).await;
        use ClaimState::{Bootstrapping, Joined, Preparing, Released, Releasing, Wiping};
        let expected = [Preparing, Bootstrapping, Joined, Releasing, Wiping, Released];
        assert_eq!(pool.world.plane.claims.states(), expected);
        assert_eq!(pool.world.power.calls(), ["reboot"]);
        assert_eq!(pool.world.reported().claim.unwrap().wipe_token, None);
    });
}

#[test]
fn d7_host_is_released_whose_claim_is_lost_in_the_wipe() {
    in_runtime(async {
        for token in [Some("claim-1"), None] {
            let mut pool = wiped_pool();
            pool.settled(ClaimState::Joined).await;
            pool.delete_claim();
            pool.until_reboot().await;
            pool.lose_claim();
            pool.boot_and_wipe();
            write_boot_facts(&pool, token);
            let reported =
                |pool: &Pool| pool.world.reported().claim.map(|claim| (claim.state, claim.wipe_token));
            let released = Some((ClaimState::Released, None::<String>));
            pool.settled_if(|pool, agent| agent.standing.plan.wait.is_some() && reported(pool) == released)
                .await;
            let record = pool.record().unwrap();
            assert_eq!(
                (record.provider_id.as_str(), record.claimant.name.as_str(), record.claim_uid.as_str()),
                ("bedplate://node-1/u-1", "w-1", "claim-1")
            );
            pool.claim();
            pool.settled(ClaimState::Joined).await;
        }
    });
}

#[test]
fn d1_failure_outlives_the_wipe() {
    in_runtime(async {
        for is_lost in [false, true] {
            let mut pool = wiped_pool();
            pool.script = Script::Fails(7);
            pool.settled(ClaimState::Failed).await;
            let failed = |pool: &Pool| {
                let time = pool.world.reported().claim.and_then(|claim| claim.failed_time);
                time.map(|time| time.0.as_second())
            };
            let before = failed(&pool);
            pool.delete_claim();
            pool.until_reboot().await;
            if is_lost {
                pool.lose_claim();
            }
            pool.boot_and_wipe();
            let reported = |pool: &Pool| pool.world.reported().claim.map(|claim| claim.state);
            let is_over = |pool: &Pool, agent: &NodeLoop| {
                agent.standing.plan.wait.is_some() && reported(pool) == Some(ClaimState::Released)
            };
            pool.settled_if(is_over).await;
            assert!(before.is_some() && failed(&pool) == before, "{is_lost}");
        }
    });
}

#[test]
fn d7_inhibited_reboot_names_the_inhibitor() {
    in_runtime(async {
        let mut pool = wiped_pool();
        pool.settled(ClaimState::Joined).await;
        let blocker = Inhibitor { who: "backup".to_owned(), why: "writes a tape".to_owned() };
        pool.world.power.inhibit(blocker);
        pool.delete_claim();
        pool.settled_if(|pool, _| pool.state() == Some(ClaimState::Wiping)).await;
        let (status, reason, message) = pool.paved();
        assert_eq!((status, reason), (Truth::False, PavedReason::ShutdownInhibited));
        assert!(message.contains("backup"), "{message}");
        assert_eq!(pool.world.power.calls(), Vec::<String>::new());
    });
}

#[test]
fn d7_request_of_an_earlier_wipe_is_withdrawn_by_the_next_claim() {
    in_runtime(async {
        let mut pool = wiped_pool();
        crate::node::host_state::request_wipe(&pool.world.parts.root, "claim-0").unwrap();
        pool.settled(ClaimState::Joined).await;
        assert_eq!(requested_wipe(&pool), None);
        pool.delete_claim();
        pool.until_reboot().await;
        assert_eq!(requested_wipe(&pool).as_deref(), Some("claim-1"));
    });
}

#[test]
fn d7_host_without_a_state_disk_reboots_and_writes_no_request() {
    in_runtime(async {
        let mut pool = wiped_pool();
        let facts = pool.world.directory.path().join("root/run/bedplate/boot.json");
        let text = std::fs::read_to_string(&facts).unwrap();
        let mut boot: serde_json::Value = serde_json::from_str(&text).unwrap();
        boot["state"] = json!({ "kind": "memory" });
        std::fs::write(&facts, boot.to_string()).unwrap();
        pool.change_machine(|machine| machine["spec"]["pxe"]["stateDisk"] = json!(null));
        pool.settled(ClaimState::Joined).await;
        pool.delete_claim();
        pool.until_reboot().await;
        assert_eq!(requested_wipe(&pool), None);
        std::fs::remove_dir_all(&pool.world.parts.slots.places().state).unwrap();
        pool.boot();
        pool.settled(ClaimState::Released).await;
    });
}

#[test]
fn d7_machine_that_asks_for_a_wipe_strengthens_a_claim() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.has_state_disk();
        pool.claim();
        pool.settled(ClaimState::Joined).await;
        let policy = json!({ "namespaces": ["team-a"], "release": "Wipe" });
        pool.change_machine(|machine| machine["spec"]["claimPolicy"] = policy);
        pool.delete_claim();
        pool.until_reboot().await;
        pool.boot_and_wipe();
        pool.settled(ClaimState::Released).await;
    });
}

#[test]
fn d7_wipe_killed_before_any_effect_is_done_once() {
    in_runtime(kill_before_each_effect(EFFECTS_OF_A_WIPE, async |kill_at| {
        let mut pool = wiped_pool();
        pool.settled(ClaimState::Joined).await;
        pool.world.kills.arm(kill_at);
        pool.delete_claim();
        pool.until_reboot().await;
        pool.boot_and_wipe();
        pool.settled(ClaimState::Released).await;
        assert_eq!(pool.ran, 1, "killed at {kill_at:?}");
        assert_eq!(requested_wipe(&pool), None, "killed at {kill_at:?}");
        // An agent that was killed after its request asks again before the host goes down.
        assert!(pool.world.power.calls().len() <= 2, "killed at {kill_at:?}");
        pool.world.kills
    }));
}

#[test]
fn d4_secret_is_waited_for_until_its_role_exists() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.world.plane.claims.refusals.store(1_000, Ordering::Relaxed);
        pool.claim();
        pool.settled_if(|pool, _| pool.world.plane.claims.reads.load(Ordering::Relaxed) >= 3).await;
        let (status, reason, message) = pool.paved();
        assert_eq!((status, reason), (Truth::False, PavedReason::Preparing));
        assert!(message.contains("Secret team-a/w-1") && !message.contains("create role"), "{message}");
        assert_eq!(pool.state(), Some(ClaimState::Preparing));
        pool.world.plane.claims.refusals.store(0, Ordering::Relaxed);
        pool.settled(ClaimState::Joined).await;
        assert_eq!(pool.ran, 1);
    });
}

#[test]
fn d1_nothing_is_read_or_started_before_the_grant() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.claim();
        pool.grant("False");
        pool.settled(ClaimState::Preparing).await;
        assert_eq!(pool.world.plane.claims.reads.load(Ordering::Relaxed), 0);
        assert!(pool.world.parts.slots.record(SlotName::A).unwrap().is_none());
        pool.grant("True");
        pool.settled(ClaimState::Joined).await;
    });
}

#[test]
fn d2_version_of_an_earlier_claim_is_not_prepared_and_not_started() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.claim();
        for earlier in [json!("bedplate://node-1/u-0"), json!(null)] {
            pool.change_machine(|machine| machine["status"]["selected"]["providerID"] = earlier);
            pool.settled(ClaimState::Preparing).await;
            assert_eq!(pool.paved().1, PavedReason::VersionUnavailable);
            assert!(pool.world.parts.slots.record(SlotName::A).unwrap().is_none());
            assert_eq!(pool.world.plane.claims.reads.load(Ordering::Relaxed), 0);
        }
        let own = json!("bedplate://node-1/u-1");
        pool.change_machine(|machine| machine["status"]["selected"]["providerID"] = own);
        pool.settled(ClaimState::Joined).await;
    });
}

#[test]
fn d1_host_refuses_a_claim_that_machine_or_configuration_does_not_allow() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.claim();
        pool.world.plane.claims.is_forbidden.store(true, Ordering::Relaxed);
        pool.settled_if(|pool, agent| {
            pool.paved().1 == PavedReason::ClaimRefused && agent.standing.plan.wait.is_some()
        })
        .await;
        let report = pool.world.plane.claims.reports.lock().unwrap().last().cloned().unwrap();
        assert_eq!(report.reason.as_deref(), Some("ClaimRefused"));
        assert_eq!(pool.world.plane.claims.reads.load(Ordering::Relaxed), 0);
        let mut pool = Pool::new();
        pool.change_machine(|machine| machine["spec"]["claimPolicy"] = json!({ "namespaces": ["team-b"] }));
        pool.claim();
        pool.settled_if(|pool, agent| {
            pool.paved().1 == PavedReason::ClaimRefused && agent.standing.plan.wait.is_some()
        })
        .await;
        let report = pool.world.plane.claims.reports.lock().unwrap().last().cloned().unwrap();
        assert_eq!((report.state, report.reason.as_deref()), (None, Some("ClaimRefused")));
        assert_eq!(pool.record(), None);
    });
}

#[test]
fn d3_boot_in_the_middle_of_the_user_data_is_interrupted() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.script = Script::Hangs;
        pool.claim();
        pool.settled_if(|pool, _| pool.ran == 1).await;
        pool.boot();
        pool.script = Script::Succeeds;
        pool.settled(ClaimState::Failed).await;
        assert_eq!(pool.paved().1, PavedReason::Interrupted);
        assert_eq!((pool.ran, pool.world.runs(SlotName::A).await), (1, false));
        assert!(pool.world.parts.slots.record(SlotName::A).unwrap().is_some(), "it is kept");
        pool.delete_claim();
        pool.settled(ClaimState::Released).await;
        assert!(pool.is_empty());
    });
}

#[test]
fn d3_failed_user_data_is_reported_with_the_end_of_its_log() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.script = Script::Fails(7);
        pool.claim();
        pool.settled(ClaimState::Failed).await;
        let (status, reason, message) = pool.paved();
        assert_eq!((status, reason), (Truth::False, PavedReason::BootstrapFailed));
        for part in ["exited with code 7", "[kubelet-check] not ready"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(!message.contains("token-of-the-claimant"), "{message}");
        let report = pool.world.plane.claims.reports.lock().unwrap().last().cloned().unwrap();
        assert_eq!(report.message.as_deref(), Some(message.as_str()));
        assert_eq!((pool.ran, pool.world.runs(SlotName::A).await), (1, false));
        assert!(!pool.world.run_directory().join("bedplate/claim/user-data.json").exists());
    });
}

/// User data as the kubeadm provider writes it. Each secret has `hush` in it, or one of the forms in [`SECRETS`].
const KUBEADM_DATA: &str = "## template: jinja\n#cloud-config\nbootcmd:\n- registry-login --user ci --phrase hush-of-bootcmd\n\
    write_files:\n- path: /etc/kubernetes/pki/ca.key\n  owner: root:root\n  permissions: '0600'\n  content: |\n    \
    -----BEGIN EC PRIVATE KEY-----\n    MHcCAQhush\n    -----END EC PRIVATE KEY-----\n\
    - path: /run/kubeadm/kubeadm-join-config.yaml\n  owner: root:root\n  permissions: '0640'\n  content: |\n    \
    apiVersion: kubeadm.k8s.io/v1beta4\n    kind: JoinConfiguration\n    discovery:\n      bootstrapToken:\n        \
    token: abcdef.0123456789abcdef\n    controlPlane:\n      \
    certificateKey: e6a2eb8581237ab72a4f494f30285ec12a9694d750b9785706a83bfcbbbd2204\n\
    runcmd:\n- set -x\n- 'kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml && echo success > /run/cluster-api/x'\n";
/// Output of its commands: each line has a secret, as a shell with `set -x`, kubeadm or `cat` print it.
const KUBEADM_LOG: &str = "bedplate: bootcmd\n+ registry-login --user ci --phrase hush-of-bootcmd\n\
    bedplate: runcmd\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQhush\n-----END EC PRIVATE KEY-----\n\
    key is MHcCAQhush here\nkey e6a2eb8581237ab72a4f494f30285ec12a9694d750b9785706a83bfcbbbd2204 is wrong\n\
    error: token abcdef.0123456789abcdef is invalid\n";
const SECRETS: [&str; 3] = ["hush", "0123456789abcdef", "e6a2eb8581237ab7"];

/// Texts about a claim that users can read.
fn all_reported(pool: &Pool) -> String {
    let reports = pool.world.plane.claims.reports.lock().unwrap();
    let reported = pool.world.plane.reported.lock().unwrap();
    format!("{reports:?} {reported:?} {:?}", pool.record())
}

#[test]
fn d3_no_secret_of_user_data_is_reported_when_it_fails_or_is_interrupted() {
    in_runtime(async {
        for is_interrupted in [false, true] {
            let mut pool = Pool::new();
            *pool.world.plane.claims.user_data.lock().unwrap() = Some(KUBEADM_DATA.to_owned());
            pool.log = KUBEADM_LOG;
            pool.script = if is_interrupted { Script::Hangs } else { Script::Fails(7) };
            pool.claim();
            if is_interrupted {
                pool.settled_if(|pool, _| pool.ran == 1).await;
                // The memory of the host is lost, and with it the texts that must be hidden.
                pool.boot();
            }
            pool.settled(ClaimState::Failed).await;
            let all = all_reported(&pool);
            for secret in SECRETS {
                assert!(!all.contains(secret), "{secret}: {all}");
            }
            let (_, reason, message) = pool.paved();
            assert!(message.contains("bedplate: runcmd"), "the log is not lost altogether: {message}");
            let expected =
                if is_interrupted { PavedReason::Interrupted } else { PavedReason::BootstrapFailed };
            assert_eq!((reason, message.contains("is invalid")), (expected, !is_interrupted), "{message}");
        }
    });
}

#[test]
fn d3_refused_user_data_is_reported_by_its_keys_and_nothing_starts() {
    in_runtime(async {
        let mut pool = Pool::new();
        *pool.world.plane.claims.user_data.lock().unwrap() = Some("#cloud-config\nntp: {}\n".to_owned());
        pool.claim();
        pool.settled(ClaimState::Failed).await;
        let report = pool.world.plane.claims.reports.lock().unwrap().last().cloned().unwrap();
        assert_eq!(
            (report.reason.as_deref(), report.refused),
            (Some("UserDataRefused"), vec!["ntp".to_owned()])
        );
        assert!(pool.world.parts.slots.record(SlotName::A).unwrap().is_none());
        assert_eq!(pool.ran, 0);
    });
}

#[test]
fn d7_missing_claim_empties_no_host_and_a_user_can_release_it() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.claim();
        pool.settled(ClaimState::Joined).await;
        pool.lose_claim();
        pool.settled_if(|pool, _| pool.paved().1 == PavedReason::ClaimMissing).await;
        assert!(pool.world.runs(SlotName::A).await);
        let annotate = |id: &str| {
            let annotations = json!({ "bedplate.dev/release": id });
            pool.change_machine(|machine| machine["metadata"]["annotations"] = annotations);
        };
        annotate("bedplate://node-1/u-other");
        pool.settled_if(|pool, _| pool.paved().1 == PavedReason::ClaimMissing).await;
        let annotations = json!({ "bedplate.dev/release": "bedplate://node-1/u-1" });
        pool.change_machine(|machine| machine["metadata"]["annotations"] = annotations);
        pool.settled_if(|pool, _| pool.paved().1 == PavedReason::AwaitingClaim).await;
        assert!(pool.is_empty() && !pool.world.runs(SlotName::A).await);
        assert_eq!(pool.world.reported().claim.unwrap().state, ClaimState::Released);
    });
}

#[test]
fn d7_granted_claim_of_another_claimant_does_not_end_one_that_runs() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.claim();
        pool.settled(ClaimState::Joined).await;
        pool.lose_claim();
        // A management cluster that was restored from a backup grants a claim that has ended, too.
        pool.claim();
        pool.grant("True");
        pool.settled_if(|pool, _| pool.paved().1 == PavedReason::ClaimRefused).await;
        assert!(pool.world.runs(SlotName::A).await);
        assert_eq!(pool.ran, 1);
        let record = pool.record().unwrap();
        assert_eq!(record.provider_id.as_str(), "bedplate://node-1/u-1");
    });
}

#[test]
fn d16_joined_host_starts_two_minutes_after_a_boot_without_the_api() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.claim();
        pool.settled(ClaimState::Joined).await;
        pool.boot();
        pool.world.plane.seen.send_modify(|seen| {
            (seen.api, seen.machine, seen.claim) = (Api::Away, None, ClaimObject::Unknown);
        });
        pool.uptime(119);
        let mut agent = pool.world.agent();
        assert!(matches!(agent.advance().await, Pause::AtMost(_)));
        assert!(!pool.world.runs(SlotName::A).await);
        pool.uptime(120);
        agent.advance().await;
        assert!(pool.world.runs(SlotName::A).await);
        assert_eq!(pool.ran, 1);
        let since = pool.record().unwrap().since;
        assert!(Timestamp::now().duration_since(since) < SignedDuration::from_secs(600));
    });
}

#[test]
fn bootstrap_starts_only_after_its_report_was_taken() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.world.plane.claims.lost_reports.store(5, Ordering::Relaxed);
        pool.claim();
        // The slot itself checks that the report came first.
        pool.settled(ClaimState::Joined).await;
        assert_eq!(pool.ran, 1);
    });
}

#[test]
fn paused_machine_starts_a_joined_slot_and_nothing_else() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.change_machine(|machine| machine["spec"]["paused"] = json!(true));
        pool.claim();
        pool.settled_if(|pool, _| pool.paved().1 == PavedReason::Paused).await;
        assert_eq!(pool.record(), None);
        pool.change_machine(|machine| machine["spec"]["paused"] = json!(false));
        pool.settled(ClaimState::Joined).await;
        pool.change_machine(|machine| machine["spec"]["paused"] = json!(true));
        pool.boot();
        pool.settled_if(|pool, _| pool.paved().0 == Truth::True).await;
        assert!(pool.world.runs(SlotName::A).await);
    });
}

#[test]
fn ordinary_slot_is_left_to_the_ordinary_turn_and_claims_are_refused() {
    in_runtime(async {
        let mut pool = Pool::new();
        pool.change_machine(|machine| machine["spec"]["claimPolicy"] = json!(null));
        pool.world.select(1);
        assert_eq!(pool.world.settled().await, "Applied");
        pool.change_machine(|machine| machine["spec"]["claimPolicy"] = json!({ "namespaces": ["team-a"] }));
        pool.claim();
        let mut agent = pool.world.agent();
        for _ in 0..5 {
            agent.advance().await;
        }
        assert!(pool.world.runs(SlotName::A).await);
        let report = pool.world.plane.claims.reports.lock().unwrap().last().cloned().unwrap();
        assert_eq!((report.state, report.reason.as_deref()), (None, Some("ClaimRefused")));
        assert_eq!(pool.record(), None);
    });
}

#[test]
fn host_without_a_cluster_ignores_its_claim_policy() {
    in_runtime(async {
        let pool = Pool::new();
        pool.world.plane.standalone.store(true, Ordering::Relaxed);
        pool.world.agent().advance().await;
        assert_eq!(pool.paved().1, PavedReason::NoVersionSelected);
    });
}
