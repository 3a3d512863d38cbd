//! Pure: judges one target of a MachineHealthCheck. Called by the planner of health checks.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::{ConditionView, HealthCheck, NodeView, Target, Unhealthy};

/// Judgment about a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgment {
    /// The target has a Node, and no check is about to fail.
    Healthy,
    /// Checks have failed.
    Unhealthy(Vec<Failure>),
    /// The target counts as unhealthy and is not marked. The time is that of the next judgment. None: a change of an object comes first.
    Undecided(Option<Timestamp>),
}

/// A failed check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A user has set the annotation `cluster.x-k8s.io/remediate-machine`.
    Annotation,
    /// The named Node was deleted.
    NodeDeleted(String),
    /// The Machine has no Node after this number of seconds.
    NodeStartup(u32),
    /// A condition has had an unhealthy status for too long.
    Condition(Subject, Unhealthy),
}

/// Object whose condition has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The Machine.
    Machine,
    /// The Node.
    Node,
}

/// Reason of condition `HealthCheckSucceeded` with status False.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthReason {
    /// `HasRemediateAnnotation`.
    HasRemediateAnnotation,
    /// `UnhealthyMachine`.
    UnhealthyMachine,
    /// `NodeDeleted`.
    NodeDeleted,
    /// `NodeStartupTimeout`.
    NodeStartupTimeout,
    /// `UnhealthyNode`.
    UnhealthyNode,
}

impl Failure {
    /// Returns the reason for one failure. For several failures the condition has the reason of the first.
    pub const fn reason(&self) -> HealthReason {
        match self {
            Self::Annotation => HealthReason::HasRemediateAnnotation,
            Self::NodeDeleted(_) => HealthReason::NodeDeleted,
            Self::NodeStartup(_) => HealthReason::NodeStartupTimeout,
            Self::Condition(Subject::Machine, _) => HealthReason::UnhealthyMachine,
            Self::Condition(Subject::Node, _) => HealthReason::UnhealthyNode,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation => f.write_str("annotation cluster.x-k8s.io/remediate-machine is set"),
            Self::NodeDeleted(node) => write!(f, "Node {node} was deleted"),
            Self::NodeStartup(seconds) => write!(f, "Machine has no Node after {seconds} s"),
            Self::Condition(subject, Unhealthy { kind, status, seconds }) => {
                let subject = match subject {
                    Subject::Machine => "Machine",
                    Subject::Node => "Node",
                };
                write!(f, "{subject} condition {kind} is {status} for more than {seconds} s")
            }
        }
    }
}

/// Judges a target.
pub fn judge(target: &Target, check: &HealthCheck, now: Timestamp) -> Judgment {
    if target.has_remediate {
        return Judgment::Unhealthy(vec![Failure::Annotation]);
    }
    // The first control-plane Machine must be replaceable while nothing is initialized.
    let is_early = check.control_plane_initialized.is_none() && !target.is_control_plane;
    if is_early || check.infrastructure_ready.is_none() {
        return healthy_with_node(target, None);
    }
    let mut found = Found { now, failures: Vec::new(), next: None };
    match &target.node {
        // An outage of the connection must not mark all Machines: their conditions depend on it too.
        NodeView::Unknown => return Judgment::Undecided(None),
        NodeView::Absent => {
            found.conditions(Subject::Machine, &target.conditions, &check.machine);
            found.startup(target, check);
        }
        NodeView::Deleted(name) => {
            found.conditions(Subject::Machine, &target.conditions, &check.machine);
            found.failures.push(Failure::NodeDeleted(name.clone()));
        }
        NodeView::Present(conditions) => {
            found.conditions(Subject::Machine, &target.conditions, &check.machine);
            found.conditions(Subject::Node, conditions, &check.node);
        }
    }
    if found.failures.is_empty() {
        healthy_with_node(target, found.next)
    } else {
        Judgment::Unhealthy(found.failures)
    }
}

/// Judges a target without a failure. One that may fail soon is not healthy.
fn healthy_with_node(target: &Target, next: Option<Timestamp>) -> Judgment {
    let has_node = matches!(target.node, NodeView::Present(_));
    if has_node && next.is_none() && !target.is_deleting {
        Judgment::Healthy
    } else {
        Judgment::Undecided(next)
    }
}

/// Failures of a target, and the time of the next one.
struct Found {
    now: Timestamp,
    failures: Vec<Failure>,
    next: Option<Timestamp>,
}

impl Found {
    fn conditions(&mut self, subject: Subject, conditions: &[ConditionView], unhealthy: &[Unhealthy]) {
        for rule in unhealthy {
            let condition = conditions.iter().find(|one| one.kind == rule.kind && one.status == rule.status);
            if let Some(condition) = condition
                && self.is_over(condition.since, rule.seconds)
            {
                self.failures.push(Failure::Condition(subject, rule.clone()));
            }
        }
    }

    /// Start-up counts from the latest transition: the Machine could not start before.
    fn startup(&mut self, target: &Target, check: &HealthCheck) {
        if check.startup_seconds == 0 {
            return;
        }
        let transitions =
            [check.control_plane_initialized, check.infrastructure_ready, target.infrastructure_ready];
        let start = transitions.into_iter().flatten().fold(target.created, Timestamp::max);
        if self.is_over(start, check.startup_seconds) {
            self.failures.push(Failure::NodeStartup(check.startup_seconds));
        }
    }

    /// Returns true if the seconds have passed, and otherwise notes when they will have. Times of conditions are in seconds, so one is added.
    fn is_over(&mut self, since: Timestamp, seconds: u32) -> bool {
        let timeout = SignedDuration::from_secs(i64::from(seconds));
        let (Ok(end), Ok(next)) =
            (since.checked_add(timeout), since.checked_add(timeout + SignedDuration::from_secs(1)))
        else {
            return false;
        };
        if end < self.now {
            return true;
        }
        self.next = self.next.into_iter().chain([next]).min();
        false
    }
}
