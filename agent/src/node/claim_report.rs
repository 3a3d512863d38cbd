//! Claim of a host in the words of its statuses: MachineClaim, `status.claim` and condition `Paved` of the Machine.
//!
//! Pure: record, plan and sight in, fields out, and fields in, reports out. Called by `observe_claim` and `run::claim`.

use bedplate_api::claim::{ClaimState, MachineClaim, MachineClaimStatus};
use bedplate_api::machine::{ClaimStatus, ClaimantRef, NodeRef, Time};
use bedplate_api::reason::machine::PavedReason;

use super::claim_record::{ClaimRecord, ClaimStage, FailureCause};
use super::plan::claim::{ClaimPlan, ClaimReport, ClaimStep, Pending, ReportedCause, ReportedState};
use super::report::Trouble;
use crate::plane::{ConditionReport, Truth};

/// Message of a claim whose host boots to be wiped.
const WIPING: &str = "the slots are empty and the host boots for the wipe; the claim ends when the host \
                      has enrolled with a new key; see condition Paved of the Machine; if the host does \
                      not return, power-cycle it";
/// Maximum number of characters of `status.message`.
const MAX_MESSAGE_CHARACTERS: usize = 1024;
/// Maximum number of characters of `status.claim.wipeToken`.
const MAX_TOKEN_CHARACTERS: usize = 63;
/// Maximum number of entries of `status.refused`.
const MAX_REFUSED: usize = 64;
/// Maximum number of characters of an entry of `status.refused`.
const MAX_REFUSED_CHARACTERS: usize = 253;

/// Report in the status of a claim object. None: no agent has reported on it.
pub(super) fn reported(status: &MachineClaimStatus) -> Option<ClaimReport> {
    let provider_id = status.provider_id.clone()?.into();
    let state = status.state.map(state_of);
    let cause = status.reason.as_deref().and_then(|reason| {
        let causes = [
            ReportedCause::ClaimRefused,
            ReportedCause::Failure(FailureCause::UserDataRefused),
            ReportedCause::Failure(FailureCause::BootstrapFailed),
            ReportedCause::Failure(FailureCause::Interrupted),
        ];
        causes.into_iter().find(|cause| reason_of(*cause).as_str() == reason)
    });
    Some(ClaimReport { provider_id, state, cause })
}

/// Report in the status of a Machine.
pub(super) fn reported_on_machine(status: &ClaimStatus) -> ClaimReport {
    let provider_id = status.provider_id.clone().into();
    ClaimReport { provider_id, state: Some(state_of(status.state)), cause: None }
}

fn state_of(state: ClaimState) -> ReportedState {
    match state {
        ClaimState::Preparing => ReportedState::Preparing,
        ClaimState::Bootstrapping => ReportedState::Bootstrapping,
        // A state of a later version: the user data may have run.
        ClaimState::Joined | ClaimState::Unknown => ReportedState::Joined,
        ClaimState::Failed => ReportedState::Failed,
        ClaimState::Releasing => ReportedState::Releasing,
        ClaimState::Wiping => ReportedState::Wiping,
        ClaimState::Released => ReportedState::Released,
    }
}

fn claim_state(state: ReportedState) -> ClaimState {
    match state {
        ReportedState::Preparing => ClaimState::Preparing,
        ReportedState::Bootstrapping => ClaimState::Bootstrapping,
        ReportedState::Joined => ClaimState::Joined,
        ReportedState::Failed => ClaimState::Failed,
        ReportedState::Releasing => ClaimState::Releasing,
        ReportedState::Wiping => ClaimState::Wiping,
        ReportedState::Released => ClaimState::Released,
    }
}

fn reason_of(cause: ReportedCause) -> PavedReason {
    match cause {
        ReportedCause::ClaimRefused => PavedReason::ClaimRefused,
        ReportedCause::Failure(cause) => failure_reason(cause),
    }
}

fn failure_reason(cause: FailureCause) -> PavedReason {
    match cause {
        FailureCause::UserDataRefused => PavedReason::UserDataRefused,
        FailureCause::BootstrapFailed => PavedReason::BootstrapFailed,
        FailureCause::Interrupted => PavedReason::Interrupted,
    }
}

/// `status.claim` of the Machine.
pub(super) fn machine_status(record: &ClaimRecord) -> ClaimStatus {
    let claimant = &record.claimant;
    ClaimStatus {
        provider_id: record.provider_id.as_str().to_owned(),
        claimant: ClaimantRef { namespace: claimant.namespace.clone(), name: claimant.name.clone() },
        state: claim_state(ReportedState::from(&record.stage)),
        since: Time(record.since),
        failed_time: record.failed.map(Time),
        wipe_token: match &record.stage {
            ClaimStage::Wiping { token, .. } => Some(cut(token, MAX_TOKEN_CHARACTERS)),
            _ => None,
        },
    }
}

