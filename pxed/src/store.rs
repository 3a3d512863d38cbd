//! Data that must survive a crash: boots, seeds, known Machines, their status, certificates, discovered machines;
//! standalone also operations, configurations and choices.
//!
//! One redb file of byte tables. [`Store::put`] returns when its change is on disk; changes that wait together are
//! one commit (see `writer`). Keys and values are defined by their owners. Not for the packet path: reads are file
//! reads.

mod open;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use thiserror::Error;
use tokio::sync::watch;

use self::writer::{Disk, Writer};

/// The tables. Each belongs to one module, which alone knows what its bytes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// Boots by id.
    Boots,
    /// Seeds handed out, by boot id.
    Seeds,
    /// The last complete set of Machines that the source gave, by name (JSON).
    Machines,
    /// `MachineStatus` by name (JSON).
    Status,
    /// The certificate authority and what it signed.
    Certificates,
    /// Unknown machines that asked to boot, by MAC address.
    Discovered,
    /// MachineOperations that were created here or are in manifests, by name (JSON); only without a cluster.
    Operations,
    /// Machines whose manifest is gone and that must be switched off, by name (JSON).
    Departing,
    /// MachineConfigurations of manifests, by name (JSON); only without a cluster, as the two below.
    Configurations,
    /// MachineConfigurationVersions by name (JSON).
    Versions,
    /// Selected version of each Machine, and its Node, by the Machine's name (JSON).
    Choices,
    /// Takeover tokens that were used, by Machine and token.
    Takeovers,
}

impl Table {
    /// Every table.
    pub const ALL: [Self; 12] = [
        Self::Boots,
        Self::Seeds,
        Self::Machines,
        Self::Status,
        Self::Certificates,
        Self::Discovered,
        Self::Operations,
        Self::Departing,
        Self::Configurations,
        Self::Versions,
        Self::Choices,
        Self::Takeovers,
    ];

    /// Describes the content and how it is restored, for users who have lost it.
    const fn content(self) -> &'static str {
        match self {
            Self::Boots => "boots in progress (their machines boot again)",
            Self::Seeds => "issued seeds (their boots are lost, too)",
            Self::Machines => "known machines (unknown until their source is read)",
            Self::Status => "statuses (reported again by the next boot or report)",
            Self::Certificates => {
                "the latest key of each machine (in a cluster status.enrollment counts, otherwise every host must boot again)"
            }
            Self::Discovered => "discovered machines (seen again when they ask again)",
            Self::Operations => "operations (their results are unknown)",
            Self::Departing => "machines to power off after their manifest was removed (they stay on)",
            Self::Configurations => "configurations (read from their manifests again)",
            Self::Versions => "versions of configurations (their numbers start at 1 again)",
            Self::Choices => "selected versions (selected again, running nodes continue)",
            Self::Takeovers => "used takeover tokens (tokens that are set count as used)",
        }
    }

    fn definition(self) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
        TableDefinition::new(match self {
            Self::Boots => "boots",
            Self::Seeds => "seeds",
            Self::Machines => "machines",
            Self::Status => "status",
            Self::Certificates => "certificates",
            Self::Discovered => "discovered",
            Self::Operations => "operations",
            Self::Departing => "departing",
            Self::Configurations => "configurations",
            Self::Versions => "versions",
            Self::Choices => "choices",
            Self::Takeovers => "takeovers",
        })
    }
}

/// One change. A list of them given to [`Store::write`] takes effect as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets a value.
    Put(Table, Vec<u8>, Vec<u8>),
    /// Removes a key; no matter if it is not there.
    Delete(Table, Vec<u8>),
}

/// A key with its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Error of the store.
#[derive(Debug, Clone, Error)]
pub enum StoreError {
    /// The file cannot be opened or made.
    #[error("cannot open the store {path}")]
    Open {
        /// The store's file.
        path: PathBuf,
        /// Error of redb or the file system.
        #[source]
        source: Arc<redb::Error>,
    },
    /// Another process has opened the store.
    #[error(
        "the store {path} is in use by another process; stop the other pxed, or use another state directory"
    )]
    InUse {
        /// The store's file.
        path: PathBuf,
    },
    /// A read failed.
    #[error("cannot read from the store")]
    Read(#[source] Arc<redb::Error>),
    /// A commit failed; nothing of it is on disk.
    #[error("cannot write to the store")]
    Write(#[source] Arc<redb::Error>),
    /// The writer has stopped, or the file is being opened again after an I/O error.
    #[error("the store is closed")]
    Closed,
}

/// Counters since start, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commits that reached the disk.
    pub commits: AtomicU64,
    /// Changes in them.
    pub changes: AtomicU64,
    /// Commits that failed.
    pub failures: AtomicU64,
    /// Changes that were dropped because too many waited for the disk.
    pub dropped: AtomicU64,
}

/// The open database, or none while it waits to be opened again after an I/O error.
type Shared = Arc<std::sync::RwLock<Option<Database>>>;

/// A handle to the store; clones share it. When the last one is dropped the writer ends and the file is closed.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Shared,
    writer: Option<Writer>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    /// Receiver at the generation of the start, so that a clone misses no change.
    generation: watch::Receiver<u64>,
    /// True if a damaged file was moved aside before or at the start.
    was_lost: bool,
    path: PathBuf,
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.writer.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the writer has been printed by the panic hook; nothing is left to save here.
            let _ = thread.join();
        }
    }
}

