//! Pure: conditions about several Machines, with upstream's words. Called by the status of Clusters, MachineDeployments and MachineSets.

use bedplate_api::cluster::core::PAUSED_ANNOTATION;
use bedplate_api::cluster::full::condition_type::{
    DELETING, HEALTH_CHECK_SUCCEEDED, MACHINES_READY, MACHINES_UP_TO_DATE, OWNER_REMEDIATED, READY,
    UP_TO_DATE,
};
use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::part::label;
use bedplate_api::cluster::unsupported::Unsupported;
use bedplate_api::condition::{ConditionState, set_condition, set_derived};
use bedplate_api::reason::core::{
    FieldsSupportedReason, MachineDeletingReason, MachinesReadyReason, MachinesUpToDateReason,
    RemediatingReason, ScalingDownReason, ScalingUpReason, SetDeletingReason,
};
use bedplate_api::reason::infrastructure::PausedReason;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};

use super::merge::{Item, Merged, aggregate, listed};
use super::object::{Conditions as _, condition, created, is_deleting, is_false, is_true};
use crate::owner::{Pausing as _, has_paused_annotation};

/// Maximum number of names in a message.
const MAX_NAMES: usize = 3;
/// Maximum number of paths in a message.
const MAX_PATHS: usize = 5;
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
    let having = |type_| present().filter(|machine| is_true(machine.conditions(), type_)).count();
    Counts {
        existing: present().count(),
        ready: having(READY),
        available: having(bedplate_api::cluster::full::condition_type::AVAILABLE),
        up_to_date: having(UP_TO_DATE),
    }
}

/// Returns the reason and the message of a condition about the readiness of Machines.
pub fn ready(machines: &[&Machine]) -> (MachinesReadyReason, String) {
    let (merged, message) = aggregate(READY, false, &items(machines, READY));
    let reason = match merged {
        _ if machines.is_empty() => MachinesReadyReason::NoReplicas,
        Merged::Normal => MachinesReadyReason::Ready,
        Merged::Issue => MachinesReadyReason::NotReady,
        Merged::Unknown => MachinesReadyReason::ReadyUnknown,
    };
    (reason, message)
}

/// Returns the reason and the message of a condition about the templates of Machines. Machines that are too new to have one do not count.
pub fn up_to_date(machines: &[&Machine], now: Timestamp) -> (MachinesUpToDateReason, String) {
    let is_judged = |machine: &&Machine| {
        condition(machine.conditions(), UP_TO_DATE).is_some() || is_older(created(*machine), NEW_MACHINE, now)
    };
    let judged: Vec<&Machine> = machines.iter().copied().filter(is_judged).collect();
    let (merged, message) = aggregate(UP_TO_DATE, false, &items(&judged, UP_TO_DATE));
    let reason = match merged {
        _ if judged.is_empty() => MachinesUpToDateReason::NoReplicas,
        Merged::Normal => MachinesUpToDateReason::UpToDate,
        Merged::Issue => MachinesUpToDateReason::NotUpToDate,
        Merged::Unknown => MachinesUpToDateReason::UpToDateUnknown,
    };
    (reason, message)
}

/// Returns the reason and the message of `Remediating`.
pub(crate) fn remediating(machines: &[&Machine]) -> (RemediatingReason, String) {
    let is_failed = |machine: &&Machine| is_false(machine.conditions(), HEALTH_CHECK_SUCCEEDED);
    let is_marked = |machine: &&Machine| is_false(machine.conditions(), OWNER_REMEDIATED);
    let failed: Vec<&Machine> = machines.iter().copied().filter(is_failed).collect();
    let marked: Vec<&Machine> = failed.iter().copied().filter(is_marked).collect();
    if !marked.is_empty() {
        let (_, message) = aggregate(OWNER_REMEDIATED, false, &items(&marked, OWNER_REMEDIATED));
        return (RemediatingReason::Remediating, message);
    }
    let message = match failed.len() {
        0 => String::new(),
        1 => format!("{} is not healthy, and not marked for remediation", names(&failed)),
        _ => format!("{} are not healthy, and not marked for remediation", names(&failed)),
    };
    (RemediatingReason::NotRemediating, message)
}

