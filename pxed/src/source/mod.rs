//! Where Machines come from: a directory of manifests or the Kubernetes API, behind one stream of complete sets.
//!
//! A source (`directory`, `kubernetes`) sends an [`Update`] for every new set; [`follow`] makes it the index, keeps it in
//! the store, and tells the status registry. Before the source has spoken, the set that the store kept is served, so that
//! a restarted pxed boots known Machines while the API server is away; [`SourceState`] says so.

pub mod directory;
pub mod kubernetes;
pub mod manifest;
mod schema;
mod yaml;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_api::id::Digest;
use bedplate_api::id::SiteName;
use bedplate_api::machine::Machine;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;
use tokio::sync::mpsc;

use crate::machine::{Machines, Snapshot};
use crate::status::StatusRegistry;
use crate::store::{Change, Store, StoreError, Table};

/// A Machine and what it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sourced {
    /// The file of the manifest; empty for the API.
    pub origin: String,
    /// The object, shared with the index.
    #[serde(serialize_with = "write_shared", deserialize_with = "read_shared")]
    pub machine: Arc<Machine>,
}

fn write_shared<S: Serializer>(machine: &Arc<Machine>, serializer: S) -> Result<S::Ok, S::Error> {
    machine.as_ref().serialize(serializer)
}

fn read_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Machine>, D::Error> {
    Machine::deserialize(deserializer).map(Arc::new)
}

/// What a source has to say.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// The complete set of Machines now, of every site and provider, and what is wrong with it.
    Set {
        /// The Machines.
        machines: Vec<Sourced>,
        /// One line each, for people.
        problems: Vec<String>,
    },
    /// The source cannot be asked now; what is known stays in force.
    Unreachable {
        /// Why, for people.
        reason: String,
    },
    /// The source can be asked again, and nothing has changed.
    Reachable,
}

/// How the source stands, for readiness and `bedplate`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceState {
    /// What the source is: a directory, or `kubernetes`.
    pub source: String,
    /// Whether it has given a complete set since the start.
    pub synced: bool,
    /// Why it cannot be asked now.
    pub unreachable: Option<String>,
    /// What is wrong with what it gave.
    pub problems: Vec<String>,
}

/// The parts that follow a source.
#[derive(Debug)]
pub struct Follower {
    /// Whose Machines are ours.
    pub site: SiteName,
    /// The index to fill.
    pub machines: Machines,
    /// Where the set is kept.
    pub store: Store,
    /// Who is told of a new set.
    pub registry: StatusRegistry,
    /// How the source stands.
    pub state: Arc<ArcSwap<SourceState>>,
    /// What the store holds now: the digest of each value.
    pub kept: Kept,
}

/// Keys of the store with the digests of their values, to write only what differs.
pub type Kept = BTreeMap<Vec<u8>, Digest>;

fn digest(value: &[u8]) -> Digest {
    Digest::from_sha256(sha2::Sha256::digest(value).into())
}

/// The set that the store kept.
///
/// # Errors
/// The store cannot be read.
pub fn kept(store: &Store) -> Result<(Vec<Sourced>, Kept), StoreError> {
    let entries = store.scan(Table::Machines)?;
    let machines = entries.iter().filter_map(|(key, value)| {
        let read = serde_json::from_slice::<Sourced>(value);
        read.inspect_err(|error| {
            let machine = String::from_utf8_lossy(key);
            tracing::warn!(%machine, %error, "a kept machine cannot be read and is left out");
        })
        .ok()
    });
    Ok((machines.collect(), entries.iter().map(|(key, value)| (key.clone(), digest(value))).collect()))
}

impl Follower {
    /// Serves what the store kept, until the source speaks.
    pub fn begin(&self, kept: Vec<Sourced>) {
        let snapshot = Snapshot::build(&self.site, kept.into_iter().map(|sourced| sourced.machine));
        if !snapshot.is_empty() {
            tracing::info!(
                machines = snapshot.len(),
                "serving the machines known from before, until the source is read"
            );
            self.machines.store(snapshot);
        }
    }

    /// Takes updates until the source ends.
    pub async fn follow(mut self, mut updates: mpsc::Receiver<Update>) {
        while let Some(update) = updates.recv().await {
            match update {
                Update::Set { machines, problems } => self.take(machines, problems).await,
                Update::Unreachable { reason } => {
                    let mut state = SourceState::clone(&self.state.load());
                    if state.unreachable.as_ref() != Some(&reason) {
                        tracing::warn!(
                            source = state.source,
                            reason,
                            "the source of machines cannot be asked"
                        );
                    }
                    state.unreachable = Some(reason);
                    self.state.store(Arc::new(state));
                }
                Update::Reachable => {
                    let mut state = SourceState::clone(&self.state.load());
                    if state.unreachable.take().is_some() {
                        tracing::info!(source = state.source, "the source of machines can be asked again");
                    }
                    self.state.store(Arc::new(state));
                }
            }
        }
    }

    async fn take(&mut self, machines: Vec<Sourced>, mut problems: Vec<String>) {
        let snapshot = Snapshot::build(&self.site, machines.iter().map(|sourced| sourced.machine.clone()));
        problems.extend(snapshot.problems().iter().map(ToString::to_string));
        let before = self.state.load_full();
        for problem in problems.iter().filter(|problem| !before.problems.contains(problem)) {
            tracing::warn!(problem, "the source of machines has a mistake");
        }
        let known = snapshot.len();
        if !before.synced || known != self.machines.load().len() {
            tracing::info!(source = before.source, machines = known, site = %self.site, "machines known");
        }
        self.machines.store(snapshot);
        self.registry.follow(&self.machines.load());
        if !before.synced {
            self.registry.resync(&self.machines.load());
        }
        let source = before.source.clone();
        self.state.store(Arc::new(SourceState { source, synced: true, unreachable: None, problems }));
        self.keep(machines).await;
    }

    /// Brings the store up to date: only what differs is written. The status in the object is not part of it.
    async fn keep(&mut self, machines: Vec<Sourced>) {
        let (mut wanted, mut changes) = (Kept::new(), Vec::new());
        for Sourced { origin, machine } in machines {
            if machine.spec.site != self.site {
                continue;
            }
            let mut machine = Machine::clone(&machine);
            machine.status = None;
            machine.metadata.resource_version = None;
            let key = machine.metadata.name.clone().unwrap_or_default().into_bytes();
            let Ok(value) = serde_json::to_vec(&Sourced { origin, machine: Arc::new(machine) }) else {
                continue;
            };
            let digest = digest(&value);
            if self.kept.get(&key) != Some(&digest) {
                changes.push(Change::Put(Table::Machines, key.clone(), value));
            }
            wanted.insert(key, digest);
        }
        for key in self.kept.keys().filter(|key| !wanted.contains_key(*key)) {
            changes.push(Change::Delete(Table::Machines, key.clone()));
        }
        if changes.is_empty() {
            return;
        }
        match self.store.write(changes).await {
            Ok(()) => self.kept = wanted,
            // Tried again with the next set; meanwhile memory has it.
            Err(error) => {
                tracing::error!(%error, "the known machines are not kept: a restart would not know them");
            }
        }
    }
}
