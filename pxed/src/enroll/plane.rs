//! The agent API of the plane: requests that an agent sends to pxed because it has no API server.
//!
//! `serve` routes the requests. `standalone::agents` answers them. `cluster::agents` refuses them, because agents ask the API server.

use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{
    NodeReport, OperationWrite, OperationWritten, SecretRequest, SecretResponse, WatchRequest, WatchResponse,
};
use bedplate_process::log_pace::LogPace;

use super::identity::Identity;
use super::service::{Refused, Service, refused};
use crate::machines::KnownMachine;

/// The requests. Each error is a refusal.
#[async_trait]
pub trait AgentPlane: Send + Sync {
    /// Answers `POST /v1/watch`.
    async fn watch(&self, caller: Caller<'_>, request: WatchRequest) -> Result<WatchResponse, Refused>;

    /// Answers `POST /v1/operation`. It is not an error that the operation has changed since the agent read it.
    async fn write_operation(
        &self,
        caller: Caller<'_>,
        write: OperationWrite,
    ) -> Result<OperationWritten, Refused>;

    /// Answers `POST /v1/node`.
    async fn report_node(&self, caller: Caller<'_>, node: NodeReport) -> Result<(), Refused>;

    /// Answers `POST /v1/secret`.
    async fn secret(&self, caller: Caller<'_>, request: SecretRequest) -> Result<SecretResponse, Refused>;
}

/// An agent that showed its certificate.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub(super) service: &'a Service,
    pub(super) identity: &'a Identity,
}

impl Caller<'_> {
    /// Name of its Machine.
    pub fn name(&self) -> &MachineName {
        &self.identity.machine
    }

    /// Returns its Machine.
    ///
    /// # Errors
    /// The Machine is not known here any more.
    pub fn machine(&self) -> Result<Arc<KnownMachine>, Refused> {
        let name = self.name();
        match self.service.machines.load().by_name(name) {
            Some(known) => Ok(known.clone()),
            None => refused(AgentRefusal::MachineGone, format!("this pxed no longer knows Machine {name}")),
        }
    }

    /// Checks that its key is in force.
    ///
    /// # Errors
    /// The refusal.
    pub async fn check(&self) -> Result<(), Refused> {
        self.service.check_identity(self.identity).await.map(drop)
    }

    /// Checks that its key is in force, and records that its host was heard.
    ///
    /// # Errors
    /// The refusal.
    pub async fn hear(&self) -> Result<(), Refused> {
        self.service.hear(self.identity).await.map(drop)
    }

    /// Limits the log lines that a client can cause.
    pub fn log_pace(&self) -> &LogPace {
        self.service.boots.log_pace()
    }
}
