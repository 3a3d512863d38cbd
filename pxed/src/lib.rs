//! pxed, the provisioning daemon, as a library: so that its tests and the fuzzers can call into it.
//!
//! Two halves. The daemon: configuration, sources of Machines, the index, status, the store, the admin socket. The boot
//! path: policy, boots, HTTP, enrolment, and what the DHCP and TFTP engines ask. `run` puts them together.

pub mod config;
pub mod machine;
pub mod status;
pub mod store;
