//! Writes the version's annotations on the Node of the applied slot, once per
//! Node. The kubelet cannot set them when it registers.
//!
//! When standalone, they include the configuration and version of the Node
//! (H5). In a cluster, bedplate-controller writes those.
//!
//! A mark in the slot records the UID of the annotated Node. Called by `apply`.

use bedplate_api::machine::{NODE_CONFIGURATION, NODE_VERSION, SlotName, VersionRef};
use bedplate_bootstrap::diff::Edit;

use super::{ApplyError, rendered};
use crate::node::effects::Parts;

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
            // A policy of the cluster may deny an annotation, which does not affect the node.
            Err(error) if error.is_final() => {
                let error = bedplate_process::exit::chain(&error);
                tracing::warn!(error, "failed to write the version's annotations to the Node");
            }
            Err(error) => return Err(ApplyError::Annotate(error)),
        }
    }
    let node_uid = node_uid.to_owned();
    let marked = parts.on_disk(move |slots| slots.set_annotated(slot, &node_uid, named.as_ref()));
    Ok(marked.await?)
}
