//! Follows the source of Machines: makes each set the index, stores it, and updates statuses and the plane's receiver of manifests.
//!
//! A change of the store's file, or a failed write, writes the set again without an update: there may be none for a long time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::machine::Machine;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::machines::Snapshot;
use crate::machines::source::{
    Kept, KeptMachine, OtherManifests, SourceState, Sourced, TakeManifests, Update, digest,
};
use crate::site::Site;
use crate::store::{Change, Table};

/// Delay before Machines whose write failed are written again.
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The loop.
pub(super) struct Follower {
    site: Site,
    updates: mpsc::Receiver<Update>,
    /// Changes when the store's file was replaced.
    generation: watch::Receiver<u64>,
    /// Receiver of the other objects in manifests.
    manifests: Arc<dyn TakeManifests>,
    /// Contents of the store.
    kept: Kept,
    /// The Machines that the store should contain.
    set: Vec<Sourced>,
    /// Time at which a failed write is tried again.
    retry: Option<Instant>,
}

/// Change that the loop follows.
#[derive(Debug)]
pub(super) enum Event {
    /// The source has sent an update.
    Update(Update),
    /// The store's file was replaced by an empty one.
    NewStore,
}

impl Follower {
    /// Makes the loop, and serves the Machines of the last run until the source answers. `rows`: contents of the store.
    pub(super) fn new(
        site: Site,
        updates: mpsc::Receiver<Update>,
        manifests: Arc<dyn TakeManifests>,
        kept: Vec<Sourced>,
        rows: Kept,
    ) -> Self {
        let snapshot = Snapshot::build(&site.name, kept.iter().map(|sourced| sourced.machine.clone()));
        if !snapshot.is_empty() {
            tracing::info!(machines = snapshot.len(), "serving stored Machines until the source answers");
            site.machines.store(snapshot);
        }
        let generation = site.store.generation();
        Self { site, updates, generation, manifests, kept: rows, set: kept, retry: None }
    }

    fn unreachable(&self, reason: String) {
        self.site.source.send_modify(|state| {
            if state.unreachable.as_ref() != Some(&reason) {
                tracing::warn!(source = state.source, reason, "source of Machines unreachable, retrying");
            }
            state.unreachable = Some(reason);
        });
    }

    fn reachable(&self) {
        self.site.source.send_modify(|state| {
            if state.unreachable.take().is_some() {
                tracing::info!(source = state.source, "source of Machines reachable again");
            }
        });
    }

    /// Makes a set the index. Returns true if the store contains it.
    async fn take(
        &mut self,
        machines: Vec<Sourced>,
        others: OtherManifests,
        mut problems: Vec<String>,
    ) -> bool {
        let site = &self.site;
        let last = site.machines.load();
        let snapshot = last.next(&site.name, machines.iter().map(|sourced| sourced.machine.clone()));
        problems.extend(snapshot.problems().iter().map(ToString::to_string));
        let known = snapshot.len();
        site.machines.store(snapshot);
        problems.extend(self.manifests.take(others).await);
        let before = site.source.borrow().clone();
        let logged: HashSet<&String> = before.problems.iter().collect();
        for problem in problems.iter().filter(|problem| !logged.contains(problem)) {
            tracing::warn!(problem, "invalid object in the source of Machines");
        }
        if !before.synced || known != last.len() {
            tracing::info!(source = before.source, machines = known, site = %site.name, "machines known");
        }
        let now = site.machines.load();
        if before.synced {
            site.registry.follow(&last, &now);
        } else {
            site.registry.follow(&Snapshot::default(), &now);
            site.registry.resync(&now);
        }
        let source = before.source.clone();
        site.source.send_replace(SourceState { source, synced: true, unreachable: None, problems });
        self.set = machines;
        self.keep().await
    }

    /// Brings the store up to date. Returns true if it is.
    async fn keep(&mut self) -> bool {
        let (changes, new, gone) = self.plan_keep(&self.set);
        if !changes.is_empty()
            && let Err(error) = self.site.store.write(changes).await
        {
            tracing::error!(%error, "failed to store the known Machines, retrying");
            return false;
        }
        self.kept.retain(|name, _| !gone.contains(name));
        self.kept.extend(new);
        true
    }

    /// Returns the changes to write, the new contents of the store, and the names that it then no longer has. Only objects that are new
    /// are compared. The status in the object is not stored.
    fn plan_keep(&self, machines: &[Sourced]) -> (Vec<Change>, Vec<(String, KeptMachine)>, HashSet<String>) {
        let (mut changes, mut new) = (Vec::new(), Vec::new());
        let mut gone: HashSet<String> = self.kept.keys().cloned().collect();
        for sourced in machines.iter().filter(|sourced| sourced.machine.spec.site == self.site.name) {
            let name = sourced.machine.metadata.name.clone().unwrap_or_default();
            gone.remove(&name);
            let kept = self.kept.get(&name);
            if kept.is_some_and(|kept| kept.is_of(sourced)) {
                continue;
            }
            let mut machine = Machine::clone(&sourced.machine);
            machine.status = None;
            machine.metadata.resource_version = None;
            let origin = sourced.origin.clone();
            let Ok(value) = serde_json::to_vec(&Sourced { origin, machine: Arc::new(machine) }) else {
                continue;
            };
            let digest = digest(&value);
            if kept.is_none_or(|kept| kept.digest != digest) {
                changes.push(Change::Put(Table::Machines, name.clone().into_bytes(), value));
            }
            new.push((name, KeptMachine { from: Some(sourced.clone()), digest }));
        }
        let deletes = gone.iter().map(|name| Change::Delete(Table::Machines, name.clone().into_bytes()));
        changes.extend(deletes);
        (changes, new, gone)
    }
}

impl Reconcile for Follower {
    type Event = Event;

    async fn changed(&mut self) -> Option<Event> {
        tokio::select! {
            update = self.updates.recv() => update.map(Event::Update),
            Ok(()) = self.generation.changed() => Some(Event::NewStore),
        }
    }

    async fn turn(&mut self, activation: Activation<Event>) -> Turn {
        let is_kept = match activation {
            Activation::Start => None,
            Activation::Changed(Event::Update(Update::Set { machines, others, problems })) => {
                Some(self.take(machines, others, problems).await)
            }
            Activation::Changed(Event::Update(Update::Unreachable { reason })) => {
                self.unreachable(reason);
                None
            }
            Activation::Changed(Event::Update(Update::Reachable)) => {
                self.reachable();
                None
            }
            Activation::Changed(Event::NewStore) => {
                self.kept.clear();
                self.site.registry.mark_all();
                Some(self.keep().await)
            }
            Activation::Due => Some(self.keep().await),
        };
        if let Some(is_kept) = is_kept {
            self.retry = (!is_kept).then(|| Instant::now() + WRITE_RETRY_DELAY);
        }
        self.retry.map_or(Turn::Idle, Turn::At)
    }
}

#[cfg(test)]
mod tests;
