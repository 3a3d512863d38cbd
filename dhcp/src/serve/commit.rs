//! The committer: writes what is queued in one transaction and sends its answers when that is on disk.
//!
//! The only writer of the lease file and the only thread that waits for the disk. Called by [`crate::Server`].

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Sockets;
use crate::client::{Event, Query};
use crate::counter::Trouble;
use crate::lease::{Change, Lease, LeaseState, Table};
use crate::respond::Packet;
use crate::server::{COMMIT_THREAD, Engine};
use crate::store::Store;

/// Most answers in one transaction: bounds how long the first of them waits.
const BATCH: usize = 1024;
const PATIENCE: Duration = Duration::from_millis(100);

/// An answer that waits for its lease to be on disk.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) query: Query,
    pub(crate) event: Event,
    pub(crate) packet: Option<Packet>,
    pub(crate) changes: Vec<Change>,
    pub(crate) sockets: Arc<Sockets>,
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

    /// Commits until told to stop, then what is still queued.
    pub(crate) fn run(mut self, engine: &Engine, stop: &AtomicBool) {
        loop {
            engine.came_round(COMMIT_THREAD);
            let first = match self.queue.recv_timeout(PATIENCE) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) if !stop.load(Ordering::Relaxed) => continue,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            };
            let mut jobs = vec![first];
            jobs.extend(self.queue.try_iter().take(BATCH - 1));
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
            let sockets = Arc::clone(&first.sockets);
            let (now, later) = rest.into_iter().partition(|job| Arc::ptr_eq(&job.sockets, &sockets));
            let now: Vec<&Job> = now;
            let packets: Vec<&Packet> = now.iter().filter_map(|job| job.packet.as_ref()).collect();
            sockets.send(&packets, |packet, result| engine.count_sent(packet, result));
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
                    "leases cannot be written, no client is acknowledged until they can"
                );
                store.close();
                false
            }
        }
    }

    /// Opens the file again after a failure and makes it what the table is, since what is in it is not certain.
    fn reopen(&self, engine: &Engine) -> Option<Store> {
        let (store, rows) = Store::open(&self.path)
            .inspect_err(|error| tracing::error!(%error, "lease file cannot be opened again"))
            .ok()?;
        let changes = {
            let table = engine.table.lock().unwrap_or_else(PoisonError::into_inner);
            rewrite(&rows, &table)
        };
        if let Err(error) = store.write(changes.iter()) {
            tracing::error!(%error, "the leases in memory cannot be written");
            store.close();
            return None;
        }
        tracing::info!(path = %self.path.display(), rows = changes.len(), "lease file is in use again");
        Some(store)
    }
}

/// What makes a file of these rows one of this table: every lease is put, and every other row goes, since the change that
/// removed or replaced it may be the one that was lost. An offer is never on disk.
fn rewrite(rows: &[Lease], table: &Table) -> Vec<Change> {
    let kept = |lease: &Lease| lease.state != LeaseState::Offered;
    let stale = rows.iter().map(|row| row.address).filter(|address| !table.get(*address).is_some_and(kept));
    let stale = stale.map(Change::Remove);
    stale.chain(table.leases().filter(|lease| kept(lease)).cloned().map(Change::Put)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{ClientKey, Holder};

    fn lease(last: u8, holder: u8, state: LeaseState) -> Lease {
        let mac = bedplate_api::id::MacAddress::new([2, 0, 0, 0, 0, holder]);
        let network = "10.7.0.0/24".parse().unwrap();
        let holder = Holder { network, key: ClientKey::Mac(mac) };
        let address = std::net::Ipv4Addr::new(10, 7, 0, last);
        Lease { address, holder, mac, machine: None, state, since: 1, until: 2 }
    }

    #[test]
    fn rows_whose_removal_was_lost_do_not_come_back_when_the_file_is_opened_again() {
        use LeaseState::{Bound, Free, Offered};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.redb");
        let (store, _) = Store::open(&path).unwrap();
        let on_disk = [lease(1, 1, Bound), lease(2, 2, Bound), lease(3, 3, Bound), lease(4, 4, Bound)];
        store.write(on_disk.map(Change::Put).iter()).unwrap();
        drop(store);
        // Meanwhile, and not on disk: 2 was forgotten, 3 was freed and is offered to another, 4 was freed, 5 is new.
        let mut table = Table::default();
        let in_memory = [lease(1, 1, Bound), lease(3, 9, Offered), lease(4, 4, Free), lease(5, 5, Bound)];
        in_memory.into_iter().for_each(|lease| table.restore(lease));
        let (store, rows) = Store::open(&path).unwrap();
        store.write(rewrite(&rows, &table).iter()).unwrap();
        drop(store);
        let (_store, mut rows) = Store::open(&path).unwrap();
        rows.sort_by_key(|row| row.address);
        assert_eq!(rows, [lease(1, 1, Bound), lease(4, 4, Free), lease(5, 5, Bound)]);
    }
}
