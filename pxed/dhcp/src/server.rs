//! The server as its owner sees it: bind, run, reload, look inside.
//!
//! Holds the state that its threads share; does no protocol, and no I/O except opening the lease file.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use bedplate_api::id::MacAddress;
use ipnet::Ipv4Net;
use thiserror::Error;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client::{Clients, Query};
use crate::counter::{Counters, Trouble};
use crate::ignored::Ignored;
use crate::lease::{ClientKey, Holder, Lease, LeaseState, PoolUsage, Seconds, Table};
use crate::recent::Recent;
use crate::respond::{DISCOVERED_SECONDS, Heard, Packet, Silence};
use crate::serve::{Committer, Job, OpenInterfaceError, Sockets, Worker, spawn};
use crate::settings::{Settings, SettingsError};
use crate::store::{OpenStoreError, Store};

/// Answers waiting for the disk. At 20,000 leases a second this is well below the 4 s after which clients ask again.
const ANSWER_QUEUE_CAPACITY: usize = 16_384;

/// The thread that waits for the disk, among [`Server::silences`].
pub const COMMIT_THREAD: &str = "commit";

const WARN_AGAIN: Duration = Duration::from_secs(60);

/// Maximum number of clients whose DHCPDISCOVER is remembered for the boot server port.
const MAX_DISCOVERS: usize = 16_384;
/// Maximum number of ignored clients that are remembered.
const MAX_IGNORED: usize = 1024;
/// Time that an ignored client is remembered for.
const IGNORED_SECONDS: Seconds = 3600;
/// Maximum number of unlisted relays that are logged within [`WARN_AGAIN`].
const MAX_LOGGED_RELAYS: usize = 16;

/// Error of starting the server.
#[derive(Debug, Error)]
pub enum BindServerError {
    /// The settings cannot be served.
    #[error("DHCP settings are invalid: {}", list(.0))]
    Settings(Vec<SettingsError>),
    /// The leases cannot be kept.
    #[error("the lease file cannot be used")]
    Store(#[source] OpenStoreError),
    /// An interface that is there cannot be served.
    #[error("an interface cannot be served")]
    Interface(#[source] OpenInterfaceError),
}

/// Error of a reload; the previous settings stay in force.
#[derive(Debug, Error)]
#[error("DHCP settings are invalid: {}", list(.0))]
pub struct ReloadServerError(pub Vec<SettingsError>);

fn list(errors: &[SettingsError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// State of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterfaceState {
    /// Messages are answered.
    Serving {
        /// Addresses of the interface, which no client gets.
        addresses: Vec<Ipv4Net>,
    },
    /// Not there or without address, or its sockets cannot be opened, with the reason.
    Waiting(String),
}

impl InterfaceState {
    /// Returns the addresses of the interface, while it is served.
    pub fn addresses(&self) -> &[Ipv4Net] {
        match self {
            Self::Serving { addresses } => addresses,
            Self::Waiting(_) => &[],
        }
    }
}

/// State that the threads share. No lock in it is held over I/O.
pub(crate) struct Engine {
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) table: Mutex<Table>,
    pub(crate) clients: Arc<dyn Clients>,
    pub(crate) counters: Counters,
    jobs: SyncSender<Job>,
    states: Mutex<BTreeMap<String, InterfaceState>>,
    /// Our addresses on all served interfaces, as `states` has them.
    pub(crate) own: ArcSwap<Vec<Ipv4Addr>>,
    exhausted: Mutex<Option<Instant>>,
    /// Origin of each client's latest DHCPDISCOVER, in proxy mode.
    discovers: Mutex<Recent<MacAddress, Heard>>,
    /// Clients that got no answer because of where their messages came from.
    ignored: Mutex<Recent<MacAddress, Ignored>>,
    /// Relays that were logged within a minute, by `giaddr` and sender.
    logged: Mutex<Recent<(Ipv4Addr, Ipv4Addr), ()>>,
    /// Time at which each thread last came round.
    rounds: Mutex<BTreeMap<String, Instant>>,
}

impl Engine {
    pub(crate) fn new(
        settings: Settings,
        table: Table,
        clients: Arc<dyn Clients>,
        jobs: SyncSender<Job>,
    ) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            table: Mutex::new(table),
            clients,
            counters: Counters::default(),
            jobs,
            states: Mutex::default(),
            own: ArcSwap::default(),
            exhausted: Mutex::default(),
            discovers: Mutex::new(Recent::new(MAX_DISCOVERS, DISCOVERED_SECONDS)),
            ignored: Mutex::new(Recent::new(MAX_IGNORED, IGNORED_SECONDS)),
            logged: Mutex::new(Recent::new(MAX_LOGGED_RELAYS, WARN_AGAIN.as_secs())),
            rounds: Mutex::default(),
        }
    }

