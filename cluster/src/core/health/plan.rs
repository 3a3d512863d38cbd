//! Pure: the writes for a MachineHealthCheck: its own status, and conditions of Machines.
//!
//! Conditions of a Machine have several writers. [`Marks`] has the conditions that change; they are written under a field manager of the health
//! checks, bound to the Machine that was read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bedplate_api::cluster::core::CLUSTER_NAME_LABEL;
use bedplate_api::cluster::full::health::MachineHealthCheckStatus;
use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::condition::set_condition;
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::core::{
    HealthCheckSucceededReason, OwnerRemediatedReason, RemediationAllowedReason,
};
use bedplate_replicas::{
    Allowed, Failure, HealthCheck, HealthPlan, HealthReason, Judgment, Target, plan_health,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::observe::{Observed, ObservedMachine};
use super::verdict::verdicts;
use crate::core::report::{fields_supported, set_paused};
use crate::owner::is_paused;

/// Maximum number of targets in a status (`status.targets`).
const MAX_TARGETS: usize = 10_000;
/// Maximum number of failures that a message names.
const MAX_FAILURES: usize = 5;

/// Writes for a MachineHealthCheck.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// True if the label with the cluster or the owner must be set.
    pub adopt: bool,
    /// Machines whose conditions change.
    pub marks: Vec<Marks>,
    /// Status of the MachineHealthCheck, if it changes.
    pub status: Option<Box<MachineHealthCheckStatus>>,
    /// Time until the next decision, if no object changes before.
    pub again: Option<Duration>,
}

/// Conditions of a Machine that change.
#[derive(Debug, Clone, PartialEq)]
pub struct Marks {
    /// Name of the Machine.
    pub machine: String,
    /// Conditions `HealthCheckSucceeded` and `OwnerRemediated`, as far as they change.
    pub conditions: Vec<Condition>,
}

/// Decides the writes. Nothing is done without the Cluster, or while the health check is deleted.
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let check = &*observed.check;
    let Some(cluster) = observed.cluster.as_deref() else { return Plan::default() };
    if check.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let is_paused = is_paused(check, Some(cluster));
    let mut status = check.status.clone().unwrap_or_default();
    let generation = check.metadata.generation;
    set_paused(&mut status, check, Some(cluster), now);
    let mut plan = Plan::default();
    if !is_paused {
        status.observed_generation = generation;
        plan.adopt = !is_adopted(observed, cluster);
        decide(observed, cluster, (&mut plan, &mut status), now);
    }
    plan.status = (check.status.as_ref() != Some(&status)).then(|| Box::new(status));
    plan
}

/// Returns true if label and owner name the Cluster.
fn is_adopted(observed: &Observed, cluster: &Cluster) -> bool {
    let check = &*observed.check;
    let has_label = check.labels().get(CLUSTER_NAME_LABEL) == Some(&check.spec.cluster_name);
    has_label
        && check.owner_references().iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref())
}

fn decide(
    observed: &Observed,
    cluster: &Cluster,
    (plan, status): (&mut Plan, &mut MachineHealthCheckStatus),
    now: Timestamp,
) {
    let generation = observed.check.metadata.generation;
    let matched = observed.matched();
    let targets: Vec<Target> = matched.iter().map(|observed| observed.target()).collect();
    let check = observed.health_check(cluster);
    let health = plan_health(&targets, &check, now);
    let verdicts = verdicts(observed, cluster, &health, now);
    let marked: BTreeSet<&str> = health.mark.iter().map(|key| key.0.as_str()).collect();
    let marks = |observed: &&ObservedMachine| marks(&observed.machine, &verdicts, &marked, now);
    plan.marks = matched.iter().filter_map(marks).collect();
    plan.again = health.next.map(|next| Duration::try_from(next.duration_since(now)).unwrap_or_default());
    status.expected_machines = Some(count(health.expected));
    status.current_healthy = Some(count(health.current));
    status.remediations_allowed = Some(count(health.remediations_allowed));
    status.targets = health.targets.iter().take(MAX_TARGETS).map(ToString::to_string).collect();
    let (reason, message) = allowed(&health, &check);
    set_condition(status, reason, reason, &message, generation, now);
    let (reason, message) = fields_supported(&*observed.check, "remove them");
    set_condition(status, reason, reason, &message, generation, now);
}

/// Returns the state of condition `RemediationAllowed`.
fn allowed(health: &HealthPlan, check: &HealthCheck) -> (RemediationAllowedReason, String) {
    let unhealthy = health.expected - health.current;
    if health.is_allowed {
        let reason = RemediationAllowedReason::RemediationAllowed;
        return (reason, reason.meaning().to_owned());
    }
    if health.are_nodes_unknown {
        let reason = RemediationAllowedReason::ConnectionDown;
        return (reason, reason.meaning().to_owned());
    }
    let limit = match check.allowed {
        Allowed::AtMost(amount) => format!("unhealthyLessThanOrEqualTo is {amount}"),
        Allowed::Range { from, to } => format!("unhealthyInRange is [{from}-{to}]"),
    };
    let message = format!("{unhealthy} of {} Machines are not healthy, and {limit}", health.expected);
    (RemediationAllowedReason::TooManyUnhealthy, message)
}

/// Returns the conditions of a Machine that change.
fn marks(
    machine: &Machine,
    verdicts: &BTreeMap<String, Judgment>,
    marked: &BTreeSet<&str>,
    now: Timestamp,
) -> Option<Marks> {
    let name = machine.name_any();
    let before = machine.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
    let mut conditions = before.to_vec();
    // The conditions follow the Machine's health, not its spec.
    match verdicts.get(&name) {
        Some(Judgment::Healthy) => {
            let reason = HealthCheckSucceededReason::HealthCheckSucceeded;
            // Condition Ready of the Machine, of its set and of its Cluster repeat a message.
            set_condition(&mut conditions, reason, reason, "", None, now);
        }
        Some(Judgment::Unhealthy(failures)) => {
            let (reason, message) = failed(failures);
            set_condition(&mut conditions, reason, reason, &message, None, now);
        }
        Some(Judgment::Undecided(_)) | None => {}
    }
    if marked.contains(name.as_str()) {
        let reason = OwnerRemediatedReason::WaitingForRemediation;
        set_condition(&mut conditions, reason, reason, reason.meaning(), None, now);
    }
    conditions.retain(|condition| !before.contains(condition));
    (!conditions.is_empty()).then_some(Marks { machine: name, conditions })
}

/// Returns reason and message of condition `HealthCheckSucceeded` for failures.
fn failed(failures: &[Failure]) -> (HealthCheckSucceededReason, String) {
    let reason = match failures.first().map(Failure::reason) {
        Some(HealthReason::HasRemediateAnnotation) => HealthCheckSucceededReason::HasRemediateAnnotation,
        Some(HealthReason::NodeDeleted) => HealthCheckSucceededReason::NodeDeleted,
        Some(HealthReason::NodeStartupTimeout) => HealthCheckSucceededReason::NodeStartupTimeout,
        Some(HealthReason::UnhealthyNode) => HealthCheckSucceededReason::UnhealthyNode,
        Some(HealthReason::UnhealthyMachine) | None => HealthCheckSucceededReason::UnhealthyMachine,
    };
    let shown: Vec<String> = failures.iter().take(MAX_FAILURES).map(ToString::to_string).collect();
    let more = if failures.len() > MAX_FAILURES { "; and others" } else { "" };
    (reason, format!("{}{more}", shown.join("; ")))
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
