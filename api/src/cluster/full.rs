//! The core kinds of Cluster API, version v1beta2: complete types with our own definitions (deploy/cluster-api/core-components.yaml).
//!
//! Upstream's definitions may be installed instead, so every object that they admit is readable through [`BoundedTimes`]. Rules that compare
//! objects or depend on the user are policies. Not here: decisions.
//!
//! [`BoundedTimes`]: crate::bounded_times::BoundedTimes
//!
//! Pure: no clock, no file, no socket.

pub mod cluster;
pub mod condition_type;
pub mod deployment;
pub mod drain;
pub mod health;
pub mod machine;
pub mod pool;
pub mod set;
mod state;

pub use cluster::Cluster;
pub use deployment::MachineDeployment;
pub use drain::MachineDrainRule;
pub use health::MachineHealthCheck;
pub use machine::Machine;
pub use set::MachineSet;
