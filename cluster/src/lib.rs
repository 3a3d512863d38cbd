//! bedplate-cluster: the providers of Cluster API over the hosts of Bedplate, one group of controllers in each process.
//!
//! ```text
//! cli (group, namespace, filter) -> run: Lease, health -> infrastructure: watches, stores, queues, one worker for each kind
//! ```
//! Only the group `infrastructure` is there. What a host is held by is decided in `bedplate-claim`.

pub mod cli;
pub mod events;
pub mod group;
pub mod infrastructure;
pub mod metrics;
pub mod run;
pub mod scope;
