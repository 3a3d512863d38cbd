//! The agent in the host: enrolls by the seed, then reports and renews for as long as the host runs.
//!
//! Decisions are pure (`plan`); what outlives a kill is in files that are whole or not there (`state`, `identity`).
//! In a cluster `node` runs beside it, which acts upon the host. Called by `cli`.

mod connections;
pub mod enroll;
pub(crate) mod host;
pub mod identity;
mod outcome;
pub mod plan;
mod retry_after;
pub mod run;
pub mod state;
mod tasks;
mod text_pages;
