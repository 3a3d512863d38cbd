//! The drain of a Node: which Pods leave, which stay, which need permission of the user, and the one sender of evictions.
//!
//! Decides as `kubectl drain` does. Requests leave over the connection of the caller ([`PodApi`]). Called by `bedplate-agent` (before a
//! reboot, as the kubelet) and by `bedplate-controller` (before it deletes a Node).

mod eviction;
mod judgment;
mod pod;
mod send;

pub use eviction::Evicted;
pub use judgment::{Drain, Refusal, again, list, list_of, refusal, wait};
pub use pod::Pod;
pub use send::{PodApi, Rejection, evict, pods};

/// Annotation of a Node that a program of Bedplate has cordoned: the UID of the operation, or the purpose of bedplate-controller.
pub const CORDONED_BY: &str = "bedplate.dev/cordoned-by";
