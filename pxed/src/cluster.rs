//! The cluster plane: Machines, operations, statuses and certificates through the Kubernetes API.

pub mod agents;
pub mod claims;
pub(crate) mod client;
pub(crate) mod client_authority;
pub mod finalizer;
pub mod machines;
pub mod operations;
pub mod secrets;
pub mod signer;
pub(crate) mod status;
pub(crate) mod takeover_tokens;

use async_trait::async_trait;

use crate::machines::source::{OtherManifests, TakeManifests};

/// Receiver of manifests in a cluster, where there are none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoManifests;

#[async_trait]
impl TakeManifests for NoManifests {
    async fn take(&self, _: OtherManifests) -> Vec<String> {
        Vec::new()
    }
}
