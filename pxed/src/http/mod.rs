//! The plain HTTP listener for loaders, stage-1 and agents that have no certificate yet.
//!
//! Everything under `/b/<boot id>/`: the id is what identifies a boot, never the source address, never a header.
//! `path`, `host` and `conditional` are pure; `route` decides, `content`, `once` and `stage` answer, `body` and `socket` send,
//! `listen` owns the sockets (the agents' too), `streams` keeps one boot from taking every root image stream, `counters` counts.
//! The seed is the one GET that changes something: it is a *take*, given once, and HEAD is refused for it.

pub mod body;
pub mod conditional;
mod content;
pub mod counters;
pub mod host;
pub mod listen;
mod once;
pub mod path;
pub mod route;
pub mod serve;
pub mod socket;
mod stage;
pub mod streams;
#[cfg(test)]
pub(crate) mod tests;
