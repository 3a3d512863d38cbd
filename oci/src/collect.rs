//! Garbage collection of unreferenced blobs.
//!
//! These blobs are kept:
//! - each digest that the caller names; if it is an image's manifest, or an index that leads to one, also all
//!   existing blobs of the image;
//! - blobs that a running `ensure` of this process needs;
//! - blobs used within the grace time, because another process may be about to reference them;
//! - partial files that are being written, and those of a registry's blobs, which are resumed, for a week. A
//!   copy of a file always starts again, so its partial file is removed at the next start.
//!
//! Callers: pxed, periodically, with the digests of its configured and booting images.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bedplate_api::id::Digest;

use crate::partial::Partial;
use crate::resolution;
use crate::store::Store;

/// Time for which an interrupted transfer may be resumed.
const PARTIAL_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Result of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Blobs removed.
    pub blobs: usize,
    /// Bytes that they had.
    pub bytes: u64,
    /// Blobs kept.
    pub kept: usize,
}

impl Store {
    /// Removes blobs that are not in `keep`, not part of an image in `keep`, and not in use.
    ///
    /// # Errors
    /// When the store cannot be read; a blob that cannot be removed is logged and stays.
    pub fn collect(&self, keep: &HashSet<Digest>) -> io::Result<Collected> {
        let now = SystemTime::now();
        let mut wanted = keep.clone();
        for digest in keep {
            wanted.extend(self.references(digest));
        }
        let mut collected = Collected::default();
        for entry in fs::read_dir(self.root().join("blobs/sha256"))? {
            let entry = entry?;
            // Files without a digest as their name are not ours.
            let digest = entry.file_name().to_str().and_then(blob_named);
            let Some(digest) = digest else { continue };
            if wanted.contains(&digest)
                || self.pins().contains(&digest)
                || younger(&entry.path(), now, self.options().grace)
            {
                collected.kept += 1;
                continue;
            }
            let size = entry.metadata().map(|m| m.len()).unwrap_or_default();
            match fs::remove_file(entry.path()) {
                Ok(()) => {
                    collected.blobs += 1;
                    collected.bytes += size;
                }
                Err(error) => tracing::warn!(%digest, %error, "failed to remove a blob"),
            }
        }
        self.collect_partials(now)?;
        self.collect_records(now)?;
        Ok(collected)
    }

    /// Returns the total size of all blobs. Blocking: reads the size of each.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut sum = 0_u64;
        for entry in fs::read_dir(self.root().join("blobs/sha256"))? {
            // One that was removed meanwhile has none.
            sum = sum.saturating_add(entry?.metadata().map(|m| m.len()).unwrap_or_default());
        }
        Ok(sum)
    }

    /// Removes partial files that are neither written nor resumable.
    pub(crate) fn collect_partials(&self, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(self.root().join("partial"))? {
            let entry = entry?;
            let path = entry.path();
            let resumed = entry.file_name().to_str().is_some_and(|name| blob_named(name).is_some());
            if resumed && younger(&path, now, PARTIAL_GRACE) {
                continue;
            }
            match Partial::remove_unused(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "failed to remove a partial file");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes records without an image.
    fn collect_records(&self, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(self.root().join("resolutions"))? {
            let path = entry?.path();
            // Files that a crash left of a write have another ending.
            let torn = path.extension().is_some_and(|e| e == "new") && !younger(&path, now, PARTIAL_GRACE);
            let gone = resolution::read(&path).is_some_and(|record| !self.path(&record.image).exists());
            if (torn || gone)
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::warn!(path = %path.display(), %error, "failed to remove a record");
            }
        }
        Ok(())
    }
}

/// Returns the digest of the blob whose file has this name.
fn blob_named(name: &str) -> Option<Digest> {
    format!("sha256:{name}").parse().ok()
}

/// Returns true if a file was used within `grace`. An unknown time counts as used.
fn younger(path: &Path, now: SystemTime, grace: Duration) -> bool {
    let modified = fs::metadata(path).and_then(|m| m.modified());
    modified.map_or(true, |modified| now.duration_since(modified).map_or(true, |age| age < grace))
}
