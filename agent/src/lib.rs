//! The inside of `bedplate-agent`: stage-1 in the initramfs, and the agent in the host.
//!
//! One static binary is both, so that an initramfs needs nothing else. It is a library only for tests. No
//! other program of Bedplate depends on it.

pub mod bus;
pub mod cli;
pub mod cri;
pub mod fault;
pub mod hardware;
pub mod https;
pub mod kubelet;
pub mod metrics;
pub mod model;
pub mod node;
pub mod operation;
pub mod plane;
pub mod service;
pub mod slot;
pub mod stage1;
