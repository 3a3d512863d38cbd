//! Plan of a claimed host: the next step of its claim.
//!
//! ```text
//!   claim seen ─► Accept ─ image ─ granted ─ user data ─ slot filled ─► Bootstrapping ─ reported ─ started ─ Node ─► Joined
//!                                                                           └─ exit code, reboot, timeout ─► Failed
//!   evidence of the end, at any time ─► Releasing ─ stopped, emptied ─► Released
//!                                                        └─ release: Wipe ─► Wiping (`wipe`)
//! ```
//! Nothing starts before the claim is granted. User data runs at most once for each claim, so a bootstrap that was
//! interrupted fails and is never repeated. A host is emptied only on evidence that its claim has ended; an absent claim object is not
//! evidence. A host that has joined starts its slot after a boot even if the API server does not answer.
//!
//! Pure: what is seen in, one step or one wait out. Called by the node's loop of a pool host, again after each step and each change.

use jiff::{SignedDuration, Timestamp};

mod facts;
#[cfg(test)]
mod tests;
mod wipe;

pub use facts::{
    Admission, ClaimFacts, ClaimObserved, ClaimPlan, ClaimReport, ClaimSeen, ClaimSlot, ClaimStep, Evidence,
    HostState, JoinedNode, Pending, PoolMachine, ReportedCause, ReportedState, Script, UserData,
};

use super::later;
use crate::model::Api;
use crate::node::claim_record::{ClaimRecord, ClaimStage, FailureCause, ProviderId};

/// Delay after a boot before a host that has joined starts its slot without an answer of the API server.
const START_DELAY: SignedDuration = SignedDuration::from_secs(120);

/// Decides.
pub(crate) fn plan_claim(seen: &ClaimObserved) -> ClaimPlan {
    match &seen.record {
        Some(record) if record.stage != ClaimStage::Released => on_held(seen, record),
        released => on_free(seen, released.as_ref()),
    }
}

/// Plans for a host without a claim: it accepts the claim that it sees, or refuses it.
fn on_free(seen: &ClaimObserved, released: Option<&ClaimRecord>) -> ClaimPlan {
    if seen.api != Api::Live {
        return wait(Pending::ApiServer);
    }
    let PoolMachine::Own { paused, deleting, .. } = &seen.machine else {
        return wait(Pending::Machine);
    };
    let claim = match &seen.claim {
        ClaimSeen::Unknown => return wait(Pending::ApiServer),
        // The claim object was lost during the wipe. Without a record, the Machine would report the wipe
        // without an end.
        ClaimSeen::Absent if released.is_none() && wipe::is_wiped_unseen(seen) => {
            return ClaimPlan::Do(ClaimStep::EndRelease);
        }
        ClaimSeen::Absent => return wait(Pending::Claim),
        ClaimSeen::Present(claim) => claim,
    };
    let id = &claim.provider_id;
    let is_released = released.is_some_and(|record| record.provider_id == *id);
    // A slot that is filled for the claim has lost its record, and is emptied like any other.
    let is_filled = seen.slot.filled.as_ref() == Some(id);
    let is_ending = claim.deleting || wipe::was_wiping(seen, id);
    let lacks_wipe = is_ending && wipe::lacks_wipe(seen, claim);
    if is_released && !lacks_wipe {
        return report(seen, id, Some(ReportedState::Released), None).unwrap_or(wait(Pending::Removal));
    }
    // The record is what the Machine reports: without it, bedplate-controller could not tell this claim from one that runs.
    if is_ending && !is_filled && !lacks_wipe {
        return ClaimPlan::Do(ClaimStep::EndRelease);
    }
    if *paused {
        return wait(Pending::Unpause);
    }
    if is_ending {
        return ClaimPlan::Do(ClaimStep::BeginRelease { evidence: Evidence::Deleted });
    }
    if *deleting {
        return wait(Pending::MachineDeletion);
    }
    on_new(seen, claim)
}

