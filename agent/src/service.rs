//! The agent on the host: enrolls with the seed, then reports and renews while the host runs.
//!
//! Decisions are pure (`plan`). State that must survive a kill is in files that are written atomically
//! (`state`, `identity`). In a cluster, `node` runs concurrently and changes the host. Called by `cli`.

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
