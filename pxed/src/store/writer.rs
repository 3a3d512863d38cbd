//! The group commit: one thread takes every change that waits and commits them together.
//!
//! ```text
//! idle --change--> collect (all that wait, at most MAX_BATCH) --commit--> answer all --> idle
//!                                                            \--error--> answer all, reopen --> idle
//! ```
//!
//! A commit costs one or two syncs whatever is in it, so that a thousand waiters cost what one does. After an I/O
//! error redb refuses further work on that handle; the file is opened again, and a disk that has room again serves on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use redb::Database;
use tokio::sync::oneshot;

use super::{Change, Counters, Shared, StoreError, open};

/// Requests in one commit at most, so that the first waiter's delay stays bounded.
const MAX_BATCH: usize = 4096;

type Answer = Result<(), StoreError>;

struct Request {
    changes: Vec<Change>,
    done: oneshot::Sender<Answer>,
}

/// The sending side; the thread ends when it is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    requests: mpsc::Sender<Request>,
}

impl Writer {
    /// Queues changes; the answer comes after their commit.
    pub(super) fn submit(&self, changes: Vec<Change>) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (done, answer) = oneshot::channel();
        self.requests.send(Request { changes, done }).map_err(|_| StoreError::Closed)?;
        Ok(answer)
    }
}

/// Starts the thread.
pub(super) fn spawn(
    path: PathBuf,
    database: Shared,
    counters: Arc<Counters>,
) -> std::io::Result<(Writer, JoinHandle<()>)> {
    let (requests, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || run(&path, &database, &counters, &receiver))?;
    Ok((Writer { requests }, thread))
}

fn run(path: &Path, database: &Shared, counters: &Counters, requests: &mpsc::Receiver<Request>) {
    while let Ok(first) = requests.recv() {
        let mut batch = vec![first];
        batch.extend(requests.try_iter().take(MAX_BATCH - 1));
        let result = commit(database, &batch);
        match &result {
            Ok(()) => counters.committed(batch.iter().map(|r| r.changes.len()).sum()),
            Err(error) => {
                counters.failed();
                tracing::error!(
                    path = %path.display(), requests = batch.len(), error = %chain(error),
                    "a commit to the store failed"
                );
                reopen(path, database);
            }
        }
        for request in batch {
            // Nobody waits for a write-behind.
            let _ = request.done.send(result.clone());
        }
    }
}

fn commit(database: &Shared, batch: &[Request]) -> Answer {
    let database = database.read().map_err(|_| StoreError::Closed)?;
    let database = database.as_ref().ok_or(StoreError::Closed)?;
    apply(database, batch).map_err(|e| StoreError::Write(Arc::new(e)))
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
            Change::Clear(table) => {
                transaction.delete_table(table.definition())?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Closes and opens the file again. What cannot be opened now is tried again at the next change.
fn reopen(path: &Path, database: &Shared) {
    let Ok(mut database) = database.write() else { return };
    // Two handles on one file are refused, so the old one must be gone first.
    drop(database.take());
    match open::open(path) {
        Ok(opened) => *database = Some(opened),
        Err(error) => tracing::error!(path = %path.display(), %error, "the store cannot be opened again"),
    }
}

fn chain(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
