//! Pure: the protocol by which BedplateMachines hold hosts (docs/reference/infrastructure-provider.md): the next write of a claimant, and the next write of a claim.
//!
//! ```text
//! claimant   finalizer -> machineName -> MachineClaim -> providerID -> (host: Joined) -> deleted -> claim deleted -> Released -> finalizer
//! claim      made -> Role, RoleBinding, Granted -> (host: started) -> RoleBinding, Role gone -> deleted by its claimant -> (host: Released) -> finalizer
//! wiped      deleted by its claimant -> (host: Wiping) -> finalizer of the claimant; (host: wiped, Released) -> finalizer of the claim
//! silent     deleted -> timeout -> powerOff -> Fenced -> finalizer of the claimant; (host: Released) -> finalizer of the claim
//! ```
//! The name of a claim is the name of its host, so the API server lets one claimant have a host. A claimant records its choice first, bound to
//! its resource version, so it has one host also after a crash between any two writes. The host starts nothing before `Granted`, and `Granted`
//! follows a live read of the claimant. So a claim that a former leader makes late never runs.
//!
//! A decision may rest on objects that have changed since. Each write is bound to the version of its object, and steps that
//! [`ClaimantStep::needs_live_read`] names are decided again by live reads before the write. `exploration` checks all of this for 2 claimants,
//! 2 hosts, 2 leaders, stale reads, crashes between any two steps, and faults of hosts. Called by `bedplate-cluster`.

use bedplate_api::claim::ClaimState;

#[cfg(test)]
mod exploration;

/// A BedplateMachine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimant<'a> {
    /// True if it is being deleted.
    pub is_deleting: bool,
    /// True if it has the finalizer of the provider.
    pub has_finalizer: bool,
    /// Name of the recorded host.
    pub machine_name: Option<&'a str>,
    /// `spec.providerID`.
    pub provider_id: Option<&'a str>,
}

/// The MachineClaim with the name of the recorded host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBy {
    /// There is none.
    Free,
    /// The claim belongs to another claimant.
    Other,
    /// The claim belongs to the claimant.
    Own {
        /// True if it is being deleted.
        is_deleting: bool,
        /// True if nothing of it is left in the slots of the host, or the host is fenced.
        is_released: bool,
    },
}

/// The host, as its Machine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// There is no such Machine.
    Gone,
    /// The agent was heard, and reports the claim of this claimant, which is not released. It may run it.
    RunsOwn,
    /// The agent has reported the claim of this claimant, which is not released, and is silent.
    SilentOwn,
    /// It may be claimed, and its agent reports no claim of another claimant that may run.
    Eligible,
    /// It may not be claimed, or it may run the claim of another claimant, or it has released the claim of this one.
    Ineligible,
}

/// Next write of a claimant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimantStep {
    /// Add the finalizer.
    AddFinalizer,
    /// Choose a host, and record it in `machineName`.
    Choose,
    /// Create the claim of the recorded host.
    CreateClaim,
    /// Remove `machineName`: another claimant has the host, it may not be claimed, or there is no such host.
    Forget,
    /// Write `providerID`.
    SetProviderId,
    /// Delete the claim.
    DeleteClaim,
    /// Remove the finalizer.
    RemoveFinalizer,
    /// Nothing: the claim decides.
    Claimed,
    /// Nothing: the host is lost, and the owner must replace the claimant.
    Lost,
    /// Nothing: the host is being released.
    AwaitRelease,
    /// Nothing: it is deleted, the claim object is lost, and the host that may run it is silent.
    AwaitHost,
    /// Nothing: it is deleted, and it has no finalizer of the provider.
    Done,
}

impl ClaimantStep {
    /// Returns true if the step must be decided again by live reads of claimant, claim and host before its write. A stale cache could show no
    /// claim where there is one.
    pub const fn needs_live_read(self) -> bool {
        match self {
            Self::Forget | Self::RemoveFinalizer | Self::CreateClaim => true,
            Self::AddFinalizer
            | Self::Choose
            | Self::SetProviderId
            | Self::DeleteClaim
            | Self::Claimed
            | Self::Lost
            | Self::AwaitRelease
            | Self::AwaitHost
            | Self::Done => false,
        }
    }
}

