//! The version's annotations on the Node of the slot that is the node: written once for each Node, as its kubelet, which cannot
//! register them itself.
//!
//! A mark beside the slot says whose Node has them. Called by `apply`, and read by `observe`.

use std::path::PathBuf;

use bedplate_api::machine::SlotName;
use bedplate_bootstrap::diff::Edit;

use super::super::effects::Parts;
use super::{ApplyError, rendered};
use crate::file::{read_optional, write_atomic};
use crate::slot::store::{KeepSlotError, Slots};

/// The mark, in what goes when the slot is emptied.
fn mark(slots: &Slots, slot: SlotName) -> PathBuf {
    slots.places().kept(slot, "annotated")
}

/// Whether this Node (UID) has the annotations of the version in the slot.
pub(in super::super) fn is_annotated(
    slots: &Slots,
    slot: SlotName,
    node_uid: &str,
) -> Result<bool, KeepSlotError> {
    let path = mark(slots, slot);
    let read = read_optional(&path).map_err(|source| KeepSlotError::File { act: "read", path, source })?;
    Ok(read.is_some_and(|uid| uid == node_uid.as_bytes()))
}

/// Writes them.
pub(super) async fn annotate(parts: &Parts, slot: SlotName, node_uid: &str) -> Result<(), ApplyError> {
    let filled = parts.on_disk(move |slots| slots.filled(slot)).await?;
    let filled = filled.ok_or(ApplyError::Superseded("the slot is not filled"))?;
    let set = rendered(parts, &filled)?.node_annotations;
    if !set.is_empty() {
        let edit = Edit { set, remove: Vec::new() };
        match parts.node.edit(None, Some(&edit)).await {
            Ok(()) => {}
            // A cluster's own policy may forbid one; the node is none the worse for it.
            Err(error) if error.is_final() => {
                let error = bedplate_process::exit::chain(&error);
                tracing::warn!(error, "the version's annotations are not written to the Node");
            }
            Err(error) => return Err(ApplyError::Annotate(error)),
        }
    }
    let uid = node_uid.to_owned();
    let marked = parts.on_disk(move |slots| {
        let path = mark(slots, slot);
        write_atomic(&path, uid.as_bytes(), 0o600).map_err(|source| KeepSlotError::File {
            act: "write",
            path,
            source,
        })
    });
    Ok(marked.await?)
}
