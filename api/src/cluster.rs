//! The cluster plane: kinds of Cluster API (contract v1beta2), as far as Bedplate reads or serves them (docs/reference/infrastructure-provider.md).
//!
//! Pure: no clock, no file, no socket.

pub mod contract;
pub mod core;
#[allow(clippy::duplicated_attributes, reason = "each column has its own name, type and path")]
pub mod full;
pub mod infrastructure;
#[allow(clippy::duplicated_attributes, reason = "each column has its own name, type and path")]
pub mod kubeadm;
mod lenient;
pub mod part;
pub mod unsupported;
