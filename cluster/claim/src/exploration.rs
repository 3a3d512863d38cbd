//! Exhaustive exploration of the claim protocol: 2 claimants, 2 hosts with their agents, 2 leaders, stale reads and crashes. One leader also
//! meets faults: a claim object or a claimant is lost, a user has recorded a host, a pool is closed, a host enrolls again, a host falls silent.
//!
//! A leader reads a claim and its host, then the claimant, decides, reads live where the protocol asks for it, and writes. All other actors may
//! act between two of these parts, so each read may be of any age. A leader may crash between two parts. A claimant that is older than the
//! claim needs no part of its own: each write that depends on more than the deletion of a claimant is bound to it. Writes are bound to the
//! content that was read, which is weaker than to its resource version. States that differ only by the names of claimants, hosts
//! or leaders are merged.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use bedplate_api::claim::ClaimState;

use super::*;

const HOSTS: [&str; 2] = ["host-0", "host-1"];
/// Maximum processor time of the exploration.
const BUDGET: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct OneClaimant {
    deleting: bool,
    finalizer: bool,
    host: Option<u8>,
    pid: bool,
    /// True if it has forgotten a host, or a user has made up its `providerID`. Its resource version differs then, also if all else is as before.
    forgot: bool,
}

/// State of the agent about a claim: `Run` is `Bootstrapping`, `Joined` or `Failed`; `Wipe` is `Wiping`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Agent {
    Prep,
    Run,
    Wipe,
    Rel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct OneClaim {
    owner: u8,
    deleting: bool,
    grant: Grant,
    /// True if the host has not started in time.
    overdue: bool,
    fenced: bool,
    /// Enrollment that the claim names.
    key: bool,
    state: Option<Agent>,
}

/// Power of a host, and the tie to its API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
enum Power {
    #[default]
    Up,
    /// It runs, and is not heard.
    Silent,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct OneHost {
    claim: Option<OneClaim>,
    /// The agent's record: owner and state.
    record: Option<(u8, Agent)>,
    /// True if it is not in the pool any more.
    closed: bool,
    /// The enrollment.
    key: bool,
    /// Owner and enrollment of the right to read the user data.
    right: Option<(u8, bool)>,
    power: Power,
    /// True if the token of the claim object that exists has made the state disk.
    wiped: bool,
    /// Claimant whose data is on the state disk.
    data: Option<u8>,
}

/// Fault that one exploration has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fault {
    None,
    /// A claim object is lost.
    Loss,
    /// A user records a host in a claimant, and an operator takes a host from the pool.
    Choice,
    /// A host enrolls again, or starts too late. Rights are objects of their own.
    Enrollment,
    /// A host is not heard any more.
    Silence,
    /// A claimant is lost, with its finalizer. A user then has its host emptied.
    Orphan,
    /// Power fails while a state disk is made.
    Power,
}

/// Part of a reconciliation that a leader has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Leader {
    Idle,
    /// Claim and host of a claimant read, before the claimant.
    Host(u8, u8, HeldBy2, Host2),
    /// Decided about a claimant, by this content. With the chosen host.
    Step(u8, OneClaimant, Write, u8),
    /// Decided about the claim of a host, by this content.
    Claim(u8, OneClaim, ClaimWrite),
}

/// [`HeldBy`], ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum HeldBy2 {
    Free,
    Other,
    Own(bool, bool),
}

/// [`Host`], ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Host2 {
    RunsOwn,
    SilentOwn,
    Eligible,
    Ineligible,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Write {
    AddFinalizer,
    Record,
    Create,
    Forget,
    SetPid,
    Delete,
    RemoveFinalizer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum ClaimWrite {
    Withdraw,
    CorrectEnrollment,
    Grant,
    Delete,
    PowerOff,
    Fence,
    RemoveFinalizer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct World {
    claimants: [Option<OneClaimant>; 2],
    hosts: [OneHost; 2],
    /// Fault that there may be.
    fault: Fault,
    /// True if all claims have `release: Wipe`.
    wipe: bool,
    /// True if the fault has happened.
    lost: bool,
    leaders: [Leader; 2],
}

/// A multiplicative hash: the standard one takes most of the time of the exploration.
#[derive(Default)]
struct Fast(u64);

impl Hasher for Fast {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value.cast_unsigned() as u64);
    }
}

/// Worlds that were seen.
type Worlds = HashSet<World, BuildHasherDefault<Fast>>;

