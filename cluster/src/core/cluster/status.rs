//! Pure: the status of a Cluster.
//!
//! Not here: the conditions of its parts (`condition`) and those of its Machines (`replicas`).

use bedplate_api::cluster::full::cluster::{ClusterInitialization, ClusterPhase, ClusterStatus};
use bedplate_api::cluster::full::{Cluster, condition_type};
use bedplate_api::condition::{ConditionState, set_condition, set_derived};
use bedplate_api::reason::ConditionReason;
use bedplate_api::reason::core::ClusterDeletingReason;
use jiff::Timestamp;

use super::deletion::Step;
use super::observed::{Component, Observed};
use super::plan::{CONDITION_TYPES, endpoint};
use super::{condition, replicas};
use crate::core::report;

/// Progress that is never reverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latched {
    /// True once the infrastructure was provisioned.
    pub is_provisioned: bool,
    /// True once the control plane was initialized.
    pub is_initialized: bool,
}

/// Status of a Cluster that is being built.
pub struct Draft {
    /// The status.
    pub status: ClusterStatus,
    /// `metadata.generation` of the Cluster.
    pub generation: Option<i64>,
    /// Present time.
    pub now: Timestamp,
}

impl Draft {
    fn new(cluster: &Cluster, now: Timestamp) -> Self {
        Self { status: own(cluster), generation: cluster.metadata.generation, now }
    }

    /// Sets a condition.
    pub fn set<R: ConditionReason + Into<ConditionState>>(&mut self, reason: R, message: &str) {
        let state: ConditionState = reason.into();
        set_condition(&mut self.status, state, reason, message, self.generation, self.now);
    }

    /// Sets a condition whose reason is that of another condition, or is shared by several types.
    pub(crate) fn set_as(&mut self, type_: &str, state: ConditionState, reason: &str, message: &str) {
        set_derived(&mut self.status, type_, state, (reason, message), self.generation, self.now);
    }

    /// Returns true if the status has the condition.
    pub fn has(&self, type_: &str) -> bool {
        self.status.conditions.iter().any(|condition| condition.type_ == type_)
    }
}

/// Returns the part of the present status that this controller writes.
pub fn own(cluster: &Cluster) -> ClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    status.conditions.retain(|condition| CONDITION_TYPES.contains(&condition.type_.as_str()));
    status.deprecated = None;
    status
}

/// Returns the status of a paused Cluster: the former one with condition `Paused`.
pub fn paused(cluster: &Cluster, now: Timestamp) -> ClusterStatus {
    let mut draft = Draft::new(cluster, now);
    set_paused(&mut draft, cluster);
    draft.status
}

/// Returns the status of a Cluster that is not reconciled: a field forbids any other write, or the finalizer is missing.
pub fn held(observed: &Observed, now: Timestamp) -> ClusterStatus {
    let cluster = &*observed.cluster;
    let mut draft = Draft::new(cluster, now);
    draft.status.observed_generation = cluster.metadata.generation;
    set_paused(&mut draft, cluster);
    fields(&mut draft, cluster);
    if let Some(message) = observed.refusal(condition_type::DELETING) {
        // Not True, the state of the reason: the Cluster is not deleted.
        let reason = ClusterDeletingReason::InternalError.as_str();
        draft.set_as(condition_type::DELETING, ConditionState::Unknown, reason, &message);
    }
    draft.status
}

