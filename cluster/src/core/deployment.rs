//! MachineDeployments: MachineSets of one template after another (MD1 to MD10). `bedplate-replicas` decides which set grows and which shrinks;
//! this module turns objects into its view and its plan into writes.
//!
//! ```text
//! objects -> observe -> plan_deployment -> act (current set, other sets, deletions) -> status
//! ```
//! `pass` reads and writes the API. The other modules are pure.

pub mod act;
pub mod observe;
pub mod pass;
#[cfg(test)]
mod pass_tests;
pub mod set;
pub mod status;
