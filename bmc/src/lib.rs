//! What pxed asks of a management controller (BMC): power, next boot, identity, health, log and console.
//!
//! Not here: when to do what (pxed plans), which Secret is read, how often a BMC is asked. Callers: pxed, the
//! command-line tool's probe, tests.
//!
//! A [`Bmc`] is made for one address, one system and one set of credentials, and used by one task. Every call ends within
//! the deadlines that were given with it; a call that is dropped leaves the `Bmc` usable. What a BMC says is believed
//! neither in size nor in where it leads to: bodies are bounded, and requests go to the address that was checked.

pub mod address;
mod connect;
mod error;
pub mod lanplus;
mod model;
pub mod probe;
pub mod quirks;
pub mod redfish;
pub mod resolve;
mod resumable;
pub mod tls;

pub use bedplate_api::reason::bmc::BmcFault;
pub use connect::connect;
pub use error::{BmcError, is_hidden, told};
pub use model::{
    Bmc, BootMode, BootSource, Console, Credentials, Deadlines, Health, HealthState, Identity, LogEntry,
    Performed, PowerRequest, PowerState,
};
