//! State that all workers share, and the assignment of each worker.
//!
//! Callers: `supervisor`, which creates both; `worker`, `connection`.

use std::sync::Arc;

use bedplate_api::machine::ObservedNodeState;
use jiff::Timestamp;

use super::finalizers::is_held;
use super::supervisor::Limits;
use crate::machines::KnownMachine;
use crate::power::bmc::limits::Gate;
use crate::power::counters::Counters;
use crate::power::machine::takeover::{self, Tokens};
use crate::power::plan::claim::ClaimSeen;
use crate::power::progress::{Ended, ShutDown};
use crate::power::{CredentialsSource, Dial, Holding, Operation, OperationWriter, Origin, Tenure};
use crate::status::StatusRegistry;
use crate::store::Store;

/// Tells the time.
pub(crate) type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// State that all workers share.
pub(crate) struct Shared {
    pub(crate) gate: Gate,
    pub(crate) registry: StatusRegistry,
    pub(crate) store: Store,
    pub(crate) writer: Arc<dyn OperationWriter>,
    pub(crate) credentials: Arc<dyn CredentialsSource>,
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) holding: Arc<dyn Holding>,
    pub(crate) tokens: Arc<dyn Tokens>,
    pub(crate) tenure: Tenure,
    pub(crate) origin: Origin,
    pub(crate) limits: Limits,
    pub(crate) instance: String,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Clock,
}

impl Shared {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// From -1 to 1.
    pub(crate) fn jitter(&self) -> f64 {
        rand::random::<f64>() * 2.0 - 1.0
    }

    /// Releases a deleted Machine whose machine is off. Returns true if that is done.
    pub(crate) async fn release(&self, machine: &KnownMachine) -> bool {
        let released = self.holding.release(&machine.name, &machine.uid).await;
        if let Err(error) = &released {
            tracing::warn!(machine = %machine.name, error, "failed to release a deleted machine, retrying");
        }
        released.is_ok()
    }
}

/// Task of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub(crate) machine: Arc<KnownMachine>,
    /// Oldest first.
    pub(crate) operations: Vec<Operation>,
    /// The newest that has ended.
    pub(crate) ended: Option<Ended>,
    /// Newest shutdown that its agent has taken.
    pub(crate) shut_down: Option<ShutDown>,
    /// The manifest was removed.
    pub(crate) departing: bool,
    /// MachineClaim of its name, if claims decide about its power.
    pub(crate) claim: ClaimSeen,
    /// Another Machine has the same BMC; with a text for users.
    pub(crate) contested: Option<Arc<str>>,
}

impl Assignment {
    /// Returns what a takeover knows of the Node of the Machine's name; `None`: nothing, or no token is set.
    fn observed_node(&self) -> Option<ObservedNodeState> {
        let object = &self.machine.machine;
        takeover::set(&object.spec).and_then(|_| takeover::observed_node(object))
    }

    /// Returns true if the Machine is being deleted.
    pub(crate) fn is_going(&self) -> bool {
        self.departing || self.machine.machine.metadata.deletion_timestamp.is_some()
    }

    /// Returns true if pxed's finalizer is on the Machine.
    pub(crate) fn is_held(&self) -> bool {
        is_held(&self.machine.machine)
    }

    /// Returns true if a worker would act in the same way: status writes of others do not cause BMC requests.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.machine.machine.spec == other.machine.machine.spec
            && self.machine.uid == other.machine.uid
            && (self.is_going(), self.is_held(), self.departing)
                == (other.is_going(), other.is_held(), other.departing)
            && self.operations == other.operations
            && self.shut_down == other.shut_down
            && self.contested == other.contested
            && self.claim == other.claim
            && self.observed_node() == other.observed_node()
    }
}
