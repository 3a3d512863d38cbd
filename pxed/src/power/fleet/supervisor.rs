//! One worker per Machine that has a BMC, while this pxed leads its site; each operation to the worker of its Machine.
//!
//! An operation that no worker can take (no BMC, a paused Machine, one that is deleted or not there) is answered here. Others'
//! are left alone. Called by `run`.

mod answer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_process::liveness::{DISK_PATIENCE, Liveness};
use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::JoinMap;

use self::answer::answer_operation;
use super::assignment::{Assignment, Clock, Shared};
use super::deleted_machines::Departing;
use super::duplicates::Contested;
use super::finalizers::Finalizers;
use super::grace_timers::Ripening;
use super::leadership::Leadership;
use crate::machines::source::SourceState;
use crate::machines::{KnownMachine, Machines, Snapshot};
use crate::power::bmc::limits::Gate;
use crate::power::counters::Counters;
use crate::power::machine::worker::Worker;
use crate::power::plan::breaker::later;
use crate::power::plan::claim::Claims;
use crate::power::plan::queue::{Absence, Queue, Route, route};
use crate::power::{Dial, Operation, OperationKey, OperationUpdate, Origin, PowerPlane};
use crate::status::StatusRegistry;
use crate::store::Store;

/// Timeout for the workers at shutdown: each closes the session at its BMC.
const WORKER_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);
/// Without a cluster: how long a Machine that an operation names must be missing.
const MISSING_MACHINE_GRACE: SignedDuration = SignedDuration::from_secs(30);

/// Limits of BMC requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of concurrent BMC connections.
    pub connections: usize,
    /// Interval between polls of an idle machine.
    pub poll: Duration,
    /// True if pxed may use unverified BMCs: plain HTTP, or a certificate that is not verified.
    pub allow_insecure: bool,
}

/// Dependencies of power control.
pub struct Parts {
    /// The Machines of this site.
    pub machines: Machines,
    /// State of their source: no power is driven before it has answered, and no Machine counts as deleted while it has problems.
    pub source: watch::Sender<SourceState>,
    /// Their statuses.
    pub registry: StatusRegistry,
    /// Store of departing Machines.
    pub store: Store,
    /// The plane's side.
    pub plane: PowerPlane,
    /// Factory of BMC clients.
    pub dial: Arc<dyn Dial>,
    /// Limits of BMC requests.
    pub limits: Limits,
    /// Executor name in operations: `pxed/<site>/<host name or pod name>`.
    pub instance: String,
    /// Counters of power control.
    pub counters: Arc<Counters>,
}

struct Handle {
    wanted: watch::Sender<Assignment>,
    stop: CancellationToken,
    uid: String,
}

/// Drives power until `shutdown`. Then each worker ends its session at its BMC. The progress of running operations is in their objects.
pub fn run(
    parts: Parts,
    liveness: &Liveness,
    shutdown: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    run_by(Arc::new(Timestamp::now), parts, liveness, shutdown)
}

/// Runs three loops: leadership, the finalizers of Machines, and the workers of the fleet.
fn run_by(
    clock: Clock,
    parts: Parts,
    liveness: &Liveness,
    shutdown: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let Parts { machines, source, registry, store, plane, .. } = parts;
    let PowerPlane { origin, updates, claims, writer, credentials, holding, tokens, tenure } = plane;
    let departing = Departing::load(&store);
    let shared = Arc::new(Shared {
        gate: Gate::new(parts.limits.connections),
        registry,
        store,
        writer,
        credentials,
        dial: parts.dial,
        holding,
        tokens,
        tenure: tenure.clone(),
        origin,
        limits: parts.limits,
        instance: parts.instance,
        counters: parts.counters,
        clock,
    });
    let (mut leadership, leads) = Leadership::new(tenure, source.subscribe());
    let mut finalizers = Finalizers::new(shared.clone(), machines.clone(), leads.clone());
    let mut supervisor =
        Supervisor::new(shared, machines, source, Changes { updates, claims, leads }, departing);
    let task = |name| Task::new(liveness.part(name, DISK_PATIENCE));
    let (leading, holding, driving) = (task("power leadership"), task("finalizers"), task("power"));
    async move {
        let fleet = async {
            // A turn may write to the store which Machines are deleted. It is not dropped at shutdown.
            driving.finishing_turns().run(&mut supervisor, shutdown.clone()).await;
            supervisor.drain().await;
        };
        let others = async {
            tokio::join!(
                leading.run(&mut leadership, shutdown.clone()),
                holding.run(&mut finalizers, shutdown.clone())
            )
        };
        let mut fleet = std::pin::pin!(fleet);
        // Without the fleet the others have no task, for example because the source of operations has ended.
        tokio::select! {
            () = &mut fleet => {}
            _ = others => fleet.await,
        }
    }
}