/// The agent's fields of the status of a claim object.
pub(super) fn claim_status(
    report: &ClaimReport,
    record: Option<&ClaimRecord>,
    claim: &MachineClaim,
) -> MachineClaimStatus {
    let record = record.filter(|record| record.provider_id == report.provider_id && report.state.is_some());
    let message = match (report.cause, record.map(|record| &record.stage)) {
        (Some(ReportedCause::ClaimRefused), _) => Some(refusal(report, claim)),
        (_, Some(ClaimStage::Failed { message, .. })) => Some(message.clone()),
        (_, Some(ClaimStage::Wiping { .. })) => Some(WIPING.to_owned()),
        (Some(ReportedCause::Failure(_)) | None, _) => None,
    };
    let node_uid = match record.map(|record| &record.stage) {
        Some(ClaimStage::Joined { node_uid }) => node_uid.clone(),
        _ => None,
    };
    let is_own = claim.spec.provider_id == report.provider_id.as_str();
    let name = claim.spec.node_name.to_string();
    let refused = record.map(|record| record.refused.as_slice()).unwrap_or_default();
    MachineClaimStatus {
        provider_id: Some(report.provider_id.as_str().to_owned()),
        state: report.state.map(claim_state),
        reason: report.cause.map(|cause| reason_of(cause).as_str().to_owned()),
        message: message.map(|message| cut(&message, MAX_MESSAGE_CHARACTERS)),
        node: node_uid.filter(|_| is_own).map(|uid| NodeRef { name, uid, reregistered_time: None }),
        since: record.map(|record| Time(record.since)),
        refused: refused.iter().take(MAX_REFUSED).map(|key| cut(key, MAX_REFUSED_CHARACTERS)).collect(),
        conditions: Vec::new(),
    }
}

/// Text about a claim that the host refuses.
fn refusal(report: &ClaimReport, claim: &MachineClaim) -> String {
    let (id, namespace) = (report.provider_id.as_str(), &claim.spec.claimant.namespace);
    if report.state.is_some() && claim.spec.provider_id != id {
        return format!("the host has claim {id}, which is not released");
    }
    format!(
        "claimPolicy of the Machine or of MachineConfiguration {} does not allow namespace {namespace}, a \
         slot of the host is in use, or the host cannot be wiped; see docs/guides/claims.md",
        claim.spec.configuration_ref.name
    )
}

/// Condition `Paved` of a host of a pool. `problem`: cause of a wait inside of the slot.
pub(super) fn paved(
    record: Option<&ClaimRecord>,
    plan: &ClaimPlan,
    runs: bool,
    progress: Option<&str>,
    (problem, trouble): (Option<&str>, Option<&Trouble>),
) -> ConditionReport<PavedReason> {
    let stage = record.map(|record| &record.stage).filter(|stage| **stage != ClaimStage::Released);
    let (reason, message) = match (trouble, plan) {
        (Some(trouble), _) => (trouble.reason, trouble.message.clone()),
        (None, ClaimPlan::Do(step)) => (doing(stage, step), step.describe().to_owned()),
        (None, ClaimPlan::Wait { pending, .. }) => {
            (waiting(stage, *pending, runs), pending.describe().to_owned())
        }
    };
    let message = match stage {
        Some(ClaimStage::Failed { message: why, .. }) if trouble.is_none() => why.clone(),
        _ => message,
    };
    let more = [progress, problem].into_iter().flatten();
    let message = more.fold(message, |message, more| format!("{message}: {more}"));
    // A host that has joined is a node while its slot runs and its claim is there.
    let is_node = runs && matches!(stage, Some(ClaimStage::Joined { .. }));
    let is_at_fault = matches!(reason, PavedReason::ClaimMissing | PavedReason::ClaimRefused);
    let status = if is_node && !is_at_fault { Truth::True } else { Truth::False };
    let reason = if status == Truth::True && trouble.is_none() && matches!(plan, ClaimPlan::Do(_)) {
        PavedReason::Applied
    } else {
        reason
    };
    ConditionReport { status, reason, message }
}

