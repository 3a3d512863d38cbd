//! Opens the store's file: private to its owner, checked page by page, moved aside when damaged.
//!
//! Called by the store when it starts and by its writer after an I/O error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageError};

use super::StoreError;

/// Bytes of page cache: the hot tables fit, and a rack server has better uses for the rest.
const CACHE_BYTES: usize = 16 << 20;

/// Opens or makes the database; what redb finds damaged is renamed to `<path>.damaged-N`, and a new one begun.
pub(super) fn open_or_move_aside(path: &Path) -> Result<Database, StoreError> {
    let failed = |e: redb::Error| StoreError::Open { path: path.to_owned(), source: Arc::new(e) };
    match open(path) {
        Ok(database) => Ok(database),
        Err(DatabaseError::DatabaseAlreadyOpen) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(error) if is_damage(&error) => {
            let aside = move_aside(path).map_err(|e| failed(e.into()))?;
            tracing::error!(
                path = %path.display(), moved_to = %aside.display(), %error,
                "the store is damaged and was moved aside: boots under way, statuses and discovered machines in it are lost"
            );
            open(path).map_err(|e| failed(e.into()))
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Opens or makes the database, without any second try.
pub(super) fn open(path: &Path) -> Result<Database, DatabaseError> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    // Seeds and the certificate authority's key lie in it.
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(true)
        .create_with_backend(FileBackend::new(file)?)?;
    sync_directory(path)?;
    Ok(database)
}

/// Whether the file's content is at fault, rather than the disk, the permissions or another process.
fn is_damage(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::RepairAborted
        | DatabaseError::UpgradeRequired(_)
        | DatabaseError::Storage(StorageError::Corrupted(_)) => true,
        DatabaseError::Storage(StorageError::Io(error)) => {
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

/// Renames the file to the first free `<path>.damaged-N`, so that an earlier one is never overwritten.
fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let mut number = 1_u32;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        let aside = PathBuf::from(name);
        if !aside.try_exists()? {
            std::fs::rename(path, &aside)?;
            sync_directory(path)?;
            return Ok(aside);
        }
        number = number.saturating_add(1);
    }
}

/// Makes a created or renamed directory entry durable; the file's own sync does not.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}
