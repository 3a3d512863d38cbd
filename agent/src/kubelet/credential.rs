//! Location of this host's kubelet credential: in the slot that runs, otherwise
//! in the one that was the node last.
//!
//! Blocking reads in threads of their own; nothing is cached. Called by the plane of a standalone host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::SlotName;
use bedplate_process::exit::chain;

use super::client::AskNodeError;
use super::connection::{KUBECONFIG, KubeletCredential};
use super::slot_root::running;
use crate::bus::Machines;
use crate::kubelet::control_plane::MANIFEST;
use crate::model::{Record, Stage};
use crate::slot::bind;
use crate::slot::confined_writer::Inside;
use crate::slot::store::Slots;

/// State of this host's kubelet toward its API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kubelet {
    /// No slot runs, and none was the node.
    Nowhere,
    /// A slot runs, and its kubelet has no credential yet.
    NotJoined,
    /// The slot that was the node does not run, and with it the API server in it.
    Asleep {
        /// The Node's UID, when it ran.
        node_uid: String,
    },
    /// The kubelet has joined.
    Joined(Joined),
}

/// A kubelet that has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Credential of the kubelet.
    pub credential: KubeletCredential,
    /// True if the slot runs an API server. A missing answer is then a fault of the slot.
    pub runs_api: bool,
}

/// Finds the kubelet.
#[async_trait]
pub trait FindKubelet: Send + Sync {
    /// Finds the current credential. The error is a human-readable text.
    async fn find(&self) -> Result<Kubelet, String>;
}

/// Finder of the credential in the slots of this host.
pub(crate) struct SlotCredential {
    machines: Arc<dyn Machines>,
    root: PathBuf,
    slots: Slots,
}

impl SlotCredential {
    /// Creates the finder of the host whose root directory is `root`.
    pub(crate) fn new(machines: Arc<dyn Machines>, root: &Path, slots: Slots) -> Self {
        Self { machines, root: root.to_owned(), slots }
    }
}

#[async_trait]
impl FindKubelet for SlotCredential {
    async fn find(&self) -> Result<Kubelet, String> {
        let container = running(self.machines.as_ref()).await.map_err(|error| chain(&error))?;
        let (root, slots) = (self.root.clone(), self.slots.clone());
        let looked = tokio::task::spawn_blocking(move || match container {
            Some(container) => {
                let inside = container.leader.open_root(&root);
                of_running(&inside.map_err(|error| format!("cannot open the root of the slot: {error}"))?)
            }
            None => of_stopped(&slots),
        });
        looked.await.map_err(|error| error.to_string())?
    }
}

/// Reads the credential in the running slot with this root.
fn of_running(inside: &Inside) -> Result<Kubelet, String> {
    let read = |path: &str| {
        let read = inside.read_text(path);
        read.map_err(|source| AskNodeError::File { path: path.to_owned(), source })
    };
    let found = || {
        let Some(text) = read(KUBECONFIG)? else { return Ok(Kubelet::NotJoined) };
        let credential = KubeletCredential::read(&text, &read)?;
        Ok(Kubelet::Joined(Joined { credential, runs_api: read(MANIFEST)?.is_some() }))
    };
    found().map_err(|error: AskNodeError| chain(&error))
}

/// Reads the credential of the slot that was the node last. After a boot, the agent asks with it if the Node
/// still exists, before the slot is started.
fn of_stopped(slots: &Slots) -> Result<Kubelet, String> {
    let mut last: Option<(SlotName, Record, String)> = None;
    for slot in SlotName::ALL {
        let Some(record) = slots.record(slot).map_err(|error| chain(&error))? else { continue };
        let Stage::Applied { node_uid, .. } = &record.stage else { continue };
        if last.as_ref().is_none_or(|(_, last, _)| last.generation < record.generation) {
            let node_uid = node_uid.clone();
            last = Some((slot, record, node_uid));
        }
    }
    let Some((slot, _, node_uid)) = last else { return Ok(Kubelet::Nowhere) };
    let filled = slots.filled(slot).map_err(|error| chain(&error))?;
    let role = filled.map(|filled| filled.template.kubernetes.role).unwrap_or_default();
    if role == NodeRole::ControlPlane {
        return Ok(Kubelet::Asleep { node_uid });
    }
    let read = |path: &str| read_stopped(slots, slot, path);
    let found = || {
        let Some(text) = read(KUBECONFIG)? else { return Ok(Kubelet::Asleep { node_uid }) };
        let credential = KubeletCredential::read(&text, &read)?;
        Ok(Kubelet::Joined(Joined { credential, runs_api: false }))
    };
    found().map_err(|error: AskNodeError| chain(&error))
}

