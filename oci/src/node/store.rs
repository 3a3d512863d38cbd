//! The store: layers by diff id, images by digest, one process at a time.
//!
//! ```text
//! layers/.lock                 held by the process that may write
//! layers/<hex of diff id>/     whole, never changed; root's alone, since it has setuid programs that are not the host's
//! layers/<hex>.json            what is known of it
//! layers/.new-*, .old-*        not whole any more or yet; removed at the next start
//! images/<hex of digest>.json  which layers; one more under an index' digest, where that was asked for
//! ```
//!
//! Not here: how an image comes in (`ensure`) and goes (`collect`). Callers: the agent, once per process.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bedplate_api::id::Digest;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::place;
use super::source::Limits;
use super::stage::{self, NEW, OLD, remove_tree};
use crate::partial::write_atomic;
use crate::pin::Pins;

/// Largest record of an image, in bytes.
const LARGEST_RECORD: u64 = 2 << 20;

/// Complete node image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeImage {
    /// Digest of its manifest.
    pub digest: Digest,
    /// OCI architecture, such as `amd64`.
    pub architecture: String,
    /// Lower directories for overlayfs, the lowest first; a mount names them the other way round.
    pub layers: Vec<PathBuf>,
    /// Labels of its configuration.
    pub labels: BTreeMap<String, String>,
}

/// Record of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageRecord {
    /// Reference of the request; for users.
    pub(crate) reference: String,
    pub(crate) digest: Digest,
    pub(crate) architecture: String,
    /// Diff ids, lowest first.
    pub(crate) layers: Vec<Digest>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
}

/// A store of node images in one directory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LayerStore {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    layers: PathBuf,
    images: PathBuf,
    pub(crate) limits: Limits,
    /// Lock per layer: each layer has one writer.
    writers: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
    pub(crate) transfers: Arc<Semaphore>,
    /// Digests that a running `ensure` needs.
    pub(crate) pins: Pins,
    /// The lock file, while this process has it.
    owned: Mutex<Option<File>>,
    /// Images are put together and removed one at a time.
    records: Mutex<()>,
}

impl LayerStore {
    /// Opens the store in `directory`, creates it if it is missing, and removes data that a killed process
    /// left. While another process has it, images can only be looked up.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn open(directory: impl AsRef<Path>, limits: Limits) -> io::Result<Self> {
        let root = std::path::absolute(directory)?;
        let (layers, images) = (root.join("layers"), root.join("images"));
        for part in [&layers, &images] {
            DirBuilder::new().recursive(true).mode(0o700).create(part)?;
            // Set even if another program made the directory; no group is inherited.
            fs::set_permissions(part, Permissions::from_mode(0o700))?;
        }
        let transfers = Arc::new(Semaphore::new(limits.parallel_layers.max(1)));
        let (writers, pins, owned, records) = Default::default();
        let inner = Inner { layers, images, limits, writers, transfers, pins, owned, records };
        let store = Self { inner: Arc::new(inner) };
        store.own()?;
        Ok(store)
    }

    /// Returns the image with this digest if it is complete. The digest is that of its manifest, or of the
    /// requested index. Reads one small file and makes no request.
    pub fn image(&self, digest: &Digest) -> Option<NodeImage> {
        let record = self.record(&self.record_path(digest))?;
        let layers = self.layers();
        if !record.layers.iter().all(|layer| stage::is_whole(layers, layer)) {
            return None;
        }
        let ImageRecord { digest, architecture, labels, layers: ids, .. } = record;
        let layers = ids.iter().map(|layer| stage::layer_path(layers, layer)).collect();
        Some(NodeImage { digest, architecture, layers, labels })
    }

    /// Returns the free bytes on the file system of the layers.
    ///
    /// # Errors
    /// The file system does not report it.
    pub fn room(&self) -> io::Result<u64> {
        Ok(place::room(std::fs::File::open(self.layers())?)?)
    }

    /// Returns true if this process may write. Takes the lock if it is free,
    /// and then removes incomplete layers.
    pub(crate) fn own(&self) -> io::Result<bool> {
        let mut owned = self.inner.owned.lock().unwrap_or_else(PoisonError::into_inner);
        if owned.is_some() {
            return Ok(true);
        }
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).open(self.layers().join(".lock"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        self.clean()?;
        *owned = Some(file);
        Ok(true)
    }

    /// Removes data that a killed process left.
    fn clean(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.layers())?.chain(fs::read_dir(&self.inner.images)?) {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let removed = if name.starts_with(NEW) || name.starts_with(OLD) {
                remove_tree(&entry.path())
            } else if name.ends_with(".new") {
                fs::remove_file(entry.path())
            } else {
                continue;
            };
            match removed {
                Ok(()) => tracing::info!(path = %entry.path().display(), "incomplete data removed"),
                Err(error) => {
                    tracing::warn!(path = %entry.path().display(), %error, "failed to remove incomplete \
                         data");
                }
            }
        }
        Ok(())
    }

    pub(crate) fn layers(&self) -> &Path {
        &self.inner.layers
    }

    pub(crate) fn images(&self) -> &Path {
        &self.inner.images
    }

    fn record_path(&self, digest: &Digest) -> PathBuf {
        self.inner.images.join(format!("{}.json", digest.hex()))
    }

    pub(crate) fn record(&self, path: &Path) -> Option<ImageRecord> {
        if fs::metadata(path).ok()?.len() > LARGEST_RECORD {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(crate) fn remember(&self, digest: &Digest, record: &ImageRecord) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
        write_atomic(&self.record_path(digest), &bytes)
    }

    /// Held while an image is put together or removed.
    pub(crate) fn records(&self) -> MutexGuard<'_, ()> {
        self.inner.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn writer(&self, diff_id: Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut writers = self.inner.writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.retain(|_, writer| writer.strong_count() > 0);
        if let Some(writer) = writers.get(&diff_id).and_then(Weak::upgrade) {
            return writer;
        }
        let writer = Arc::default();
        writers.insert(diff_id, Arc::downgrade(&writer));
        writer
    }

    /// Marks an image and its layers as used, for the order of `collect`.
    pub(crate) fn touch(&self, digest: &Digest) {
        let now = std::time::SystemTime::now();
        let path = self.record_path(digest);
        let Some(record) = self.record(&path) else { return };
        let touched = File::open(&path).and_then(|file| file.set_modified(now)).and_then(|()| {
            record.layers.iter().try_for_each(|layer| stage::touch(self.layers(), layer, now))
        });
        if let Err(error) = touched {
            tracing::debug!(%digest, %error, "failed to mark an image as used");
        }
    }
}