/// Plans for a host without a claim. It accepts or refuses this one, which has not ended.
fn on_new(seen: &ClaimObserved, claim: &ClaimFacts) -> ClaimPlan {
    match earlier(seen, claim) {
        Some(ReportedState::Released) => wait(Pending::Removal),
        // The record was lost with the state of the host, so the user data may have run.
        Some(
            ReportedState::Bootstrapping
            | ReportedState::Joined
            | ReportedState::Failed
            | ReportedState::Releasing
            | ReportedState::Wiping,
        ) => {
            fail(FailureCause::Interrupted, "the host lost its state, so the result of the claim is unknown")
        }
        // A restored claim object does not have its end.
        None | Some(ReportedState::Preparing) if seen.state.has_used(&claim.uid) => fail(
            FailureCause::Interrupted,
            "the host was wiped at the end of this claim; a claim runs only once",
        ),
        None | Some(ReportedState::Preparing)
            if !is_allowed(seen, claim)
                || wipe::cannot_end(seen, claim)
                || !seen.slot.is_empty
                || seen.slot.is_foreign =>
        {
            refuse(seen, &claim.provider_id, None)
        }
        None | Some(ReportedState::Preparing) => ClaimPlan::Do(ClaimStep::Accept),
    }
}

/// State of a claim by the reports of an earlier record, which this host does not have any more.
fn earlier(seen: &ClaimObserved, claim: &ClaimFacts) -> Option<ReportedState> {
    let PoolMachine::Own { last, .. } = &seen.machine else { return None };
    let reports = [&claim.reported, last].into_iter().flatten();
    let of_claim = reports.filter(|report| report.provider_id == claim.provider_id);
    of_claim.filter_map(|report| report.state).find(|state| *state != ReportedState::Preparing)
}

/// Plans for a host with a claim.
fn on_held(seen: &ClaimObserved, record: &ClaimRecord) -> ClaimPlan {
    let evidence = evidence(seen, record);
    if seen.api == Api::Live {
        // A slot that a boot has stopped is started even if the Machine is paused.
        let is_down =
            matches!(record.stage, ClaimStage::Joined { .. }) && !seen.slot.runs && evidence.is_none();
        match &seen.machine {
            PoolMachine::Foreign => return wait(Pending::Machine),
            PoolMachine::Own { paused: true, .. } if !is_down => return wait(Pending::Unpause),
            PoolMachine::Absent | PoolMachine::Own { .. } => {}
        }
    }
    match &record.stage {
        ClaimStage::Releasing => return on_releasing(seen, record),
        ClaimStage::Wiping { token, boot_id } => {
            return wipe::on_wiping(seen, record, token, *boot_id == seen.boot_id);
        }
        _ => {}
    }
    if let Some(evidence) = evidence {
        return ClaimPlan::Do(ClaimStep::BeginRelease { evidence });
    }
    match &record.stage {
        ClaimStage::Preparing => on_preparing(seen, record),
        ClaimStage::Bootstrapping { boot_id, timeout_seconds } => {
            let timeout = SignedDuration::from_secs(*timeout_seconds);
            on_bootstrapping(seen, record, *boot_id == seen.boot_id, timeout)
        }
        ClaimStage::Joined { .. } => on_joined(seen, record),
        ClaimStage::Failed { .. } => on_failed(seen, record),
        ClaimStage::Releasing | ClaimStage::Wiping { .. } | ClaimStage::Released => {
            on_releasing(seen, record)
        }
    }
}

/// Returns evidence that the recorded claim has ended. An absent claim object is not evidence.
fn evidence(seen: &ClaimObserved, record: &ClaimRecord) -> Option<Evidence> {
    if seen.api != Api::Live {
        return None;
    }
    if let ClaimSeen::Present(claim) = &seen.claim {
        let is_own = claim.provider_id == record.provider_id;
        if is_own && claim.deleting {
            return Some(Evidence::Deleted);
        }
        // Nothing is lost with a claim that has not run. Another one does not end a claim that has: a management cluster that was
        // restored from a backup grants a claim that has ended, too.
        let has_run = record.stage != ClaimStage::Preparing;
        if !is_own && !has_run && claim.granted && is_allowed(seen, claim) {
            return Some(Evidence::Replaced);
        }
    }
    let PoolMachine::Own { release, .. } = &seen.machine else { return None };
    (release.as_ref() == Some(&record.provider_id)).then_some(Evidence::Requested)
}