/// Changes that the supervisor follows, in addition to those of Machines.
struct Changes {
    updates: mpsc::Receiver<OperationUpdate>,
    claims: watch::Receiver<Claims>,
    leads: watch::Receiver<bool>,
}

struct Supervisor {
    shared: Arc<Shared>,
    machines: Machines,
    /// Changes with the index of Machines.
    index: watch::Receiver<u64>,
    changes: Changes,
    source: watch::Sender<SourceState>,
    snapshot: Arc<Snapshot>,
    /// MachineClaims of the site.
    claims: Claims,
    /// Machines that claim the same BMC.
    contested: Contested,
    /// All names seen so far. A name in this set that is missing now was deleted; any other is not listed yet.
    ever: HashSet<MachineName>,
    departing: Departing,
    /// Without a cluster: not there, and an operation names them.
    absent: Ripening,
    queue: Queue,
    handles: HashMap<MachineName, Handle>,
    workers: JoinSet<MachineName>,
    answers: JoinMap<OperationKey, Option<Operation>>,
    /// The operations are known: a machine that is off may be in the middle of one.
    knows_operations: bool,
    leads: bool,
}

impl Supervisor {
    fn new(
        shared: Arc<Shared>,
        machines: Machines,
        source: watch::Sender<SourceState>,
        changes: Changes,
        departing: Departing,
    ) -> Self {
        let queue = Queue::new(&shared.instance);
        Self {
            shared,
            index: machines.subscribe(),
            machines,
            changes,
            source,
            snapshot: Arc::default(),
            claims: Claims::default(),
            contested: Contested::default(),
            ever: HashSet::new(),
            departing,
            absent: Ripening::default(),
            queue,
            handles: HashMap::new(),
            workers: JoinSet::new(),
            answers: JoinMap::new(),
            knows_operations: false,
            leads: false,
        }
    }

    /// Starts or stops with the leadership.
    fn lead(&mut self) {
        let leads = *self.changes.leads.borrow_and_update() && self.shared.tenure.leads();
        if self.leads && !leads {
            self.stop();
        } else if !self.leads && leads && self.knows_operations {
            self.leads = true;
            tracing::info!("power leadership acquired");
            self.assign_all();
        }
        self.shared.counters.queue.store(self.queue.depth(), std::sync::atomic::Ordering::Relaxed);
    }

    /// Stops the workers: this pxed does not lead any more.
    fn stop(&mut self) {
        self.leads = false;
        self.answers = JoinMap::new();
        for (_, handle) in self.handles.drain() {
            handle.stop.cancel();
        }
        tracing::info!("power leadership lost");
    }

    async fn follow(&mut self) {
        let snapshot = self.machines.load();
        let before = std::mem::replace(&mut self.snapshot, snapshot);
        let is_gone = |known: &&Arc<KnownMachine>| self.snapshot.by_name(&known.name).is_none();
        let gone: Vec<_> = before.iter().filter(is_gone).cloned().collect();
        let mut touched: HashSet<MachineName> = gone.iter().map(|known| known.name.clone()).collect();
        touched.extend(self.snapshot.changed_since(&before).map(|known| known.name.clone()));
        for name in touched.clone() {
            let known = self.snapshot.by_name(&name);
            touched
                .extend(self.contested.claim(&name, known.and_then(|known| known.machine.spec.bmc.as_ref())));
            self.ever.insert(name);
        }
        let mut changes = Vec::new();
        if self.shared.origin == Origin::Manifests && self.machines.are_known() {
            touched.extend(self.departing.names());
            changes = self.departing.follow(&gone, &self.snapshot, &self.contested, self.shared.now());
        }
        // Before the disk: a machine whose manifest is back is left on however slow that is.
        for name in &touched {
            self.assign(name);
        }
        if !changes.is_empty()
            && let Err(error) = self.shared.store.write(changes).await
        {
            tracing::warn!(%error, "failed to store machines to power off, a restart forgets them");
        }
    }