    /// Hands an answer to the committer. Never blocks: if the queue is full, the answer is dropped and the client retries.
    pub(crate) fn offer(&self, job: Job) {
        if self.jobs.try_send(job).is_err() {
            self.counters.add_trouble(Trouble::CommitQueueFull, 1);
        }
    }

    /// Records the state of an interface. Returns true if it is new.
    pub(crate) fn set_interface(&self, name: &str, state: Option<&InterfaceState>) -> bool {
        let mut states = lock(&self.states);
        let before = match state {
            Some(state) => states.insert(name.into(), state.clone()),
            None => states.remove(name),
        };
        let is_new = before.as_ref() != state;
        if is_new {
            let addresses = states.values().flat_map(InterfaceState::addresses);
            self.own.store(Arc::new(addresses.map(Ipv4Net::addr).collect()));
        }
        is_new
    }

    /// Records that a thread is alive: it waits for work, or has done some.
    pub(crate) fn came_round(&self, thread: &str) {
        let (mut rounds, now) = (lock(&self.rounds), Instant::now());
        match rounds.get_mut(thread) {
            Some(at) => *at = now,
            None => drop(rounds.insert(thread.to_owned(), now)),
        }
    }

    /// Forgets a thread that has stopped.
    pub(crate) fn ended(&self, thread: &str) {
        lock(&self.rounds).remove(thread);
    }

    /// Says that a pool is full, once a minute: clients ask again every few seconds.
    pub(crate) fn warn_exhausted(&self, query: &Query) {
        let mut warned_at = lock(&self.exhausted);
        if warned_at.is_none_or(|at| at.elapsed() >= WARN_AGAIN) {
            *warned_at = Some(Instant::now());
            tracing::warn!(subnet = %query.subnet, mac = %query.mac, "pool exhausted, no address is free");
        }
    }

    /// Remembers an answered DHCPDISCOVER of proxyDHCP.
    pub(crate) fn remember_discover(&self, mac: MacAddress, heard: Heard, now: Seconds) {
        lock(&self.discovers).insert(mac, heard, now);
    }

    /// Returns the origin of this client's DHCPDISCOVER, if that is not long ago.
    pub(crate) fn discovered(&self, mac: MacAddress, now: Seconds) -> Option<Heard> {
        lock(&self.discovers).get(&mac, now).copied()
    }

    /// Remembers a client whose message was ignored. Logs a relay that is not believed once a minute, up to a limit of relays: any
    /// sender can set `giaddr`.
    pub(crate) fn remember_ignored(&self, mac: MacAddress, ignored: Ignored) {
        if matches!(ignored.reason, Silence::UnlistedRelay | Silence::RelayIsMachine) {
            let key = (ignored.relay.unwrap_or(Ipv4Addr::UNSPECIFIED), ignored.source);
            if lock(&self.logged).insert_new(key, (), ignored.at) {
                let ((relay, source), advice) = (key, ignored.advice());
                let reason = ignored.reason.label();
                tracing::warn!(reason, %relay, %source, %mac, advice, "relayed message ignored");
            }
        }
        lock(&self.ignored).insert(mac, ignored, ignored.at);
    }

    pub(crate) fn count_sent(&self, packet: &Packet, result: io::Result<()>) {
        match result {
            Ok(()) => self.counters.add_sent(packet.message),
            Err(error) => {
                self.counters.add_trouble(Trouble::SendFailed, 1);
                tracing::debug!(to = ?packet.to, %error, "failed to send an answer");
            }
        }
    }
}

/// Reads the wall clock, in the unit of leases.
pub(crate) fn now() -> Seconds {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A DHCPv4 server. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    engine: Arc<Engine>,
    start: Arc<Mutex<Option<Start>>>,
    reloaded: Arc<Notify>,
}

