//! Counters of images: results of fetches, size of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_oci::Store;
use bedplate_process::counter::{By, labels};

labels! {
    /// Result of a fetch.
    pub enum Fetch {
        /// The image was not here, or is another than before.
        Fetched => "fetched",
        /// The source has the same image.
        Unchanged => "unchanged",
        /// The fetch failed and is repeated.
        Failed => "failed",
    }
}

/// Counters of images.
#[derive(Debug, Default)]
pub struct Counters {
    /// Fetches that have ended.
    pub fetches: By<Fetch>,
    /// Bytes of the blobs in the cache.
    pub cached_bytes: AtomicU64,
}

impl Counters {
    /// Looks how large the cache is. Blocking.
    pub(super) fn measure(&self, store: &Store) {
        match store.bytes() {
            Ok(bytes) => self.cached_bytes.store(bytes, Ordering::Relaxed),
            Err(error) => tracing::debug!(%error, "failed to measure the image cache"),
        }
    }
}
