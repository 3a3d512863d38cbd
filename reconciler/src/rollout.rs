//! Rolling updates (C4): one Machine after another is drained and repaved with the newest version.
//!
//! ```text
//! take: version locked, selected --agent fetches it--> cordon --> evict Pods --> Node deleted --> (`machine`, agent: repaved) --> Ready
//!                                                        `-- timed out, or no longer needed: uncordon
//! ```
//!
//! `judge` reads the state of each Machine from objects, `plan` decides the next step, this module carries it
//! out. No state that the next controller needs is kept in memory: the owner and start of a cordon, and the
//! failure of a drain, are on the Node (`mark`).

mod changes;
mod conditions;
mod events;
mod observe;
mod plan;
mod recheck;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::configuration::{MachineConfiguration, RollingUpdate};
use bedplate_api::machine::Machine;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::Context as _;
use bedplate_engine::elapsed::later;
use bedplate_engine::write::{self, WriteError, called};
use bedplate_rules::drain::{Drain, Pod, Refusal, refusal};
use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

pub use self::changes::{MachineFacts, NodeFacts};
pub use self::conditions::standing;
pub use self::observe::{Clocks, Failure, Member, Nodes, Place, Rollout, Skip, judge};
pub use self::plan::{Step, allowed, limit, plan, settings};
pub use crate::cache::waits::{Wait, is_late};
use crate::context::{Stores, World};
pub use crate::cordon::Purpose;
use crate::cordon::{Cordon, Failed, Hold, UpdateFailure, cordon_of, cut};
use crate::machine;
use crate::metrics::Turn;
use crate::node::drain;

/// Interval between checks of a running update, if nothing changes before. A check detects unreachable
/// agents.
const ROLLOUT_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before the first check of a Node that was cordoned.
const CORDON_CHECK_DELAY: Duration = Duration::from_millis(500);

/// Maximum number of Machines whose steps are done concurrently.
const MAX_CONCURRENT_STEPS: usize = 8;
/// Maximum difference between the clocks of the controller that started a drain and of this one.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// Carries out the next steps of one configuration's rolling update.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    configuration: Arc<MachineConfiguration>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    let known = Known::read(&configuration, &world);
    let nodes = |name: &str| node(&world, name);
    let rollout = known.judge(&configuration, &nodes, &world.stores);
    let settings = settings(&configuration);
    let mut steps = plan(&rollout, settings.as_ref());
    steps.extend(strays(&rollout, &world));
    let mut after =
        (settings.is_some() && rollout.members.iter().any(is_at_hand)).then_some(ROLLOUT_CHECK_INTERVAL);
    let mut failed = write::Failed::default();
    world.drains.tidy(|name| world.stores.nodes.get(&ObjectRef::new(name)));
    let begins = |step: &Step| matches!(step, Step::Cordon { .. });
    // Before a step makes a Machine unavailable, live Nodes confirm that one more may be.
    if steps.iter().any(begins) && !failed.note(world.leading(recheck::compare(&rollout, &world)).await) {
        steps.retain(|step| !begins(step));
    }
    // Steps that make a Machine unavailable come first, while the check is recent.
    steps.sort_by_key(order);
    let drain = gently(&configuration, settings.as_ref());
    let actor =
        Actor { configuration: &configuration, known: &known, rollout: &rollout, drain, world: &world };
    for alike in steps.chunk_by(|one, other| order(one) == order(other)) {
        // Sequential steps would let the last of many drains time out before its first check.
        let all: Vec<_> = alike.iter().map(|step| actor.does(step)).collect();
        let mut all = stream::iter(all).buffer_unordered(MAX_CONCURRENT_STEPS);
        while let Some(done) = all.next().await {
            match done {
                Ok(next) => after = after.into_iter().chain(next).min(),
                Err(error) => drop(failed.note(Err(error))),
            }
        }
    }
    failed.end().map(|()| after)
}

/// Returns the position of a step's kind.
fn order(step: &Step) -> u8 {
    match step {
        Step::Free { .. } => 0,
        Step::Cordon { .. } => 1,
        Step::Drain { .. } => 2,
        Step::Take { .. } => 3,
    }
}

