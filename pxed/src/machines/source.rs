//! Sources of Machines: a directory of manifests or the Kubernetes API, as one stream of complete sets.
//!
//! A source (`standalone::manifests`, `cluster::machines`) sends an [`Update`] for every new set; `run::follow`
//! builds the index from it. Until the source has answered, the set in the store is served, so that a restarted pxed
//! boots known Machines while the API server is unreachable; [`SourceState`] reports that.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::id::Digest;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;
use thiserror::Error;

use crate::store::{Store, StoreError, Table};

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
    /// File and line, for users.
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
    /// File and line, for users.
    pub fn place(&self) -> String {
        format!("{}:{}", self.origin, self.line)
    }
}

/// Other objects in the manifests next to the Machines; empty in a cluster, where other tasks follow them.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherManifests {
    /// The operations.
    pub operations: Vec<SourcedOperation>,
    /// The configurations. A name occurs twice if two manifests define it.
    pub configurations: Vec<SourcedConfiguration>,
    /// True if the set is complete: false while a file has an error and was never read successfully by this process,
    /// so that its content is unknown.
    pub whole: bool,
}

impl OtherManifests {
    /// Nothing at all.
    pub(crate) const NOTHING: Self = Self { operations: Vec::new(), configurations: Vec::new(), whole: true };
}

/// Receiver of the objects in manifests that are not Machines.
#[async_trait]
pub(crate) trait TakeManifests: Send + Sync {
    /// Follows a set. Returns what is wrong with it, one line each.
    async fn take(&self, others: OtherManifests) -> Vec<String>;
}

fn write_shared<S: Serializer>(machine: &Arc<Machine>, serializer: S) -> Result<S::Ok, S::Error> {
    machine.as_ref().serialize(serializer)
}

fn read_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Machine>, D::Error> {
    Machine::deserialize(deserializer).map(Arc::new)
}

/// Message of a source.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// The complete set of Machines now, of every site and provider, and what is wrong with it.
    Set {
        /// The Machines.
        machines: Vec<Sourced>,
        /// Other objects next to the Machines.
        others: OtherManifests,
        /// One line each, for users.
        problems: Vec<String>,
    },
    /// The source cannot be asked now; what is known stays in force.
    Unreachable {
        /// Human-readable reason.
        reason: String,
    },
    /// The source can be asked again, and nothing has changed.
    Reachable,
}

/// Reason why a source ended without being asked to.
#[derive(Debug, Error)]
pub enum SourceEnded {
    /// Programming error.
    #[error("reader of the machines directory panicked")]
    Reading(#[source] tokio::task::JoinError),
    /// The watch, which tries again for ever, has not.
    #[error("the watch of the API server's machines has ended")]
    Watch,
    /// The task that builds the index from the sets has ended.
    #[error("receiver of the machines has ended")]
    Unheard,
}

/// State of the source, for readiness and `bedplate`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceState {
    /// Name of the source: a directory, or `kubernetes`.
    pub source: String,
    /// True if it has delivered a complete set since the start.
    pub synced: bool,
    /// Reason why it is unreachable now.
    pub unreachable: Option<String>,
    /// Problems of the delivered set.
    pub problems: Vec<String>,
}

/// Machines in the store, by name: only differences are written, and only new content is checked.
pub type Kept = BTreeMap<String, KeptMachine>;

/// One Machine in the store.
#[derive(Debug, Clone)]
pub struct KeptMachine {
    /// Origin of the value. None if it could not be read.
    pub from: Option<Sourced>,
    /// Digest of the value.
    pub digest: Digest,
}

impl KeptMachine {
    /// Returns true if the value was made of this very object.
    pub fn is_of(&self, sourced: &Sourced) -> bool {
        let from = self.from.as_ref();
        from.is_some_and(|from| Arc::ptr_eq(&from.machine, &sourced.machine) && from.origin == sourced.origin)
    }
}

/// Returns the digest of a value.
pub fn digest(value: &[u8]) -> Digest {
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
            tracing::warn!(machine = name, %error, "skipping unreadable stored Machine");
        });
        let from = from.ok();
        machines.extend(from.clone());
        kept.insert(name, KeptMachine { from, digest: digest(&value) });
    }
    Ok((machines, kept))
}
