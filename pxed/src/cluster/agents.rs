//! Agent API in a cluster: agents ask its API server.

use async_trait::async_trait;
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{
    NodeReport, OperationWrite, OperationWritten, SecretRequest, SecretResponse, WatchRequest, WatchResponse,
};

use crate::enroll::plane::{AgentPlane, Caller};
use crate::enroll::service::{Refused, refused};

/// Refuses every request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskApiServer;

#[async_trait]
impl AgentPlane for AskApiServer {
    async fn watch(&self, _: Caller<'_>, _: WatchRequest) -> Result<WatchResponse, Refused> {
        use_cluster()
    }

    async fn write_operation(&self, _: Caller<'_>, _: OperationWrite) -> Result<OperationWritten, Refused> {
        use_cluster()
    }

    async fn report_node(&self, _: Caller<'_>, _: NodeReport) -> Result<(), Refused> {
        use_cluster()
    }

    async fn secret(&self, _: Caller<'_>, _: SecretRequest) -> Result<SecretResponse, Refused> {
        use_cluster()
    }
}

fn use_cluster<T>() -> Result<T, Refused> {
    refused(AgentRefusal::UseKubernetesApi, "this pxed belongs to a cluster: ask its API server")
}
