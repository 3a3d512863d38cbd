//! Connects operations with the node's loop: objects of the cluster, and the node's slots for
//! applyConfiguration.
//!
//! Called by `service`, once the node's loop has its parts.

use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_bootstrap::diff::{InPlace, diff};
use bedplate_process::exit::chain;
use bedplate_process::liveness::Pulse;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::apply::{ApplyError, Configuration};
use super::configuration::{Standing as Configured, Stays};
use super::former;
use super::in_place;
use super::journal::file::NoteDirectory;
use super::ledger::{Ledger, View, WriteOperationError};
use super::plan::Standing;
use super::run::{Parts, run};
use crate::kubelet::slot_root;
use crate::model::{Api, Record, SlotSeen, Stage};
use crate::node::apply::allow_again;
use crate::node::effects;
use crate::node::etcd_member::{LeaveEtcdError, may_leave};
use crate::plane::{Decider, Seen, Watched};
use crate::slot::fill_record::Filled;
use crate::slot::paths::machine;

/// Feed of views of operations, derived from the state of the decider.
pub(crate) struct ViewFeed {
    seen: watch::Receiver<Seen>,
    views: watch::Sender<View>,
}

impl ViewFeed {
    /// Creates a feed from `seen`, and its views.
    pub(crate) fn new(seen: watch::Receiver<Seen>) -> (Self, watch::Receiver<View>) {
        let (views, receiver) = watch::channel(view(&seen.borrow()));
        (Self { seen, views }, receiver)
    }
}

impl Reconcile for ViewFeed {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        // The decider has stopped, and so does the process.
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        Some(())
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        self.views.send_replace(view(&self.seen.borrow_and_update()));
        Turn::Idle
    }
}

/// Carries out the Machine's operations until `shutdown`. `wake` makes the node's loop observe again.
pub async fn serve(
    node: effects::Parts,
    wake: Arc<Notify>,
    views: watch::Receiver<View>,
    pulse: Pulse,
    shutdown: CancellationToken,
) {
    let state = node.slots.places().state.clone();
    let parts = Parts {
        machine: node.machine.clone(),
        boot_id: node.boot_id.clone(),
        clock: Arc::new(jiff::Timestamp::now),
        ledger: Arc::new(DeciderLedger(Arc::clone(&node.decider))),
        notes: Arc::new(NoteDirectory::new(&state.join("operations"))),
        units: Arc::clone(&node.units),
        machines: Arc::clone(&node.machines),
        power: Arc::clone(&node.power),
        node: Arc::clone(&node.node),
        configuration: Arc::new(NodeConfiguration::new(node, wake)),
        captures: state.join("captures"),
    };
    run(parts, views, pulse, shutdown).await;
}

/// Returns the part of the cluster's state that concerns operations.
fn view(seen: &Seen) -> View {
    let standing = match &seen.machine {
        Some(machine) if seen.ours => {
            if machine.metadata.deletion_timestamp.is_some() {
                Standing::Deleting
            } else if machine.spec.paused {
                Standing::Paused
            } else {
                Standing::Ready
            }
        }
        Some(_) | None => Standing::Unknown,
    };
    let watched = !seen.trouble.contains_key(&Watched::Operations);
    let complete = seen.api == Api::Live && watched && seen.operations_listed;
    View { operations: seen.operations.clone(), complete, ended: seen.ended.clone(), standing }
}

/// The decider as the destination of operation statuses.
struct DeciderLedger(Arc<dyn Decider>);

#[async_trait]
impl Ledger for DeciderLedger {
    async fn write(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        self.0.write_operation(operation, status).await
    }
}

/// Content of the slots, and the selected version.
pub(crate) struct NodeConfiguration {
    node: effects::Parts,
    wake: Arc<Notify>,
}

/// The slot that is the node, with its content record.
struct Applied {
    slot: SlotName,
    record: Record,
    filled: Option<Filled>,
    made_cluster: bool,
    /// True if a change to the kubelet's configuration did not end.
    unfinished: bool,
    /// True if it is a joined control plane whose etcd member must leave before its slot.
    joined_control_plane: bool,
}