/// Plans for a claim of which nothing has run.
fn on_preparing(seen: &ClaimObserved, record: &ClaimRecord) -> ClaimPlan {
    let claim = match own_claim(seen, record) {
        Ok(claim) => claim,
        Err(plan) => return plan,
    };
    if !matches!(seen.machine, PoolMachine::Own { .. }) {
        return wait(Pending::Machine);
    }
    // The Machine's policy and the configuration's must both list the claimant's namespace.
    if !is_allowed(seen, claim) || seen.configuration == Admission::Refused {
        return refuse(seen, &record.provider_id, Some(ReportedState::Preparing));
    }
    if let Some(report) = report_record(seen, record) {
        return report;
    }
    let Some(timeout) = seen.timeout else { return wait(Pending::Version) };
    if seen.configuration != Admission::Allowed {
        return wait(Pending::Version);
    }
    if !seen.slot.has_image {
        return ClaimPlan::Do(ClaimStep::FetchImage);
    }
    if !claim.granted {
        return wait(Pending::Grant);
    }
    if record.has_user_data {
        match &seen.user_data {
            UserData::Absent => return ClaimPlan::Do(ClaimStep::RenderUserData),
            UserData::Refused { why } => return fail(FailureCause::UserDataRefused, why),
            UserData::Rendered => {}
        }
    }
    if seen.slot.filled.as_ref() != Some(&record.provider_id) {
        return ClaimPlan::Do(ClaimStep::FillSlot);
    }
    ClaimPlan::Do(ClaimStep::BeginBootstrap { timeout })
}

/// Plans for a filled slot. `same_boot`: the stage was reached in this boot.
fn on_bootstrapping(
    seen: &ClaimObserved,
    record: &ClaimRecord,
    same_boot: bool,
    timeout: SignedDuration,
) -> ClaimPlan {
    let runs = seen.slot.runs;
    let interrupted = || fail(FailureCause::Interrupted, "the user data was interrupted; it runs only once");
    let pending = match seen.slot.script {
        _ if !record.has_user_data && runs => return ClaimPlan::Do(ClaimStep::Join { node_uid: None }),
        _ if !record.has_user_data => return first_start(seen, record),
        Script::NotStarted if !same_boot => return interrupted(),
        Script::NotStarted if !runs => return first_start(seen, record),
        Script::Started if !same_boot || !runs => return interrupted(),
        Script::NotStarted | Script::Started => Pending::UserData,
        Script::Ended(0) => match joining(seen, record) {
            Ok(step) => return ClaimPlan::Do(step),
            Err(pending) => pending,
        },
        Script::Ended(code) => {
            return fail(FailureCause::BootstrapFailed, &format!("the user data exited with code {code}"));
        }
    };
    // A boot after the user data has ended is not a fault of the claim.
    let booted = seen.now.saturating_sub(seen.uptime).unwrap_or(Timestamp::MIN);
    let deadline = later(record.since.max(booted), timeout + seen.not_counted);
    if seen.now >= deadline {
        return fail(
            FailureCause::BootstrapFailed,
            &format!("the host did not join in time: {}", pending.describe()),
        );
    }
    match report_record(seen, record) {
        Some(report) => report,
        None => ClaimPlan::Wait { pending, until: Some(deadline) },
    }
}

/// Starts the slot for the first time, if the claim is granted and the provider knows that the bootstrap starts: it ends the right to read the
/// user data then.
fn first_start(seen: &ClaimObserved, record: &ClaimRecord) -> ClaimPlan {
    let claim = match own_claim(seen, record) {
        Ok(claim) => claim,
        Err(plan) => return plan,
    };
    if !claim.granted {
        return wait(Pending::Grant);
    }
    if let Some(report) = report_record(seen, record) {
        return report;
    }
    if !is_reported(claim, &of_record(record)) {
        return wait(Pending::Report);
    }
    let is_rendered = !record.has_user_data || seen.user_data == UserData::Rendered;
    if !is_rendered || seen.slot.filled.as_ref() != Some(&record.provider_id) {
        return fail(
            FailureCause::Interrupted,
            "the filled slot or its user data was lost; user data is read only once",
        );
    }
    ClaimPlan::Do(ClaimStep::StartSlot)
}

