//! bedplate-cluster: the providers of Cluster API over the hosts of Bedplate, one group of controllers in each process.
//!
//! ```text
//! cli (group, namespace, filter) -> run: Lease, health -> the group: watches, stores, queues, one worker for each kind
//! ```
//! The groups are `infrastructure`, `bootstrap` and `core`. What a host is held by is decided in `bedplate-claim`.

pub mod bootstrap;
pub mod cli;
pub mod core;
pub mod group;
pub mod infrastructure;
pub mod kubeconfig;
pub mod life;
pub mod metrics;
pub mod owner;
pub mod policies;
pub mod run;
pub mod scope;
pub mod watch;
