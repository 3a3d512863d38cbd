//! The end of an operation that its executor does not give, such as `NoExecutor` and `TimedOut`.
//!
//! The host that carries an operation out may write its status without pause. A write over the version that was read would then fail each time,
//! and the operation would hold its parent. So this write tests UID and state alone: it replaces no other end, and nothing else stops it.

use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_engine::write::{WriteError, called, read};
use bedplate_rules::operation::state;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::FIELD_MANAGER;

/// Writes the status that ends an operation, if UID and state are those that were read.
///
/// # Errors
/// [`WriteError`]; a conflict if another writer has changed the state.
pub(super) async fn write(
    all: &Api<MachineOperation>,
    operation: &MachineOperation,
    status: &MachineOperationStatus,
) -> Result<(), WriteError> {
    let Some(edits) = edits(operation, status) else {
        return FIELD_MANAGER.apply_status(all, operation, status).await.map(drop);
    };
    let error = match FIELD_MANAGER.edit_status(all, operation, &edits).await {
        Err(error @ WriteError::Refused { .. }) => error,
        other => return other,
    };
    // The API server does not say whether a test has failed or a rule refused it.
    let now = read(all, &operation.name_any()).await?;
    let is_same = now.is_some_and(|now| now.uid() == operation.uid() && state(&now) == state(operation));
    Err(if is_same { error } else { WriteError::Conflict { what: called(operation) } })
}

/// Returns the JSON Patch of an end; none if the state that was read cannot be tested.
fn edits(operation: &MachineOperation, status: &MachineOperationStatus) -> Option<Value> {
    let before = match state(operation)? {
        before @ (OperationState::Pending | OperationState::InProgress) => before,
        OperationState::Complete | OperationState::Failed | OperationState::Unknown => return None,
    };
    let test = |path: &str, value: Value| json!({ "op": "test", "path": path, "value": value });
    let mut edits = vec![test("/metadata/uid", json!(operation.uid())), test("/status/state", json!(before))];
    let fields = [
        ("state", json!(status.state)),
        ("completionTime", json!(status.completion_time)),
        ("reason", json!(status.reason)),
        ("message", json!(status.message)),
        ("observedGeneration", json!(status.observed_generation)),
        // As a whole: a host that writes an end of its own before must not make this one fail by a condition that is there twice.
        ("conditions", json!(status.conditions)),
    ];
    // An `add` replaces what is there (RFC 6902, 4.1).
    let add = |(field, value)| json!({ "op": "add", "path": format!("/status/{field}"), "value": value });
    edits.extend(fields.into_iter().filter(|(_, value)| !value.is_null()).map(add));
    Some(Value::Array(edits))
}
