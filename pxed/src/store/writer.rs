//! The group commit: one thread takes every change that waits and commits them together.
//!
//! ```text
//! idle --change--> collect (all that wait, at most MAX_BATCH) --commit--> answer all --> idle
//!                                                            \--error--> answer all, reopen --> idle
//! ```
//!
//! A commit costs one or two syncs whatever is in it, so that a thousand waiters cost what one does. After an I/O
//! error redb refuses further work on that handle; the file is opened again, and a disk that has room again serves on.
//!
//! At most [`MAX_WAITING`] requests wait, so that a disk that hangs costs no memory: who wants durability waits for room,
//! what is written behind is dropped, counted, and told at most every [`TELL_DROPPED`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_process::exit::chain;
use redb::Database;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::{Change, Counters, Shared, StoreError, open};

/// Requests in one commit at most, so that the first waiter's delay stays bounded.
const MAX_BATCH: usize = 4096;

/// Requests that wait for a commit at most.
pub(super) const MAX_WAITING: usize = 4096;

/// The least time between two warnings of dropped changes.
const TELL_DROPPED: Duration = Duration::from_secs(60);

type Answer = Result<(), StoreError>;

struct Request {
    changes: Vec<Change>,
    done: oneshot::Sender<Answer>,
}

/// The sending side; the thread ends when it is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    requests: mpsc::Sender<Request>,
    counters: Arc<Counters>,
    /// When dropped changes were last told.
    told: Mutex<Option<Instant>>,
}

impl Writer {
    /// Queues changes, waiting for room, and waits for their commit.
    pub(super) async fn submit(&self, changes: Vec<Change>) -> Answer {
        let (done, answer) = oneshot::channel();
        // Not `send` at once: it yields now and then although there is room, and the order would not be the caller's.
        match self.requests.try_send(Request { changes, done }) {
            Ok(()) => {}
            Err(TrySendError::Full(request)) => {
                self.requests.send(request).await.map_err(|_| StoreError::Closed)?;
            }
            Err(TrySendError::Closed(_)) => return Err(StoreError::Closed),
        }
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Queues changes if there is room, else drops them.
    pub(super) fn offer(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let (done, _) = oneshot::channel();
        match self.requests.try_send(Request { changes, done }) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(request)) => {
                self.dropped(request.changes.len());
                Ok(())
            }
            Err(TrySendError::Closed(_)) => Err(StoreError::Closed),
        }
    }

    fn dropped(&self, changes: usize) {
        let all = self.counters.dropped(changes);
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| now.duration_since(told) >= TELL_DROPPED) {
            *told = Some(now);
            tracing::warn!(
                waiting = MAX_WAITING,
                dropped_since_start = all,
                "the disk is slower than the changes that come: some are not kept and a restart would not know them"
            );
        }
    }
}

/// Starts the thread.
pub(super) fn spawn(
    path: PathBuf,
    database: Shared,
    counters: Arc<Counters>,
) -> std::io::Result<(Writer, JoinHandle<()>)> {
    let (requests, receiver) = mpsc::channel(MAX_WAITING);
    let writer = Writer { requests, counters: counters.clone(), told: Mutex::default() };
    let thread = std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || run(&path, &database, &counters, receiver))?;
    Ok((writer, thread))
}

fn run(path: &Path, database: &Shared, counters: &Counters, mut requests: mpsc::Receiver<Request>) {
    let mut batch = Vec::new();
    while requests.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
        // Who only asks whether this thread lives waits for no disk.
        let empty = batch.iter().all(|request| request.changes.is_empty());
        let result = if empty { Ok(()) } else { commit(database, &batch) };
        match &result {
            Ok(()) if empty => {}
            Ok(()) => counters.committed(batch.iter().map(|r| r.changes.len()).sum()),
            Err(error) => {
                counters.failed();
                tracing::error!(
                    path = %path.display(), requests = batch.len(), error = chain(error),
                    "a commit to the store failed"
                );
                reopen(path, database);
            }
        }
        for request in batch.drain(..) {
            // Nobody waits for a write-behind.
            let _ = request.done.send(result.clone());
        }
    }
}

fn commit(database: &Shared, batch: &[Request]) -> Answer {
    let database = database.read().map_err(|_| StoreError::Closed)?;
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

/// Closes and opens the file again; one that turns out to be damaged is moved aside as at the start. What cannot be opened now is tried again at the next change.
fn reopen(path: &Path, database: &Shared) {
    let Ok(mut database) = database.write() else { return };
    // Two handles on one file are refused, so the old one must be gone first.
    drop(database.take());
    match open::open_or_move_aside(path) {
        Ok(opened) => *database = Some(opened),
        Err(error) => tracing::error!(error = chain(&error), "the store cannot be opened again"),
    }
}
