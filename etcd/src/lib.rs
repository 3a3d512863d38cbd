//! Members of an etcd cluster: which there are, which are healthy, and whether one may leave.
//!
//! Speaks to the JSON gateway of etcd 3.4 and newer. `member` and `quorum` are pure; `client` sends requests over the connection of the
//! caller ([`Gateway`]) and owns no socket. Knows nothing of Bedplate. Called by bedplate-agent before a control plane leaves its slot.

mod client;
mod member;
pub mod quorum;

pub use client::{AskError, Client, Gateway, MustStay};
pub use member::{Member, MemberId};
