//! Requests to pxed and the cluster: choice of the socket or kubeconfig, and errors.

pub(crate) mod ask;
pub(crate) mod cluster;
pub(crate) mod kubeconfig;
pub(crate) mod socket;