/// Returns the reason and the message of `FieldsSupported`. `remedy`: next step for a user.
pub(crate) fn fields_supported(object: &impl Unsupported, remedy: &str) -> (FieldsSupportedReason, String) {
    let paths = object.unsupported();
    if paths.is_empty() {
        return (FieldsSupportedReason::FieldsSupported, String::new());
    }
    let names: Vec<String> = paths.iter().take(MAX_PATHS).map(ToString::to_string).collect();
    let more = match paths.len().saturating_sub(MAX_PATHS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("fields are not supported: {}{more}; {remedy}", names.join(", "));
    (FieldsSupportedReason::UnsupportedFields, message)
}

/// Sets `Paused` of an object of a Cluster, or of the Cluster itself. The message has the causes and the next steps.
pub(crate) fn set_paused<K: Resource>(
    conditions: &mut impl AsMut<Vec<Condition>>,
    object: &K,
    cluster: Option<&Cluster>,
    now: Timestamp,
) {
    let name = |cluster: &Cluster| {
        format!("Cluster {} is paused; set its spec.paused to false to continue", cluster.name_any())
    };
    let paused = cluster.filter(|cluster| cluster.pauses()).map(name);
    let own = has_paused_annotation(object)
        .then(|| format!("annotation {PAUSED_ANNOTATION} is set; remove it to continue"));
    let causes: Vec<String> = paused.into_iter().chain(own).collect();
    let is_paused = !causes.is_empty();
    let reason = if is_paused { PausedReason::Paused } else { PausedReason::NotPaused };
    let generation = object.meta().generation;
    set_condition(conditions, is_paused, reason, &causes.join(", "), generation, now);
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
        let (reason, message) = ready(machines);
        self.set_as(MACHINES_READY, reason, reason.as_str(), &message);
        let (reason, message) = up_to_date(machines, self.now);
        self.set_as(MACHINES_UP_TO_DATE, reason, reason.as_str(), &message);
        let (reason, message) = remediating(machines);
        self.set(reason, &message);
    }

    fn set_as(&mut self, type_: &str, state: impl Into<ConditionState>, reason: &str, message: &str) {
        set_derived(self.conditions, type_, state, (reason, message), self.generation, self.now);
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
            let cause = blocked(scale.blocked);
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

    /// Sets `Deleting`. `blocked`: reasons why the deletion does not end.
    pub fn deleting(&mut self, is_deleting: bool, machines: &[&Machine], blocked: &[String]) {
        if !is_deleting {
            return self.set(SetDeletingReason::NotDeleting, "");
        }
        let message = match machines.len() {
            0 if !blocked.is_empty() => format!("Deletion{}", self::blocked(blocked)),
            0 => "Deletion completed".to_owned(),
            1 => format!("Deleting 1 Machine{}", self.slow(machines)),
            number => format!("Deleting {number} Machines{}", self.slow(machines)),
        };
        self.set(SetDeletingReason::Deleting, &message);
    }

    /// Sets `Paused` and `FieldsSupported`.
    pub fn common<K: Resource + Unsupported>(&mut self, object: &K, cluster: Option<&Cluster>) {
        set_paused(self.conditions, object, cluster, self.now);
        let (reason, message) = fields_supported(object, "remove them");
        self.set(reason, &message);
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
        let is_draining = slow.iter().any(|machine| {
            let deleting = condition(machine.conditions(), DELETING);
            deleting.is_some_and(|deleting| deleting.reason == MachineDeletingReason::DrainingNode.as_str())
        });
        let cause = if is_draining { ", Pods delay the drain" } else { "" };
        let verb = if slow.len() == 1 { "is" } else { "are" };
        format!("\n* {} {verb} in deletion since more than 15m{cause}", names(&slow))
    }
}

/// Returns the end of a message about reasons that a user must remove.
fn blocked(reasons: &[String]) -> String {
    if reasons.is_empty() {
        return String::new();
    }
    let reasons: Vec<String> = reasons.iter().map(|why| format!("\n* {why}")).collect();
    format!(" is blocked because:{}", reasons.concat())
}

fn names(machines: &[&Machine]) -> String {
    let names: Vec<String> = machines.iter().map(|machine| machine.name_any()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    listed("Machine", &names, MAX_NAMES)
}

fn items<'a>(machines: &'a [&'a Machine], type_: &str) -> Vec<Item<'a>> {
    let item = |machine: &&'a Machine| Item {
        kind: "Machine",
        name: machine.metadata.name.as_deref().unwrap_or_default(),
        condition: condition(machine.conditions(), type_),
        is_first: machine.labels().contains_key(label::CONTROL_PLANE),
    };
    machines.iter().map(item).collect()
}

fn is_older(time: Timestamp, age: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(time) > age
}
