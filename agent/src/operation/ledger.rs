//! Where operations are read and their status is written: the cluster, or a pxed without one. Implemented by `cluster`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};

use super::plan::Standing;

/// What is there to be done.
#[derive(Debug, Clone)]
pub struct View {
    /// Operations for this Machine, others' among them or not.
    pub operations: Vec<Arc<MachineOperation>>,
    /// These are all that there are, and were just now.
    pub complete: bool,
    /// UIDs of those that have ended; whether one has shut the host down.
    pub ended: BTreeMap<String, bool>,
    /// What the Machine allows.
    pub standing: Standing,
}

impl Default for View {
    /// Nothing was read yet.
    fn default() -> Self {
        Self { operations: Vec::new(), complete: false, ended: BTreeMap::new(), standing: Standing::Unknown }
    }
}

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteOperationError {
    /// Whoever keeps it is away or busy: later.
    #[error("not now: {0}")]
    Later(String),
    /// Somebody else has written since it was read: how it is now.
    #[error("somebody else has written it since it was read")]
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
    /// Writes all of its status, if nobody has written since `operation` was read; how it is then.
    async fn write(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError>;
}
