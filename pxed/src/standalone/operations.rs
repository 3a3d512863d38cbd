//! MachineOperations without a cluster: of manifests, and of the admin socket.
//!
//! Each is in the store before anybody acts on it, and so is every step of it. What a manifest says twice, or after a restart,
//! is carried out once: `plan` decides. Fed by the source's follower; `run` is spawned by `run`.

mod agents;
pub(crate) mod plan;
mod tidy;

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard};

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_api::selector::MachineSelector;
use bedplate_process::lock::Lock;
use bedplate_rules::selection::matches;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};

use super::operations::plan::{Memory, Plan, Record, is_known, unknown_name};
use crate::machines::source::SourcedOperation;
use crate::machines::{KnownMachine, Machines};
use crate::power::operations::{is_finished, sort_by_age};
use crate::power::plan::parameters::Kind;
use crate::power::{
    CreateOperationError, Operation, OperationDesk, OperationKey, OperationUpdate, OperationWriter,
    WriteOperationError,
};
use crate::status::StatusRegistry;
use crate::store::{Change, Entry, Store, StoreError, Table};

/// Capacity of the queue of updates; a writer waits if it is full.
const UPDATE_QUEUE_CAPACITY: usize = 64;
/// Names that are tried for a `generateName`.
const MAX_NAME_ATTEMPTS: usize = 8;

/// Key that marks a table whose history is complete: it was not started after a loss. No object name begins with a
/// zero byte.
const KNOWN: &[u8] = b"\0known";
/// Before a name: since when its manifest is gone.
const GONE: &[u8] = b"\0gone/";

/// The operations; clones share them.
#[derive(Clone)]
pub(crate) struct LocalOperations {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    machines: Machines,
    /// Statuses of Machines, for selectors by hardware.
    statuses: StatusRegistry,
    updates: mpsc::Sender<OperationUpdate>,
    state: Lock<State>,
    /// One set of manifests after the other.
    taking: tokio::sync::Mutex<()>,
    /// One that was made for a selector has gone on.
    went_on: Notify,
    /// Told at each change of any.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    memory: Memory,
    /// True if every operation that is not in memory was never recorded.
    known: bool,
    /// True if a store was lost before this table was started.
    lost: bool,
    /// The manifests as they were given last, and whether none is missing; none before the first.
    manifests: Option<(Vec<SourcedOperation>, bool)>,
    /// True if the effects of the manifests are not in the store yet.
    due: bool,
    /// Names that are being made.
    reserved: HashSet<String>,
}

