//! What a slot was filled with, kept beside its record: after a boot the host's files are rendered from it, whether the API
//! server answers or not.
//!
//! Blocking calls only. Called by `node`.

use std::fs;
use std::io;

use bedplate_api::configuration::Template;
use bedplate_api::machine::SlotName;
use serde::{Deserialize, Serialize};

use super::store::{KeepSlotError, Slots};
use crate::file::write_atomic;

/// Where a container runtime listens in a node image that does not say so.
pub const CRI_SOCKET: &str = "/run/containerd/containerd.sock";

/// The label of a node image that says where its container runtime listens.
pub const CRI_SOCKET_LABEL: &str = "bedplate.dev/cri-socket";

/// What a slot was filled with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filled {
    /// The version's template.
    pub template: Template,
    /// How many layers its image has.
    pub layers: usize,
    /// Where the container runtime listens, an absolute path in the slot.
    pub cri_socket: String,
}

impl Slots {
    /// Keeps what a slot is filled with, for root only: files of a template may be of use to nobody else.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_filled(&self, slot: SlotName, filled: &Filled) -> Result<(), KeepSlotError> {
        let path = self.places().filled(slot);
        let bytes = serde_json::to_vec(filled)
            .map_err(|source| KeepSlotError::Damaged { path: path.clone(), source })?;
        write_atomic(&path, &bytes, 0o600).map_err(|source| KeepSlotError::File {
            act: "write",
            path: path.clone(),
            source,
        })
    }

    /// Whether a file of the kubelet's state is there, such as kubeadm's marks; its path as the slot sees it. No link is followed.
    pub fn has_mark(&self, slot: SlotName, mark: &str) -> bool {
        let name = mark.trim_start_matches("/var/lib/kubelet/");
        fs::symlink_metadata(self.places().kept(slot, "kubelet").join(name)).is_ok()
    }

    /// What a slot is filled with; none: it is not.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn filled(&self, slot: SlotName) -> Result<Option<Filled>, KeepSlotError> {
        let path = self.places().filled(slot);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(KeepSlotError::File { act: "read", path, source }),
        };
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Some).map_err(|source| KeepSlotError::Damaged { path, source })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::slot::places::Places;

    #[test]
    fn what_a_slot_was_filled_with_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let below = |name: &str| directory.path().join(name);
        let slots = Slots::new(Places { state: below("s"), run: below("r"), machines: below("m") });
        assert_eq!(slots.filled(SlotName::A).unwrap(), None);
        slots.lay(SlotName::A, &[]).unwrap();
        let template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": {"version": "v1.34.4"},
            "container": {"memoryMax": "8Gi"}});
        let filled = Filled {
            template: serde_json::from_value(template).unwrap(),
            layers: 3,
            cri_socket: CRI_SOCKET.to_owned(),
        };
        slots.write_filled(SlotName::A, &filled).unwrap();
        assert_eq!(slots.filled(SlotName::A).unwrap(), Some(filled));
    }
}
