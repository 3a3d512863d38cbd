//! MachineHealthChecks (HC1 to HC8). A health check marks Machines by conditions; their owners replace them.
//!
//! ```text
//! observe: Cluster, Machines, Nodes -> targets -> plan_health (bedplate-replicas) -> plan: conditions of Machines, status of the check
//! ```
//! `pass` carries out the writes. Not here: the replacement of Machines.

pub mod node;
mod observe;
pub mod pass;
#[cfg(test)]
mod pass_tests;
mod plan;
mod verdict;

pub use observe::{Observed, ObservedMachine};
pub use plan::{Marks, Plan, plan};
