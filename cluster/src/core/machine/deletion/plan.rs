//! Pure: the next step of the deletion of a Machine, or the cause of its wait.
//!
//! ```text
//! Observed -> hook, drain, volume, hook, object, object, node -> Plan: act, condition Deleting, time of the next turn
//! ```
//! An act that reads asks for a part of the workload cluster. The caller reads it and plans again in the same turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::cluster::full::{Cluster, Machine, machine};
use bedplate_api::cluster::part::annotation;
use bedplate_api::reason::core::MachineDeletingReason as Reason;
use bedplate_rules::drain::Pod;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::drain::Hold;
use super::node::{NodeAnswer, NodeFailure, Skip};
use super::pod::PodsView;
use super::volume::VolumesView;
use super::{drain, hook, node, object, volume};
use crate::core::reference::Lookup;

/// Objects that decide about the deletion of a Machine. A part of the workload cluster is None until a plan asks for it.
///
/// The text of a failed read is for a user.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The Machine.
    pub machine: Arc<Machine>,
    /// The Cluster. None: it does not exist.
    pub cluster: Option<Arc<Cluster>>,
    /// True if the Machine or its Cluster is paused.
    pub is_paused: bool,
    /// Object of `controlPlaneRef` of the Cluster. None: the field is not set.
    pub control_plane: Option<Lookup>,
    /// Number of Machines of the control plane of the Cluster that are not deleted.
    pub active_control_plane_machines: usize,
    /// Object of `infrastructureRef`.
    pub infrastructure: Lookup,
    /// Object of `configRef`. None: the field is not set.
    pub bootstrap: Option<Lookup>,
    /// Node of `nodeRef`. Without `nodeRef`: Node with the provider ID of the Machine.
    pub node: Option<Result<NodeAnswer, String>>,
    /// Pods of the Node.
    pub pods: Option<Result<PodsView, String>>,
    /// Volumes of the Node.
    pub volumes: Option<Result<VolumesView, String>>,
    /// Evictions that were rejected, by the UID of the Pod. Kept in memory between turns.
    pub holds: BTreeMap<String, Hold>,
    /// Failure to delete or to read the Node, once only the Node is left. Kept in memory between turns.
    pub node_failure: Option<NodeFailure>,
}

/// Part of the workload cluster that is read for a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Needed {
    /// Node with this name.
    Node(String),
    /// Node with this provider ID. Its name is not recorded.
    NodeOf(String),
    /// Pods of the Node with this name.
    Pods(String),
    /// Volumes of the Node with this name, and the claims of its Pods that stay.
    Volumes(String),
}

/// Next write or read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Act {
    /// Nothing.
    #[default]
    Wait,
    /// Read a part, then plan again.
    Read(Needed),
    /// Set `status.deletion.nodeDrainStartTime`.
    RecordDrainStart(Timestamp),
    /// Set `status.deletion.waitForNodeVolumeDetachStartTime`.
    RecordVolumeStart(Timestamp),
    /// Set `spec.unschedulable` of the Node with this name and UID.
    Cordon {
        /// Name of the Node.
        name: String,
        /// UID of the Node.
        uid: String,
    },
    /// Evict these Pods, at most [`drain::EVICTIONS_PER_TURN`].
    Evict {
        /// Pods, sorted by name.
        pods: Vec<Pod>,
        /// Time in seconds that a Pod has to end. None: its own.
        grace: Option<u32>,
    },
    /// Delete the object of `infrastructureRef` with this UID.
    DeleteInfrastructure(String),
    /// Delete the object of `configRef` with this UID.
    DeleteBootstrap(String),
    /// Delete the Node with this name, provided that it has this UID.
    DeleteNode {
        /// Name of the Node.
        name: String,
        /// UID of the Node.
        uid: String,
    },
    /// Remove the finalizer of the Machine.
    RemoveFinalizer,
}

impl Act {
    /// Returns true if the act sends requests to the workload cluster.
    pub(crate) fn is_remote(&self) -> bool {
        match self {
            Self::Read(needed) => !matches!(needed, Needed::NodeOf(_)),
            Self::Cordon { .. } | Self::Evict { .. } | Self::DeleteNode { .. } => true,
            Self::Wait
            | Self::RecordDrainStart(_)
            | Self::RecordVolumeStart(_)
            | Self::DeleteInfrastructure(_)
            | Self::DeleteBootstrap(_)
            | Self::RemoveFinalizer => false,
        }
    }
}

