//! The core provider of Cluster API on a real API server: Clusters and Machines, with the roles and policies of `deploy/`
//! (docs/reference/core-provider.md).
//!
//! `bedplate-cluster` is the real program. A second real API server is the workload cluster. The tests stand in for the bootstrap and
//! infrastructure providers and for the kubelets, step by step.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod core {
    mod cluster;
    mod deletion;
    mod doomed;
    mod drain;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod hosts;
    mod kubelet;
    mod machine;
    mod owned;
    mod rights;
    mod scope;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod workers;
}
