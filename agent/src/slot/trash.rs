//! Former contents of slots: renamed immediately, removed later, so that filling a slot never waits for files that Pods have made.
//!
//! ```text
//!   slots/a ──rename, fsync──► trash/a/<n> ──► removed by `node::trash`, also after a kill
//! ```
//! A slot exists with its record, or it is in the trash with all of its files: no kill leaves keys in a slot without a record. Blocking
//! calls only.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_api::machine::SlotName;
use bedplate_process::file::sync_directory;
use rustix::io::Errno;
use tokio::sync::{Notify, watch};

use super::remove::{RemoveTreeError, empty_directory};
use super::store::{KeepSlotError, Slots, failed, make_directory};
use crate::model::{Record, Stage};

/// State of the removal, shared by all users of the slots of one host.
#[derive(Debug, Default)]
pub struct Trash {
    /// Signal that contents were added.
    more: Notify,
    /// Number of trees that were put in since the start of the agent.
    put: AtomicU64,
    removal: watch::Sender<Removal>,
}

/// Progress of the removal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removal {
    /// Number of trees that had been put in when the last round began.
    pub covers: u64,
    /// Reason that the last round did not remove everything, with path and remedy.
    pub stuck: Option<String>,
}

impl Trash {
    /// Waits until contents are added. Returns immediately if that happened since the last call.
    pub async fn more(&self) {
        self.more.notified().await;
    }

    /// Returns the progress of the removal and its changes.
    pub fn removal(&self) -> watch::Receiver<Removal> {
        self.removal.subscribe()
    }

    /// Returns the number of trees that were put in until now.
    pub fn put(&self) -> u64 {
        self.put.load(Ordering::Relaxed)
    }

    /// Records the end of a round that began when `covers` trees had been put in.
    pub fn finished(&self, covers: u64, stuck: Option<String>) {
        self.removal.send_modify(|removal| {
            removal.covers = covers;
            removal.stuck = stuck;
        });
    }
}

impl Slots {
    /// Empties a slot that neither runs nor is mounted: the key of its kubelet, what agent and slot shared, then the slot with its record, each
    /// by one system call.
    ///
    /// # Errors
    /// A directory cannot be renamed, or the disk fails.
    pub fn clear(&self, slot: SlotName) -> Result<(), KeepSlotError> {
        let places = self.places();
        self.forget_kubelet_key(slot)?;
        self.discard(&places.shared(slot), &places.shared_trash(slot))?;
        self.discard(&places.slot(slot), &places.trash(slot))
    }

