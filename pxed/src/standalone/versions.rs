//! In the controller's place where there is no cluster: the versions of configurations, and which one each Machine gets.
//!
//! ```text
//!   manifests, Machines, enrollments, what agents say of their Nodes
//!        |
//!     follow (one task: no lock) --settle (pure)--> store, in one commit --> State --> agents' watches, the socket, statuses
//! ```
//! [`NodeChoice`] is a handle: it hands on what is asked, and reads the last state, which is in the store already. Made by
//! `plane`; asked by the source's follower, by `agents` and by the socket.

mod follow;
mod plan;
mod problems;
mod report;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_api::id::MachineName;
use bedplate_api::machine::NodeRef;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_process::liveness::Pulse;
use bedplate_process::reconcile::Task;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::follow::{Ask, Follower, ReportedNode};
pub use self::report::{Described, Used};
pub use self::state::{Chosen, Configured, State};
use crate::machines::source::SourcedConfiguration;
use crate::machines::{KnownMachine, Machines};
use crate::status::StatusRegistry;
use crate::store::{Store, StoreError, Table};

/// Questions that wait; who asks waits too when there are more.
const ASK_QUEUE_CAPACITY: usize = 256;

/// Error of storing an agent's report; the agent repeats it.
#[derive(Debug, Error)]
#[error("the status of the node cannot be stored now: {0}")]
pub struct KeepNodeError(String);

/// Selection for a Machine at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Selected version; `None` before the first choice.
    pub chosen: Option<Arc<Chosen>>,
    /// The version that is selected.
    pub version: Option<Arc<MachineConfigurationVersion>>,
}

/// The choices; clones share them.
#[derive(Debug, Clone)]
pub struct NodeChoice {
    asks: mpsc::Sender<Ask>,
    state: watch::Receiver<Arc<State>>,
    problems: Arc<ArcSwap<Vec<String>>>,
    machines: Machines,
    registry: StatusRegistry,
}

/// Task that makes choices, to be spawned once.
pub struct Choosing(Follower);

impl NodeChoice {
    /// With what the store kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(
        store: Store,
        machines: Machines,
        registry: StatusRegistry,
    ) -> Result<(Self, Choosing), StoreError> {
        let (state, unreadable) = State::read(
            store.scan(Table::Configurations)?,
            store.scan(Table::Versions)?,
            store.scan(Table::Choices)?,
        );
        for problem in unreadable {
            tracing::warn!(problem, "skipping unreadable stored configuration, version or choice");
        }
        let (asks, receiver) = mpsc::channel(ASK_QUEUE_CAPACITY);
        let (sender, state) = watch::channel(Arc::new(state));
        let problems = Arc::<ArcSwap<Vec<String>>>::default();
        let follower =
            Follower::new(store, machines.clone(), registry.clone(), receiver, sender, problems.clone());
        Ok((Self { asks, state, problems, machines, registry }, Choosing(follower)))
    }

    /// Follows a set of manifests. `whole`: none is missing, so that what is not in it is gone.
    pub async fn take(&self, configurations: Vec<SourcedConfiguration>, whole: bool) {
        // The receiver is closed only at shutdown.
        let _ = self.asks.send(Ask::Follow(plan::Manifests { configurations, whole })).await;
    }

    /// Takes what a Machine's agent says of its Node: one that is there, or the UID of one that a live read said to be gone.
    ///
    /// # Errors
    /// The report cannot be stored now.
    pub async fn report(
        &self,
        machine: &KnownMachine,
        node: Option<NodeRef>,
        gone: Option<String>,
    ) -> Result<(), KeepNodeError> {
        let before =
            self.state().chosen(&machine.name, &machine.uid).map(|c| (**c).clone()).unwrap_or_default();
        if before.with_node(&machine.name, node.as_ref(), gone.as_ref()) == before {
            return Ok(());
        }
        let (done, answer) = oneshot::channel();
        let (name, uid) = (machine.name.clone(), machine.uid.clone());
        let reported = ReportedNode { name, uid, node, gone, done };
        let ended = |_| KeepNodeError("pxed is being stopped".to_owned());
        self.asks.send(Ask::Node(reported)).await.map_err(|_| ended(()))?;
        answer.await.map_err(|_| ended(()))?.map_err(|error| KeepNodeError(error.to_string()))
    }

    /// Returns the current selection for a Machine.
    pub fn selection(&self, machine: &KnownMachine) -> Selection {
        let state = self.state();
        let chosen = state.chosen(&machine.name, &machine.uid).cloned();
        let version = chosen.as_ref().and_then(|chosen| state.selected(chosen)).cloned();
        Selection { chosen, version }
    }

    /// Told at each change of the choice for any Machine.
    pub fn changes(&self) -> watch::Receiver<Arc<State>> {
        self.state.clone()
    }

    /// All that is known, as it is in the store.
    pub fn state(&self) -> Arc<State> {
        self.state.borrow().clone()
    }

    /// Problems of the manifests of configurations, and of Machines where there is no controller, as texts for users.
    pub fn problems(&self) -> Arc<Vec<String>> {
        self.problems.load_full()
    }

    /// Configurations, versions and their users, for the admin socket.
    pub fn describe(&self) -> Vec<Described> {
        let status_of = |name: &MachineName| self.registry.get(name);
        report::describe(&self.state(), &self.machines.load(), &status_of)
    }
}

impl Choosing {
    /// Chooses until `shutdown`.
    pub async fn run(mut self, pulse: Pulse, shutdown: CancellationToken) {
        Task::new(pulse).run(&mut self.0, shutdown).await;
    }
}
