//! Pure: the protocol by which BedplateMachines hold hosts (docs/infrastructure-provider.md): the next write of a claimant, and the next write of a claim.
//!
//! ```text
//! claimant   finalizer -> machineName -> MachineClaim -> providerID -> (host: Joined) -> deleted -> claim deleted -> Released -> finalizer
//! claim      made -> Role, RoleBinding, Granted -> deleted by its claimant -> (host: Released) -> finalizer
//! ```
//! The name of a claim is the name of its host, so the API server lets one claimant have a host. A claimant records its choice first, bound to
//! its resource version, so it has one host also after a crash between any two writes. The host starts nothing before `Granted`, and `Granted`
//! follows a live read of the claimant. So a claim that a former leader makes late never runs.
//!
//! A decision may rest on objects that have changed since. Each write is bound to the version of its object, and steps that
//! [`ClaimantStep::needs_live_read`] names are decided again by live reads before the write. `exploration` checks all of this for 2 claimants,
//! 2 hosts, 2 leaders, stale reads, and crashes between any two steps. Called by `bedplate-cluster`.

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
    /// It is another claimant's.
    Other,
    /// It is the claimant's own.
    Own {
        /// True if it is being deleted.
        is_deleting: bool,
        /// True if the host has released it, or is fenced.
        is_released: bool,
    },
}

/// The host, as its Machine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// There is no such Machine.
    Gone,
    /// Its agent reports the claim of this claimant, which is not released. It may run it.
    RunsOwn,
    /// Its agent reports no claim, another one, or a released one.
    Idle,
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
    /// Remove `machineName`: another claimant has the host, or there is no such host.
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
        (HeldBy::Free, Host::RunsOwn) if is_claimed => ClaimantStep::CreateClaim,
        (HeldBy::Free | HeldBy::Other, _) if claimant.is_deleting => ClaimantStep::RemoveFinalizer,
        (HeldBy::Free | HeldBy::Other, _) if is_claimed => ClaimantStep::Lost,
        (HeldBy::Free, Host::Gone) | (HeldBy::Other, _) => ClaimantStep::Forget,
        (HeldBy::Free, Host::Idle | Host::RunsOwn) => ClaimantStep::CreateClaim,
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
    /// True if its condition `Granted` is True.
    pub is_granted: bool,
    /// State on the host, as the agent has reported it in the claim. None: nothing about this claim.
    pub state: Option<ClaimState>,
    /// State on the host, as the agent has reported it in the Machine. None: nothing about this claim.
    pub recorded: Option<ClaimState>,
    /// True if the agent reports another claim in the Machine.
    pub records_other: bool,
    /// True if the agent was heard since the claim was made, and its enrollment is the one that the claim names.
    pub is_heard: bool,
    /// True if the Machine exists.
    pub has_machine: bool,
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
    /// Let the host read the user data, and set `Granted` to True.
    Grant,
    /// Delete a claim that its host has not started.
    Delete,
    /// Set `Orphaned`: a user must decide.
    Orphan,
    /// Correct the UID of the claimant.
    CorrectUid,
    /// Remove the finalizer.
    RemoveFinalizer,
    /// Nothing: the claimant deletes the claim.
    AwaitDeletion,
    /// Nothing: the claimant has not written `providerID` yet.
    AwaitProviderId,
    /// Nothing: the agent was not heard yet.
    AwaitAgent,
    /// Nothing: the host releases the claim.
    AwaitRelease,
    /// Nothing: it is granted, and its claimant exists.
    Granted,
}

/// Decides the next write of a claim.
pub fn next_of_claim(claim: &Claim, claimant: Found) -> ClaimStep {
    if claim.is_deleting {
        // A claim that was never granted has not run. Its host may never report it, while it holds another one.
        let never_ran = !claim.is_granted && claim.records_other && claim.state.is_none();
        let is_released = claim.state == Some(ClaimState::Released) || never_ran || !claim.has_machine;
        return if is_released { ClaimStep::RemoveFinalizer } else { ClaimStep::AwaitRelease };
    }
    match claimant {
        Found::Deleting => ClaimStep::AwaitDeletion,
        Found::Absent | Found::Elsewhere => without_claimant(claim),
        Found::Restored => ClaimStep::CorrectUid,
        Found::Holding if claim.is_granted => ClaimStep::Granted,
        Found::Holding if claim.is_heard => ClaimStep::Grant,
        Found::Holding => ClaimStep::AwaitAgent,
        Found::Recorded => ClaimStep::AwaitProviderId,
    }
}

/// A claim that was restored from a backup has no status, so the agent must report that nothing of it has run.
fn without_claimant(claim: &Claim) -> ClaimStep {
    let states = [claim.state, claim.recorded];
    let has_run = |state: &ClaimState| !matches!(state, ClaimState::Preparing | ClaimState::Released);
    if claim.is_granted || states.iter().flatten().any(has_run) {
        return ClaimStep::Orphan;
    }
    if !claim.is_heard && states == [None, None] { ClaimStep::AwaitAgent } else { ClaimStep::Delete }
}

/// Returns true if a host whose agent has recorded a claim in this state may be claimed again, once its claim object is gone. Nothing has run
/// in `Preparing`.
pub const fn is_free(recorded: Option<ClaimState>) -> bool {
    matches!(recorded, None | Some(ClaimState::Preparing | ClaimState::Released))
}
