//! Pure: the next write for a MachineClaim, and its conditions.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::claim::{
    ClaimState, ENROLLMENT_ANNOTATION, MachineClaim, MachineClaimStatus, TENANT_ENROLLMENTS_ANNOTATION,
    condition_type,
};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_api::condition::set_condition;
use bedplate_api::enrollment::KeyId;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{ClaimStatus, Machine};
use bedplate_api::operation::{MachineOperation, MachineOperationSpec, MachineRef, OperationState};
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::claim::{FencedReason, GrantedReason, OrphanedReason};
use bedplate_claim::{Claim, ClaimStep, Found, Grant, Right, Silence, has_started, is_free, next_of_claim};
use bedplate_rules::claim::eligible::heartbeat;
use bedplate_rules::claim::wipe::{enrollments_to_record, owed_wipe, releases_with_wipe, unwiped};
use bedplate_rules::selection::was_granted;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::clock::FutureHeartbeat;

use crate::infrastructure::machine::plan::{is_confirmed_off, is_fenced, is_own, reported_state};

/// Objects that decide about a MachineClaim.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The MachineClaim.
    pub claim: Arc<MachineClaim>,
    /// The host.
    pub host: Option<Arc<Machine>>,
    /// The BedplateMachine with the name of the claimant.
    pub claimant: Option<Arc<BedplateMachine>>,
    /// Right of the host to read the user data.
    pub right: Right,
    /// The operation that powers the silent host off.
    pub operation: Option<Arc<MachineOperation>>,
    /// The present heartbeat of the host, if that was in the future when this process saw it first.
    pub future_heartbeat: Option<FutureHeartbeat>,
    /// The present time.
    pub now: Timestamp,
}

/// Time for which a host may read the user data before it starts. A host that fetches an image starts within.
const GRANT_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);
/// Default of `releaseTimeoutSeconds`.
const RELEASE_TIMEOUT: SignedDuration = SignedDuration::from_secs(900);

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

/// Returns true if the claimant of a claim is gone, and the claim is deleted or its host is released. The host is the operator's from then on. A
/// tenant would keep it otherwise, by a pause of its Cluster, or by another BedplateMachine with the name of the claimant.
pub(crate) fn is_abandoned(observed: &Observed) -> bool {
    let claim = &observed.claim;
    let has_claimant = observed
        .claimant
        .as_ref()
        .is_some_and(|claimant| claimant.uid().as_deref() == Some(claim.spec.claimant.uid.as_str()));
    let is_released = reported_state(claim) == Some(ClaimState::Released);
    !has_claimant && (claim.metadata.deletion_timestamp.is_some() || is_released)
}

/// Returns how a claim ends, after the name of its Machine.
pub(crate) fn end_text(claim: &MachineClaim, host: Option<&Machine>) -> &'static str {
    match host {
        Some(host) if releases_with_wipe(claim, host) => "is released, after its wipe",
        Some(_) => "is released",
        None => "does not exist, and its claim ends",
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
    let claimant = &claim.spec.claimant;
    let is_this = |record: &&ClaimStatus| {
        record.provider_id == claim.spec.provider_id
            && record.claimant.namespace == claimant.namespace
            && record.claimant.name == claimant.name
    };
    Claim {
        is_deleting: claim.metadata.deletion_timestamp.is_some(),
        grant: grant(claim),
        right: observed.right,
        is_overdue: is_overdue(claim, observed.now),
        state: reported_state(claim),
        recorded: record.filter(is_this).map(|record| record.state),
        other: other(claim, record.filter(|record| !is_this(record))),
        is_heard: is_heard(observed),
        has_other_key: enrollment(observed).is_some(),
        silence: silence(observed),
        is_fenced: is_fenced(claim),
        lacks_wipe: observed.host.as_deref().is_some_and(|host| owed_wipe(claim, host).is_some()),
        has_machine: observed.host.is_some(),
    }
}

/// Returns the state of another claim that the agent reports, in the Machine or in the status of this one, which it refuses then. One of both
/// reports may be behind.
fn other(claim: &MachineClaim, record: Option<&ClaimStatus>) -> Option<ClaimState> {
    let status = claim.status.as_ref();
    let refused =
        status.filter(|status| status.provider_id.as_ref().is_some_and(|id| *id != claim.spec.provider_id));
    let states = [record.map(|record| record.state), refused.and_then(|status| status.state)];
    let held = states.into_iter().flatten().find(|state| !is_free(Some(*state)));
    held.or_else(|| states.into_iter().flatten().next())
}

