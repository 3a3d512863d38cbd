//! Record of a slot's content, stored next to the slot. After a boot, the host's files are rendered from it
//! even while the API server is unreachable.
//!
//! Blocking calls only. Called by `node`.

use std::fs;

use bedplate_api::configuration::{NodeRole, Template};
use bedplate_api::id::MachineName;
use bedplate_api::machine::SlotName;
use bedplate_bootstrap::{makes_a_cluster, unit};
use bedplate_process::file::{read_json, remove_optional, write_atomic, write_json};
use serde::{Deserialize, Serialize};

use super::bind;
use super::confined_writer::Inside;
use super::store::{KeepSlotError, Slots};
use crate::model::SlotSeen;

/// Default socket of a container runtime in a node image.
pub(crate) const CRI_SOCKET: &str = "/run/containerd/containerd.sock";

/// Label of a node image with the socket of its container runtime.
pub(crate) const CRI_SOCKET_LABEL: &str = "bedplate.dev/cri-socket";

/// Mark while the etcd member of a joined control plane is being removed from
/// its cluster. It is next to kubeadm's marks.
pub(crate) const LEAVING: &str = "/var/lib/kubelet/.bedplate-leaving";

/// Content of a slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filled {
    /// The version's template.
    pub template: Template,
    /// Number of layers of its image.
    pub layers: usize,
    /// Socket of the container runtime, an absolute path in the slot.
    pub cri_socket: String,
    /// Name of the Node and host name of the slot, if they are a claim's. None: they are the Machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<MachineName>,
}

