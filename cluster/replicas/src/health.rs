//! Pure: decides which Machines a MachineHealthCheck marks (HC1 to HC8). Called by `bedplate-cluster`. It deletes nothing: the owner of a
//! Machine decides.

use jiff::Timestamp;

use crate::{Amount, Key};

mod judgment;

pub use judgment::{Failure, HealthReason, Judgment, Subject, judge};

/// A Machine of the cluster that the selector matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name.
    pub key: Key,
    /// True if it belongs to the control plane.
    pub is_control_plane: bool,
    /// True if it is being deleted.
    pub is_deleting: bool,
    /// True if it has the annotation `cluster.x-k8s.io/paused`.
    pub is_paused: bool,
    /// True if it has the annotation `cluster.x-k8s.io/skip-remediation`.
    pub is_skipped: bool,
    /// True if it has the annotation `cluster.x-k8s.io/remediate-machine`.
    pub has_remediate: bool,
    /// True if its condition `OwnerRemediated` is False: its owner decides already.
    pub is_marked: bool,
    /// Time of creation.
    pub created: Timestamp,
    /// Time at which its condition `InfrastructureReady` became True. None: it is not True.
    pub infrastructure_ready: Option<Timestamp>,
    /// The conditions.
    pub conditions: Vec<ConditionView>,
    /// The Node.
    pub node: NodeView,
}

/// Node of a Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeView {
    /// The Machine has no Node yet. Before the control plane is initialized this is the only state.
    Absent,
    /// The Nodes of the cluster cannot be read. Such a Machine is not judged, also if it has no Node: a new Node could not be seen.
    Unknown,
    /// The named Node was deleted.
    Deleted(String),
    /// Conditions of the Node.
    Present(Vec<ConditionView>),
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionView {
    /// Type.
    pub kind: String,
    /// Status: `True`, `False` or `Unknown`.
    pub status: String,
    /// Time of the last transition.
    pub since: Timestamp,
}

/// A MachineHealthCheck, and the state of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// Seconds after which a Machine must have a Node. 0: no limit.
    pub startup_seconds: u32,
    /// Conditions of a Node that make its Machine unhealthy.
    pub node: Vec<Unhealthy>,
    /// Conditions of a Machine that make it unhealthy.
    pub machine: Vec<Unhealthy>,
    /// Number of unhealthy Machines up to which they are remediated.
    pub allowed: Allowed,
    /// True if `remediation.templateRef` is set. External remediation is not acted upon, and nothing is marked.
    pub is_external: bool,
    /// Time at which the Cluster's condition `ControlPlaneInitialized` became True. None: it is not True.
    pub control_plane_initialized: Option<Timestamp>,
    /// Time at which the Cluster's condition `InfrastructureReady` became True. None: it is not True.
    pub infrastructure_ready: Option<Timestamp>,
}

/// A condition that makes a Machine unhealthy after a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unhealthy {
    /// Type of the condition.
    pub kind: String,
    /// Status of the condition.
    pub status: String,
    /// Seconds for which the condition must have this status.
    pub seconds: u32,
}

/// Number of unhealthy Machines up to which they are remediated. Machines that have not started count too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// At most this number (`unhealthyLessThanOrEqualTo`).
    AtMost(Amount),
    /// A number in this range (`unhealthyInRange`).
    Range {
        /// Lowest number.
        from: u32,
        /// Highest number.
        to: u32,
    },
}

impl Default for Allowed {
    fn default() -> Self {
        Self::AtMost(Amount::Percent(100))
    }
}

/// Writes for a MachineHealthCheck.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthPlan {
    /// Targets, sorted.
    pub targets: Vec<Key>,
    /// Machines whose condition `HealthCheckSucceeded` is True.
    pub healthy: Vec<Key>,
    /// Machines whose condition `HealthCheckSucceeded` is False.
    pub unhealthy: Vec<(Key, Vec<Failure>)>,
    /// Machines whose condition `OwnerRemediated` becomes False with reason `WaitingForRemediation`.
    pub mark: Vec<Key>,
    /// Number of targets.
    pub expected: u32,
    /// Number of healthy targets.
    pub current: u32,
    /// Number of further Machines that may become unhealthy and are still remediated.
    pub remediations_allowed: u32,
    /// True if the number of unhealthy Machines allows remediation.
    pub is_allowed: bool,
    /// True if the Nodes of the cluster cannot be read. Machines with an unknown Node count as unhealthy, so `is_allowed` may be false because
    /// of the connection. Condition `RemediationAllowed` must then say so, and not that too many Machines are unhealthy.
    pub are_nodes_unknown: bool,
    /// Time at which a target may become unhealthy.
    pub next: Option<Timestamp>,
}

/// Decides the writes for a MachineHealthCheck.
pub fn plan_health(targets: &[Target], check: &HealthCheck, now: Timestamp) -> HealthPlan {
    let mut plan = HealthPlan::default();
    let mut candidates = Vec::new();
    for target in targets.iter().filter(|target| !target.is_paused && !target.is_skipped) {
        plan.targets.push(target.key.clone());
        plan.are_nodes_unknown |= target.node == NodeView::Unknown;
        match judge(target, check, now) {
            Judgment::Healthy => plan.healthy.push(target.key.clone()),
            Judgment::Unhealthy(failures) => {
                plan.unhealthy.push((target.key.clone(), failures));
                if !target.is_deleting && !target.is_marked {
                    candidates.push(target.key.clone());
                }
            }
            Judgment::Undecided(until) => plan.next = plan.next.into_iter().chain(until).min(),
        }
    }
    plan.targets.sort();
    plan.expected = count(&plan.targets);
    plan.current = count(&plan.healthy);
    let unhealthy = plan.expected - plan.current;
    let (lowest, highest) = match check.allowed {
        Allowed::AtMost(amount) => (0, amount.of_rounded_down(plan.expected)),
        Allowed::Range { from, to } => (from, to),
    };
    plan.is_allowed = (lowest..=highest).contains(&unhealthy);
    if plan.is_allowed {
        plan.remediations_allowed = highest - unhealthy;
        if !check.is_external {
            plan.mark = candidates;
        }
    }
    plan
}

fn count(keys: &[Key]) -> u32 {
    u32::try_from(keys.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