/// Returns the next step of a host whose user data has succeeded, or the reason for waiting.
fn joining(seen: &ClaimObserved, record: &ClaimRecord) -> Result<ClaimStep, Pending> {
    if seen.user_data == UserData::Rendered {
        return Ok(ClaimStep::ForgetUserData);
    }
    if !seen.slot.runs {
        return if may_start(seen) { Ok(ClaimStep::StartSlot) } else { Err(Pending::ApiServer) };
    }
    if !seen.slot.has_sentinel {
        return Err(Pending::Sentinel);
    }
    if !seen.slot.is_kubelet_healthy {
        return Err(Pending::Kubelet);
    }
    let JoinedNode::Present { uid, provider_id, is_labeled } = &seen.node else { return Err(Pending::Node) };
    let is_own = provider_id.as_ref() == Some(&record.provider_id);
    match provider_id {
        Some(_) if !is_own => Err(Pending::ProviderId),
        Some(_) if *is_labeled => Ok(ClaimStep::Join { node_uid: Some(uid.clone()) }),
        Some(_) | None => Ok(ClaimStep::SetProviderId { node_uid: uid.clone() }),
    }
}

/// Plans for a host that has joined. Its slot runs even if the claim object does not exist.
fn on_joined(seen: &ClaimObserved, record: &ClaimRecord) -> ClaimPlan {
    if !seen.slot.runs {
        if may_start(seen) {
            return ClaimPlan::Do(ClaimStep::StartSlot);
        }
        let until = Some(later(seen.now, START_DELAY - seen.uptime));
        return ClaimPlan::Wait { pending: Pending::ApiServer, until };
    }
    rest(seen, record, Pending::End)
}

/// Plans for a host that did not join. Its slot is kept for the user.
fn on_failed(seen: &ClaimObserved, record: &ClaimRecord) -> ClaimPlan {
    if seen.slot.runs {
        return ClaimPlan::Do(ClaimStep::StopSlot);
    }
    rest(seen, record, Pending::FailedClaim)
}

/// Plans for a claim without a next step until it ends.
fn rest(seen: &ClaimObserved, record: &ClaimRecord, pending: Pending) -> ClaimPlan {
    if seen.user_data == UserData::Rendered {
        return ClaimPlan::Do(ClaimStep::ForgetUserData);
    }
    if seen.api != Api::Live {
        return wait(pending);
    }
    match own_claim(seen, record) {
        Ok(_) => report_record(seen, record).unwrap_or(wait(pending)),
        Err(plan) => plan,
    }
}

/// Plans for a claim that has ended. Each step may be repeated, and none needs the API server.
fn on_releasing(seen: &ClaimObserved, record: &ClaimRecord) -> ClaimPlan {
    if let Some(report) = report_record(seen, record) {
        return report;
    }
    let slot = &seen.slot;
    let steps = [
        (slot.runs, ClaimStep::StopSlot),
        (seen.user_data == UserData::Rendered, ClaimStep::ForgetUserData),
        (slot.has_links, ClaimStep::ClearLinks),
        (!slot.is_empty, ClaimStep::EmptySlots),
    ];
    let next = steps.into_iter().find_map(|(is_due, step)| is_due.then_some(step));
    ClaimPlan::Do(next.unwrap_or_else(|| wipe::end(seen, record)))
}

/// Returns true if a slot that has run before may start after a boot: the API server has not ended the claim, or does not answer for a while.
/// A power cut of a rack must not keep every cluster on it down.
fn may_start(seen: &ClaimObserved) -> bool {
    seen.api == Api::Live && seen.claim != ClaimSeen::Unknown || seen.uptime >= START_DELAY
}

/// Returns the claim object if it is the recorded claim, otherwise the plan without it.
fn own_claim<'a>(seen: &'a ClaimObserved, record: &ClaimRecord) -> Result<&'a ClaimFacts, ClaimPlan> {
    match &seen.claim {
        _ if seen.api != Api::Live => Err(wait(Pending::ApiServer)),
        ClaimSeen::Unknown => Err(wait(Pending::ApiServer)),
        ClaimSeen::Absent => Err(wait(Pending::MissingClaim)),
        ClaimSeen::Present(claim)
            if claim.provider_id == record.provider_id && claim.claimant == record.claimant =>
        {
            Ok(claim)
        }
        ClaimSeen::Present(_) => {
            Err(refuse(seen, &record.provider_id, Some(ReportedState::from(&record.stage))))
        }
    }
}

