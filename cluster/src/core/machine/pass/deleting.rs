//! The deletion of a Machine: one turn carries the next step out, and reports the one after it. Called by the pass.
//!
//! ```text
//! life still has a write (providerID, nodeRef): it alone
//! otherwise: plan -> read -> plan -> ... -> act -> status.  Cordon, eviction and deletion of the Node are followed by another plan.
//! ```
//! Each turn starts at the first step again, so a turn that is killed after any request continues. An object is deleted only in the version
//! that was read: another Machine may have adopted it meanwhile.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::machine::{FINALIZER, MachineDeletionStatus};
use bedplate_api::cluster::full::{Machine, condition_type};
use bedplate_api::cluster::part::label;
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::core::MachineDeletingReason as Reason;
use bedplate_engine::object;
use bedplate_engine::write::{Failed, WriteError, ask, delete_of};
use bedplate_rules::drain::Pod;
use bedplate_workload::RequestError;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::read::{Reader, node_state};
use super::{PLACE_DELAY, Turn};
use crate::core::event;
use crate::core::machine::condition;
use crate::core::machine::deletion::{Act, NodeAnswer, NodeFailure, Observed, Plan, plan};
use crate::core::machine::memory::Remembered;
use crate::core::machine::plan::plan_deleted;
use crate::core::machine::references::{Ownership, Part, ownership};
use crate::core::machine::refused::shortened;
use crate::core::machine::status::Deleting;

/// Maximum number of plans of one turn. More than any turn needs.
const MAX_PLANS: usize = 16;
/// Delay until a step is tried again whose request to the workload cluster has failed.
const FAILED_DELAY: Duration = Duration::from_secs(20);
/// Delay until a store is read again that is behind the API server.
const BEHIND_DELAY: Duration = Duration::from_secs(5);

/// Deletion of one turn.
struct Step<'a> {
    turn: &'a Turn<'a>,
    observed: Observed,
    reader: Reader<'a>,
    /// True if Pods were evicted. The rest follows in the next turn.
    has_evicted: bool,
    /// True if the deletion of the Node has failed, or the Node cannot be read.
    has_failed: bool,
    failed: Failed,
}

/// End of the plans of a turn.
enum End {
    /// The finalizer is removed.
    Gone,
    /// There is no place for requests to the workload cluster. The turn is repeated.
    Busy,
    /// The plan is reported, and these times are recorded.
    Report(Plan, Option<MachineDeletionStatus>),
}

