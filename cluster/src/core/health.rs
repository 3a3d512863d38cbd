//! Pure: MachineHealthChecks (HC1 to HC8). A health check marks Machines by conditions; their owners replace them.
//!
//! ```text
//! observe: Cluster, Machines, Nodes -> targets -> plan_health (bedplate-replicas) -> plan: conditions of Machines, status of the check
//! ```
//! Not here: requests, and the replacement of Machines.

mod observe;
mod plan;

pub use observe::{Observed, ObservedMachine};
pub use plan::{Marks, Plan, plan};
