//! The way to one BMC: address, credentials, connection and limits.

pub(crate) mod boot_mode;
pub(crate) mod connection;
pub mod credentials;
pub mod destination;
pub mod dial;
pub mod limits;
