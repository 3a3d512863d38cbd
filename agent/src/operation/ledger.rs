//! Source of operations and destination of their status: the cluster, or pxed
//! when standalone. Implemented by `cluster`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};

use super::plan::Standing;

/// Operations of the Machine, and what it allows.
#[derive(Debug, Clone)]
pub struct View {
    /// Operations for this Machine, others' among them or not.
    pub operations: Vec<Arc<MachineOperation>>,
    /// These are all that there are, and were just now.
    pub complete: bool,
    /// UIDs of those that have ended; whether one has shut the host down.
    pub ended: BTreeMap<String, bool>,
    /// Permission of the Machine.
    pub standing: Standing,
}

impl Default for View {
    /// Nothing was read yet.
    fn default() -> Self {
        Self { operations: Vec::new(), complete: false, ended: BTreeMap::new(), standing: Standing::Unknown }
    }
}

/// Reason for which a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteOperationError {
    /// The server is unreachable or busy; retry later.
    #[error("not now: {0}")]
    Later(String),
    /// Another writer has changed the object since it was read; with its current state.
    #[error("it was changed by another writer since it was read")]
    Conflict(Box<MachineOperation>),
    /// It is gone.
    #[error("it is gone")]
    Gone,
    /// It is refused, and will be.
    #[error("refused: {0}")]
    Refused(String),
}

/// Writes the status of operations.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Writes its complete status, unless another writer changed the object
    /// since `operation` was read. Returns the new object.
    async fn write(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError>;
}
