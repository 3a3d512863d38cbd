//! A machine with a BMC on loopback: `bedplate_ipmi::managed` on a thread, with power, boot flags and a log. For tests of both sides.

#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bedplate_ipmi::{
    crypto::{Password, Suite, UserName},
    managed::{Handler, Managed, Settings, User},
    session::Privilege,
    wire::{
        completion::Completion,
        message::{Request, Response},
    },
};
use rand::Rng;
use secrecy::SecretString;

pub(crate) const USER: &str = "admin";
pub(crate) const PASSWORD: &str = "a password of 20 oct";

/// Datagram that the BMC ignores, because it is not an RMCP message.
const MARKER: &[u8] = b"marker";

/// Changes of the machine.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) on: bool,
    pub(crate) controls: Vec<u8>,
    pub(crate) boot_flags: Option<Vec<u8>>,
    /// Parameter 3; missing, as in many BMCs, unless a test sets it.
    pub(crate) clearing: Option<u8>,
    /// Parameter 3 is taken, and not kept.
    pub(crate) forgetful: bool,
    /// Boot flags are taken, and not valid when they are read.
    pub(crate) invalid: bool,
    pub(crate) wrong_passwords: u32,
    pub(crate) right_passwords: u32,
    /// Sessions that the BMC has now.
    pub(crate) sessions: usize,
    /// Nothing is answered.
    pub(crate) deaf: bool,
    /// All is heard and done, nothing answered.
    pub(crate) dumb: bool,
    /// Datagrams that came.
    pub(crate) heard: usize,
    /// Number of [`MARKER`]s received.
    drained: usize,
    /// Chassis controls get no answer, but are carried out.
    pub(crate) mute: bool,
    /// All sessions are forgotten, before the next datagram.
    pub(crate) restart: bool,
    /// The cipher suites that it takes.
    pub(crate) suites: Vec<Suite>,
}

/// Three records: the fan is the last.
const LOG: [[u8; 16]; 3] = [
    [1, 0, 2, 0, 0, 0, 0x60, 0x20, 0, 4, 0x01, 0x30, 0x01, 0x59, 0x50, 0x4b],
    [2, 0, 2, 1, 0, 0, 0x60, 0x20, 0, 4, 0x08, 0x31, 0x6f, 0x01, 0xff, 0xff],
    [3, 0, 2, 2, 0, 0, 0x60, 0x20, 0, 4, 0x04, 0x32, 0x81, 0x02, 0x00, 0x00],
];

impl Handler for State {
    fn command(&mut self, privilege: Privilege, request: &Request, _: Instant) -> Response {
        let good = |data: &[u8]| Response { completion: Completion::Ok, data: data.to_vec() };
        let bad = |completion| Response { completion, data: Vec::new() };
        match (request.function, request.command, request.data.as_slice()) {
            (0x00, 0x01, _) => good(&[u8::from(self.on), 0x10, 0x08, 0]),
            (0x00, 0x02 | 0x08, _) if privilege < Privilege::Operator => bad(Completion::Privilege),
            (0x00, 0x02, [control]) => {
                self.controls.push(*control);
                self.on = !matches!(control, 0 | 5);
                good(&[])
            }
            (0x00, 0x08, [5, flags @ ..]) => {
                self.boot_flags = Some(flags.to_vec());
                good(&[])
            }
            (0x00, 0x08, [0 | 4, ..]) => good(&[]),
            (0x00, 0x08, [3, bits]) if self.clearing.is_some() => {
                if !self.forgetful {
                    self.clearing = Some(*bits);
                }
                good(&[])
            }
            (0x00, 0x09, [3, ..]) if self.clearing.is_some() => good(&[1, 3, self.clearing.unwrap_or(0)]),
            (0x00, 0x09, [3, ..]) => bad(Completion::Specific(0x80)),
            (0x00, 0x08, _) => bad(Completion::Specific(0x80)),
            (0x00, 0x09, [5, ..]) => {
                let mut flags = self.boot_flags.clone().unwrap_or_else(|| vec![0; 5]);
                if self.invalid {
                    flags[0] &= 0x7f;
                }
                good(&[&[1, 5][..], &flags].concat())
            }
            (0x06, 0x01, _) => good(&[0x20, 1, 2, 0x45, 2, 0xbf, 0xbe, 0xeb, 0, 0x34, 0x12, 0, 0, 0, 0]),
            (0x06, 0x37, _) => good(&[0xab; 16]),
            (0x0a, 0x40, _) => good(&[0x51, 3, 0, 0xff, 0xff, 2, 0, 0, 0x60, 0, 0, 0, 0, 0x02]),
            (0x0a, 0x42, _) => good(&[1, 0]),
            (0x0a, 0x43, [_, _, low, high, ..]) => {
                let at = match u16::from_le_bytes([*low, *high]) {
                    0 => 1,
                    0xffff => LOG.len(),
                    number => number.into(),
                };
                let Some(record) = at.checked_sub(1).and_then(|at| LOG.get(at)) else {
                    return bad(Completion::NotPresent);
                };
                let next = if at == LOG.len() { 0xffff } else { u16::try_from(at + 1).unwrap() };
                good(&[&next.to_le_bytes()[..], record].concat())
            }
            _ => bad(Completion::InvalidCommand),
        }
    }

