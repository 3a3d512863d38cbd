//! Agent API if standalone: an agent reads its Machine, its selected version with the Secrets of that version, and its operations. It writes
//! the state of its operations and of its node.
//!
//! ```text
//!   agent                                             pxed
//!     | POST /v1/watch, the revision that it knows --> | answered when that is not the newest, at the latest after 20 s
//!     | POST /v1/operation, a status ----------------> | taken if the operation is as the agent has read it
//!     | POST /v1/node -------------------------------> | how the host's node stands, and its Node: kept before it is answered
//!     | POST /v1/secret -----------------------------> | what the selected version names of it
//! ```
//! An agent reads its own Machine only, by its certificate. `versions` selects the version. Called by `enroll::serve`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::id::Digest;
use bedplate_api::machine::{Applied, Machine, MachineStatus, Slot, condition_type};
use bedplate_api::operation::MachineOperation;
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{
    NodeReport, OperationWrite, OperationWritten, SecretRequest, SecretResponse, WATCH_SECONDS, WatchRequest,
    WatchResponse,
};
use kube::core::ObjectMeta;
use sha2::Digest as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::enroll::plane::{AgentPlane, Caller};
use crate::enroll::report_filter;
use crate::enroll::service::{Refused, refused};
use crate::machines::{KnownMachine, Machines};
use crate::standalone::node_secrets::{NodeSecrets, ReadSecretError, named_keys};
use crate::standalone::operations::LocalOperations;
use crate::standalone::versions::{NodeChoice, Selection, State};
use crate::status::StatusRegistry;

/// Answers agents.
pub(crate) struct LocalAgents {
    /// The index of Machines.
    pub machines: Machines,
    /// The statuses.
    pub registry: StatusRegistry,
    /// Operations of manifests and of the socket.
    pub operations: LocalOperations,
    /// Selected version of each Machine.
    pub choice: NodeChoice,
    /// Secrets that versions name.
    pub secrets: NodeSecrets,
}

/// Answer for an agent, and the parts besides its Machine that it is built from.
type Word = (WatchResponse, Selection, Vec<Arc<MachineOperation>>);

/// Slots of a host.
const SLOTS_PER_HOST: usize = 2;

#[async_trait]
impl AgentPlane for LocalAgents {
    async fn watch(&self, caller: Caller<'_>, request: WatchRequest) -> Result<WatchResponse, Refused> {
        let until = Instant::now() + Duration::from_secs(WATCH_SECONDS);
        let mut news = News {
            operations: self.operations.changes(),
            machines: self.machines.subscribe(),
            choice: self.choice.changes(),
        };
        caller.hear().await?;
        loop {
            news.forget();
            caller.check().await?;
            let (word, selection, operations) = self.word(&*caller.machine()?);
            if let WatchResponse::Changed { revision, .. } = &word
                && request.known.as_ref() != Some(revision)
            {
                return Ok(word);
            }
            let other = || match self.machines.load().by_name(caller.name()) {
                Some(known) => {
                    self.choice.selection(known) != selection
                        || self.operations.of_agent(&known.name) != operations
                }
                None => true,
            };
            if timeout_at(until, news.wait(other)).await.is_err() {
                return Ok(WatchResponse::Same);
            }
        }
    }

    async fn write_operation(
        &self,
        caller: Caller<'_>,
        write: OperationWrite,
    ) -> Result<OperationWritten, Refused> {
        caller.hear().await?;
        let written = self.operations.write_of_agent(caller.name(), write).await;
        written.or_else(|why| {
            refused(AgentRefusal::StoreFailed, format!("the operation cannot be stored now: {why}"))
        })
    }

    async fn report_node(&self, caller: Caller<'_>, node: NodeReport) -> Result<(), Refused> {
        caller.hear().await?;
        let known = caller.machine()?;
        let selected = self.choice.selection(&known).chosen.and_then(|chosen| chosen.selected.clone());
        let reference = known.machine.spec.configuration_ref.as_ref().map(|reference| &reference.name);
        let given: Vec<&String> = selected.iter().map(|selected| &selected.name).chain(reference).collect();
        let NodeReport { applied, slots, rolled_back, conditions, node, node_gone } = node;
        let own = [condition_type::PAVED, condition_type::NODE_READY];
        self.registry.update(caller.name(), |status| {
            let reported = applied.map(report_filter::applied);
            let (applied, slots) =
                of_its_own(reported, slots.into_iter().take(SLOTS_PER_HOST), &given, status);
            (status.applied, status.slots) = (applied, slots);
            status.rolled_back = rolled_back.map(report_filter::rolled_back);
            status.conditions.retain(|condition| !own.contains(&condition.type_.as_str()));
            let reported = |kind| conditions.iter().find(|condition| condition.type_ == kind).cloned();
            status.conditions.extend(own.into_iter().filter_map(reported).map(report_filter::condition));
        });
        // After what runs is known: whether a Node that is gone is paved again depends on it.
        let kept = self.choice.report(&known, node, node_gone).await;
        kept.or_else(|error| refused(AgentRefusal::StoreFailed, error.to_string()))
    }

