//! MachineSets: a number of equal Machines (MS1 to MS10). `bedplate-replicas` decides how many; this module turns objects into its view and
//! its plan into writes.
//!
//! ```text
//! objects -> observe -> plan_set -> act (record -> infrastructure -> bootstrap -> Machine; propagate) -> status
//! ```
//! `pass` reads and writes the API. The other modules are pure.

pub mod act;
pub mod children;
pub mod in_place;
pub mod machine;
pub mod observe;
pub mod pass;
#[cfg(test)]
mod pass_tests;
pub mod record;
pub mod refusal;
pub mod status;
pub mod template;
pub mod write;
