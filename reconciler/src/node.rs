//! Nodes: cordon and drain, for rolling updates and for deleted Machines.

pub mod drain;
