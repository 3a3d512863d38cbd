//! Pure: the status that a Machine must have.
//!
//! Fields of a provider are copied while its object is the Machine's own. `initialization` never goes back, and `nodeRef` never changes: the
//! object of another Machine, or another Node, must not take this Machine's place. Conditions of other writers stay as they are. Called by `plan`.

use std::time::Duration;

use bedplate_api::cluster::full::condition_type;
use bedplate_api::cluster::full::machine::{
    MachineDeletionStatus, MachineInitialization, MachineNodeRef, MachineStatus, NodeInfo, NodeSwap,
};
use bedplate_api::cluster::part::{annotation, label};
use bedplate_api::reason::core::MachineDeletingReason;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSystemInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::condition;
use super::node;
use super::phase::phase;
use super::plan::Observed;
use super::references;
use super::up_to_date;
use crate::core::report;

/// Types of the conditions that this controller writes for each Machine. Health checks, owners and control planes write the others.
pub(crate) const OWN_CONDITIONS: [&str; 9] = [
    condition_type::AVAILABLE,
    condition_type::READY,
    condition_type::BOOTSTRAP_CONFIG_READY,
    condition_type::INFRASTRUCTURE_READY,
    condition_type::NODE_READY,
    condition_type::NODE_HEALTHY,
    condition_type::DELETING,
    condition_type::PAUSED,
    condition_type::FIELDS_SUPPORTED,
];

/// Progress of a deletion, as `deletion` has decided it.
#[derive(Debug, Clone, PartialEq)]
pub struct Deleting {
    /// Reason of condition `Deleting`.
    pub reason: MachineDeletingReason,
    /// Message of condition `Deleting`.
    pub message: String,
    /// `status.deletion`.
    pub status: Option<MachineDeletionStatus>,
}

/// Status of a Machine, and the time of its next change without an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Next {
    /// The status.
    pub status: MachineStatus,
    /// Delay until a condition changes by the time alone.
    pub recheck: Option<Duration>,
}

/// Returns the part of a status that this controller writes. `UpToDate` is part of it only for a Machine of a MachineDeployment.
pub fn own(mut status: MachineStatus, observed: &Observed) -> MachineStatus {
    let has_template = up_to_date::line(observed).is_some();
    status.conditions.retain(|condition| {
        let type_ = condition.type_.as_str();
        OWN_CONDITIONS.contains(&type_) || has_template && type_ == condition_type::UP_TO_DATE
    });
    status.deprecated = None;
    status
}

/// Returns the status that a Machine must have.
pub fn status(observed: &Observed, deleting: Option<&Deleting>) -> Next {
    let mut status = observed.machine.status.clone().unwrap_or_default();
    report::set_paused(&mut status, &*observed.machine, observed.cluster.as_deref(), observed.now);
    if observed.is_paused() {
        return Next { status, recheck: None };
    }
    status.observed_generation = observed.machine.metadata.generation;
    initialization(&mut status, observed);
    infrastructure(&mut status, observed);
    node(&mut status, observed);
    status.certificates_expiry_date = certificates_expiry(observed);
    if let Some(deleting) = deleting {
        status.deletion.clone_from(&deleting.status);
    }
    let recheck = condition::set_all(&mut status, observed, deleting);
    let phase = phase(&status, observed);
    if status.phase != Some(phase) {
        status.phase = Some(phase);
        status.last_updated = Some(Time(observed.now));
    }
    Next { status, recheck }
}

/// Sets the latches. A field that is true stays true.
fn initialization(status: &mut MachineStatus, observed: &Observed) {
    let has_data = observed.machine.spec.bootstrap.data_secret_name.is_some();
    let infrastructure = references::provisioned(observed);
    let id = infrastructure.and_then(|object| object.contract.provider_id.as_deref());
    let is_synced = id.is_some() && id == observed.provider_id();
    if !has_data && !is_synced {
        return;
    }
    let latches = status.initialization.get_or_insert_with(MachineInitialization::default);
    if has_data {
        latches.bootstrap_data_secret_created = Some(true);
    }
    if is_synced {
        latches.infrastructure_provisioned = Some(true);
    }
}

/// Copies what the infrastructure reports. Fields that it does not report stay.
fn infrastructure(status: &mut MachineStatus, observed: &Observed) {
    let Some(infrastructure) = references::provisioned(observed) else { return };
    let contract = &infrastructure.contract;
    if contract.provider_id.is_none() {
        return;
    }
    if !contract.addresses.is_empty() {
        status.addresses.clone_from(&contract.addresses);
    }
    if contract.failure_domain.is_some() {
        status.failure_domain.clone_from(&contract.failure_domain);
    }
}

fn node(status: &mut MachineStatus, observed: &Observed) {
    let Some(node) = node::found(observed) else { return };
    if status.node_ref.is_none() {
        status.node_ref = Some(MachineNodeRef { name: node.name_any() });
    }
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    if let Some(info) = info {
        status.node_info = Some(node_info(info));
    }
}

fn node_info(info: &NodeSystemInfo) -> NodeInfo {
    NodeInfo {
        architecture: info.architecture.clone(),
        boot_id: info.boot_id.clone(),
        container_runtime_version: info.container_runtime_version.clone(),
        kernel_version: info.kernel_version.clone(),
        kube_proxy_version: info.kube_proxy_version.clone(),
        kubelet_version: info.kubelet_version.clone(),
        machine_id: info.machine_id.clone(),
        operating_system: info.operating_system.clone(),
        os_image: info.os_image.clone(),
        system_uuid: info.system_uuid.clone(),
        swap: info.swap.as_ref().map(|swap| NodeSwap { capacity: swap.capacity }),
    }
}

/// Returns the time at which the certificates of a machine of the control plane expire: by its own annotation, otherwise by that of its
/// bootstrap object. While that object is not known, the time stays.
fn certificates_expiry(observed: &Observed) -> Option<Time> {
    let machine = &*observed.machine;
    if !machine.labels().contains_key(label::CONTROL_PLANE) {
        return None;
    }
    let own = machine.annotations().get(annotation::CERTIFICATES_EXPIRY);
    let has_config = machine.spec.bootstrap.config_ref.is_some();
    if own.is_none() && has_config && !observed.bootstrap.is_known() {
        return machine.status.as_ref().and_then(|status| status.certificates_expiry_date.clone());
    }
    let bootstrap = observed.bootstrap.found().filter(|_| has_config);
    let given = own.or_else(|| bootstrap?.annotations().get(annotation::CERTIFICATES_EXPIRY));
    // A fraction of a second would not be stored, and each plan would write it again.
    let time = given.and_then(|text| text.parse::<Timestamp>().ok());
    time.and_then(|time| Timestamp::from_second(time.as_second()).ok()).map(Time)
}
