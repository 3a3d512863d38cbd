//! The only task that makes choices: collects changes, settles them, writes the result to the store, and then
//! publishes it.
//!
//! ```text
//! idle --ask, Machines, enrollment--> settle --nothing differs--> idle
//!                                      |
//!                                      +--commit--> notify agents, statuses, askers --> idle
//!                                            `--error--> nothing is published; again in STORE_RETRY_DELAY
//! ```
//! Asks that arrive while a commit waits for the disk are settled together. Called by `NodeChoice`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{MachineStatus, NodeRef, condition_type};
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::plan::{Input, Manifests, Outcome, references, settle};
use super::problems::problems;
use super::state::{Chosen, State};
use crate::machines::{Machines, Snapshot};
use crate::status::{StatusRegistry, set_condition};
use crate::store::{Store, StoreError};

/// Delay before a failed write is retried.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Delay between an event that can release a version and the check for unused versions: a rack that enrolls causes
/// one check.
const TIDY_DELAY: Duration = Duration::from_secs(10);
/// Interval between checks for Machines that are missing for good.
const MISSING_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Questions that are settled together at most.
const MAX_ASKS_PER_COMMIT: usize = 256;

/// Requests to the task.
#[derive(Debug)]
pub(super) enum Ask {
    /// To follow these manifests.
    Follow(Manifests),
    /// To keep what an agent says.
    Node(ReportedNode),
}

/// Report of an agent about its Node.
#[derive(Debug)]
pub(super) struct ReportedNode {
    pub(super) name: MachineName,
    pub(super) uid: String,
    pub(super) node: Option<NodeRef>,
    pub(super) gone: Option<String>,
    pub(super) done: oneshot::Sender<Result<(), StoreError>>,
}

/// Parts of the state that must be checked.
#[derive(Debug, Default)]
struct Due {
    /// Every Machine, whatever `names` says.
    all: bool,
    names: BTreeSet<MachineName>,
    /// The manifests are new.
    manifests: bool,
    /// Versions may have to be made, or can go.
    versions: bool,
}

/// The task's parts.
pub(super) struct Follower {
    store: Store,
    machines: Machines,
    registry: StatusRegistry,
    asks: mpsc::Receiver<Ask>,
    /// Received and not settled yet.
    asked: Vec<Ask>,
    /// Changes with the index of Machines.
    index: watch::Receiver<u64>,
    /// Changes when the store's file was replaced.
    generation: watch::Receiver<u64>,
    sender: watch::Sender<Arc<State>>,
    problems: Arc<ArcSwap<Vec<String>>>,
    manifests: Manifests,
    /// Machines at the last check.
    last: Arc<Snapshot>,
    due: Due,
    /// Time of the next check of versions without a change.
    tidy: Option<Instant>,
    /// When a write that failed is tried again.
    again: Option<Instant>,
}

impl Follower {
    pub(super) fn new(
        store: Store,
        machines: Machines,
        registry: StatusRegistry,
        asks: mpsc::Receiver<Ask>,
        sender: watch::Sender<Arc<State>>,
        problems: Arc<ArcSwap<Vec<String>>>,
    ) -> Self {
        let due = Due { all: true, ..Due::default() };
        let (index, generation) = (machines.subscribe(), store.generation());
        let (asked, manifests, last, tidy, again) = Default::default();
        Self {
            store,
            machines,
            registry,
            asks,
            asked,
            index,
            generation,
            sender,
            problems,
            manifests,
            last,
            due,
            tidy,
            again,
        }
    }

    /// Looks at the Machines that are new or other than before.
    fn look_at_changed(&mut self) {
        let now = self.machines.load();
        self.due.names.extend(now.changed_since(&self.last).map(|known| known.name.clone()));
        self.last = now;
        // A reference of one that is gone, or other, may have held a version.
        self.tidy_in(TIDY_DELAY);
    }

    fn tidy_in(&mut self, wait: Duration) {
        let due = Instant::now().checked_add(wait);
        self.tidy = [self.tidy, due].into_iter().flatten().min();
    }

    /// Takes what is asked, and brings everything to what follows from it.
    async fn settle(&mut self) {
        let before = self.sender.borrow().clone();
        let mut next = State::clone(&before);
        let mut waiting = Vec::new();
        for ask in std::mem::take(&mut self.asked) {
            match ask {
                Ask::Follow(manifests) => {
                    self.manifests = manifests;
                    (self.due.manifests, self.due.versions, self.due.all) = (true, true, true);
                }
                Ask::Node(node) => {
                    keep_node(&mut next, &node);
                    self.due.names.insert(node.name);
                    waiting.push(node.done);
                }
            }
        }
        let (outcome, problems) = self.decide(&mut next);
        let changes = before.changes(&next);
        let news = !changes.is_empty();
        let written = if news { self.store.write(changes).await } else { Ok(()) };
        match &written {
            Ok(()) => {
                if let Some(problems) = problems {
                    self.tell_problems(problems);
                }
                self.tell(&Arc::new(next), news, outcome);
            }
            Err(error) => {
                tracing::error!(%error, "failed to store choices, they are not published");
                self.again = Instant::now().checked_add(STORE_RETRY_DELAY);
            }
        }
        for done in waiting {
            // An agent that has hung up asks again.
            let _ = done.send(written.clone());
        }
    }

