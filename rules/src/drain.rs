//! How a Node is emptied: which Pods leave, which stay, which nobody may evict unasked, and what the API server says to an eviction.
//!
//! As `kubectl drain` decides. Pure: what was read and answered in, requests and judgements out; whoever calls it sends them. Called by
//! `bedplate-agent` (before a reboot, as the kubelet) and by `bedplate-controller` (before it deletes a Node).

mod eviction;
mod judgement;
mod pod;

pub use eviction::{Evicted, Request, evict, outcome, page};
pub use judgement::{Drain, Refusal, again, list, refusal, wait};
pub use pod::Pod;

/// Annotation of a Node that one of ours has cordoned: the UID of the operation, or what bedplate-controller has in mind with it.
pub const CORDONED_BY: &str = "bedplate.dev/cordoned-by";