impl LocalOperations {
    /// Loads the operations of the store; returns them and the updates to follow. `lost`: a damaged store was moved
    /// aside at some time.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn open(
        store: Store,
        machines: Machines,
        statuses: StatusRegistry,
        lost: bool,
    ) -> Result<(Self, mpsc::Receiver<OperationUpdate>), StoreError> {
        let mut state = State { lost, ..State::default() };
        for entry in store.scan(Table::Operations)? {
            state.read(entry);
        }
        let (updates, receiver) = mpsc::channel(UPDATE_QUEUE_CAPACITY);
        let state = Lock::new(state);
        let (taking, went_on) = (tokio::sync::Mutex::default(), Notify::new());
        let changed = watch::Sender::new(());
        let inner = Inner { store, machines, statuses, updates, state, taking, went_on, changed };
        Ok((Self { inner: Arc::new(inner) }, receiver))
    }

    /// Returns true if a damaged store was moved aside at some time.
    pub(crate) fn was_lost(&self) -> bool {
        self.lock().lost
    }

    /// Follows the set of manifests; gives what is wrong with it. `whole`: none is missing, so that what is not in it is gone.
    pub(crate) async fn take(&self, manifests: Vec<SourcedOperation>, whole: bool) -> Vec<String> {
        self.lock().manifests = Some((manifests, whole));
        let problems = self.settle().await;
        self.inner.went_on.notify_one();
        problems
    }

    /// Returns the Machines that a selector matches now.
    fn select(&self, selector: &MachineSelector) -> Vec<MachineName> {
        let snapshot = self.inner.machines.load();
        let is_selected = |known: &KnownMachine| {
            if selector.match_fields.is_empty() {
                return matches(selector, &known.machine);
            }
            let status = self.inner.statuses.get(&known.name);
            matches(selector, &Machine { status, ..Machine::clone(&known.machine) })
        };
        snapshot.iter().filter(|known| is_selected(known)).map(|known| known.name.clone()).collect()
    }

    /// Goes on with operations that have selectors.
    async fn fan_out(&self) {
        let _one = self.inner.taking.lock().await;
        let uid = || uuid::Uuid::new_v4().to_string();
        let changed = self.lock().memory.fan_out(uid, Timestamp::now());
        if changed.is_empty() {
            return;
        }
        let plan = Plan { new: changed, ..Plan::default() };
        if let Err(error) = self.inner.store.write(changes(&plan, true, Timestamp::now())).await {
            tracing::error!(%error, "operations with a selector wait for the store");
            return;
        }
        let updates: Vec<_> =
            plan.new.iter().filter(|record| record.parent.is_some()).map(Record::operation).collect();
        {
            let mut state = self.lock();
            state
                .memory
                .records
                .extend(plan.new.into_iter().map(|record| (record.name().to_owned(), record)));
        }
        for operation in updates {
            self.tell(OperationUpdate::Put(operation)).await;
        }
    }

    /// Compares the remembered operations with the manifests, and applies the difference.
    async fn settle(&self) -> Vec<String> {
        let _one = self.inner.taking.lock().await;
        let now = Timestamp::now();
        let (mut plan, known) = {
            let mut state = self.lock();
            state.due = true;
            let Some((manifests, whole)) = &state.manifests else { return Vec::new() };
            let lost = state.lost && !state.known;
            let select = |selector: &MachineSelector| self.select(selector);
            (state.memory.plan((manifests, *whole), &select, lost, now), state.known)
        };
        let mut problems = std::mem::take(&mut plan.problems);
        let changes = changes(&plan, known, now);
        if !changes.is_empty()
            && let Err(error) = self.inner.store.write(changes).await
        {
            // An unrecorded operation is not carried out, because a restart would not know it; `tidy` retries.
            tracing::error!(%error, "operations of manifests wait for the store");
            problems.push(format!("operations wait, because they cannot be stored: {error}"));
            return problems;
        }
        let updates = self.lock().apply(plan, now);
        for update in updates {
            self.tell(update).await;
        }
        problems
    }

    async fn forget(&self, keys: Vec<OperationKey>) {
        let names = keys.iter().map(|key| key.name.as_bytes());
        let deletes = names.flat_map(|name| {
            let gone = [GONE, name].concat();
            [Change::Delete(Table::Operations, name.to_vec()), Change::Delete(Table::Operations, gone)]
        });
        if let Err(error) = self.inner.store.write(deletes.collect()).await {
            tracing::warn!(%error, "failed to remove expired operations, retrying");
            return;
        }
        for key in keys {
            {
                let mut state = self.lock();
                state.memory.records.remove(&key.name);
                state.memory.gone.remove(&key.name);
            }
            self.tell(OperationUpdate::Gone(key)).await;
        }
    }

    /// Writes all records into a store that was re-created. Concurrent changes are written by their writer, and here
    /// again.
    async fn write_again(&self) {
        let mut written = Vec::new();
        loop {
            let changes = self.lock().everything();
            if changes == written {
                return;
            }
            if let Err(error) = self.inner.store.write(changes.clone()).await {
                tracing::error!(%error, "failed to store operations in the new store, a restart forgets them");
                return;
            }
            written = changes;
        }
    }

    async fn tell(&self, update: OperationUpdate) {
        self.inner.changed.send_replace(());
        // The receiver is closed only at shutdown.
        let _ = self.inner.updates.send(update).await;
    }

    async fn put(&self, record: &Record) -> Result<(), StoreError> {
        let name = record.name().as_bytes();
        let Some(value) = encode(record) else { return Err(StoreError::Closed) };
        self.inner.store.put(Table::Operations, name, value).await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock()
    }

    /// Reserves a free name for an object until it is released.
    fn reserve(&self, object: &MachineOperation) -> Result<String, CreateOperationError> {
        let mut state = self.lock();
        let metadata = &object.metadata;
        let name = match (&metadata.name, &metadata.generate_name) {
            (Some(name), _) => Some(name.clone()).filter(|name| !state.is_taken(name)),
            (None, Some(prefix)) => (0..MAX_NAME_ATTEMPTS)
                .map(|_| format!("{prefix}{:05x}", rand::random_range(0..0x10_0000_u32)))
                .find(|name| !state.is_taken(name)),
            (None, None) => {
                return Err(CreateOperationError::Invalid("the operation has no metadata.name".to_owned()));
            }
        };
        let taken = || metadata.name.clone().or(metadata.generate_name.clone()).unwrap_or_default();
        let name = name.ok_or_else(|| CreateOperationError::Exists(taken()))?;
        state.reserved.insert(name.clone());
        Ok(name)
    }

    async fn make(&self, mut object: MachineOperation, name: &str) -> Result<Record, CreateOperationError> {
        let later = |error: StoreError| CreateOperationError::Later(error.to_string());
        let room = self.lock().memory.make_room();
        match room {
            Some(oldest) if oldest.is_empty() => {}
            Some(oldest) => self.forget(oldest).await,
            None => {
                let message = "too many operations are unfinished or in manifests".to_owned();
                return Err(CreateOperationError::Later(message));
            }
        }
        object.metadata.name = Some(name.to_owned());
        let record = Record::new(object, uuid::Uuid::new_v4().to_string(), false, Timestamp::now());
        let record = record.selecting(&|selector| self.select(selector));
        self.put(&record).await.map_err(later)?;
        self.lock().memory.records.insert(name.to_owned(), record.clone());
        Ok(record)
    }
}

