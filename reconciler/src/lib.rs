//! bedplate-controller: joins pxed and the agents through the kinds of a cluster (docs/concepts/controller.md).
//!
//! ```text
//! watches -> world (one store for each kind, one index) -> affected objects -> reconcile: plan (pure) -> apply -> status
//! ```
//!
//! One module for each kind. `rules::selection` decides which versions exist and which one a Machine gets; this crate reads and writes
//! the objects. No decision depends on `status.phase`.

pub mod cache;
pub mod cli;
pub mod configuration;
pub mod configuration_conditions;
pub mod context;
pub mod cordon;
pub mod csr;
pub mod deletion;
pub mod enqueue;
pub(crate) mod foreign_node;
pub mod image;
pub mod machine;
pub mod metrics;
pub mod node;
pub mod operation;
pub mod reach;
pub mod rollout;
pub mod run;
pub mod version;
pub mod watch;

use bedplate_engine::FieldManager;

/// Field manager of all writes of this program.
pub const FIELD_MANAGER: FieldManager = FieldManager::new("bedplate-controller");
