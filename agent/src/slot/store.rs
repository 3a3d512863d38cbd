//! Slots on disk: their records, their content records, and the host's files to run them.
//!
//! A record is written before other code relies on it: `Preparing` before the
//! first file, `Prepared` after the last one is on disk.
//! Blocking calls only; called by `node` from its own threads.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::{RolledBack, SlotName, VersionRef};
use bedplate_process::file::{
    FileError, read_json, read_optional, remove_optional, write_atomic, write_json,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::bind;
use super::confined_writer::{Inside, WriteInsideError};
use super::contents::{Contents, SlotFile, text};
use super::paths::Places;
use super::render::File;
use super::trash::Trash;
use crate::model::Record;

/// Directories of a slot that outlive its root: name below `state`, and path in the slot. The last two are
/// for a control plane, and hide the image's files there.
const KEPT: [(&str, &str); 5] = [
    ("kubelet", "/var/lib/kubelet"),
    ("containerd", "/var/lib/containerd"),
    ("log", "/var/log"),
    ("etcd", "/var/lib/etcd"),
    ("kubernetes", "/etc/kubernetes"),
];

/// Returns the kept directories of a node of this role.
pub fn kept(role: NodeRole) -> &'static [(&'static str, &'static str)] {
    match role {
        NodeRole::Worker => &KEPT[..3],
        NodeRole::ControlPlane => &KEPT,
    }
}

/// Error of reading or writing a slot's files.
#[derive(Debug, thiserror::Error)]
pub enum KeepSlotError {
    /// The file system refused.
    #[error(transparent)]
    File(FileError),
    /// A file of the agent is damaged.
    #[error(
        "{} is damaged; remove the file to refill the slot, unless the slot contains a control plane \
         (docs/concepts/node.md, \"The first control plane\")",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file could not be put into the root.
    #[error("failed to fill the root of the slot")]
    Inside(#[from] WriteInsideError),
}

impl From<FileError> for KeepSlotError {
    fn from(error: FileError) -> Self {
        match error.is_damaged() {
            true => Self::Damaged { path: error.path, source: error.source },
            false => Self::File(error),
        }
    }
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeepSlotError + use<> {
    let failed = FileError::at(action, path);
    move |source| failed(source).into()
}

/// Data about both slots, `node.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// Versions that failed on this host and are not retried automatically.
    pub refused: Vec<VersionRef>,
    /// Number of consecutive failed trials without a former slot.
    pub failures: u32,
    /// Reason of the last failure, with the end of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Earliest time of the next trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Last update that was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

/// The slots of a host.
#[derive(Debug, Clone)]
pub struct Slots {
    places: Places,
    trash: Arc<Trash>,
}

impl Slots {
    /// Creates the slots at `places`.
    pub fn new(places: Places) -> Self {
        Self { places, trash: Arc::default() }
    }

    /// Returns the state of the removal of former contents.
    pub fn trash(&self) -> &Trash {
        &self.trash
    }

    /// Returns the paths of the slots.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Reads a slot's record; none: the slot is empty.
    ///
    /// # Errors
    /// It exists and cannot be read.
    pub fn record(&self, slot: SlotName) -> Result<Option<Record>, KeepSlotError> {
        Ok(read_json(&self.places.record(slot))?)
    }

    /// Writes a slot's record.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_record(&self, slot: SlotName, record: &Record) -> Result<(), KeepSlotError> {
        make_directory(&self.places.slot(slot), 0o700)?;
        Ok(write_json(&self.places.record(slot), record, 0o600)?)
    }

    /// Reads the ledger.
    ///
    /// # Errors
    /// It exists and cannot be read.
    pub fn ledger(&self) -> Result<Ledger, KeepSlotError> {
        Ok(read_json(&self.places.state.join("node.json"))?.unwrap_or_default())
    }

