//! Leases on disk (redb): read once at the start, then written by the committer only, many in one transaction.
//!
//! Does not decide what is written. A file that cannot be read is moved aside with a loud error, never overwritten:
//! a server without its old leases serves, one that does not start does not.

mod record;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use thiserror::Error;

use crate::lease::{Change, Lease};

/// Address in host order to record: neighboring addresses, which are given out together, share a page.
const LEASES: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("leases-v1");

/// Error of opening the lease file.
#[derive(Debug, Error)]
pub enum OpenStoreError {
    /// Not readable or writable, or in use by another process.
    #[error("cannot open lease file {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Error of redb.
        source: Box<redb::Error>,
    },
    /// The damaged file could not be moved.
    #[error("cannot move the damaged lease file {path} aside")]
    MoveAside {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// Error of writing changes to disk.
#[derive(Debug, Error)]
#[error("cannot write leases")]
pub(crate) struct WriteLeasesError(#[source] Box<redb::Error>);

/// redb ends some damaged pages with a panic rather than an error; a lease file must not end the server.
fn guarded<T>(act: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("a page is invalid".into())))
}

/// Drops a value that may panic in its destructor, such as a database whose file is damaged, without ending the
/// caller.
fn close<T>(value: T) {
    // The panic hook has printed a panic; there is nothing else to do about one.
    let _ = guarded(|| {
        drop(value);
        Ok(())
    });
}

/// The open lease file.
#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
}

impl Store {
    /// Opens or creates the file and reads every lease in it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<Lease>), OpenStoreError> {
        match guarded(|| Self::try_open(path)) {
            Ok(opened) => Ok(opened),
            Err(error) if is_damaged(&error) => {
                let aside = aside_name(path);
                tracing::error!(
                    path = %path.display(),
                    moved_to = %aside.display(),
                    error = %error,
                    "lease file is damaged, starting without its leases"
                );
                let failed = |source| OpenStoreError::MoveAside { path: path.into(), source };
                std::fs::rename(path, &aside).map_err(failed)?;
                guarded(|| Self::try_open(path)).map_err(|source| open_error(path, source))
            }
            Err(error) => Err(open_error(path, error)),
        }
    }

    fn try_open(path: &Path) -> Result<(Self, Vec<Lease>), redb::Error> {
        // Before redb opens it: it holds which host has which address, and in a pod nothing else narrows its mode.
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut database = Database::create(path)?;
        // Every page's checksum: a lease that was changed on disk is worse than one that is lost.
        database.check_integrity()?;
        let transaction = database.begin_write()?;
        transaction.open_table(LEASES)?;
        transaction.commit()?;
        let mut leases = Vec::new();
        let mut unreadable = 0_u64;
        let table = database.begin_read()?.open_table(LEASES)?;
        for row in table.iter()? {
            let (address, value) = row?;
            match record::decode(address.value(), value.value()) {
                Some(lease) => leases.push(lease),
                None => unreadable += 1,
            }
        }
        if unreadable > 0 {
            tracing::error!(count = unreadable, "unreadable leases skipped");
        }
        Ok((Self { database }, leases))
    }

    /// Closes the file after a failure; errors are ignored.
    pub(crate) fn close(self) {
        close(self.database);
    }

    /// Writes all changes in one transaction; on disk when it returns.
    pub(crate) fn write<'a>(
        &self,
        changes: impl Iterator<Item = &'a Change>,
    ) -> Result<(), WriteLeasesError> {
        guarded(|| self.try_write(changes)).map_err(|error| WriteLeasesError(Box::new(error)))
    }

    fn try_write<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(LEASES)?;
            let mut buffer = Vec::with_capacity(128);
            for change in changes {
                match change {
                    Change::Put(lease) => {
                        buffer.clear();
                        record::encode(lease, &mut buffer);
                        table.insert(u32::from(lease.address), buffer.as_slice())?;
                    }
                    Change::Remove(address) => {
                        table.remove(u32::from(*address))?;
                    }
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Returns true if the content of a redb file is damaged; false if the disk, the permissions or another process is the cause.
pub fn is_damaged(error: &redb::Error) -> bool {
    match error {
        redb::Error::Corrupted(_)
        | redb::Error::RepairAborted
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. } => true,
        redb::Error::Io(error) => {
            matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

fn open_error(path: &Path, source: redb::Error) -> OpenStoreError {
    OpenStoreError::Open { path: path.into(), source: Box::new(source) }
}

fn aside_name(path: &Path) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".damaged-{seconds}"));
    PathBuf::from(name)
}

#[cfg(test)]
pub(crate) mod tests;
