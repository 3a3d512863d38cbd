//! Pure: the status of a BedplateMachine (contract v1beta2 of Cluster API).
//!
//! `provisioned` becomes True when the host runs the bootstrap data: the host is there then, and upstream copies `providerID` and the addresses.
//! It stays True. `Ready` has the reason of the first condition that is not met.

use bedplate_api::claim::{ClaimState, MachineClaim, condition_type};
use bedplate_api::cluster::infrastructure::{
    BedplateMachine, BedplateMachineStatus, BootstrapStatus, Initialization,
};
use bedplate_api::condition::{set_condition, set_ready};
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::infrastructure::{BootstrapSucceededReason, HostClaimedReason, PausedReason};
use bedplate_claim::ClaimantStep;
use jiff::Timestamp;
use kube::ResourceExt;

use super::plan::{Next, Observed, is_own, reported_state};
use crate::infrastructure::claim::plan::confirm_off;

/// Returns the status that a BedplateMachine must have.
pub fn status(observed: &Observed, next: &Next, now: Timestamp) -> BedplateMachineStatus {
    let machine = &*observed.machine;
    let mut status = machine.status.clone().unwrap_or_default();
    let generation = machine.metadata.generation;
    status.observed_generation = generation;
    let paused = *next == Next::Paused;
    let reason = if paused { PausedReason::Paused } else { PausedReason::NotPaused };
    set_condition(&mut status, paused, reason, reason.meaning(), generation, now);
    if paused {
        return status;
    }
    let claim = observed.claim.as_deref().filter(|claim| is_own(claim, machine));
    let host = host_claimed(observed, next);
    let bootstrap = bootstrap(claim);
    let is_claimed = host.0 == HostClaimedReason::HostClaimed;
    set_condition(&mut status, is_claimed, host.0, &host.1, generation, now);
    let is_joined = bootstrap.0 == BootstrapSucceededReason::Joined;
    set_condition(&mut status, is_joined, bootstrap.0, &bootstrap.1, generation, now);
    let (reason, message) =
        if is_claimed { (bootstrap.0.as_str(), &bootstrap.1) } else { (host.0.as_str(), &host.1) };
    set_ready(&mut status, is_claimed && is_joined, reason, message, generation, now);
    facts(&mut status, observed, claim);
    status
}

/// Sets the fields that Cluster API copies.
fn facts(status: &mut BedplateMachineStatus, observed: &Observed, claim: Option<&MachineClaim>) {
    let has_id = observed.machine.spec.provider_id.is_some();
    let state = claim.and_then(reported_state);
    status.bootstrap = state.map(|state| BootstrapStatus {
        state,
        since: claim.and_then(|claim| claim.status.as_ref()).and_then(|status| status.since.clone()),
    });
    let runs = matches!(state, Some(ClaimState::Bootstrapping | ClaimState::Joined));
    if has_id && runs {
        status.initialization = Some(Initialization { provisioned: Some(true) });
        status.ready = Some(true);
    }
    let host = observed.host.as_deref().filter(|_| has_id && claim.is_some());
    let Some(host) = host else { return };
    status.addresses = host.status.as_ref().map(|status| status.addresses.clone()).unwrap_or_default();
    let label = observed.failure_domain_label.as_ref();
    let domain = label.and_then(|label| host.labels().get(label)).filter(|domain| !domain.is_empty());
    status.failure_domain = domain.cloned();
}