/// Returns true if the host has run a claim that has no grant: the claim object was lost, and was created again.
fn has_run_without_grant(observed: &Observed) -> bool {
    let claim = &*observed.claim;
    let status = observed.host.as_ref().and_then(|host| host.status.as_ref());
    let record = status.and_then(|status| status.claim.as_ref());
    let recorded = record.filter(|record| record.provider_id == claim.spec.provider_id);
    let states = [reported_state(claim), recorded.map(|record| record.state)];
    // A host empties itself also if nothing has run.
    let runs = |state: &ClaimState| match state {
        ClaimState::Bootstrapping | ClaimState::Joined | ClaimState::Failed | ClaimState::Unknown => true,
        ClaimState::Preparing | ClaimState::Releasing | ClaimState::Wiping | ClaimState::Released => false,
    };
    grant(claim) == Grant::Never && states.iter().flatten().any(runs)
}

/// Returns the silence of a host at its release (D8). The timeout starts with the deletion of the claim at the earliest: agents may have been
/// cut off from the API server with their provider.
fn silence(observed: &Observed) -> Silence {
    let claim = &*observed.claim;
    let is_deleting = claim.metadata.deletion_timestamp.is_some();
    let Some(host) = observed.host.as_deref().filter(|_| is_deleting) else {
        return Silence::Heard;
    };
    if is_confirmed_off(host, &claim.spec.provider_id) {
        return Silence::ConfirmedOff;
    }
    if release_deadline(observed).is_none_or(|deadline| observed.now < deadline) {
        return Silence::Heard;
    }
    if host.spec.bmc.is_none() {
        return Silence::NoBmc;
    }
    let Some(operation) = &observed.operation else { return Silence::NotAsked };
    if !is_fence(operation, claim) {
        return Silence::PowerOffFailed;
    }
    match operation.status.as_ref().and_then(|status| status.state) {
        Some(OperationState::Complete) => Silence::PoweredOff,
        Some(OperationState::Failed) => Silence::PowerOffFailed,
        None | Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) => {
            Silence::PoweringOff
        }
    }
}

/// Returns the time until which the host of a deleted claim may be silent.
pub(crate) fn release_deadline(observed: &Observed) -> Option<Timestamp> {
    let deleted = observed.claim.metadata.deletion_timestamp.as_ref()?.0;
    observed.host.as_ref()?;
    let last = last_heard(observed).map_or(deleted, |heard| heard.max(deleted));
    let timeout = observed.claimant.as_ref().and_then(|claimant| claimant.spec.release_timeout_seconds);
    let timeout = timeout.map_or(RELEASE_TIMEOUT, |seconds| SignedDuration::from_secs(seconds.into()));
    last.checked_add(timeout).ok()
}

