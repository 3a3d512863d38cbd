//! The worker of one machine: applies its plan and reports.

pub(crate) mod apply;
pub(crate) mod report;
pub(crate) mod run_operation;
pub mod takeover;
pub(crate) mod worker;