    /// Writes the ledger.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_ledger(&self, ledger: &Ledger) -> Result<(), KeepSlotError> {
        make_directory(&self.places.state, 0o755)?;
        Ok(write_json(&self.places.state.join("node.json"), ledger, 0o600)?)
    }

    /// Makes the directories of an empty slot over these layers, the lowest first.
    ///
    /// # Errors
    /// One cannot be made.
    pub(crate) fn lay(&self, slot: SlotName, layers: &[PathBuf]) -> Result<(), KeepSlotError> {
        for path in [
            self.places.upper(slot),
            self.places.work(slot),
            self.places.slot(slot).join("l"),
            self.places.root(slot),
        ] {
            make_directory(&path, 0o755)?;
        }
        for (name, _) in KEPT {
            // etcd requires that other users cannot access its data.
            let mode = if name == "etcd" { 0o700 } else { 0o755 };
            make_directory(&self.places.kept(slot, name), mode)?;
        }
        for (number, layer) in layers.iter().enumerate() {
            let link = self.places.layer(slot, number);
            remove_optional(&link)?;
            symlink(layer, &link).map_err(failed("make", &link))?;
        }
        self.make_shared(slot)
    }

    /// Makes the in-memory directory that agent and node share. It ends with the boot.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn make_shared(&self, slot: SlotName) -> Result<(), KeepSlotError> {
        make_directory(&self.places.shared(slot), 0o700)
    }

    /// Writes into a slot's mounted root, and into the directories that are bound over it for a node of this
    /// role.
    ///
    /// # Errors
    /// Something cannot be written.
    pub fn fill(&self, slot: SlotName, contents: &Contents, role: NodeRole) -> Result<(), KeepSlotError> {
        let inside = Inside::open(&self.places.root(slot))?;
        for file in &contents.files {
            match bind::kept(&file.path, role) {
                Some((name, path)) => {
                    let kept = Inside::open(&self.places.kept(slot, name))?;
                    kept.write_as(&SlotFile { path, ..file.clone() }, &inside)?;
                }
                None => inside.write(file)?,
            }
        }
        for link in &contents.links {
            inside.link(link)?;
        }
        Ok(())
    }

    /// Syncs the files of a slot to disk.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync(&self, slot: SlotName) -> Result<(), KeepSlotError> {
        let path = self.places.slot(slot);
        let directory = fs::File::open(&path).map_err(failed("open", &path))?;
        rustix::fs::syncfs(&directory).map_err(|errno| failed("write", &path)(errno.into()))
    }

    /// Writes the host's files for a slot. Returns true if one of them is new or has changed, so that systemd
    /// must read them again.
    ///
    /// # Errors
    /// One cannot be written.
    pub(crate) fn write_host(&self, files: &[File]) -> Result<bool, KeepSlotError> {
        let mut changed = false;
        for file in files {
            let before = read_optional(&file.path)?;
            if before.is_some_and(|before| before == file.content.as_bytes()) {
                continue;
            }
            if let Some(directory) = file.path.parent() {
                make_directory(directory, 0o755)?;
            }
            write_atomic(&file.path, file.content.as_bytes(), file.mode)?;
            changed = true;
        }
        Ok(changed)
    }

    /// Writes the node's in-memory files, readable by root only.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn share(&self, slot: SlotName, name: &str, content: &[u8]) -> Result<(), KeepSlotError> {
        self.make_shared(slot)?;
        // The slot may write there. Its entries are replaced or refused, and its links never followed.
        let content = Zeroizing::new(content.to_vec());
        let file = SlotFile { content, ..text(&format!("/{name}"), 0o600, "") };
        Ok(Inside::open(&self.places.shared(slot))?.write(&file)?)
    }

    /// Removes a directory of the node's in-memory files. No link of the slot is followed.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn unshare(&self, slot: SlotName, name: &str) -> Result<(), KeepSlotError> {
        let path = self.places.shared(slot).join(name);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Returns the last lines of a file below one of the slot's kept directories, such as the log of kubeadm.
    /// A partial first line is omitted, because the end of a secret does not look like a secret.
    pub fn tail(&self, slot: SlotName, kept: &str, name: &str, most: u64) -> Option<String> {
        use std::io::{Read, Seek, SeekFrom};
        let inside = Inside::open(&self.places.kept(slot, kept)).ok()?;
        let mut file = inside.open_file(name).ok()??;
        let size = file.metadata().ok()?.len();
        // With the byte before, which ends a line if the rest starts with a whole one.
        let start = size.saturating_sub(most.saturating_add(1));
        file.seek(SeekFrom::Start(start)).ok()?;
        let mut bytes = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut bytes).ok()?;
        let first = if start == 0 { 0 } else { bytes.iter().position(|byte| *byte == b'\n')? + 1 };
        Some(String::from_utf8_lossy(&bytes[first..]).into_owned())
    }
}

