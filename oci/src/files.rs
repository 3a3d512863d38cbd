//! Plain files as a boot image: copied into the store and given a manifest of our own making, so that everything behind
//! the store sees one kind of image. A changed file is a new digest.
//!
//! Caller: the store.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_api::id::Digest;

use crate::error::EnsureImageError;
use crate::kernel;
use crate::layout;
use crate::manifest::{self, Blob, BootImage, Config, Descriptor, Manifest};
use crate::partial::{Partial, blocking};
use crate::resolution::{self, FileState, Record};
use crate::source::{Progress, Source};
use crate::store::{Store, Tell};

/// Ensures that these files are in the store.
pub(crate) async fn ensure(
    store: &Store,
    source: &Source,
    kernel: &Path,
    initrd: &Path,
    rootfs: Option<&Path>,
    tell: Tell<'_>,
) -> Result<BootImage, EnsureImageError> {
    let name = source.to_string();
    let paths: Vec<PathBuf> = [kernel, initrd].into_iter().chain(rootfs).map(Path::to_owned).collect();
    let states = observe(&name, &paths)?;
    if let Some(record) = resolution::read(&store.record_path(source))
        && record.files == states
        && let Some(image) = store.image(&record.image)
    {
        return Ok(image);
    }
    let mut blobs = Vec::new();
    for (path, part) in paths.iter().zip(["kernel", "initrd", "rootfs"]) {
        let blob = add(store, &name, path, part, tell).await?;
        blobs.push(blob);
    }
    let _pins = store.pins().pin(blobs.iter().map(|b| b.digest));
    let architecture = match blobs.first() {
        Some(blob) => architecture(store, &name, *blob).await?,
        None => manifest::UNKNOWN_ARCHITECTURE,
    };
    let digest = describe(store, &name, &blobs, architecture.to_owned()).await?;
    let image = store.image(&digest).ok_or_else(|| EnsureImageError::InvalidManifest {
        image: name.clone(),
        digest,
        problem: "the files changed while they were stored".to_owned(),
    })?;
    // A file that changed while it was read is read again by the next call.
    if observe(&name, &paths)? == states {
        store.remember(&name, source, Record { source: name.clone(), image: digest, files: states }).await?;
    }
    Ok(image)
}

fn observe(name: &str, paths: &[PathBuf]) -> Result<Vec<FileState>, EnsureImageError> {
    let state = |path: &PathBuf| {
        let m = fs::metadata(path).map_err(|source| read_error(name, path, source))?;
        Ok(FileState {
            device: m.dev(),
            inode: m.ino(),
            size: m.len(),
            modified: (m.mtime(), m.mtime_nsec()),
            changed: (m.ctime(), m.ctime_nsec()),
        })
    };
    paths.iter().map(state).collect()
}

fn read_error(name: &str, path: &Path, source: io::Error) -> EnsureImageError {
    EnsureImageError::ReadFile { image: name.to_owned(), path: path.to_owned(), source }
}

/// Copies one file into the store under its computed digest.
async fn add(
    store: &Store,
    name: &str,
    path: &Path,
    part: &str,
    tell: Tell<'_>,
) -> Result<Blob, EnsureImageError> {
    let at = path.to_owned();
    let file = blocking(move || layout::open_regular(&at)).await.map_err(|e| read_error(name, path, e))?;
    let size = file.metadata().map_err(|e| read_error(name, path, e))?.len();
    let limit = store.options().largest_blob;
    if size > limit {
        let what = path.display().to_string();
        return Err(EnsureImageError::TooLarge { image: name.to_owned(), what, limit });
    }
    let _promise = store.make_space(name, size).await?;
    static COPIES: AtomicU64 = AtomicU64::new(0);
    let copy = COPIES.fetch_add(1, Ordering::Relaxed);
    let next = store.partial_path(&format!("{part}.{}.{copy}", std::process::id()));
    let (from, to, blobs) = (path.to_owned(), next.clone(), store.clone());
    let copy = move || copy_in(&blobs, &from, &to, limit);
    let blob = blocking(copy).await.map_err(|source| store.write_error(name, next, source))?;
    tell(Progress::Transfer { digest: blob.digest, done: blob.size, total: blob.size });
    Ok(blob)
}

fn copy_in(store: &Store, from: &Path, next: &Path, limit: u64) -> io::Result<Blob> {
    use std::io::Read;
    let mut file = layout::open_regular(from)?.take(limit);
    let Some(mut partial) = Partial::open(next)? else {
        return Err(io::Error::from(io::ErrorKind::WouldBlock));
    };
    partial.restart()?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            read => partial.append(chunk.get(..read).unwrap_or_default())?,
        }
    }
    let blob = Blob { digest: partial.digest(), size: partial.written() };
    let target = store.path(&blob.digest);
    if target.exists() {
        partial.remove()?;
    } else {
        partial.commit(&target)?;
    }
    Ok(blob)
}

/// Returns the architecture of this kernel.
async fn architecture(store: &Store, name: &str, blob: Blob) -> Result<&'static str, EnsureImageError> {
    use std::io::Read;
    let path = store.path(&blob.digest);
    let at = path.clone();
    let head = blocking(move || {
        let mut head = Vec::with_capacity(kernel::HEAD_BYTES);
        fs::File::open(&at)?.take(kernel::HEAD_BYTES as u64).read_to_end(&mut head)?;
        Ok(head)
    });
    let head = head.await.map_err(|source| read_error(name, &path, source))?;
    Ok(kernel::architecture(&head).unwrap_or(manifest::UNKNOWN_ARCHITECTURE))
}

/// Writes configuration and manifest of these blobs.
async fn describe(
    store: &Store,
    name: &str,
    blobs: &[Blob],
    architecture: String,
) -> Result<Digest, EnsureImageError> {
    let config = Config { architecture, kernel_arguments: Vec::new(), release: None };
    let config = store.put(name, to_json(&config)).await?;
    let types = [manifest::KERNEL_TYPE, manifest::INITRD_TYPE, manifest::ROOTFS_TYPE];
    let document = Manifest {
        schema_version: 2,
        media_type: Some(manifest::MANIFEST_TYPE.to_owned()),
        artifact_type: Some(manifest::ARTIFACT_TYPE.to_owned()),
        config: Descriptor::new(manifest::CONFIG_TYPE, config),
        layers: blobs.iter().zip(types).map(|(blob, t)| Descriptor::new(t, *blob)).collect(),
        annotations: None,
    };
    Ok(store.put(name, to_json(&document)).await?.digest)
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structs with text keys have a JSON form")
}
