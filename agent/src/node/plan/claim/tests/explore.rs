//! All states that a small world comes to, with a kill of the agent, a fault or a change of the cluster between any two effects.
//!
//! ```text
//!   World ── plan ── effect, whole or half ──► World     invariants are checked at each effect
//!         └─ grant, delete, restore, reboot, crash, exit, ...
//! ```
//! The agent keeps nothing between two plans but what [`World`] has, so that a kill between two effects is one more way to the same state.

use std::collections::HashSet;

use super::*;

/// A claim: of one claimant after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Id {
    X,
    Y,
}

use Id::{X, Y};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Preparing,
    Bootstrapping,
    Joined,
    Failed(FailureCause),
    Releasing,
    Wiping,
    Released,
}

type Reported = (Id, Option<ReportedState>, Option<ReportedCause>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Claim {
    id: Id,
    granted: bool,
    deleting: bool,
    reported: Option<Reported>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Node {
    #[default]
    Absent,
    Bare,
    Named(Id),
}

/// Constants of one exploration.
#[derive(Debug, Clone, Copy)]
struct Rack {
    has_user_data: bool,
    /// True if the state of the host ends with a boot.
    in_memory: bool,
    /// The second claimant.
    second: Second,
    /// Cleanup that the claims ask for.
    release: ReleasePolicy,
    /// Cleanup that the Machine asks for.
    policy: ReleasePolicy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// It makes no claim.
    None,
    /// The Machine does not allow it.
    Refused,
    Allowed,
}

impl Rack {
    fn allows_second(self) -> bool {
        self.second == Second::Allowed
    }

    fn cleanup(self) -> ReleasePolicy {
        self.release.max(self.policy)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct World {
    record: Option<(Id, Stage)>,
    /// The record says `Bootstrapping` or `Wiping` in an earlier boot.
    is_old_boot: bool,
    /// Claim whose token has made the disk.
    token: Option<Id>,
    /// Claim of the wipe that the disk asks for.
    requested: Option<Id>,
    /// Number of wipes by claim.
    wipes: [u8; 2],
    /// True once power has failed while the disk was made, or a boot has ignored the request.
    has_failed_wipe: bool,
    /// Claim whose slot has run since the state of the host was made.
    data: Option<Id>,
    filled: Option<Id>,
    has_content: bool,
    has_image: bool,
    script: Script,
    rendered: Option<Id>,
    runs: bool,
    node: Node,
    /// Two minutes have passed since the boot.
    is_up_long: bool,
    is_late: bool,
    is_live: bool,
    /// A report has failed.
    is_delayed: bool,
    claim: Option<Claim>,
    /// Claim whose wipe the Machine reports.
    last: Option<Id>,
    has_second: bool,
    is_restored: bool,
    annotation: Option<Id>,
    /// Number of times that user data has run, by claim.
    ran: [u8; 2],
    /// True for a claim that was granted before.
    granted: [bool; 2],
    /// True for a claim of whose end there was evidence.
    ended: [bool; 2],
}

fn name(which: Id) -> ProviderId {
    id(match which {
        X => "x",
        Y => "y",
    })
}

/// UID of the claim object.
fn uid(which: Id) -> String {
    format!("claim-{which:?}")
}

fn which(name: &ProviderId) -> Id {
    if *name == id("x") { X } else { Y }
}

fn claimant_of(which: Id) -> Claimant {
    match which {
        X => claimant(),
        Y => Claimant { namespace: "team-b".to_owned(), name: "w-2".to_owned() },
    }
}

impl World {
    fn seen(&self, rack: Rack) -> ClaimObserved {
        let stage = |stage: Stage| match stage {
            Stage::Preparing => ClaimStage::Preparing,
            Stage::Bootstrapping => {
                let boot_id = if self.is_old_boot { "other" } else { "boot" }.to_owned();
                ClaimStage::Bootstrapping { boot_id, timeout_seconds: 600 }
            }
            Stage::Joined => ClaimStage::Joined { node_uid: None },
            Stage::Failed(cause) => ClaimStage::Failed { cause, message: String::new() },
            Stage::Releasing => ClaimStage::Releasing,
            Stage::Wiping => {
                let boot_id = if self.is_old_boot { "other" } else { "boot" }.to_owned();
                ClaimStage::Wiping { token: self.record.map(|(id, _)| uid(id)).unwrap_or_default(), boot_id }
            }
            Stage::Released => ClaimStage::Released,
        };
        let has_user_data = rack.has_user_data;
        let record = self.record.map(|(id, of)| ClaimRecord {
            provider_id: name(id),
            claimant: claimant_of(id),
            has_user_data,
            claim_uid: uid(id),
            release: rack.cleanup(),
            since: at(0),
            failed: None,
            refused: Vec::new(),
            stage: stage(of),
        });
        let claim = self.claim.map(|claim| ClaimFacts {
            uid: uid(claim.id),
            release: rack.release,
            provider_id: name(claim.id),
            claimant: claimant_of(claim.id),
            has_user_data,
            granted: claim.granted,
            was_granted: claim.granted,
            deleting: claim.deleting,
            reported: claim.reported.map(|(id, state, cause)| ClaimReport {
                provider_id: name(id),
                state,
                cause,
            }),
        });
        let mut namespaces = vec!["team-a".to_owned()];
        namespaces.extend(rack.allows_second().then(|| "team-b".to_owned()));
        let release = self.annotation.map(name);
        let held = self.record.filter(|(_, stage)| *stage != Stage::Released).map(|(id, _)| id);
        let present = |provider_id: Option<ProviderId>| {
            let is_labeled = provider_id.is_some();
            JoinedNode::Present { uid: "n".to_owned(), provider_id, is_labeled }
        };
        ClaimObserved {
            now: at(if self.is_late { 100_000 } else { 10 }),
            uptime: SignedDuration::from_secs(if self.is_late {
                200_000
            } else if self.is_up_long {
                120
            } else {
                10
            }),
            boot_id: "boot".to_owned(),
            api: if self.is_live { Api::Live } else { Api::Away },
            machine: PoolMachine::Own {
                namespaces,
                paused: false,
                deleting: false,
                release,
                policy: rack.policy,
                may_wipe: true,
                selects_disk: !rack.in_memory,
                last: self.last.map(|id| ClaimReport {
                    provider_id: name(id),
                    state: Some(ReportedState::Wiping),
                    cause: None,
                }),
            },
            claim: claim.map_or(ClaimSeen::Absent, ClaimSeen::Present),
            configuration: Admission::Allowed,
            timeout: Some(SignedDuration::from_secs(600)),
            record,
            state: if rack.in_memory {
                HostState::Memory
            } else {
                HostState::Disk { wipe_token: self.token.map(uid) }
            },
            slot: ClaimSlot {
                is_foreign: false,
                is_empty: !self.has_content,
                has_image: self.has_image,
                filled: self.filled.map(name),
                runs: self.runs,
                script: self.script,
                has_sentinel: true,
                is_kubelet_healthy: self.runs,
                has_links: false,
            },
            user_data: if held.is_some() && self.rendered == held {
                UserData::Rendered
            } else {
                UserData::Absent
            },
            node: match self.node {
                Node::Absent => JoinedNode::Absent,
                Node::Bare => present(None),
                Node::Named(id) => present(Some(name(id))),
            },
            not_counted: SignedDuration::ZERO,
            is_report_delayed: self.is_delayed,
        }
    }

    /// The status writer withdraws the report of a wipe. It makes the report later than the record, which waits for it.
    fn reporting(mut self) -> Self {
        if self.is_live && self.stage().is_some_and(|stage| stage != Stage::Wiping) {
            self.last = None;
        }
        self
    }

    /// Claim whose wipe the status writer has to report.
    fn unreported(&self) -> Option<Id> {
        let wiping = self.record.filter(|(_, stage)| *stage == Stage::Wiping).map(|(id, _)| id);
        wiping.filter(|id| self.is_live && self.last != Some(*id))
    }

    fn stage(&self) -> Option<Stage> {
        self.record.map(|(_, stage)| stage)
    }

    /// Carries a step out, and checks what must hold at that time. `half`: the agent is killed in the middle of it.
    fn apply(mut self, rack: Rack, step: &ClaimStep, half: bool) -> Self {
        let before = self;
        let held = self.record.map(|(id, _)| id);
        let write = |world: &mut Self, stage| world.record = held.map(|id| (id, stage));
        match step {
            ClaimStep::Accept => {
                let is_allowed = self.claim.is_some_and(|claim| claim.id == X || rack.allows_second());
                assert!(self.is_live && !self.has_content && is_allowed, "{before:?}");
                self.record = self.claim.map(|claim| (claim.id, Stage::Preparing));
                assert!(self.token.is_none() || self.token != self.claim.map(|claim| claim.id), "{before:?}");
            }
            ClaimStep::Report(report) => self.check_report(rack, report),
            ClaimStep::FetchImage => self.has_image = true,
            ClaimStep::RenderUserData => {
                let claim = self.claim.unwrap();
                // The right to read ends with the report of the bootstrap.
                let known = claim.reported.filter(|(id, ..)| *id == claim.id).and_then(|(_, state, _)| state);
                let may_read = matches!(known, None | Some(ReportedState::Preparing));
                assert!(self.is_live && claim.granted && may_read, "{before:?}");
                self.rendered = held;
            }
            ClaimStep::FillSlot => {
                assert!(!self.runs && self.stage() == Some(Stage::Preparing), "{before:?}");
                assert_eq!(
                    self.ran[held.unwrap() as usize],
                    0,
                    "the mark of the user data is lost: {before:?}"
                );
                (self.has_content, self.script) = (true, Script::NotStarted);
                self.filled = held.filter(|_| !half);
            }
            ClaimStep::BeginBootstrap { .. } => {
                (self.is_old_boot, self.is_late) = (false, false);
                write(&mut self, Stage::Bootstrapping);
            }
            ClaimStep::StartSlot => {
                let id = held.unwrap();
                let known = Some((id, Some(ReportedState::Bootstrapping), None));
                let is_first =
                    self.stage() == Some(Stage::Bootstrapping) && self.script == Script::NotStarted;
                assert!(self.granted[id as usize], "started before its grant: {before:?}");
                assert!(!is_first || self.claim.is_some_and(|claim| claim.reported == known), "{before:?}");
                assert!(self.script != Script::Started, "user data is in the middle: {before:?}");
                assert_eq!(self.filled, held, "{before:?}");
                assert!(
                    rack.cleanup() == ReleasePolicy::Empty || self.data.is_none_or(|data| data == id),
                    "{before:?}"
                );
                (self.runs, self.data) = (true, Some(id));
            }
            ClaimStep::ForgetUserData => self.rendered = None,
            ClaimStep::SetProviderId { .. } => self.node = Node::Named(held.unwrap()),
            ClaimStep::Join { .. } => {
                assert!(self.runs && (!rack.has_user_data || self.node == Node::Named(held.unwrap())));
                write(&mut self, Stage::Joined);
            }
            ClaimStep::Fail { cause, .. } => {
                let id = held.filter(|_| self.stage() != Some(Stage::Released));
                self.record = id.or(self.claim.map(|claim| claim.id)).map(|id| (id, Stage::Failed(*cause)));
            }
            ClaimStep::BeginRelease { .. } => {
                let id = held.filter(|_| self.stage() != Some(Stage::Released));
                let id = id.or(self.claim.map(|claim| claim.id)).unwrap();
                assert!(self.ended[id as usize], "no evidence: {before:?}");
                self.record = Some((id, Stage::Releasing));
            }
            ClaimStep::StopSlot => {
                assert!(matches!(self.stage(), Some(Stage::Releasing | Stage::Failed(_))), "{before:?}");
                self.runs = false;
            }
            ClaimStep::ClearLinks => panic!("there is none"),
            ClaimStep::EmptySlots => {
                assert!(self.stage() == Some(Stage::Releasing) && !self.runs, "{before:?}");
                (self.filled, self.script, self.node) = (None, Script::NotStarted, Node::Absent);
                self.has_content = half;
            }
            ClaimStep::BeginWipe { token } => {
                assert_eq!(*token, uid(held.unwrap()), "{before:?}");
                assert!(
                    !self.runs && !self.has_content && self.stage() == Some(Stage::Releasing),
                    "{before:?}"
                );
                self.is_old_boot = false;
                write(&mut self, Stage::Wiping);
            }
            ClaimStep::RequestWipe { token } => {
                assert!(*token == uid(held.unwrap()) && self.is_live, "{before:?}");
                self.requested = held.filter(|_| !rack.in_memory);
                if !half {
                    self.reboot(rack);
                }
            }
            ClaimStep::EndRelease => {
                let id = held.filter(|_| self.stage() != Some(Stage::Released));
                let id = id.or(self.claim.map(|claim| claim.id)).or(self.last).unwrap();
                assert!(!self.runs && !self.has_content && self.rendered != Some(id), "{before:?}");
                assert!(self.ended[id as usize], "no evidence: {before:?}");
                self.record = Some((id, Stage::Released));
            }
        }
        // Each record, and each start, withdraws the request of an earlier record.
        if self.record != before.record || matches!(step, ClaimStep::StartSlot) {
            self.requested = None;
        }
        self = self.reporting();
        assert!(self != before || half, "{step:?} changes nothing: {before:?}");
        self
    }

    fn check_report(&mut self, rack: Rack, report: &ClaimReport) {
        let before = *self;
        let (id, claim) = (which(&report.provider_id), self.claim.as_mut().unwrap());
        assert!(self.is_live);
        if report.state == Some(ReportedState::Released) {
            assert!(!self.runs && self.filled != Some(id), "released while something is left");
            assert!(self.ended[id as usize], "released without evidence");
            let is_wipe = rack.cleanup() == ReleasePolicy::Wipe;
            assert!(!is_wipe || before.data != Some(id), "released with its data: {before:?}");
            let is_asked = is_wipe && !rack.in_memory && claim.id == id && claim.granted;
            assert!(!is_asked || before.token == Some(id), "released without its token: {before:?}");
        }
        claim.reported = Some((id, report.state, report.cause));
    }

    /// Records evidence that there is now. The status writer reports.
    fn noted(mut self, rack: Rack) -> Self {
        if let Some(claim) = self.claim {
            self.granted[claim.id as usize] |= claim.granted;
            self.ended[claim.id as usize] |= claim.deleting;
            let is_replaceable = self.record == Some((X, Stage::Preparing));
            if claim.id == Y && claim.granted && rack.allows_second() && is_replaceable {
                self.ended[X as usize] = true;
            }
        }
        if let Some(id) = self.annotation {
            self.ended[id as usize] = true;
        }
        self.reporting()
    }

    /// States that come of the world around the agent.
    fn changes(&self, rack: Rack) -> Vec<Self> {
        let (world, mut next) = (*self, Vec::new());
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut after = world;
            change(&mut after);
            next.push(after.noted(rack));
        };
        add(&|world| world.is_live = !world.is_live);
        add(&|world| world.is_up_long = true);
        if world.stage() == Some(Stage::Bootstrapping) && world.runs {
            add(&|world| (world.is_late, world.is_up_long) = (true, true));
        }
        if world.stage() == Some(Stage::Bootstrapping) && !world.runs {
            add(&|world| world.is_delayed = true);
        }
        add(&|world| world.is_delayed = false);
        // The agent is killed after it has read the user data.
        add(&|world| world.rendered = world.rendered.filter(|_| world.runs));
        add(&|world| world.runs = false);
        add(&|world| world.reboot(rack));
        if world.requested.is_some() && !world.has_failed_wipe {
            // Power fails while the disk is made: the next boot makes it again, and knows of no token.
            add(&|world| {
                world.reboot(rack);
                (world.token, world.has_failed_wipe) = (None, true);
            });
            // The boot knows of no request.
            add(&|world| {
                let requested = world.requested.take();
                world.reboot(rack);
                (world.requested, world.has_failed_wipe) = (requested, true);
            });
        }
        if let Some(id) = world.unreported() {
            add(&|world| world.last = Some(id));
        }
        if world.stage() == Some(Stage::Wiping) {
            add(&|world| (world.is_late, world.is_up_long) = (true, true));
        }
        if world.annotation.is_none() {
            add(&|world| world.annotation = Some(X));
        }
        match world.claim {
            None => {
                let is_held = world.record.is_some_and(|(_, stage)| stage != Stage::Released);
                let again = world.record.map(|(id, _)| id).filter(|_| is_held);
                let new = |id| Some(Claim { id, granted: false, deleting: false, reported: None });
                // The provider creates a lost claim again, and another claimant may come before it.
                if let Some(id) = again {
                    add(&|world| world.claim = new(id));
                }
                if !world.has_second && rack.second != Second::None {
                    add(&|world| (world.claim, world.has_second) = (new(Y), true));
                }
            }
            Some(claim) => {
                let change =
                    |world: &mut Self, change: &dyn Fn(&mut Claim)| change(world.claim.as_mut().unwrap());
                // A claim of X that is created after Y came would be of a claimant that is gone: it is not granted. The same holds for one
                // that is created again after its end, until the host has reported on it.
                let is_current = claim.reported.is_some() || !world.ended[claim.id as usize];
                let is_first = claim.id == Y || !world.has_second;
                if !claim.deleting && !claim.granted && is_first && is_current {
                    add(&|world| change(world, &|claim| claim.granted = true));
                }
                if !claim.deleting {
                    add(&|world| change(world, &|claim| claim.deleting = true));
                }
                let is_over = claim.reported == Some((claim.id, Some(ReportedState::Released), None));
                // With a lasting state the provider waits for the token.
                let is_wiped = rack.cleanup() == ReleasePolicy::Empty || rack.in_memory || !claim.granted;
                if claim.deleting && is_over && (is_wiped || world.token == Some(claim.id)) {
                    add(&|world| world.claim = None);
                }
                // With its state in memory a host depends on the report in the claim object, unless the Machine has the report of its wipe.
                if !world.is_restored && (!rack.in_memory || world.last.is_some()) {
                    add(&|world| (world.claim, world.is_restored) = (None, true));
                }
            }
        }
        if world.runs && rack.has_user_data {
            if world.script == Script::NotStarted && world.rendered.is_some() {
                add(&|world| world.start_script());
            }
            if world.script == Script::Started {
                add(&|world| (world.script, world.node) = (Script::Ended(0), Node::Bare));
                add(&|world| world.script = Script::Ended(1));
            }
        }
        next
    }

    fn start_script(&mut self) {
        let ran = &mut self.ran[self.filled.unwrap() as usize];
        *ran += 1;
        assert_eq!(*ran, 1, "user data ran twice");
        self.script = Script::Started;
    }

    fn reboot(&mut self, rack: Rack) {
        (self.runs, self.rendered, self.is_up_long, self.is_late) = (false, None, false, false);
        self.is_old_boot = matches!(self.stage(), Some(Stage::Bootstrapping | Stage::Wiping));
        let wipe = self.requested.take();
        if let Some(id) = wipe {
            // No token of an earlier claim, and no claim that has not ended, wipes the host.
            assert_eq!(self.record, Some((id, Stage::Wiping)), "{self:?}");
            assert!(self.ended[id as usize] && !self.has_content, "{self:?}");
            self.wipes[id as usize] += 1;
            assert!(self.wipes[id as usize] == 1 || self.has_failed_wipe, "wiped twice: {self:?}");
            self.token = wipe;
        }
        if rack.in_memory || wipe.is_some() {
            self.data = None;
            (self.record, self.filled, self.has_content, self.has_image) = (None, None, false, false);
            (self.script, self.is_old_boot, self.node) = (Script::NotStarted, false, Node::Absent);
        }
    }

    /// The agent alone until it waits.
    fn settled(mut self, rack: Rack) -> Self {
        for _ in 0..40 {
            match plan_claim(&self.seen(rack)) {
                ClaimPlan::Do(step) => self = self.apply(rack, &step, false),
                ClaimPlan::Wait { .. } if self.unreported().is_some() => self.last = self.unreported(),
                ClaimPlan::Wait { .. } => {
                    let has_failed = matches!(self.stage(), Some(Stage::Failed(_)));
                    assert!(!(has_failed && self.runs), "{self:?}");
                    return self;
                }
            }
        }
        panic!("it does not come to rest: {self:?}");
    }

    /// From each state, a claim that ends is released.
    fn check_release(self, rack: Rack) {
        let mut ending = self;
        (ending.is_live, ending.is_delayed) = (true, false);
        ending.is_late |= self.stage() == Some(Stage::Wiping);
        ending.annotation = self.record.map(|(id, _)| id).or(self.annotation);
        if let Some(claim) = &mut ending.claim {
            claim.deleting = true;
        }
        let end = ending.noted(rack).settled(rack);
        let is_free = end.record.is_none_or(|(_, stage)| stage == Stage::Released);
        assert!(is_free && !end.runs && !end.has_content, "{self:?} ends as {end:?}");
        assert!(end.last.is_none(), "the Machine reports the wipe for ever: {self:?} ends as {end:?}");
        if let Some(claim) = end.claim {
            assert_eq!(claim.reported, Some((claim.id, Some(ReportedState::Released), None)), "{self:?}");
        }
    }

    /// D16: a host that has joined runs two minutes after its boot, even if the API server does not answer.
    fn check_start(self, rack: Rack) {
        if self.stage() == Some(Stage::Joined) {
            let silent = Self { is_live: false, is_up_long: true, ..self };
            assert!(silent.settled(rack).runs, "{self:?}");
        }
    }

    /// From each state, an allowed claim of a cluster without faults comes to `Joined` or `Failed`; to `Joined` if nothing of it has run.
    fn check_join(self, rack: Rack) {
        let mut world = self;
        (world.is_live, world.is_delayed) = (true, false);
        world.is_late |= self.stage() == Some(Stage::Wiping);
        let Some(claim) = world.claim.filter(|claim| !claim.deleting && world.annotation.is_none()) else {
            return;
        };
        if claim.id == Y && !rack.allows_second() || claim.id == X && world.has_second {
            return;
        }
        // The host does not leave a claim that has run for another one.
        let has_run = |stage| matches!(stage, Stage::Bootstrapping | Stage::Joined | Stage::Failed(_));
        if world.record.is_some_and(|(id, stage)| id != claim.id && has_run(stage)) {
            return;
        }
        for _ in 0..10 {
            world = world.settled(rack);
            if let Some(claim) = &mut world.claim {
                claim.granted = true;
            }
            world = world.noted(rack);
            if world.runs && rack.has_user_data {
                match world.script {
                    Script::NotStarted if world.rendered.is_some() => world.start_script(),
                    Script::Started => (world.script, world.node) = (Script::Ended(0), Node::Bare),
                    Script::NotStarted | Script::Ended(_) => {}
                }
            }
        }
        let stage = world.record.filter(|(id, _)| *id == claim.id).map(|(_, stage)| stage);
        // A host that has lost its record leaves a claim that it has reported as released to the provider.
        let is_over = |claim: Claim| claim.reported == Some((claim.id, Some(ReportedState::Released), None));
        assert!(
            matches!(stage, Some(Stage::Joined | Stage::Failed(_) | Stage::Released))
                || world.claim.is_some_and(is_over),
            "{self:?}: {world:?}"
        );
        let is_fresh = claim.reported.is_none_or(|(id, state, _)| id != claim.id || state.is_none());
        let is_new = self.record.is_none_or(|(id, stage)| id != claim.id || stage == Stage::Preparing);
        if is_fresh && is_new && self.ran[claim.id as usize] == 0 && !self.ended[claim.id as usize] {
            assert_eq!(stage, Some(Stage::Joined), "{self:?}");
        }
    }
}

/// Number of states that a rack comes to.
fn explore(rack: Rack) -> usize {
    let claim = Claim { id: X, granted: false, deleting: false, reported: None };
    let start = World { is_live: true, claim: Some(claim), ..World::default() };
    let (mut known, mut open) = (HashSet::from([start]), vec![start]);
    while let Some(world) = open.pop() {
        world.check_release(rack);
        world.check_join(rack);
        world.check_start(rack);
        let mut next = world.changes(rack);
        if let ClaimPlan::Do(step) = plan_claim(&world.seen(rack)) {
            next.push(world.apply(rack, &step, false));
            let is_long =
                matches!(step, ClaimStep::FillSlot | ClaimStep::EmptySlots | ClaimStep::RequestWipe { .. });
            // A request that was written before changes nothing.
            if is_long && world.requested.is_none() {
                next.push(world.apply(rack, &step, true));
            }
        }
        open.extend(next.into_iter().filter(|next| known.insert(*next)));
    }
    known.len()
}

/// A rack whose claims end with an empty host.
fn emptied(has_user_data: bool, in_memory: bool, second: Second) -> Rack {
    let (release, policy) = (ReleasePolicy::Empty, ReleasePolicy::Empty);
    Rack { has_user_data, in_memory, second, release, policy }
}

#[test]
fn claim_is_safe_from_every_kill_fault_and_change_with_state_on_disk() {
    for second in [Second::Refused, Second::Allowed] {
        let states = explore(emptied(true, false, second));
        assert!(states > 5_000, "{states}");
    }
}

#[test]
fn claim_is_safe_from_every_kill_fault_and_change_with_state_in_memory() {
    let states = explore(emptied(true, true, Second::Allowed));
    assert!(states > 5_000, "{states}");
}

#[test]
fn claim_without_user_data_is_safe_from_every_kill_fault_and_change() {
    for in_memory in [false, true] {
        let states = explore(emptied(false, in_memory, Second::Allowed));
        assert!(states > 1_000, "{states}");
    }
}

/// A wipe does not depend on user data: without it, two claimants are within the budget of processor time.
#[test]
fn d7_wipe_is_safe_from_every_kill_fault_and_change() {
    for second in [Second::Refused, Second::Allowed] {
        let states = explore(Rack { release: ReleasePolicy::Wipe, ..emptied(false, false, second) });
        assert!(states > 1_000, "{states}");
    }
}

#[test]
fn d7_wipe_of_a_host_in_memory_is_safe_from_every_fault() {
    let states = explore(Rack { release: ReleasePolicy::Wipe, ..emptied(false, true, Second::Allowed) });
    assert!(states > 1_000, "{states}");
}

#[test]
fn d7_wipe_that_the_machine_asks_for_is_safe_from_every_fault() {
    let states = explore(Rack { policy: ReleasePolicy::Wipe, ..emptied(true, false, Second::None) });
    assert!(states > 1_000, "{states}");
}
