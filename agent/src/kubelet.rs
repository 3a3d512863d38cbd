//! The kubelet of the running slot: its files, its credential, the connection to its API server, and its control plane.

pub(crate) mod claimed_node;
pub mod client;
pub mod connection;
pub mod control_plane;
pub mod credential;
pub mod node_name;
pub(crate) mod slot_root;