/// Reads a worker's file at its place on the host: in the overlay, or in a kept directory.
fn read_stopped(slots: &Slots, slot: SlotName, path: &str) -> Result<Option<String>, AskNodeError> {
    let read = || {
        let (directory, inner) = match bind::kept(path, NodeRole::Worker) {
            Some((name, inner)) => (slots.places().kept(slot, name), inner),
            None => (slots.places().upper(slot), path.to_owned()),
        };
        let inside = Inside::open(&directory)?;
        // A link's target is a path in the slot; the file itself is in the directory of the link.
        let above = inner.rsplit_once('/').map_or("", |(above, _)| above);
        let inner = inside.link_name(&inner).map_or(inner.clone(), |name| format!("{above}/{name}"));
        inside.read(&inner)
    };
    let bytes = read().map_err(|error| AskNodeError::File {
        path: path.to_owned(),
        source: std::io::Error::other(error),
    })?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::slot::fill_record::Filled;
    use crate::slot::sample;

    const CONFIG: &str = "clusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    server: https://k:6443/\nusers:\n- user:\n    \
                          client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n    \
                          client-key: /var/lib/kubelet/pki/kubelet-client-current.pem\n";

    fn slots(role: &str) -> (tempfile::TempDir, Slots) {
        let (directory, slots) = sample::slots();
        slots.lay(SlotName::B, &[]).unwrap();
        let template = json!({"image": {"reference": "r.example/node", "allowTag": true},
            "kubernetes": {"version": "v1.34.4", "role": role}});
        let template = serde_json::from_value(template).unwrap();
        slots
            .write_filled(
                SlotName::B,
                &Filled { template, layers: 1, cri_socket: String::new(), node_name: None },
            )
            .unwrap();
        let stage = Stage::Applied { node_uid: "n".to_owned(), since: Timestamp::UNIX_EPOCH };
        let record = Record { generation: 1, ..sample::record(stage) };
        slots.write_record(SlotName::B, &record).unwrap();
        (directory, slots)
    }

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn running_slot_has_joined_once_its_kubelet_has_a_credential() {
        let root = tempfile::tempdir().unwrap();
        let inside = Inside::open(root.path()).unwrap();
        assert_eq!(of_running(&inside).unwrap(), Kubelet::NotJoined);
        put(root.path(), "etc/kubernetes/kubelet.conf", CONFIG);
        put(root.path(), "var/lib/kubelet/pki/kubelet-client-current.pem", "pem");
        let joined = |runs_api| match of_running(&inside).unwrap() {
            Kubelet::Joined(joined) if joined.runs_api == runs_api => joined.credential,
            other => panic!("{other:?}"),
        };
        assert_eq!((joined(false).server.as_str(), joined(false).ca_pem.as_str()), ("https://k:6443", "CA"));
        assert!(!format!("{:?}", joined(false)).contains("pem"));
        put(root.path(), "etc/kubernetes/manifests/kube-apiserver.yaml", "kind: Pod\n");
        joined(true);
    }

    #[test]
    fn after_a_boot_the_credential_is_read_from_the_slot_that_was_the_node() {
        let (_directory, slots) = slots("Worker");
        assert_eq!(of_stopped(&slots).unwrap(), Kubelet::Asleep { node_uid: "n".to_owned() });
        put(&slots.places().upper(SlotName::B), "etc/kubernetes/kubelet.conf", CONFIG);
        let pki = slots.places().kept(SlotName::B, "kubelet").join("pki");
        put(&pki, "kubelet-client-2026.pem", "pem");
        std::os::unix::fs::symlink(
            "/var/lib/kubelet/pki/kubelet-client-2026.pem",
            pki.join("kubelet-client-current.pem"),
        )
        .unwrap();
        let Kubelet::Joined(joined) = of_stopped(&slots).unwrap() else { panic!("it has joined") };
        assert_eq!((joined.credential.certificate_pem.as_str(), joined.runs_api), ("pem", false));
    }

    #[test]
    fn the_api_server_of_a_slot_that_does_not_run_is_not_asked() {
        let (_directory, slots) = slots("ControlPlane");
        put(&slots.places().kept(SlotName::B, "kubernetes"), "kubelet.conf", CONFIG);
        assert_eq!(of_stopped(&slots).unwrap(), Kubelet::Asleep { node_uid: "n".to_owned() });
        slots.clear(SlotName::B).unwrap();
        assert_eq!(of_stopped(&slots).unwrap(), Kubelet::Nowhere);
    }
}
