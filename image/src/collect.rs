//! Garbage collection: removes what nothing references, and nothing else.
//!
//! Kept are: every digest that the caller names, and if it is an image's manifest everything that the image is made of;
//! what a running `ensure` of this process needs; what was used within the grace (another process may be about to name
//! it); partial files that somebody writes or that are younger than a week.
//!
//! Callers: pxed, now and then, with the digests of its configured and booting images.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bedplate_api::id::Digest;

use crate::partial::Partial;
use crate::resolution;
use crate::store::Store;

/// How long an interrupted transfer may wait for being resumed.
const PARTIAL_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a collection did.
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
            wanted.extend(self.load(digest).map(|(_, digests)| digests).unwrap_or_default());
        }
        let mut collected = Collected::default();
        for entry in fs::read_dir(self.root().join("blobs/sha256"))? {
            let entry = entry?;
            // What has no digest for a name is not ours.
            let digest = entry.file_name().to_str().and_then(|n| format!("sha256:{n}").parse().ok());
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
                Err(error) => tracing::warn!(%digest, %error, "cannot remove a blob"),
            }
        }
        self.collect_partials(now)?;
        self.collect_records()?;
        Ok(collected)
    }

    fn collect_partials(&self, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(self.root().join("partial"))? {
            let path = entry?.path();
            if younger(&path, now, PARTIAL_GRACE) {
                continue;
            }
            if let Ok(Some(partial)) = Partial::open(&path)
                && let Err(error) = partial.remove()
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove a partial file");
            }
        }
        Ok(())
    }

    /// Records whose image is gone.
    fn collect_records(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root().join("resolutions"))? {
            let path = entry?.path();
            let gone = resolution::read(&path).is_some_and(|record| !self.path(&record.image).exists());
            if gone && let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove a record");
            }
        }
        Ok(())
    }
}

/// Whether a file was used within `grace`; what cannot be told counts as used.
fn younger(path: &Path, now: SystemTime, grace: Duration) -> bool {
    let modified = fs::metadata(path).and_then(|m| m.modified());
    modified.map_or(true, |modified| now.duration_since(modified).map_or(true, |age| age < grace))
}