/// Reason of a stage in which nothing is wrong. None: the host holds no claim.
fn reason_of_stage(stage: Option<&ClaimStage>) -> PavedReason {
    match stage {
        None | Some(ClaimStage::Released) => PavedReason::AwaitingClaim,
        Some(ClaimStage::Preparing) => PavedReason::Preparing,
        Some(ClaimStage::Bootstrapping { .. }) => PavedReason::Bootstrapping,
        Some(ClaimStage::Joined { .. }) => PavedReason::Applied,
        Some(ClaimStage::Failed { cause, .. }) => failure_reason(*cause),
        Some(ClaimStage::Releasing) => PavedReason::Releasing,
        Some(ClaimStage::Wiping { .. }) => PavedReason::Wiping,
    }
}

fn doing(stage: Option<&ClaimStage>, step: &ClaimStep) -> PavedReason {
    match (stage, step) {
        (_, ClaimStep::Accept) => PavedReason::Preparing,
        (_, ClaimStep::BeginRelease { .. }) => PavedReason::Releasing,
        (_, ClaimStep::BeginWipe { .. }) => PavedReason::Wiping,
        (_, ClaimStep::Fail { cause, .. }) => failure_reason(*cause),
        (Some(ClaimStage::Joined { .. }), ClaimStep::StartSlot) => PavedReason::Starting,
        (stage, _) => reason_of_stage(stage),
    }
}

