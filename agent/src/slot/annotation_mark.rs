//! Mark of a slot that names the Node with the annotations of its version. The mark is removed with the slot.
//!
//! Blocking calls only. Called by `node`.

use std::path::PathBuf;

use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_process::file::{read_optional, write_atomic};

use super::store::{KeepSlotError, Slots};

impl Slots {
    /// Returns true if this Node (UID) has the annotations of the slot's version. `named`: the version that the Node is annotated with,
    /// without a cluster.
    ///
    /// # Errors
    /// The mark cannot be read.
    pub(crate) fn is_annotated(
        &self,
        slot: SlotName,
        node_uid: &str,
        named: Option<&VersionRef>,
    ) -> Result<bool, KeepSlotError> {
        let mark = read_optional(&self.annotation_mark(slot))?;
        Ok(mark.is_some_and(|mark| mark == content(node_uid, named).as_bytes()))
    }

    /// Records that this Node (UID) has them.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub(crate) fn set_annotated(
        &self,
        slot: SlotName,
        node_uid: &str,
        named: Option<&VersionRef>,
    ) -> Result<(), KeepSlotError> {
        Ok(write_atomic(&self.annotation_mark(slot), content(node_uid, named).as_bytes(), 0o600)?)
    }

    fn annotation_mark(&self, slot: SlotName) -> PathBuf {
        self.places().kept(slot, "annotated")
    }
}

fn content(node_uid: &str, named: Option<&VersionRef>) -> String {
    named.map_or_else(|| node_uid.to_owned(), |named| format!("{node_uid} {} {}", named.name, named.version))
}
