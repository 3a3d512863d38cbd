//! Writes the version's annotations on the Node of the applied slot, once per
//! Node. The kubelet cannot set them when it registers.
//!
//! When standalone, they include the configuration and version of the Node
//! (H5). In a cluster, bedplate-controller writes those.
//!
//! A mark next to the slot records the UID of the annotated Node. Called by
//! `apply`; `observe` reads the mark.

use std::path::PathBuf;

use bedplate_api::machine::{NODE_CONFIGURATION, NODE_VERSION, SlotName, VersionRef};
use bedplate_bootstrap::diff::Edit;
use bedplate_process::file::{read_optional, write_atomic};

use super::{ApplyError, rendered};
use crate::node::effects::Parts;
use crate::slot::store::{KeepSlotError, Slots};

/// The mark, in what goes when the slot is emptied.
fn mark(slots: &Slots, slot: SlotName) -> PathBuf {
    slots.places().kept(slot, "annotated")
}

/// Content of the mark. `named`: the version that the Node is annotated with, without a cluster.
fn marked(node_uid: &str, named: Option<&VersionRef>) -> String {
    named.map_or_else(|| node_uid.to_owned(), |named| format!("{node_uid} {} {}", named.name, named.version))
}

/// Returns true if this Node (UID) has the annotations of the slot's version.
/// `named`: configuration and version are included.
pub(in crate::node) fn is_annotated(
    slots: &Slots,
    slot: SlotName,
    node_uid: &str,
    named: Option<&VersionRef>,
) -> Result<bool, KeepSlotError> {
    let path = mark(slots, slot);
    Ok(read_optional(&path)?.is_some_and(|mark| mark == marked(node_uid, named).as_bytes()))
}

/// Writes them.
pub(super) async fn annotate(parts: &Parts, slot: SlotName, node_uid: &str) -> Result<(), ApplyError> {
    let read = parts.on_disk(move |slots| Ok((slots.filled(slot)?, slots.record(slot)?))).await?;
    let (Some(filled), Some(record)) = read else {
        return Err(ApplyError::Superseded("the slot is not filled"));
    };
    let named = parts.home.follows_slot().then_some(record.version);
    let mut set = rendered(parts, &filled)?.node_annotations;
    if let Some(VersionRef { name, version }) = &named {
        set.insert(NODE_CONFIGURATION.to_owned(), name.clone());
        set.insert(NODE_VERSION.to_owned(), version.to_string());
    }
    if !set.is_empty() {
        let edit = Edit { set, remove: Vec::new() };
        match parts.node.edit(None, Some(&edit)).await {
            Ok(()) => {}
            // A cluster's own policy may forbid one; the node is none the worse for it.
            Err(error) if error.is_final() => {
                let error = bedplate_process::exit::chain(&error);
                tracing::warn!(error, "failed to write the version's annotations to the Node");
            }
            Err(error) => return Err(ApplyError::Annotate(error)),
        }
    }
    let mark_text = marked(node_uid, named.as_ref());
    let marked =
        parts.on_disk(move |slots| Ok(write_atomic(&mark(slots, slot), mark_text.as_bytes(), 0o600)?));
    Ok(marked.await?)
}
