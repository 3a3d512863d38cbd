//! Operations that a MachineOperation requests from the agent, each carried out at most once: reboot,
//! shutdown, restartService, packetCapture, applyConfiguration (docs/design/rules.md, O1 to O8).
//!
//! ```text
//!   Pending ── take: InProgress, the agent's name and the kernel's boot ID are in the object
//!              │
//!              ├─ prepare: cordon and drain, check that the unit exists; may be repeated
//!              ├─ note on disk: started        from here on the act is never repeated, whatever is killed
//!              ├─ act
//!              ├─ note on disk: result         so that the result survives while the API server is unreachable
//!              └─ Complete or Failed is in the object
//! ```
//! After a restart, the note and the boot ID decide. Another boot ID proves a reboot. If the note has a start
//! and no result, the agent inspects the host. If the result stays unknown, the operation fails with that
//! reason. Operations run one at a time, oldest first; `concurrent` lists the exceptions during a drain.
//!
//! `parameters`, `guard`, `progress`, `plan`, `configuration` and `pcap` are pure;
//! `run` is the loop. Called by `service`, by `node`.

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
