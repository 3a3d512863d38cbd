//! Pure: the next write for a BedplateCluster.
//!
//! ```text
//! owner -> finalizer, block-move -> endpoint -> provisioned (stays True) -> deleted: no BedplateMachine left -> finalizer
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_api::cluster::core::{BLOCK_MOVE_ANNOTATION, Cluster, MANAGED_BY_ANNOTATION};
use bedplate_api::cluster::infrastructure::{
    BedplateCluster, BedplateClusterStatus, FINALIZER, FailureDomain, Initialization,
};
use bedplate_api::condition::{set_condition, set_ready};
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::infrastructure::{ClusterReadyReason, EndpointAvailableReason, PausedReason};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::owner::is_paused;

/// Maximum number of failure domains in a status (contract of Cluster API).
const MAX_FAILURE_DOMAINS: usize = 100;
/// Maximum number of BedplateMachines that a message names.
const MAX_NAMES: usize = 5;

/// Objects that decide about a BedplateCluster.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The BedplateCluster.
    pub object: Arc<BedplateCluster>,
    /// The Cluster that owns it.
    pub cluster: Option<Arc<Cluster>>,
    /// Names of the BedplateMachines of the cluster.
    pub machines: Vec<String>,
    /// Failure domains of the hosts that the namespace may claim.
    pub domains: BTreeSet<String>,
}

/// Next write.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Nothing.
    None,
    /// Add the finalizer.
    AddFinalizer,
    /// Make `clusterctl move` wait: hosts are enrolled in this management cluster.
    BlockMove,
    /// Remove the finalizer.
    RemoveFinalizer,
    /// Write the status.
    Status(Box<BedplateClusterStatus>),
}

/// Decides.
pub fn plan(observed: &Observed, now: Timestamp) -> Act {
    let object = &*observed.object;
    // Another program writes it.
    if object.annotations().contains_key(MANAGED_BY_ANNOTATION) {
        return Act::None;
    }
    let is_deleting = object.metadata.deletion_timestamp.is_some();
    let is_paused = is_paused(object, observed.cluster.as_deref());
    let has_finalizer = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if !is_paused && is_deleting {
        if !has_finalizer {
            return Act::None;
        }
        if observed.machines.is_empty() {
            return Act::RemoveFinalizer;
        }
    }
    if !is_paused && !is_deleting && observed.cluster.is_some() {
        if !has_finalizer {
            return Act::AddFinalizer;
        }
        if !object.annotations().contains_key(BLOCK_MOVE_ANNOTATION) {
            return Act::BlockMove;
        }
    }
    let status = status(observed, is_paused, now);
    if object.status.as_ref() == Some(&status) { Act::None } else { Act::Status(Box::new(status)) }
}

fn status(observed: &Observed, is_paused: bool, now: Timestamp) -> BedplateClusterStatus {
    let object = &*observed.object;
    let mut status = object.status.clone().unwrap_or_default();
    let generation = object.metadata.generation;
    status.observed_generation = generation;
    let reason = if is_paused { PausedReason::Paused } else { PausedReason::NotPaused };
    set_condition(&mut status, is_paused, reason, reason.meaning(), generation, now);
    if is_paused {
        return status;
    }
    // K3
    let Some(cluster) = observed.cluster.as_deref() else {
        let reason = ClusterReadyReason::WaitingForOwner;
        set_ready(&mut status, false, reason.as_str(), reason.meaning(), generation, now);
        return status;
    };
    let endpoint =
        object.spec.control_plane_endpoint.as_ref().or(cluster.spec.control_plane_endpoint.as_ref());
    let endpoint = endpoint.filter(|endpoint| !endpoint.host.is_empty() && endpoint.port != 0);
    let (reason, message) = match endpoint {
        Some(endpoint) => (
            EndpointAvailableReason::EndpointAvailable,
            format!("control plane at {} port {}", endpoint.host, endpoint.port),
        ),
        None => {
            let reason = EndpointAvailableReason::EndpointMissing;
            (reason, "spec.controlPlaneEndpoint is not set, neither here nor in the Cluster".to_owned())
        }
    };
    set_condition(&mut status, endpoint.is_some(), reason, &message, generation, now);
    if endpoint.is_some() {
        status.initialization = Some(Initialization { provisioned: Some(true) });
        status.ready = Some(true);
    }
    let domain = |name: &String| FailureDomain { name: name.clone(), control_plane: true };
    status.failure_domains = observed.domains.iter().take(MAX_FAILURE_DOMAINS).map(domain).collect();
    ready(&mut status, observed, (endpoint.is_some(), reason.as_str(), &message), now);
    status
}

fn ready(
    status: &mut BedplateClusterStatus,
    observed: &Observed,
    (has_endpoint, reason, message): (bool, &str, &str),
    now: Timestamp,
) {
    let generation = observed.object.metadata.generation;
    if observed.object.metadata.deletion_timestamp.is_some() {
        let left = &observed.machines;
        let more = if left.len() > MAX_NAMES { " and others" } else { "" };
        let names = left.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!("BedplateMachines are left: {names}{more}");
        set_ready(status, false, ClusterReadyReason::Deleting.as_str(), &message, generation, now);
    } else if has_endpoint {
        let reason = ClusterReadyReason::Provisioned;
        set_ready(status, true, reason.as_str(), reason.meaning(), generation, now);
    } else {
        set_ready(status, false, reason, message, generation, now);
    }
}

#[cfg(test)]
mod tests;
