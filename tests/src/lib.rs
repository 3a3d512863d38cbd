//! The virtual rack and what the whole-system tests share: network namespaces, virtual machines with real firmware
//! and BMCs, pxed as a process, and a guard that removes what a run made however it ends.
//!
//! No tests are here; they are in `tests/tests`, named by tier (see `cargo xtask test`).

pub mod agent_host;
pub mod bmc;
pub mod boot;
pub mod cgroup;
pub mod cluster_api;
pub mod control_plane;
pub mod documents;
pub mod draw;
pub mod guard;
pub mod guest;
pub mod host;
pub mod image;
pub mod kstatus;
pub mod kubernetes;
pub mod netns;
pub mod nodes;
pub mod objects;
pub mod pxed;
pub mod qemu;
pub mod rack;
pub mod registry;
pub mod screen;
pub mod secret;
pub mod site;
pub mod table;
pub mod timeline;
pub mod wait;
pub mod worker;
