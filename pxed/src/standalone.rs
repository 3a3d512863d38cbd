//! The standalone plane: manifests of a directory, and the decisions that a controller makes in a cluster.

pub mod agents;
pub(crate) mod bmc_secrets;
pub mod departures;
pub mod manifests;
pub(crate) mod node_secrets;
pub mod operations;
pub mod signer;
pub mod statuses;
pub(crate) mod takeover_tokens;
pub mod versions;

use async_trait::async_trait;

use self::operations::LocalOperations;
use self::versions::NodeChoice;
use crate::machines::source::{OtherManifests, TakeManifests};

/// Receiver of the operations and configurations in manifests.
pub(crate) struct Manifested {
    /// Operations of manifests and of the socket.
    pub operations: LocalOperations,
    /// Configurations, and the selected version of each Machine.
    pub choice: NodeChoice,
}

#[async_trait]
impl TakeManifests for Manifested {
    async fn take(
        &self,
        OtherManifests { operations, configurations, whole }: OtherManifests,
    ) -> Vec<String> {
        let problems = self.operations.take(operations, whole).await;
        self.choice.take(configurations, whole).await;
        problems
    }
}
