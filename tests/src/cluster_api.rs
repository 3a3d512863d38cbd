//! The controllers of Cluster API on a test API server, and simulated hosts that join a workload cluster, for tests of the
//! infrastructure provider.
//!
//! The programs and components are those that `cargo xtask soak` built from the module in tests/kubernetes/cluster-api.

mod conditions;
mod programs;
mod provider;
mod repository;
mod simulator;
mod upstream;
mod upstream_core;
mod workload;

pub use self::conditions::{Expected, machines, shown, unmet};
pub use self::programs::{Programs, Source};
pub use self::provider::{PROVIDER_TIMEOUT, Provider};
pub use self::repository::Repository;
pub use self::simulator::Simulator;
pub use self::upstream::Upstream;
pub use self::upstream_core::CoreManager;
pub use self::workload::authorities;
