//! Where Machines come from: a directory of manifests or the Kubernetes API, behind one stream of complete sets.
//!
//! A source (`standalone::manifests`, `cluster::machines`) sends an [`Update`] for every new set; [`follow`] makes it the index, keeps it in
//! the store, tells the status registry, and hands on what stands beside the Machines. Before the source has spoken, the set that the store kept is served, so that
//! a restarted pxed boots known Machines while the API server is away; [`SourceState`] says so.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::id::Digest;
use bedplate_api::id::SiteName;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::machines::{Machines, Snapshot};
use crate::standalone::operations::LocalOperations;
use crate::standalone::versions::NodeChoice;
use crate::status::StatusRegistry;
use crate::store::{Change, Store, StoreError, Table};

/// How long after a failed write of the Machines they are written again.
const KEEP_AGAIN: Duration = Duration::from_secs(10);

/// A Machine and what it came from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sourced {
    /// The file of the manifest; empty for the API.
    pub origin: String,
    /// The object, shared with the index.
    #[serde(serialize_with = "write_shared", deserialize_with = "read_shared")]
    pub machine: Arc<Machine>,
}

impl PartialEq for Sourced {
    fn eq(&self, other: &Self) -> bool {
        self.origin == other.origin
            && (Arc::ptr_eq(&self.machine, &other.machine) || self.machine == other.machine)
    }
}

/// A MachineOperation of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcedOperation {
    /// The file.
    pub origin: String,
    /// The line that it begins at.
    pub line: u64,
    /// The object.
    pub operation: Arc<MachineOperation>,
}

impl SourcedOperation {
    /// File and line, for people.
    pub fn place(&self) -> String {
        format!("{}:{}", self.origin, self.line)
    }
}

/// A MachineConfiguration of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcedConfiguration {
    /// The file.
    pub origin: String,
    /// The line that it begins at.
    pub line: u64,
    /// The object.
    pub configuration: Arc<MachineConfiguration>,
}

impl SourcedConfiguration {
    /// File and line, for people.
    pub fn place(&self) -> String {
        format!("{}:{}", self.origin, self.line)
    }
}

/// What stands in manifests beside the Machines; of a cluster nothing, where others follow it.
#[derive(Debug, Clone, PartialEq)]
pub struct Beside {
    /// The operations.
    pub operations: Vec<SourcedOperation>,
    /// The configurations; two of one name if that stands in two places.
    pub configurations: Vec<SourcedConfiguration>,
    /// Whether nothing is missing: false while a file has a mistake and was never read well by this process, so that nobody
    /// knows what stands in it.
    pub whole: bool,
}