    fn decide(&self, next: &mut State) -> (Outcome, Option<Vec<String>>) {
        let snapshot = self.machines.load();
        let status_of = |name: &MachineName| self.registry.read(name, part);
        let input = Input {
            manifests: Some(&self.manifests).filter(|_| self.due.manifests),
            machines: self.machines.are_known().then_some(&*snapshot),
            status_of: &status_of,
            look: Some(&self.due.names).filter(|_| !self.due.all),
            versions: self.due.versions,
            now: now(),
        };
        let outcome = settle(next, &input, &mut || uuid::Uuid::new_v4().to_string());
        let problems = input.versions.then(|| {
            let references = references(next, input.machines, &status_of);
            problems(next, &self.manifests, input.machines, &references, &status_of)
        });
        (outcome, problems)
    }

    /// Publishes state that the store holds now.
    fn tell(&mut self, next: &Arc<State>, news: bool, outcome: Outcome) {
        self.due = Due::default();
        for version in &outcome.written {
            tracing::info!(version, "version created from its manifest");
        }
        for name in &outcome.removed {
            tracing::info!(name, "unused configuration or version removed");
        }
        for (machine, selected) in &outcome.selected {
            let version = selected.version_name();
            tracing::info!(%machine, version, source = ?selected.source, "version selected");
        }
        if !outcome.selected.is_empty() {
            self.tidy_in(TIDY_DELAY);
        }
        if next.machines.values().any(|chosen| chosen.missing_since.is_some()) {
            self.tidy_in(MISSING_CHECK_INTERVAL);
        }
        if news {
            self.sender.send_replace(next.clone());
        }
        for (name, condition) in outcome.conditions {
            let chosen = next.machines.get(&name).map(|chosen| Chosen::clone(chosen)).unwrap_or_default();
            self.registry.update(&name, |status| {
                status.provider_id = chosen.node.as_ref().map(|_| format!("bedplate://{name}"));
                (status.selected, status.node_ref) = (chosen.selected, chosen.node);
                if let Some(condition) = condition {
                    let now = Timestamp::now();
                    set_condition(
                        status,
                        condition.pending,
                        condition.reason,
                        &condition.message,
                        condition.generation,
                        now,
                    );
                }
            });
        }
    }

    fn tell_problems(&self, problems: Vec<String>) {
        let before = self.problems.load();
        for problem in problems.iter().filter(|problem| !before.contains(problem)) {
            tracing::warn!(problem, "problem of the manifests");
        }
        self.problems.store(Arc::new(problems));
    }

    /// Writes the complete state into a store that was re-created.
    async fn write_again(&mut self) {
        let state = self.sender.borrow().clone();
        if let Err(error) = self.store.write(State::default().changes(&state)).await {
            tracing::error!(%error, "failed to store choices in the new store, a restart forgets them");
        }
    }
}

/// Change that the loop follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Questions are in [`Follower::asked`].
    Asked,
    /// Machines have changed.
    Machines,
    /// A status has changed in a part that a choice depends on.
    Concern,
    /// The store's file was replaced by an empty one.
    NewStore,
}

impl Reconcile for Follower {
    type Event = Event;

    async fn changed(&mut self) -> Option<Event> {
        tokio::select! {
            count = self.asks.recv_many(&mut self.asked, MAX_ASKS_PER_COMMIT) => match count {
                0 => std::future::pending().await,
                _ => Some(Event::Asked),
            },
            Ok(()) = self.index.changed() => Some(Event::Machines),
            () = self.registry.concerned() => Some(Event::Concern),
            Ok(()) = self.generation.changed() => Some(Event::NewStore),
        }
    }

    async fn turn(&mut self, activation: Activation<Event>) -> Turn {
        match activation {
            Activation::Start | Activation::Changed(Event::Machines) => self.look_at_changed(),
            Activation::Changed(Event::NewStore) => self.write_again().await,
            Activation::Changed(Event::Asked | Event::Concern) => {}
            Activation::Due => {
                let now = Instant::now();
                self.due.versions |= self.tidy.take_if(|due| *due <= now).is_some();
                self.again.take_if(|due| *due <= now);
            }
        }
        self.due.names.extend(self.registry.take_concerned());
        self.settle().await;
        self.tidy.into_iter().chain(self.again).min().map_or(Turn::Idle, Turn::At)
    }
}

/// The present in whole seconds, as a time is kept: what is read back after a restart is the same.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Part of a status that the rules read.
fn part(status: &MachineStatus) -> MachineStatus {
    let enrolled = status.conditions.iter().filter(|c| c.type_ == condition_type::ENROLLED);
    MachineStatus {
        conditions: enrolled.cloned().collect(),
        applied: status.applied.clone(),
        hardware: status.hardware.clone(),
        ..MachineStatus::default()
    }
}

fn keep_node(state: &mut State, reported: &ReportedNode) {
    let before = state.chosen(&reported.name, &reported.uid).map(|chosen| Chosen::clone(chosen));
    let before = before.unwrap_or_else(|| Chosen { uid: reported.uid.clone(), ..Chosen::default() });
    let after = before.with_node(&reported.name, reported.node.as_ref(), reported.gone.as_ref());
    if after != before {
        state.machines.insert(reported.name.clone(), Arc::new(after));
    }
}
