//! Pure: the next write for a MachineClaim, and its conditions.

use std::sync::Arc;

use bedplate_api::claim::{
    ClaimState, ENROLLMENT_ANNOTATION, MachineClaim, MachineClaimStatus, condition_type,
};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_api::condition::set_condition;
use bedplate_api::enrollment::KeyId;
use bedplate_api::machine::Machine;
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::claim::{GrantedReason, OrphanedReason};
use bedplate_claim::{Claim, ClaimStep, Found, next_of_claim};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::infrastructure::machine::plan::{is_own, reported_state};

/// Objects that decide about a MachineClaim.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The MachineClaim.
    pub claim: Arc<MachineClaim>,
    /// Its host.
    pub host: Option<Arc<Machine>>,
    /// The BedplateMachine with the name of the claimant.
    pub claimant: Option<Arc<BedplateMachine>>,
}

/// Compares a claim with the object that has the name of its claimant.
pub fn found(claim: &MachineClaim, claimant: Option<&BedplateMachine>) -> Found {
    let Some(claimant) = claimant.filter(|claimant| is_own(claim, claimant)) else { return Found::Absent };
    let is_here = claimant.spec.machine_name.as_ref().is_some_and(|name| name.as_str() == claim.name_any());
    let is_same = Some(&claim.spec.claimant.uid) == claimant.metadata.uid.as_ref();
    if claimant.metadata.deletion_timestamp.is_some() {
        return Found::Deleting;
    }
    match &claimant.spec.provider_id {
        _ if !is_here => Found::Elsewhere,
        None => Found::Recorded,
        Some(id) if *id != claim.spec.provider_id => Found::Elsewhere,
        Some(_) if is_same => Found::Holding,
        Some(_) => Found::Restored,
    }
}

/// Decides the next write.
pub fn next(observed: &Observed) -> ClaimStep {
    next_of_claim(&facts(observed), found(&observed.claim, observed.claimant.as_deref()))
}

fn facts(observed: &Observed) -> Claim {
    let claim = &*observed.claim;
    let status = observed.host.as_ref().and_then(|host| host.status.as_ref());
    let record = status.and_then(|status| status.claim.as_ref());
    let is_this = |id: &str| id == claim.spec.provider_id;
    Claim {
        is_deleting: claim.metadata.deletion_timestamp.is_some(),
        is_granted: is_granted(claim),
        state: reported_state(claim),
        recorded: record.filter(|record| is_this(&record.provider_id)).map(|record| record.state),
        records_other: record.is_some_and(|record| !is_this(&record.provider_id)),
        is_heard: is_heard(observed) && enrollment(observed).is_none(),
        has_machine: observed.host.is_some(),
    }
}

/// Returns true if the agent was heard since the claim was made.
fn is_heard(observed: &Observed) -> bool {
    if reported_state(&observed.claim).is_some() {
        return true;
    }
    let status = observed.host.as_ref().and_then(|host| host.status.as_ref());
    let heartbeat = status.and_then(|status| status.agent.as_ref()?.last_heartbeat_time.as_ref());
    let made = observed.claim.metadata.creation_timestamp.as_ref();
    heartbeat.zip(made).is_some_and(|(heartbeat, made)| heartbeat.0 >= made.0)
}

/// Returns the enrollment of the host, if the claim names another one.
pub fn enrollment(observed: &Observed) -> Option<&KeyId> {
    let status = observed.host.as_ref().and_then(|host| host.status.as_ref())?;
    let key = status.enrollment.as_ref()?.key_id.as_ref()?;
    let named = observed.claim.annotations().get(ENROLLMENT_ANNOTATION);
    (named.map(String::as_str) != Some(key.to_string().as_str())).then_some(key)
}

/// Returns true if condition `Granted` is True.
pub fn is_granted(claim: &MachineClaim) -> bool {
    condition(claim, condition_type::GRANTED).is_some_and(|(status, _)| status == "True")
}

fn condition<'a>(claim: &'a MachineClaim, type_: &str) -> Option<(&'a str, &'a str)> {
    let conditions = &claim.status.as_ref()?.conditions;
    let found = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((&found.status, &found.reason))
}

/// Returns true if the host has read the user data.
pub fn has_started(claim: &MachineClaim) -> bool {
    reported_state(claim).is_some_and(|state| state != ClaimState::Preparing)
}

/// Returns true if the host may still read the Secret with the user data, and must not any more.
pub fn must_withdraw(claim: &MachineClaim) -> bool {
    let is_open = condition(claim, condition_type::GRANTED).is_some_and(|(_, reason)| {
        [GrantedReason::Granted.as_str(), GrantedReason::GrantFailed.as_str()].contains(&reason)
    });
    is_open && (has_started(claim) || claim.metadata.deletion_timestamp.is_some())
}

/// Returns the conditions of a claim after a step. `granted`: reason of `Granted`, if the step has decided it.
pub fn status(
    claim: &MachineClaim,
    step: ClaimStep,
    granted: Option<(GrantedReason, &str)>,
    now: Timestamp,
) -> MachineClaimStatus {
    let conditions = claim.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut status = MachineClaimStatus { conditions, ..MachineClaimStatus::default() };
    let generation = claim.metadata.generation;
    let decided = granted.map(|(reason, message)| (reason, message.to_owned())).or_else(|| {
        let reason = match step {
            ClaimStep::AwaitAgent => GrantedReason::AwaitingAgent,
            ClaimStep::AwaitDeletion => GrantedReason::ClaimantDeleting,
            ClaimStep::Orphan | ClaimStep::Delete => GrantedReason::ClaimantNotFound,
            ClaimStep::Grant
            | ClaimStep::CorrectUid
            | ClaimStep::RemoveFinalizer
            | ClaimStep::AwaitProviderId
            | ClaimStep::AwaitRelease
            | ClaimStep::Granted => return None,
        };
        // A host that runs a claim does not stop because it is no longer granted, so the condition stays.
        (!is_granted(claim)).then(|| (reason, reason.meaning().to_owned()))
    });
    if let Some((reason, message)) = decided {
        let is_granted = matches!(reason, GrantedReason::Granted | GrantedReason::GrantWithdrawn);
        set_condition(&mut status, is_granted, reason, &message, generation, now);
    }
    let was_orphaned = condition(claim, condition_type::ORPHANED).is_some();
    if step == ClaimStep::Orphan || was_orphaned {
        let is_orphaned = step == ClaimStep::Orphan;
        let reason =
            if is_orphaned { OrphanedReason::ClaimantNotFound } else { OrphanedReason::ClaimantFound };
        set_condition(&mut status, is_orphaned, reason, reason.meaning(), generation, now);
    }
    status
}

#[cfg(test)]
mod tests;
