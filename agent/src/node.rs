//! The node on this host: observation, plan and application.
//!
//! ```text
//!   slot:  Empty -> Preparing -> Prepared -> Trial -> Applied -> Retired
//!                                              |  gate not passed in time
//!                                              +--> Failed, and the slot that was Applied runs again
//! ```
//!
//! One slot is *current*: the one on trial, otherwise the one applied last. The
//! record on disk names it before anything is stopped or started. So a kill or
//! a power cut at any point leads to the same result. Called by `service`.

pub mod apply;
mod attempt;
pub mod claim_record;
mod claim_report;
pub mod effects;
pub(crate) mod etcd_member;
pub mod health_gate;
pub mod host_state;
pub(crate) mod log_excerpt;
pub mod observe;
mod observe_claim;
pub mod plan;
mod report;
pub mod run;
pub(crate) mod status_file;
pub(crate) mod trash;
mod trial;
mod user_data;