impl OneClaimant {
    fn facts(&self) -> Claimant<'_> {
        Claimant {
            is_deleting: self.deleting,
            has_finalizer: self.finalizer,
            machine_name: self.host.map(|host| HOSTS[usize::from(host)]),
            provider_id: self.pid.then_some("pid"),
        }
    }
}

const fn state(agent: Agent) -> ClaimState {
    match agent {
        Agent::Prep => ClaimState::Preparing,
        Agent::Run => ClaimState::Joined,
        Agent::Wipe => ClaimState::Wiping,
        Agent::Rel => ClaimState::Released,
    }
}

impl OneHost {
    fn held_by(&self, claimant: u8) -> HeldBy2 {
        match self.claim {
            None => HeldBy2::Free,
            Some(claim) if claim.owner != claimant => HeldBy2::Other,
            Some(claim) => {
                let is_emptied = claim.state.is_some_and(|agent| state(agent).is_emptied());
                HeldBy2::Own(claim.deleting, claim.fenced || is_emptied)
            }
        }
    }

    fn seen_by(&self, claimant: u8) -> Host2 {
        match self.record {
            Some((owner, agent)) if owner == claimant && agent != Agent::Rel => match self.power {
                Power::Up => Host2::RunsOwn,
                Power::Silent | Power::Off => Host2::SilentOwn,
            },
            _ if self.is_eligible(claimant) => Host2::Eligible,
            _ => Host2::Ineligible,
        }
    }

    fn is_free(&self) -> bool {
        self.claim.is_none() && is_free(self.record.map(|(_, agent)| state(agent)))
    }

    /// A host never runs a claim again that it has released.
    fn is_eligible(&self, who: u8) -> bool {
        let is_free = is_free(self.record.map(|(_, agent)| state(agent)));
        !self.closed && is_free && self.record != Some((who, Agent::Rel))
    }
}

fn decide(claimant: &OneClaimant, held: HeldBy2, host: Host2) -> ClaimantStep {
    let held = match held {
        HeldBy2::Free => HeldBy::Free,
        HeldBy2::Other => HeldBy::Other,
        HeldBy2::Own(is_deleting, is_released) => HeldBy::Own { is_deleting, is_released },
    };
    let host = match host {
        Host2::RunsOwn => Host::RunsOwn,
        Host2::SilentOwn => Host::SilentOwn,
        Host2::Eligible => Host::Eligible,
        Host2::Ineligible => Host::Ineligible,
    };
    next_of_claimant(&claimant.facts(), held, host)
}

impl World {
    fn start(fault: Fault, wipe: bool) -> Vec<Self> {
        let claimant =
            OneClaimant { deleting: false, finalizer: false, host: None, pid: false, forgot: false };
        let start = Self {
            claimants: [Some(claimant); 2],
            hosts: [OneHost::default(); 2],
            fault,
            wipe,
            lost: false,
            leaders: [Leader::Idle; 2],
        };
        let recorded = |pid| Self {
            claimants: [Some(OneClaimant { host: Some(0), pid, forgot: pid, ..claimant }), Some(claimant)],
            ..start
        };
        match fault {
            Fault::Choice => vec![recorded(false), recorded(true)],
            Fault::None | Fault::Loss | Fault::Enrollment | Fault::Silence | Fault::Power | Fault::Orphan => {
                vec![start]
            }
        }
    }

    /// The least of the worlds that differ by names only.
    fn canonical(&self) -> Self {
        let renamed =
            [(false, false), (false, true), (true, false), (true, true)].map(|(claimants, hosts)| {
                let mut world = self.renamed(claimants, hosts);
                if self.fault == Fault::None {
                    world.leaders.sort_unstable();
                }
                world
            });
        renamed.into_iter().min().expect("there are four")
    }

    fn renamed(&self, claimants: bool, hosts: bool) -> Self {
        let (c, h) = (|c: u8| if claimants { 1 - c } else { c }, |h: u8| if hosts { 1 - h } else { h });
        let of_claimant = |one: OneClaimant| OneClaimant { host: one.host.map(h), ..one };
        let of_claim = |one: OneClaim| OneClaim { owner: c(one.owner), ..one };
        let of_host = |one: OneHost| OneHost {
            claim: one.claim.map(of_claim),
            record: one.record.map(|(owner, agent)| (c(owner), agent)),
            right: one.right.map(|(owner, key)| (c(owner), key)),
            data: one.data.map(c),
            ..one
        };
        let of_leader = |one: Leader| match one {
            Leader::Idle => Leader::Idle,
            Leader::Host(who, host, held, seen) => Leader::Host(c(who), h(host), held, seen),
            Leader::Step(who, seen, write, host) => Leader::Step(c(who), of_claimant(seen), write, h(host)),
            Leader::Claim(host, seen, write) => Leader::Claim(h(host), of_claim(seen), write),
        };
        let mut world = Self {
            claimants: self.claimants.map(|one| one.map(of_claimant)),
            hosts: self.hosts.map(of_host),
            fault: self.fault,
            wipe: self.wipe,
            lost: self.lost,
            leaders: self.leaders.map(of_leader),
        };
        if claimants {
            world.claimants.swap(0, 1);
        }
        if hosts {
            world.hosts.swap(0, 1);
        }
        world
    }

