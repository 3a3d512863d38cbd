//! The plain HTTP listener for loaders, stage-1 and agents that have no certificate yet.
//!
//! Everything under `/b/<boot id>/`: the id is what identifies a boot, never the source address, never a header.
//! `path`, `host` and `conditional` are pure. `route` decides, `content`, `once` and `stage` answer, `body` sends, `queue` orders the
//! root images, `streams` bounds those of one boot, `counters` counts. `leased` refuses script and seed to addresses of other machines.
//! The seed is the one GET that changes something: it is a *take*, given once, and HEAD is refused for it.

pub mod body;
pub mod conditional;
mod content;
pub mod counters;
pub mod host;
pub mod leased;
pub mod path;
pub mod queue;
pub mod route;
mod seed;
pub mod serve;
mod stage;
pub mod streams;
#[cfg(test)]
pub(crate) mod tests;
