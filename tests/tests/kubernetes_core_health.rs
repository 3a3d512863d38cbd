//! The core provider of Cluster API on a real API server: MachineHealthChecks, and a manifest of upstream, with the roles and policies of
//! `deploy/` (docs/reference/core-provider.md).
//!
//! `bedplate-cluster` is the real program. A second real API server is the workload cluster. The tests stand in for the bootstrap and
//! infrastructure providers and for the kubelets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod core {
    mod health;
    pub(crate) mod hosts;
    mod manifest;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod recorder;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod workers;
}
