//! Connections to workload clusters. Users of a namespace write the kubeconfig of a cluster, so neither it nor its server is trusted.
//!
//! ```text
//! Secret <cluster>-kubeconfig -> kubeconfig (strict) -> connect: networks, TLS, limits -> Connections: one client for each cluster
//! ```
//! Rules for a hostile kubeconfig or server:
//! - The kubeconfig runs no program, reads no file and uses no proxy ([`Kubeconfig`]).
//! - Only addresses of the allowed networks are dialed ([`Networks`]).
//! - Each request has a time limit, and each answer a size limit. Few requests of one cluster run concurrently ([`Workload`]).
//! - An error has no text of the server and none of the kubeconfig, so neither can put a secret into a log.
//!
//! It watches nothing, and it decides nothing about objects. Called by `bedplate-cluster`.

mod connect;
mod connections;
mod kubeconfig;
mod networks;
mod probe;
mod workload;

pub use connect::ConnectError;
pub use connections::{ClusterKey, Connections};
pub use kubeconfig::{Kubeconfig, KubeconfigError};
pub use networks::{Networks, NetworksError};
pub use probe::{PROBE_INTERVAL, Probe, Reachability};
pub use workload::{RequestError, Workload};
