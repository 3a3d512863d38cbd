//! Result of resolving a source, stored on disk: `resolutions/<hash of the source>.json`. With it, a
//! restarted pxed can boot machines while the registry or layout is unavailable.
//!
//! Callers: the store; `collect` drops records whose image is no longer kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bedplate_api::id::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::partial::write_atomic;
use crate::source::Source;

/// Maximum size of a record in bytes.
const LARGEST_RECORD: u64 = 64 << 10;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// The source as users write it, for information only.
    pub(crate) source: String,
    /// The manifest.
    pub(crate) image: Digest,
    /// State of the files of a `Files` source, so that unchanged ones are not hashed again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<FileState>,
}

/// Properties that distinguish two states of a file without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileState {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

/// Returns the path of a source's record. The name is a hash, so no text of the source reaches a path.
pub(crate) fn path(directory: &Path, source: &Source) -> PathBuf {
    // insecure_http and allow_tag belong to the transfer, not to the identity of the source.
    let key = match source {
        Source::Layout { path, tag, digest } => {
            format!("layout\n{}\n{tag:?}\n{digest:?}", path.display())
        }
        Source::Registry { reference, .. } => format!("registry\n{reference}"),
        Source::Files { kernel, initrd, rootfs } => {
            format!("files\n{}\n{}\n{rootfs:?}", kernel.display(), initrd.display())
        }
    };
    let hash = Digest::from_sha256(Sha256::digest(key).into());
    directory.join(format!("{}.json", hash.hex()))
}

pub(crate) fn read(path: &Path) -> Option<Record> {
    if fs::metadata(path).ok()?.len() > LARGEST_RECORD {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

pub(crate) fn write(path: &Path, record: &Record) -> io::Result<()> {
    write_atomic(path, &serde_json::to_vec_pretty(record).map_err(io::Error::other)?)
}
