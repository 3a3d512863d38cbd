//! Pure: the status of a MachineDeployment (MD9). Called by the controller of MachineDeployments, after the plan.

use std::collections::BTreeSet;

use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::full::condition_type::UP_TO_DATE;
use bedplate_api::cluster::full::deployment::{DeploymentPhase, MachineDeploymentStatus};
use bedplate_api::reason::core::{AvailableReason, RollingOutReason};
use bedplate_replicas::Strategy;
use jiff::Timestamp;

use super::act::{Plan, is_deployment_paused};
use super::observe::{Observed, strategy};
use crate::core::object::{Conditions as _, condition, count, is_deleting, selector};
use crate::core::report::{Report, Scale, counts};

/// Maximum number of reasons for a rollout in the message.
const MAX_REASONS: usize = 5;

/// Returns the status. Equal statuses need no write.
pub fn status(observed: &Observed, plan: &Plan, now: Timestamp) -> MachineDeploymentStatus {
    let deployment = &*observed.deployment;
    let mut status = deployment.status.clone().unwrap_or_default();
    let generation = deployment.metadata.generation;
    let mut all = std::mem::take(&mut status.conditions);
    let mut report = Report { conditions: &mut all, generation, now };
    let is_paused = is_deployment_paused(observed);
    report.common(deployment, observed.cluster.as_deref());
    if !is_paused {
        let machines = observed.owned_machines();
        let counts = counts(&machines);
        let desired = deployment.spec.replicas;
        let is_deleting = is_deleting(deployment);
        report.scaling(Scale { desired, is_deleting, blocked: &plan.blocked }, &machines);
        report.machines(&machines);
        report.deleting(is_deleting, &machines, &plan.blocked);
        available(&mut report, observed, counts.available);
        rolling_out(&mut report, &machines);
        status.replicas = Some(count(counts.existing));
        status.ready_replicas = Some(count(counts.ready));
        status.available_replicas = Some(count(counts.available));
        status.up_to_date_replicas = Some(count(counts.up_to_date));
        status.phase = Some(phase(desired, is_deleting, count(counts.existing)));
        status.selector =
            selector(&deployment.effective_labels().selector).map(|selector| selector.to_string());
        status.observed_generation = generation;
    }
    status.conditions = all;
    status
}

fn phase(desired: Option<i32>, is_deleting: bool, existing: i32) -> DeploymentPhase {
    match desired {
        None => DeploymentPhase::Unknown,
        Some(_) if is_deleting => DeploymentPhase::ScalingDown,
        Some(desired) if existing < desired => DeploymentPhase::ScalingUp,
        Some(desired) if existing > desired => DeploymentPhase::ScalingDown,
        Some(_) => DeploymentPhase::Running,
    }
}

fn available(report: &mut Report<'_>, observed: &Observed, available: usize) {
    let deployment = &*observed.deployment;
    let Some(desired) = deployment.spec.replicas.and_then(|replicas| u32::try_from(replicas).ok()) else {
        return report.set(AvailableReason::WaitingForReplicasSet, "spec.replicas is not set");
    };
    let unavailable = match strategy(deployment) {
        Strategy::OnDelete => 0,
        Strategy::RollingUpdate { surge, unavailable } => {
            match (surge.of_rounded_up(desired), unavailable.of_rounded_down(desired)) {
                (0, 0) => 1,
                (_, unavailable) => unavailable,
            }
        }
    };
    let minimum = desired.saturating_sub(unavailable);
    if u32::try_from(available).is_ok_and(|available| available >= minimum) {
        return report.set(AvailableReason::Available, "");
    }
    let message = if is_deleting(deployment) {
        "Deletion in progress".to_owned()
    } else {
        format!("{available} available replicas, at least {minimum} required (spec.replicas is {desired})")
    };
    report.set(AvailableReason::NotAvailable, &message);
}

fn rolling_out(report: &mut Report<'_>, machines: &[&Machine]) {
    let up_to_date = machines.iter().filter_map(|machine| condition(machine.conditions(), UP_TO_DATE));
    let old: Vec<_> = up_to_date.filter(|condition| condition.status == "False").collect();
    if old.is_empty() {
        return report.set(RollingOutReason::NotRollingOut, "");
    }
    let reasons: BTreeSet<&str> = old.iter().flat_map(|condition| condition.message.lines()).collect();
    let shown: Vec<String> = reasons.iter().take(MAX_REASONS).map(|reason| format!("\n{reason}")).collect();
    let message = format!("Rolling out {} not up-to-date replicas{}", old.len(), shown.concat());
    report.set(RollingOutReason::RollingOut, &message);
}