/// Decides the next write of a claimant.
pub fn next_of_claimant(claimant: &Claimant<'_>, claim: HeldBy, host: Host) -> ClaimantStep {
    match (claimant.is_deleting, claimant.has_finalizer) {
        (true, false) => return ClaimantStep::Done,
        (false, false) => return ClaimantStep::AddFinalizer,
        (_, true) => {}
    }
    let is_claimed = claimant.provider_id.is_some();
    if claimant.machine_name.is_none() {
        return if claimant.is_deleting { ClaimantStep::RemoveFinalizer } else { ClaimantStep::Choose };
    }
    match (claim, host) {
        // The claim object was lost, for instance with a backup: the host still runs it. Without the object it could not be released.
        // A silent host could not release it, so a deleted claimant would wait for an object that it has made itself.
        (HeldBy::Free, Host::SilentOwn) if is_claimed && claimant.is_deleting => ClaimantStep::AwaitHost,
        (HeldBy::Free, Host::RunsOwn | Host::SilentOwn) if is_claimed => ClaimantStep::CreateClaim,
        (HeldBy::Free | HeldBy::Other, _) if claimant.is_deleting => ClaimantStep::RemoveFinalizer,
        (HeldBy::Free | HeldBy::Other, _) if is_claimed => ClaimantStep::Lost,
        (HeldBy::Free, Host::Gone | Host::Ineligible) | (HeldBy::Other, _) => ClaimantStep::Forget,
        (HeldBy::Free, Host::Eligible | Host::RunsOwn | Host::SilentOwn) => ClaimantStep::CreateClaim,
        (HeldBy::Own { is_deleting: false, .. }, _) if claimant.is_deleting => ClaimantStep::DeleteClaim,
        (HeldBy::Own { is_released: true, .. }, _) if claimant.is_deleting => ClaimantStep::RemoveFinalizer,
        (HeldBy::Own { .. }, Host::Gone) if claimant.is_deleting => ClaimantStep::RemoveFinalizer,
        (HeldBy::Own { .. }, _) if claimant.is_deleting => ClaimantStep::AwaitRelease,
        (HeldBy::Own { is_deleting: true, .. }, _) if is_claimed => ClaimantStep::Lost,
        (HeldBy::Own { is_released: true, .. }, _) if is_claimed => ClaimantStep::Lost,
        // It was never granted: without providerID no claim is.
        (HeldBy::Own { is_deleting: true, .. }, _) => ClaimantStep::Forget,
        (HeldBy::Own { .. }, _) if is_claimed => ClaimantStep::Claimed,
        (HeldBy::Own { .. }, _) => ClaimantStep::SetProviderId,
    }
}

/// A MachineClaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// True if it is being deleted.
    pub is_deleting: bool,
    /// Permission to start.
    pub grant: Grant,
    /// Right of the host to read the user data.
    pub right: Right,
    /// True if the host was granted the claim, and has not started it in time.
    pub is_overdue: bool,
    /// State on the host, as the agent has reported it in the claim. None: nothing about this claim.
    pub state: Option<ClaimState>,
    /// State on the host, as the agent has reported it in the Machine. None: nothing about this claim.
    pub recorded: Option<ClaimState>,
    /// State of another claim that the agent reports in the Machine.
    pub other: Option<ClaimState>,
    /// True if the agent was heard since the claim was made.
    pub is_heard: bool,
    /// True if the host has another enrollment than the claim names.
    pub has_other_key: bool,
    /// Silence of the host at its release.
    pub silence: Silence,
    /// True if condition `Fenced` is True.
    pub is_fenced: bool,
    /// True if the host must be wiped, and its Machine does not report the wipe of this claim.
    pub lacks_wipe: bool,
    /// True if the Machine exists.
    pub has_machine: bool,
}

/// Permission of a host to start a claim (condition `Granted`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Grant {
    /// The host was never allowed to start.
    Never,
    /// The host may start.
    Open,
    /// The host was allowed to start. It may have started.
    Ended,
}

/// Right of a host to read the user data: the Role and the RoleBinding that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Right {
    /// Neither exists, and the claim needs none.
    NotNeeded,
    /// Neither exists.
    Absent,
    /// One of both exists.
    Partial,
    /// Both exist.
    Complete,
}

/// Silence of a host at its release (D8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Silence {
    /// The host was heard, or the timeout has not expired.
    Heard,
    /// A user has confirmed that the host is off.
    ConfirmedOff,
    /// The host is silent, and has no BMC.
    NoBmc,
    /// The host is silent, and no operation powers it off yet.
    NotAsked,
    /// An operation powers the host off.
    PoweringOff,
    /// An operation has powered the host off.
    PoweredOff,
    /// The operation that powers the host off has failed.
    PowerOffFailed,
}

/// The claimant of a claim, by a live read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It does not exist, or another object has its name.
    Absent,
    /// It is being deleted. It deletes the claim.
    Deleting,
    /// It has recorded another host, or none.
    Elsewhere,
    /// It has recorded this host, and its `providerID` is not set.
    Recorded,
    /// It holds this host.
    Holding,
    /// It holds this host, and only its UID is another one: it was restored from a backup.
    Restored,
}

/// Next write of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimStep {
    /// End the right of the host to read the user data.
    Withdraw,
    /// Correct the enrollment that the claim names.
    CorrectEnrollment,
    /// Let the host read the user data, and set `Granted` to True.
    Grant,
    /// Delete a claim without a claimant: its host has not started it, or has released it.
    Delete,
    /// Set `Orphaned`: a user must decide.
    Orphan,
    /// Correct the UID of the claimant.
    CorrectUid,
    /// Create the operation that powers the host off.
    PowerOff,
    /// Set `Fenced` to True.
    Fence,
    /// Remove the finalizer.
    RemoveFinalizer,
    /// Nothing: the claimant deletes the claim.
    AwaitDeletion,
    /// Nothing: the claimant has not written `providerID` yet.
    AwaitProviderId,
    /// Nothing: the agent was not heard yet.
    AwaitAgent,
    /// Nothing: the host may run the claim of another claimant, and must release it first.
    AwaitHost,
    /// Nothing: the host has not started in time, and the owner must replace the claimant.
    Overdue,
    /// Nothing: the host releases the claim.
    AwaitRelease,
    /// Nothing: the host is silent, and an operation or a user must power it off.
    AwaitPowerOff,
    /// Nothing: it is granted, and its claimant exists.
    Granted,
}

