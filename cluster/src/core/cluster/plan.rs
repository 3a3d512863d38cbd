//! Pure: the next write for a Cluster, and its status.
//!
//! ```text
//! paused: condition only      topology: condition only
//! live:    finalizer -> owner of infrastructure and control plane (K2) -> endpoint, once (K4) -> kubeconfig without controlPlaneRef (K7)
//! deleted: MachineDeployments -> MachineSets -> Machines of workers -> control plane -> infrastructure -> finalizer
//! ```
//! One act at a time. A status is written with an act only if the act does not change the Cluster, or if the API server has refused it.

use std::time::Duration;

use bedplate_api::cluster::contract::Endpoint;
use bedplate_api::cluster::full::cluster::{ClusterStatus, FINALIZER};
use bedplate_api::cluster::full::{Cluster, condition_type};
use bedplate_api::cluster::part::label;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::deletion::{self, Child};
use super::observed::{AuthoritySecret, Component, KubeconfigSecret, Observed, Ownership, ownership};
use super::status;
use crate::owner::{self, owner_reference, with_owner};

/// Delay until objects that are not watched are read again: Secrets and MachinePools.
const POLL_DELAY: Duration = Duration::from_secs(30);
/// Maximum delay until the renewal of a kubeconfig is checked again.
const MAX_RENEWAL_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Types of the conditions that this controller writes. Other conditions of a Cluster belong to other programs.
pub const CONDITION_TYPES: [&str; 17] = [
    condition_type::PAUSED,
    condition_type::FIELDS_SUPPORTED,
    condition_type::AVAILABLE,
    condition_type::REMOTE_CONNECTION_PROBE,
    condition_type::INFRASTRUCTURE_READY,
    condition_type::CONTROL_PLANE_INITIALIZED,
    condition_type::CONTROL_PLANE_AVAILABLE,
    condition_type::WORKERS_AVAILABLE,
    condition_type::CONTROL_PLANE_MACHINES_READY,
    condition_type::CONTROL_PLANE_MACHINES_UP_TO_DATE,
    condition_type::WORKER_MACHINES_READY,
    condition_type::WORKER_MACHINES_UP_TO_DATE,
    condition_type::ROLLING_OUT,
    condition_type::SCALING_UP,
    condition_type::SCALING_DOWN,
    condition_type::REMEDIATING,
    condition_type::DELETING,
];

/// Next write that is not the status.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Act {
    /// Nothing.
    #[default]
    None,
    /// Add the finalizer.
    AddFinalizer,
    /// Set the owners and the label of a component (K2).
    Adopt {
        /// The component.
        component: Component,
        /// All owners of the object, with the Cluster.
        owners: Vec<OwnerReference>,
    },
    /// Set the endpoint of the Cluster (K4).
    SetEndpoint {
        /// The component that gives it.
        component: Component,
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// Make the Secret with the kubeconfig (K7, K8).
    MakeKubeconfig,
    /// Make the kubeconfig of the Secret again, with a new certificate.
    RenewKubeconfig,
    /// Delete Machines, or objects that make them. None of them is deleted yet.
    DeleteChildren(Vec<Child>),
    /// Delete a component.
    DeleteComponent(Component),
    /// Remove the finalizer. The caller must first read from the API server that no child is left.
    RemoveFinalizer,
}

impl Act {
    /// Returns true if the act changes the Cluster. A status that is bound to the version before would be refused.
    pub(crate) fn changes_cluster(&self) -> bool {
        match self {
            Self::AddFinalizer | Self::SetEndpoint { .. } | Self::RemoveFinalizer => true,
            Self::None
            | Self::Adopt { .. }
            | Self::MakeKubeconfig
            | Self::RenewKubeconfig
            | Self::DeleteChildren(_)
            | Self::DeleteComponent(_) => false,
        }
    }
}

/// Next writes for a Cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Next write that is not the status.
    pub act: Act,
    /// Status to apply after the act, even if the act has failed. None: it is unchanged.
    pub status: Option<Box<ClusterStatus>>,
    /// Delay until the Cluster is reconciled again without a change.
    pub again: Option<Duration>,
}

/// Decides.
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let cluster = &*observed.cluster;
    let has_finalizer = cluster.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let is_deleting = cluster.metadata.deletion_timestamp.is_some();
    if is_deleting && !has_finalizer {
        return Plan::default();
    }
    if is_paused(cluster) {
        return Plan { status: changed(cluster, status::paused(cluster, now)), ..Plan::default() };
    }
    if is_deleting {
        let step = deletion::step(observed);
        let status = status::status(observed, Some(&step), now);
        // MachinePools are not watched, and a store may show a child late that the API server has listed.
        let is_polled = observed.pools > 0 || step.act == Act::RemoveFinalizer;
        return planned(observed, step.act, status, is_polled.then_some(POLL_DELAY));
    }
    // The objects of a topology belong to another program. A Cluster that is deleted does not need it.
    if cluster.spec.topology.is_some() {
        return Plan { status: changed(cluster, status::held(observed, now)), ..Plan::default() };
    }
    if !has_finalizer {
        // Machines start after the latches of the status, so it has none before the finalizer.
        return planned(observed, Act::AddFinalizer, status::held(observed, now), None);
    }
    planned(observed, next_act(observed, now), status::status(observed, None, now), again(observed, now))
}

