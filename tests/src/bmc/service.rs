//! One simulated BMC: its account, sessions, machines, faults and counters, shared by its protocols. No sockets.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bedplate_api::id::Digest;
use bedplate_ipmi::crypto::Suite;
use jiff::Timestamp;
use rand::Rng;
use socket2::SockRef;
use tokio::sync::watch;

use super::certificate::Certificate;
use super::chassis::{ActError, Action, By, Shared};
use super::fault::{Counters, Dead, Faults};

/// Default account of BMCs.
pub const USER: &str = "admin";
/// Its password: at most 16 characters, which every BMC takes.
pub const PASSWORD: &str = "c0rrect-horse";
/// Silence after which a Redfish session is dropped.
const SESSION_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of connections that wait to be accepted.
const MAX_BACKLOG: i32 = 128;
/// Maximum number of answers whose times are kept.
const MAX_REPORT_TIMES: usize = 32;

/// Settings of a BMC.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name, for clients that control the simulator.
    pub name: String,
    /// Its account.
    pub user: String,
    /// Its password.
    pub password: String,
    /// Redfish sessions at one time; 0: there is no SessionService, every request brings the password.
    pub sessions: usize,
    /// IPMI sessions at one time.
    pub ipmi_sessions: usize,
    /// True if a repeated IPMI request is answered from memory (IPMI 2.0 section 6.12.4). OpenBMC carries it out again.
    pub ipmi_remembers: bool,
    /// Cipher suites of IPMI.
    pub suites: Vec<Suite>,
    /// Values of `ResetType` that are taken, as Redfish writes them.
    pub reset_types: Vec<&'static str>,
    /// Milliseconds before every answer of a healthy BMC.
    pub latency_ms: u64,
    /// Its certificate; absent: one of its own.
    pub certificate: Option<Certificate>,
}

impl Settings {
    /// A healthy BMC of the ordinary kind.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            user: USER.to_owned(),
            password: PASSWORD.to_owned(),
            sessions: 8,
            ipmi_sessions: 4,
            ipmi_remembers: false,
            suites: vec![Suite::Sha1, Suite::Sha256],
            reset_types: vec![
                "On",
                "ForceOff",
                "GracefulShutdown",
                "ForceRestart",
                "PowerCycle",
                "PushPowerButton",
            ],
            latency_ms: 0,
            certificate: None,
        }
    }
}

/// A Redfish session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u32,
    pub(super) token: String,
    heard: Instant,
}

#[derive(Debug, Default)]
struct State {
    password: String,
    faults: Faults,
    counters: Counters,
    sessions: Vec<Session>,
    last_session: u32,
    ipmi_sessions: usize,
    report_times: VecDeque<Timestamp>,
    /// Wrong passwords since the last right one.
    wrong: u32,
}

/// Result of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Right,
    Wrong,
    /// Too many wrong ones before.
    Locked,
}

/// A BMC. Its sockets are the simulator's.
pub struct Bmc {
    pub(super) settings: Settings,
    pub(super) systems: Vec<Shared>,
    state: Mutex<State>,
    certificate: Mutex<Certificate>,
    /// The listener, to shut and open it.
    listener: Option<(TcpListener, SocketAddr)>,
    /// Counts up when it was opened again: an event queue that has seen it shut is of no use any more.
    pub(super) opened: watch::Sender<u32>,
    /// True if a power request takes time, as real hardware does.
    pub(super) blocks: bool,
}

