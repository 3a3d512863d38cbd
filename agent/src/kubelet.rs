//! The kubelet of the running slot: its files, its credential, the connection to its API server, and its control plane.

pub mod claimed_node;
pub mod client;
pub mod connection;
pub mod control_plane;
pub mod credential;
pub mod node_name;
pub mod slot_root;