impl Slots {
    /// Stores the content record of a slot, readable by root only because it contains files of the template.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_filled(&self, slot: SlotName, filled: &Filled) -> Result<(), KeepSlotError> {
        Ok(write_json(&self.places().filled(slot), filled, 0o600)?)
    }

    /// Returns true if a file exists in the kept directories of a slot, such as kubeadm's marks. The path is
    /// that of a control plane's slot. Links are not followed.
    pub(crate) fn has_mark(&self, slot: SlotName, mark: &str) -> bool {
        bind::kept(mark, NodeRole::ControlPlane).is_some_and(|(name, path)| {
            let path = self.places().kept(slot, name).join(path.trim_start_matches('/'));
            fs::symlink_metadata(path).is_ok()
        })
    }

    /// Returns true if a file is above the layers of the slot's root, such as a mark of the user data.
    ///
    /// # Errors
    /// It is not known whether the file is there.
    pub(crate) fn has_root_mark(&self, slot: SlotName, mark: &str) -> Result<bool, KeepSlotError> {
        let upper = self.places().upper(slot);
        if !upper.exists() {
            return Ok(false);
        }
        Ok(Inside::open(&upper)?.open_file(mark)?.is_some())
    }

    /// Makes such a mark, or removes it.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn set_mark(&self, slot: SlotName, mark: &str, there: bool) -> Result<(), KeepSlotError> {
        let Some((name, path)) = bind::kept(mark, NodeRole::ControlPlane) else { return Ok(()) };
        let path = self.places().kept(slot, name).join(path.trim_start_matches('/'));
        let set = if there { write_atomic(&path, b"", 0o600) } else { remove_optional(&path) };
        Ok(set?)
    }

    /// Returns the state of a slot on disk. Its unit decides if it runs.
    ///
    /// # Errors
    /// Its record or its content record cannot be read.
    pub fn look(&self, slot: SlotName, runs: bool) -> Result<SlotSeen, KeepSlotError> {
        let (record, has_trash) = (self.record(slot)?, self.has_trash(slot)?);
        let joined = self.has_mark(slot, unit::JOINED);
        let etcd = self.has_mark(slot, unit::ETCD_DATA);
        if !joined && !etcd {
            return Ok(SlotSeen { record, runs, has_trash, ..SlotSeen::default() });
        }
        // Data without the mark of an attempt belong to a cluster, even if the mark of its join is missing.
        // The kubelet's directory may have been deleted, or a backup restored.
        let whole = etcd && !self.has_mark(slot, unit::ATTEMPT);
        let (made_cluster, joined_control_plane) = match self.filled(slot)? {
            // An emptied slot has no record either.
            None => (whole && record.is_some(), false),
            Some(filled) if makes_a_cluster(&filled.template.kubernetes) => (joined || whole, false),
            // etcd is a member before kubeadm has ended.
            Some(filled) => {
                (false, filled.template.kubernetes.role == NodeRole::ControlPlane && (joined || etcd))
            }
        };
        let leaving = joined_control_plane && self.has_mark(slot, LEAVING);
        Ok(SlotSeen { record, runs, made_cluster, joined_control_plane, leaving, has_trash })
    }

    /// Returns the content record of a slot; none: the slot is not filled.
    ///
    /// # Errors
    /// It exists and cannot be read.
    pub fn filled(&self, slot: SlotName) -> Result<Option<Filled>, KeepSlotError> {
        Ok(read_json(&self.places().filled(slot))?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::slot::sample::slots;

    /// Slots of which a is filled for this role, with marks or data at these paths; `joins`: it names what it joins.
    fn marked(role: &str, joins: bool, paths: &[&str]) -> (tempfile::TempDir, Slots) {
        let (directory, slots) = slots();
        slots.lay(SlotName::A, &[]).unwrap();
        let mut kubernetes = json!({"version": "v1.34.4", "role": role});
        if joins {
            kubernetes["joinConfiguration"] = json!({});
        }
        let template = json!({"image": {"reference": "r.example/node"}, "kubernetes": kubernetes});
        let template = serde_json::from_value(template).unwrap();
        slots
            .write_filled(
                SlotName::A,
                &Filled { template, layers: 1, cri_socket: String::new(), node_name: None },
            )
            .unwrap();
        for path in paths {
            let (name, path) = bind::kept(path, NodeRole::ControlPlane).unwrap();
            std::fs::create_dir_all(slots.places().kept(SlotName::A, name).join(&path[1..])).unwrap();
        }
        (directory, slots)
    }

    #[test]
    fn cluster_is_known_by_its_data_without_a_mark_unless_of_an_attempt() {
        let made = |paths: &[&str]| {
            let (_directory, slots) = marked("ControlPlane", false, paths);
            let seen = slots.look(SlotName::A, false).unwrap();
            assert!(!seen.joined_control_plane);
            (seen.made_cluster, seen.is_kept())
        };
        assert_eq!(made(&[]), (false, false));
        assert_eq!(made(&[unit::ATTEMPT]), (false, false));
        assert_eq!(made(&[unit::ETCD_DATA, unit::ATTEMPT]), (false, false), "half a kubeadm init");
        assert_eq!(
            made(&[unit::ETCD_DATA]),
            (true, true),
            "restored, or the kubelet's directory was cleared"
        );
        assert_eq!(made(&[unit::JOINED]), (true, true), "its etcd may be elsewhere");
        assert_eq!(made(&[unit::JOINED, unit::ETCD_DATA, unit::ATTEMPT]), (true, true));
    }

    #[test]
    fn joining_control_plane_counts_once_its_etcd_has_data() {
        let joined = |role, paths: &[&str]| {
            let (_directory, slots) = marked(role, true, paths);
            let seen = slots.look(SlotName::A, false).unwrap();
            assert!(!seen.made_cluster && !seen.is_kept(), "by its stage");
            seen.joined_control_plane
        };
        assert!(!joined("ControlPlane", &[unit::ATTEMPT]));
        assert!(joined("ControlPlane", &[unit::ATTEMPT, unit::ETCD_DATA]));
        assert!(joined("ControlPlane", &[unit::JOINED]));
        assert!(!joined("Worker", &[unit::JOINED]));
    }

    #[test]
    fn content_record_is_read_as_it_was_written() {
        let (_directory, slots) = slots();
        assert_eq!(slots.filled(SlotName::A).unwrap(), None);
        slots.lay(SlotName::A, &[]).unwrap();
        let template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": {"version": "v1.34.4"},
            "container": {"memoryMax": "8Gi"}});
        let filled = Filled {
            template: serde_json::from_value(template).unwrap(),
            layers: 3,
            cri_socket: CRI_SOCKET.to_owned(),
            node_name: Some("w-1".parse().unwrap()),
        };
        slots.write_filled(SlotName::A, &filled).unwrap();
        assert_eq!(slots.filled(SlotName::A).unwrap(), Some(filled));
    }
}
