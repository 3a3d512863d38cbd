//! pxed, the provisioning daemon, as a library: so that its tests and the fuzzers can call into it.
//!
//! Two halves. The daemon: configuration, sources of Machines, the index, status, the store, the admin socket. The boot
//! path: policy, boots, HTTP, enrollment, and what the DHCP and TFTP engines ask. `run` puts them together.

pub mod admin;
pub mod boot;
pub mod boot_policy;
pub mod cluster;
pub mod config;
pub mod enroll;
pub mod heard;
pub mod http;
pub mod images;
pub mod machines;
pub mod metrics;
pub mod netboot;
pub mod placement;
mod plane;
pub mod power;
mod private_file;
pub mod readiness;
pub mod reason_label;
pub mod run;
pub mod site;
pub mod standalone;
pub mod status;
pub mod store;
pub mod system_of_record;
