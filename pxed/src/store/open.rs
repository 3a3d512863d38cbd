//! Opens the store's file: private to its owner, checked page by page and read once, moved aside when damaged.
//!
//! Called by the store when it starts and by its writer after an I/O error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_dhcp::is_damaged;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, ReadableTable, TableError};

use super::{StoreError, Table};

/// Bytes of page cache: the hot tables fit, and a rack server has better uses for the rest.
const CACHE_BYTES: usize = 8 << 20;

/// An open database.
pub(super) struct Opened {
    pub(super) database: Database,
    /// True if the file was created empty: earlier content is lost.
    pub(super) recreated: bool,
}

/// Opens or creates the database; a damaged file is renamed to `<path>.damaged-N`, and a new one is created.
pub(super) fn open_or_move_aside(path: &Path) -> Result<Opened, StoreError> {
    let failed = |e: redb::Error| StoreError::Open { path: path.to_owned(), source: Arc::new(e) };
    match open(path) {
        Ok(opened) => Ok(opened),
        Err(redb::Error::DatabaseAlreadyOpen) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(error) if is_damaged(&error) => {
            let aside = move_aside(path).map_err(|e| failed(e.into()))?;
            tracing::error!(
                path = %path.display(), moved_to = %aside.display(), %error, lost = lost(),
                "damaged store moved aside, creating an empty one"
            );
            open(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Describes the content that is lost with the file, for users.
pub(super) fn lost() -> String {
    Table::ALL.map(Table::content).join("; ")
}

/// redb ends some damaged pages with a panic rather than an error; a damaged file must not end pxed.
pub(super) fn guarded<T>(act: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("a page is invalid".to_owned())))
}

/// Drops a value that may panic in its destructor, such as a database whose file is damaged, without ending the
/// caller.
pub(super) fn close<T>(value: T) {
    // The panic hook has printed a panic; there is nothing else to do about one.
    let _ = guarded(|| {
        drop(value);
        Ok(())
    });
}

/// Opens or makes the database and reads it once, so that what can be opened can be read.
fn open(path: &Path) -> Result<Opened, redb::Error> {
    guarded(|| {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        // The file has seeds and the key of the certificate authority.
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let recreated = file.metadata()?.len() == 0;
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true)
            .create_with_backend(FileBackend::new(file)?)?;
        let transaction = database.begin_read()?;
        for table in Table::ALL {
            match transaction.open_table(table.definition()) {
                Ok(table) => {
                    for entry in table.iter()? {
                        let (key, value) = entry?;
                        let _ = (key.value(), value.value());
                    }
                }
                Err(TableError::TableDoesNotExist(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(transaction);
        sync_directory(path)?;
        Ok(Opened { database, recreated })
    })
}

/// Returns true if a damaged file was moved aside at some time. It stays there until a user removes it.
pub(super) fn was_moved_aside(path: &Path) -> bool {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let aside = [name.as_encoded_bytes(), b".damaged-".as_slice()].concat();
    let is_aside = |entry: std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(&aside);
    std::fs::read_dir(directory).is_ok_and(|entries| entries.flatten().any(is_aside))
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