impl NodeConfiguration {
    /// Creates it over these parts. `wake` makes the node's loop observe again.
    pub(crate) fn new(node: effects::Parts, wake: Arc<Notify>) -> Self {
        Self { node, wake }
    }

    /// Returns true if a slot is prepared with this version.
    async fn is_ready(&self, version: &VersionRef) -> Result<bool, String> {
        let Some(facts) = self.node.seen().version_facts().filter(|facts| facts.reference == *version) else {
            return Ok(false);
        };
        let read = self.node.on_disk(move |slots| {
            let mut ready = false;
            for slot in SlotName::ALL {
                let record = slots.record(slot)?;
                ready |= record.is_some_and(|record| {
                    record.stage == Stage::Prepared
                        && (&record.version, &record.template) == (&facts.reference, &facts.template)
                });
            }
            Ok(ready)
        });
        read.await.map_err(|error| chain(&error))
    }

    /// Returns the slot that is the node, true if a slot is on trial, and the versions that failed on this
    /// host.
    async fn slots(&self) -> Result<(Option<Applied>, bool, Vec<VersionRef>), String> {
        let read = self.node.on_disk(|slots| {
            let (mut applied, mut trial) = (None::<Applied>, false);
            for slot in SlotName::ALL {
                let SlotSeen { record, made_cluster, joined_control_plane, leaving, .. } =
                    slots.look(slot, false)?;
                let Some(record) = record else { continue };
                match record.stage {
                    // The later of two applied slots counts: the other one is about to be retired.
                    Stage::Applied { .. } => {
                        if applied.as_ref().is_none_or(|one| one.record.generation < record.generation) {
                            let (filled, unfinished, joined_control_plane) = (
                                slots.filled(slot)?,
                                former::is_left(slots, slot)?,
                                joined_control_plane && !leaving,
                            );
                            applied = Some(Applied {
                                slot,
                                record,
                                filled,
                                made_cluster,
                                unfinished,
                                joined_control_plane,
                            });
                        }
                    }
                    Stage::Trial { .. } => trial = true,
                    Stage::Preparing | Stage::Prepared | Stage::Retired | Stage::Failed { .. } => {}
                }
            }
            Ok((applied, trial, slots.ledger()?.refused))
        });
        read.await.map_err(|error| chain(&error))
    }
}

#[async_trait]
impl Configuration for NodeConfiguration {
    async fn standing(&self) -> Result<Configured, String> {
        let seen = self.node.seen();
        let selected = seen.machine_facts().and_then(|machine| machine.selected);
        let (applied, paving, refused) = self.slots().await?;
        let wanted = seen.version_facts().filter(|version| Some(&version.reference) == selected.as_ref());
        if selected.is_some() && wanted.is_none() {
            return Err("the selected version was not read yet".to_owned());
        }
        let template = wanted.and(seen.version.as_ref()).map(|version| &version.spec.template);
        let running = applied.as_ref().and_then(|applied| applied.filled.as_ref());
        let difference = running.zip(template).map(|(running, wanted)| diff(&running.template, wanted));
        let needs_repave = difference.as_ref().is_none_or(|one| !one.needs_repave.is_empty());
        let asked = applied.as_ref().filter(|one| one.joined_control_plane && needs_repave);
        let stays = match asked.filter(|_| selected.is_some()) {
            Some(applied) => match may_leave(&self.node, applied.slot).await {
                Ok(()) => None,
                Err(why @ LeaveEtcdError::Etcd(_)) => Some(Stays::Later(why.to_string())),
                Err(why @ (LeaveEtcdError::Last | LeaveEtcdError::Unknown(_))) => {
                    Some(Stays::Kept(why.to_string()))
                }
            },
            None => None,
        };
        Ok(Configured {
            refused: selected.as_ref().is_some_and(|selected| refused.contains(selected)),
            selected,
            unfinished: applied.as_ref().is_some_and(|applied| applied.unfinished),
            made_cluster: applied.as_ref().is_some_and(|applied| applied.made_cluster),
            stays,
            applied: applied.map(|applied| applied.record.version),
            paving,
            difference,
        })
    }

