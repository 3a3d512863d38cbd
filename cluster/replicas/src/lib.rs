//! Pure: decisions about the replicas of Cluster API. It does no I/O, and it knows neither kube nor serde. Its only dependency is jiff, so
//! errors are written without thiserror. Called by `bedplate-cluster`.
//!
//! - [`plan_deployment`]: which MachineSet of a MachineDeployment is current, how the others shrink, revisions, removal.
//! - [`plan_set`]: Machines of a MachineSet that must be adopted, created, deleted or marked.
//! - [`preflight`]: reasons to create no worker now.
//! - [`plan_health`]: Machines that a MachineHealthCheck must mark. It marks only; the owner decides.
//!
//! ```text
//! MachineHealthCheck -- mark --> MachineSet -- delete, create --> Machine
//! MachineDeployment -- replicas of each set --> MachineSet
//! ```
//! All counts are of Machines that are not being deleted: a deleting Machine is not a replica. Its successor is created immediately, and
//! waits for a host.
//!
//! `exploration` checks the bounds in every history of small deployments and sets, with a kill after each write, and of two leaders.

use std::fmt;

mod deployment;
mod health;
mod name;
mod order;
mod preflight;
mod set;
mod template;

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod goldens;

pub use deployment::{
    CreateReason, Current, DeploymentPlan, DeploymentView, Note, Revision, SetSummary, Strategy,
    implied_replicas, plan_deployment,
};
pub use health::{
    Allowed, ConditionView, Failure, HealthCheck, HealthPlan, HealthReason, Judgment, NodeView, Subject,
    Target, Unhealthy, judge, plan_health,
};
pub use name::{NameTemplate, NameTemplateError, NameVariables};
pub use order::{Order, delete_order};
pub use preflight::{Check, ControlPlaneView, Preflight, SetVersion, SkewedVersions, Skipped, preflight};
pub use set::{Health, MachineView, Mark, OwnerView, Remediated, Remediation, SetPlan, SetView, plan_set};
pub use template::{BootstrapView, Change, Difference, RefView, TemplateView, changes};

/// Name of an object in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub String);

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number of replicas, or a share of them (`IntOrString`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Amount {
    /// An absolute number.
    Count(u32),
    /// Percent of the replicas. It may exceed 100.
    Percent(u16),
}

impl Amount {
    /// Returns the number for these replicas, with a fraction rounded up.
    pub fn of_rounded_up(self, replicas: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => share(replicas, percent, 99),
        }
    }

    /// Returns the number for these replicas, with a fraction rounded down.
    pub fn of_rounded_down(self, replicas: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => share(replicas, percent, 0),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

fn share(replicas: u32, percent: u16, added: u64) -> u32 {
    let share = (u64::from(replicas) * u64::from(percent) + added) / 100;
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// Reason to do less than the object asks for. It is not an error: the plan is decided again when the reason may have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// A template object does not exist, so no MachineSet can be created.
    TemplateMissing,
    /// The MachineSet that matches the template is being deleted.
    SetDeleting(Key),
    /// Machine creation is disabled by the annotation `cluster.x-k8s.io/disable-machine-create`.
    CreationDisabled,
    /// Preflight checks failed.
    Preflight(Vec<Preflight>),
    /// Orphan Machines must be adopted before any Machine is created or deleted.
    Adoption,
    /// The API server refuses to adopt these Machines.
    AdoptionRefused(Vec<Key>),
    /// MachineSets with other templates have all names of a new MachineSet.
    NamesTaken,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TemplateMissing => f.write_str("a template of the MachineDeployment does not exist"),
            Self::SetDeleting(key) => {
                write!(f, "MachineSet {key} has the template of the MachineDeployment and is being deleted")
            }
            Self::CreationDisabled => f.write_str("Machine creation is disabled for this MachineSet"),
            Self::Preflight(failed) => {
                let texts: Vec<String> = failed.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Self::Adoption => f.write_str("orphan Machines are being adopted"),
            Self::AdoptionRefused(machines) => {
                let names: Vec<&str> = machines.iter().map(|key| key.0.as_str()).collect();
                write!(f, "adoption of Machines {} is refused; they are not counted", names.join(", "))
            }
            Self::NamesTaken => {
                f.write_str("MachineSets with other templates have all names of a new MachineSet; delete one")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md2_percent_of_surge_rounds_up_and_of_unavailable_down() {
        let cases = [
            (Amount::Percent(39), 10, 4, 3),
            (Amount::Percent(0), 10, 0, 0),
            (Amount::Percent(100), 5, 5, 5),
            (Amount::Percent(50), 1, 1, 0),
            (Amount::Percent(1), u32::MAX, 42_949_673, 42_949_672),
            (Amount::Percent(150), 3, 5, 4),
            (Amount::Percent(u16::MAX), u32::MAX, u32::MAX, u32::MAX),
            (Amount::Count(7), 3, 7, 7),
        ];
        for (amount, replicas, up, down) in cases {
            assert_eq!(amount.of_rounded_up(replicas), up, "{amount} of {replicas}");
            assert_eq!(amount.of_rounded_down(replicas), down, "{amount} of {replicas}");
        }
    }
}
