//! The plain HTTP listener for loaders, stage-1 and agents that have no certificate yet.
//!
//! Everything under `/b/<boot id>/`: the id is what identifies a boot, never the source address, never a header.
//! `path` and `conditional` are pure; `route` decides, `content`, `once` and `stage` answer, `body` and `socket` send,
//! `serve` owns the socket, `streams` keeps one boot from taking every root image stream. The seed is the one GET that changes something: it is a *take*, given once, and HEAD is
//! refused for it.

pub mod body;
pub mod conditional;
mod content;
mod once;
pub mod path;
pub mod route;
pub mod serve;
pub mod socket;
mod stage;
pub mod streams;
#[cfg(test)]
pub(crate) mod tests;