    /// Decision about a claim, with a live read of its claimant.
    fn decide_claim(&self, host: usize, claim: OneClaim) -> Option<ClaimWrite> {
        let found = match self.claimants[usize::from(claim.owner)] {
            None => Found::Absent,
            Some(claimant) if claimant.deleting => Found::Deleting,
            Some(claimant) if claimant.host.map(usize::from) != Some(host) => Found::Elsewhere,
            Some(claimant) if claimant.pid => Found::Holding,
            Some(_) => Found::Recorded,
        };
        let OneHost { record, right, key, power, wiped, .. } = self.hosts[host];
        let seen = Claim {
            is_deleting: claim.deleting,
            grant: claim.grant,
            right: match right {
                _ if self.fault != Fault::Enrollment => Right::NotNeeded,
                Some((owner, _)) if owner == claim.owner => Right::Complete,
                _ => Right::Absent,
            },
            is_overdue: claim.overdue,
            state: claim.state.map(state),
            recorded: record.filter(|(owner, _)| *owner == claim.owner).map(|(_, agent)| state(agent)),
            other: record.filter(|(owner, _)| *owner != claim.owner).map(|(_, agent)| state(agent)),
            is_heard: power == Power::Up,
            has_other_key: key != claim.key,
            silence: match power {
                Power::Up => Silence::Heard,
                Power::Silent => Silence::NotAsked,
                Power::Off => Silence::PoweredOff,
            },
            is_fenced: claim.fenced,
            lacks_wipe: self.wipe && claim.grant != Grant::Never && !wiped,
            has_machine: true,
        };
        match next_of_claim(&seen, found) {
            ClaimStep::Withdraw => Some(ClaimWrite::Withdraw),
            ClaimStep::CorrectEnrollment => Some(ClaimWrite::CorrectEnrollment),
            ClaimStep::Grant => Some(ClaimWrite::Grant),
            ClaimStep::Delete => Some(ClaimWrite::Delete),
            ClaimStep::PowerOff => Some(ClaimWrite::PowerOff),
            ClaimStep::Fence => Some(ClaimWrite::Fence),
            ClaimStep::RemoveFinalizer => Some(ClaimWrite::RemoveFinalizer),
            ClaimStep::Orphan
            | ClaimStep::CorrectUid
            | ClaimStep::AwaitDeletion
            | ClaimStep::AwaitProviderId
            | ClaimStep::AwaitAgent
            | ClaimStep::AwaitHost
            | ClaimStep::Overdue
            | ClaimStep::AwaitRelease
            | ClaimStep::AwaitPowerOff
            | ClaimStep::Granted => None,
        }
    }

    /// All worlds that one action of one of these leaders, of an agent, or of a user leads to.
    fn next(&self, leaders: usize, all: &mut Vec<Self>) {
        for index in 0..leaders {
            self.lead(index, all);
        }
        for host in 0..2 {
            self.act(host, all);
        }
        for who in 0..2 {
            if let Some(claimant) = self.claimants[who]
                && !claimant.deleting
            {
                let mut next = *self;
                // Without a finalizer it is gone.
                next.claimants[who] =
                    claimant.finalizer.then_some(OneClaimant { deleting: true, ..claimant });
                all.push(next);
            }
        }
        for host in 0..2 {
            self.fail(host, all);
        }
    }