/// Makes a directory, and those above it, with exactly this mode: the agent's own umask would close a slot's root to all of its users
/// but root. One that is there stays as it is.
pub(crate) fn make_directory(path: &Path, mode: u32) -> Result<(), KeepSlotError> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("make", path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().ok_or_else(|| failed("make", path)(error))?;
            make_directory(above, mode)?;
            make_directory(path, mode)
        }
        Err(error) => Err(failed("make", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::model::Stage;
    use crate::slot::sample::{record, slots};

    #[test]
    fn records_and_ledger_are_read_as_they_were_written() {
        let (_directory, slots) = slots();
        assert_eq!(slots.record(SlotName::A).unwrap(), None);
        let since = Timestamp::UNIX_EPOCH;
        for stage in [
            Stage::Preparing,
            Stage::Prepared,
            Stage::Trial { boot_id: "b".to_owned(), since, boots: 2 },
            Stage::Applied { node_uid: "n".to_owned(), since },
            Stage::Retired,
            Stage::Failed { reason: "why".to_owned() },
        ] {
            slots.write_record(SlotName::A, &record(stage.clone())).unwrap();
            assert_eq!(slots.record(SlotName::A).unwrap(), Some(record(stage)));
        }
        assert_eq!(slots.ledger().unwrap(), Ledger::default());
        let ledger = Ledger { failures: 2, not_before: Some(since), ..Ledger::default() };
        slots.write_ledger(&ledger).unwrap();
        assert_eq!(slots.ledger().unwrap(), ledger);
    }

    #[test]
    fn a_damaged_record_says_which_file_and_what_to_do() {
        let (_directory, slots) = slots();
        slots.write_record(SlotName::B, &record(Stage::Prepared)).unwrap();
        fs::write(slots.places().record(SlotName::B), "{").unwrap();
        let error = slots.record(SlotName::B).unwrap_err().to_string();
        assert!(error.contains("slots/b/record.json is damaged; remove the file"), "{error}");
    }

    #[test]
    fn a_slot_is_laid_over_its_layers_and_cleared_without_touching_them() {
        let (directory, slots) = slots();
        let layer = directory.path().join("layers/one");
        fs::create_dir_all(&layer).unwrap();
        fs::write(layer.join("file"), "x").unwrap();
        slots.write_record(SlotName::A, &record(Stage::Preparing)).unwrap();
        slots.lay(SlotName::A, std::slice::from_ref(&layer)).unwrap();
        slots.lay(SlotName::A, std::slice::from_ref(&layer)).unwrap();
        assert_eq!(fs::read(slots.places().layer(SlotName::A, 0).join("file")).unwrap(), b"x");
        slots.share(SlotName::A, "kubeconfig", b"secret").unwrap();
        slots.clear(SlotName::A).unwrap();
        slots.clear(SlotName::A).unwrap();
        assert!(layer.join("file").exists());
        assert_eq!(slots.record(SlotName::A).unwrap(), None);
        assert!(!slots.places().upper(SlotName::A).exists());
        assert!(!slots.places().shared(SlotName::A).exists());
    }

    #[test]
    fn shared_file_is_written_through_no_link_of_the_slot() {
        let (directory, slots) = slots();
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        slots.make_shared(SlotName::A).unwrap();
        let shared = slots.places().shared(SlotName::A);
        symlink(&outside, shared.join("patches")).unwrap();
        symlink(outside.join("file"), shared.join("kubeconfig")).unwrap();
        assert!(slots.share(SlotName::A, "patches/a.yaml", b"x").is_err());
        slots.share(SlotName::A, "kubeconfig", b"secret").unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        let metadata = fs::symlink_metadata(shared.join("kubeconfig")).unwrap();
        assert_eq!((metadata.is_file(), metadata.mode() & 0o7777), (true, 0o600));
        fs::remove_file(shared.join("patches")).unwrap();
        slots.share(SlotName::A, "patches/a.yaml", b"x").unwrap();
        assert_eq!(fs::read(shared.join("patches/a.yaml")).unwrap(), b"x");
    }

    #[test]
    fn a_file_below_what_is_bound_over_the_root_is_put_where_the_node_sees_it() {
        let (_directory, slots) = slots();
        slots.lay(SlotName::A, &[]).unwrap();
        let etc = slots.places().root(SlotName::A).join("etc");
        fs::create_dir(&etc).unwrap();
        fs::write(etc.join("passwd"), "kube:x:64:65::/:/bin/false\n").unwrap();
        fs::write(etc.join("group"), "kube:x:65:\n").unwrap();
        let mut file = text("/var/lib/kubelet/config.json", 0o600, "{}");
        file.owner = "kube:kube".to_owned();
        let files = vec![file, text("/var/log/own/x", 0o644, "x"), text("/etc/y", 0o644, "y")];
        slots.fill(SlotName::A, &Contents { files, links: Vec::new() }, NodeRole::Worker).unwrap();
        let config = slots.places().kept(SlotName::A, "kubelet").join("config.json");
        let metadata = fs::metadata(&config).unwrap();
        assert_eq!((fs::read(&config).unwrap(), metadata.mode() & 0o7777), (b"{}".to_vec(), 0o600));
        assert_eq!((metadata.uid(), metadata.gid()), (64, 65), "names are those of the slot's root");
        assert!(slots.places().kept(SlotName::A, "log").join("own/x").exists());
        assert!(etc.join("y").exists());
        assert!(!slots.places().root(SlotName::A).join("var").exists());
    }

    #[test]
    fn host_files_are_written_only_when_they_change() {
        let (directory, slots) = slots();
        let file = File { path: directory.path().join("run/x/a.conf"), mode: 0o644, content: "a".to_owned() };
        assert!(slots.write_host(std::slice::from_ref(&file)).unwrap());
        assert!(!slots.write_host(std::slice::from_ref(&file)).unwrap());
        assert!(slots.write_host(&[File { content: "b".to_owned(), ..file }]).unwrap());
    }

    #[test]
    fn a_tail_is_the_end_of_a_log_and_follows_no_link_out() {
        let (directory, slots) = slots();
        slots.lay(SlotName::A, &[]).unwrap();
        let log = slots.places().kept(SlotName::A, "log");
        fs::write(log.join("kubeadm.log"), "one\ntwo\nthree").unwrap();
        // The end of a secret does not look like one, so only whole lines count.
        for (most, expected) in [(5, Some("three")), (7, Some("three")), (9, Some("two\nthree")), (3, None)] {
            let tail = slots.tail(SlotName::A, "log", "/kubeadm.log", most);
            assert_eq!(tail.as_deref(), expected, "{most}");
        }
        fs::write(directory.path().join("secret"), "hidden").unwrap();
        symlink(directory.path().join("secret"), log.join("link")).unwrap();
        assert_eq!(slots.tail(SlotName::A, "log", "/link", 5), None);
    }
}
