//! Machines: the life of one machine of a cluster, from its first owner to its Node and its end (M1 to M13).
//!
//! ```text
//! plan: next write, status, recheck -> references (M4, M5, M7), data (M3), node and taint (Node), status -> condition, phase
//! deletion: hooks -> drain -> volumes -> infrastructure -> bootstrap -> Node -> finalizer (M9)
//! ```
//! `pass` reads and writes, with the state in `memory`. The rest is pure.

pub mod condition;
pub mod data;
pub mod deletion;
pub mod memory;
pub mod mirrored;
pub mod node;
pub mod node_condition;
pub mod pass;
pub mod phase;
pub mod plan;
pub mod references;
pub mod refused;
pub mod status;
pub mod taint;
pub mod up_to_date;

#[cfg(test)]
mod fixture;