    /// The fault of a host, once.
    fn fail(&self, host: usize, all: &mut Vec<Self>) {
        let mut fault = |change: &dyn Fn(&mut OneHost)| {
            let mut next = Self { lost: true, ..*self };
            change(&mut next.hosts[host]);
            all.push(next);
        };
        let seen = self.hosts[host];
        match self.fault {
            Fault::Loss if !self.lost && seen.claim.is_some() => fault(&|host| host.claim = None),
            Fault::Choice if !self.lost => fault(&|host| host.closed = true),
            Fault::Enrollment if !self.lost => fault(&|host| host.key = !host.key),
            Fault::Silence if !self.lost => fault(&|host| host.power = Power::Silent),
            Fault::Orphan => self.lose(host, all),
            Fault::None | Fault::Loss | Fault::Choice | Fault::Enrollment | Fault::Silence | Fault::Power => {
            }
        }
        // The time in which a granted claim must start expires.
        if let Some(claim) = seen.claim
            && self.fault == Fault::Enrollment
            && claim.grant == Grant::Open
            && claim.state.is_none_or(|state| state == Agent::Prep)
            && !self.lost
        {
            let mut next = Self { lost: true, ..*self };
            next.hosts[host].claim = Some(OneClaim { overdue: true, ..claim });
            all.push(next);
        }
    }

    /// Loses a claimant, once. A user has the host emptied that has the claim of a lost one.
    fn lose(&self, index: usize, all: &mut Vec<Self>) {
        if !self.lost && self.claimants[index].is_some() {
            let mut next = Self { lost: true, ..*self };
            next.claimants[index] = None;
            all.push(next);
        }
        if let Some((owner, Agent::Prep | Agent::Run)) = self.hosts[index].record
            && self.claimants[usize::from(owner)].is_none()
        {
            let mut next = *self;
            next.hosts[index].record = Some((owner, Agent::Rel));
            all.push(next);
        }
    }

    /// One part of a reconciliation.
    fn lead(&self, index: usize, all: &mut Vec<Self>) {
        let mut to = |leader: Leader| {
            let mut next = *self;
            next.leaders[index] = leader;
            all.push(next);
        };
        match self.leaders[index] {
            Leader::Idle => {
                for (who, claimant) in (0_u8..).zip(self.claimants) {
                    match claimant {
                        Some(seen) if seen.host.is_none() => {
                            self.judge(who, seen, HeldBy2::Free, Host2::Ineligible, &mut to);
                        }
                        _ => {
                            for (host, one) in (0_u8..).zip(self.hosts) {
                                to(Leader::Host(who, host, one.held_by(who), one.seen_by(who)));
                            }
                        }
                    }
                }
                for (host, one) in self.hosts.iter().enumerate() {
                    if let Some(claim) = one.claim
                        && let Some(write) = self.decide_claim(host, claim)
                    {
                        to(Leader::Claim(u8::from(host == 1), claim, write));
                    }
                }
            }
            Leader::Host(who, host, held, of_host) => match self.claimants[usize::from(who)] {
                Some(seen) if seen.host == Some(host) => self.judge(who, seen, held, of_host, &mut to),
                _ => to(Leader::Idle),
            },
            Leader::Step(who, seen, write, host) => self.write(index, who, seen, write, host, all),
            Leader::Claim(host, seen, write) => self.write_claim(index, usize::from(host), seen, write, all),
        }
        if self.leaders[index] != Leader::Idle {
            let mut crashed = *self;
            crashed.leaders[index] = Leader::Idle;
            all.push(crashed);
        }
    }

    /// Decides about a claimant, and decides again by live reads where the protocol asks for it.
    fn judge(&self, who: u8, seen: OneClaimant, held: HeldBy2, host: Host2, to: &mut impl FnMut(Leader)) {
        let step = decide(&seen, held, host);
        let mut seen = seen;
        if step.needs_live_read() {
            let Some(live) = self.claimants[usize::from(who)] else { return to(Leader::Idle) };
            let host = live.host.map(|host| self.hosts[usize::from(host)]).unwrap_or_default();
            seen = live;
            if decide(&live, host.held_by(who), host.seen_by(who)) != step {
                return to(Leader::Idle);
            }
            if step == ClaimantStep::CreateClaim {
                let runs = host.record.is_some_and(|(owner, agent)| owner == who && agent != Agent::Rel);
                assert!(runs || !live.pid && host.is_eligible(who), "claims an ineligible host: {self:#?}");
            }
        }
        let write = match step {
            ClaimantStep::AddFinalizer => Write::AddFinalizer,
            ClaimantStep::Choose => {
                let is_free = |host: &OneHost| host.claim.is_none() && host.is_eligible(who);
                let free = (0_u8..).zip(self.hosts).filter(|(_, host)| is_free(host));
                return free.for_each(|(host, _)| to(Leader::Step(who, seen, Write::Record, host)));
            }
            ClaimantStep::CreateClaim => Write::Create,
            ClaimantStep::Forget => Write::Forget,
            ClaimantStep::SetProviderId => Write::SetPid,
            ClaimantStep::DeleteClaim => Write::Delete,
            ClaimantStep::RemoveFinalizer => Write::RemoveFinalizer,
            ClaimantStep::Claimed
            | ClaimantStep::Lost
            | ClaimantStep::AwaitRelease
            | ClaimantStep::AwaitHost
            | ClaimantStep::Done => return to(Leader::Idle),
        };
        to(Leader::Step(who, seen, write, seen.host.unwrap_or_default()));
    }

