//! The bootstrap provider of Cluster API on a real API server, with the roles and policies of `deploy/` (docs/reference/bootstrap.md).
//!
//! `bedplate-cluster` is the real program. A second real API server is the workload cluster. The tests stand in for the controllers of Cluster API
//! and for the machines.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod bootstrap {
    mod certificates;
    mod data;
    mod lock;
    mod rights;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
    mod token;
}
