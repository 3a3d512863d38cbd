//! What stands in for a cluster to an agent whose pxed has none: its Machine and its operations, and how they go.
//!
//! ```text
//!   agent                                             pxed
//!     | POST /v1/watch, the revision that it knows --> | answered when that is not the newest, at the latest after 20 s
//!     | POST /v1/operation, a status ----------------> | taken if the operation is as the agent has read it
//!     | POST /v1/node -------------------------------> | how the host's node stands, for people
//! ```
//! Each agent is told of its own Machine only, by its certificate. Chooses no configuration. Called by `serve`.

use std::time::Duration;

use bedplate_api::id::Digest;
use bedplate_api::machine::{Machine, Slot, condition_type};
use bedplate_api::operation::MachineOperation;
use bedplate_api::wire::{
    NodeReport, OperationWrite, OperationWritten, WATCH_SECONDS, WatchRequest, WatchResponse,
};
use kube::core::ObjectMeta;
use sha2::Digest as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::bounds;
use super::counters::Reason;
use super::identity::Identity;
use super::service::{Refused, Service, refused};
use crate::machine::KnownMachine;
use crate::power::operations::local::LocalOperations;

/// Slots of a host.
const SLOTS: usize = 2;
/// What is kept of a condition's message, in characters.
const MOST_MESSAGE: usize = 4096;
/// What is kept of the reason of a roll-back, in characters.
const MOST_REASON: usize = 1024;

impl Service {
    /// `POST /v1/watch`, by an agent that showed its certificate.
    ///
    /// # Errors
    /// The refusal.
    pub async fn watch(&self, identity: &Identity, request: WatchRequest) -> Result<WatchResponse, Refused> {
        let operations = self.standalone()?;
        let until = Instant::now() + Duration::from_secs(WATCH_SECONDS);
        let (mut changed, mut machines) = (operations.changes(), self.machines.subscribe());
        loop {
            changed.mark_unchanged();
            machines.mark_unchanged();
            self.check_identity(identity).await?;
            let word = self.word(identity, operations)?;
            if let WatchResponse::Changed { revision, .. } = &word
                && request.known.as_ref() != Some(revision)
            {
                return Ok(word);
            }
            if timeout_at(until, either(&mut changed, &mut machines)).await.is_err() {
                return Ok(WatchResponse::Same);
            }
        }
    }

    /// All that the agent is told.
    fn word(&self, identity: &Identity, operations: &LocalOperations) -> Result<WatchResponse, Refused> {
        let name = &identity.machine;
        let Some(known) = self.machines.load().by_name(name).cloned() else {
            return refused(Reason::MachineGone, format!("Machine {name} is no longer known here"));
        };
        let machine = Box::new(told(&known));
        let operations: Vec<_> =
            operations.of_agent(name).iter().map(|one| MachineOperation::clone(one)).collect();
        // Plain data with text keys: it always has a JSON form.
        let text = serde_json::to_vec(&(&machine, &operations)).unwrap_or_default();
        let revision = Digest::from_sha256(sha2::Sha256::digest(text).into()).hex();
        Ok(WatchResponse::Changed { revision, machine, operations })
    }

    /// `POST /v1/operation`, by an agent that showed its certificate.
    ///
    /// # Errors
    /// The refusal. That the operation is another by now is no refusal.
    pub async fn write_operation(
        &self,
        identity: &Identity,
        write: OperationWrite,
    ) -> Result<OperationWritten, Refused> {
        let operations = self.standalone()?;
        self.check_identity(identity).await?;
        let written = operations.write_of_agent(&identity.machine, write).await;
        written
            .or_else(|why| refused(Reason::StoreFailed, format!("the operation cannot be kept now: {why}")))
    }

    /// `POST /v1/node`, by an agent that showed its certificate.
    ///
    /// # Errors
    /// The refusal.
    pub async fn take_node(&self, identity: &Identity, node: NodeReport) -> Result<(), Refused> {
        self.standalone()?;
        self.check_identity(identity).await?;
        let NodeReport { applied, mut slots, mut rolled_back, conditions } = node;
        slots.truncate(SLOTS);
        let slots: Vec<Slot> = slots;
        if let Some(back) = &mut rolled_back {
            back.reason = bounds::cut(std::mem::take(&mut back.reason), MOST_REASON);
        }
        let own = [condition_type::PAVED, condition_type::NODE_READY];
        self.registry.update(&identity.machine, |status| {
            (status.applied, status.slots, status.rolled_back) = (applied, slots, rolled_back);
            status.conditions.retain(|condition| !own.contains(&condition.type_.as_str()));
            for kind in own {
                let Some(mut condition) = conditions.iter().find(|told| told.type_ == kind).cloned() else {
                    continue;
                };
                condition.reason = bounds::cut(condition.reason, bounds::WORD);
                condition.status = bounds::cut(condition.status, bounds::WORD);
                condition.message = bounds::cut(condition.message, MOST_MESSAGE);
                status.conditions.push(condition);
            }
        });
        Ok(())
    }

    fn standalone(&self) -> Result<&LocalOperations, Refused> {
        match &self.operations {
            Some(operations) => Ok(operations),
            None => refused(Reason::UseCluster, "this pxed belongs to a cluster: ask its API server"),
        }
    }
}

/// A Machine as its agent is told of it: what a person wrote, and which one it is.
fn told(known: &KnownMachine) -> Machine {
    let metadata = &known.machine.metadata;
    Machine {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            uid: Some(known.uid.clone()),
            labels: metadata.labels.clone(),
            annotations: metadata.annotations.clone(),
            ..ObjectMeta::default()
        },
        spec: known.machine.spec.clone(),
        status: None,
    }
}

/// Ends when one of them has changed; never if nobody can change them any more.
async fn either(operations: &mut watch::Receiver<()>, machines: &mut watch::Receiver<u64>) {
    let changed = tokio::select! {
        changed = operations.changed() => changed,
        changed = machines.changed() => changed,
    };
    if changed.is_err() {
        std::future::pending::<()>().await;
    }
}