/// Decides the next write of a claim.
pub fn next_of_claim(claim: &Claim, claimant: Found) -> ClaimStep {
    // The right ends before anything else changes: the former key must not read what the claim names next.
    if matches!(claim.right, Right::Partial | Right::Complete) && !needs_right(claim, claimant) {
        return ClaimStep::Withdraw;
    }
    if claim.is_deleting {
        return next_of_deleted(claim, claimant);
    }
    if claim.has_other_key {
        return ClaimStep::CorrectEnrollment;
    }
    match claimant {
        Found::Deleting => ClaimStep::AwaitDeletion,
        Found::Absent | Found::Elsewhere => without_claimant(claim),
        Found::Restored => ClaimStep::CorrectUid,
        Found::Holding => of_holder(claim),
        Found::Recorded => ClaimStep::AwaitProviderId,
    }
}

/// Returns true while the host may have to read the user data.
fn needs_right(claim: &Claim, claimant: Found) -> bool {
    let is_current = !claim.is_deleting && !claim.has_other_key && !claim.is_overdue;
    is_current && claimant == Found::Holding && !has_started(claim.state) && is_free(claim.other)
}

/// Returns true if the host has read the user data of a claim in this state.
pub const fn has_started(state: Option<ClaimState>) -> bool {
    !matches!(state, None | Some(ClaimState::Preparing))
}

/// A claim whose claimant holds the host.
fn of_holder(claim: &Claim) -> ClaimStep {
    if has_started(claim.state) {
        return ClaimStep::Granted;
    }
    if claim.is_overdue {
        return ClaimStep::Overdue;
    }
    if !is_free(claim.other) {
        return ClaimStep::AwaitHost;
    }
    // A right that another writer has removed is given again.
    let has_right = matches!(claim.right, Right::NotNeeded | Right::Complete);
    match claim.grant {
        Grant::Open if has_right => ClaimStep::Granted,
        Grant::Never | Grant::Open | Grant::Ended if claim.is_heard => ClaimStep::Grant,
        Grant::Never | Grant::Open | Grant::Ended => ClaimStep::AwaitAgent,
    }
}

fn next_of_deleted(claim: &Claim, claimant: Found) -> ClaimStep {
    // A claim that was never granted has not run. Its host may never report it, while it holds another one.
    let never_ran = claim.grant == Grant::Never && claim.other.is_some() && claim.state.is_none();
    // An agent of an earlier version releases a host without the wipe.
    let is_released = claim.state == Some(ClaimState::Released) && !claim.lacks_wipe;
    if is_released || never_ran || !claim.has_machine {
        return ClaimStep::RemoveFinalizer;
    }
    // Otherwise no report of the release would be accepted.
    if claim.has_other_key {
        return ClaimStep::CorrectEnrollment;
    }
    // The claimant waits for the host. Without one, nothing needs the host to be off. Nothing of the claim is left on a host that was emptied,
    // and a power-off could interrupt its wipe.
    let is_emptied = claim.state.is_some_and(ClaimState::is_emptied);
    if claim.is_fenced || claimant != Found::Deleting || is_emptied {
        return ClaimStep::AwaitRelease;
    }
    match claim.silence {
        Silence::Heard => ClaimStep::AwaitRelease,
        Silence::NotAsked => ClaimStep::PowerOff,
        Silence::ConfirmedOff | Silence::PoweredOff => ClaimStep::Fence,
        Silence::NoBmc | Silence::PoweringOff | Silence::PowerOffFailed => ClaimStep::AwaitPowerOff,
    }
}

/// A claim that was restored from a backup has no status, so the agent must report that nothing of it has run.
fn without_claimant(claim: &Claim) -> ClaimStep {
    let states = [claim.state, claim.recorded];
    // A user has released the host. It never runs this claim again, so nothing is lost.
    if states.contains(&Some(ClaimState::Released)) {
        return ClaimStep::Delete;
    }
    let has_run = |state: &ClaimState| !matches!(state, ClaimState::Preparing);
    if claim.grant != Grant::Never || states.iter().flatten().any(has_run) {
        return ClaimStep::Orphan;
    }
    if !claim.is_heard && states == [None, None] { ClaimStep::AwaitAgent } else { ClaimStep::Delete }
}

/// Returns true if a host whose agent has recorded a claim in this state may be claimed again, once its claim object is gone. Nothing has run
/// in `Preparing`.
pub const fn is_free(recorded: Option<ClaimState>) -> bool {
    matches!(recorded, None | Some(ClaimState::Preparing | ClaimState::Released))
}