/// Returns the name of the operation that powers the silent host of a claim off.
pub(crate) fn fence_name(claim: &MachineClaim) -> String {
    format!("fence-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// Returns the operation that powers the silent host of a claim off. pxed leaves such a host off until another operation powers it on.
pub fn fence(claim: &MachineClaim) -> Option<MachineOperation> {
    let name: MachineName = claim.name_any().parse().ok()?;
    let spec = MachineOperationSpec {
        machine_ref: Some(MachineRef { name }),
        machine_selector: None,
        operation_name: "powerOff".to_owned(),
        parameters: [("force".to_owned(), "true".to_owned())].into(),
        ttl_seconds_after_finished: None,
        timeout_seconds: None,
        max_parallel: None,
        failure_limit: None,
    };
    Some(MachineOperation::new(&fence_name(claim), spec))
}

/// Returns true if an operation powers this host off by force. Another writer may have created an operation with this name.
fn is_fence(operation: &MachineOperation, claim: &MachineClaim) -> bool {
    let Some(own) = fence(claim) else { return false };
    let is_force =
        |spec: &MachineOperationSpec| spec.parameters.get("force").is_some_and(|force| force == "true");
    operation.spec.machine_ref == own.spec.machine_ref
        && operation.spec.operation_name == own.spec.operation_name
        && is_force(&operation.spec)
}

/// Returns true if the agent was heard since the claim was made. The first sight of a heartbeat in the future does not count.
fn is_heard(observed: &Observed) -> bool {
    if reported_state(&observed.claim).is_some() {
        return true;
    }
    let made = observed.claim.metadata.creation_timestamp.as_ref();
    let is_new = observed.future_heartbeat.is_none_or(|heartbeat| heartbeat.is_changed);
    is_new && last_heard(observed).zip(made).is_some_and(|(heard, made)| heard >= made.0)
}

/// Returns the time at which the agent was heard last.
fn last_heard(observed: &Observed) -> Option<Timestamp> {
    let heartbeat = heartbeat(observed.host.as_deref()?)?;
    Some(observed.future_heartbeat.map_or(heartbeat, |sight| sight.seen_at))
}

/// Returns the enrollment of the host, if the claim names another one.
pub fn enrollment(observed: &Observed) -> Option<&KeyId> {
    let status = observed.host.as_ref().and_then(|host| host.status.as_ref())?;
    let key = status.enrollment.as_ref()?.key_id.as_ref()?;
    let named = observed.claim.annotations().get(ENROLLMENT_ANNOTATION);
    (named.map(String::as_str) != Some(key.to_string().as_str())).then_some(key)
}

/// Returns the annotations that correct the enrollment of a claim. None: it names the present one.
pub(crate) fn enrollment_annotations(observed: &Observed) -> Option<BTreeMap<&'static str, String>> {
    let key = enrollment(observed)?.to_string();
    let recorded = enrollments_to_record(&observed.claim, observed.host.as_deref(), &key);
    let recorded = recorded.map(|list| (TENANT_ENROLLMENTS_ANNOTATION, list));
    Some([(ENROLLMENT_ANNOTATION, key)].into_iter().chain(recorded).collect())
}

/// Returns the permission of the host, as condition `Granted` has it.
pub fn grant(claim: &MachineClaim) -> Grant {
    match condition(claim, condition_type::GRANTED) {
        Some(("True", reason)) if reason == GrantedReason::Granted.as_str() => Grant::Open,
        Some(_) if was_granted(claim) => Grant::Ended,
        Some(_) | None => Grant::Never,
    }
}

/// Returns true if the host was granted the claim, and has not started it in time.
fn is_overdue(claim: &MachineClaim, now: Timestamp) -> bool {
    if claim.spec.bootstrap_secret_name.is_none() || has_started(reported_state(claim)) {
        return false;
    }
    let has_expired = condition(claim, condition_type::GRANTED)
        .is_some_and(|(_, reason)| reason == GrantedReason::GrantExpired.as_str());
    has_expired || grant_deadline(claim).is_some_and(|deadline| now > deadline)
}

/// Returns the time until which a granted host must start.
pub(crate) fn grant_deadline(claim: &MachineClaim) -> Option<Timestamp> {
    let conditions = claim.status.iter().flat_map(|status| &status.conditions);
    let granted = conditions.into_iter().find(|one| one.type_ == condition_type::GRANTED)?;
    let is_open = granted.reason == GrantedReason::Granted.as_str();
    granted.last_transition_time.0.checked_add(GRANT_TIMEOUT).ok().filter(|_| is_open)
}

/// Returns true if Role and RoleBinding of a claim must be read. The right of a host that has started has ended.
pub(crate) fn reads_right(claim: &MachineClaim) -> bool {
    let is_withdrawn = condition(claim, condition_type::GRANTED)
        .is_some_and(|(_, reason)| reason == GrantedReason::GrantWithdrawn.as_str());
    claim.spec.bootstrap_secret_name.is_some() && !(is_withdrawn && has_started(reported_state(claim)))
}

/// Returns the reason of `Granted` after the end of a right. None: the host was never allowed to start.
pub fn withdrawn(observed: &Observed) -> Option<GrantedReason> {
    let claim = &*observed.claim;
    if grant(claim) == Grant::Never {
        return None;
    }
    let is_over = has_started(reported_state(claim)) || claim.metadata.deletion_timestamp.is_some();
    Some(match () {
        () if is_over => GrantedReason::GrantWithdrawn,
        () if is_overdue(claim, observed.now) => GrantedReason::GrantExpired,
        () if enrollment(observed).is_some() => GrantedReason::EnrollmentChanged,
        () => GrantedReason::GrantWithdrawn,
    })
}

fn condition<'a>(claim: &'a MachineClaim, type_: &str) -> Option<(&'a str, &'a str)> {
    let conditions = &claim.status.as_ref()?.conditions;
    let found = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((&found.status, &found.reason))
}

