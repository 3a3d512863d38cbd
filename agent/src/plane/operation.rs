//! Writes the status of an operation, only over the resource version that was read.
//!
//! Called by `cluster`.

use std::sync::Arc;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_process::exit::chain;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;

use super::error::find;

const FIELD_MANAGER: &str = "bedplate-agent";
const RESOURCE: (&str, &str) = ("bedplate.dev", "machineoperations");

/// Reason for which the status of an operation was not written.
#[derive(Debug, Error)]
pub enum WriteOperationError {
    /// The server is unreachable or busy; retry later.
    #[error("not now: {0}")]
    Later(String),
    /// Another writer has changed the object since it was read; with its current state.
    #[error("the operation was changed by another writer")]
    Conflict(Box<MachineOperation>),
    /// The operation is deleted, or its name belongs to another one.
    #[error("the operation was deleted")]
    Gone,
    /// The write is permanently refused.
    #[error("refused: {0}")]
    Refused(String),
}

pub(super) async fn write(
    client: &Client,
    operation: &MachineOperation,
    status: &MachineOperationStatus,
) -> Result<Arc<MachineOperation>, WriteOperationError> {
    let name = operation.name_any();
    let operations: Api<BoundedTimes<MachineOperation>> = Api::all(client.clone());
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(patch_body(operation, status));
    let what = format!("status of MachineOperation {name}");
    let write = operations.patch_status(&name, &parameters, &patch);
    let error = match find(what, RESOURCE, &name, write).await {
        Ok(Some(BoundedTimes(written))) => return Ok(Arc::new(written)),
        Ok(None) => return Err(WriteOperationError::Gone),
        Err(error) => error,
    };
    match error.status() {
        Some(409) => Err(read_again(&operations, operation).await),
        Some(400 | 413 | 415 | 422) => Err(WriteOperationError::Refused(chain(&error))),
        // 401 and 403 too: certificates are renewed, and roles are corrected.
        _ => Err(WriteOperationError::Later(chain(&error))),
    }
}

async fn read_again(
    operations: &Api<BoundedTimes<MachineOperation>>,
    operation: &MachineOperation,
) -> WriteOperationError {
    let name = operation.name_any();
    match find(format!("MachineOperation {name}"), RESOURCE, &name, operations.get(&name)).await {
        Ok(Some(BoundedTimes(now))) if now.uid() == operation.uid() => {
            WriteOperationError::Conflict(Box::new(now))
        }
        Ok(_) => WriteOperationError::Gone,
        Err(error) => WriteOperationError::Later(chain(&error)),
    }
}

/// Returns an executor's fields, for an object that still has this UID and version. Pure. `null` removes
/// fields of an earlier step; the controller writes `counts`.
fn patch_body(operation: &MachineOperation, status: &MachineOperationStatus) -> Value {
    let mut body = json!({
        "metadata": { "uid": operation.uid(), "resourceVersion": operation.resource_version() },
        "status": {
            "state": status.state,
            "startTime": status.start_time,
            "completionTime": status.completion_time,
            "reason": status.reason,
            "message": status.message,
            "executor": status.executor,
            "bootID": status.boot_id,
            "conditions": status.conditions,
        },
    });
    // Without the default of the definition, an operation in progress would look finished.
    if let Some(generation) = status.observed_generation {
        body["status"]["observedGeneration"] = json!(generation);
    }
    body
}

#[cfg(test)]
mod tests;
