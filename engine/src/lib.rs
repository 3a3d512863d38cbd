//! Engine of the programs that reconcile objects of a cluster. It knows no kind, no rule and no name of a program.
//!
//! ```text
//! store::watch -> store, counters -> queue -> work: one object at a time -> reconcile (the program's) -> write
//!                                      ^                                                                  |
//!                                      +---------------- backoff: failures, retry_after <-----------------+
//! ```
//! Called by bedplate-controller and bedplate-cluster.

mod backoff;
pub mod connect;
pub mod counters;
mod debounce;
pub mod elapsed;
pub mod events;
mod facts;
mod field_manager;
mod full_name;
pub mod later;
pub mod life;
pub mod list;
mod loops;
pub mod object;
pub mod process;
pub mod pulse;
mod queue;
mod retry_after;
pub mod store;
mod waiting;
pub mod watches;
mod work;
pub mod write;

pub use facts::Facts;
pub use field_manager::FieldManager;
pub use full_name::full_name;
pub use loops::Loops;
pub use queue::Queue;
pub use work::{Context, Next, work};
