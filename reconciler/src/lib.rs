//! bedplate-controller: joins pxed and the agents through the kinds of a cluster (docs/controller.md).
//!
//! ```text
//! watches -> world (one store for each kind, one index) -> what is touched -> reconcile: plan (pure) -> apply -> status
//! ```
//!
//! One module for each kind. Which versions there are and which one a Machine gets is `rules::selection`'s; here it is read and
//! written. Nothing is decided by `status.phase`.

pub mod backoff;
pub mod cli;
pub mod coalesce;
pub mod configuration;
pub mod counters;
pub mod departure;
pub mod emptying;
pub mod engine;
pub mod follow;
pub mod image;
pub mod index;
pub mod keep;
pub mod lasting;
pub mod machine;
pub mod news;
pub mod operation;
pub mod patience;
pub mod reach;
pub mod request;
pub mod rollout;
pub mod run;
pub mod strip;
pub mod trigger;
pub mod version;
pub mod world;
pub mod write;