    fn logged_in(&mut self, _: &UserName, right: bool, _: Instant) {
        if right {
            self.right_passwords += 1;
        } else {
            self.wrong_passwords += 1;
        }
    }
}

/// A machine that runs until it is dropped.
pub(crate) struct Machine {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// A machine that is off, with both suites.
    pub(crate) fn start() -> Self {
        Self::with_suites(&[Suite::Sha1, Suite::Sha256])
    }

    /// A machine that is off.
    pub(crate) fn with_suites(suites: &[Suite]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Only so that the thread sees when it is to stop.
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = socket.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { suites: suites.to_vec(), ..State::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (state, stop) = (Arc::clone(&state), Arc::clone(&stop));
            move || run(&socket, &state, &stop)
        });
        Self { address, state, stop, thread: Some(thread) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Waits until all datagrams sent so far are counted. UDP on loopback preserves the order, and a marker is sent last.
    pub(crate) fn drain(&self) {
        let before = self.state().drained;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(MARKER, self.address).unwrap();
        self.wait("the marker is received", |state| state.drained > before);
    }

    /// Waits until the state is so.
    pub(crate) fn wait(&self, what: &str, so: impl Fn(&State) -> bool) {
        let begin = Instant::now();
        while !so(&self.state()) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}: {:?}", self.state());
            std::thread::yield_now();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn run(socket: &UdpSocket, state: &Mutex<State>, stop: &AtomicBool) {
    let mut settings = Settings {
        guid: [9; 16],
        key: None,
        users: vec![User {
            name: UserName::new(USER).unwrap(),
            password: Password::new(&SecretString::from(PASSWORD)).unwrap(),
            privilege: Privilege::Administrator,
        }],
        suites: Vec::new(),
        sessions: 4,
        idle: Duration::from_secs(60),
        remembers: false,
    };
    let mut bmc = Managed::new(settings.clone(), Box::new(|octets| rand::rng().fill_bytes(octets)));
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, peer)) = socket.recv_from(&mut buffer) else { continue };
        let mut state = state.lock().unwrap();
        if buffer[..length] == *MARKER {
            state.drained += 1;
            continue;
        }
        settings.suites.clone_from(&state.suites);
        bmc.set(settings.clone());
        if std::mem::take(&mut state.restart) {
            bmc.restart();
        }
        state.heard += 1;
        if state.deaf {
            continue;
        }
        let controls = state.controls.len();
        let answer = bmc.receive(&mut *state, peer, &buffer[..length], Instant::now());
        state.sessions = bmc.sessions();
        let silent = state.mute && state.controls.len() > controls;
        if let Some(answer) = answer.filter(|_| !silent && !state.dumb) {
            socket.send_to(&answer, peer).unwrap();
        }
    }
}