/// Returns the plan of an act. Once the API server has refused it, the status is written, because it shows the cause.
fn planned(observed: &Observed, act: Act, status: ClusterStatus, again: Option<Duration>) -> Plan {
    let is_carried_out = observed.refused.is_none() && act.changes_cluster();
    let status = if is_carried_out { None } else { changed(&observed.cluster, status) };
    Plan { act, status, again }
}

/// Returns true if no controller changes the Cluster.
pub fn is_paused(cluster: &Cluster) -> bool {
    owner::is_paused(cluster, Some(cluster))
}

/// Returns true if this controller makes the kubeconfig of the Cluster (K7). It needs the endpoint.
pub(crate) fn makes_kubeconfig(cluster: &Cluster) -> bool {
    cluster.spec.control_plane_ref.is_none() && endpoint(cluster).is_some()
}

/// Returns the endpoint of a Cluster, if both parts are set.
pub fn endpoint(cluster: &Cluster) -> Option<Endpoint> {
    cluster.spec.control_plane_endpoint.as_ref()?.complete()
}

/// Returns the status, if it differs in a field of this controller.
fn changed(cluster: &Cluster, status: ClusterStatus) -> Option<Box<ClusterStatus>> {
    (status::own(cluster) != status).then(|| Box::new(status))
}

fn next_act(observed: &Observed, now: Timestamp) -> Act {
    for component in [Component::Infrastructure, Component::ControlPlane] {
        if let Some(owners) = adoption(observed, component) {
            return Act::Adopt { component, owners };
        }
    }
    if endpoint(&observed.cluster).is_none()
        && let Some((component, endpoint)) = given_endpoint(observed)
    {
        return Act::SetEndpoint { component, endpoint };
    }
    if makes_kubeconfig(&observed.cluster) && observed.authority == AuthoritySecret::Usable {
        return match observed.kubeconfig {
            KubeconfigSecret::Absent => Act::MakeKubeconfig,
            KubeconfigSecret::Made { renews_at } if renews_at <= now => Act::RenewKubeconfig,
            KubeconfigSecret::NotRead | KubeconfigSecret::Made { .. } | KubeconfigSecret::Given => Act::None,
        };
    }
    Act::None
}

/// Returns the owners of a component with the Cluster, if the component does not have it (K2).
fn adoption(observed: &Observed, component: Component) -> Option<Vec<OwnerReference>> {
    let cluster = &*observed.cluster;
    let object = observed.component(component)?.1.found()?;
    let name = cluster.name_any();
    let has_label = object.metadata.labels.as_ref().and_then(|labels| labels.get(label::CLUSTER_NAME));
    let is_adopted = match ownership(object, cluster) {
        Ownership::Own => has_label == Some(&name),
        Ownership::Free => false,
        Ownership::Foreign(_) => true,
    };
    if is_adopted || object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    // Not the controller: users may have a controller of their own for the object, as upstream allows.
    Some(with_owner(object, &owner_reference(cluster, false)))
}

/// Returns the endpoint that the infrastructure gives once it is provisioned, or the control plane once it is initialized (K4).
fn given_endpoint(observed: &Observed) -> Option<(Component, Endpoint)> {
    let latched = status::latched(observed);
    let given = |component: Component, is_due: bool| {
        let endpoint = observed.own(component).filter(|_| is_due)?.contract.endpoint.clone()?;
        Some((component, endpoint))
    };
    given(Component::Infrastructure, latched.is_provisioned)
        .or_else(|| given(Component::ControlPlane, latched.is_initialized))
}

/// Returns the delay until a Secret is read again. Secrets are not watched.
fn again(observed: &Observed, now: Timestamp) -> Option<Duration> {
    if !makes_kubeconfig(&observed.cluster) {
        return None;
    }
    let is_usable = observed.authority == AuthoritySecret::Usable;
    match observed.kubeconfig {
        KubeconfigSecret::Absent if !is_usable => Some(POLL_DELAY),
        KubeconfigSecret::Made { renews_at: at } if at > now => {
            let left = Duration::try_from(at.duration_since(now)).unwrap_or(MAX_RENEWAL_DELAY);
            Some(left.min(MAX_RENEWAL_DELAY))
        }
        KubeconfigSecret::Made { .. } if !is_usable => Some(POLL_DELAY),
        KubeconfigSecret::NotRead
        | KubeconfigSecret::Absent
        | KubeconfigSecret::Made { .. }
        | KubeconfigSecret::Given => None,
    }
}
