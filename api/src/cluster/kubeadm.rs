//! The bootstrap kinds of Cluster API: `KubeadmConfig` and `KubeadmConfigTemplate` (contract v1beta2).
//!
//! Every field of upstream's version v1beta2 is declared, so that manifests for the upstream provider apply unchanged. Values of enums are
//! texts: an object of a later upstream stays readable, and the renderer names a value that it does not know.
//!
//! Pure: no clock, no file, no socket.

pub mod cluster;
pub mod disk;
pub mod file;
pub mod join;
pub mod node;
mod schema;
pub mod user;