impl Beside {
    /// Nothing at all.
    pub const NOTHING: Self = Self { operations: Vec::new(), configurations: Vec::new(), whole: true };
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
        /// What stands beside them.
        beside: Beside,
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

/// Why a source has ended that nobody told to.
#[derive(Debug, Error)]
pub enum SourceEnded {
    /// A mistake in this program.
    #[error("reading the machines directory did not come to its end")]
    Reading(#[source] tokio::task::JoinError),
    /// The watch, which tries again for ever, has not.
    #[error("the watch of the API server's machines has ended")]
    Watch,
    /// Who makes the sets the index has ended.
    #[error("nobody takes the machines any more")]
    Unheard,
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
pub struct Follower {
    /// Whose Machines are ours.
    pub site: SiteName,
    /// The index to fill.
    pub machines: Machines,
    /// Where the set is kept.
    pub store: Store,
    /// Who is told of a new set.
    pub registry: StatusRegistry,
    /// Who takes the operations of manifests; none in a cluster.
    pub operations: Option<LocalOperations>,
    /// Who takes the configurations of manifests; none in a cluster.
    pub choice: Option<NodeChoice>,
    /// How the source stands.
    pub state: Arc<ArcSwap<SourceState>>,
    /// What the store holds now.
    pub kept: Kept,
    /// The Machines that the store is to hold.
    pub set: Vec<Sourced>,
}

/// What the store holds of the Machines, by name: only what differs is written, and only what is new is looked at.
pub type Kept = BTreeMap<String, KeptMachine>;

/// One Machine in the store.
#[derive(Debug, Clone)]
pub struct KeptMachine {
    /// What the value was made of; none if it could not be read.
    from: Option<Sourced>,
    /// The value's digest.
    digest: Digest,
}

impl KeptMachine {
    /// Whether the value was made of this very object.
    fn is_of(&self, sourced: &Sourced) -> bool {
        let from = self.from.as_ref();
        from.is_some_and(|from| Arc::ptr_eq(&from.machine, &sourced.machine) && from.origin == sourced.origin)
    }
}

fn digest(value: &[u8]) -> Digest {
    Digest::from_sha256(sha2::Sha256::digest(value).into())
}

/// The set that the store kept.
///
/// # Errors
/// The store cannot be read.
pub fn kept(store: &Store) -> Result<(Vec<Sourced>, Kept), StoreError> {
    let (mut machines, mut kept) = (Vec::new(), Kept::new());
    for (key, value) in store.scan(Table::Machines)? {
        let name = String::from_utf8_lossy(&key).into_owned();
        let read = serde_json::from_slice::<Sourced>(&value);
        let from = read.inspect_err(|error| {
            tracing::warn!(machine = name, %error, "a kept machine cannot be read and is left out");
        });
        let from = from.ok();
        machines.extend(from.clone());
        kept.insert(name, KeptMachine { from, digest: digest(&value) });
    }
    Ok((machines, kept))
}

impl Follower {
    /// Serves what the store kept, until the source speaks.
    pub fn begin(&mut self, kept: Vec<Sourced>) {
        let snapshot = Snapshot::build(&self.site, kept.iter().map(|sourced| sourced.machine.clone()));
        self.set = kept;
        if !snapshot.is_empty() {
            tracing::info!(
                machines = snapshot.len(),
                "serving the machines known from before, until the source is read"
            );
            self.machines.store(snapshot);
        }
    }

    /// Takes updates until the source ends. What the store does not hold, because a write failed or its file was begun
    /// anew, is written without waiting for a set: there may be none for a long time.
    pub async fn follow(mut self, mut updates: mpsc::Receiver<Update>) {
        let mut generation = self.store.generation();
        let mut again: Option<Instant> = None;
        loop {
            let kept = tokio::select! {
                update = updates.recv() => match update {
                    Some(Update::Set { machines, beside, problems }) => {
                        self.take(machines, beside, problems).await
                    }
                    Some(Update::Unreachable { reason }) => {
                        self.unreachable(reason);
                        continue;
                    }
                    Some(Update::Reachable) => {
                        self.reachable();
                        continue;
                    }
                    None => return,
                },
                Ok(()) = generation.changed() => {
                    self.kept.clear();
                    self.registry.mark_all();
                    self.keep().await
                }
                () = until(again) => self.keep().await,
            };
            again = if kept { None } else { Instant::now().checked_add(KEEP_AGAIN) };
        }
    }

    fn unreachable(&self, reason: String) {
        let mut state = SourceState::clone(&self.state.load());
        if state.unreachable.as_ref() != Some(&reason) {
            tracing::warn!(source = state.source, reason, "the source of machines cannot be asked");
        }
        state.unreachable = Some(reason);
        self.state.store(Arc::new(state));
    }

    fn reachable(&self) {
        let mut state = SourceState::clone(&self.state.load());
        if state.unreachable.take().is_some() {
            tracing::info!(source = state.source, "the source of machines can be asked again");
        }
        self.state.store(Arc::new(state));
    }

    /// Takes a new set over; whether the store holds it.
    async fn take(&mut self, machines: Vec<Sourced>, beside: Beside, mut problems: Vec<String>) -> bool {
        let last = self.machines.load();
        let snapshot = last.next(&self.site, machines.iter().map(|sourced| sourced.machine.clone()));
        problems.extend(snapshot.problems().iter().map(ToString::to_string));
        let known = snapshot.len();
        self.machines.store(snapshot);
        let Beside { operations, configurations, whole } = beside;
        if let Some(taker) = &self.operations {
            problems.extend(taker.take(operations, whole).await);
        }
        if let Some(taker) = &self.choice {
            taker.take(configurations, whole).await;
        }
        let before = self.state.load_full();
        let told: HashSet<&String> = before.problems.iter().collect();
        for problem in problems.iter().filter(|problem| !told.contains(problem)) {
            tracing::warn!(problem, "the source of machines has a mistake");
        }
        if !before.synced || known != last.len() {
            tracing::info!(source = before.source, machines = known, site = %self.site, "machines known");
        }
        let now = self.machines.load();
        if before.synced {
            self.registry.follow(&last, &now);
        } else {
            self.registry.follow(&Snapshot::default(), &now);
            self.registry.resync(&now);
        }
        let source = before.source.clone();
        self.state.store(Arc::new(SourceState { source, synced: true, unreachable: None, problems }));
        self.set = machines;
        self.keep().await
    }

    /// Brings the store up to date; whether it is now.
    async fn keep(&mut self) -> bool {
        let (changes, new, gone) = self.plan_keep(&self.set);
        if !changes.is_empty()
            && let Err(error) = self.store.write(changes).await
        {
            // Memory has it meanwhile.
            tracing::error!(%error, "the known machines are not kept yet: a restart would not know them");
            return false;
        }
        self.kept.retain(|name, _| !gone.contains(name));
        self.kept.extend(new);
        true
    }

    /// What to write, what the store then holds that is new, and what it no longer holds. Only objects that were not
    /// looked at before are; the status in the object is not kept.
    fn plan_keep(&self, machines: &[Sourced]) -> (Vec<Change>, Vec<(String, KeptMachine)>, HashSet<String>) {
        let (mut changes, mut new) = (Vec::new(), Vec::new());
        let mut gone: HashSet<String> = self.kept.keys().cloned().collect();
        for sourced in machines.iter().filter(|sourced| sourced.machine.spec.site == self.site) {
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

/// Waits until `due`; without one for ever.
pub(crate) async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