fn host_claimed(observed: &Observed, next: &Next) -> (HostClaimedReason, String) {
    let machine: &BedplateMachine = &observed.machine;
    let host = machine.spec.machine_name.as_ref().map(ToString::to_string).unwrap_or_default();
    match next {
        Next::Paused => (HostClaimedReason::Claiming, String::new()),
        Next::Wait(reason, message) => (*reason, message.clone()),
        Next::Protocol(step) => match step {
            ClaimantStep::Claimed => {
                (HostClaimedReason::HostClaimed, format!("MachineClaim {host} holds the host"))
            }
            ClaimantStep::Lost if observed.host.is_none() => {
                (HostClaimedReason::MachineGone, format!("Machine {host} does not exist"))
            }
            ClaimantStep::Lost => (
                HostClaimedReason::ClaimLost,
                format!("MachineClaim {host} is deleted or released, or it belongs to another claimant"),
            ),
            ClaimantStep::AwaitRelease | ClaimantStep::DeleteClaim | ClaimantStep::RemoveFinalizer => {
                let state = observed.claim.as_deref().and_then(reported_state);
                let state = state.map_or_else(
                    || "has not reported the claim".to_owned(),
                    |state| format!("reports {state:?}"),
                );
                let remedy = release_remedy(observed);
                let text = format!("waiting until Machine {host} is released; its agent {state}; {remedy}");
                (HostClaimedReason::Releasing, text)
            }
            ClaimantStep::AwaitHost => (
                HostClaimedReason::Releasing,
                format!(
                    "MachineClaim {host} is missing, and Machine {host} does not report; {}",
                    release_remedy(observed)
                ),
            ),
            ClaimantStep::AddFinalizer
            | ClaimantStep::Choose
            | ClaimantStep::CreateClaim
            | ClaimantStep::Forget
            | ClaimantStep::SetProviderId
            | ClaimantStep::Done => (HostClaimedReason::Claiming, "a host is being claimed".to_owned()),
        },
    }
}

/// Next step of a user whose host does not release its claim.
fn release_remedy(observed: &Observed) -> String {
    let claim = observed.claim.as_deref().and_then(|claim| claim.status.as_ref());
    let fenced =
        claim.and_then(|status| status.conditions.iter().find(|one| one.type_ == condition_type::FENCED));
    match (fenced, &observed.machine.spec.provider_id) {
        (Some(fenced), _) => fenced.message.clone(),
        (None, Some(_)) => {
            let host =
                observed.machine.spec.machine_name.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("if the host does not return, power it off, then {}", confirm_off(&host))
        }
        (None, None) => "check that the host is up".to_owned(),
    }
}

fn bootstrap(claim: Option<&MachineClaim>) -> (BootstrapSucceededReason, String) {
    let Some(claim) = claim else {
        return (BootstrapSucceededReason::WaitingForHost, "no host is claimed".to_owned());
    };
    let host = claim.name_any();
    let status = claim.status.as_ref();
    let reported = || {
        let parts = [
            status.and_then(|status| status.reason.as_ref()),
            status.and_then(|status| status.message.as_ref()),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().map(String::as_str).collect();
        if parts.is_empty() { String::new() } else { format!(": {}", parts.join(": ")) }
    };
    match reported_state(claim) {
        None => (BootstrapSucceededReason::Preparing, format!("Machine {host} has not reported the claim")),
        Some(ClaimState::Preparing) => {
            (BootstrapSucceededReason::Preparing, format!("Machine {host} prepares the claim{}", reported()))
        }
        Some(ClaimState::Bootstrapping) => (
            BootstrapSucceededReason::Bootstrapping,
            format!("Machine {host} runs the bootstrap data{}", reported()),
        ),
        Some(ClaimState::Joined) => {
            let node = status.and_then(|status| status.node.as_ref()).map(|node| node.name.as_str());
            let node = node.map_or_else(|| "its slot runs".to_owned(), |node| format!("it is Node {node}"));
            (BootstrapSucceededReason::Joined, format!("Machine {host} has joined; {node}"))
        }
        Some(ClaimState::Failed | ClaimState::Unknown) => {
            (BootstrapSucceededReason::Failed, format!("bootstrap failed on Machine {host}{}", reported()))
        }
        Some(ClaimState::Releasing | ClaimState::Wiping | ClaimState::Released) => {
            (BootstrapSucceededReason::Released, format!("Machine {host} is released"))
        }
    }
}