fn waiting(stage: Option<&ClaimStage>, pending: Pending, runs: bool) -> PavedReason {
    match pending {
        Pending::Unpause => PavedReason::Paused,
        Pending::Machine => PavedReason::MachineNotFound,
        Pending::MachineDeletion => PavedReason::MachineDeleting,
        Pending::MissingClaim => PavedReason::ClaimMissing,
        Pending::RefusedClaim => PavedReason::ClaimRefused,
        Pending::WipeNotPossible | Pending::ForeignSlot => PavedReason::WipeNotPossible,
        Pending::Version => PavedReason::VersionUnavailable,
        Pending::ApiServer if stage.is_none() || !runs => PavedReason::ApiServerUnreachable,
        Pending::Claim
        | Pending::Removal
        | Pending::ApiServer
        | Pending::Grant
        | Pending::Report
        | Pending::UserData
        | Pending::Sentinel
        | Pending::Kubelet
        | Pending::Node
        | Pending::ProviderId
        | Pending::End
        | Pending::Wipe
        | Pending::FailedClaim => reason_of_stage(stage),
    }
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::super::claim_record::Claimant;
    use super::*;

    fn record(stage: ClaimStage) -> ClaimRecord {
        ClaimRecord {
            provider_id: "bedplate://host-1/u-1".to_owned().into(),
            claimant: Claimant { namespace: "team-a".to_owned(), name: "w-1".to_owned() },
            has_user_data: true,
            claim_uid: "c-1".to_owned(),
            release: super::super::claim_record::ReleasePolicy::Empty,
            since: Timestamp::UNIX_EPOCH,
            failed: None,
            refused: Vec::new(),
            stage,
        }
    }

    fn claim(uid: &str) -> MachineClaim {
        serde_json::from_value(json!({ "metadata": { "name": "host-1" }, "spec": { "clusterName": "c", "role": "Worker",
            "claimant": { "namespace": "team-a", "name": "w-1", "uid": uid }, "nodeName": "w-1", "release": "Empty",
            "providerID": format!("bedplate://host-1/{uid}"), "configurationRef": { "name": "pool" } } }))
        .unwrap()
    }

    fn report_of(record: &ClaimRecord, cause: Option<ReportedCause>) -> ClaimReport {
        let state = Some(ReportedState::from(&record.stage));
        ClaimReport { provider_id: record.provider_id.clone(), state, cause }
    }

    const FAILED: ReportedCause = ReportedCause::Failure(FailureCause::BootstrapFailed);

    fn wiping() -> ClaimStage {
        ClaimStage::Wiping { token: "c-1".to_owned(), boot_id: "b".to_owned() }
    }

    fn failed(message: &str) -> ClaimStage {
        ClaimStage::Failed { cause: FailureCause::BootstrapFailed, message: message.to_owned() }
    }

    #[test]
    fn report_is_read_as_it_was_written() {
        for (stage, cause) in [
            (ClaimStage::Preparing, None),
            (ClaimStage::Bootstrapping { boot_id: "b".to_owned(), timeout_seconds: 1 }, None),
            (ClaimStage::Joined { node_uid: Some("n".to_owned()) }, None),
            (failed("m"), Some(FAILED)),
            (ClaimStage::Releasing, None),
            (wiping(), None),
            (ClaimStage::Released, None),
            (ClaimStage::Preparing, Some(ReportedCause::ClaimRefused)),
        ] {
            let record = record(stage);
            let report = report_of(&record, cause);
            assert_eq!(reported(&claim_status(&report, Some(&record), &claim("u-1"))), Some(report));
        }
        let refused = ClaimReport {
            provider_id: "bedplate://host-1/u-1".to_owned().into(),
            state: None,
            cause: Some(ReportedCause::ClaimRefused),
        };
        let status = claim_status(&refused, None, &claim("u-1"));
        assert_eq!((status.state, status.since.is_none()), (None, true));
        assert_eq!(reported(&status), Some(refused));
        assert_eq!(reported(&MachineClaimStatus::default()), None);
    }

    #[test]
    fn d7_token_of_the_wipe_is_reported_only_while_it_is_due() {
        let token = |stage: ClaimStage| machine_status(&record(stage)).wipe_token;
        assert_eq!(token(wiping()).as_deref(), Some("c-1"));
        assert_eq!((token(ClaimStage::Releasing), token(ClaimStage::Released)), (None, None));
    }

    #[test]
    fn report_names_the_node_of_its_own_claim_alone() {
        let record = record(ClaimStage::Joined { node_uid: Some("n".to_owned()) });
        let node = |claim: &MachineClaim| claim_status(&report_of(&record, None), Some(&record), claim).node;
        assert_eq!(
            node(&claim("u-1")).map(|node| (node.name, node.uid)),
            Some(("w-1".to_owned(), "n".to_owned()))
        );
        assert_eq!(node(&claim("u-2")), None);
    }

    #[test]
    fn report_is_within_the_bounds_of_the_definition() {
        let mut record = record(failed(&"m".repeat(5000)));
        record.refused = vec!["k".repeat(500); 100];
        let status = claim_status(&report_of(&record, Some(FAILED)), Some(&record), &claim("u-1"));
        assert_eq!(status.message.unwrap().len(), 1024);
        assert_eq!((status.refused.len(), status.refused[0].len()), (64, 253));
        assert_eq!(status.reason.as_deref(), Some("BootstrapFailed"));
    }

    #[test]
    fn state_of_a_later_version_counts_as_one_that_has_run() {
        let status = json!({ "providerID": "bedplate://host-1/u-1", "state": "AddedLater" });
        let report = reported(&serde_json::from_value(status).unwrap()).unwrap();
        assert_eq!(report.state, Some(ReportedState::Joined));
    }

    #[test]
    fn paved_of_a_claimed_host_follows_stage_and_wait() {
        let joined = || ClaimStage::Joined { node_uid: None };
        let reported = |stage: Option<ClaimStage>, pending, runs| {
            let plan = ClaimPlan::Wait { pending, until: None };
            let record = stage.map(record);
            let reported = paved(record.as_ref(), &plan, runs, None, (None, None));
            (reported.status, reported.reason)
        };
        for (stage, pending, runs, expected) in [
            (None, Pending::Claim, false, (Truth::False, PavedReason::AwaitingClaim)),
            (None, Pending::ApiServer, false, (Truth::False, PavedReason::ApiServerUnreachable)),
            (Some(ClaimStage::Released), Pending::Removal, false, (Truth::False, PavedReason::AwaitingClaim)),
            (Some(ClaimStage::Preparing), Pending::Grant, false, (Truth::False, PavedReason::Preparing)),
            (
                Some(ClaimStage::Preparing),
                Pending::RefusedClaim,
                false,
                (Truth::False, PavedReason::ClaimRefused),
            ),
            (Some(joined()), Pending::End, true, (Truth::True, PavedReason::Applied)),
            (Some(joined()), Pending::ApiServer, true, (Truth::True, PavedReason::Applied)),
            (Some(joined()), Pending::ApiServer, false, (Truth::False, PavedReason::ApiServerUnreachable)),
            (Some(joined()), Pending::MissingClaim, true, (Truth::False, PavedReason::ClaimMissing)),
            (Some(joined()), Pending::Unpause, true, (Truth::True, PavedReason::Paused)),
            (Some(failed("why")), Pending::FailedClaim, false, (Truth::False, PavedReason::BootstrapFailed)),
            (Some(ClaimStage::Releasing), Pending::Unpause, false, (Truth::False, PavedReason::Paused)),
            (Some(wiping()), Pending::Wipe, false, (Truth::False, PavedReason::Wiping)),
            (Some(wiping()), Pending::WipeNotPossible, false, (Truth::False, PavedReason::WipeNotPossible)),
        ] {
            assert_eq!(reported(stage.clone(), pending, runs), expected, "{stage:?} {pending:?}");
        }
        let plan = ClaimPlan::Wait { pending: Pending::FailedClaim, until: None };
        let reported = paved(Some(&record(failed("the user data failed"))), &plan, false, None, (None, None));
        assert_eq!(reported.message, "the user data failed");
    }
}