    fn write(&self, index: usize, who: u8, seen: OneClaimant, write: Write, host: u8, all: &mut Vec<Self>) {
        let mut next = *self;
        next.leaders[index] = Leader::Idle;
        let is_current = self.claimants[usize::from(who)] == Some(seen);
        let claimant = &mut next.claimants[usize::from(who)];
        let OneHost { claim, wiped, .. } = &mut next.hosts[usize::from(host)];
        match write {
            Write::Create => {
                let key = self.hosts[usize::from(host)].key;
                let (deleting, overdue, fenced) = (false, false, false);
                let (grant, state) = (Grant::Never, None);
                if claim.is_none() {
                    // Its UID is another one.
                    *wiped = false;
                    *claim = Some(OneClaim { owner: who, deleting, grant, overdue, fenced, key, state });
                }
            }
            // Bound to the UID of the claim.
            Write::Delete => {
                if let Some(claim) = claim.as_mut().filter(|claim| claim.owner == who) {
                    claim.deleting = true;
                }
            }
            _ if !is_current => {}
            Write::AddFinalizer => *claimant = Some(OneClaimant { finalizer: true, ..seen }),
            Write::Record => *claimant = Some(OneClaimant { host: Some(host), ..seen }),
            Write::Forget => *claimant = Some(OneClaimant { host: None, forgot: true, ..seen }),
            Write::SetPid => *claimant = Some(OneClaimant { pid: true, ..seen }),
            Write::RemoveFinalizer => {
                // Gone for good: its host must not run it, unless its claim object was lost.
                let runs =
                    |host: &OneHost| host.record == Some((who, Agent::Run)) && host.power != Power::Off;
                let is_lost = self.lost && self.fault == Fault::Loss;
                assert!(is_lost || !self.hosts.iter().any(runs), "gone while its host runs: {self:#?}");
                *claimant = None;
            }
        }
        all.push(next);
    }

    /// Writes to a claim. A right and an operation are objects of their own, which no version of the claim binds, so there may be a crash before
    /// the claim is written.
    fn write_claim(&self, index: usize, host: usize, seen: OneClaim, write: ClaimWrite, all: &mut Vec<Self>) {
        let mut next = *self;
        next.leaders[index] = Leader::Idle;
        let has_rights = self.fault == Fault::Enrollment;
        match write {
            ClaimWrite::Grant if has_rights => next.hosts[host].right = Some((seen.owner, seen.key)),
            ClaimWrite::Withdraw => next.hosts[host].right = None,
            ClaimWrite::PowerOff => next.hosts[host].power = Power::Off,
            ClaimWrite::Grant
            | ClaimWrite::CorrectEnrollment
            | ClaimWrite::Delete
            | ClaimWrite::Fence
            | ClaimWrite::RemoveFinalizer => {}
        }
        let crashed = next;
        if self.hosts[host].claim == Some(seen) {
            next.hosts[host].claim = match write {
                ClaimWrite::Withdraw if seen.grant == Grant::Open => {
                    Some(OneClaim { grant: Grant::Ended, ..seen })
                }
                ClaimWrite::Withdraw | ClaimWrite::PowerOff => Some(seen),
                ClaimWrite::CorrectEnrollment => Some(OneClaim { key: self.hosts[host].key, ..seen }),
                ClaimWrite::Grant => {
                    let other = self.hosts[host].record.filter(|(owner, _)| *owner != seen.owner);
                    let is_free = is_free(other.map(|(_, agent)| state(agent)));
                    assert!(is_free, "granted over an unreleased claim: {self:#?}");
                    Some(OneClaim { grant: Grant::Open, ..seen })
                }
                ClaimWrite::Delete => Some(OneClaim { deleting: true, ..seen }),
                ClaimWrite::Fence => Some(OneClaim { fenced: true, ..seen }),
                ClaimWrite::RemoveFinalizer => {
                    let has_data = self.hosts[host].data == Some(seen.owner);
                    assert!(!self.wipe || !has_data, "released without its wipe: {self:#?}");
                    None
                }
            };
        }
        all.push(next);
        if crashed != next && has_rights {
            all.push(crashed);
        }
    }

