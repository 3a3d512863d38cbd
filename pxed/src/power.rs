//! Power: drives the BMCs of this site's Machines, and carries out MachineOperations (docs/design/rules.md, A3, H2, O1 to O7).
//!
//! ```text
//! Machines, operations, leadership -> supervisor -> one worker per Machine with a BMC: observe -> plan -> apply -> report
//! ```
//!
//! What is decided is pure (`plan`, `operation`, `breaker`); what is done goes through the traits here, so that a worker
//! knows neither Kubernetes nor a file. Spawned by `run`.

pub mod bmc;
pub mod counters;
pub mod fleet;
pub mod machine;
pub mod operations;
pub mod plan;
pub mod progress;
pub mod status;

use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::machine::BmcSpec;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::secret::SecretReference;
use bedplate_bmc::{Bmc, BmcError, Credentials};
pub use bedplate_process::lease::Tenure;
use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::{mpsc, watch};

pub use self::bmc::destination::Destinations;
pub use self::counters::Counters;
pub use self::fleet::supervisor::{Limits, Parts, run};
use self::machine::takeover::Tokens;
use self::plan::claim::Claims;

/// UID of the operation: a later object of the same name has another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationKey {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, or its substitute for a manifest without a UID.
    pub uid: String,
}

/// An operation as its source knows it now.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// Which one.
    pub key: OperationKey,
    /// The object, with its status.
    pub object: Arc<MachineOperation>,
    /// Version that a write must still find: `metadata.resourceVersion`, or the number of writes.
    pub version: String,
    /// Time of the latest write of its status, by the clock of the API server or of this pxed. The times in a status are those of its
    /// executor, which may be a host with a wrong clock.
    pub written: Option<Timestamp>,
}

/// Change from a source of operations. The list is unfiltered: routing is done by the supervisor.
#[derive(Debug, Clone, PartialEq)]
pub enum OperationUpdate {
    /// The complete set.
    Set(Vec<Operation>),
    /// A new or changed operation.
    Put(Operation),
    /// A deleted operation.
    Gone(OperationKey),
}

/// Error of writing the status of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WriteOperationError {
    /// Another writer changed the operation; it must be read again.
    #[error("operation was changed by another writer")]
    Conflict,
    /// There is no such operation any more.
    #[error("the operation was deleted")]
    Gone,
    /// The status is rejected permanently.
    #[error("the status of the operation was rejected: {0}")]
    Refused(String),
    /// Away, busy, or not allowed now.
    #[error("the status of the operation cannot be written now: {0}")]
    Later(String),
}

/// Destination of an operation's progress, used by the executor.
#[async_trait]
pub trait OperationWriter: Send + Sync {
    /// Writes the whole status, durably, if the operation still has `operation.version`. Returns the new operation.
    async fn write(
        &self,
        operation: &Operation,
        status: MachineOperationStatus,
    ) -> Result<Operation, WriteOperationError>;
}

/// Error of creating an operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CreateOperationError {
    /// Operations are made in the cluster.
    #[error("this pxed reads its operations from the cluster")]
    UseKubernetesApi,
    /// The name is taken.
    #[error("operation {0} already exists")]
    Exists(String),
    /// No such Machine.
    #[error("this pxed does not know a Machine {0} of this site")]
    NoMachine(String),
    /// The operation is invalid, with the problem.
    #[error("{0}")]
    Invalid(String),
    /// The operation cannot be stored now.
    #[error("the operation cannot be stored now: {0}")]
    Later(String),
}

/// Place where users create and list operations: the side of the admin socket.
#[async_trait]
pub trait OperationDesk: Send + Sync {
    /// Makes an operation of a checked object; `metadata.generateName` is completed. It is durable when this returns.
    async fn create(&self, object: MachineOperation) -> Result<MachineOperation, CreateOperationError>;
    /// Every operation that is known here, oldest first.
    fn list(&self) -> Vec<Arc<MachineOperation>>;
    /// One by its name.
    fn get(&self, name: &str) -> Option<Arc<MachineOperation>>;
}

/// Tells one state of a Secret from another without showing it: `metadata.uid` and `resourceVersion`, or a file's stamp.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CredentialsVersion(pub String);

/// Credentials as they were read.
#[derive(Debug, Clone)]
pub struct Issued {
    /// Never shown.
    pub credentials: Credentials,
    /// Version of the Secret.
    pub version: CredentialsVersion,
    /// Addresses to which they may be sent.
    pub destinations: Destinations,
}

/// Error of reading credentials. The texts are for users and contain no part of the content.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the credentials of Secret {namespace}/{name} are not available: {problem}")]
pub struct CredentialsError {
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub name: String,
    /// Problem and remedy.
    pub problem: String,
    /// True if the error is temporary: the source of the Secret is unavailable.
    pub transient: bool,
}

/// Source of credentials, which are read one at a time when they are needed. Nothing is cached.
#[async_trait]
pub trait CredentialsSource: Send + Sync {
    /// Reads a Secret.
    async fn read(&self, secret: &SecretReference) -> Result<Issued, CredentialsError>;
}

/// Makes a client for a BMC; nothing is sent to it yet.
#[async_trait]
pub trait Dial: Send + Sync {
    /// A client with these credentials.
    async fn dial(&self, bmc: &BmcSpec, credentials: Credentials) -> Result<Box<dyn Bmc>, BmcError>;
}

/// Keeps a deleted Machine known until its machine is off (`deletionPolicy: PowerOff`).
#[async_trait]
pub trait Holding: Send + Sync {
    /// Adds pxed's finalizer to the Machine, or removes it. Idempotent.
    ///
    /// # Errors
    /// The cause, for the log. The caller retries.
    async fn hold(&self, machine: &MachineName, uid: &str, held: bool) -> Result<(), String>;

    /// Releases a deleted Machine whose machine is off.
    ///
    /// # Errors
    /// The cause, for the log. The caller retries.
    async fn release(&self, machine: &MachineName, uid: &str) -> Result<(), String>;
}

/// Origin of the site's Machines and operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Manifests of this pxed alone. They are deleted without a finalizer, and a name that is missing may follow.
    Manifests,
    /// Objects in a cluster. Other programs read them and may switch machines, and a finalizer holds a deleted Machine.
    Cluster,
}

/// The plane's side of power.
pub struct PowerPlane {
    /// Origin of Machines and operations.
    pub origin: Origin,
    /// Operations, whatever executor they are for.
    pub updates: mpsc::Receiver<OperationUpdate>,
    /// MachineClaims of the site. Without a cluster there are none, and they are never known.
    pub claims: watch::Receiver<Claims>,
    /// Writer of their statuses.
    pub writer: Arc<dyn OperationWriter>,
    /// Reader of credentials.
    pub credentials: Arc<dyn CredentialsSource>,
    /// Keeps deleted Machines known.
    pub holding: Arc<dyn Holding>,
    /// Record of used takeover tokens.
    pub tokens: Arc<dyn Tokens>,
    /// Time for which this pxed leads.
    pub tenure: Tenure,
}
