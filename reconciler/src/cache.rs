//! Indexes and memories over the synced stores. They are derived from objects and can be rebuilt at any time.

pub(crate) mod claims;
pub(crate) mod drains;
pub(crate) mod heartbeats;
pub mod index;
pub(crate) mod open_requests;
pub(crate) mod operations;
pub(crate) mod waits;
