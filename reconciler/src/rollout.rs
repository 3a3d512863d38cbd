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
use bedplate_engine::write::{self, WriteError};
use bedplate_rules::drain::{Drain, refusal};
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
use crate::cordon::{Cordon, Failed, GivenUp, cordon_of};
use crate::machine;
use crate::metrics::Turn;
use crate::node::drain::{self, Left};

/// Interval between checks of a running update, if nothing changes before. A check detects unreachable
/// agents.
const ROLLOUT_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of Machines whose steps are done concurrently.
const MAX_CONCURRENT_STEPS: usize = 8;
/// Maximum difference between the clocks of the controller that started a drain and of this one.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// Does the next steps of one configuration's rolling update.
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
    let turn = Actor { configuration: &configuration, known: &known, rollout: &rollout, world: &world };
    for alike in steps.chunk_by(|one, other| order(one) == order(other)) {
        // Sequential steps would let the last of many drains time out before its first check.
        let all: Vec<_> = alike.iter().map(|step| turn.does(step, settings.as_ref())).collect();
        let mut all = stream::iter(all).buffer_unordered(MAX_CONCURRENT_STEPS);
        while let Some(done) = all.next().await {
            match done {
                Ok(Some(left)) => after = Some(after.map_or(left.after, |after| after.min(left.after))),
                Ok(None) => {}
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

/// The configuration whose rolling update a Machine is in, if that has one.
pub fn governs(machine: &Machine, stores: &Stores) -> Option<String> {
    let name = &machine.status.as_ref()?.selected.as_ref()?.name;
    let configuration = stores.configurations.get(&ObjectRef::new(name))?;
    settings(&configuration).map(|_| name.clone())
}

/// A Node of the store, as it is by what was written since.
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
        // A Machine that comes from another configuration may be a control plane.
        let applied = machines.iter().filter_map(|machine| machine.status.as_ref()?.applied.as_ref());
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

/// Executor of one step.
struct Actor<'a> {
    configuration: &'a MachineConfiguration,
    known: &'a Known,
    rollout: &'a Rollout,
    world: &'a World,
}

impl Actor<'_> {
    async fn does(&self, step: &Step, settings: Option<&RollingUpdate>) -> Result<Option<Left>, WriteError> {
        let done = self.world.leading(self.step(step, settings)).await;
        self.world.turns.turned(step.kind(), done.is_ok());
        done
    }

    async fn step(&self, step: &Step, settings: Option<&RollingUpdate>) -> Result<Option<Left>, WriteError> {
        match step {
            Step::Take { machine } => self.take(machine).await.map(|()| None),
            Step::Cordon { machine, node_uid, version } => {
                self.cordon(machine, node_uid, version, settings).await.map(Some)
            }
            Step::Drain { machine, node_uid, version } => {
                self.drain(machine, node_uid, version, settings).await
            }
            Step::Free { machine, node_uid, failed } => {
                self.free(machine, node_uid, failed.as_ref()).await.map(|()| None)
            }
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

    async fn take(&self, name: &str) -> Result<(), WriteError> {
        match self.machine(name) {
            Some(machine) => machine::take(machine.clone(), self.world).await,
            None => Ok(()),
        }
    }

    /// The Node as it is now, if it is the one that was planned for.
    async fn live(&self, name: &str, uid: &str) -> Result<Node, WriteError> {
        let node = self.world.live_node(name).await?;
        let is_it = |node: &Node| node.metadata.uid.as_deref() == Some(uid);
        node.filter(is_it).ok_or_else(|| WriteError::Conflict { what: format!("Node {name}") })
    }

    /// The Node as it is now, if it is cordoned for this version.
    async fn held(&self, name: &str, uid: &str, version: &str) -> Result<Node, WriteError> {
        let node = self.live(name, uid).await?;
        let ours = Purpose::Rollout(version.to_owned());
        match cordon_of(&node) {
            Cordon::Ours(hold) if hold.purpose == ours && hold.cordoned => Ok(node),
            _ => {
                self.world.drains.forget(name);
                Err(WriteError::Conflict { what: format!("Node {name}") })
            }
        }
    }

    async fn cordon(
        &self,
        name: &str,
        uid: &str,
        version: &str,
        settings: Option<&RollingUpdate>,
    ) -> Result<Left, WriteError> {
        let (world, now) = (self.world, Timestamp::now());
        let node = self.live(name, uid).await?;
        if !matches!(cordon_of(&node), Cordon::Free) {
            return Err(WriteError::Conflict { what: format!("Node {name}") });
        }
        let pods = drain::pods(world, name).await?;
        let left = Left { awaits: String::new(), blocked: None, after: Duration::from_millis(500) };
        // No Node is cordoned if its Pods cannot be evicted.
        if let Some(refusal) = refusal(&pods, &self.gently(settings)) {
            let (reason, why) = events::refused(&refusal);
            let failed = self.failed(version, reason, &why);
            tracing::warn!(machine = name, version, reason = failed.message, "Node drain refused");
            drain::say_failed(world, &node, &failed).await?;
            self.tell(name, ControllerEvent::UpdateFailed, &events::given_up(version, &failed.message));
            return Ok(left);
        }
        drain::cordon(world, &node, &Purpose::Rollout(version.to_owned()), now).await?;
        world.drains.begins(&pods);
        tracing::info!(machine = name, version, "turn started, Node cordoned");
        self.tell(name, ControllerEvent::UpdateStarted, &events::begun(name, version));
        Ok(left)
    }

    async fn drain(
        &self,
        name: &str,
        uid: &str,
        version: &str,
        settings: Option<&RollingUpdate>,
    ) -> Result<Option<Left>, WriteError> {
        let (world, now) = (self.world, Timestamp::now());
        let node = self.held(name, uid, version).await?;
        let pods = drain::pods(world, name).await?;
        let drain = self.gently(settings);
        if let Some(refusal) = refusal(&pods, &drain) {
            let (reason, why) = events::refused(&refusal);
            return self.give_up(&node, version, reason, &why).await;
        }
        if !pods.iter().any(bedplate_rules::drain::Pod::has_to_leave) {
            return self.finish(&node, version).await;
        }
        let Some(left) = self.time_left(&node, drain.limit, now) else {
            drain::say_begun(world, &node, now).await?;
            return Ok(Some(Left { awaits: String::new(), blocked: None, after: Duration::ZERO }));
        };
        // The timeout counts only after the Pods were evicted. A controller that was stopped or busy evicts
        // them first.
        let pending = node.annotations().get(crate::cordon::DRAIN_PENDING);
        if let Some(pending) = pending.filter(|_| !left.is_positive()) {
            let message = format!("not drained within {} s: {pending}", drain.limit.as_secs());
            return self.give_up(&node, version, GivenUp::DrainTimedOut, &message).await;
        }
        let until = now.saturating_add(left).unwrap_or(Timestamp::MAX);
        let left = drain::evict_all(world, &pods, &drain).await?;
        if let Some(left) = &left {
            drain::say_awaited(world, &node, &left.awaits).await?;
            if let Some(machine) = self.machine(name) {
                drain::tell_blocked(world, machine, &node, left, Some(until));
            }
        }
        Ok(left.or(Some(Left { awaits: String::new(), blocked: None, after: Duration::ZERO })))
    }

    /// Returns the remaining time of a drain. Returns `None` if its start is unknown or in the future. Uses
    /// this program's monotonic clock, because the wall clock may leap. The time on the Node counts only if
    /// another controller started the drain.
    fn time_left(&self, node: &Node, limit: SignedDuration, now: Timestamp) -> Option<SignedDuration> {
        let Cordon::Ours(hold) = cordon_of(node) else { return None };
        let (began, uid) = (hold.began?, node.metadata.uid.as_deref()?);
        let lasting = &self.world.drains.lasting;
        let is_sane = lasting.knows(uid, began) || began <= now.saturating_add(MAX_CLOCK_SKEW).unwrap_or(now);
        is_sane.then(|| limit.saturating_sub(lasting.lasted(uid, began, now, limit)))
    }

    /// Deletes a Node without Pods, if a live read shows that its Machine must still be updated.
    async fn finish(&self, node: &Node, version: &str) -> Result<Option<Left>, WriteError> {
        let name = node.name_any();
        let changed = || WriteError::Conflict { what: format!("Machine {name}") };
        let machine = self.world.live_machine(&name).await?.ok_or_else(changed)?;
        let known = Known { machines: vec![Arc::new(machine)], versions: self.known.versions.clone() };
        let seen = Arc::new(node.clone());
        let now = known.judge(self.configuration, &|_| Some(seen.clone()), &self.world.stores);
        let is_due = |member: &Member| member.place == Place::Draining(version.to_owned());
        if !now.members.iter().any(is_due) {
            return Err(changed());
        }
        drain::remove(self.world, node).await?;
        tracing::info!(machine = name, version, "Pods evicted, Node deleted");
        self.tell(&name, ControllerEvent::NodeDrained, &events::drained(&name, version));
        Ok(None)
    }

    async fn give_up(
        &self,
        node: &Node,
        version: &str,
        reason: GivenUp,
        message: &str,
    ) -> Result<Option<Left>, WriteError> {
        let failed = self.failed(version, reason, message);
        tracing::warn!(
            machine = node.name_any(),
            version,
            reason = ?reason,
            message,
            "turn failed, uncordoning Node"
        );
        drain::free(self.world, node, Some(&failed)).await?;
        self.tell(
            &node.name_any(),
            ControllerEvent::UpdateFailed,
            &events::given_up(version, &failed.message),
        );
        Ok(None)
    }

    async fn free(&self, name: &str, uid: &str, failed: Option<&Failed>) -> Result<(), WriteError> {
        let node = self.live(name, uid).await?;
        match cordon_of(&node) {
            Cordon::Ours(hold) if matches!(hold.purpose, Purpose::Rollout(_)) => {
                tracing::info!(machine = name, "turn canceled, uncordoning Node");
                drain::free(self.world, &node, failed).await?;
                match failed {
                    Some(failed) => {
                        let note = events::given_up(&failed.version, &failed.message);
                        self.tell(name, ControllerEvent::UpdateFailed, &note);
                    }
                    None => {
                        self.tell(
                            name,
                            ControllerEvent::UpdateInterrupted,
                            &events::held(name, self.rollout),
                        );
                    }
                }
                Ok(())
            }
            _ => {
                self.world.drains.forget(name);
                Err(WriteError::Conflict { what: format!("Node {name}") })
            }
        }
    }

    fn failed(&self, version: &str, reason: GivenUp, message: &str) -> Failed {
        let (version, message) = (version.to_owned(), crate::cordon::cut(message));
        Failed { version, generation: self.rollout.generation, reason, message }
    }

    /// Returns drain settings. By default a Pod's emptyDir data is lost, and a Pod without a controller is
    /// not evicted.
    fn gently(&self, settings: Option<&RollingUpdate>) -> Drain {
        let seconds = settings.map(|settings| i64::from(settings.drain_timeout_seconds));
        let limit = seconds.map_or_else(|| limit(Some(self.configuration)), SignedDuration::from_secs);
        let policy = settings.and_then(|settings| settings.drain);
        let delete_empty_dir = policy.is_none_or(|policy| policy.delete_empty_dir_data);
        Drain { limit, grace: None, delete_empty_dir, force: policy.is_some_and(|policy| policy.force) }
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