/// Parts that [`Server::run`] takes once.
struct Start {
    committer: Committer,
    sockets: BTreeMap<String, Sockets>,
}

impl Server {
    /// Reads the leases and opens the sockets of those interfaces that are there already. Messages are answered once
    /// [`Server::run`] is called.
    ///
    /// # Errors
    /// [`BindServerError`]; an interface that is absent is not an error.
    pub fn bind(
        settings: Settings,
        clients: Arc<dyn Clients>,
        lease_file: &Path,
    ) -> Result<Self, BindServerError> {
        let errors = settings.errors();
        if !errors.is_empty() {
            return Err(BindServerError::Settings(errors));
        }
        let mut sockets = BTreeMap::new();
        for name in &settings.interfaces {
            match Sockets::open(name, &settings) {
                Ok(opened) => drop(sockets.insert(name.clone(), opened)),
                Err(error) if error.is_absence() => {}
                Err(error) => return Err(BindServerError::Interface(error)),
            }
        }
        let (store, leases) = Store::open(lease_file).map_err(BindServerError::Store)?;
        let mut table = Table::default();
        leases.into_iter().for_each(|lease| table.restore(lease));
        table.configure(&settings.subnets);
        let (jobs, queue) = sync_channel(ANSWER_QUEUE_CAPACITY);
        let committer = Committer::new(store, PathBuf::from(lease_file), queue);
        let engine = Engine::new(settings, table, clients, jobs);
        Ok(Self {
            engine: Arc::new(engine),
            start: Arc::new(Mutex::new(Some(Start { committer, sockets }))),
            reloaded: Arc::new(Notify::new()),
        })
    }

