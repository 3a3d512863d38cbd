//! The pass over a Machine with API servers in this process: that of the management cluster, and that of the workload cluster.
//!
//! `server` has the objects and answers requests. Each test drives the pass until nothing is written, as the worker does.

mod deletion;
mod life;
mod server;