/// Returns true if the Machine lets a claimant of this namespace have the host.
fn is_allowed(seen: &ClaimObserved, claim: &ClaimFacts) -> bool {
    let PoolMachine::Own { namespaces, .. } = &seen.machine else { return false };
    namespaces.iter().any(|allowed| allowed == "*" || *allowed == claim.claimant.namespace)
}

/// Reports that the claim object is refused, with the claim that the host holds.
fn refuse(seen: &ClaimObserved, held: &ProviderId, state: Option<ReportedState>) -> ClaimPlan {
    report(seen, held, state, Some(ReportedCause::ClaimRefused)).unwrap_or(wait(Pending::RefusedClaim))
}

/// Report of a record.
fn of_record(record: &ClaimRecord) -> ClaimReport {
    let cause = match &record.stage {
        ClaimStage::Failed { cause, .. } => Some(ReportedCause::Failure(*cause)),
        ClaimStage::Preparing
        | ClaimStage::Bootstrapping { .. }
        | ClaimStage::Joined { .. }
        | ClaimStage::Releasing
        | ClaimStage::Wiping { .. }
        | ClaimStage::Released => None,
    };
    let (provider_id, state) = (record.provider_id.clone(), Some(ReportedState::from(&record.stage)));
    ClaimReport { provider_id, state, cause }
}

fn report_record(seen: &ClaimObserved, record: &ClaimRecord) -> Option<ClaimPlan> {
    let ClaimReport { provider_id, state, cause } = of_record(record);
    report(seen, &provider_id, state, cause)
}

/// Returns the step that reports, unless the claim object has the report, or cannot be written now.
fn report(
    seen: &ClaimObserved,
    id: &ProviderId,
    state: Option<ReportedState>,
    cause: Option<ReportedCause>,
) -> Option<ClaimPlan> {
    let ClaimSeen::Present(claim) = &seen.claim else { return None };
    let report = ClaimReport { provider_id: id.clone(), state, cause };
    let is_due = seen.api == Api::Live && !seen.is_report_delayed && !is_reported(claim, &report);
    is_due.then_some(ClaimPlan::Do(ClaimStep::Report(report)))
}

fn is_reported(claim: &ClaimFacts, report: &ClaimReport) -> bool {
    claim.reported.as_ref() == Some(report)
}

impl Pending {
    /// Text for a user.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Claim => "no claim holds this host",
            Self::ApiServer => "the API server does not answer",
            Self::Machine => "the Machine was deleted, or another host has enrolled under its name",
            Self::Unpause => "spec.paused is true",
            Self::MachineDeletion => "the Machine is being deleted",
            Self::MissingClaim => "the MachineClaim does not exist; the host is not emptied without it",
            Self::RefusedClaim => "the MachineClaim is refused",
            Self::Version => "no version is selected for the claim, or it cannot be read",
            Self::Grant => "condition Granted of the claim is not True",
            Self::Report => "the status of the claim is not written yet",
            Self::UserData => "the user data has not finished",
            Self::Sentinel => "the user data has not written its sentinel",
            Self::Kubelet => "the kubelet is not healthy",
            Self::Node => "the Node has not registered",
            Self::ProviderId => "spec.providerID of the Node is not the claim's",
            Self::End => "the host has joined",
            Self::FailedClaim => "the claim failed; its slot is kept until the release",
            Self::Removal => "the host is released",
            Self::Wipe => {
                "the latest boot did not wipe the host; the host reboots 10 minutes after that \
                           boot"
            }
            Self::ForeignSlot => "the host must be wiped, but a slot has a node that no claim has selected",
            Self::WipeNotPossible => {
                "the host must be wiped but cannot be wiped; pxed must boot it, and pxe.stateDisk must \
                 select its disk with wipe IfBlank; correct wipe, or reboot the host"
            }
        }
    }
}

fn fail(cause: FailureCause, message: &str) -> ClaimPlan {
    ClaimPlan::Do(ClaimStep::Fail { cause, message: message.to_owned() })
}

fn wait(pending: Pending) -> ClaimPlan {
    ClaimPlan::Wait { pending, until: None }
}
