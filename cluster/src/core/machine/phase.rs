//! Pure: the phase of a Machine. It is shown only (M11): it follows from the other fields, never from the phase before.
//!
//! ```text
//! Pending -> Provisioning (data) -> Provisioned (infrastructure, providerID) -> Running (Node Ready);   Failed;   Deleting
//! ```
//! Called by `status`.

use bedplate_api::cluster::full::condition_type;
use bedplate_api::cluster::full::machine::{MachinePhase, MachineStatus};

use super::plan::Observed;
use super::references::Part;

/// Returns the phase of a Machine with this status.
pub fn phase(status: &MachineStatus, observed: &Observed) -> MachinePhase {
    let latches = status.initialization.clone().unwrap_or_default();
    let is_provisioned = latches.infrastructure_provisioned == Some(true) && observed.provider_id().is_some();
    let is_ready = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == condition_type::NODE_READY && condition.status == "True");
    if observed.is_deleting() {
        MachinePhase::Deleting
    } else if has_failed(status, observed) {
        MachinePhase::Failed
    } else if is_provisioned && status.node_ref.is_some() && is_ready {
        MachinePhase::Running
    } else if is_provisioned {
        MachinePhase::Provisioned
    } else if latches.bootstrap_data_secret_created == Some(true) {
        MachinePhase::Provisioning
    } else {
        MachinePhase::Pending
    }
}

/// Returns true if a permanent failure is reported, or the infrastructure was deleted under the Machine (M10). A user must act.
fn has_failed(status: &MachineStatus, observed: &Observed) -> bool {
    let own = status.deprecated.as_ref().and_then(|deprecated| deprecated.v1beta1.as_ref());
    let is_own = own.is_some_and(|own| {
        [&own.failure_reason, &own.failure_message].into_iter().flatten().any(|text| !text.is_empty())
    });
    let has_reported = [Part::Bootstrap, Part::Infrastructure].into_iter().any(|part| {
        let is_set = part.reference(&observed.machine).is_some();
        is_set && part.lookup(observed).found().is_some_and(|object| object.contract.failure.is_some())
    });
    let latches = status.initialization.as_ref();
    let was_provisioned = latches.is_some_and(|latches| latches.infrastructure_provisioned == Some(true));
    is_own || has_reported || was_provisioned && observed.infrastructure.is_absent()
}