    async fn secret(&self, caller: Caller<'_>, request: SecretRequest) -> Result<SecretResponse, Refused> {
        caller.hear().await?;
        let known = caller.machine()?;
        let version = self.choice.selection(&known).version;
        let keys = version.map(|version| named_keys(&version.spec.template, &request)).unwrap_or_default();
        if keys.is_empty() {
            let message = format!("the selected version of Machine {} does not name the Secret", known.name);
            return refused(AgentRefusal::SecretNotReferenced, message);
        }
        let read = self.secrets.read(request, keys).await;
        read.or_else(|error| {
            let reason = match error {
                ReadSecretError::Missing(_) => AgentRefusal::SecretNotFound,
                ReadSecretError::Unreadable(_) => AgentRefusal::SecretInvalid,
            };
            let name = Some(known.name.as_str());
            let admitted = caller.log_pace().admit(reason.as_str(), name, std::time::Instant::now());
            if let Some(omitted) = admitted {
                tracing::warn!(machine = name, %error, omitted, "failed to read a secret that a version names");
            }
            refused(reason, error.to_string())
        })
    }
}

impl LocalAgents {
    /// Returns the answer, and the selection and the operations that it is made of.
    fn word(&self, known: &KnownMachine) -> Word {
        let selection = self.choice.selection(known);
        let node = |status: &MachineStatus| (status.applied.clone(), status.slots.clone());
        let node = self.registry.read(&known.name, node).unwrap_or_default();
        let machine = Box::new(machine_for_agent(known, &selection, node));
        let version = selection.version.as_deref().cloned().map(Box::new);
        let own = self.operations.of_agent(&known.name);
        let operations: Vec<_> = own.iter().map(|one| MachineOperation::clone(one)).collect();
        // Plain data with text keys: it always has a JSON form.
        let text = serde_json::to_vec(&(&machine, &version, &operations)).unwrap_or_default();
        let revision = Digest::from_sha256(sha2::Sha256::digest(text).into()).hex();
        (WatchResponse::Changed { revision, machine, version, operations }, selection, own)
    }
}

/// Drops reported versions of a configuration that was never selected for this Machine. An applied version grants
/// access to its configuration (docs/design/rules.md, V3), so a stolen host key could otherwise claim any version.
fn of_its_own(
    applied: Option<Applied>,
    slots: impl Iterator<Item = Slot>,
    given: &[&String],
    before: &MachineStatus,
) -> (Option<Applied>, Vec<Slot>) {
    let had = before.slots.iter().filter_map(|slot| slot.configuration_name.as_ref());
    let had: Vec<&String> = had.chain(before.applied.as_ref().map(|applied| &applied.name)).collect();
    let is_own = |name: &String| given.contains(&name) || had.contains(&name);
    let slots = slots.map(report_filter::slot).map(|slot| match &slot.configuration_name {
        Some(name) if !is_own(name) => Slot { configuration_name: None, version: None, ..slot },
        _ => slot,
    });
    (applied.filter(|applied| is_own(&applied.name)), slots.collect())
}

/// Machine as its agent gets it: the user's spec, its identity, the selection, and the node state that pxed has
/// recorded. The agent reports node state again that is missing here.
fn machine_for_agent(
    known: &KnownMachine,
    selection: &Selection,
    (applied, slots): (Option<Applied>, Vec<Slot>),
) -> Machine {
    let metadata = &known.machine.metadata;
    let chosen = selection.chosen.as_deref();
    Machine {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            uid: Some(known.uid.clone()),
            labels: metadata.labels.clone(),
            annotations: metadata.annotations.clone(),
            generation: metadata.generation,
            ..ObjectMeta::default()
        },
        spec: known.machine.spec.clone(),
        status: Some(MachineStatus {
            selected: chosen.and_then(|chosen| chosen.selected.clone()),
            node_ref: chosen.and_then(|chosen| chosen.node.clone()),
            applied,
            slots,
            ..MachineStatus::default()
        }),
    }
}

/// Sources of changes that an agent may have to see.
struct News {
    operations: watch::Receiver<()>,
    machines: watch::Receiver<u64>,
    choice: watch::Receiver<Arc<State>>,
}

impl News {
    /// Marks all changes up to now as seen.
    fn forget(&mut self) {
        self.operations.mark_unchanged();
        self.machines.mark_unchanged();
        self.choice.mark_unchanged();
    }

    /// Waits until something may have changed; waits forever if every source is closed. `other` filters choices and
    /// operations to this Machine, so that changes of one host wake only its own agent.
    async fn wait(&mut self, other: impl Fn() -> bool) {
        loop {
            let (changed, sure) = tokio::select! {
                changed = self.operations.changed() => (changed, false),
                changed = self.machines.changed() => (changed, true),
                changed = self.choice.changed() => (changed, false),
            };
            if changed.is_err() {
                std::future::pending::<()>().await;
            }
            if sure || other() {
                return;
            }
        }
    }
}