impl Turn<'_> {
    /// Carries out the next step of a Machine that is deleted.
    pub(super) async fn delete(&mut self) -> Result<Option<Duration>, WriteError> {
        let uid = self.observed.machine.uid().unwrap_or_default();
        let mut memory = self.world.memory.get(&uid);
        let before = plan_deleted(&self.observed, &self.present());
        if before.holds_deletion(&self.observed.machine) && !memory.is_rejected {
            let done = self.carry_out(before, Failed::default()).await;
            memory.is_rejected = done.as_ref().is_err_and(|error| error.refusal().is_some());
            self.remember(&uid, memory);
            return done;
        }
        let (is_rejected, was_reported) = (memory.is_rejected, memory.is_drain_reported);
        let mut step = Step::new(self, memory);
        let end = step.run().await;
        let Step { observed, failed, .. } = step;
        let (next, times) = match end {
            End::Gone => {
                self.world.memory.forget(&uid);
                return failed.end().map(|()| None);
            }
            End::Busy => {
                let Observed { holds, node_failure, .. } = observed;
                let is_drain_reported = was_reported;
                self.remember(&uid, Remembered { holds, node_failure, is_rejected, is_drain_reported });
                return failed.end().map(|()| Some(PLACE_DELAY));
            }
            End::Report(next, times) => (next, times),
        };
        let Observed { holds, node_failure, .. } = observed;
        let is_drain_reported = was_reported || self.publish_long_drain(&next, times.as_ref());
        self.remember(&uid, Remembered { holds, node_failure, is_rejected, is_drain_reported });
        self.report(next, times, failed).await
    }

    /// Publishes the Event about a drain that takes long. Returns true if it is due.
    fn publish_long_drain(&self, next: &Plan, times: Option<&MachineDeletionStatus>) -> bool {
        let Some((reason, message)) = &next.condition else { return false };
        let stored = self.observed.machine.status.as_ref().and_then(|status| status.deletion.as_ref());
        let start = times.or(stored).and_then(|times| times.node_drain_start_time.as_ref());
        let change = event::of_drain((*reason, message), start.map(|start| start.0), self.observed.now);
        let is_due = change.is_some();
        self.world.publish(&*self.observed.machine, change);
        is_due
    }

    /// Keeps the memory of a Machine that still exists.
    fn remember(&self, uid: &str, memory: Remembered) {
        self.world.memory.set(uid, memory);
        let stored = self.world.stores.machines.get(&ObjectRef::from_obj(&*self.observed.machine));
        // The watch forgets a Machine only once.
        if stored.is_none_or(|stored| stored.metadata.uid.as_deref() != Some(uid)) {
            self.world.memory.forget(uid);
        }
    }

    /// Writes the status with the decision of the deletion.
    async fn report(
        &mut self,
        next: Plan,
        times: Option<MachineDeletionStatus>,
        failed: Failed,
    ) -> Result<Option<Duration>, WriteError> {
        let mut deleting = self.present();
        if let Some((reason, message)) = next.condition {
            (deleting.reason, deleting.message) = (reason, message);
        }
        deleting.status = times.or(deleting.status);
        let mut life = plan_deleted(&self.observed, &deleting);
        let again = next.again.map(|again| again.duration_since(Timestamp::now()));
        let again = again.map(|again| Duration::try_from(again).unwrap_or(Duration::ZERO));
        life.act = None;
        life.recheck = [life.recheck, again].into_iter().flatten().min();
        self.carry_out(life, failed).await
    }

    /// Returns the progress as the status has it. A plan without a condition leaves it as it is.
    pub(super) fn present(&self) -> Deleting {
        let status = self.observed.machine.status.as_ref();
        let shown = status.and_then(|status| condition::get(status, condition_type::DELETING));
        let reason = shown.and_then(|shown| {
            Reason::ALL
                .iter()
                .copied()
                .find(|reason| shown.reason == *reason && *reason != Reason::NotDeleting)
        });
        let message = shown.filter(|_| reason.is_some()).map(|shown| shown.message.clone());
        Deleting {
            reason: reason.unwrap_or(Reason::Deleting),
            message: message.unwrap_or_default(),
            status: status.and_then(|status| status.deletion.clone()),
        }
    }

    /// Deletes a named object in the version that was read.
    async fn delete_part(&self, part: Part, uid: String) -> Result<(), WriteError> {
        let Some((api, resource, object)) = self.part(part) else { return Ok(()) };
        self.wrote();
        delete_of(&api, resource, &object.name_any(), Some(uid), object.resource_version()).await
    }

    /// Reads from the API server if an object exists that its store does not show. The store may be behind, and no other object names it.
    async fn has_parts(&self) -> Result<bool, WriteError> {
        for part in [Part::Infrastructure, Part::Bootstrap] {
            let reference = part.reference(&self.observed.machine);
            let Some(reference) = reference.filter(|_| part.lookup(&self.observed).is_absent()) else {
                continue;
            };
            let Some((api, _)) = self.part_api(part) else { continue };
            let what = format!("{} {}", reference.kind, reference.name);
            let found = ask(&what, object::get(&api, &reference.name)).await?;
            let cluster = self.observed.cluster.as_deref();
            let is_left = |object: &Referenced| {
                !matches!(ownership(&self.observed.machine, cluster, object), Ownership::Foreign(_))
            };
            if found.as_ref().is_some_and(is_left) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn remove_finalizer(&self) -> Result<(), WriteError> {
        self.wrote();
        self.world.manager.set_finalizer(&self.api(), &*self.observed.machine, FINALIZER, false).await
    }

    /// Returns the number of Machines of the control plane that are not deleted.
    fn active_control_plane_machines(&self) -> usize {
        let machine = &*self.observed.machine;
        let machines = self.world.stores.machines.state();
        let is_active = |other: &&Arc<Machine>| {
            other.metadata.namespace == machine.metadata.namespace
                && other.spec.cluster_name == machine.spec.cluster_name
                && other.labels().contains_key(label::CONTROL_PLANE)
                && other.metadata.deletion_timestamp.is_none()
        };
        machines.iter().filter(is_active).count()
    }
}

impl<'a> Step<'a> {
    fn new(turn: &'a Turn<'a>, Remembered { holds, node_failure, .. }: Remembered) -> Self {
        let seen = &turn.observed;
        let has_config = seen.machine.spec.bootstrap.config_ref.is_some();
        let observed = Observed {
            machine: Arc::clone(&seen.machine),
            cluster: seen.cluster.clone(),
            is_paused: seen.is_paused(),
            control_plane: turn.control_plane.clone(),
            active_control_plane_machines: turn.active_control_plane_machines(),
            infrastructure: seen.infrastructure.clone(),
            bootstrap: has_config.then(|| seen.bootstrap.clone()),
            node: None,
            pods: None,
            volumes: None,
            holds,
            node_failure,
        };
        let reader = Reader::new(turn.world, seen);
        Self { turn, observed, reader, has_evicted: false, has_failed: false, failed: Failed::default() }
    }

    async fn run(&mut self) -> End {
        for _ in 0..MAX_PLANS {
            let next = plan(&self.observed, self.turn.observed.now);
            if next.condition.as_ref().is_none_or(|(reason, _)| *reason != Reason::DeletingNode)
                && !matches!(next.act, Act::Read(_))
            {
                self.observed.node_failure = None;
            }
            if let Some(end) = self.take(next).await {
                return end;
            }
        }
        let again = self.turn.observed.now.saturating_add(FAILED_DELAY).ok();
        End::Report(Plan { again, ..Plan::default() }, None)
    }

    /// Carries out the act of a plan. None: another plan follows in this turn.
    async fn take(&mut self, mut next: Plan) -> Option<End> {
        if next.act.is_remote() && !self.reader.enter() {
            return Some(End::Busy);
        }
        match next.act.clone() {
            Act::Read(needed) => {
                self.reader.read(&mut self.observed, needed).await;
                None
            }
            Act::Wait => self.wait(next),
            Act::RecordDrainStart(time) => {
                let times = self.times(|times| times.node_drain_start_time = Some(whole(time)));
                Some(End::Report(next, Some(times)))
            }
            Act::RecordVolumeStart(time) => {
                let set = |times: &mut MachineDeletionStatus| {
                    times.wait_for_node_volume_detach_start_time = Some(whole(time));
                };
                Some(End::Report(next, Some(self.times(set))))
            }
            Act::Cordon { name, uid } => self.cordon(next, &name, &uid).await,
            Act::Evict { .. } if self.has_evicted => Some(End::Report(next, None)),
            Act::Evict { pods, grace } => {
                self.evict(pods, grace).await;
                None
            }
            Act::DeleteInfrastructure(uid) => {
                self.delete_part(Part::Infrastructure, uid, &mut next).await;
                Some(End::Report(next, None))
            }
            Act::DeleteBootstrap(uid) => {
                self.delete_part(Part::Bootstrap, uid, &mut next).await;
                Some(End::Report(next, None))
            }
            Act::DeleteNode { .. } if self.has_failed => Some(End::Report(next, None)),
            Act::DeleteNode { name, uid } => {
                self.delete_node(&name, &uid).await;
                None
            }
            Act::RemoveFinalizer => Some(self.finish(next).await),
        }
    }

    async fn delete_part(&mut self, part: Part, uid: String, next: &mut Plan) {
        let deleted = self.turn.delete_part(part, uid).await;
        let reference = part.reference(&self.turn.observed.machine);
        let what =
            reference.map(|reference| format!("{} {} cannot be deleted", reference.kind, reference.name));
        self.note(deleted, &what.unwrap_or_default(), next);
    }

    /// Notes the result of a request to the API server. Returns true if it has succeeded. If it was refused, the plan names the cause: a user must
    /// act.
    fn note(&mut self, done: Result<(), WriteError>, state: &str, next: &mut Plan) -> bool {
        if let Some(cause) = done.as_ref().err().and_then(WriteError::refusal)
            && let Some((_, message)) = &mut next.condition
        {
            *message = format!("{state}: {}; permit it", shortened(cause));
        }
        self.failed.note(done)
    }

    /// Removes the finalizer, if the API server shows none of the objects that the stores do not show.
    async fn finish(&mut self, mut next: Plan) -> End {
        match self.turn.has_parts().await {
            Ok(true) => {
                let again = self.turn.observed.now.saturating_add(BEHIND_DELAY).ok();
                return End::Report(Plan { condition: None, again, ..next }, None);
            }
            Ok(false) => {}
            Err(error) => {
                if error.refusal().is_none() {
                    next.condition = None;
                }
                self.note(Err(error), "objects of the Machine cannot be read", &mut next);
                return End::Report(next, None);
            }
        }
        let removed = self.turn.remove_finalizer().await;
        let is_removed = self.note(removed, "finalizer cannot be removed", &mut next);
        if is_removed { End::Gone } else { End::Report(next, None) }
    }

    /// Ends the turn. If the Node cannot be read although only it is left, the failure is recorded first.
    fn wait(&mut self, next: Plan) -> Option<End> {
        let is_node_left = next.condition.as_ref().is_some_and(|(reason, _)| *reason == Reason::DeletingNode);
        let why = match &self.observed.node {
            Some(Err(why)) if is_node_left && !self.has_failed => why.clone(),
            _ => return Some(End::Report(next, None)),
        };
        self.fail(&why);
        None
    }

    fn fail(&mut self, why: &str) {
        let now = self.turn.observed.now;
        self.has_failed = true;
        self.observed.node_failure = Some(NodeFailure::after(self.observed.node_failure.as_ref(), why, now));
    }

    async fn cordon(&mut self, mut next: Plan, name: &str, uid: &str) -> Option<End> {
        let why = match self.reader.remote().await {
            Err(why) => why,
            Ok(remote) => {
                self.turn.wrote();
                match remote.cordon(name, uid).await {
                    Ok(Some(node)) => {
                        self.observed.node = Some(Ok(NodeAnswer::Found(node_state(&node))));
                        self.reader.replace(node);
                        return None;
                    }
                    Ok(None) => {
                        self.observed.node = Some(Ok(NodeAnswer::Absent));
                        return None;
                    }
                    // Another Node has the name now.
                    Err(RequestError::Conflict) => {
                        self.observed.node = None;
                        return None;
                    }
                    Err(error) => error.to_string(),
                }
            }
        };
        if let Some((_, message)) = &mut next.condition {
            *message = format!("{message}; {why}");
        }
        let again = self.turn.observed.now.saturating_add(FAILED_DELAY).ok();
        Some(End::Report(Plan { again: next.again.or(again), ..next }, None))
    }

    async fn evict(&mut self, pods: Vec<Pod>, grace: Option<u32>) {
        self.has_evicted = true;
        let remote = self.reader.remote().await;
        let mut results = Vec::with_capacity(pods.len());
        for pod in pods {
            let result = match &remote {
                Ok(remote) => {
                    self.turn.wrote();
                    remote.evict(&pod, grace).await
                }
                Err(why) => Err(why.clone()),
            };
            results.push((pod.uid, result));
        }
        self.observed.settle(results, Timestamp::now());
    }

    async fn delete_node(&mut self, name: &str, uid: &str) {
        let deleted = match self.reader.remote().await {
            Ok(remote) => {
                self.turn.wrote();
                remote.delete_node(name, uid).await.map_err(|error| error.to_string())
            }
            Err(why) => Err(why),
        };
        match deleted {
            Ok(()) => self.observed.node = Some(Ok(NodeAnswer::Absent)),
            Err(why) => self.fail(&why),
        }
    }

    /// Returns the recorded times with a change.
    fn times(&self, set: impl FnOnce(&mut MachineDeletionStatus)) -> MachineDeletionStatus {
        let status = self.observed.machine.status.as_ref();
        let mut times = status.and_then(|status| status.deletion.clone()).unwrap_or_default();
        set(&mut times);
        times
    }
}

/// Returns a time without a fraction of a second, as the API server stores it.
fn whole(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}