/// Returns the conditions of a claim after a step. `granted`: reason of `Granted`, if the step has decided it.
pub fn status(
    observed: &Observed,
    step: ClaimStep,
    granted: Option<(GrantedReason, &str)>,
) -> MachineClaimStatus {
    let (claim, now) = (&*observed.claim, observed.now);
    let conditions = claim.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut status = MachineClaimStatus { conditions, ..MachineClaimStatus::default() };
    let generation = claim.metadata.generation;
    let decided = granted.map(|(reason, message)| (reason, message.to_owned())).or_else(|| {
        // A claim that has run owes its wipe, and may not run again.
        let ran = has_run_without_grant(observed).then_some(GrantedReason::GrantWithdrawn);
        let reason = ran.or_else(|| waiting(step))?;
        // A host that runs a claim does not stop because it is no longer granted, so the condition stays.
        (grant(claim) == Grant::Never).then(|| (reason, reason.meaning().to_owned()))
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
    if let Some(reason) = observed.host.as_deref().and_then(|host| unwiped(claim, host)) {
        set_condition(&mut status, false, reason, reason.meaning(), generation, now);
    }
    if let Some((is_fenced, reason, message)) = fenced(observed, step) {
        set_condition(&mut status, is_fenced, reason, &message, generation, now);
    }
    status
}

/// Reason of `Granted` while a claim waits.
const fn waiting(step: ClaimStep) -> Option<GrantedReason> {
    match step {
        ClaimStep::AwaitAgent => Some(GrantedReason::AwaitingAgent),
        ClaimStep::AwaitHost => Some(GrantedReason::HostHeld),
        ClaimStep::AwaitDeletion => Some(GrantedReason::ClaimantDeleting),
        ClaimStep::Orphan | ClaimStep::Delete => Some(GrantedReason::ClaimantNotFound),
        ClaimStep::Withdraw
        | ClaimStep::CorrectEnrollment
        | ClaimStep::Grant
        | ClaimStep::CorrectUid
        | ClaimStep::PowerOff
        | ClaimStep::Fence
        | ClaimStep::RemoveFinalizer
        | ClaimStep::AwaitProviderId
        | ClaimStep::Overdue
        | ClaimStep::AwaitRelease
        | ClaimStep::AwaitPowerOff
        | ClaimStep::Granted => None,
    }
}

/// Step of a user who has powered a silent host off.
pub fn confirm_off(host: &str) -> String {
    format!("confirm it: `bedplate claim release {host} --host-is-off`")
}

/// Condition `Fenced`. None: it stays as it is.
fn fenced(observed: &Observed, step: ClaimStep) -> Option<(bool, FencedReason, String)> {
    let host = observed.claim.name_any();
    let confirm = confirm_off(&host);
    let (reason, message) = match (step, silence(observed)) {
        (ClaimStep::Fence, Silence::ConfirmedOff) => {
            (FencedReason::ConfirmedByUser, FencedReason::ConfirmedByUser.meaning().to_owned())
        }
        (ClaimStep::Fence, _) => (FencedReason::PoweredOff, FencedReason::PoweredOff.meaning().to_owned()),
        (ClaimStep::AwaitPowerOff, Silence::NoBmc) => (
            FencedReason::HostSilent,
            format!("Machine {host} does not report and has no BMC; power it off, then {confirm}"),
        ),
        (ClaimStep::AwaitPowerOff, Silence::PowerOffFailed) => {
            let status = observed.operation.as_ref().and_then(|operation| operation.status.as_ref());
            let is_own = observed.operation.as_ref().is_some_and(|found| is_fence(found, &observed.claim));
            let said = status.and_then(|status| status.message.as_deref()).unwrap_or("no message");
            let why = if is_own { said } else { "it is not a forced powerOff of this Machine" };
            let name = fence_name(&observed.claim);
            let text = format!(
                "MachineOperation {name} failed: {why}; delete it to try again, or power Machine {host} off and {confirm}"
            );
            (FencedReason::PowerOffFailed, text)
        }
        (ClaimStep::AwaitPowerOff, _) => {
            let text = format!(
                "Machine {host} does not report; MachineOperation {} powers it off",
                fence_name(&observed.claim)
            );
            (FencedReason::PoweringOff, text)
        }
        _ => return None,
    };
    Some((step == ClaimStep::Fence, reason, message))
}

#[cfg(test)]
mod tests;
