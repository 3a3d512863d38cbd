//! The thread of one interface: receives, answers, and waits for an interface that is not there.
//!
//! Never waits for the disk. Called by [`crate::Server`].

use std::io;
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipnet::Ipv4Net;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::system::{Datagram, Inbox};
use super::{Job, Outlet, Sockets};
use crate::client::Event;
use crate::counter::Trouble;
use crate::ignored::Ignored;
use crate::respond::{Arrival, Packet, Response, Silence, respond};
use crate::server::{Engine, InterfaceState, now};
use crate::settings::Settings;
use crate::wire::{Malformed, decode};

/// Timeout of a receive, after which a thread checks for shutdown.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval between checks of the interface's existence and addresses.
const INTERFACE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A running interface thread.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Asks the thread to end; [`Worker::join`] waits for it.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn join(self) {
        // Its panics are caught and counted inside.
        let _ = self.thread.join();
    }
}

/// Starts the thread of one interface.
pub(crate) fn spawn(engine: &Arc<Engine>, name: &str, opened: Option<Sockets>) -> io::Result<Worker> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut opened = opened;
    let (engine, name, stopped) = (Arc::clone(engine), name.to_owned(), Arc::clone(&stop));
    let thread = std::thread::Builder::new().name(format!("dhcp-{name}")).spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            engine.came_round(&name);
            let sockets = opened.take();
            let run = AssertUnwindSafe(|| serve_interface(&engine, &name, sockets, &stopped));
            if catch_unwind(run).is_err() {
                engine.counters.add_trouble(Trouble::InterfaceLost, 1);
                tracing::error!(interface = name, "interface thread panicked, restarting");
            }
        }
        engine.set_interface(&name, None);
        engine.ended(&name);
    })?;
    Ok(Worker { stop, thread })
}

