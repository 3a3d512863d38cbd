//! Assembles an image from complete layers: selects the layers for overlayfs,
//! and adds attributes that no single layer has.
//!
//! A layer may contain `usr/bin/x` without a member for `usr` and `usr/bin`. Its
//! directory then has both with default attributes, and overlayfs would show those
//! instead of the mode and owner in a lower layer. So where they differ, one more layer
//! is added on top. It has directories only, with the attributes of the lower layers.
//!
//! overlayfs ignores an opaque mark on a layer's root: layers below such a layer are omitted.
//!
//! Not here: fetching. Caller: `ensure`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bedplate_api::id::Digest;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

use super::error::UnpackLayerError;
use super::place::{Attributes, Place};
use super::stage::{self, LayerRecord, Staging, layer_path};
use super::tar::shown;
use crate::store::digest_of;

/// Reason for which complete layers do not make an image.
#[derive(Debug, Error)]
pub(crate) enum AssembleImageError {
    #[error("layer {0} was removed")]
    Missing(Digest),
    #[error(
        "layer {layer} has files below {path}, which is a link in a lower layer; name the files by the \
         target of the link"
    )]
    ThroughLink { layer: Digest, path: String },
    #[error("cannot read layer {0}")]
    Read(Digest, #[source] io::Error),
    #[error("cannot create the layer of directories")]
    Unpack(#[from] UnpackLayerError),
    #[error("cannot create the layer of directories")]
    Write(#[source] io::Error),
}

struct Layer {
    diff_id: Digest,
    root: File,
    implied: HashSet<PathBuf>,
    opaque_root: bool,
}

/// Entry of a layer at a path.
enum Found {
    Nothing,
    /// Not a directory, or no entry, and lower layers are hidden.
    End,
    Link,
    Directory {
        attributes: Attributes,
        hides: bool,
    },
}

/// The layers that overlayfs gets, lowest first.
pub(crate) fn assemble(layers: &Path, ids: &[Digest]) -> Result<Vec<Digest>, AssembleImageError> {
    let open = |diff_id: &Digest| {
        let record = stage::whole(layers, diff_id).ok_or(AssembleImageError::Missing(*diff_id))?;
        let root = File::open(layer_path(layers, diff_id));
        let root = root.map_err(|error| AssembleImageError::Read(*diff_id, error))?;
        let LayerRecord { implied, opaque_root, .. } = record;
        let implied = implied.into_iter().map(PathBuf::from).collect();
        Ok::<_, AssembleImageError>(Layer { diff_id: *diff_id, root, implied, opaque_root })
    };
    let mut all = ids.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let lowest = all.iter().rposition(|layer| layer.opaque_root).unwrap_or(0);
    let all = all.split_off(lowest);
    let mut found: Vec<Digest> = all.iter().map(|layer| layer.diff_id).collect();
    let directories = overlaid(&all)?;
    if !directories.is_empty() {
        found.push(add(layers, &directories)?);
    }
    Ok(found)
}

/// The directories whose made-up attributes would hide a lower layer's, and those above them.
fn overlaid(layers: &[Layer]) -> Result<BTreeMap<PathBuf, Attributes>, AssembleImageError> {
    // No layer is below the lowest one.
    let implied: BTreeSet<&PathBuf> = layers.iter().skip(1).flat_map(|layer| &layer.implied).collect();
    let mut directories = BTreeMap::new();
    for path in implied {
        let (attributes, differs) = effective(layers, path)?;
        if !differs {
            continue;
        }
        for above in path.ancestors().skip(1).map(Path::to_owned) {
            if let Entry::Vacant(vacant) = directories.entry(above) {
                let (attributes, _) = effective(layers, vacant.key())?;
                vacant.insert(attributes);
            }
        }
        directories.insert(path.clone(), attributes);
    }
    Ok(directories)
}

/// Returns the attributes of a directory in the image, and true if overlayfs alone would show others.
fn effective(layers: &[Layer], path: &Path) -> Result<(Attributes, bool), AssembleImageError> {
    let mut made_up = None;
    for layer in layers.iter().rev() {
        let look =
            look(layer, path).map_err(|errno| AssembleImageError::Read(layer.diff_id, errno.into()))?;
        match (look, made_up) {
            (Found::Nothing, _) => {}
            (Found::Link, Some(above)) => {
                return Err(AssembleImageError::ThroughLink { layer: above, path: shown(path) });
            }
            (Found::End | Found::Link, _) => break,
            (Found::Directory { hides, .. }, _) if layer.implied.contains(path) => {
                made_up = made_up.or(Some(layer.diff_id));
                if hides {
                    break;
                }
            }
            (Found::Directory { attributes, .. }, _) => {
                let plain = Attributes { mtime: attributes.mtime, ..Attributes::default() };
                let differs = made_up.is_some() && attributes != plain;
                return Ok((attributes, differs));
            }
        }
    }
    Ok((Attributes::default(), false))
}

/// Looks up a path of a layer part by part, without following links.
fn look(layer: &Layer, path: &Path) -> Result<Found, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(&layer.root, ".", flags, Mode::empty())?;
    let mut hides = false;
    for part in path {
        let stat = match rustix::fs::statat(&at, part, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if hides => return Ok(Found::End),
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            stat => stat?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::Symlink => return Ok(Found::Link),
            _ => return Ok(Found::End),
        }
        at = rustix::fs::openat(&at, part, flags, Mode::empty())?;
        let mut value = [0_u8; 1];
        hides |= rustix::fs::fgetxattr(&at, "trusted.overlay.opaque", &mut value[..]).is_ok();
    }
    let stat = rustix::fs::fstat(&at)?;
    let attributes = Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or_default()),
        xattrs: Vec::new(),
    };
    Ok(Found::Directory { attributes, hides })
}

/// Returns a layer of these directories. Its name is derived from its content, so that images share it.
fn add(layers: &Path, directories: &BTreeMap<PathBuf, Attributes>) -> Result<Digest, AssembleImageError> {
    let described: Vec<String> =
        directories.iter().map(|(path, attributes)| format!("{path:?} {attributes:?}\n")).collect();
    let diff_id = digest_of(described.concat().as_bytes());
    if stage::is_whole(layers, &diff_id) {
        return Ok(diff_id);
    }
    let staging = Staging::new(layers, &diff_id).map_err(AssembleImageError::Write)?;
    let mut place = Place::new(staging.open().map_err(AssembleImageError::Write)?);
    for (path, attributes) in directories {
        place.directory(path)?;
        place.remember(path.clone(), Some(attributes.clone()))?;
    }
    place.finish()?;
    let files = directories.len() as u64;
    let record = LayerRecord { files, bytes: 0, implied: Vec::new(), opaque_root: false };
    staging.name(layers, &diff_id, &record).map_err(AssembleImageError::Write)?;
    Ok(diff_id)
}