fn is_at_hand(member: &Member) -> bool {
    !matches!(member.place, Place::UpToDate)
}

/// Returns steps for Nodes that were cordoned for this rolling update and whose Machines are gone. No other
/// code uncordons them.
fn strays(rollout: &Rollout, world: &World) -> Vec<Step> {
    let is_stray = |node: &Arc<Node>| {
        let of = match cordon_of(node) {
            Cordon::Ours(hold) => hold.purpose.configuration().map(str::to_owned),
            Cordon::Free | Cordon::Operation | Cordon::Foreign => None,
        };
        of.as_ref() == Some(&rollout.configuration)
            && world.stores.machines.get(&ObjectRef::new(&node.name_any())).is_none()
    };
    let free = |node: Arc<Node>| Step::Free {
        machine: node.name_any(),
        node_uid: node.metadata.uid.clone().unwrap_or_default(),
        failed: None,
    };
    world.stores.nodes.state().into_iter().filter(is_stray).map(free).collect()
}

/// Returns the configuration whose rolling update a Machine is in, if it has one.
pub(crate) fn governs(machine: &Machine, stores: &Stores) -> Option<String> {
    let name = &machine.selected()?.name;
    let configuration = stores.configurations.get(&ObjectRef::new(name))?;
    settings(&configuration).map(|_| name.clone())
}

/// Returns a Node of the store, with the writes that the store does not show yet.
fn node(world: &World, name: &str) -> Option<Arc<Node>> {
    world.drains.as_written(name, world.stores.nodes.get(&ObjectRef::new(name)))
}

/// Objects that a rolling update is judged by.
struct Known {
    machines: Vec<Arc<Machine>>,
    versions: Vec<Arc<MachineConfigurationVersion>>,
}

impl Known {
    fn read(configuration: &MachineConfiguration, world: &World) -> Self {
        let (name, index) = (configuration.name_any(), world.stores.index());
        let machines: Vec<_> = index.users_of(&name).cloned().collect();
        // A Machine that moved here from another configuration may be a control plane.
        let applied = machines.iter().filter_map(|machine| machine.applied());
        let mut names: BTreeSet<&str> = applied.map(|applied| applied.name.as_str()).collect();
        names.insert(&name);
        let versions = names.into_iter().flat_map(|name| index.versions_of(name)).cloned().collect();
        Self { machines, versions }
    }

    fn judge(&self, configuration: &MachineConfiguration, nodes: Nodes<'_>, stores: &Stores) -> Rollout {
        let now = Timestamp::now();
        let silent = |machine: &Machine| stores.heard.is_silent(machine, now);
        let wait = |machine: &Machine| stores.waits.of(machine);
        let clocks = Clocks { silent: &silent, wait: &wait };
        let machines: Vec<_> = self.machines.iter().map(AsRef::as_ref).collect();
        let versions: Vec<_> = self.versions.iter().map(AsRef::as_ref).collect();
        judge(configuration, &machines, nodes, &versions, clocks)
    }
}

/// Returns drain settings. By default a Pod's emptyDir data is lost, and a Pod without a controller is not evicted.
fn gently(configuration: &MachineConfiguration, settings: Option<&RollingUpdate>) -> Drain {
    let (limit, policy) = (limit(Some(configuration)), settings.and_then(|settings| settings.drain));
    let delete_empty_dir = policy.is_none_or(|policy| policy.delete_empty_dir_data);
    Drain { limit, grace: None, delete_empty_dir, force: policy.is_some_and(|policy| policy.force) }
}

/// Executor of one step. Each returns the delay until the next check.
struct Actor<'a> {
    configuration: &'a MachineConfiguration,
    known: &'a Known,
    rollout: &'a Rollout,
    drain: Drain,
    world: &'a World,
}