/// Opens the interface, serves it until it changes, and returns to be called again.
fn serve_interface(engine: &Arc<Engine>, name: &str, opened: Option<Sockets>, stop: &AtomicBool) {
    let settings = engine.settings.load_full();
    let sockets = match opened.map_or_else(|| Sockets::open(name, &settings), Ok) {
        Ok(sockets) => Arc::new(sockets),
        Err(error) => {
            let reason = chain(&error);
            if engine.set_interface(name, Some(&InterfaceState::Waiting(reason.clone()))) {
                tracing::warn!(interface = name, reason, "interface not ready, waiting for it");
            }
            std::thread::park_timeout(RECEIVE_TIMEOUT * 5);
            return;
        }
    };
    let serves = |addresses: &[Ipv4Net]| {
        engine.set_interface(name, Some(&InterfaceState::Serving { addresses: addresses.to_vec() }));
    };
    serves(&sockets.addresses());
    tracing::info!(interface = name, "serving DHCP");
    let mut serving =
        Serving { engine, sockets: &sockets, inbox: Inbox::new(), addresses: sockets.addresses() };
    let mut looked = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        engine.came_round(name);
        let result = serving.wait_and_answer();
        let due = looked.elapsed() >= INTERFACE_CHECK_INTERVAL;
        if due || result.is_err() {
            looked = Instant::now();
            match sockets.refresh(&engine.settings.load()) {
                Ok(true) if result.is_ok() => {
                    serving.addresses = sockets.addresses();
                    serves(&serving.addresses);
                }
                Ok(_) | Err(_) => {
                    engine.counters.add_trouble(Trouble::InterfaceLost, 1);
                    tracing::warn!(interface = name, "interface changed, opening it again");
                    return;
                }
            }
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

struct Serving<'a> {
    engine: &'a Engine,
    sockets: &'a Arc<Sockets>,
    inbox: Inbox,
    addresses: Vec<Ipv4Net>,
}

impl Serving<'_> {
    fn wait_and_answer(&mut self) -> io::Result<()> {
        let sockets = self.sockets;
        let (server, boot_server) = (sockets.server(), sockets.boot_server());
        let mut both = [server, boot_server.unwrap_or(server)].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let waiting = both.get_mut(..=usize::from(boot_server.is_some())).unwrap_or_default();
        let timeout = PollTimeout::try_from(RECEIVE_TIMEOUT).unwrap_or(PollTimeout::ZERO);
        match poll(waiting, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| fd.any().unwrap_or(true));
        let ready = [(false, ready(waiting.first())), (true, ready(waiting.get(1)))];
        for (boot_server, _) in ready.into_iter().filter(|(_, ready)| *ready) {
            let socket = sockets.boot_server().filter(|_| boot_server).unwrap_or(server);
            match self.inbox.receive(socket) {
                Ok(_) => self.answer_batch(boot_server),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn answer_batch(&self, boot_server: bool) {
        let settings = self.engine.settings.load();
        let (now, own) = (now(), self.engine.own.load_full());
        let mut direct: Vec<(Packet, crate::client::Query, Event)> = Vec::new();
        for datagram in self.inbox.datagrams() {
            match self.answer(&settings, &own, &datagram, (boot_server, now)) {
                Ok(response) => direct.extend(self.pass_on(response)),
                Err(reason) => {
                    self.engine.counters.add_malformed(reason);
                    tracing::trace!(peer = %datagram.peer, reason = reason.label(), "malformed message dropped");
                }
            }
        }
        let packets: Vec<&Packet> = direct.iter().map(|(packet, _, _)| packet).collect();
        self.sockets.send(&packets, &mut |packet, result| self.engine.count_sent(packet, result));
        for (_, query, event) in &direct {
            self.engine.clients.observe(query, event);
        }
    }

    fn answer(
        &self,
        settings: &Settings,
        own: &[Ipv4Addr],
        datagram: &Datagram<'_>,
        (boot_server, now): (bool, u64),
    ) -> Result<Response, Malformed> {
        if datagram.is_cut {
            return Err(Malformed::TooLong);
        }
        let request = decode(datagram.bytes)?;
        self.engine.counters.add_received(request.message);
        let arrival = Arrival {
            addresses: &self.addresses,
            own,
            destination: datagram.destination,
            peer: datagram.peer,
            boot_server,
            discovered: if boot_server { self.engine.discovered(request.mac, now) } else { None },
        };
        let clients = self.engine.clients.as_ref();
        let response = {
            let mut table = self.engine.table.lock().unwrap_or_else(PoisonError::into_inner);
            respond(settings, clients, &mut table, &request, &arrival, now)?
        };
        if let Some(heard) = response.heard {
            self.engine.remember_discover(request.mac, heard, now);
        }
        if let Err(silence) = response.result
            && let Some(ignored) =
                Ignored::new(silence, (settings, clients), &request, &arrival, response.query.as_ref(), now)
        {
            self.engine.remember_ignored(request.mac, ignored);
        }
        Ok(response)
    }

    /// Notifies the owner, hands an answer with lease changes to the committer, and returns any other.
    fn pass_on(&self, response: Response) -> Option<(Packet, crate::client::Query, Event)> {
        let Response { query, result, packet, changes, heard: _ } = response;
        if let Err(silence) = result {
            self.engine.counters.add_silence(silence);
        }
        let query = query?;
        self.engine.clients.observe(&query, &Event::Received);
        let event = match result {
            Ok(event) => event,
            Err(Silence::PoolExhausted) => {
                self.engine.warn_exhausted(&query);
                self.engine.clients.observe(&query, &Event::PoolExhausted);
                return None;
            }
            Err(_) => return None,
        };
        if changes.is_empty() {
            return packet.map(|packet| (packet, query, event));
        }
        let outlet: Arc<dyn Outlet> = self.sockets.clone();
        self.engine.offer(Job { query, event, packet, changes, outlet });
        None
    }
}

/// Returns true for errors after which the same socket continues: no data, a signal, or an earlier answer's ICMP
/// error.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}