    /// The agent of a host (agent/src/node/plan/claim.rs).
    fn act(&self, host: usize, all: &mut Vec<Self>) {
        let OneHost { claim, record, key, right, power, wiped, .. } = self.hosts[host];
        if let Some((owner, Agent::Wipe)) = record
            && power != Power::Silent
        {
            self.boot(host, owner, all);
        }
        let Some(claim) = claim.filter(|_| power != Power::Silent) else { return };
        let lacks_wipe = self.wipe && claim.grant != Grant::Never && !wiped;
        let end = if self.wipe { Agent::Wipe } else { Agent::Rel };
        // A fenced host that has released is powered on, and claimed again.
        if power == Power::Off && !claim.deleting {
            let mut next = *self;
            next.hosts[host].power = Power::Up;
            return all.push(next);
        }
        // Its view may be old: the permission may have ended since. It reads the user data with its own certificate.
        let may_read = self.fault != Fault::Enrollment || right == Some((claim.owner, key));
        let may_start = claim.grant != Grant::Never && may_read;
        let mut to = |record: (u8, Agent)| {
            let mut next = *self;
            next.hosts[host].record = Some(record);
            match record.1 {
                // A host that was powered on again starts nothing before it has emptied itself.
                Agent::Rel | Agent::Wipe => next.hosts[host].power = Power::Up,
                // Without a wipe, data stays on the disk in any case.
                Agent::Run => next.hosts[host].data = Some(record.0).filter(|_| next.wipe),
                Agent::Prep => {}
            }
            all.push(next);
        };
        match record {
            None | Some((_, Agent::Rel)) if record != Some((claim.owner, Agent::Rel)) => {
                // Its view may be old: it may not know that the claim was granted.
                to((claim.owner, if claim.deleting { Agent::Rel } else { Agent::Prep }));
                if claim.deleting && lacks_wipe {
                    to((claim.owner, Agent::Wipe));
                }
            }
            Some((owner, Agent::Rel)) if owner == claim.owner && claim.deleting && lacks_wipe => {
                to((owner, Agent::Wipe));
            }
            // Evidence: another claim is granted, and nothing of this one has run.
            Some((owner, Agent::Prep)) if owner != claim.owner && claim.grant != Grant::Never => {
                self.check_release(host, owner);
                to((owner, end));
            }
            Some((owner, Agent::Prep | Agent::Run)) if owner == claim.owner && claim.deleting => {
                self.check_release(host, owner);
                to((owner, end));
            }
            Some((owner, Agent::Prep)) if owner == claim.owner && may_start => {
                self.check_start(host, owner);
                to((owner, Agent::Run));
            }
            _ => {}
        }
        let own = record.filter(|(owner, _)| *owner == claim.owner).map(|(_, agent)| agent);
        // The policy accepts no report of another enrollment.
        if own.is_some() && own != claim.state && key == claim.key {
            let mut next = *self;
            next.hosts[host].claim = Some(OneClaim { state: own, ..claim });
            all.push(next);
        }
    }

    /// The boot that wipes a host: its record goes with the disk, and it gets another key.
    fn boot(&self, host: usize, owner: u8, all: &mut Vec<Self>) {
        let OneHost { claim, key, data, .. } = self.hosts[host];
        assert!(data.is_none_or(|data| data == owner), "wipes the data of another claimant: {self:#?}");
        // It waits until its report was taken.
        let own = claim.filter(|claim| claim.owner == owner);
        if own.is_some_and(|claim| claim.state != Some(Agent::Wipe)) {
            return;
        }
        let mut next = *self;
        next.hosts[host] = OneHost {
            record: None,
            data: None,
            key: !key,
            wiped: false,
            power: Power::Up,
            ..self.hosts[host]
        };
        if self.fault == Fault::Power && !self.lost {
            all.push(Self { lost: true, ..next });
        }
        next.hosts[host].wiped = own.is_some();
        all.push(next);
    }

    /// No host starts a claim whose claimant is gone or elsewhere, or on the data of another claimant.
    fn check_start(&self, host: usize, owner: u8) {
        let data = self.hosts[host].data.filter(|_| self.wipe);
        assert!(data.is_none(), "started on the data of another claimant: {self:#?}");
        let claimant = self.claimants[usize::from(owner)];
        let holds = claimant.is_some_and(|one| one.pid && one.host.map(usize::from) == Some(host));
        // The claimant may be lost after the grant.
        let is_orphaned = self.fault == Fault::Orphan && claimant.is_none();
        assert!(holds || is_orphaned, "started without its claimant: {self:#?}");
    }

