//! Group commit: one thread takes all pending changes and commits them together.
//!
//! ```text
//! idle --change--> collect (all that wait, at most MAX_BATCH) --commit--> answer all --> idle
//!                                                            \--error--> answer all, reopen --> idle
//! ```
//!
//! A commit costs one or two syncs, no matter how many changes it has, so a thousand waiters cost as much as one.
//! After an I/O error redb refuses further work on that handle. So the file is reopened, and a disk that has free
//! space again is used again. Opening reads the complete file: after the second consecutive failure, changes are
//! refused for a while (`Pause`). Readers never wait for this: while there is no open database, a read fails.
//!
//! At most [`MAX_WAITING`] requests wait, so that a hanging disk uses no more memory. Durable writes wait for a
//! place. Other writes are dropped, counted, and logged at most once a minute.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_process::backoff::{Backoff, NO_JITTER};
use bedplate_process::exit::chain;
use bedplate_process::log_pace::LogPace;
use redb::Database;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Change, Counters, Shared, StoreError, open};

/// Requests in one commit at most, so that the first waiter's delay stays bounded.
const MAX_BATCH: usize = 4096;

/// Requests that wait for a commit at most.
pub(super) const MAX_WAITING: usize = 4096;

/// Pauses between two attempts to open the file.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

type Answer = Result<(), StoreError>;

pub(super) struct Request {
    changes: Vec<Change>,
    done: oneshot::Sender<Answer>,
}

/// The sending side; the thread ends when it is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) requests: mpsc::Sender<Request>,
    counters: Arc<Counters>,
    log: LogPace,
}

impl Writer {
    /// Queues changes, waiting for room, and waits for their commit.
    pub(super) async fn submit(&self, changes: Vec<Change>) -> Answer {
        let (done, answer) = oneshot::channel();
        // `send` alone may yield although there is space, and then the order would differ from the caller's.
        match self.requests.try_send(Request { changes, done }) {
            Ok(()) => {}
            Err(TrySendError::Full(request)) => {
                self.requests.send(request).await.map_err(|_| StoreError::Closed)?;
            }
            Err(TrySendError::Closed(_)) => return Err(StoreError::Closed),
        }
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Queues changes, or drops them if the queue is full. Returns true if they were queued.
    pub(super) fn offer(&self, changes: Vec<Change>) -> Result<bool, StoreError> {
        let (done, _) = oneshot::channel();
        match self.requests.try_send(Request { changes, done }) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(request)) => {
                self.dropped(request.changes.len());
                Ok(false)
            }
            Err(TrySendError::Closed(_)) => Err(StoreError::Closed),
        }
    }

    fn dropped(&self, changes: usize) {
        let all = self.counters.dropped(changes);
        if self.log.admit("ChangesDropped", None, Instant::now()).is_some() {
            tracing::warn!(
                waiting = MAX_WAITING,
                dropped_since_start = all,
                "store queue full, changes dropped and lost at a restart"
            );
        }
    }
}

/// The file and how it does.
pub(super) struct Disk {
    path: PathBuf,
    database: Shared,
    generation: watch::Sender<u64>,
    pause: Pause,
    /// Error of the last commit.
    failed: Option<StoreError>,
    is_to_be_reopened: bool,
}

/// Pure: how long changes are refused after failures in a row: not at all after the first, then as [`PAUSES`] says.
#[derive(Debug, Default, Clone, Copy)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
}

impl Pause {
    fn failed(&mut self, now: Instant) {
        // Jitter is of no use: this is the only process that writes the file.
        let pause = (self.failures > 0).then(|| PAUSES.delay(self.failures, NO_JITTER));
        self.until = pause.and_then(|pause| now.checked_add(pause));
        self.failures = self.failures.saturating_add(1);
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }
}

