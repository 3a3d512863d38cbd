//! Pure: conditions that a MachineSet and a MachineDeployment report about their Machines, with upstream's words. Called by the status of both.

use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::full::condition_type::{
    DELETING, HEALTH_CHECK_SUCCEEDED, MACHINES_READY, MACHINES_UP_TO_DATE, OWNER_REMEDIATED, READY,
    UP_TO_DATE,
};
use bedplate_api::cluster::unsupported::Unsupported;
use bedplate_api::condition::{ConditionState, set_condition, set_derived};
use bedplate_api::reason::core::{
    FieldsSupportedReason, MachineDeletingReason, MachinesReadyReason, MachinesUpToDateReason,
    RemediatingReason, ScalingDownReason, ScalingUpReason, SetDeletingReason,
};
use bedplate_api::reason::infrastructure::PausedReason;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::merge::{Item, Merged, aggregate, named};
use super::object::{condition, created, is_deleting, is_false, is_true};

/// Maximum number of names in a message.
const MAX_NAMES: usize = 3;
/// Time after which a deletion is reported as one that takes long.
const LONG_DELETION: SignedDuration = SignedDuration::from_mins(15);
/// Time for which a new Machine may lack condition `UpToDate`.
const NEW_MACHINE: SignedDuration = SignedDuration::from_secs(10);

/// Counts of Machines. Machines that are being deleted are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Machines.
    pub existing: usize,
    /// Machines that are ready.
    pub ready: usize,
    /// Machines that are available.
    pub available: usize,
    /// Machines that have the template of their owner.
    pub up_to_date: usize,
}

/// Counts Machines.
pub fn counts(machines: &[&Machine]) -> Counts {
    let present = || machines.iter().filter(|machine| !is_deleting(**machine));
    let having = |type_| present().filter(|machine| is_true(conditions(machine), type_)).count();
    Counts {
        existing: present().count(),
        ready: having(READY),
        available: having(bedplate_api::cluster::full::condition_type::AVAILABLE),
        up_to_date: having(UP_TO_DATE),
    }
}

/// Returns the conditions of a Machine.
pub fn conditions(machine: &Machine) -> &[Condition] {
    machine.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// Replicas of an owner, for its conditions.
#[derive(Debug, Clone, Copy)]
pub struct Scale<'a> {
    /// `spec.replicas`. None: it is not set yet.
    pub desired: Option<i32>,
    /// True if the owner is being deleted.
    pub is_deleting: bool,
    /// Reasons why Machines are missing.
    pub blocked: &'a [String],
}

/// Writer of the conditions of one object.
pub struct Report<'a> {
    /// The conditions.
    pub conditions: &'a mut Vec<Condition>,
    /// `metadata.generation` of the object.
    pub generation: Option<i64>,
    /// The time.
    pub now: Timestamp,
}

