//! Pure: the objects of a MachineHealthCheck in the form of the planner. Called by [`plan`](super::plan).

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::cluster::core::{CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL, PAUSED_ANNOTATION};
use bedplate_api::cluster::full::condition_type::{
    CONTROL_PLANE_INITIALIZED, INFRASTRUCTURE_READY, OWNER_REMEDIATED,
};
use bedplate_api::cluster::full::health::{
    TriggerIf, UnhealthyMachineCondition, UnhealthyNodeCondition, UnhealthyStatus,
};
use bedplate_api::cluster::full::{Cluster, Machine, MachineHealthCheck};
use bedplate_api::cluster::part::CountOrPercent;
use bedplate_api::cluster::part::annotation::{REMEDIATE_MACHINE, SKIP_REMEDIATION};
use bedplate_replicas::{Allowed, Amount, ConditionView, HealthCheck, Key, NodeView, Target, Unhealthy};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::{Selector, SelectorExt as _};
use kube::{Resource, ResourceExt};

/// Objects that decide about a MachineHealthCheck.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The MachineHealthCheck.
    pub check: Arc<MachineHealthCheck>,
    /// The Cluster that it names. None: there is no such Cluster.
    pub cluster: Option<Arc<Cluster>>,
    /// Machines of the namespace, in any order.
    pub machines: Vec<ObservedMachine>,
    /// Other health checks of the namespace.
    pub others: Vec<Arc<MachineHealthCheck>>,
}

/// A Machine with its Node.
#[derive(Debug, Clone)]
pub struct ObservedMachine {
    /// The Machine.
    pub machine: Arc<Machine>,
    /// The Node.
    pub node: NodeView,
}

impl Observed {
    /// Returns the Machines that are checked, sorted by name: those of the cluster that the selector matches. A selector that is empty or not
    /// valid matches none.
    pub(super) fn matched(&self) -> Vec<&ObservedMachine> {
        let spec = &self.check.spec;
        let is_empty = spec.selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && spec.selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
        let selector = Selector::try_from(spec.selector.clone()).ok().filter(|_| !is_empty);
        let Some(selector) = selector else { return Vec::new() };
        let is_target = |observed: &&ObservedMachine| {
            let labels = observed.machine.labels();
            labels.get(CLUSTER_NAME_LABEL) == Some(&spec.cluster_name)
                && observed.machine.spec.cluster_name == spec.cluster_name
                && selector.matches(labels)
        };
        let mut matched: Vec<_> = self.machines.iter().filter(is_target).collect();
        matched.sort_by_key(|observed| observed.machine.name_any());
        matched
    }

    /// Returns the checks and limits.
    pub(super) fn health_check(&self, cluster: &Cluster) -> HealthCheck {
        let spec = &self.check.spec;
        let checks = spec.checks.clone().unwrap_or_default();
        let remediation = spec.remediation.as_ref();
        let conditions = cluster.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        HealthCheck {
            startup_seconds: seconds(spec.node_startup_timeout_seconds()),
            node: checks.unhealthy_node_conditions.iter().map(node_rule).collect(),
            machine: checks.unhealthy_machine_conditions.iter().map(machine_rule).collect(),
            allowed: allowed(remediation.and_then(|remediation| remediation.trigger_if.as_ref())),
            is_external: remediation.is_some_and(|remediation| remediation.template_ref.is_some()),
            control_plane_initialized: true_since(conditions, CONTROL_PLANE_INITIALIZED),
            infrastructure_ready: true_since(conditions, INFRASTRUCTURE_READY),
        }
    }
}

impl ObservedMachine {
    /// Returns the Machine in the form of the planner.
    pub(super) fn target(&self) -> Target {
        let machine = &*self.machine;
        let has = |annotation: &str| machine.annotations().contains_key(annotation);
        let conditions = machine.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        let is_marked =
            |condition: &Condition| condition.type_ == OWNER_REMEDIATED && condition.status != "True";
        Target {
            key: Key(machine.name_any()),
            is_control_plane: machine.labels().contains_key(CONTROL_PLANE_LABEL),
            is_deleting: machine.meta().deletion_timestamp.is_some(),
            is_paused: has(PAUSED_ANNOTATION),
            is_skipped: has(SKIP_REMEDIATION),
            has_remediate: has(REMEDIATE_MACHINE),
            is_marked: conditions.iter().any(is_marked),
            created: machine.creation_timestamp().map(|time| time.0).unwrap_or_default(),
            infrastructure_ready: true_since(conditions, INFRASTRUCTURE_READY),
            conditions: conditions.iter().map(view).collect(),
            node: self.node.clone(),
        }
    }
}

fn view(condition: &Condition) -> ConditionView {
    ConditionView {
        kind: condition.type_.clone(),
        status: condition.status.clone(),
        since: condition.last_transition_time.0,
    }
}

fn node_rule(rule: &UnhealthyNodeCondition) -> Unhealthy {
    Unhealthy {
        kind: rule.type_.clone(),
        status: rule.status.clone(),
        seconds: seconds(rule.timeout_seconds),
    }
}

fn machine_rule(rule: &UnhealthyMachineCondition) -> Unhealthy {
    let status = match rule.status {
        UnhealthyStatus::True => "True",
        UnhealthyStatus::False => "False",
        UnhealthyStatus::Unknown => "Unknown",
    };
    Unhealthy { kind: rule.type_.clone(), status: status.to_owned(), seconds: seconds(rule.timeout_seconds) }
}

/// Returns the numbers of Machines with which Machines are marked. A value without a meaning marks none: it is reported as not supported.
fn allowed(trigger: Option<&TriggerIf>) -> Allowed {
    let Some(trigger) = trigger else { return Allowed::default() };
    if trigger.unhealthy_in_range.is_some() {
        let range = trigger.range();
        return range.map_or(Allowed::AtMost(Amount::Count(0)), |range| Allowed::Range {
            from: *range.start(),
            to: *range.end(),
        });
    }
    match trigger.unhealthy_less_than_or_equal_to {
        None => Allowed::default(),
        Some(CountOrPercent::Count(count)) => Allowed::AtMost(Amount::Count(count)),
        Some(CountOrPercent::Percent(percent)) => Allowed::AtMost(Amount::Percent(percent)),
        Some(CountOrPercent::Unknown) => Allowed::AtMost(Amount::Count(0)),
    }
}

/// Returns the time at which a condition became True.
fn true_since(conditions: &[Condition], type_: &str) -> Option<Timestamp> {
    let mut found =
        conditions.iter().filter(|condition| condition.type_ == type_ && condition.status == "True");
    found.next().map(|condition| condition.last_transition_time.0)
}

fn seconds(value: i32) -> u32 {
    u32::try_from(value).unwrap_or_default()
}
