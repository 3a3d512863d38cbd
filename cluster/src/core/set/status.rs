//! Pure: the status of a MachineSet (MS9). Called by the controller of MachineSets, after the plan.

use bedplate_api::cluster::full::set::MachineSetStatus;
use jiff::Timestamp;

use super::act::{Plan, is_set_paused};
use super::observe::Observed;
use crate::core::object::{count, is_deleting, selector};
use crate::core::report::{Report, Scale, counts};

/// Returns the status. Equal statuses need no write. A paused set keeps all conditions but `Paused` and `FieldsSupported`.
pub fn status(observed: &Observed, plan: &Plan, now: Timestamp) -> MachineSetStatus {
    let set = &*observed.set;
    let mut status = set.status.clone().unwrap_or_default();
    let generation = set.metadata.generation;
    let mut conditions = std::mem::take(&mut status.conditions);
    let mut report = Report { conditions: &mut conditions, generation, now };
    let is_paused = is_set_paused(observed);
    report.common(set, observed.cluster.as_deref());
    if !is_paused {
        let machines = observed.owned();
        let scale =
            Scale { desired: set.spec.replicas, is_deleting: is_deleting(set), blocked: &plan.blocked };
        report.scaling(scale, &machines);
        report.machines(&machines);
        report.deleting(is_deleting(set), &machines, &plan.blocked);
        let counts = counts(&machines);
        status.replicas = Some(count(counts.existing));
        status.ready_replicas = Some(count(counts.ready));
        status.available_replicas = Some(count(counts.available));
        status.up_to_date_replicas = Some(count(counts.up_to_date));
        status.selector = selector(&set.effective_labels().selector).map(|selector| selector.to_string());
        status.observed_generation = generation;
    }
    status.conditions = conditions;
    status
}
