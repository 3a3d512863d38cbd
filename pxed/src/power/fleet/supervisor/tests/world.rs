//! A site of simulated machines, BMCs, operations and credentials, for the tests of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::id::SiteName;
use bedplate_api::machine::{BmcSpec, BootSource, Machine, MachineStatus, ObservedNodeState, PowerState};
use bedplate_api::operation::{MachineOperationStatus, OperationState};
use bedplate_api::secret::SecretReference;
use bedplate_api::wire::Stage;
use bedplate_bmc::{
    Bmc, BmcError, BootMode, Console, Credentials, Health, Identity, LogEntry, Performed, PowerRequest,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::power::{
    CredentialsError, CredentialsSource, CredentialsVersion, Destinations, Dial, Holding, Issued, Operation,
    OperationKey, OperationUpdate, OperationWriter, Origin, Tenure, WriteOperationError,
};
use crate::store::Table;
use crate::system_of_record::SystemOfRecord;

/// Maximum real time that the store's thread needs on a busy machine.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

/// One machine and its BMC.
#[derive(Debug)]
pub(super) struct Simulated {
    pub(super) states: Vec<(Instant, PowerState)>,
    pub(super) lag: Duration,
    /// Requests that change, with their time.
    pub(super) requests: Vec<(Instant, String)>,
    /// Looks, with their time.
    pub(super) looks: Vec<Instant>,
    /// Number of requests that hang for a minute.
    pub(super) hangs: usize,
    pub(super) dead: bool,
    /// The machine does not shut down when it is asked to.
    pub(super) deaf: bool,
    /// It refuses to ask its machine to shut down.
    pub(super) refuses: bool,
    pub(super) closed: usize,
}

impl Simulated {
    fn reported_state(&self) -> PowerState {
        let then = Instant::now().checked_sub(self.lag);
        let state = self.states.iter().rev().find(|(since, _)| then.is_some_and(|then| *since <= then));
        state.unwrap_or(&self.states[0]).1
    }

    fn carry_out(&mut self, request: PowerRequest) {
        let now = Instant::now();
        self.requests.push((now, request.to_string()));
        let (_, state) = *self.states.last().unwrap();
        match (request, state) {
            (PowerRequest::GracefulOff, _) if self.deaf => {}
            (PowerRequest::On, PowerState::Off) => self.states.push((now, PowerState::On)),
            (PowerRequest::ForceOff | PowerRequest::GracefulOff, PowerState::On) => {
                self.states.push((now, PowerState::Off));
            }
            _ => {}
        }
    }

    /// Returns the number of changes to off, and to on.
    pub(super) fn changes(&self) -> (usize, usize) {
        let count =
            |wanted: PowerState| self.states.iter().skip(1).filter(|(_, state)| *state == wanted).count();
        (count(PowerState::Off), count(PowerState::On))
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) bmcs: BTreeMap<String, Simulated>,
    pub(super) operations: BTreeMap<String, Operation>,
    pub(super) password: String,
    pub(super) secret: String,
    /// Addresses that the Secret lists; none: those of all simulated BMCs.
    pub(super) listed: Option<String>,
    /// pxed is configured with `bmc.allow-insecure`.
    pub(super) allows_insecure: bool,
    /// Addresses to which credentials were given.
    pub(super) dialed: Vec<String>,
    pub(super) logins: usize,
    /// Writes and requests until pxed is killed.
    pub(super) killed_after: Option<usize>,
    /// Objects have finalizers.
    pub(super) is_cluster: bool,
    /// Operation whose end another writer precedes, once.
    pub(super) touched: Option<String>,
    /// Takeover tokens that were recorded.
    pub(super) tokens: BTreeSet<(String, String)>,
    /// Difference of the hosts' clocks to that of pxed.
    pub(super) hosts_are_ahead: SignedDuration,
    /// The record of used tokens is lost.
    pub(super) tokens_lost: bool,
    /// Machine whose finalizer cannot be written.
    pub(super) refuses_finalizer: Option<String>,
    /// The next write of an operation panics.
    pub(super) panics: bool,
    /// Finalizer changes: Machine, and true if set.
    pub(super) holds: Vec<(String, bool)>,
}

/// The site.
#[derive(Clone)]
pub(super) struct World {
    state: Arc<Mutex<State>>,
    pub(super) killed: Arc<Notify>,
    pub(super) machines: Machines,
    pub(super) registry: StatusRegistry,
    pub(super) store: Store,
    pub(super) counters: Arc<Counters>,
    pub(super) source: watch::Sender<SourceState>,
    updates: Arc<Mutex<Option<mpsc::Sender<OperationUpdate>>>>,
    /// MachineClaims of the site.
    pub(super) claims: watch::Sender<Claims>,
    /// Clock of the pxed that was started last.
    clock: Arc<Mutex<Option<Clock>>>,
    _directory: Arc<tempfile::TempDir>,
    events: Arc<Mutex<bedplate_process::events::Queue>>,
}

/// A pxed that runs.
pub(super) struct Pxed {
    pub(super) task: JoinHandle<()>,
    pub(super) lead: watch::Sender<Option<Instant>>,
    pub(super) stop: CancellationToken,
}

#[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
pub(super) fn machine(name: &str, address: &str, more: Value) -> Machine {
    let mut object = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": {"name": name},
        "spec": {"provider": "pxe", "pxe": {"interfaces": []}, "bmc": {"protocol": "Redfish",
            "address": address, "credentialsSecretRef": {"namespace": "n", "name": "s"}}}});
    for (key, value) in more.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