impl Report<'_> {
    /// Sets a condition by its reason.
    pub fn set<R>(&mut self, reason: R, message: &str)
    where
        R: bedplate_api::reason::ConditionReason + Into<ConditionState>,
    {
        set_condition(self.conditions, reason, reason, message, self.generation, self.now);
    }

    /// Sets the conditions that depend on Machines only.
    pub fn machines(&mut self, machines: &[&Machine]) {
        let ready = items(machines, READY);
        let (merged, message) = aggregate(READY, false, &ready);
        let reason = match merged {
            _ if machines.is_empty() => MachinesReadyReason::NoReplicas,
            Merged::Normal => MachinesReadyReason::Ready,
            Merged::Issue => MachinesReadyReason::NotReady,
            Merged::Unknown => MachinesReadyReason::ReadyUnknown,
        };
        set_derived(
            self.conditions,
            MACHINES_READY,
            reason,
            (reason.as_str(), &message),
            self.generation,
            self.now,
        );
        let old: Vec<&Machine> = machines.iter().copied().filter(|machine| self.is_judged(machine)).collect();
        let (merged, message) = aggregate(UP_TO_DATE, false, &items(&old, UP_TO_DATE));
        let reason = match merged {
            _ if old.is_empty() => MachinesUpToDateReason::NoReplicas,
            Merged::Normal => MachinesUpToDateReason::UpToDate,
            Merged::Issue => MachinesUpToDateReason::NotUpToDate,
            Merged::Unknown => MachinesUpToDateReason::UpToDateUnknown,
        };
        set_derived(
            self.conditions,
            MACHINES_UP_TO_DATE,
            reason,
            (reason.as_str(), &message),
            self.generation,
            self.now,
        );
        self.remediating(machines);
    }

    /// Returns true if the Machine has condition `UpToDate`, or must have it by now.
    fn is_judged(&self, machine: &Machine) -> bool {
        condition(conditions(machine), UP_TO_DATE).is_some()
            || is_older(created(machine), NEW_MACHINE, self.now)
    }

    fn remediating(&mut self, machines: &[&Machine]) {
        let is_failed = |machine: &&Machine| is_false(conditions(machine), HEALTH_CHECK_SUCCEEDED);
        let is_marked = |machine: &&Machine| is_false(conditions(machine), OWNER_REMEDIATED);
        let failed: Vec<&Machine> = machines.iter().copied().filter(is_failed).collect();
        let marked: Vec<&Machine> = failed.iter().copied().filter(is_marked).collect();
        if marked.is_empty() {
            let names: Vec<String> = failed.iter().map(|machine| machine.name_any()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let message = if names.is_empty() {
                String::new()
            } else {
                format!("{} not healthy, and not marked for remediation", named("Machine", &names, MAX_NAMES))
            };
            return self.set(RemediatingReason::NotRemediating, &message);
        }
        let (_, message) = aggregate(OWNER_REMEDIATED, false, &items(&marked, OWNER_REMEDIATED));
        self.set(RemediatingReason::Remediating, &message);
    }

    /// Sets `ScalingUp` and `ScalingDown`.
    pub fn scaling(&mut self, scale: Scale<'_>, machines: &[&Machine]) {
        let Some(desired) = scale.desired else {
            self.set(ScalingUpReason::WaitingForReplicasSet, "spec.replicas is not set");
            return self.set(ScalingDownReason::WaitingForReplicasSet, "spec.replicas is not set");
        };
        let desired = if scale.is_deleting { 0 } else { usize::try_from(desired).unwrap_or(0) };
        let existing = counts(machines).existing;
        if existing < desired {
            let blocked: Vec<String> = scale.blocked.iter().map(|why| format!("\n* {why}")).collect();
            let cause = if blocked.is_empty() {
                String::new()
            } else {
                format!(" is blocked because:{}", blocked.concat())
            };
            let message = format!("Scaling up from {existing} to {desired} replicas{cause}");
            self.set(ScalingUpReason::ScalingUp, &message);
        } else {
            self.set(ScalingUpReason::NotScalingUp, "");
        }
        // Machines that are being deleted are not replicas, and still hold hosts.
        if machines.len() > desired {
            let message =
                format!("Scaling down from {} to {desired} replicas{}", machines.len(), self.slow(machines));
            self.set(ScalingDownReason::ScalingDown, &message);
        } else {
            self.set(ScalingDownReason::NotScalingDown, "");
        }
    }

    /// Sets `Deleting`.
    pub fn deleting(&mut self, is_deleting: bool, machines: &[&Machine]) {
        if !is_deleting {
            return self.set(SetDeletingReason::NotDeleting, "");
        }
        let message = match machines.len() {
            0 => "Deletion completed".to_owned(),
            1 => format!("Deleting 1 Machine{}", self.slow(machines)),
            number => format!("Deleting {number} Machines{}", self.slow(machines)),
        };
        self.set(SetDeletingReason::Deleting, &message);
    }

    /// Sets `Paused` and `FieldsSupported`.
    pub fn common(&mut self, is_paused: bool, object: &impl Unsupported) {
        let reason = if is_paused { PausedReason::Paused } else { PausedReason::NotPaused };
        let message = if is_paused { "The Cluster or the object is paused" } else { "" };
        set_condition(self.conditions, is_paused, reason, message, self.generation, self.now);
        let paths: Vec<String> = object.unsupported().iter().map(ToString::to_string).collect();
        if paths.is_empty() {
            return self.set(FieldsSupportedReason::FieldsSupported, "");
        }
        let message = format!("Fields not supported: {}; remove them", paths.join(", "));
        self.set(FieldsSupportedReason::UnsupportedFields, &message);
    }

    /// Returns a line about Machines whose deletion takes long.
    fn slow(&self, machines: &[&Machine]) -> String {
        let is_slow = |machine: &&&Machine| {
            let time = machine.metadata.deletion_timestamp.as_ref();
            time.is_some_and(|time| is_older(time.0, LONG_DELETION, self.now))
        };
        let slow: Vec<&Machine> = machines.iter().filter(is_slow).copied().collect();
        if slow.is_empty() {
            return String::new();
        }
        let names: Vec<String> = slow.iter().map(|machine| machine.name_any()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let is_draining = slow.iter().any(|machine| {
            let deleting = condition(conditions(machine), DELETING);
            deleting.is_some_and(|deleting| deleting.reason == MachineDeletingReason::DrainingNode.as_str())
        });
        let cause = if is_draining { ", Pods delay the drain" } else { "" };
        let verb = if names.len() == 1 { "is" } else { "are" };
        format!("\n* {} {verb} in deletion since more than 15m{cause}", named("Machine", &names, MAX_NAMES))
    }
}

fn items<'a>(machines: &'a [&'a Machine], type_: &str) -> Vec<Item<'a>> {
    let item = |machine: &&'a Machine| Item {
        kind: "Machine",
        name: machine.metadata.name.as_deref().unwrap_or_default(),
        condition: condition(conditions(machine), type_),
        is_first: false,
    };
    machines.iter().map(item).collect()
}

fn is_older(time: Timestamp, age: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(time) > age
}
