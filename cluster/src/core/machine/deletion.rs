//! The deletion of a Machine, step by step (M9).
//!
//! ```text
//! pre-drain hooks -> cordon -> drain -> volumes -> pre-terminate hooks -> infrastructure -> bootstrap -> Node -> finalizer
//! ```
//! Each turn starts at the first step again, and the first step that is not done decides. A turn that is killed therefore continues. `pod` and
//! `volume` turn lists of the workload API into views. All of it is pure. Not here: reads and writes. Caller: the turn of a Machine.

mod drain;
mod hook;
mod list;
mod node;
mod object;
mod plan;
mod pod;
mod volume;

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

pub use drain::{EVICTIONS_PER_TURN, Hold};
pub use node::{NodeAnswer, NodeFailure, NodeState};
pub use plan::{Act, Needed, Observed, Plan, plan};
pub use pod::{Labels, PodCollector, PodsView, Selection, Target, Treatment};
pub use volume::{VolumeCollector, VolumesView};