impl Store {
    /// Opens the store at `path`, making it if there is none. A damaged file is moved aside, with a loud error in the
    /// log that names what is lost: it can be had again from the source and from the machines themselves.
    ///
    /// # Errors
    /// [`StoreError::InUse`] or [`StoreError::Open`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let opened = open::open_or_move_aside(path)?;
        let database: Shared = Arc::new(std::sync::RwLock::new(Some(opened.database)));
        let counters = Arc::new(Counters::default());
        let (sender, generation) = watch::channel(0);
        let disk = Disk::new(path.to_owned(), database.clone(), sender);
        let (writer, thread) = writer::spawn(disk, counters.clone())
            .map_err(|e| StoreError::Open { path: path.to_owned(), source: Arc::new(redb::Error::Io(e)) })?;
        let (writer, thread) = (Some(writer), Some(thread));
        let was_lost = open::was_moved_aside(path);
        let path = path.to_owned();
        Ok(Self { inner: Arc::new(Inner { database, writer, thread, counters, generation, was_lost, path }) })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns true if a damaged file was moved aside, at the start or before: what is not in this one may have been in that one.
    pub fn was_lost(&self) -> bool {
        self.inner.was_lost
    }

    /// Changes when the file was re-created after the start, because it was damaged or gone: earlier writes are not
    /// in it, and their owners must write them again from memory. A change before this call counts as well.
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.inner.generation.clone()
    }

    /// Sets a value; durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Write`] or [`StoreError::Closed`].
    pub async fn put(&self, table: Table, key: &[u8], value: Vec<u8>) -> Result<(), StoreError> {
        self.write(vec![Change::Put(table, key.to_owned(), value)]).await
    }

    /// Removes a key; durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Write`] or [`StoreError::Closed`].
    pub async fn delete(&self, table: Table, key: &[u8]) -> Result<(), StoreError> {
        self.write(vec![Change::Delete(table, key.to_owned())]).await
    }

    /// Carries out all of these or none; durable when this returns. Waits for room while too much waits for the disk.
    ///
    /// # Errors
    /// [`StoreError::Write`] or [`StoreError::Closed`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let writer = self.inner.writer.as_ref().ok_or(StoreError::Closed)?;
        writer.submit(changes).await
    }

    /// Hands over changes without waiting: they reach the disk with the next commit, in the order in which they were
    /// handed over. A failure is logged. While the disk does not keep up they are dropped and counted, with a warning:
    /// memory stays bounded, and a restart would not know them. False: these were dropped.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub(crate) fn write_behind(&self, changes: Vec<Change>) -> Result<bool, StoreError> {
        let writer = self.inner.writer.as_ref().ok_or(StoreError::Closed)?;
        writer.offer(changes)
    }

    /// Returns when the thread that commits has answered, without anything to commit: it lives.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub async fn answers(&self) -> Result<(), StoreError> {
        self.write(Vec::new()).await
    }

    /// Reads the value of a key on a blocking thread: for tasks that answer requests.
    ///
    /// # Errors
    /// [`StoreError::Read`], or [`StoreError::Closed`] while the file is reopened.
    pub async fn fetch(&self, table: Table, key: Vec<u8>) -> Result<Option<Vec<u8>>, StoreError> {
        let store = self.clone();
        let read = tokio::task::spawn_blocking(move || store.get(table, &key));
        read.await.unwrap_or(Err(StoreError::Closed))
    }

    /// The value of a key. Waits for the disk.
    ///
    /// # Errors
    /// [`StoreError::Read`], or [`StoreError::Closed`] while the file is opened again.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(table, |table| Ok(table.get(key)?.map(|value| value.value().to_owned())))
            .map(Option::flatten)
    }

    /// Every entry of a table, in the order of the keys.
    ///
    /// # Errors
    /// [`StoreError::Read`].
    pub fn scan(&self, table: Table) -> Result<Vec<Entry>, StoreError> {
        let entries = self.read(table, |table| {
            let mut entries = Vec::new();
            for entry in table.iter()? {
                let (key, value) = entry?;
                entries.push((key.value().to_owned(), value.value().to_owned()));
            }
            Ok(entries)
        })?;
        Ok(entries.unwrap_or_default())
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    fn read<T>(
        &self,
        table: Table,
        read: impl FnOnce(&redb::ReadOnlyTable<&'static [u8], &'static [u8]>) -> Result<T, redb::Error>,
    ) -> Result<Option<T>, StoreError> {
        let database = self.inner.database.read().map_err(|_| StoreError::Closed)?;
        let database = database.as_ref().ok_or(StoreError::Closed)?;
        let result = open::guarded(|| {
            let transaction = database.begin_read()?;
            match transaction.open_table(table.definition()) {
                Ok(table) => read(&table).map(Some),
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(error.into()),
            }
        });
        result.map_err(|e: redb::Error| StoreError::Read(Arc::new(e)))
    }
}

impl Counters {
    fn committed(&self, changes: usize) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.changes.fetch_add(changes as u64, Ordering::Relaxed);
    }

    /// Counts dropped changes and gives the new total.
    fn dropped(&self, changes: usize) -> u64 {
        let changes = changes as u64;
        self.dropped.fetch_add(changes, Ordering::Relaxed).saturating_add(changes)
    }

    fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests;
