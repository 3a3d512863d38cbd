//! The committer: writes what is queued in one transaction and sends its answers when that is on disk.
//!
//! The only writer of the lease file and the only thread that waits for the disk. Called by [`crate::Server`].

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Outlet;
use crate::client::{Event, Query};
use crate::counter::Trouble;
use crate::lease::{Change, Lease, LeaseState, Table};
use crate::respond::Packet;
use crate::server::{COMMIT_THREAD, Engine};
use crate::store::Store;

/// Most answers in one transaction: bounds how long the first of them waits.
const MAX_COMMIT_ANSWERS: usize = 1024;
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An answer that waits for its lease to be on disk.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) query: Query,
    pub(crate) event: Event,
    pub(crate) packet: Option<Packet>,
    pub(crate) changes: Vec<Change>,
    pub(crate) outlet: Arc<dyn Outlet>,
}

/// The lease file and the queue in front of it.
#[derive(Debug)]
pub(crate) struct Committer {
    /// `None` after a failed write: the file is opened again.
    store: Option<Store>,
    path: PathBuf,
    queue: Receiver<Job>,
}

impl Committer {
    pub(crate) fn new(store: Store, path: PathBuf, queue: Receiver<Job>) -> Self {
        Self { store: Some(store), path, queue }
    }

    /// Commits until it is stopped, then commits the rest of the queue.
    pub(crate) fn run(mut self, engine: &Engine, stop: &AtomicBool) {
        loop {
            engine.came_round(COMMIT_THREAD);
            let first = match self.queue.recv_timeout(QUEUE_POLL_INTERVAL) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) if !stop.load(Ordering::Relaxed) => continue,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            };
            let mut jobs = vec![first];
            jobs.extend(self.queue.try_iter().take(MAX_COMMIT_ANSWERS - 1));
            self.commit(engine, &jobs);
        }
    }

    fn commit(&mut self, engine: &Engine, jobs: &[Job]) {
        if !self.write(engine, jobs) {
            let lost = u64::try_from(jobs.len()).unwrap_or(u64::MAX);
            engine.counters.add_trouble(Trouble::CommitFailed, lost);
            return;
        }
        let mut rest: Vec<&Job> = jobs.iter().collect();
        while let Some(first) = rest.first() {
            let outlet = Arc::clone(&first.outlet);
            let (now, later): (Vec<&Job>, _) =
                rest.into_iter().partition(|job| Arc::ptr_eq(&job.outlet, &outlet));
            let packets: Vec<&Packet> = now.iter().filter_map(|job| job.packet.as_ref()).collect();
            outlet.send(&packets, &mut |packet, result| engine.count_sent(packet, result));
            rest = later;
        }
        for job in jobs {
            engine.clients.observe(&job.query, &job.event);
        }
    }

    fn write(&mut self, engine: &Engine, jobs: &[Job]) -> bool {
        let Some(store) = self.store.take().or_else(|| self.reopen(engine)) else { return false };
        let changes = || jobs.iter().flat_map(|job| &job.changes);
        match store.write(changes()) {
            Ok(()) => {
                engine.counters.add_commit(u64::try_from(changes().count()).unwrap_or(u64::MAX));
                self.store = Some(store);
                true
            }
            Err(error) => {
                tracing::error!(
                    path = %self.path.display(),
                    error = %std::error::Error::source(&error).unwrap_or(&error),
                    "failed to write leases, clients are not acknowledged"
                );
                store.close();
                false
            }
        }
    }

    /// Opens the file again after a failure and makes it what the table is, since what is in it is not certain.
    fn reopen(&self, engine: &Engine) -> Option<Store> {
        let (store, rows) = Store::open(&self.path)
            .inspect_err(|error| tracing::error!(%error, "failed to reopen the lease file"))
            .ok()?;
        let changes = {
            let table = engine.table.lock().unwrap_or_else(PoisonError::into_inner);
            rewrite(&rows, &table)
        };
        if let Err(error) = store.write(changes.iter()) {
            tracing::error!(%error, "failed to write the leases in memory");
            store.close();
            return None;
        }
        tracing::info!(path = %self.path.display(), rows = changes.len(), "lease file is in use again");
        Some(store)
    }
}

/// Returns the changes that make a file of these rows equal to the table: all leases are written and all other rows
/// removed, since the change that removed or replaced a row may have been lost. An offer is never on disk.
fn rewrite(rows: &[Lease], table: &Table) -> Vec<Change> {
    let kept = |lease: &Lease| lease.state != LeaseState::Offered;
    let stale = rows.iter().map(|row| row.address).filter(|address| !table.get(*address).is_some_and(kept));
    let stale = stale.map(Change::Remove);
    stale.chain(table.leases().filter(|lease| kept(lease)).cloned().map(Change::Put)).collect()
}

#[cfg(test)]
mod tests;