/// Returns the status of a Cluster that is reconciled. `step`: its deletion.
pub fn status(observed: &Observed, step: Option<&Step>, now: Timestamp) -> ClusterStatus {
    let cluster = &*observed.cluster;
    let mut draft = Draft::new(cluster, now);
    draft.status.observed_generation = cluster.metadata.generation;
    let latched = latched(observed);
    draft.status.initialization = latched.initialization();
    failure_domains(&mut draft, observed, latched);
    draft.status.phase = Some(phase(observed, latched));
    replicas::counts(&mut draft.status, observed);
    set_paused(&mut draft, cluster);
    fields(&mut draft, cluster);
    condition::probe(&mut draft, observed);
    condition::infrastructure(&mut draft, observed, latched);
    condition::initialized(&mut draft, observed, latched);
    condition::control_plane(&mut draft, observed, latched);
    replicas::conditions(&mut draft, observed);
    let refusal = observed.refusal(condition_type::DELETING);
    let (reason, message) = match (&refusal, step) {
        (Some(message), _) => (ClusterDeletingReason::InternalError, message.as_str()),
        (None, Some(step)) => (step.reason, step.message.as_str()),
        (None, None) => (ClusterDeletingReason::NotDeleting, ""),
    };
    draft.set(reason, message);
    condition::available(&mut draft, cluster);
    draft.status
}

/// Returns the progress, with that of the objects (K4, K6).
pub(crate) fn latched(observed: &Observed) -> Latched {
    let cluster = &*observed.cluster;
    let before = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    let was = |field: fn(&ClusterInitialization) -> Option<bool>| before.and_then(field) == Some(true);
    let is_deleting = cluster.metadata.deletion_timestamp.is_some();
    let is_provisioned = match observed.reference(Component::Infrastructure) {
        // Without infrastructure nothing must wait for it, as upstream does.
        None => !is_deleting,
        Some(_) => observed
            .own(Component::Infrastructure)
            .is_some_and(|object| object.contract.provisioned == Some(true)),
    };
    let is_initialized = match observed.reference(Component::ControlPlane) {
        Some(_) => observed
            .own(Component::ControlPlane)
            .is_some_and(|object| object.contract.initialized == Some(true)),
        None => observed.control_plane_machines().any(|machine| {
            let has_node = machine.status.as_ref().is_some_and(|status| status.node_ref.is_some());
            has_node && machine.metadata.deletion_timestamp.is_none()
        }),
    };
    Latched {
        is_provisioned: is_provisioned || was(|before| before.infrastructure_provisioned),
        is_initialized: is_initialized || was(|before| before.control_plane_initialized),
    }
}

impl Latched {
    fn initialization(self) -> Option<ClusterInitialization> {
        let latched = |is_true: bool| is_true.then_some(true);
        (self.is_provisioned || self.is_initialized).then(|| ClusterInitialization {
            infrastructure_provisioned: latched(self.is_provisioned),
            control_plane_initialized: latched(self.is_initialized),
        })
    }
}

/// Copies the failure domains of a provisioned infrastructure (K4). They stay if it cannot be read.
fn failure_domains(draft: &mut Draft, observed: &Observed, latched: Latched) {
    if let Some(object) = observed.own(Component::Infrastructure).filter(|_| latched.is_provisioned) {
        draft.status.failure_domains.clone_from(&object.contract.failure_domains);
    }
}

/// Returns the phase (K4). It is shown only.
fn phase(observed: &Observed, latched: Latched) -> ClusterPhase {
    let cluster = &*observed.cluster;
    let is_owned = |component| observed.own(component).is_some();
    if cluster.metadata.deletion_timestamp.is_some() {
        ClusterPhase::Deleting
    } else if latched.is_provisioned && endpoint(cluster).is_some() {
        ClusterPhase::Provisioned
    } else if is_owned(Component::Infrastructure) || is_owned(Component::ControlPlane) {
        ClusterPhase::Provisioning
    } else {
        ClusterPhase::Pending
    }
}

fn set_paused(draft: &mut Draft, cluster: &Cluster) {
    report::set_paused(&mut draft.status, cluster, Some(cluster), draft.now);
}

fn fields(draft: &mut Draft, cluster: &Cluster) {
    let is_held = cluster.spec.topology.is_some();
    let remedy = if is_held { "the Cluster is not reconciled until they are removed" } else { "remove them" };
    let (reason, message) = report::fields_supported(cluster, remedy);
    draft.set(reason, &message);
}
