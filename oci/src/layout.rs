//! OCI layout directories (OCI image specification, "Image Layout"), read with limits.
//!
//! Not here: choosing from an index (`manifest::select`). Caller: the store.
//! Paths inside a layout are made of parsed digests only.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bedplate_api::id::Digest;

use crate::error::EnsureImageError;
use crate::manifest::{self, Blob};
use crate::partial::{Partial, SharedPartial, blocking};
use crate::source::Progress;
use crate::store::{Store, Tell};

pub(crate) fn blob_path(layout: &Path, digest: &Digest) -> PathBuf {
    layout.join("blobs/sha256").join(digest.hex())
}

fn read_error(name: &str, path: &Path) -> impl FnOnce(io::Error) -> EnsureImageError {
    let (image, path) = (name.to_owned(), path.to_owned());
    move |source| EnsureImageError::ReadFile { image, path, source }
}

/// Opens a regular file: a FIFO or device would block or never end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    File::open(path)
}

/// Reads a regular file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// The layout's `index.json`.
pub(crate) async fn root(name: &str, layout: &Path) -> Result<Vec<u8>, EnsureImageError> {
    let path = layout.join("index.json");
    let at = path.clone();
    blocking(move || read_limited(&at, manifest::LARGEST_MANIFEST)).await.map_err(read_error(name, &path))
}

/// A manifest or index of the layout; the caller compares the digest.
pub(crate) async fn document(name: &str, layout: &Path, blob: Blob) -> Result<Vec<u8>, EnsureImageError> {
    let path = blob_path(layout, &blob.digest);
    let at = path.clone();
    blocking(move || read_limited(&at, manifest::LARGEST_MANIFEST)).await.map_err(read_error(name, &path))
}

/// Copies a blob of the layout into the store, verified.
pub(crate) async fn copy(
    store: &Store,
    name: &str,
    layout: &Path,
    blob: Blob,
    tell: Tell<'_>,
) -> Result<(), EnsureImageError> {
    let from = blob_path(layout, &blob.digest);
    let at = from.clone();
    let file = blocking(move || open_regular(&at)).await.map_err(read_error(name, &from))?;
    copy_file(store, name, &from, file, blob, tell).await
}

/// Copies a file that is expected to be this blob into the store.
async fn copy_file(
    store: &Store,
    name: &str,
    from: &Path,
    mut file: File,
    blob: Blob,
    tell: Tell<'_>,
) -> Result<(), EnsureImageError> {
    let target = store.path(&blob.digest);
    let partial = store.partial_path(&blob.digest.hex());
    let write_error = |e| store.write_error(name, partial.clone(), e);
    let done = || target.exists();
    let Some(shared) = SharedPartial::open(partial.clone(), done).await.map_err(write_error)? else {
        return Ok(());
    };
    shared.with(Partial::restart).await.map_err(write_error)?;
    loop {
        let read = move || {
            let mut chunk = vec![0; 1 << 20];
            let read = file.read(&mut chunk)?;
            chunk.truncate(read);
            Ok((file, chunk))
        };
        let (back, chunk) = blocking(read).await.map_err(read_error(name, from))?;
        file = back;
        if chunk.is_empty() {
            break;
        }
        let append = move |p: &mut Partial| p.append(&chunk).map(|()| p.written());
        let written = shared.with(append).await.map_err(write_error)?;
        tell(Progress::Transfer { digest: blob.digest, done: written, total: blob.size });
        if written > blob.size {
            break;
        }
    }
    finish(store, name, &shared, blob).await
}

/// Compares size and digest, then gives the blob its name. A blob with another size or digest is dropped.
pub(crate) async fn finish(
    store: &Store,
    name: &str,
    shared: &SharedPartial,
    blob: Blob,
) -> Result<(), EnsureImageError> {
    let target = store.path(&blob.digest);
    let image = name.to_owned();
    let at = target.clone();
    let outcome = shared.with(move |partial| {
        let (found_size, found) = (partial.written(), partial.digest());
        if found_size != blob.size {
            partial.restart()?;
            let (digest, expected) = (blob.digest, blob.size);
            return Ok(Err(EnsureImageError::SizeMismatch { image, digest, expected, found: found_size }));
        }
        if found != blob.digest {
            partial.restart()?;
            return Ok(Err(EnsureImageError::DigestMismatch { image, digest: blob.digest, found }));
        }
        partial.commit(&at).map(Ok)
    });
    outcome.await.map_err(|e| store.write_error(name, target, e))?
}