    /// No host that runs a claim is emptied while its claimant wants it.
    fn check_release(&self, host: usize, owner: u8) {
        let is_held = |one: OneClaimant| {
            one.pid && !one.deleting && !one.forgot && one.host.map(usize::from) == Some(host)
        };
        let wants = self.claimants[usize::from(owner)].is_some_and(is_held);
        // The absence of a claim object is not evidence: after its loss, only a grant of another one is.
        let is_other = |claim: OneClaim| claim.owner != owner && claim.grant != Grant::Never;
        let is_replaced = self.has_lost() && self.hosts[host].claim.is_some_and(is_other);
        assert!(!wants || is_replaced, "released without evidence: {self:#?}");
    }

    /// Returns true if a claim object was lost.
    fn has_lost(&self) -> bool {
        self.lost && self.fault == Fault::Loss
    }

    fn check(&self) {
        for host in &self.hosts {
            if let Some((claim, (owner, key))) = host.claim.zip(host.right) {
                assert!(owner == claim.owner && key == claim.key, "another may read the Secret: {self:#?}");
            }
        }
        let runs = |who: u8| {
            let runs = |host: &&OneHost| host.record == Some((who, Agent::Run)) && host.power != Power::Off;
            self.hosts.iter().filter(runs).count()
        };
        assert!(runs(0) < 2 && runs(1) < 2, "a claimant has two hosts: {self:#?}");
        let held = |who: usize| {
            let claimant = self.claimants[who].filter(|one| one.pid && !one.deleting)?;
            let host = claimant.host.map(usize::from)?;
            let claim = self.hosts[host].claim?;
            (usize::from(claim.owner) == who && !claim.deleting).then_some(host)
        };
        assert!(held(0).is_none() || held(0) != held(1), "a host is held twice: {self:#?}");
        if !self.has_lost() {
            for (who, claimant) in self.claimants.iter().enumerate() {
                let is_open = |one: &OneClaimant| !one.pid || one.deleting || one.forgot;
                let is_held = claimant.as_ref().is_none_or(is_open) || held(who).is_some();
                assert!(is_held, "a claimant has lost its host: {self:#?}");
            }
        }
    }

    /// Follows one leader with current reads until nothing changes: no claim and no host may leak.
    fn settle(mut self, settled: &mut Worlds) {
        self.leaders = [Leader::Idle; 2];
        let mut path = Vec::new();
        loop {
            if settled.contains(&self) {
                break;
            }
            path.push(self);
            let before = self;
            let mut after = Vec::new();
            // Each actor in turn, so that no one is starved.
            for who in 0..2_u8 {
                self = self.reconcile(who);
            }
            for host in 0..2 {
                if let Some(claim) = self.hosts[host].claim
                    && let Some(write) = self.decide_claim(host, claim)
                {
                    after.clear();
                    self.write_claim(0, host, claim, write, &mut after);
                    self = after[0];
                }
                for _ in 0..2 {
                    after.clear();
                    self.act(host, &mut after);
                    if let Some(next) = after.last() {
                        self = *next;
                    }
                }
            }
            if self == before {
                self.check_settled();
                break;
            }
            assert!(path.len() < 100, "does not settle: {self:#?}");
        }
        settled.extend(path);
    }

    fn reconcile(&self, who: u8) -> Self {
        let Some(seen) = self.claimants[usize::from(who)] else { return *self };
        let host = seen.host.map(|host| self.hosts[usize::from(host)]).unwrap_or_default();
        let mut step = Leader::Idle;
        let mut first = |leader: Leader| {
            if step == Leader::Idle {
                step = leader;
            }
        };
        self.judge(who, seen, host.held_by(who), host.seen_by(who), &mut first);
        let Leader::Step(who, seen, write, host) = step else { return *self };
        let mut next = Vec::new();
        self.write(0, who, seen, write, host, &mut next);
        next[0]
    }