impl std::fmt::Debug for Bmc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bmc({})", self.settings.name)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bmc {
    pub(super) fn new(
        settings: Settings,
        systems: Vec<Shared>,
        listener: Option<(TcpListener, SocketAddr)>,
    ) -> Result<Self> {
        let blocks = systems.iter().any(|system| system.lock().has_hardware());
        let certificate = settings.certificate.clone().map_or_else(Certificate::new, Ok)?;
        let state = State { password: settings.password.clone(), ..State::default() };
        Ok(Self {
            settings,
            systems,
            state: Mutex::new(state),
            certificate: Mutex::new(certificate),
            listener,
            opened: watch::Sender::new(0),
            blocks,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Its machines.
    pub fn systems(&self) -> &[Shared] {
        &self.systems
    }

    /// Faults of the BMC now.
    pub fn faults(&self) -> Faults {
        locked(&self.state).faults.clone()
    }

    /// Sets what is wrong with it, and forgets the wrong passwords so far. Connections that were silent stay so.
    ///
    /// # Errors
    /// Its sockets do not take it.
    pub fn set_faults(&self, faults: Faults) -> Result<()> {
        let dead = faults.dead;
        let before = {
            let mut state = locked(&self.state);
            state.wrong = 0;
            std::mem::replace(&mut state.faults, faults).dead
        };
        if let Some((listener, address)) = self.listener.as_ref().filter(|_| before != dead) {
            let socket = SockRef::from(listener);
            match before {
                Some(Dead::Refused) => {
                    // A port that was asked for by number is still its own, and cannot be bound again.
                    let _ = socket.bind(&(*address).into());
                    socket.listen(MAX_BACKLOG)?;
                    if listener.local_addr()? != *address {
                        bail!("{address} was taken by another process");
                    }
                    self.opened.send_modify(|times| *times += 1);
                }
                Some(Dead::Dropped) => socket.detach_filter()?,
                None => {}
            }
            match dead {
                Some(Dead::Refused) => {
                    // Linux ends the listening and keeps the socket, but releases a port that was not asked for by number: another test would
                    // listen there.
                    socket.shutdown(std::net::Shutdown::Both)?;
                    match socket.bind(&(*address).into()) {
                        // A port that was asked for by number is still its own.
                        Err(error) if error.kind() != ErrorKind::InvalidInput => {
                            return Err(error).context(format!("another program has taken {address}"));
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
                // A program of one instruction: take 0 octets of every packet, SYN too.
                Some(Dead::Dropped) => socket.attach_filter(&[socket2::SockFilter::new(0x06, 0, 0, 0)])?,
                None => {}
            }
        }
        Ok(())
    }

    /// Heals it.
    ///
    /// # Errors
    /// As [`Bmc::set_faults`].
    pub fn heal(&self) -> Result<()> {
        self.set_faults(Faults::default())
    }

    /// Counters of the BMC.
    pub fn counters(&self) -> Counters {
        let state = locked(&self.state);
        let open_sessions = state.sessions.len() + state.ipmi_sessions;
        Counters { open_sessions, ..state.counters.clone() }
    }

    /// Times at which it sent a machine's power state, the newest ones, before its latency.
    pub fn report_times(&self) -> Vec<Timestamp> {
        locked(&self.state).report_times.iter().copied().collect()
    }

    /// Number of answers about the power state after a time, at most 32.
    pub fn reports_after(&self, time: Timestamp) -> usize {
        locked(&self.state).report_times.iter().filter(|report_times| **report_times > time).count()
    }

    /// It tells a machine's power state.
    pub(super) fn tells(&self) {
        let report_times = &mut locked(&self.state).report_times;
        if report_times.len() == MAX_REPORT_TIMES {
            report_times.pop_front();
        }
        report_times.push_back(Timestamp::now());
    }

    /// Changes the account's password; sessions that stand remain.
    pub fn set_password(&self, password: &str) {
        password.clone_into(&mut locked(&self.state).password);
    }

    /// Forgets all Redfish sessions, as a BMC that restarts.
    pub fn drop_sessions(&self) {
        locked(&self.state).sessions.clear();
    }

    /// The pin of the certificate that new connections are shown.
    pub fn pin(&self) -> Digest {
        locked(&self.certificate).pin()
    }

    /// Shows new connections another certificate, of another key; gives its pin.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn change_certificate(&self) -> Result<Digest> {
        let certificate = Certificate::new()?;
        let pin = certificate.pin();
        *locked(&self.certificate) = certificate;
        Ok(pin)
    }

    /// The certificate (PEM).
    pub fn certificate_pem(&self) -> String {
        locked(&self.certificate).pem().to_owned()
    }

    pub(super) fn tls(&self) -> Arc<rustls::ServerConfig> {
        locked(&self.certificate).server()
    }

    /// Listener that accepts connections until it is opened again.
    pub(super) fn listener(&self) -> Result<tokio::net::TcpListener> {
        let (listener, _) = self.listener.as_ref().context("no Redfish")?;
        Ok(tokio::net::TcpListener::from_std(listener.try_clone()?)?)
    }

    pub(super) fn latency(&self) -> Duration {
        let slow = locked(&self.state).faults.slow_ms;
        Duration::from_millis(self.settings.latency_ms.max(slow))
    }

    pub(super) fn password(&self) -> String {
        locked(&self.state).password.clone()
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut locked(&self.state).counters);
    }

    pub(super) fn set_ipmi_sessions(&self, sessions: usize) {
        locked(&self.state).ipmi_sessions = sessions;
    }

    /// Returns true if too many passwords were wrong before.
    fn is_locked(state: &State) -> bool {
        state.faults.lock_after.is_some_and(|most| state.wrong >= most)
    }

    /// Judges a user name and a password.
    pub(super) fn judge(&self, user: &str, password: &str) -> Entry {
        let mut state = locked(&self.state);
        if Self::is_locked(&state) {
            state.counters.locked_out += 1;
            return Entry::Locked;
        }
        let right = user == self.settings.user && password == state.password;
        Self::judged(&mut state, right);
        if right { Entry::Right } else { Entry::Wrong }
    }

    fn judged(state: &mut State, right: bool) {
        if right {
            state.wrong = 0;
            state.counters.logins += 1;
        } else {
            state.wrong += 1;
            state.counters.wrong_logins += 1;
        }
    }

    /// IPMI: a login begins. One that never proves its password counts as wrong for the lock-out: a client that knows
    /// another password finds out first and goes away.
    pub(super) fn ipmi_begins(&self) -> bool {
        let mut state = locked(&self.state);
        state.counters.ipmi_attempts += 1;
        if Self::is_locked(&state) {
            state.counters.locked_out += 1;
            return false;
        }
        state.wrong += 1;
        true
    }

    /// IPMI: a proof was right or wrong.
    pub(super) fn ipmi_proved(&self, right: bool) {
        let mut state = locked(&self.state);
        // It was counted when it began.
        state.wrong = state.wrong.saturating_sub(1);
        Self::judged(&mut state, right);
    }

    /// Opens a Redfish session after a login: its number and token; `None`: all sessions are in use.
    pub(super) fn open_session(&self) -> Option<(u32, String)> {
        let mut octets = [0; 16];
        rand::rng().fill_bytes(&mut octets);
        let token: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
        let mut state = locked(&self.state);
        let now = Instant::now();
        state.sessions.retain(|session| now.saturating_duration_since(session.heard) < SESSION_TIMEOUT);
        if state.sessions.len() >= self.settings.sessions || state.faults.sessions_full {
            return None;
        }
        state.last_session += 1;
        let id = state.last_session;
        state.sessions.push(Session { id, token: token.clone(), heard: now });
        state.counters.most_sessions = state.counters.most_sessions.max(state.sessions.len());
        Some((id, token))
    }

    /// Returns true if the token belongs to a session.
    pub(super) fn has_session(&self, token: &str) -> bool {
        let mut state = locked(&self.state);
        let session = state.sessions.iter_mut().find(|session| session.token == token);
        session.map(|session| session.heard = Instant::now()).is_some()
    }

    pub(super) fn session_ids(&self) -> Vec<u32> {
        locked(&self.state).sessions.iter().map(|session| session.id).collect()
    }

    /// Ends a session; whether there was one.
    pub(super) fn close_session(&self, id: u32) -> bool {
        let mut state = locked(&self.state);
        let before = state.sessions.len();
        state.sessions.retain(|session| session.id != id);
        state.sessions.len() < before
    }

    /// Does something to a machine's power.
    pub(super) fn act(&self, system: &Shared, action: Action, by: By) -> Result<(), ActError> {
        let faults = self.faults();
        if faults.power_ignored {
            system.lock().ignore(action, by, Instant::now());
            return Ok(());
        }
        system.lock().act(action, by, Duration::from_millis(faults.lie_ms), Instant::now())
    }
}