    /// Gives the claims to the workers of the Machines that they concern.
    fn follow_claims(&mut self) {
        let now = self.changes.claims.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.claims, now);
        let differs =
            |known: &&Arc<KnownMachine>| before.of(&known.machine) != self.claims.of(&known.machine);
        let touched: Vec<MachineName> =
            self.snapshot.iter().filter(differs).map(|known| known.name.clone()).collect();
        for name in touched {
            self.assign(&name);
        }
    }

    fn take(&mut self, update: OperationUpdate) {
        self.knows_operations |= matches!(update, OperationUpdate::Set(_));
        let touched = self.queue.take(update);
        for name in touched {
            self.assign(&name);
        }
    }

    fn assign_all(&mut self) {
        let mut names: HashSet<MachineName> = self.snapshot.iter().map(|known| known.name.clone()).collect();
        names.extend(self.handles.keys().cloned());
        names.extend(self.departing.names());
        names.extend(self.queue.machines());
        for name in names {
            self.assign(&name);
        }
    }

    /// Gives a Machine's worker what it is to do now, beginning or ending it as needed.
    fn assign(&mut self, name: &MachineName) {
        if !self.leads {
            return;
        }
        let (machine, departing) = match self.snapshot.by_name(name) {
            Some(known) => (Some(known.clone()), false),
            None => (self.departing.ripe(name), true),
        };
        let mut operations = Vec::new();
        let known = machine.as_ref().filter(|_| !departing);
        let absence = self.absence(name, known.is_some());
        for operation in self.queue.of(name) {
            match route(operation, known.map(|known| &*known.machine), absence, self.shared.origin) {
                Route::Worker => operations.push(operation.clone()),
                Route::LeftAlone => {}
                Route::Answer(answer) => {
                    if !self.answers.contains_key(&operation.key) {
                        let (shared, key, operation) =
                            (self.shared.clone(), operation.key.clone(), operation.clone());
                        self.answers.spawn(key, answer_operation(shared, operation, answer));
                    }
                }
            }
        }
        let ended = self.queue.ended(name).cloned();
        let assignment = machine.map(|machine| {
            let contested = self.contested.message(name).map(Arc::from);
            let created = machine.machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
            let shut_down = self.queue.shut_down(name).filter(|shut_down| shut_down.is_of(created)).cloned();
            let claim = self.claims.of(&machine.machine);
            Assignment { machine, operations, ended, shut_down, departing, claim, contested }
        });
        let assignment = assignment.filter(|a| a.machine.machine.spec.bmc.is_some() || a.is_held());
        let Some(assignment) = assignment else {
            if let Some(handle) = self.handles.remove(name) {
                handle.stop.cancel();
            }
            // Again when the worker has ended: it may be in the middle of a report.
            if let Some(known) = self.snapshot.by_name(name) {
                self.shared.registry.forget_bmc(known);
            }
            return;
        };
        match self.handles.get(name) {
            Some(handle) if handle.uid == assignment.machine.uid => {
                handle.wanted.send_if_modified(|wanted| {
                    let changed = !wanted.is_as(&assignment);
                    *wanted = assignment;
                    changed
                });
            }
            Some(_) | None => self.begin(name, assignment),
        }
    }

    /// Returns what the absence of a Machine means, if it is absent.
    fn absence(&mut self, name: &MachineName, is_there: bool) -> Absence {
        let is_ours = self.shared.origin == Origin::Manifests && !self.snapshot.is_elsewhere(name);
        if is_there || !is_ours || self.queue.of(name).next().is_none() {
            self.absent.forget(name);
            return if self.ever.contains(name) { Absence::Gone } else { Absence::Elsewhere };
        }
        self.absent.begin(name, later(self.shared.now(), MISSING_MACHINE_GRACE));
        if self.absent.is_ripe(name) { Absence::Missing } else { Absence::Pending }
    }

    fn begin(&mut self, name: &MachineName, assignment: Assignment) {
        let (stop, uid) = (CancellationToken::new(), assignment.machine.uid.clone());
        let (wanted, receiver) = watch::channel(assignment);
        let worker = Box::new(Worker::new(self.shared.clone(), receiver));
        let (name, token) = (name.clone(), stop.clone());
        let old = self.handles.insert(name.clone(), Handle { wanted, stop, uid });
        if let Some(old) = old {
            old.stop.cancel();
        }
        self.workers.spawn(async move {
            worker.run(token).await;
            name
        });
    }

    /// Handles the end of a worker, after a stop or after the departure of its Machine.
    fn ended(&mut self, name: Option<MachineName>) {
        let Some(name) = name else {
            tracing::error!("power worker panicked");
            // A panic names no Machine, but the worker's channel is closed.
            self.handles.retain(|_, handle| !handle.wanted.is_closed());
            self.assign_all();
            return;
        };
        if self.handles.get(&name).is_some_and(|handle| handle.wanted.is_closed()) {
            self.handles.remove(&name);
            self.departing.departed(&name);
        }
        if !self.handles.contains_key(&name) {
            self.assign(&name);
        }
    }

    fn answered(&mut self, key: &OperationKey, answered: Result<Option<Operation>, JoinError>) {
        match answered {
            Ok(Some(operation)) => self.take(OperationUpdate::Put(operation)),
            Ok(None) => {}
            // It is answered at the next update of its Machine or of an operation.
            Err(_) => tracing::error!(operation = key.name, "answer to an operation panicked"),
        }
    }

    /// Returns the time until the next timer of a departing or missing Machine ends.
    fn next_ripe(&self) -> Option<Duration> {
        let at = [self.departing.next_ripe(), self.absent.next()].into_iter().flatten().min()?;
        Some(Duration::try_from(at.duration_since(self.shared.now())).unwrap_or_default())
    }

    fn ripen(&mut self) {
        // Manifests that were read in the meantime are handled first: a removed one may have returned.
        if !Arc::ptr_eq(&self.machines.load(), &self.snapshot) {
            return;
        }
        let source = self.source.borrow().clone();
        let sound = source.synced && source.unreachable.is_none() && source.problems.is_empty();
        let now = self.shared.now();
        if !sound || self.snapshot.is_empty() {
            // Neither a name in two files nor an unmounted directory is a deletion.
            self.departing.postpone(now);
            self.absent.postpone(later(now, MISSING_MACHINE_GRACE));
            return;
        }
        for name in self.departing.ripen(now).into_iter().chain(self.absent.ripen(now)) {
            self.assign(&name);
        }
    }

    /// Waits until the workers have ended their sessions.
    async fn drain(&mut self) {
        for (_, handle) in self.handles.drain() {
            handle.stop.cancel();
        }
        self.answers.abort_all();
        let closing = async { while self.workers.join_next().await.is_some() {} };
        if tokio::time::timeout(WORKER_SHUTDOWN_TIMEOUT, closing).await.is_err() {
            tracing::warn!("sessions at BMCs left open");
        }
    }
}