impl State {
    fn read(&mut self, (key, value): Entry) {
        if key == KNOWN {
            self.known = true;
            return;
        }
        if let Some(name) = key.strip_prefix(GONE) {
            if let Ok(since) = serde_json::from_slice(&value) {
                self.memory.gone.insert(String::from_utf8_lossy(name).into_owned(), since);
            }
            return;
        }
        match serde_json::from_slice::<Record>(&value) {
            Ok(record) => drop(self.memory.records.insert(record.name().to_owned(), record)),
            Err(error) => {
                // Its manifest is not to be carried out again by that.
                let name = String::from_utf8_lossy(&key);
                tracing::warn!(operation = %name, %error, "skipping unreadable stored operation");
                self.lost = true;
                self.known = false;
            }
        }
    }

    fn is_taken(&self, name: &str) -> bool {
        self.memory.records.contains_key(name) || self.reserved.contains(name)
    }

    fn is_in_manifest(&self, name: &str) -> bool {
        let manifests = self.manifests.iter().flat_map(|(manifests, _)| manifests);
        manifests.into_iter().any(|manifest| manifest.operation.metadata.name.as_deref() == Some(name))
    }

    /// Before every manifest was read, a missing one may still appear.
    fn expired(&self, now: Timestamp) -> Vec<OperationKey> {
        let whole = self.manifests.as_ref().is_some_and(|(_, whole)| *whole);
        self.memory.expired(whole, now)
    }

    /// Applies a plan that the store holds now; returns the updates to send.
    fn apply(&mut self, plan: Plan, now: Timestamp) -> Vec<OperationUpdate> {
        (self.due, self.known) = (false, true);
        let mut updates = Vec::new();
        for record in plan.new {
            updates.extend(record.to_carry_out().map(OperationUpdate::Put));
            self.memory.records.insert(record.name().to_owned(), record);
        }
        for key in plan.gone {
            self.memory.gone.insert(key.name.clone(), now);
            updates.push(OperationUpdate::Gone(key));
        }
        for key in plan.back {
            self.memory.gone.remove(&key.name);
            let back = self.memory.records.get(&key.name).and_then(Record::to_carry_out);
            updates.extend(back.map(OperationUpdate::Put));
        }
        updates
    }