impl Actor<'_> {
    async fn does(&self, step: &Step) -> Result<Option<Duration>, WriteError> {
        let done = self.world.leading(self.step(step)).await;
        self.world.turns.turned(step.kind(), done.is_ok());
        done
    }

    async fn step(&self, step: &Step) -> Result<Option<Duration>, WriteError> {
        match step {
            Step::Take { machine } => self.take(machine).await,
            Step::Cordon { machine, node_uid, version } => self.cordon(machine, node_uid, version).await,
            Step::Drain { machine, node_uid, version } => self.drain(machine, node_uid, version).await,
            Step::Free { machine, node_uid, failed } => self.free(machine, node_uid, failed.as_ref()).await,
        }
    }

    fn machine(&self, name: &str) -> Option<&Arc<Machine>> {
        self.known.machines.iter().find(|machine| machine.name_any() == name)
    }

    /// Publishes an Event on a Machine that exists.
    fn tell(&self, name: &str, reason: ControllerEvent, note: &str) {
        if let Some(machine) = self.machine(name) {
            self.world.news.publish(&**machine, reason, note);
        }
    }

    async fn take(&self, name: &str) -> Result<Option<Duration>, WriteError> {
        if let Some(machine) = self.machine(name) {
            machine::take(machine.clone(), self.world).await?;
        }
        Ok(None)
    }

    /// Reads the Node live, if it still is the planned one.
    async fn live(&self, name: &str, uid: &str) -> Result<Node, WriteError> {
        let node: Option<Node> = self.world.live(name).await?;
        let is_it = |node: &Node| node.metadata.uid.as_deref() == Some(uid);
        node.filter(is_it).ok_or_else(|| WriteError::Conflict { what: format!("Node {name}") })
    }

    /// Returns the error for a Node whose cordon differs from the planned one.
    fn changed(&self, node: &Node) -> WriteError {
        self.world.drains.forget(&node.name_any());
        WriteError::Conflict { what: called(node) }
    }

    async fn cordon(&self, name: &str, uid: &str, version: &str) -> Result<Option<Duration>, WriteError> {
        let (world, now) = (self.world, Timestamp::now());
        let node = self.live(name, uid).await?;
        if !matches!(cordon_of(&node), Cordon::Free) {
            return Err(WriteError::Conflict { what: called(&node) });
        }
        let pods = drain::pods(world, name).await?;
        // No Node is cordoned if its Pods cannot be evicted.
        if let Some(refusal) = refusal(&pods, &self.drain) {
            let failed = self.refused(version, &refusal);
            tracing::warn!(machine = name, version, reason = failed.message, "Node drain refused");
            drain::say_failed(world, &node, &failed).await?;
            self.tell(name, ControllerEvent::UpdateFailed, &events::failed(&failed));
            return Ok(Some(CORDON_CHECK_DELAY));
        }
        drain::cordon(world, &node, &Purpose::Rollout(version.to_owned()), now).await?;
        world.drains.begins(&pods);
        tracing::info!(machine = name, version, "turn started, Node cordoned");
        self.tell(name, ControllerEvent::UpdateStarted, &events::started(name, version));
        Ok(Some(CORDON_CHECK_DELAY))
    }

    async fn drain(&self, name: &str, uid: &str, version: &str) -> Result<Option<Duration>, WriteError> {
        let (world, now, limit) = (self.world, Timestamp::now(), self.drain.limit);
        let node = self.live(name, uid).await?;
        let hold = match cordon_of(&node) {
            Cordon::Ours(hold) if hold.cordoned && hold.purpose == Purpose::Rollout(version.to_owned()) => {
                hold
            }
            _ => return Err(self.changed(&node)),
        };
        let pods = drain::pods(world, name).await?;
        if let Some(refusal) = refusal(&pods, &self.drain) {
            return self.fail(&node, &self.refused(version, &refusal)).await;
        }
        if !pods.iter().any(Pod::has_to_leave) {
            return self.finish(&node, version).await;
        }
        let Some(left) = self.time_left(&node, &hold, now) else {
            drain::report_started(world, &node, now).await?;
            return Ok(Some(Duration::ZERO));
        };
        // The timeout counts only after the Pods were evicted. A controller that was stopped or busy evicts
        // them first.
        if let Some(pending) = hold.pending.filter(|_| !left.is_positive()) {
            let message = format!("not drained within {} s: {pending}", limit.as_secs());
            return self.fail(&node, &self.failed(version, UpdateFailure::DrainTimedOut, &message)).await;
        }
        let machine = self.machine(name).map(AsRef::as_ref);
        let until = later(now, left);
        drain::evict_all(world, (&node, machine), &pods, &self.drain, Some(until)).await.map(Some)
    }

    /// Returns the remaining time of a drain. Returns `None` if its start is unknown or in the future. Uses
    /// this program's monotonic clock, because the wall clock may leap. The time on the Node counts only if
    /// another controller started the drain.
    fn time_left(&self, node: &Node, hold: &Hold, now: Timestamp) -> Option<SignedDuration> {
        let (began, uid, limit) = (hold.began?, node.metadata.uid.as_deref()?, self.drain.limit);
        let lasting = &self.world.drains.lasting;
        let is_sane = lasting.knows(uid, began) || began <= later(now, MAX_CLOCK_SKEW);
        is_sane.then(|| limit.saturating_sub(lasting.lasted(uid, began, now, limit)))
    }

    /// Deletes a Node without Pods, if a live read shows that its Machine must still be updated.
    async fn finish(&self, node: &Node, version: &str) -> Result<Option<Duration>, WriteError> {
        let name = node.name_any();
        let machine: Option<Machine> = self.world.live(&name).await?;
        let machines = machine.into_iter().map(Arc::new).collect();
        let known = Known { machines, versions: self.known.versions.clone() };
        let seen = Arc::new(node.clone());
        let now = known.judge(self.configuration, &|_| Some(seen.clone()), &self.world.stores);
        let is_due = |member: &Member| member.place == Place::Draining(version.to_owned());
        if !now.members.iter().any(is_due) {
            return Err(WriteError::Conflict { what: format!("Machine {name}") });
        }
        drain::remove(self.world, node).await?;
        tracing::info!(machine = name, version, "Pods evicted, Node deleted");
        self.tell(&name, ControllerEvent::NodeDrained, &events::drained(&name, version));
        Ok(None)
    }

    async fn fail(&self, node: &Node, failed: &Failed) -> Result<Option<Duration>, WriteError> {
        let Failed { version, reason, message, .. } = failed;
        let machine = node.name_any();
        tracing::warn!(machine, version, ?reason, message, "turn failed, uncordoning Node");
        drain::free(self.world, node, Some(failed)).await?;
        self.tell(&machine, ControllerEvent::UpdateFailed, &events::failed(failed));
        Ok(None)
    }

    async fn free(
        &self,
        name: &str,
        uid: &str,
        failed: Option<&Failed>,
    ) -> Result<Option<Duration>, WriteError> {
        let node = self.live(name, uid).await?;
        if !matches!(cordon_of(&node), Cordon::Ours(Hold { purpose: Purpose::Rollout(_), .. })) {
            return Err(self.changed(&node));
        }
        tracing::info!(machine = name, "turn canceled, uncordoning Node");
        drain::free(self.world, &node, failed).await?;
        match failed {
            Some(failed) => self.tell(name, ControllerEvent::UpdateFailed, &events::failed(failed)),
            None => self.tell(name, ControllerEvent::UpdateInterrupted, &events::held(name, self.rollout)),
        }
        Ok(None)
    }

    fn refused(&self, version: &str, refusal: &Refusal) -> Failed {
        let (reason, message) = events::refused(refusal);
        self.failed(version, reason, &message)
    }

    fn failed(&self, version: &str, reason: UpdateFailure, message: &str) -> Failed {
        let (version, message) = (version.to_owned(), cut(message));
        Failed { version, generation: self.rollout.generation, reason, message }
    }
}

impl Step {
    /// Returns the kind of step for the metrics.
    fn kind(&self) -> Turn {
        match self {
            Self::Take { .. } => Turn::Select,
            Self::Cordon { .. } => Turn::Cordon,
            Self::Drain { .. } => Turn::Drain,
            Self::Free { .. } => Turn::Uncordon,
        }
    }
}
