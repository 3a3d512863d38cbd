//! The cluster plane: Machines, operations, statuses and certificates through the Kubernetes API.

pub(crate) mod client;
pub mod finalizer;
pub mod machines;
pub mod operations;
pub mod signer;
pub(crate) mod status;