    /// Keeps the logs of a slot whose trial failed, in place of those of an earlier one. The slot is filled even if a log cannot be kept.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn keep_failed_log(&self, slot: SlotName) -> Result<(), KeepSlotError> {
        if !matches!(self.record(slot)?, Some(Record { stage: Stage::Failed { .. }, .. })) {
            return Ok(());
        }
        let (log, kept) = (self.places().kept(slot, "log"), self.places().failed_log(slot));
        if !log.exists() {
            return Ok(());
        }
        let moved = self
            .discard(&kept, &self.places().trash(slot))
            .and_then(|()| fs::rename(&log, &kept).map_err(failed("move", &log)));
        if let Err(error) = moved {
            let error = bedplate_process::exit::chain(&error);
            tracing::warn!(slot = ?slot, error, "failed to keep the log of a failed trial");
        }
        Ok(())
    }

    /// Discards the logs of failed trials: they take space that a slot needs, or their Machine is deleted.
    ///
    /// # Errors
    /// A directory cannot be renamed, or the disk fails.
    pub(crate) fn discard_failed_logs(&self) -> Result<(), KeepSlotError> {
        let places = self.places();
        SlotName::ALL
            .into_iter()
            .try_for_each(|slot| self.discard(&places.failed_log(slot), &places.trash(slot)))
    }

    /// Returns true if former contents of a slot are not removed yet.
    ///
    /// # Errors
    /// The trash cannot be read.
    pub(crate) fn has_trash(&self, slot: SlotName) -> Result<bool, KeepSlotError> {
        for directory in [self.places().trash(slot), self.places().shared_trash(slot)] {
            let mut entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("read", &directory)(error)),
            };
            if entries.next().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes former contents of all slots; ends early if `stop` returns true. May be repeated, and killed anywhere.
    ///
    /// # Errors
    /// Something cannot be removed; the rest is.
    pub(crate) fn empty_trash(&self, stop: &dyn Fn() -> bool) -> Result<(), RemoveTreeError> {
        let places = self.places();
        let directories = SlotName::ALL.map(|slot| [places.shared_trash(slot), places.trash(slot)]);
        let emptied: Vec<_> = directories.iter().flatten().map(|path| empty_directory(path, stop)).collect();
        emptied.into_iter().collect()
    }

    /// Renames a directory into `trash`. An absent directory is not an error.
    fn discard(&self, directory: &Path, trash: &Path) -> Result<(), KeepSlotError> {
        if fs::symlink_metadata(directory).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        make_directory(trash, 0o700)?;
        for number in 0_u64.. {
            match rustix::fs::rename(directory, trash.join(number.to_string())) {
                Err(Errno::EXIST | Errno::NOTEMPTY) => {}
                renamed => {
                    renamed.map_err(|errno| failed("move", directory)(errno.into()))?;
                    break;
                }
            }
        }
        // The trash may be new: its own names count too.
        for changed in trash.ancestors().take(3).chain(directory.parent()) {
            sync_directory(changed)?;
        }
        self.trash().put.fetch_add(1, Ordering::Relaxed);
        self.trash().more.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::IFlags;

    use super::*;
    use crate::slot::sample::{record, slots};

    fn filled(slots: &Slots) {
        slots.lay(SlotName::A, &[]).unwrap();
        let pki = slots.places().kept(SlotName::A, "kubelet").join("pki");
        fs::create_dir_all(&pki).unwrap();
        fs::write(pki.join("kubelet-client-current.pem"), "KEY").unwrap();
        slots.share(SlotName::A, "kubeconfig", b"KEY").unwrap();
    }

    #[test]
    fn cleared_slot_is_gone_by_one_rename_and_filled_while_the_old_is_there() {
        let (_directory, slots) = slots();
        for _ in 0..3 {
            filled(&slots);
            slots.clear(SlotName::A).unwrap();
            assert!(
                !slots.places().slot(SlotName::A).exists() && !slots.places().shared(SlotName::A).exists()
            );
            assert!(slots.has_trash(SlotName::A).unwrap());
        }
        assert!(!slots.has_trash(SlotName::B).unwrap());
        assert_eq!(fs::read_dir(slots.places().trash(SlotName::A)).unwrap().count(), 3);
        filled(&slots);
        slots.empty_trash(&|| false).unwrap();
        assert!(!slots.has_trash(SlotName::A).unwrap());
        assert!(slots.places().kept(SlotName::A, "kubelet").join("pki/kubelet-client-current.pem").exists());
    }

    #[test]
    fn trust_5_key_of_a_kubelet_goes_with_its_cleared_slot() {
        let (_directory, slots) = slots();
        let machine = "node-1".parse().unwrap();
        for slot in SlotName::ALL {
            slots.kubelet_request(slot, &machine, "CERT").unwrap();
        }
        slots.clear(SlotName::A).unwrap();
        assert!(!slots.places().kubelet_key(SlotName::A).exists());
        assert!(slots.places().kubelet_key(SlotName::B).exists());
    }

    #[test]
    fn flags_that_a_pod_has_set_do_not_keep_a_slot_from_being_emptied() {
        let (_directory, slots) = slots();
        filled(&slots);
        let failed = record(Stage::Failed { reason: "why".to_owned() });
        slots.write_record(SlotName::A, &failed).unwrap();
        for name in ["log", "kubelet"] {
            let kept = fs::File::open(slots.places().kept(SlotName::A, name)).unwrap();
            rustix::fs::ioctl_getflags(&kept)
                .and_then(|flags| rustix::fs::ioctl_setflags(&kept, flags | IFlags::IMMUTABLE))
                .expect("root, and a file system with flags");
        }
        slots.keep_failed_log(SlotName::A).unwrap();
        slots.clear(SlotName::A).unwrap();
        assert_eq!(slots.record(SlotName::A).unwrap(), None);
        slots.empty_trash(&|| false).unwrap();
        assert!(!slots.has_trash(SlotName::A).unwrap());
    }

    #[tokio::test]
    async fn added_contents_and_finished_rounds_are_signaled() {
        let (_directory, slots) = slots();
        filled(&slots);
        slots.clear(SlotName::A).unwrap();
        slots.trash().more().await;
        let mut removal = slots.trash().removal();
        let put = slots.trash().put();
        slots.trash().finished(put, Some("mounted".to_owned()));
        removal.changed().await.unwrap();
        // Two mounts: the files shared by agent and slot, and the slot.
        let expected = Removal { covers: 2, stuck: Some("mounted".to_owned()) };
        assert_eq!(*removal.borrow(), expected);
    }
}
