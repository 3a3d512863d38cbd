//! pxed, the provisioning daemon, as a library: so that its tests and the fuzzers can call into it.
//!
//! Two halves. The daemon: configuration, sources of Machines, the index, status, the store, the admin socket. The boot
//! path: policy, boots, HTTP, enrolment, and what the DHCP and TFTP engines ask. `run` puts them together.

pub mod admin;
pub mod allowance;
pub mod boot;
pub mod boot_path;
pub mod boot_policy;
pub mod clients;
pub mod config;
pub mod discovered;
pub mod enrol;
pub mod files;
pub mod heard;
pub mod http;
pub mod images;
pub mod loaders;
pub mod machine;
pub mod metrics;
pub mod node_choice;
pub mod placement;
pub mod power;
pub mod present;
mod private_file;
pub mod readiness;
pub mod run;
pub mod secret;
pub mod source;
pub mod status;
pub mod store;
