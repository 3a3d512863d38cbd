//! BMCs for the tests: a simulator of many, with Redfish and RMCP+ and faults on demand, and foreign BMCs
//! (`ipmi_sim`, sushy-tools), before machines of the rack.
//!
//! ```text
//!  redfish ─┐ serve (sockets)                    ┌ nothing: power follows after set times
//!  rmcp ────┴─ service (account, faults) ── chassis
//!  ipmi_sim, sushy-tools ──────── door ─────┘    └ plug: a QEMU
//! ```
//! Passwords are held as they are. Callers: the tests, the demonstration, `bedplate-bmc-simulator`.

pub mod certificate;
pub mod chassis;
pub mod control;
mod door;
pub mod fault;
pub mod peer;
pub mod plug;
mod redfish;
mod rmcp;
mod serve;
pub mod server;
pub mod service;
pub mod simulator;
pub mod tool;