/// Starts the thread.
pub(super) fn spawn(disk: Disk, counters: Arc<Counters>) -> std::io::Result<(Writer, JoinHandle<()>)> {
    let (requests, receiver) = mpsc::channel(MAX_WAITING);
    let writer = Writer { requests, counters: counters.clone(), log: LogPace::default() };
    let thread = std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || run(disk, &counters, receiver))?;
    Ok((writer, thread))
}

fn run(mut disk: Disk, counters: &Counters, mut requests: mpsc::Receiver<Request>) {
    let mut batch = Vec::new();
    while requests.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
        // A liveness query does not wait for the disk.
        let empty = batch.iter().all(|request| request.changes.is_empty());
        let result = if empty { Ok(()) } else { disk.commit(&batch, Instant::now()) };
        match &result {
            Ok(()) if empty => {}
            Ok(()) => counters.committed(batch.iter().map(|r| r.changes.len()).sum()),
            Err(_) => counters.failed(),
        }
        for request in batch.drain(..) {
            // The sender of a write-behind does not wait.
            let _ = request.done.send(result.clone());
        }
        if disk.is_to_be_reopened {
            disk.reopen();
        }
    }
}

impl Disk {
    pub(super) fn new(path: PathBuf, database: Shared, generation: watch::Sender<u64>) -> Self {
        let (pause, failed) = (Pause::default(), None);
        Self { path, database, generation, pause, failed, is_to_be_reopened: false }
    }

    /// Commits, unless changes are refused for now.
    fn commit(&mut self, batch: &[Request], now: Instant) -> Answer {
        if !self.pause.is_over(now) {
            return Err(self.failed.clone().unwrap_or(StoreError::Closed));
        }
        let result = commit(&self.database, batch);
        match &result {
            Ok(()) => (self.pause, self.failed) = (Pause::default(), None),
            Err(error) => {
                tracing::error!(
                    path = %self.path.display(), requests = batch.len(), error = chain(error),
                    "failed to commit to the store"
                );
                self.failed = Some(error.clone());
                self.pause.failed(now);
                self.is_to_be_reopened = true;
            }
        }
        result
    }

    /// Closes and opens the file again; one that turns out to be damaged is moved aside as at the start. What cannot be
    /// opened now is tried again at the next change that is not refused.
    fn reopen(&mut self) {
        self.is_to_be_reopened = false;
        // Two handles on one file are refused, so the old one must be gone first. The lock is not held meanwhile.
        let old = self.lock().take();
        open::close(old);
        match open::open_or_move_aside(&self.path) {
            Ok(opened) => {
                *self.lock() = Some(opened.database);
                if opened.recreated {
                    // Sent after the file exists, because receivers write to it.
                    self.generation.send_modify(|generation| *generation = generation.wrapping_add(1));
                }
            }
            Err(error) => tracing::error!(error = chain(&error), "failed to reopen the store"),
        }
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Option<Database>> {
        // The value behind the lock is valid at any time: a handle or none.
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn commit(database: &Shared, batch: &[Request]) -> Answer {
    let database = database.read().unwrap_or_else(PoisonError::into_inner);
    let database = database.as_ref().ok_or(StoreError::Closed)?;
    open::guarded(|| apply(database, batch)).map_err(|e| StoreError::Write(Arc::new(e)))
}

fn apply(database: &Database, batch: &[Request]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    for change in batch.iter().flat_map(|request| &request.changes) {
        match change {
            Change::Put(table, key, value) => {
                transaction.open_table(table.definition())?.insert(key.as_slice(), value.as_slice())?;
            }
            Change::Delete(table, key) => {
                transaction.open_table(table.definition())?.remove(key.as_slice())?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_retried_immediately_and_later_ones_after_pauses() {
        let (mut pause, mut now) = (Pause::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            pause.failed(now);
            let until = pause.until.unwrap_or(now);
            assert!(pause.is_over(until));
            waits.push(until.duration_since(now).as_secs());
            now = until;
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30]);
    }
}
