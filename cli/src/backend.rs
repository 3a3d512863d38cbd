//! How pxed and the cluster are asked: which of them, by which socket or kubeconfig, and their errors.

pub(crate) mod ask;
pub(crate) mod cluster;
pub(crate) mod kubeconfig;
pub(crate) mod socket;