impl World {
    /// With these machines, in this state.
    pub(super) fn new(machines: impl IntoIterator<Item = Machine>, power: PowerState) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        let known = Machines::default();
        let (registry, events) = StatusRegistry::new(known.clone(), &store, SystemOfRecord::Pxed).unwrap();
        let world = Self {
            state: Arc::default(),
            killed: Arc::default(),
            machines: known,
            registry,
            store,
            counters: Arc::default(),
            source: watch::Sender::new(SourceState { synced: true, ..SourceState::default() }),
            updates: Arc::default(),
            claims: watch::Sender::default(),
            clock: Arc::default(),
            _directory: Arc::new(directory),
            events: Arc::new(Mutex::new(events)),
        };
        let machines: Vec<_> = machines.into_iter().collect();
        for machine in &machines {
            let simulated = Simulated {
                states: vec![(Instant::now(), power)],
                lag: Duration::ZERO,
                requests: Vec::new(),
                looks: Vec::new(),
                hangs: 0,
                dead: false,
                deaf: false,
                refuses: false,
                closed: 0,
            };
            world.state().bmcs.insert(machine.spec.bmc.as_ref().unwrap().address.clone(), simulated);
        }
        world.know(machines);
        world
    }

    pub(super) fn know(&self, machines: Vec<Machine>) {
        let before = self.machines.load();
        self.machines.store(before.next(&SiteName::default(), machines));
        self.registry.follow(&before, &self.machines.load());
    }

    /// Changes a Machine's object.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Machine)) {
        let known = self.machines.load();
        let mut machines: Vec<_> = known.iter().map(|known| Machine::clone(&known.machine)).collect();
        change(machines.iter_mut().find(|machine| machine.metadata.name.as_deref() == Some(name)).unwrap());
        // Deleted, and nothing holds it.
        machines.retain(|machine| {
            let held = machine.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty());
            held || machine.metadata.deletion_timestamp.is_none()
        });
        self.know(machines);
    }

    pub(super) fn delete(&self, name: &str) {
        let now = bedplate_api::machine::Time(Timestamp::now());
        self.change(name, |machine| machine.metadata.deletion_timestamp = Some(now));
    }

    /// The host comes to its user space, by a boot that began when it was switched on.
    pub(super) fn comes_up(&self, name: &str) {
        self.registry.update(&name.parse().unwrap(), |status| {
            let began = status.power.as_ref().unwrap().last_action.as_ref().unwrap().time.clone();
            let boot = crate::status::boot_mut(status);
            let began = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(began.0);
            (boot.start_time, boot.seed_time) = (Some(began.clone()), Some(began));
            boot.stage = Some(Stage::Userspace);
        });
    }

    /// Returns the time by the clock of the pxed that was started last.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.lock().unwrap().as_ref().map_or_else(Timestamp::now, |clock| clock())
    }

    /// A machine takes a seed and reports this stage in its name, now and not by pxed.
    pub(super) fn boots(&self, name: &str, stage: Stage) {
        let now = self.now();
        self.registry.update(&name.parse().unwrap(), |status| {
            let boot = crate::status::boot_mut(status);
            let began = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(now);
            (boot.start_time, boot.seed_time) = (Some(began.clone()), Some(began));
            boot.stage = Some(stage);
        });
    }

    /// A DHCP packet in the name of a machine begins another boot.
    pub(super) fn asks_to_boot(&self, name: &str) {
        let now = self.now();
        self.registry.update(&name.parse().unwrap(), |status| {
            let boot = crate::status::boot_mut(status);
            boot.start_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(now));
            (boot.seed_time, boot.stage) = (None, Some(Stage::Discover));
        });
    }

    /// Writes the state of an operation, as the agent of its machine does.
    pub(super) fn agent_writes(&self, name: &str, state: OperationState, reason: &str) {
        let now = self.now();
        let written = {
            let mut state_of = self.state();
            let ahead = state_of.hosts_are_ahead;
            let there = state_of.operations.get_mut(name).unwrap();
            let mut object = (*there.object).clone();
            let mut status = object.status.take().unwrap_or_default();
            status.state = Some(state);
            status.reason = Some(reason.to_owned());
            status.start_time.get_or_insert(bedplate_api::machine::Time(now + ahead));
            object.status = Some(status);
            there.object = Arc::new(object);
            there.written = Some(now);
            there.version = (there.version.parse::<u32>().unwrap() + 1).to_string();
            there.clone()
        };
        self.tell(OperationUpdate::Put(written));
    }

    /// Deletes an operation.
    pub(super) fn forget_operation(&self, name: &str) {
        let gone = self.state().operations.remove(name).unwrap();
        self.tell(OperationUpdate::Gone(gone.key));
    }

    /// Makes another writer label an operation just before its end is written.
    pub(super) fn touch_at_the_end(&self, operation: &str) {
        self.state().touched = Some(operation.to_owned());
    }

    /// Waits for the disk, without time going by.
    pub(super) async fn departing(&self, count: usize) {
        while self.store.scan(Table::Departing).unwrap().len() != count {
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn is_there(&self, name: &str) -> bool {
        self.machines.load().by_name(&name.parse().unwrap()).is_some()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn bmc<T>(&self, address: &str, look: impl FnOnce(&mut Simulated) -> T) -> T {
        look(self.state().bmcs.get_mut(address).unwrap())
    }

    pub(super) fn status(&self, name: &str) -> MachineStatus {
        self.registry.get(&name.parse().unwrap()).unwrap_or_default()
    }

    /// The reason of a condition.
    pub(super) fn reason(&self, name: &str, type_: &str) -> String {
        let status = self.status(name);
        status.conditions.iter().find(|c| c.type_ == type_).map(|c| c.reason.clone()).unwrap_or_default()
    }

    pub(super) fn events(&self) -> Vec<&'static str> {
        let mut events = self.events.lock().unwrap();
        std::iter::from_fn(|| events.try_next()).map(|event| event.reason).collect()
    }

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    pub(super) fn operate(&self, name: &str, machine: &str, operation: &str, parameters: Value) {
        let object = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
            "metadata": {"name": name},
            "spec": {"machineRef": {"name": machine}, "operationName": operation, "parameters": parameters}});
        let key = OperationKey { name: name.to_owned(), uid: name.to_owned() };
        let object = Arc::new(serde_json::from_value(object).unwrap());
        let operation = Operation { key, object, version: "1".to_owned(), written: None };
        self.state().operations.insert(name.to_owned(), operation.clone());
        self.tell(OperationUpdate::Put(operation));
    }

    fn tell(&self, update: OperationUpdate) {
        if let Some(updates) = &*self.updates.lock().unwrap() {
            let _ = updates.try_send(update);
        }
    }

    pub(super) fn ended(&self, name: &str) -> Option<(OperationState, String)> {
        let state = self.state();
        let status = state.operations.get(name)?.object.status.as_ref()?;
        let ended = matches!(status.state?, OperationState::Complete | OperationState::Failed);
        ended.then(|| (status.state.unwrap(), status.reason.clone().unwrap()))
    }

    /// Returns the message of an operation.
    pub(super) fn message_of(&self, name: &str) -> String {
        let state = self.state();
        let status = state.operations.get(name).and_then(|operation| operation.object.status.as_ref());
        status.and_then(|status| status.message.clone()).unwrap_or_default()
    }

    /// Starts a pxed that leads until it is stopped.
    pub(super) fn start(&self, instance: &str) -> Pxed {
        let pxed = self.start_unreported(instance);
        self.tell_all();
        pxed
    }

    /// Sends all operations.
    pub(super) fn tell_all(&self) {
        let all = self.state().operations.values().cloned().collect();
        self.tell(OperationUpdate::Set(all));
    }

    /// Starts a leading pxed that does not know the operations yet.
    pub(super) fn start_unreported(&self, instance: &str) -> Pxed {
        let (sender, operations) = mpsc::channel(10_000);
        *self.updates.lock().unwrap() = Some(sender);
        let far = Instant::now() + Duration::from_secs(1_000_000);
        let (lead, tenure) = watch::channel(Some(far));
        let allow_insecure = self.state().allows_insecure;
        let parts = Parts {
            machines: self.machines.clone(),
            source: self.source.clone(),
            registry: self.registry.clone(),
            store: self.store.clone(),
            plane: PowerPlane {
                origin: if self.state().is_cluster { Origin::Cluster } else { Origin::Manifests },
                updates: operations,
                writer: Arc::new(self.clone()),
                credentials: Arc::new(self.clone()),
                holding: self.holding(),
                tokens: Arc::new(self.clone()),
                tenure: Tenure::new(tenure),
                claims: self.claims.subscribe(),
            },
            dial: Arc::new(self.clone()),
            limits: Limits { connections: 128, poll: Duration::from_secs(60), allow_insecure },
            instance: format!("pxed/site/{instance}"),
            counters: self.counters.clone(),
        };
        // A later pxed continues with the same clock.
        let (began, base) = (Instant::now(), self.now());
        let clock: Clock = Arc::new(move || base + SignedDuration::try_from(began.elapsed()).unwrap());
        *self.clock.lock().unwrap() = Some(clock.clone());
        let stop = CancellationToken::new();
        let task = tokio::spawn(run_by(clock, parts, &Liveness::new(stop.clone()), stop.clone()));
        Pxed { task, lead, stop }
    }

    /// Ends the source of operations.
    pub(super) fn end_operations(&self) {
        *self.updates.lock().unwrap() = None;
    }

    fn holding(&self) -> Arc<dyn Holding> {
        if self.state().is_cluster {
            return Arc::new(self.clone());
        }
        Arc::new(crate::standalone::departures::StoredDepartures::new(self.store.clone()))
    }

    /// Waits for a state until `seconds` of virtual time and [`STORE_TIMEOUT`] of real time have passed: the store's thread writes in
    /// real time, and the virtual clock runs ahead of it.
    pub(super) async fn until(&self, seconds: u64, what: impl Fn(&Self) -> bool) -> bool {
        let (end, real) = (Instant::now() + Duration::from_secs(seconds), std::time::Instant::now());
        while Instant::now() < end || real.elapsed() < STORE_TIMEOUT {
            if what(self) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        what(self)
    }

    /// Passes a point where pxed may be killed.
    async fn pass(&self) {
        let killed = {
            let mut state = self.state();
            match &mut state.killed_after {
                Some(0) => true,
                Some(left) => {
                    *left -= 1;
                    false
                }
                None => false,
            }
        };
        if killed {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl OperationWriter for World {
    async fn write(
        &self,
        operation: &Operation,
        status: MachineOperationStatus,
    ) -> Result<Operation, WriteOperationError> {
        self.pass().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let panics = std::mem::take(&mut self.state().panics);
        assert!(!panics, "simulated");
        let is_end = status.completion_time.is_some();
        let touched = {
            let mut state = self.state();
            let touched = is_end && state.touched.take_if(|name| *name == operation.key.name).is_some();
            let there = state.operations.get_mut(&operation.key.name).filter(|_| touched);
            there.map(|there| {
                there.version = (there.version.parse::<u32>().unwrap() + 1).to_string();
                there.clone()
            })
        };
        if let Some(touched) = touched {
            self.tell(OperationUpdate::Put(touched));
        }
        let written = {
            let mut state = self.state();
            let there = state.operations.get_mut(&operation.key.name).ok_or(WriteOperationError::Gone)?;
            if there.version != operation.version {
                return Err(WriteOperationError::Conflict);
            }
            let mut object = (*there.object).clone();
            object.status = Some(serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap());
            there.object = Arc::new(object);
            there.version = (there.version.parse::<u32>().unwrap() + 1).to_string();
            there.clone()
        };
        self.tell(OperationUpdate::Put(written.clone()));
        self.pass().await;
        Ok(written)
    }
}

#[async_trait]
impl crate::power::machine::takeover::Tokens for World {
    async fn is_used(&self, machine: &MachineName, token: &str) -> bool {
        self.state().tokens.contains(&(machine.to_string(), token.to_owned()))
    }

    async fn record(
        &self,
        machine: &KnownMachine,
        token: &str,
        status: &MachineStatus,
    ) -> Result<(), String> {
        self.pass().await;
        let is_new = self.state().tokens.insert((machine.name.to_string(), token.to_owned()));
        if !is_new {
            return Err("conflict".to_owned());
        }
        // A successor reads it from the object.
        let power = status.power.clone();
        self.registry.update(&machine.name, |status| status.power = power);
        self.pass().await;
        Ok(())
    }

    async fn keep(&self, machine: &KnownMachine, named: Option<&str>) {
        let mut state = self.state();
        let set = crate::power::machine::takeover::set(&machine.machine.spec).filter(|_| state.tokens_lost);
        for token in named.into_iter().chain(set) {
            state.tokens.insert((machine.name.to_string(), token.to_owned()));
        }
    }

    fn observed_node(&self, object: &Machine) -> Option<ObservedNodeState> {
        if self.state().is_cluster {
            crate::power::machine::takeover::observed_node(object)
        } else {
            Some(ObservedNodeState::Absent)
        }
    }
}

#[async_trait]
impl Holding for World {
    async fn hold(&self, machine: &MachineName, _: &str, held: bool) -> Result<(), String> {
        if self.state().refuses_finalizer.as_deref() == Some(machine.as_str()) {
            return Err("denied by a policy".to_owned());
        }
        self.state().holds.push((machine.to_string(), held));
        let finalizers = held.then(|| vec![bedplate_api::machine::POWER_OFF_FINALIZER.to_owned()]);
        self.change(machine.as_str(), |machine| machine.metadata.finalizers = finalizers);
        Ok(())
    }

    async fn release(&self, machine: &MachineName, uid: &str) -> Result<(), String> {
        self.hold(machine, uid, false).await
    }
}

#[async_trait]
impl CredentialsSource for World {
    async fn read(&self, _: &SecretReference) -> Result<Issued, CredentialsError> {
        let state = self.state();
        let (secret, listed) = (state.secret.clone(), state.listed.clone());
        let all = || state.bmcs.keys().cloned().collect::<Vec<_>>().join(",");
        let listed = listed.unwrap_or_else(all);
        let credentials = Credentials { username: "admin".to_owned(), password: secret.clone().into() };
        let version = CredentialsVersion(format!("{secret}/{listed}"));
        Ok(Issued { credentials, version, destinations: Destinations::of_annotation(Some(&listed)) })
    }
}

#[async_trait]
impl Dial for World {
    async fn dial(&self, bmc: &BmcSpec, _: Credentials) -> Result<Box<dyn Bmc>, BmcError> {
        let secret = self.state().secret.clone();
        self.state().dialed.push(bmc.address.clone());
        Ok(Box::new(Client { world: self.clone(), address: bmc.address.clone(), secret, logged_in: false }))
    }
}

struct Client {
    world: World,
    address: String,
    secret: String,
    logged_in: bool,
}

impl Client {
    async fn call(&mut self) -> Result<(), BmcError> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let address = self.address.clone();
        if self.world.bmc(&address, |bmc| bmc.dead) {
            let problem = "no route".to_owned();
            return Err(BmcError::Unreachable { address, problem, sent: false });
        }
        if !self.logged_in {
            let mut state = self.world.state();
            state.logins += 1;
            if state.password != self.secret {
                let problem = "401".to_owned();
                return Err(BmcError::AuthenticationFailed { address, problem });
            }
            self.logged_in = true;
        }
        Ok(())
    }
}

fn unsupported<T>() -> Result<T, BmcError> {
    Err(BmcError::NotSupported { what: "that".to_owned(), hint: "do without".to_owned() })
}

#[async_trait]
impl Bmc for Client {
    async fn identity(&mut self) -> Result<Identity, BmcError> {
        self.call().await?;
        Ok(Identity { vendor: Some("Acme".to_owned()), ..Identity::default() })
    }

    async fn power_state(&mut self) -> Result<PowerState, BmcError> {
        let hangs = self.world.bmc(&self.address, |bmc| {
            bmc.looks.push(Instant::now());
            let hangs = bmc.hangs > 0;
            bmc.hangs = bmc.hangs.saturating_sub(1);
            hangs
        });
        if hangs {
            let after = Duration::from_secs(60);
            tokio::time::sleep(after).await;
            let (address, what) = (self.address.clone(), "a look".to_owned());
            return Err(BmcError::TimedOut { address, what, after, sent: false });
        }
        self.call().await?;
        Ok(self.world.bmc(&self.address, |bmc| bmc.reported_state()))
    }

    async fn power(&mut self, request: PowerRequest) -> Result<Performed, BmcError> {
        self.world.pass().await;
        self.call().await?;
        if request == PowerRequest::GracefulOff && self.world.bmc(&self.address, |bmc| bmc.refuses) {
            let problem = "not in this state".to_owned();
            return Err(BmcError::Refused { what: request.to_string(), problem, sent: false });
        }
        self.world.bmc(&self.address, |bmc| bmc.carry_out(request));
        self.world.pass().await;
        Ok(Performed("done"))
    }

    async fn next_boot(&mut self) -> Result<Option<BootSource>, BmcError> {
        unsupported()
    }

    async fn set_next_boot(&mut self, source: BootSource, mode: Option<BootMode>) -> Result<(), BmcError> {
        self.call().await?;
        let mode = mode.map_or_else(String::new, |mode| format!(" as {mode:?}"));
        let boot = (Instant::now(), format!("boot from {source:?}{mode}"));
        self.world.bmc(&self.address, |bmc| bmc.requests.push(boot));
        Ok(())
    }

    async fn health(&mut self) -> Result<Health, BmcError> {
        unsupported()
    }

    async fn log_tail(&mut self, _: usize) -> Result<Vec<LogEntry>, BmcError> {
        unsupported()
    }

    async fn console(&mut self) -> Result<Box<dyn Console>, BmcError> {
        unsupported()
    }

    async fn close(&mut self) {
        self.world.bmc(&self.address, |bmc| bmc.closed += 1);
    }
}
