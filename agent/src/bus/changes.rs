//! Collects changes of units. A slow reader gets the set of all units that changed since its last read, and
//! never blocks the connection.
//!
//! Called by `systemd` and by the fake.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bedplate_process::lock::Lock;
use futures::StreamExt as _;
use futures::stream::select_all;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::error::BusError;
use super::link::{Link, Object};
use super::name::UnitName;
use super::systemd::MANAGER;

/// Name of the act in errors.
const ACT: &str = "watch of units";

/// Changes that were not read yet.
#[derive(Debug, Default)]
struct Gathered {
    units: BTreeSet<UnitName>,
    /// Error that ended the changes.
    end: Option<BusError>,
}

#[derive(Debug, Default)]
struct Shared {
    gathered: Lock<Gathered>,
    news: Notify,
}

/// Changes of units. Ends when dropped.
#[derive(Debug)]
pub struct Changes {
    shared: Arc<Shared>,
    task: Option<AbortHandle>,
}

/// Sender of changes.
#[derive(Debug, Clone)]
pub(super) struct Teller(Arc<Shared>);

impl Changes {
    /// Creates a sender and a receiver of changes.
    pub(super) fn pair() -> (Teller, Self) {
        let shared = Arc::<Shared>::default();
        (Teller(Arc::clone(&shared)), Self { shared, task: None })
    }

    /// Waits until at least one unit has changed since the last call (or since
    /// `changes`). Returns the changed units.
    ///
    /// # Errors
    /// The connection has ended: no more changes follow, and some may be
    /// missing. Read the states, then subscribe again.
    pub async fn next(&mut self) -> Result<BTreeSet<UnitName>, BusError> {
        loop {
            {
                let mut gathered = self.shared.gathered.lock();
                if !gathered.units.is_empty() {
                    return Ok(std::mem::take(&mut gathered.units));
                }
                if let Some(end) = gathered.end.take() {
                    return Err(end);
                }
            }
            self.shared.news.notified().await;
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Teller {
    /// A unit has changed.
    pub(super) fn changed(&self, unit: UnitName) {
        self.0.gathered.lock().units.insert(unit);
        self.0.news.notify_one();
    }

    /// Ends the changes with this error.
    pub(super) fn end(&self, why: BusError) {
        self.0.gathered.lock().end.get_or_insert(why);
        self.0.news.notify_one();
    }
}

/// Guard that ends the changes when the collecting task stops, also by a panic. Otherwise the reader would
/// wait without an end.
struct EndGuard(Teller);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let source = io::Error::other("the signal task has stopped");
        self.0.end(BusError::Unexpected { act: ACT.to_owned(), source: source.into() });
    }
}

/// Asks the bus for the changes of these units and of no others.
pub(super) async fn watch(link: &Arc<Link>, units: &BTreeSet<UnitName>) -> Result<Changes, BusError> {
    let mut streams = Vec::new();
    for unit in units {
        let path = unit.path();
        let object = Object { path: &path, interface: "org.freedesktop.DBus.Properties", ..MANAGER };
        let stream = link.signals(ACT, object, "PropertiesChanged").await?;
        streams.push(stream.map({
            let unit = unit.clone();
            move |message| message.map(|_| unit.clone())
        }));
    }
    link.subscribe(ACT, MANAGER).await?;
    let (teller, mut changes) = Changes::pair();
    let link = Arc::clone(link);
    let guard = EndGuard(teller.clone());
    let task = tokio::spawn(async move {
        let _guard = guard;
        let mut streams = select_all(streams);
        while let Some(changed) = streams.next().await {
            match changed {
                Ok(unit) => teller.changed(unit),
                Err(error) => return teller.end(link.away(ACT, error)),
            }
        }
        // No unit was named, or all streams ended with the connection.
        let error = link.closed().await;
        teller.end(link.away(ACT, error));
    });
    changes.task = Some(task.abort_handle());
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn changes_end_with_the_task_that_gathers_them() {
        let (teller, mut changes) = Changes::pair();
        let guard = EndGuard(teller);
        let task = tokio::spawn(async move {
            let _guard = guard;
            panic!("as a bug does");
        });
        let ended = tokio::time::timeout(Duration::from_secs(20), changes.next()).await;
        assert!(ended.expect("the reader is woken").is_err());
        assert!(task.await.is_err());
    }
}