    /// Serves until it is stopped; then answers the queue, and returns. A second call returns immediately.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub async fn run(&self, shutdown: CancellationToken) -> io::Result<()> {
        let Some(Start { committer, mut sockets }) = lock(&self.start).take() else { return Ok(()) };
        let stop = Arc::new(AtomicBool::new(false));
        let (engine, stopped) = (Arc::clone(&self.engine), Arc::clone(&stop));
        let committer = std::thread::Builder::new()
            .name("dhcp-commit".into())
            .spawn(move || committer.run(&engine, &stopped))?;
        let mut workers: BTreeMap<String, Worker> = BTreeMap::new();
        let result = loop {
            if let Err(error) = self.reconcile(&mut workers, &mut sockets) {
                break Err(error);
            }
            tokio::select! {
                () = shutdown.cancelled() => break Ok(()),
                () = self.reloaded.notified() => {}
            }
        };
        let ended = tokio::task::spawn_blocking(move || {
            workers.values().for_each(Worker::stop);
            workers.into_values().for_each(Worker::join);
            stop.store(true, Ordering::Relaxed);
            // A panic in it has been printed; there is nothing left to stop.
            let _ = committer.join();
        });
        ended.await.map_err(io::Error::other)?;
        result
    }

    /// Starts threads for interfaces that have none, stops those of interfaces that are no longer named.
    fn reconcile(
        &self,
        workers: &mut BTreeMap<String, Worker>,
        opened: &mut BTreeMap<String, Sockets>,
    ) -> io::Result<()> {
        let settings = self.engine.settings.load_full();
        workers.retain(|name, worker| {
            let wanted = settings.interfaces.contains(name);
            if !wanted {
                worker.stop();
            }
            wanted
        });
        for name in &settings.interfaces {
            if !workers.contains_key(name) {
                workers.insert(name.clone(), spawn(&self.engine, name, opened.remove(name))?);
            }
        }
        Ok(())
    }

    /// Applies new settings; running transactions and leases continue.
    ///
    /// # Errors
    /// [`ReloadServerError`] with all errors; the old settings stay in force.
    pub fn reload(&self, settings: Settings) -> Result<(), ReloadServerError> {
        let errors = settings.errors();
        if !errors.is_empty() {
            return Err(ReloadServerError(errors));
        }
        let pools_differ = self.engine.settings.load().subnets != settings.subnets;
        let mut table = lock(&self.engine.table);
        if pools_differ {
            table.configure(&settings.subnets);
        }
        self.engine.settings.store(Arc::new(settings));
        drop(table);
        self.reloaded.notify_one();
        Ok(())
    }

    /// Returns the event counters.
    pub fn counters(&self) -> &Counters {
        &self.engine.counters
    }

    /// Returns all leases, by address, without lapsed ones, which are kept for returning clients.
    pub fn leases(&self) -> Vec<Lease> {
        let mut leases: Vec<Lease> = {
            let table = lock(&self.engine.table);
            table.leases().filter(|lease| lease.state != LeaseState::Free).cloned().collect()
        };
        leases.sort_unstable_by_key(|lease| lease.address);
        leases
    }

    /// Returns the usage of the pools, in the order of the subnets.
    pub fn pool_usage(&self) -> Vec<PoolUsage> {
        lock(&self.engine.table).usage()
    }

    /// Returns why this client's latest message got no answer, if the cause is its origin and it is less than an hour old.
    pub fn ignored(&self, mac: MacAddress) -> Option<Ignored> {
        lock(&self.engine.ignored).get(&mac, now()).copied()
    }

    /// Returns the addresses that were leased to a Machine's interface, at most one in each subnet. A lease that has lapsed counts until
    /// another client needs its address: a machine that waits at its script does not renew. An offer does not count. `None`: no subnet has
    /// a pool, and this Machine's interface has no lease.
    pub fn leased_to(&self, mac: MacAddress) -> Option<Vec<Ipv4Addr>> {
        let settings = self.engine.settings.load();
        let table = lock(&self.engine.table);
        let lease = |network| table.of(&Holder { network, key: ClientKey::Mac(mac) });
        let leases = settings.subnets.iter().filter_map(|subnet| lease(subnet.network));
        // An offer that was not accepted is also free, and names no Machine.
        let is_lapsed = |lease: &Lease| lease.state == LeaseState::Free && lease.machine.is_some();
        let leased = leases.filter(|lease| lease.state == LeaseState::Bound || is_lapsed(lease));
        let addresses: Vec<_> = leased.map(|lease| lease.address).collect();
        let has_pool = settings.subnets.iter().any(|subnet| !subnet.ranges.is_empty());
        (has_pool || !addresses.is_empty()).then_some(addresses)
    }

    /// For how long each thread has not come round: an interface's (by its name) does so several times a second, also
    /// with nothing to do; so does [`COMMIT_THREAD`], unless it waits for the disk.
    pub fn silences(&self) -> Vec<(String, Duration)> {
        let now = Instant::now();
        let rounds = lock(&self.engine.rounds);
        rounds.iter().map(|(name, at)| (name.clone(), now.saturating_duration_since(*at))).collect()
    }

    /// Returns the state of each named interface.
    pub fn interfaces(&self) -> BTreeMap<String, InterfaceState> {
        lock(&self.engine.states).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{BootAnswer, Client, Event};
    use crate::settings::{Mode, Ports, Subnet};

    struct NoClients;

    impl Clients for NoClients {
        fn client(&self, _query: &Query) -> Client {
            Client::Unknown { discovery: false }
        }

        fn boot(&self, _query: &Query) -> Option<BootAnswer> {
            None
        }

        fn observe(&self, _query: &Query, _event: &Event) {}
    }

    async fn until(what: &str, mut reached: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !reached() {
            assert!(Instant::now() < deadline, "not reached: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn addresses_of_all_served_interfaces_are_pxeds_own() {
        let (jobs, _queue) = sync_channel(1);
        let settings = Settings {
            mode: Mode::Server,
            interfaces: Vec::new(),
            authoritative: false,
            subnets: Vec::new(),
            ports: Ports::default(),
        };
        let engine = Engine::new(settings, Table::default(), Arc::new(NoClients), jobs);
        let serving = |addresses: &[&str]| InterfaceState::Serving {
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let own = || engine.own.load().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(engine.set_interface("a", Some(&serving(&["10.7.0.1/24", "10.8.0.1/24"]))));
        assert!(engine.set_interface("b", Some(&serving(&["10.9.0.1/24"]))));
        assert_eq!(own(), ["10.7.0.1", "10.8.0.1", "10.9.0.1"]);
        assert!(engine.set_interface("a", Some(&InterfaceState::Waiting("no such interface".to_owned()))));
        assert_eq!(own(), ["10.9.0.1"]);
        assert!(engine.set_interface("b", None));
        assert_eq!(own(), Vec::<String>::new());
    }

    #[test]
    fn leases_and_lapsed_leases_count_and_offers_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let network = "10.7.0.0/24".parse().unwrap();
        let subnet = Subnet {
            network,
            ranges: vec!["10.7.0.10-10.7.0.20".parse().unwrap()],
            reserve: 0,
            routers: Vec::new(),
            nameservers: Vec::new(),
            domain: None,
            ntp_servers: Vec::new(),
            lease_seconds: 600,
            relays: Vec::new(),
        };
        let mut settings = Settings {
            mode: Mode::Server,
            interfaces: vec!["not-there".into()],
            authoritative: false,
            subnets: vec![subnet],
            ports: Ports::default(),
        };
        let path = directory.path().join("leases.redb");
        let server = Server::bind(settings.clone(), Arc::new(NoClients), &path).unwrap();
        let [own, other] = [1, 2].map(|last| MacAddress::new([0x52, 0x54, 0, 0, 0, last]));
        let holder = |mac| Holder { network, key: ClientKey::Mac(mac) };
        let address: Ipv4Addr = [10, 7, 0, 10].into();
        let table = || lock(&server.engine.table);
        let leased = || server.leased_to(own).unwrap();
        assert_eq!(leased(), Vec::<Ipv4Addr>::new());
        table().offer(address, holder(own), own, 100);
        assert_eq!(leased(), Vec::<Ipv4Addr>::new(), "offered");
        table().expire(1000);
        assert_eq!(leased(), Vec::<Ipv4Addr>::new(), "the offer was not taken");
        table().bind(address, holder(own), own, Some("a".parse().unwrap()), 1000, 600);
        assert_eq!(leased(), [address], "bound");
        table().expire(2000);
        assert_eq!(leased(), [address], "lapsed");
        table().bind(address, holder(other), other, Some("b".parse().unwrap()), 2000, 600);
        assert_eq!(leased(), Vec::<Ipv4Addr>::new(), "another client has it");
        for subnet in &mut settings.subnets {
            subnet.ranges.clear();
        }
        server.reload(settings).unwrap();
        assert_eq!(server.leased_to(own), None, "no address can be given");
        assert_eq!(server.leased_to(other), Some(vec![address]));
    }

    #[tokio::test]
    async fn a_thread_that_hangs_falls_silent_and_one_with_nothing_to_do_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings {
            mode: Mode::Server,
            interfaces: vec!["not-there".into()],
            authoritative: false,
            subnets: Vec::new(),
            ports: Ports::default(),
        };
        let server =
            Server::bind(settings, Arc::new(NoClients), &directory.path().join("leases.redb")).unwrap();
        assert!(server.silences().is_empty(), "nothing is expected of what does not run");
        let (shutdown, runner) = (CancellationToken::new(), server.clone());
        let running = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { runner.run(shutdown).await }
        });
        let silent = |name: &str| server.silences().into_iter().find(|(n, _)| n == name).map(|(_, s)| s);
        for name in ["not-there", COMMIT_THREAD] {
            until("the thread runs", || silent(name).is_some()).await;
            // Each loses time and wins it back, without any message.
            until("it was quiet for a moment", || silent(name) > Some(Duration::from_millis(20))).await;
            until("it came round", || silent(name) < Some(Duration::from_millis(20))).await;
        }
        // The thread cannot report that it waits for its interface while the lock is held here.
        let held = lock(&server.engine.states);
        let rounds = || lock(&server.engine.rounds).get("not-there").map(Instant::elapsed);
        let deadline = Instant::now() + Duration::from_secs(60);
        while rounds() < Some(Duration::from_secs(2)) {
            assert!(Instant::now() < deadline, "a thread that hangs falls silent");
            std::thread::yield_now();
        }
        let commit = || lock(&server.engine.rounds).get(COMMIT_THREAD).copied();
        let before = commit();
        while commit() == before {
            assert!(Instant::now() < deadline, "the other one goes on");
            std::thread::yield_now();
        }
        drop(held);
        shutdown.cancel();
        running.await.unwrap().unwrap();
        assert_eq!(silent("not-there"), None);
    }
}