    fn check_settled(&self) {
        for (who, claimant) in (0_u8..).zip(self.claimants) {
            let Some(claimant) = claimant else { continue };
            // A former leader made the claim of an earlier choice late, and its host has released it: the owner replaces the claimant.
            let is_lost = claimant.host.is_some_and(|host| {
                let host = self.hosts[usize::from(host)];
                decide(&claimant, host.held_by(who), host.seen_by(who)) == ClaimantStep::Lost
            });
            let is_made_up = self.fault == Fault::Choice;
            let is_overdue = claimant
                .host
                .is_some_and(|host| self.hosts[usize::from(host)].claim.is_some_and(|claim| claim.overdue));
            // Both hosts are closed or silent, or the owner replaces the claimant.
            let waits = claimant.host.is_none() && self.lost;
            let is_silent = self.hosts.iter().any(|host| host.power == Power::Silent);
            if !claimant.deleting
                && ((claimant.forgot || is_made_up) && is_lost || is_overdue || waits || is_silent)
            {
                continue;
            }
            let holds = claimant.host.is_some_and(|host| {
                let host = self.hosts[usize::from(host)];
                host.record.is_some_and(|(_, agent)| agent == Agent::Run)
            });
            let is_served = self.has_lost() || claimant.pid && holds;
            assert!(!claimant.deleting && is_served, "stuck: {self:#?}");
        }
        for host in &self.hosts {
            let Some(claim) = host.claim else {
                assert!(self.has_lost() || host.is_free(), "leaked host: {self:#?}");
                assert!(host.right.is_none(), "leaked right: {self:#?}");
                continue;
            };
            let is_held = self.claimants[usize::from(claim.owner)].is_some_and(|one| one.pid);
            let is_silent = host.power == Power::Silent;
            // A user must decide about a host that runs the claim of a lost claimant.
            let is_orphaned = self.fault == Fault::Orphan && host.record == Some((claim.owner, Agent::Run));
            assert!(self.has_lost() || is_held || is_silent || is_orphaned, "leaked claim: {self:#?}");
        }
    }
}

/// Processor time of this thread (proc_pid_schedstat(5)): other programs must not make the exploration fail.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn explore(leaders: usize, fault: Fault, wipe: bool) -> (usize, usize, Duration) {
    let start = processor_time();
    let mut seen = Worlds::default();
    let mut settled = Worlds::default();
    let mut open: Vec<World> = World::start(fault, wipe).iter().map(World::canonical).collect();
    seen.extend(open.iter().copied());
    let mut next = Vec::new();
    let mut steps = 0;
    while let Some(world) = open.pop() {
        world.check();
        world.settle(&mut settled);
        next.clear();
        world.next(leaders, &mut next);
        steps += next.len();
        for world in &next {
            let world = world.canonical();
            if seen.insert(world) {
                open.push(world);
            }
        }
    }
    (seen.len(), steps, processor_time().saturating_sub(start))
}

#[test]
fn d1_no_host_is_held_twice_by_two_leaders_with_stale_reads() {
    let (states, steps, time) = explore(2, Fault::None, false);
    println!("{states} states, {steps} steps, {time:?}");
    assert!(states > 10_000, "the exploration is not empty: {states}");
    assert!(time < BUDGET, "{states} states took {time:?}");
}

/// Explores one leader with a fault.
fn explore_fault(fault: Fault, wipe: bool) {
    let (states, steps, time) = explore(1, fault, wipe);
    println!("{fault:?}: {states} states, {steps} steps, {time:?}");
    assert!(states > 1000, "the exploration is not empty: {states}");
    assert!(time < BUDGET, "{states} states took {time:?}");
}

#[test]
fn d1_no_host_leaks_after_the_loss_of_a_claim_object() {
    explore_fault(Fault::Loss, false);
}

#[test]
fn d1_only_eligible_hosts_are_claimed_whichever_writer_recorded_them() {
    explore_fault(Fault::Choice, false);
}

#[test]
fn d4_right_to_read_follows_the_key_and_ends_with_the_claim() {
    explore_fault(Fault::Enrollment, false);
}

#[test]
fn d8_silent_host_is_off_before_its_claimant_is_replaced() {
    explore_fault(Fault::Silence, false);
}

#[test]
fn d7_claim_ends_only_after_the_wipe_of_its_host() {
    for fault in [Fault::None, Fault::Power] {
        explore_fault(fault, true);
    }
}

#[test]
fn d7_lost_claim_object_wipes_no_host_that_runs() {
    explore_fault(Fault::Loss, true);
}

#[test]
fn d7_silent_host_is_wiped_before_its_next_claim() {
    explore_fault(Fault::Silence, true);
}

#[test]
fn d7_claim_of_a_lost_claimant_goes_once_its_host_is_released() {
    explore_fault(Fault::Orphan, false);
    explore_fault(Fault::Orphan, true);
}
