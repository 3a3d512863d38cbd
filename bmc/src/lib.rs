//! Client of management controllers (BMC) for pxed: power, next boot, identity, health, log and console.
//!
//! Not included: the decision when to do what (pxed plans), the choice of the Secret, the poll interval. Callers:
//! pxed, the command-line tool's probe, tests.
//!
//! A [`Bmc`] is created for one address, one system and one set of credentials, and used by one task. Every call ends
//! within its deadlines; a call that is dropped leaves the `Bmc` usable. A BMC is not trusted with sizes or
//! destinations: bodies are limited, and requests go to the address that was checked.

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
pub use error::{BmcError, is_hidden, printable};
pub use model::{
    Bmc, BootMode, BootSource, Console, Credentials, Deadlines, Health, HealthState, Identity, LogEntry,
    Performed, PowerRequest, PowerState,
};
