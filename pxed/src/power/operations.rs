//! Sources of MachineOperations and destinations of their progress: the Kubernetes API (`cluster::operations`), or
//! manifests and the admin socket (`standalone::operations`).

use std::sync::Arc;

use bedplate_api::operation::{MachineOperation, OperationState};
use jiff::Timestamp;

use super::{Operation, OperationKey};

/// Finished operations that are remembered; the oldest go first.
pub(crate) const MOST_FINISHED: usize = 4096;

/// Returns true if the operation is complete or failed.
pub fn is_finished(operation: &MachineOperation) -> bool {
    let state = operation.status.as_ref().and_then(|status| status.state);
    matches!(state, Some(OperationState::Complete | OperationState::Failed))
}

/// Time at which an operation was made, and its name: the order in which they are shown.
pub(crate) fn age(operation: &MachineOperation) -> (Option<Timestamp>, &str) {
    let made = operation.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (made, operation.metadata.name.as_deref().unwrap_or_default())
}

/// Puts the oldest first.
pub(crate) fn sort_by_age(operations: &mut [Arc<MachineOperation>]) {
    operations.sort_by(|a, b| age(a).cmp(&age(b)));
}

/// Converts an operation of the API server and drops the parts that are not used.
pub(crate) fn sourced(mut object: MachineOperation) -> Operation {
    let managed = object.metadata.managed_fields.take().unwrap_or_default();
    let of_status = managed.iter().filter(|entry| entry.subresource.as_deref() == Some("status"));
    let written = of_status.filter_map(|entry| Some(entry.time.as_ref()?.0)).max();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let key = OperationKey { name: text(&object.metadata.name), uid: text(&object.metadata.uid) };
    Operation { key, version: text(&object.metadata.resource_version), object: Arc::new(object), written }
}
