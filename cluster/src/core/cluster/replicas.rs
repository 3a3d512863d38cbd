//! Pure: the numbers of Machines of a Cluster, and the conditions that merge those of its Machines and of the objects that make them.
//!
//! A control plane object counts for `RollingOut`, `ScalingUp` and `ScalingDown` only if it reports the condition, as upstream does.

use std::sync::Arc;

use bedplate_api::cluster::contract::{CountsView, Mirrored};
use bedplate_api::cluster::full::cluster::{ClusterStatus, MachineCounts};
use bedplate_api::cluster::full::{Machine, condition_type};
use bedplate_api::reason::core::{
    RollingOutReason, ScalingDownReason, ScalingUpReason, WorkersAvailableReason,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::observed::{Component, Observed};
use super::status::Draft;
use crate::core::merge::{Item, Merged, aggregate};
use crate::core::object::{Conditions as _, condition, is_true};
use crate::core::reference::{Lookup, is_managed};
use crate::core::report;

/// Returns the numbers of a MachineDeployment or a MachineSet.
macro_rules! total {
    ($object:ident) => {{
        let status = $object.status.as_ref();
        Total([
            $object.spec.replicas,
            status.and_then(|status| status.replicas),
            status.and_then(|status| status.ready_replicas),
            status.and_then(|status| status.available_replicas),
            status.and_then(|status| status.up_to_date_replicas),
        ])
    }};
}

/// Sets the numbers of Machines.
pub fn counts(status: &mut ClusterStatus, observed: &Observed) {
    match observed.component(Component::ControlPlane) {
        None => status.control_plane = machines(observed.control_plane_machines()).shown(),
        Some((_, lookup)) if lookup.is_known() => {
            let replicas = lookup.found().map(|object| object.contract.replicas).unwrap_or_default();
            status.control_plane = Total::from(replicas).shown();
        }
        Some(_) => {}
    }
    let mut workers = Total::default();
    for deployment in &observed.deployments {
        workers.add(total!(deployment));
    }
    for set in observed.sets.iter().filter(|set| !is_managed(&***set)) {
        workers.add(total!(set));
    }
    workers.add(machines(observed.worker_machines().filter(|machine| !is_managed(&***machine))));
    status.workers = workers.shown();
}

/// Numbers in the order desired, existing, ready, available, up to date.
#[derive(Clone, Copy, Default)]
struct Total([Option<i32>; 5]);

impl Total {
    fn add(&mut self, other: Self) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            if let Some(number) = number {
                *sum = Some(sum.unwrap_or_default().saturating_add(number));
            }
        }
    }

    fn shown(self) -> Option<MachineCounts> {
        let [desired_replicas, replicas, ready_replicas, available_replicas, up_to_date_replicas] = self.0;
        self.0.iter().any(Option::is_some).then_some(MachineCounts {
            desired_replicas,
            replicas,
            up_to_date_replicas,
            ready_replicas,
            available_replicas,
        })
    }
}

impl From<CountsView> for Total {
    fn from(counts: CountsView) -> Self {
        Self([counts.desired, counts.existing, counts.ready, counts.available, counts.up_to_date])
    }
}

/// Returns the numbers of Machines that no other object manages. Each is one that a user asks for.
fn machines<'a>(machines: impl Iterator<Item = &'a Arc<Machine>>) -> Total {
    let mut total = Total::default();
    for machine in machines {
        let counted = |type_| is_true(machine.conditions(), type_).then_some(1);
        total.add(Total([
            Some(1),
            Some(1),
            counted(condition_type::READY),
            counted(condition_type::AVAILABLE),
            counted(condition_type::UP_TO_DATE),
        ]));
    }
    total
}

/// Sets the conditions that merge others.
pub fn conditions(draft: &mut Draft, observed: &Observed) {
    workers_available(draft, observed);
    let control_plane: Vec<&Machine> = observed.control_plane_machines().map(|machine| &**machine).collect();
    let workers: Vec<&Machine> = observed.worker_machines().map(|machine| &**machine).collect();
    machines_ready(draft, condition_type::CONTROL_PLANE_MACHINES_READY, &control_plane);
    machines_up_to_date(draft, condition_type::CONTROL_PLANE_MACHINES_UP_TO_DATE, &control_plane);
    machines_ready(draft, condition_type::WORKER_MACHINES_READY, &workers);
    machines_up_to_date(draft, condition_type::WORKER_MACHINES_UP_TO_DATE, &workers);
    remediating(draft, observed);
    movements(draft, observed);
}

