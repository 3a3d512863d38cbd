//! A blob that is being written: hashed as it grows, and locked against other processes. It gets its name in
//! the store only when it is complete and on disk.
//!
//! Not here: the source of the bytes. Callers: `download`, `layout`, `files`, the store.
//!
//! A partial file is `partial/<hex>`. Its writer holds `flock` on it. After a
//! crash, the next writer hashes the existing bytes and continues.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_api::id::Digest;
use sha2::{Digest as _, Sha256};

/// Poll interval of another process's lock.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// The partial file, open and locked.
#[derive(Debug)]
pub(crate) struct Partial {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    written: u64,
}

impl Partial {
    /// Opens or makes the partial file; `None` while another writer has it.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The former owner may have renamed or removed it between open and lock.
            if !is_at(&file, path)? {
                continue;
            }
            let mut partial = Self { file, path: path.to_owned(), hasher: Sha256::new(), written: 0 };
            partial.hash_existing()?;
            return Ok(Some(partial));
        }
    }

    /// Removes the file, unless it has a writer.
    pub(crate) fn remove_unused(path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path)? => fs::remove_file(path),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn hash_existing(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = self.file.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            self.hasher.update(buffer.get(..read).unwrap_or_default());
            self.written += read as u64;
        }
    }

    /// Returns the number of bytes in the file.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the digest of the stored part.
    pub(crate) fn digest(&self) -> Digest {
        Digest::from_sha256(self.hasher.clone().finalize().into())
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Removes the stored part.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Sha256::new();
        self.written = 0;
        Ok(())
    }

    /// Makes it durable and gives it its name. The caller has compared the digest.
    pub(crate) fn commit(&mut self, blob: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, blob)?;
        sync_parent(blob)
    }

    /// Removes the partial file.
    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a rename durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Writes a small file so that a reader sees the old content or the new one, also after a crash.
pub(crate) fn write_atomic(path: &Path, content: &[u8]) -> io::Result<()> {
    // Each write has its own name, because several may write the same record concurrently.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let next = path.with_extension(format!("{}.{write}.new", std::process::id()));
    let mut file = File::create(&next)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    sync_parent(path)
}

/// Runs blocking work without blocking the runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// A [`Partial`] for async code: writes and hashes do not block the runtime.
#[derive(Debug, Clone)]
pub(crate) struct SharedPartial(Arc<Mutex<Partial>>);

impl SharedPartial {
    /// Opens the partial file. Waits while another process writes it, unless `done` returns true.
    pub(crate) async fn open(path: PathBuf, done: impl Fn() -> bool) -> io::Result<Option<Self>> {
        loop {
            let at = path.clone();
            if let Some(partial) = blocking(move || Partial::open(&at)).await? {
                if done() {
                    blocking(move || partial.remove()).await?;
                    return Ok(None);
                }
                return Ok(Some(Self(Arc::new(Mutex::new(partial)))));
            }
            if done() {
                return Ok(None);
            }
            tokio::time::sleep(LOCK_POLL).await;
        }
    }

    /// Runs work with the partial without blocking the runtime.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Partial) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let shared = Arc::clone(&self.0);
        blocking(move || act(&mut shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner))).await
    }
}
