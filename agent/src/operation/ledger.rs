//! Source of operations and destination of their status: the cluster, or pxed
//! when standalone. Implemented by `view`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};

use super::plan::Standing;
pub use crate::plane::WriteOperationError;

/// Operations of the Machine, and its permission.
#[derive(Debug, Clone)]
pub struct View {
    /// Operations for this Machine, others' among them or not.
    pub operations: Vec<Arc<MachineOperation>>,
    /// True if these are all current operations.
    pub complete: bool,
    /// UIDs of finished operations; the value is true if the operation has shut the host down.
    pub ended: BTreeMap<String, bool>,
    /// Permission of the Machine.
    pub standing: Standing,
}

impl Default for View {
    /// Returns the view before anything was read.
    fn default() -> Self {
        Self { operations: Vec::new(), complete: false, ended: BTreeMap::new(), standing: Standing::Unknown }
    }
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