/// Sets the conditions about changes of Machines.
fn movements(draft: &mut Draft, observed: &Observed) {
    // A condition of a control plane that cannot be read must not become False.
    let control_plane = observed.component(Component::ControlPlane);
    if let Some((reference, lookup)) = control_plane
        && let Some(why) = lookup.unknown(&reference.kind)
    {
        if *lookup != Lookup::NotSynced || !draft.has(condition_type::ROLLING_OUT) {
            draft.set(RollingOutReason::InternalError, &why);
            draft.set(ScalingUpReason::InternalError, &why);
            draft.set(ScalingDownReason::InternalError, &why);
        }
        return;
    }
    let (merged, message) = movement(observed, condition_type::ROLLING_OUT, false);
    draft.set(
        match merged {
            Merged::Issue => RollingOutReason::RollingOut,
            Merged::Unknown => RollingOutReason::RollingOutUnknown,
            Merged::Normal => RollingOutReason::NotRollingOut,
        },
        &message,
    );
    let (merged, message) = movement(observed, condition_type::SCALING_UP, true);
    draft.set(
        match merged {
            Merged::Issue => ScalingUpReason::ScalingUp,
            Merged::Unknown => ScalingUpReason::ScalingUpUnknown,
            Merged::Normal => ScalingUpReason::NotScalingUp,
        },
        &message,
    );
    let (merged, message) = movement(observed, condition_type::SCALING_DOWN, true);
    draft.set(
        match merged {
            Merged::Issue => ScalingDownReason::ScalingDown,
            Merged::Unknown => ScalingDownReason::ScalingDownUnknown,
            Merged::Normal => ScalingDownReason::NotScalingDown,
        },
        &message,
    );
}

fn workers_available(draft: &mut Draft, observed: &Observed) {
    if observed.deployments.is_empty() {
        return draft.set(WorkersAvailableReason::NoWorkers, "");
    }
    let items = observed.deployments.iter().map(|object| {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        item("MachineDeployment", name, condition(object.conditions(), condition_type::AVAILABLE))
    });
    let items: Vec<Item<'_>> = items.collect();
    let (merged, message) = aggregate(condition_type::AVAILABLE, false, &items);
    let reason = match merged {
        Merged::Normal => WorkersAvailableReason::Available,
        Merged::Issue => WorkersAvailableReason::NotAvailable,
        Merged::Unknown => WorkersAvailableReason::AvailableUnknown,
    };
    draft.set(reason, &message);
}

fn item<'a>(kind: &'a str, name: &'a str, condition: Option<&'a Condition>) -> Item<'a> {
    Item { kind, name, condition, is_first: false }
}

fn machines_ready(draft: &mut Draft, type_: &str, machines: &[&Machine]) {
    let (reason, message) = report::ready(machines);
    draft.set_as(type_, reason.into(), reason.as_str(), &message);
}

fn machines_up_to_date(draft: &mut Draft, type_: &str, machines: &[&Machine]) {
    let (reason, message) = report::up_to_date(machines, draft.now);
    draft.set_as(type_, reason.into(), reason.as_str(), &message);
}

fn remediating(draft: &mut Draft, observed: &Observed) {
    let machines: Vec<&Machine> = observed.machines.iter().map(|machine| &**machine).collect();
    let (reason, message) = report::remediating(&machines);
    draft.set(reason, &message);
}

/// Merges a condition of the control plane, the MachineDeployments and, if `has_sets`, of MachineSets that no other object manages.
fn movement(observed: &Observed, type_: &str, has_sets: bool) -> (Merged, String) {
    let mut found: Vec<(&str, String, Option<&Condition>)> = Vec::new();
    if let Some((reference, lookup)) = observed.component(Component::ControlPlane)
        && let Some(object) = lookup.found()
        && let Mirrored::Is(condition) = object.condition(type_)
    {
        found.push((&reference.kind, reference.name.clone(), Some(condition)));
    }
    for object in &observed.deployments {
        found.push(("MachineDeployment", object.name_any(), condition(object.conditions(), type_)));
    }
    for object in observed.sets.iter().filter(|set| has_sets && !is_managed(&***set)) {
        found.push(("MachineSet", object.name_any(), condition(object.conditions(), type_)));
    }
    let items: Vec<Item<'_>> =
        found.iter().map(|(kind, name, condition)| item(kind, name, *condition)).collect();
    aggregate(type_, true, &items)
}
