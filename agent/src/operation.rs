//! What a MachineOperation has the agent do, each at most once: reboot, shutdown, restartService, packetCapture,
//! applyConfiguration (docs/rules.md, O1 to O8).
//!
//! ```text
//!   Pending ── take: InProgress, our name and the kernel's boot id are in the object
//!              │
//!              ├─ prepare: cordon and drain, look whether the unit is there; may be done twice, does no harm
//!              ├─ note on disk: begun          from here on it is never done again, whatever is killed
//!              ├─ the act itself
//!              ├─ note on disk: how it ended   so that the answer is not lost while the API server is away
//!              └─ Complete or Failed is in the object
//! ```
//! After a restart the note and the boot id decide: another boot id proves a reboot; a note that says begun and no more has the
//! host asked what came of it, and if it cannot tell, the operation fails and says so. One operation at a time, oldest first;
//! `concurrent` says what goes on while another one drains.
//!
//! `order`, `guard`, `progress`, `plan`, `configuration` and `pcap` are pure; `run` is the loop. Called by `service`, by `node`.

pub mod apply;
pub mod capture;
mod concurrent;
pub mod configuration;
mod drain;
mod former;
pub mod guard;
mod in_place;
pub mod journal;
pub mod ledger;
mod outcome;
pub mod parameters;
pub mod pcap;
pub mod plan;
pub mod progress;
mod reboot;
mod report;
mod restart;
pub mod run;
#[cfg(test)]
mod run_tests;
mod uncordon;
pub mod view;