    fn everything(&self) -> Vec<Change> {
        let records = self.memory.records.values();
        let plan = Plan { new: records.cloned().collect(), ..Plan::default() };
        let mut changes = changes(&plan, !self.known, Timestamp::UNIX_EPOCH);
        changes.extend(self.memory.gone.iter().filter_map(|(name, since)| {
            Some(Change::Put(Table::Operations, gone_key(name), serde_json::to_vec(since).ok()?))
        }));
        changes
    }
}

fn gone_key(name: &str) -> Vec<u8> {
    [GONE, name.as_bytes()].concat()
}

fn encode(record: &Record) -> Option<Vec<u8>> {
    serde_json::to_vec(record).ok()
}

/// Returns the changes of a plan to the store, plus the [`KNOWN`] mark if it is not set yet.
fn changes(plan: &Plan, known: bool, now: Timestamp) -> Vec<Change> {
    let table = Table::Operations;
    let new = plan
        .new
        .iter()
        .filter_map(|record| Some(Change::Put(table, record.name().as_bytes().to_vec(), encode(record)?)));
    let gone = plan
        .gone
        .iter()
        .filter_map(|key| Some(Change::Put(table, gone_key(&key.name), serde_json::to_vec(&now).ok()?)));
    let back = plan.back.iter().map(|key| Change::Delete(table, gone_key(&key.name)));
    let known = (!known).then(|| Change::Put(table, KNOWN.to_vec(), Vec::new()));
    new.chain(gone).chain(back).chain(known).collect()
}

#[async_trait]
impl OperationWriter for LocalOperations {
    async fn write(
        &self,
        operation: &Operation,
        status: MachineOperationStatus,
    ) -> Result<Operation, WriteOperationError> {
        let progress = operation.object.status.as_ref().and_then(|status| status.state);
        let begins = progress != Some(OperationState::InProgress);
        // Excludes the check for removed manifests: the operation is either removed or started.
        let _one = if begins { Some(self.inner.taking.lock().await) } else { None };
        let record = {
            let state = self.lock();
            let found = state.memory.records.get(&operation.key.name);
            let there = found.filter(|record| record.uid() == operation.key.uid);
            let there = there.filter(|record| !state.memory.gone.contains_key(record.name()));
            let record = there.ok_or(WriteOperationError::Gone)?;
            if record.writes.to_string() != operation.version {
                return Err(WriteOperationError::Conflict);
            }
            Record { written: Some(Timestamp::now()), ..record.with(status) }
        };
        self.put(&record).await.map_err(|error| WriteOperationError::Later(error.to_string()))?;
        let written = record.operation();
        let is_child = record.parent.is_some();
        let is_left = {
            let mut state = self.lock();
            let is_left =
                is_finished(&record.object) && record.manifest && !state.is_in_manifest(record.name());
            state.due |= is_left;
            state.memory.records.insert(operation.key.name.clone(), record);
            is_left
        };
        if is_child || is_left {
            self.inner.went_on.notify_one();
        }
        self.inner.changed.send_replace(());
        Ok(written)
    }
}

#[async_trait]
impl OperationDesk for LocalOperations {
    async fn create(&self, object: MachineOperation) -> Result<MachineOperation, CreateOperationError> {
        let spec = &object.spec;
        if !is_known(&spec.operation_name) {
            return Err(CreateOperationError::Invalid(unknown_name(&spec.operation_name)));
        }
        if let Some(target) = &spec.machine_ref {
            let machines = self.inner.machines.load();
            let known = machines.by_name(&target.name);
            let known = known.ok_or_else(|| CreateOperationError::NoMachine(target.name.to_string()))?;
            let is_power = Kind::of(&spec.operation_name).is_some();
            if is_power && known.machine.spec.bmc.is_none() && !known.is_netbooted() {
                return Err(CreateOperationError::Invalid(format!(
                    "Machine {} has no spec.bmc; add it, or change its power by hand",
                    known.name
                )));
            }
        }
        let name = self.reserve(&object)?;
        let made = self.make(object, &name).await;
        self.lock().reserved.remove(&name);
        let record = made?;
        match record.to_carry_out() {
            Some(operation) => self.tell(OperationUpdate::Put(operation)).await,
            None => self.inner.went_on.notify_one(),
        }
        Ok(record.object)
    }