/// Next act and report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Next write or read.
    pub act: Act,
    /// Reason and message of condition `Deleting`. None: the condition stays as it is.
    pub condition: Option<(Reason, String)>,
    /// Time of the next turn, if no watch announces the change.
    pub again: Option<Timestamp>,
}

impl Plan {
    /// Returns a plan that acts.
    pub(super) fn act(act: Act, reason: Reason, message: String) -> Self {
        Self { act, condition: Some((reason, message)), again: None }
    }

    /// Returns a plan that waits for a change that a watch announces.
    pub(super) fn wait(reason: Reason, message: String) -> Self {
        Self::act(Act::Wait, reason, message)
    }

    /// Returns a plan that reads a part.
    pub(super) fn read(needed: Needed) -> Self {
        Self { act: Act::Read(needed), ..Self::default() }
    }

    /// Adds the cause for which the Node was not drained.
    fn after_skip(mut self, cause: Option<String>) -> Self {
        if let (Some((_, message)), Some(cause)) = (&mut self.condition, cause) {
            message.push_str("; Node was not drained: ");
            message.push_str(&cause);
        }
        self
    }

    /// Sets the time of the next turn.
    pub(super) fn again(self, at: Timestamp) -> Self {
        Self { again: Some(at), ..self }
    }
}

/// Decides the next step (M9).
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let machine = &*observed.machine;
    if observed.is_paused {
        return Plan::default();
    }
    if machine.metadata.deletion_timestamp.is_none() {
        return Plan::wait(Reason::NotDeleting, String::new());
    }
    let completed = "all objects of the Machine are deleted".to_owned();
    if !machine.finalizers().iter().any(|finalizer| finalizer == machine::FINALIZER) {
        return Plan::wait(Reason::DeletionCompleted, completed);
    }
    let target = match node::target(observed, now) {
        Ok(target) => target,
        Err(plan) => return plan,
    };
    let node = target.as_ref().ok().map(String::as_str);
    let before = node.and_then(|_| hook::step(machine, hook::PRE_DRAIN));
    if let Some(plan) = before.or_else(|| node.and_then(|name| drain::step(observed, name, now))) {
        return plan;
    }
    None.or_else(|| node.and_then(|name| volume::step(observed, name, now)))
        .or_else(|| hook::step(machine, hook::PRE_TERMINATE))
        .or_else(|| object::infrastructure(observed))
        .or_else(|| object::bootstrap(observed))
        .or_else(|| node.and_then(|name| node::step(observed, name, now)))
        .unwrap_or_else(|| Plan::act(Act::RemoveFinalizer, Reason::DeletionCompleted, completed))
        .after_skip(target.err().map(Skip::why).map(str::to_owned).or_else(|| drain::skipped(machine)))
}

/// Returns true if the kubelet of the Node can still end Pods. The member of etcd of a Machine of a KubeadmControlPlane is removed
/// before its hook is. From then on the API server of the host does not work, and its kubelet reports to no other.
pub(super) fn is_node_served(machine: &Machine) -> bool {
    let is_control_plane = machine.labels().contains_key(bedplate_api::cluster::part::label::CONTROL_PLANE);
    let mut owners = machine.owner_references().iter();
    let is_kubeadm = owners.any(|owner| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.kind == "KubeadmControlPlane" && group == Some("controlplane.cluster.x-k8s.io")
    });
    !(is_control_plane && is_kubeadm) || machine.annotations().contains_key(annotation::KCP_CLEANUP_HOOK)
}

/// Returns the end of a timeout in seconds. None: it has none, or it has not started.
pub(super) fn deadline(start: Option<Timestamp>, seconds: Option<i32>) -> Option<Timestamp> {
    let seconds = seconds.filter(|seconds| *seconds > 0)?;
    Some(later(start?, SignedDuration::from_secs(seconds.into())))
}

/// Returns a time that is later by a duration.
pub(super) fn later(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

/// Returns the text that names the end of a step.
pub(super) fn until(deadline: Option<Timestamp>) -> String {
    deadline.map_or_else(String::new, |deadline| {
        format!("; the deletion continues without it at {}", second(deadline))
    })
}

/// Returns a time without fractions of a second.
pub(super) fn second(time: Timestamp) -> String {
    time.round(jiff::Unit::Second).unwrap_or(time).to_string()
}
