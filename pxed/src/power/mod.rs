//! Power: drives the BMCs of this site's Machines, and carries out MachineOperations (docs/rules.md, A3, H2, O1 to O7).
//!
//! ```text
//! Machines, operations, leadership -> supervisor -> one worker per Machine with a BMC: observe -> plan -> apply -> report
//! ```
//!
//! What is decided is pure (`plan`, `operation`, `breaker`); what is done goes through the traits here, so that a worker
//! knows neither Kubernetes nor a file. Spawned by `run`.

mod apply;
pub mod boot_mode;
pub mod breaker;
mod carry;
mod contested;
pub mod counters;
pub mod credentials;
mod departing;
pub mod dial;
mod election;
pub mod gate;
pub mod holding;
pub mod leader;
mod line;
pub mod memory;
pub mod operation;
pub mod operations;
pub mod order;
pub mod plan;
pub mod progress;
pub mod queue;
pub mod report;
mod ripening;
mod shared;
pub mod supervisor;
mod tell;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{BmcSpec, CredentialsSecretRef};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_bmc::{Bmc, BmcError, Credentials};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::counters::Counters;
pub use self::supervisor::{Limits, Parts, run};

/// Which operation: a later object of the same name has another uid.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationKey {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`; of a manifest without one, what stands for it.
    pub uid: String,
}

/// An operation as its source knows it now.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// Which one.
    pub key: OperationKey,
    /// The object, with its status.
    pub object: Arc<MachineOperation>,
    /// What a write must still find: `metadata.resourceVersion`, or the count of writes.
    pub version: String,
}

/// What a source of operations tells. Nothing of it is selected: routing is the supervisor's.
#[derive(Debug, Clone, PartialEq)]
pub enum OperationUpdate {
    /// The complete set.
    Set(Vec<Operation>),
    /// One that is new or other than before.
    Put(Operation),
    /// One that is gone.
    Gone(OperationKey),
}

/// Why the status of an operation was not written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WriteOperationError {
    /// Somebody has written since: look at it again.
    #[error("the operation was changed by somebody else")]
    Conflict,
    /// There is no such operation any more.
    #[error("the operation is gone")]
    Gone,
    /// It will never be taken.
    #[error("the operation's status is refused: {0}")]
    Refused(String),
    /// Away, busy, or not allowed now.
    #[error("the operation's status cannot be written now: {0}")]
    Later(String),
}

/// Where the executor writes how an operation goes.
#[async_trait]
pub trait OperationWriter: Send + Sync {
    /// Writes the whole status, durably, if the operation is still of `operation.version`; gives it back as it is then.
    async fn write(
        &self,
        operation: &Operation,
        status: MachineOperationStatus,
    ) -> Result<Operation, WriteOperationError>;
}

/// Why an operation was not made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CreateOperationError {
    /// Operations are made in the cluster.
    #[error("this pxed takes its operations from the cluster")]
    UseCluster,
    /// The name is taken.
    #[error("there is an operation {0} already")]
    Exists(String),
    /// No such Machine.
    #[error("no Machine {0} of this site is known here")]
    NoMachine(String),
    /// What is wrong with it.
    #[error("{0}")]
    Invalid(String),
    /// Not now.
    #[error("the operation cannot be kept now: {0}")]
    Later(String),
}

/// Where people make operations and look at them: the admin socket's side.
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
    /// Which state of the Secret they are.
    pub version: CredentialsVersion,
}

/// Why there are no credentials; for a person, without anything of the content.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the credentials of Secret {namespace}/{name} are not available: {problem}")]
pub struct CredentialsError {
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub name: String,
    /// What is wrong, and what to do.
    pub problem: String,
    /// It may pass by itself: who keeps the Secret cannot be asked now.
    pub transient: bool,
}

/// Where credentials are read, one at a time, when they are needed. Nothing is kept.
#[async_trait]
pub trait CredentialsSource: Send + Sync {
    /// Reads a Secret.
    async fn read(&self, secret: &CredentialsSecretRef) -> Result<Issued, CredentialsError>;
}

/// Makes a client for a BMC; nothing is sent to it yet.
#[async_trait]
pub trait Dial: Send + Sync {
    /// A client with these credentials.
    async fn dial(&self, bmc: &BmcSpec, credentials: Credentials) -> Result<Box<dyn Bmc>, BmcError>;
}

/// What holds an object back from being deleted until its machine is off (`deletionPolicy: PowerOff`).
#[async_trait]
pub trait Holding: Send + Sync {
    /// Puts pxed's finalizer on the Machine, or takes it off. Done already is done.
    ///
    /// # Errors
    /// Why not, for the log; it is tried again.
    async fn hold(&self, machine: &MachineName, uid: &str, held: bool) -> Result<(), String>;
}

/// How long this pxed leads its site, by the monotonic clock. Checked immediately before anything is sent that changes
/// power: whoever has led before has stopped by then.
#[derive(Clone)]
pub struct Tenure(watch::Receiver<Option<Instant>>);

impl Tenure {
    /// A tenure whose end `receiver` tells; `None`: this pxed does not lead.
    pub fn new(receiver: watch::Receiver<Option<Instant>>) -> Self {
        Self(receiver)
    }

    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        self.0.borrow().is_some_and(|end| Instant::now() < end)
    }

    /// Waits until it may lead or no longer lead. Never, when nobody tells any more.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends when it does not lead any more.
    pub async fn lost(&mut self) {
        loop {
            let end = *self.0.borrow_and_update();
            let Some(end) = end.filter(|end| Instant::now() < *end) else { return };
            tokio::select! {
                () = self.changed() => {}
                () = tokio::time::sleep_until(end) => {}
            }
        }
    }

    /// Does something while it leads, asked anew before every part of it: a process that was stopped for a while finds both
    /// an answer and its end, in whatever order. `None`: it does not lead any more, and the rest is not done.
    pub async fn during<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|context| match self.leads() {
            true => work.as_mut().poll(context).map(Some),
            false => Poll::Ready(None),
        })
        .await
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenure(leads: {})", self.leads())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn who_was_stopped_beyond_its_tenure_does_not_go_on_with_what_it_had_begun() {
        let end = Instant::now() + Duration::from_millis(20);
        let (_sender, receiver) = watch::channel(Some(end));
        let tenure = Tenure::new(receiver);
        let parts = std::cell::Cell::new(0);
        let work = std::future::poll_fn(|_| {
            parts.set(parts.get() + 1);
            // No timer fires meanwhile: the process stands still.
            while Instant::now() < end {}
            if parts.get() < 2 { Poll::Pending } else { Poll::Ready(()) }
        });
        let mut lost = tenure.clone();
        let mut whole = Box::pin(async {
            tokio::select! {
                biased;
                () = lost.lost() => None,
                done = tenure.during(work) => done,
            }
        });
        assert_eq!(futures::poll!(&mut whole), Poll::Pending);
        assert_eq!((futures::poll!(&mut whole), parts.get()), (Poll::Ready(None), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenure_that_is_not_renewed_ends_by_itself() {
        let (sender, receiver) = watch::channel(None);
        let mut tenure = Tenure::new(receiver);
        assert!(!tenure.leads());
        let now = Instant::now();
        sender.send_replace(Some(now + Duration::from_secs(10)));
        assert!(tenure.leads());
        tenure.lost().await;
        assert!(!tenure.leads());
        assert_eq!(now.elapsed(), Duration::from_secs(10));
    }
}
