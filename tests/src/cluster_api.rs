//! The controllers of Cluster API on a test API server, and simulated hosts that join a workload cluster, for tests of the
//! infrastructure provider.
//!
//! The programs and components are those that `cargo xtask soak` built from the module in tests/kubernetes/cluster-api.

mod conditions;
mod repository;
mod simulator;
mod upstream;
mod workload;

pub use self::conditions::{Expected, machines, shown, unmet};
pub use self::repository::Repository;
pub use self::simulator::Simulator;
pub use self::upstream::{Bootstrap, Upstream};
pub use self::workload::authorities;
