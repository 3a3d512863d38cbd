//! Space for one more blob: a part of the file system stays free for its other uses (pxed's seeds, leases and certificates), and the store
//! does not grow beyond its limit.
//!
//! Caller: the store, before each blob.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::source::Options;

/// Sizes of the file system and the store, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    /// Size of the file system.
    size: u64,
    /// Free bytes of the file system.
    free: u64,
    /// Bytes of the store.
    used: u64,
    /// Bytes that other transfers will write.
    promised: u64,
}

/// Bytes that a transfer will write, until it is dropped.
#[derive(Debug)]
pub(crate) struct Promise {
    promised: Arc<AtomicU64>,
    bytes: u64,
}

impl Promise {
    /// Adds these bytes to the promises, and returns the sum of the promises before.
    pub(crate) fn new(promised: &Arc<AtomicU64>, bytes: u64) -> (Self, u64) {
        let before = promised.fetch_add(bytes, Ordering::Relaxed);
        (Self { promised: promised.clone(), bytes }, before)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.promised.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Space {
    /// Measures the store in this directory. Blocking.
    pub(crate) fn read(root: &Path, promised: u64) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(root)?;
        let mut used = 0_u64;
        for part in ["blobs/sha256", "partial"] {
            for entry in fs::read_dir(root.join(part))? {
                // A file that was removed meanwhile has no bytes.
                used = used.saturating_add(entry?.metadata().map_or(0, |metadata| metadata.len()));
            }
        }
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        // A tmpfs without a limit reports no blocks.
        let free = if stat.f_blocks == 0 { u64::MAX } else { bytes(stat.f_bavail) };
        Ok(Self { size: bytes(stat.f_blocks), free, used, promised })
    }

    /// Refuses a blob for which there is no space.
    ///
    /// # Errors
    /// The cause and the remedy, as text.
    pub(crate) fn check(&self, needed: u64, options: &Options) -> Result<(), String> {
        let needed_by_all = needed.saturating_add(self.promised);
        let percent = self.size / 100 * u64::from(options.keep_free_percent);
        let reserve = options.keep_free.max(percent);
        if self.free.saturating_sub(reserve) < needed_by_all {
            return Err(format!(
                "{} MiB are free and {} MiB must stay free; free space on its file system, or enlarge it",
                mebi(self.free),
                mebi(reserve)
            ));
        }
        if self.used.saturating_add(needed_by_all) > options.largest_store {
            return Err(format!(
                "the store has {} of at most {} MiB; remove images from the configuration or references from Machines, or raise limits.image-cache-mib",
                mebi(self.used),
                mebi(options.largest_store)
            ));
        }
        Ok(())
    }
}

/// Returns mebibytes, rounded up.
pub(crate) fn mebi(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_gibibyte_and_a_twentieth_stay_free() {
        let options = Options::default();
        for (size, free, promised, needed, allowed) in [
            (100 * GIB, 50 * GIB, 0, 45 * GIB, true),
            (100 * GIB, 50 * GIB, 0, 45 * GIB + (1 << 20), false),
            (100 * GIB, 50 * GIB, 40 * GIB, 5 * GIB, true),
            (100 * GIB, 50 * GIB, 40 * GIB, 5 * GIB + (1 << 20), false),
            (10 * GIB, 3 * GIB, 0, 2 * GIB, true),
            (10 * GIB, 3 * GIB, 0, 2 * GIB + 1, false),
            (10 * GIB, 0, 0, 1, false),
        ] {
            let space = Space { size, free, used: 0, promised };
            assert_eq!(space.check(needed, &options).is_ok(), allowed, "{space:?} {needed}");
        }
        let full = Space { size: 10 * GIB, free: GIB / 2, used: 0, promised: 0 };
        let problem = full.check(1, &options).unwrap_err();
        assert!(problem.starts_with("512 MiB are free and 1024 MiB must stay free; "), "{problem}");
    }

    #[test]
    fn the_store_does_not_grow_beyond_its_limit() {
        let options = Options { largest_store: 4 * GIB, ..Options::default() };
        let space = |used, promised| Space { size: 1000 * GIB, free: 1000 * GIB, used, promised };
        assert_eq!(space(3 * GIB, 0).check(GIB, &options), Ok(()));
        for (used, promised) in [(3 * GIB + 1, 0), (2 * GIB, GIB + 1), (5 * GIB, 0)] {
            let problem = space(used, promised).check(GIB, &options).unwrap_err();
            assert!(problem.contains("limits.image-cache-mib"), "{problem}");
        }
    }

    #[test]
    fn a_promise_ends_with_its_transfer() {
        let promised = Arc::default();
        let (first, before) = Promise::new(&promised, 5);
        let (_second, with_first) = Promise::new(&promised, 7);
        assert_eq!((before, with_first), (0, 5));
        drop(first);
        assert_eq!(promised.load(Ordering::Relaxed), 7);
    }
}
