//! Gives a layer its name once it is complete, correct and on disk:
//! `layers/.new-<hex>` --syncfs, record, rename--> `layers/<hex>`.
//!
//! Callers: `ensure`, `merge` for the directories that it adds.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bedplate_api::id::Digest;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::document::Layer;
use super::error::UnpackLayerError;
use super::stream::{self, Piece};
use super::tar::shown;
use super::unpack::{Bounds, Unpacked};
use crate::partial::{sync_parent, write_atomic};

/// Largest record of a layer: names of as many directories as `place` remembers.
const LARGEST_RECORD: u64 = 128 << 20;
/// Prefix of the names of incomplete layers.
pub(crate) const NEW: &str = ".new-";
/// Prefix of the names of layers that are being removed.
pub(crate) const OLD: &str = ".old-";

/// Record of a complete layer: `layers/<hex>.json` next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayerRecord {
    pub(crate) files: u64,
    /// Bytes of content.
    pub(crate) bytes: u64,
    /// Directories that no member named.
    pub(crate) implied: Vec<String>,
    /// True if it hides everything below it.
    pub(crate) opaque_root: bool,
}

/// Directory without a name. It is removed unless it gets one.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    target: PathBuf,
    named: bool,
}

/// Returns the path of a layer.
pub(crate) fn layer_path(layers: &Path, diff_id: &Digest) -> PathBuf {
    layers.join(diff_id.hex())
}

fn record_path(layers: &Path, diff_id: &Digest) -> PathBuf {
    layers.join(format!("{}.json", diff_id.hex()))
}

/// Reads the record of a complete layer; `None` if it is not complete.
pub(crate) fn whole(layers: &Path, diff_id: &Digest) -> Option<LayerRecord> {
    if !layer_path(layers, diff_id).is_dir() {
        return None;
    }
    let path = record_path(layers, diff_id);
    let size = fs::metadata(&path).ok()?.len();
    if size > LARGEST_RECORD {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Returns true if a layer is complete, without reading its record.
pub(crate) fn is_whole(layers: &Path, diff_id: &Digest) -> bool {
    layer_path(layers, diff_id).is_dir() && record_path(layers, diff_id).is_file()
}

impl Staging {
    pub(crate) fn new(layers: &Path, diff_id: &Digest) -> io::Result<Self> {
        let path = layers.join(format!("{NEW}{}", diff_id.hex()));
        remove_tree(&path)?;
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, target: layer_path(layers, diff_id), named: false })
    }

    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        Ok(File::open(&self.path)?.into())
    }

    /// Makes it durable and gives it its name.
    pub(crate) fn name(mut self, layers: &Path, diff_id: &Digest, record: &LayerRecord) -> io::Result<()> {
        // One call for the complete tree, because thousands of fsyncs would take minutes.
        rustix::fs::syncfs(File::open(&self.path)?)?;
        write_atomic(&record_path(layers, diff_id), &serde_json::to_vec(record).map_err(io::Error::other)?)?;
        // A directory without a record is incomplete.
        remove_tree(&self.target)?;
        fs::rename(&self.path, &self.target)?;
        self.named = true;
        sync_parent(&self.target)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.named
            && let Err(error) = remove_tree(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove the rest of a layer");
        }
    }
}

/// Removes a directory with its content, if it exists.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Removes a layer. The next start removes the rest after a crash.
pub(crate) fn remove_layer(layers: &Path, diff_id: &Digest) -> io::Result<PathBuf> {
    let old = layers.join(format!("{OLD}{}", diff_id.hex()));
    remove_tree(&old)?;
    fs::rename(layer_path(layers, diff_id), &old)?;
    fs::remove_file(record_path(layers, diff_id))?;
    Ok(old)
}

/// Returns the time of a layer's last use.
pub(crate) fn used(layers: &Path, diff_id: &Digest) -> std::time::SystemTime {
    let modified = fs::metadata(record_path(layers, diff_id)).and_then(|m| m.modified());
    modified.unwrap_or(std::time::UNIX_EPOCH)
}

/// Marks a layer as used.
pub(crate) fn touch(layers: &Path, diff_id: &Digest, now: std::time::SystemTime) -> io::Result<()> {
    File::open(record_path(layers, diff_id))?.set_modified(now)
}

/// Receives a layer and gives it its name. Blocking.
pub(crate) fn receive(
    layers: &Path,
    layer: &Layer,
    pieces: mpsc::Receiver<Piece>,
    bounds: Bounds,
    largest: u64,
) -> Result<(), UnpackLayerError> {
    let failed = |act: &'static str| {
        let path = layers.display().to_string();
        move |source: io::Error| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => UnpackLayerError::NoRoom { free: 0 },
            _ => UnpackLayerError::Write { path, act, source },
        }
    };
    let staging = Staging::new(layers, &layer.diff_id).map_err(failed("make a directory in it"))?;
    let into = staging.open().map_err(failed("open a directory in it"))?;
    let unpacked = stream::receive(pieces, layer.compression, layer.diff_id, into, bounds, largest)?;
    let record = record(unpacked)?;
    staging.name(layers, &layer.diff_id, &record).map_err(failed("sync a layer in it"))
}

fn record(unpacked: Unpacked) -> Result<LayerRecord, UnpackLayerError> {
    let Unpacked { members, bytes, implied, opaque_root } = unpacked;
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| UnpackLayerError::Refused {
            path: shown(Path::new(&path)),
            problem: "no member names this directory, and its name is not UTF-8".to_owned(),
        })
    };
    let implied = implied.into_iter().map(text).collect::<Result<_, _>>()?;
    Ok(LayerRecord { files: members, bytes, implied, opaque_root })
}