    fn list(&self) -> Vec<Arc<MachineOperation>> {
        let mut all: Vec<_> =
            self.lock().memory.records.values().map(|record| Arc::new(record.object.clone())).collect();
        sort_by_age(&mut all);
        all
    }

    fn get(&self, name: &str) -> Option<Arc<MachineOperation>> {
        self.lock().memory.records.get(name).map(|record| Arc::new(record.object.clone()))
    }
}

#[cfg(test)]
mod tests {
    use bedplate_process::liveness::Pulse;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::machines::Snapshot;
    use crate::machines::tests::machine;
    use crate::standalone::operations::plan::tests::{manifest, object};
    use crate::system_of_record::SystemOfRecord;

    pub(super) struct Rig {
        _directory: tempfile::TempDir,
        store: Store,
        machines: Machines,
    }

    impl Rig {
        pub(super) fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
            let machines = Machines::default();
            machines
                .store(Snapshot::build(&"default".parse().unwrap(), [machine("a", &["52:54:00:00:00:0a"])]));
            Self { _directory: directory, store, machines }
        }

        pub(super) fn open(&self, lost: bool) -> (LocalOperations, mpsc::Receiver<OperationUpdate>) {
            let (statuses, _) =
                StatusRegistry::new(self.machines.clone(), &self.store, SystemOfRecord::Pxed).unwrap();
            LocalOperations::open(self.store.clone(), self.machines.clone(), statuses, lost).unwrap()
        }
    }

    fn put(update: OperationUpdate) -> Operation {
        let OperationUpdate::Put(operation) = update else { panic!("{update:?}") };
        operation
    }

    fn in_progress() -> MachineOperationStatus {
        let state = Some(OperationState::InProgress);
        MachineOperationStatus { state, ..MachineOperationStatus::default() }
    }

    #[tokio::test]
    async fn manifest_operation_is_sent_once_and_its_step_survives_restart() {
        let rig = Rig::new();
        let (operations, mut updates) = rig.open(false);
        let one = vec![manifest(1, object("x", "powerCycle"))];
        assert_eq!(operations.take(one.clone(), true).await, Vec::<String>::new());
        let operation = put(updates.recv().await.unwrap());
        let written = operations.write(&operation, in_progress()).await.unwrap();
        assert_eq!(operations.write(&operation, in_progress()).await, Err(WriteOperationError::Conflict));
        drop((operations, updates));

        let (operations, mut updates) = rig.open(false);
        assert_eq!(operations.take(one, true).await, Vec::<String>::new());
        assert!(updates.try_recv().is_err(), "nothing new");
        assert_eq!(operations.get("x").unwrap(), written.object);
        let again = operations.write(&written, in_progress()).await.unwrap();
        assert_eq!(again.version, "3");
    }

    #[tokio::test]
    async fn removed_manifest_ends_operation_and_returns_as_the_same() {
        let rig = Rig::new();
        let (operations, mut updates) = rig.open(false);
        let one = vec![manifest(1, object("x", "powerCycle"))];
        operations.take(one.clone(), true).await;
        let operation = put(updates.recv().await.unwrap());
        operations.take(Vec::new(), true).await;
        assert_eq!(updates.recv().await.unwrap(), OperationUpdate::Gone(operation.key.clone()));
        assert_eq!(operations.write(&operation, in_progress()).await, Err(WriteOperationError::Gone));
        operations.take(one, true).await;
        assert_eq!(put(updates.recv().await.unwrap()), operation);
    }

    #[tokio::test]
    async fn started_operation_survives_its_manifest_and_is_not_restarted() {
        let rig = Rig::new();
        let (operations, mut updates) = rig.open(false);
        let one = vec![manifest(1, object("x", "powerCycle"))];
        operations.take(one.clone(), true).await;
        let operation = put(updates.recv().await.unwrap());
        let started = operations.write(&operation, in_progress()).await.unwrap();
        operations.take(Vec::new(), true).await;
        assert!(updates.try_recv().is_err(), "switched off, it is not left so");
        drop((operations, updates));

        let (operations, mut updates) = rig.open(false);
        operations.take(Vec::new(), true).await;
        assert!(updates.try_recv().is_err(), "nor by a restart");
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(operations.clone().run(Pulse::unwatched(), shutdown.clone()));
        assert_eq!(updates.recv().await.unwrap(), OperationUpdate::Set(vec![started.clone()]));
        let state = Some(OperationState::Complete);
        let ended = MachineOperationStatus { state, ..MachineOperationStatus::default() };
        let ended = operations.write(&started, ended).await.unwrap();
        // Its time begins to run.
        assert_eq!(updates.recv().await.unwrap(), OperationUpdate::Gone(operation.key));
        operations.take(one, true).await;
        assert_eq!(put(updates.recv().await.unwrap()), ended);
        shutdown.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn restart_with_an_unreadable_file_ends_no_operation() {
        let rig = Rig::new();
        let (operations, mut updates) = rig.open(false);
        let one = vec![manifest(1, object("x", "powerCycle"))];
        operations.take(one.clone(), true).await;
        let operation = put(updates.recv().await.unwrap());
        let written = operations.write(&operation, in_progress()).await.unwrap();
        drop((operations, updates));

        let (operations, mut updates) = rig.open(false);
        operations.take(vec![manifest(1, object("y", "powerOn"))], false).await;
        assert_eq!(put(updates.recv().await.unwrap()).key.name, "y", "another file's is carried out");
        let written = operations.write(&written, in_progress()).await.expect("it goes on");
        operations.take(one, true).await;
        let OperationUpdate::Gone(gone) = updates.recv().await.unwrap() else { panic!("y is gone") };
        assert_eq!(gone.name, "y");
        assert_eq!(operations.get("x").unwrap(), written.object);
    }

    #[tokio::test]
    async fn after_store_damage_manifests_fail_once_and_later_ones_run() {
        let rig = Rig::new();
        let (operations, mut updates) = rig.open(true);
        let mut all = vec![manifest(1, object("x", "powerCycle"))];
        operations.take(all.clone(), true).await;
        let operation = put(updates.recv().await.unwrap());
        assert_eq!(operation.object.status.as_ref().unwrap().reason.as_deref(), Some("OutcomeUnknown"));
        all.push(manifest(9, object("y", "powerOn")));
        operations.take(all.clone(), true).await;
        assert_eq!(put(updates.recv().await.unwrap()).object.status, None);
        drop((operations, updates));
        // The file that was moved aside is still there at the next start.
        let (operations, mut updates) = rig.open(true);
        all.push(manifest(18, object("z", "powerOn")));
        operations.take(all, true).await;
        assert_eq!(put(updates.recv().await.unwrap()).object.status, None);
    }

    #[tokio::test]
    async fn desk_creates_operations_with_unique_names_for_known_machines() {
        let rig = Rig::new();
        let (operations, mut updates) = rig.open(false);
        let made = operations.create(object("x", "powerOn")).await.unwrap();
        assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());
        assert_eq!(put(updates.recv().await.unwrap()).object.metadata, made.metadata);
        let exists = operations.create(object("x", "powerOn")).await;
        assert_eq!(exists.unwrap_err(), CreateOperationError::Exists("x".to_owned()));
        let mut generated = object("", "powerOn");
        (generated.metadata.name, generated.metadata.generate_name) = (None, Some("a-".to_owned()));
        let generated = operations.create(generated).await.unwrap().metadata.name.unwrap();
        assert!(generated.starts_with("a-") && generated.len() == 7, "{generated}");
        let mut elsewhere = object("y", "powerOn");
        elsewhere.spec.machine_ref.as_mut().unwrap().name = "b".parse().unwrap();
        assert!(matches!(operations.create(elsewhere).await, Err(CreateOperationError::NoMachine(_))));
        assert!(matches!(operations.create(object("z", "fly")).await, Err(CreateOperationError::Invalid(_))));
        assert_eq!(operations.list().len(), 2);
        // A manifest of a name that the socket was given is another operation.
        let problems = operations.take(vec![manifest(1, object("x", "powerOn"))], true).await;
        assert!(problems[0].contains("choose a new name"), "{problems:?}");
    }
}