    async fn change(&self, changes: &[InPlace]) -> Result<(), ApplyError> {
        let failed = ApplyError::Failed;
        let seen = self.node.seen();
        let (Some(facts), Some(version)) = (seen.version_facts(), seen.version.clone()) else {
            return Err(failed("the selected version is no longer known".to_owned()));
        };
        let Some(Applied { slot, mut record, filled: Some(running), unfinished, .. }) =
            self.slots().await.map_err(failed)?.0
        else {
            return Err(ApplyError::Failed("no slot is the node now".to_owned()));
        };
        // The decision used an earlier selection. Another version with other changes may be selected now.
        let wanted = diff(&running.template, &version.spec.template);
        if wanted.in_place != changes || !wanted.needs_repave.is_empty() {
            return Err(failed("another version is selected now".to_owned()));
        }
        let (before, filled) =
            (record.clone(), Filled { template: version.spec.template.clone(), ..running.clone() });
        if !changes.is_empty() || unfinished {
            let container = slot_root::running(self.node.machines.as_ref()).await;
            let container = container.map_err(|error| failed(chain(&error)))?;
            let container = container.filter(|container| container.name.as_str() == machine(slot));
            let container =
                container.ok_or_else(|| failed("the slot that is the node does not run".to_owned()))?;
            let node = in_place::Running {
                parts: &self.node,
                slot,
                leader: container.leader,
                record: &record,
                wanted: &filled,
            };
            node.change(changes).await?;
        }
        (record.version, record.template) = (facts.reference, facts.template);
        let written = self.node.on_disk(move |slots| {
            if slots.record(slot)?.as_ref() != Some(&before) {
                return Ok(false);
            }
            slots.write_filled(slot, &filled)?;
            slots.write_record(slot, &record)?;
            Ok(true)
        });
        if !written.await.map_err(|error| failed(chain(&error)))? {
            return Err(failed("the record of the slot has changed".to_owned()));
        }
        self.wake.notify_one();
        Ok(())
    }

    async fn may_repave(&self, version: &VersionRef) -> Result<(), ApplyError> {
        if self.slots().await.map_err(ApplyError::Failed)?.2.contains(version) {
            self.repave(version).await?;
        }
        let node = &self.node.machine;
        if self.node.home.follows_slot() {
            return Err(ApplyError::NotSupported(format!(
                "{} is retried if it failed here; to pave the node with it, run `kubectl drain {node}` and \
                 `kubectl delete node {node}`, because an agent may not delete its Node and there is no \
                 bedplate-controller here",
                version.version_name()
            )));
        }
        let seen = self.node.seen();
        let machine = seen.machine_facts();
        if let Some(by) = machine.as_ref().and_then(|machine| machine.claimed_by.as_ref()) {
            let message =
                format!("{by} has claimed Machine {node} and manages its Node; no change is applied");
            return Err(ApplyError::Claimed(message));
        }
        if machine.is_some_and(|machine| machine.paused) {
            let message = "the Machine is paused; set spec.paused to false to drain its Node";
            return Err(ApplyError::Failed(message.to_owned()));
        }
        if !self.is_ready(version).await.map_err(ApplyError::Failed)? {
            return Err(ApplyError::Failed(format!(
                "{} is not prepared yet, so the Node is not drained; see condition Paved and \
                 `bedplate-agent status` on the host",
                version.version_name()
            )));
        }
        Ok(())
    }

    async fn repave(&self, version: &VersionRef) -> Result<(), ApplyError> {
        allow_again(&self.node, version).await.map_err(|error| ApplyError::Failed(chain(&error)))?;
        self.wake.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_of_another_host_starts_no_operation() {
        let mut seen = Seen { api: Api::Live, ..Seen::default() };
        assert_eq!(
            (view(&seen).standing, view(&seen).complete),
            (Standing::Unknown, false),
            "not listed yet"
        );
        seen.operations_listed = true;
        assert!(view(&seen).complete);
        seen.trouble.insert(Watched::Operations, "forbidden".to_owned());
        assert!(!view(&seen).complete);
    }
}