/// Change that the supervisor follows.
enum Event {
    /// Machines have changed.
    Machines,
    /// The leadership has changed.
    Leadership,
    /// MachineClaims have changed.
    Claims,
    /// An operation has changed.
    Operation(OperationUpdate),
    /// A worker has ended. None if it panicked.
    Ended(Option<MachineName>),
    /// The answer to an operation was written, or it failed for good.
    Answered(OperationKey, Result<Option<Operation>, JoinError>),
}

impl Reconcile for Supervisor {
    type Event = Event;

    async fn changed(&mut self) -> Option<Event> {
        tokio::select! {
            Ok(()) = self.index.changed() => Some(Event::Machines),
            Ok(()) = self.changes.leads.changed() => Some(Event::Leadership),
            Ok(()) = self.changes.claims.changed() => Some(Event::Claims),
            update = self.changes.updates.recv() => update.map(Event::Operation),
            Some(ended) = self.workers.join_next() => Some(Event::Ended(ended.ok())),
            Some((key, answered)) = self.answers.join_next() => Some(Event::Answered(key, answered)),
        }
    }

    async fn turn(&mut self, activation: Activation<Event>) -> Turn {
        match activation {
            Activation::Start | Activation::Changed(Event::Machines) => self.follow().await,
            Activation::Changed(Event::Operation(update)) => self.take(update),
            Activation::Changed(Event::Claims) => self.follow_claims(),
            Activation::Changed(Event::Ended(name)) => self.ended(name),
            Activation::Changed(Event::Answered(key, answered)) => self.answered(&key, answered),
            Activation::Changed(Event::Leadership) | Activation::Due => {}
        }
        if self.next_ripe().is_some_and(|wait| wait.is_zero()) {
            self.ripen();
        }
        self.lead();
        self.next_ripe().map_or(Turn::Idle, |wait| Turn::At(Instant::now() + wait))
    }
}

#[cfg(test)]
mod tests;
