//! The standalone plane: manifests of a directory, and the decisions that a controller makes in a cluster.

pub mod agents;
pub mod manifests;
pub mod node_secrets;
pub mod operations;
pub mod versions;
