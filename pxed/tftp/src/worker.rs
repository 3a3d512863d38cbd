//! One thread of the server: waits for packets and times, lets the sessions decide, sends their packets.
//!
//! Shares nothing on the data path: the kernel keeps a client at one worker's socket, so that its transfers live here alone. Spawned by
//! the server; names and limits are decided elsewhere ([`crate::admit`]).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::EventFd,
    },
};

use crate::{
    admit::{self, Answer, Shared},
    channel::{Channel, Heard},
    content::{Outcome, Request},
    counters::Refusal,
    endpoint::Endpoint,
    gate::Limited,
    name,
    places::{Places, Progress},
    session::{Session, Transmit},
    spin::{Look, Spin},
    wire::{self, ErrorCode, Packet},
};

/// The wake-up's mark among the events; listeners count down from it, transfers count up from 0.
const WAKE_UP_MARK: u64 = u64::MAX;

/// Packets taken from one listener before the transfers have their turn again.
const LISTENER_BATCH: usize = 16;

/// Packets taken from one transfer's port before the others have their turn.
const TRANSFER_BATCH: usize = 16;

/// Maximum time of polling sockets without sleeping before timers have their turn.
const MAX_POLL_TIME: Duration = Duration::from_millis(1);

/// Maximum interval between pulses of a worker; an idle worker wakes up for it.
const MAX_PULSE_INTERVAL: Duration = Duration::from_secs(2);
const SAY_AGAIN: Duration = Duration::from_secs(1);

/// One transfer and what belongs to it.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) session: Session,
    pub(crate) channel: Channel,
    pub(crate) content: bytes::Bytes,
    pub(crate) name: String,
    pub(crate) peer: SocketAddr,
    pub(crate) local: IpAddr,
    /// The request as it came, to know it again.
    pub(crate) asked: Box<[u8]>,
    /// The option acknowledgement, where there is one.
    pub(crate) offer: Vec<u8>,
    pub(crate) heard_at: Instant,
    /// Time at which the timer of this transfer rings; later rings are found out then.
    pub(crate) rings_at: Instant,
}

/// A worker's thread.
pub(crate) struct Worker {
    number: usize,
    said_at: Instant,
    shared: Arc<Shared>,
    epoll: Epoll,
    wake: Arc<EventFd>,
    endpoints: Vec<Endpoint>,
    transfers: HashMap<u64, Transfer>,
    by_peer: BTreeMap<(SocketAddr, IpAddr), u64>,
    /// Order in which transfers end when there is no room.
    places: Places,
    next_mark: u64,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    spin: Spin,
    drain_until: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(
        number: usize,
        shared: Arc<Shared>,
        wake: Arc<EventFd>,
        endpoints: Vec<Endpoint>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE_UP_MARK))?;
        for (mark, endpoint) in (0..WAKE_UP_MARK).rev().zip(&endpoints) {
            epoll.add(endpoint, EpollEvent::new(EpollFlags::EPOLLIN, mark))?;
        }
        let said_at = Instant::now();
        shared.came_round(number, said_at);
        let spin = Spin::new(shared.spin);
        Ok(Self {
            number,
            said_at,
            shared,
            epoll,
            wake,
            endpoints,
            transfers: HashMap::new(),
            by_peer: BTreeMap::new(),
            places: Places::default(),
            next_mark: 0,
            timers: BinaryHeap::new(),
            spin,
            drain_until: None,
        })
    }

    /// Serves until it is stopped and every transfer has ended, or until the drain's deadline.
    ///
    /// # Errors
    /// The system cannot wait for events.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let count = self.wait(&mut events)?;
            let now = Instant::now();
            if now.saturating_duration_since(self.said_at) >= SAY_AGAIN {
                self.said_at = now;
                self.shared.came_round(self.number, now);
            }
            for event in events.iter().take(count) {
                self.handle(event.data(), now);
            }
            self.ring(now);
            if self.is_over(now) {
                return Ok(());
            }
        }
    }

    /// Polls for events without sleeping as long as clients answer immediately, otherwise sleeps until something is
    /// due.
    fn wait(&mut self, events: &mut [EpollEvent]) -> io::Result<usize> {
        let began = Instant::now();
        let mut now = began;
        loop {
            match self.spin.look(now) {
                Look::Sleep => break,
                Look::Transfer(mark) => {
                    self.hear(mark, now);
                }
                Look::Everything => {
                    let count = wait_events(&self.epoll, events, EpollTimeout::ZERO)?;
                    if count > 0 || now.saturating_duration_since(began) >= MAX_POLL_TIME {
                        return Ok(count);
                    }
                    now = Instant::now();
                    std::thread::yield_now();
                    self.spin.yielded(now.elapsed(), now);
                }
            }
            now = Instant::now();
        }
        let due = self.timers.peek().map(|Reverse((at, _))| *at).into_iter().chain(self.drain_until).min();
        let wait = due.map_or(MAX_PULSE_INTERVAL, |at| {
            at.saturating_duration_since(Instant::now()).min(MAX_PULSE_INTERVAL)
        });
        // Rounded up, or the last millisecond would be spent awake.
        let wait = u16::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        wait_events(&self.epoll, events, EpollTimeout::from(wait))
    }

    fn handle(&mut self, mark: u64, now: Instant) {
        if mark == WAKE_UP_MARK {
            let _ = self.wake.read();
            self.begin_drain(now);
        } else if let Some(endpoint) =
            usize::try_from(WAKE_UP_MARK - 1 - mark).ok().filter(|index| *index < self.endpoints.len())
        {
            self.listen(endpoint, now);
        } else {
            self.hear(mark, now);
        }
    }

    fn listen(&mut self, index: usize, now: Instant) {
        for _ in 0..LISTENER_BATCH {
            let Some(endpoint) = self.endpoints.get_mut(index) else {
                return;
            };
            let (peer, local, packet) = match endpoint.receive() {
                Ok(Some(arrival)) => (arrival.peer, arrival.local, Box::<[u8]>::from(arrival.packet)),
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "failed to read from the request port");
                    return;
                }
            };
            if let Some((code, text)) = self.arrive(peer, local, &packet, now)
                && let Some(endpoint) = self.endpoints.get(index)
            {
                endpoint.answer(&wire::error(code, text), peer, local);
            }
        }
    }

    /// Handles a packet to the request port; returns the error to send, if any.
    fn arrive(&mut self, peer: SocketAddr, local: IpAddr, packet: &[u8], now: Instant) -> Answer {
        let shared = self.shared.clone();
        let parsed = wire::parse(packet);
        if matches!(parsed, Ok(Packet::Error(_))) {
            return None; // Never answer an error.
        }
        if let Err(answer) = shared.admit_packet(peer.ip(), now) {
            return answer;
        }
        let asked = match parsed {
            Ok(Packet::Read(asked)) => asked,
            Ok(other) => return shared.refuse_stray(&other),
            Err(malformed) => return shared.refuse_malformed(malformed),
        };
        shared.counters.request();
        if self.is_repeated(peer, local, packet, now) {
            shared.counters.repeated_request();
            return None;
        }
        let make_room = |limited| self.make_room(limited, peer.ip(), now);
        match shared.open((peer, local), &asked, packet, now, make_room) {
            Ok((transfer, first)) => {
                self.adopt(transfer, first, now);
                None
            }
            Err(answer) => answer,
        }
    }

    /// Returns true if a request belongs to an open transfer: a retransmission or a duplicate of the network. Another
    /// request from the same port replaces the old transfer, as does the same request after a silence: the client has
    /// restarted.
    fn is_repeated(&mut self, peer: SocketAddr, local: IpAddr, packet: &[u8], now: Instant) -> bool {
        let Some(mark) = self.by_peer.get(&(peer, local)).copied() else {
            return false;
        };
        // The client's packets for the old transfer came first: EDK2 aborts its size probe and asks again from the
        // same port.
        for _ in 0..LISTENER_BATCH {
            if !self.hear(mark, now) {
                break;
            }
        }
        let Some(transfer) = self.transfers.get_mut(&mark) else {
            return false;
        };
        let same = *transfer.asked == *packet;
        let silent = now.saturating_duration_since(transfer.heard_at) >= self.shared.settings().retry.initial;
        if same && !transfer.session.has_progressed() {
            let again = transfer.session.request_repeated(now);
            self.send(mark, again, now);
            return true;
        }
        if same && !silent {
            return true;
        }
        transfer.session.abort();
        self.settle(mark);
        false
    }

    /// Ends the transfer that is the first to go ([`Places`]): of all clients, or of this address if its own limit was met. Returns false if this
    /// worker has none. Another worker's transfers stay: the kernel spreads clients evenly, so that in a flood each worker has some.
    fn make_room(&mut self, limited: Limited, address: IpAddr, now: Instant) -> bool {
        let transfers = &self.transfers;
        let progress = |mark: u64| {
            let session = &transfers.get(&mark)?.session;
            Some(Progress { at: session.progressed_at(), bytes: session.acknowledged_bytes() })
        };
        let first = (SocketAddr::new(address, 0), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let last = (SocketAddr::new(address, u16::MAX), IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)));
        let mark = match limited {
            Limited::Sessions => self.places.first_to_end(now, progress),
            Limited::ClientSessions => {
                let own = self.by_peer.range(first..=last).map(|(_, mark)| *mark);
                self.places.first_to_end_of(own, now, progress)
            }
            Limited::Rate | Limited::Clients => None,
        };
        let Some(mark) = mark else {
            return false;
        };
        if let Some(transfer) = self.transfers.get_mut(&mark) {
            transfer.session.time_out();
        }
        self.settle(mark);
        self.places.remove(mark);
        true
    }

    fn adopt(&mut self, transfer: Transfer, first: Transmit, now: Instant) {
        let mark = self.next_mark;
        self.next_mark += 1;
        if let Err(error) = self.epoll.add(&transfer.channel, EpollEvent::new(EpollFlags::EPOLLIN, mark)) {
            tracing::warn!(%error, "failed to watch a transfer");
            self.shared.close(&transfer, Outcome::Stopped);
            return;
        }
        self.by_peer.insert((transfer.peer, transfer.local), mark);
        self.places.insert(mark, now);
        self.timers.push(Reverse((transfer.rings_at, mark)));
        self.transfers.insert(mark, transfer);
        self.send(mark, Some(first), now);
    }

    /// Reads packets of a transfer's port up to the first ACK: one ACK, one answer. The number of other packets, from
    /// any sender, is limited before the other transfers have their turn. Returns true if there may be more.
    fn hear(&mut self, mark: u64, now: Instant) -> bool {
        let mut buffer = [0; 128];
        for _ in 0..TRANSFER_BATCH {
            let Some(transfer) = self.transfers.get_mut(&mark) else {
                return false;
            };
            let length = match transfer.channel.receive(&mut buffer) {
                Ok(Heard::Client(length)) => length,
                Ok(Heard::Stranger(stranger)) => {
                    self.shared.counters.refused(Refusal::Stranger);
                    let refusal = wire::error(ErrorCode::UnknownTransferId, "unknown transfer identifier");
                    transfer.channel.send_stranger(&refusal, stranger);
                    continue;
                }
                Ok(Heard::Nothing) => return false,
                Err(error) => {
                    tracing::debug!(peer = %transfer.peer, %error, "failed to read from a transfer's port");
                    return false;
                }
            };
            let packet = buffer.get(..length).unwrap_or_default();
            transfer.heard_at = now;
            let was_heard = transfer.session.has_progressed();
            let (transmit, acknowledged) = match wire::parse(packet) {
                Ok(Packet::Acknowledge(number)) => (transfer.session.acknowledge(number, now), true),
                Ok(Packet::Error(code)) => {
                    tracing::debug!(peer = %transfer.peer, file = name::file(&transfer.name), code, "client ended the transfer");
                    transfer.session.abort();
                    (None, false)
                }
                // Other packets are invalid here; the transfer continues.
                Ok(Packet::Read(_) | Packet::Write | Packet::Data(..) | Packet::OptionAcknowledge(_)) => {
                    (None, false)
                }
                Err(malformed) => {
                    self.shared.counters.malformed(malformed);
                    (None, false)
                }
            };
            if !was_heard && transfer.session.has_progressed() {
                self.places.heard(mark);
            }
            if acknowledged {
                self.spin.answered(mark, transfer.session.round_trip(), now);
            }
            self.send(mark, transmit, now);
            if acknowledged {
                return true;
            }
        }
        true
    }

    /// Sends what a session said, sets its timer, and clears it away when it is over.
    fn send(&mut self, mark: u64, transmit: Option<Transmit>, now: Instant) {
        let Some(transfer) = self.transfers.get_mut(&mark) else {
            return;
        };
        match transmit {
            Some(Transmit::Offer) => transfer.channel.send(&transfer.offer),
            Some(Transmit::Blocks(first, end)) => {
                self.shared.counters.blocks(end.saturating_sub(first));
                let unsent = transfer.channel.send_blocks(&transfer.session, &transfer.content, first, end);
                if let Some(block) = unsent {
                    transfer.session.unsent(block, now);
                }
            }
            None => {}
        }
        let deadline = transfer.session.deadline();
        if deadline < transfer.rings_at {
            transfer.rings_at = deadline;
            self.timers.push(Reverse((deadline, mark)));
        }
        self.settle(mark);
    }

    /// Clears a transfer away if it is over.
    fn settle(&mut self, mark: u64) {
        let over = self.transfers.get(&mark).and_then(|transfer| transfer.session.outcome());
        if let Some(outcome) = over
            && let Some(transfer) = self.transfers.remove(&mark)
        {
            self.by_peer.remove(&(transfer.peer, transfer.local));
            self.places.remove(mark);
            self.shared.close(&transfer, outcome);
        }
    }

    /// Handles the timers that are due.
    fn ring(&mut self, now: Instant) {
        while let Some(Reverse((at, mark))) =
            self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.timers.pop();
            let Some(transfer) = self.transfers.get_mut(&mark).filter(|transfer| transfer.rings_at == at)
            else {
                continue; // Ended, or rang earlier.
            };
            let transmit = transfer.session.elapse(now);
            if transmit.is_some() {
                self.shared.counters.retransmission();
            }
            // At least a millisecond ahead, whatever the session says: a timer must not ring without end.
            let next = transfer.session.deadline().max(now + Duration::from_millis(1));
            transfer.rings_at = next;
            self.timers.push(Reverse((next, mark)));
            self.send(mark, transmit, now);
        }
    }

    /// Stops accepting requests; running transfers may continue for a while.
    fn begin_drain(&mut self, now: Instant) {
        self.endpoints.clear();
        let drain = if self.shared.hurries() { Duration::ZERO } else { self.shared.settings().drain };
        self.drain_until = Some(now + drain);
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let Some(until) = self.drain_until else {
            return false;
        };
        if now >= until {
            let marks: Vec<u64> = self.transfers.keys().copied().collect();
            for mark in marks {
                if let Some(transfer) = self.transfers.get_mut(&mark) {
                    transfer.channel.send(&wire::error(ErrorCode::Undefined, admit::STOPPING));
                    transfer.session.stop();
                }
                self.settle(mark);
            }
        }
        self.transfers.is_empty()
    }
}

impl Drop for Worker {
    /// Whatever ends a worker, its transfers are accounted for.
    fn drop(&mut self) {
        for (_, transfer) in self.transfers.drain() {
            self.shared.close(&transfer, Outcome::Stopped);
        }
    }
}

fn wait_events(epoll: &Epoll, events: &mut [EpollEvent], timeout: EpollTimeout) -> io::Result<usize> {
    match epoll.wait(events, timeout) {
        Ok(count) => Ok(count),
        Err(Errno::EINTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

impl<'a> From<&'a Transfer> for Request<'a> {
    fn from(transfer: &'a Transfer) -> Self {
        Self { peer: transfer.peer, local: transfer.local, name: &transfer.name }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use bytes::Bytes;

    use super::*;
    use crate::{
        content::{Files, OpenError},
        gate::Limits,
        settings::Settings,
        wire::Malformed,
    };

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    struct Shelf;

    impl Files for Shelf {
        fn open(&self, _request: &Request<'_>) -> Result<Bytes, OpenError> {
            Ok(Bytes::from_static(&[7; 20_000]))
        }

        fn finished(&self, _request: &Request<'_>, _outcome: Outcome, _sent: u64) {}
    }

    fn worker() -> Worker {
        worker_with(Limits::default())
    }

    fn worker_with(limits: Limits) -> Worker {
        let settings = Settings { limits, ..Settings::default() };
        let shared = Arc::new(Shared::new(settings, Arc::new(Shelf)));
        let wake = Arc::new(EventFd::new().expect("eventfd"));
        Worker::new(0, shared, wake, Vec::new()).expect("epoll")
    }

    /// Starts a transfer; returns the client's socket and the transfer's port.
    fn client(worker: &mut Worker, now: Instant) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind((LOCALHOST, 0)).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("time-out");
        let peer = socket.local_addr().expect("bound");
        assert_eq!(worker.arrive(peer, LOCALHOST, b"\0\x01file\0octet\0", now), None);
        (socket.try_clone().expect("socket"), block(&socket, 1))
    }

    /// Receives this block; gives where it came from.
    fn block(socket: &UdpSocket, number: u8) -> SocketAddr {
        let mut buffer = [0; 600];
        let (_, from) = socket.recv_from(&mut buffer).expect("a block");
        assert_eq!(buffer[..4], [0, 3, 0, number]);
        from
    }

    #[test]
    fn rfc7440_window_resumes_in_order_on_the_wire() {
        let (mut worker, now) = (worker(), Instant::now());
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        let socket = UdpSocket::bind((LOCALHOST, 0)).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("time-out");
        let peer = socket.local_addr().expect("bound");
        let request = b"\0\x01file\0octet\0windowsize\08\0";
        assert_eq!(worker.arrive(peer, LOCALHOST, request, now), None);
        let mut buffer = [0; 600];
        let (_, port) = socket.recv_from(&mut buffer).expect("an option acknowledgment");
        let acknowledge = |number| socket.send_to(&[0, 4, 0, number], port).expect("loopback");
        acknowledge(0);
        assert!(worker.hear(0, at(100)));
        for number in 1..=8 {
            block(&socket, number);
        }
        acknowledge(8);
        assert!(worker.hear(0, at(200)));
        for number in 9..=16 {
            block(&socket, number);
        }
        // Two ACKs wait at the port, both sooner than half a round trip.
        acknowledge(10);
        acknowledge(11);
        assert!(worker.hear(0, at(201)));
        assert!(worker.hear(0, at(202)));
        worker.ring(at(260));
        for number in 12..=19 {
            block(&socket, number);
        }
    }

    /// Sends requests of `clients` addresses that never answer, eight each, with the longest timeout of RFC 2349.
    fn forge(worker: &mut Worker, network: u8, clients: u8, now: Instant) {
        for client in 1..=clients {
            for port in 0..8 {
                let peer = SocketAddr::from(([127, network, 0, client], 20_000 + port));
                let request = b"\0\x01file\0octet\0timeout\x00255\0";
                assert_eq!(worker.arrive(peer, LOCALHOST, request, now), None, "{peer}");
            }
        }
    }

    /// Raises the limit of open files to the maximum: one for each transfer.
    fn allow_open_files() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limit");
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("limit");
    }

    #[test]
    fn forged_requests_with_long_timeouts_do_not_take_tftp_away() {
        allow_open_files();
        let limits = Limits { sessions: 1024, sessions_per_client: 8, ..Limits::default() };
        let (mut worker, now) = (worker_with(limits), Instant::now());
        forge(&mut worker, 1, 128, now);
        assert_eq!(worker.shared.active(), 1024);
        let (machine, port) = client(&mut worker, now);
        assert_eq!(worker.shared.active(), 1024, "an unheard transfer made room");
        machine.send_to(&[0, 4, 0, 1], port).expect("loopback");
        assert!(worker.hear(1024, now));
        block(&machine, 2);
        // A further flood ends forged transfers alone.
        forge(&mut worker, 2, 128, now);
        machine.send_to(&[0, 4, 0, 2], port).expect("loopback");
        assert!(worker.hear(1024, now));
        block(&machine, 3);
        worker.ring(now + Duration::from_secs(10));
        assert_eq!(worker.shared.active(), 1, "the one that was heard");
        assert_eq!((worker.places.len(), worker.places.unheard_len()), (1, 0));
    }

    #[test]
    fn requests_forged_in_a_machines_name_do_not_use_up_its_share() {
        let limits = Limits { sessions_per_client: 8, ..Limits::default() };
        let (mut worker, now) = (worker_with(limits), Instant::now());
        forge(&mut worker, 0, 2, now);
        // Address 127.0.0.1 is the machine's, and eight transfers are open in its name.
        let (_machine, _port) = client(&mut worker, now);
        assert_eq!(worker.shared.active(), 16);
        assert!(worker.by_peer.contains_key(&(SocketAddr::from(([127, 0, 0, 2], 20_000)), LOCALHOST)));
        assert!(!worker.by_peer.contains_key(&(SocketAddr::from(([127, 0, 0, 1], 20_000)), LOCALHOST)));
    }

    /// A worker with this many places, and two clients that have answered once: marks 0 and 1.
    fn two_clients(sessions: usize, now: Instant) -> (Worker, [(UdpSocket, SocketAddr); 2]) {
        let mut worker = worker_with(Limits { sessions, ..Limits::default() });
        let clients = [client(&mut worker, now), client(&mut worker, now)];
        for (mark, (socket, port)) in (0..).zip(&clients) {
            acknowledge(&mut worker, mark, (socket, *port), 1, now);
        }
        (worker, clients)
    }

    /// The client of this transfer acknowledges a block and gets the next one.
    fn acknowledge(
        worker: &mut Worker,
        mark: u64,
        (socket, port): (&UdpSocket, SocketAddr),
        number: u8,
        now: Instant,
    ) {
        socket.send_to(&[0, 4, 0, number], port).expect("loopback");
        assert!(worker.hear(mark, now));
        block(socket, number + 1);
    }

    /// One more client, at an address of its own, asks from this port. Returns the error, if any.
    fn ask(worker: &mut Worker, port: u16, now: Instant) -> Answer {
        let peer = SocketAddr::from(([127, 0, 0, 9], port));
        worker.arrive(peer, LOCALHOST, b"\0\x01file\0octet\0", now)
    }

    #[test]
    fn transfers_whose_client_fell_silent_make_room_for_one_that_asks() {
        let now = Instant::now();
        let (mut worker, [(socket, port), silent]) = two_clients(2, now);
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(ask(&mut worker, 20_000, at(2)).is_some(), "each has its time");
        acknowledge(&mut worker, 0, (&socket, port), 2, at(2));
        // Other packets of a client are not progress.
        silent.0.send_to(&[0, 4, 0, 1], silent.1).expect("loopback");
        assert!(worker.hear(1, at(3)));
        assert_eq!(ask(&mut worker, 20_000, at(4)), None);
        assert!(worker.transfers.contains_key(&0) && !worker.transfers.contains_key(&1));
        // The new one has not answered: it is the first to go, and the one in progress stays.
        assert_eq!(ask(&mut worker, 20_001, at(4)), None);
        acknowledge(&mut worker, 0, (&socket, port), 3, at(4));
        assert_eq!((worker.shared.active(), worker.places.len(), worker.places.unheard_len()), (2, 2, 1));
    }

    /// Acknowledges this many blocks, one each second.
    fn trickle(worker: &mut Worker, mark: u64, (socket, port): &(UdpSocket, SocketAddr), from: Instant) {
        for number in 2..=12_u8 {
            let now = from + Duration::from_secs(number.into());
            acknowledge(worker, mark, (socket, *port), number, now);
        }
    }

    #[test]
    fn transfer_that_progresses_too_slowly_makes_room_for_one_that_asks() {
        let now = Instant::now();
        let (mut worker, clients) = two_clients(2, now);
        for (mark, client) in (0..).zip(&clients) {
            trickle(&mut worker, mark, client, now);
        }
        let later = now + Duration::from_secs(12);
        assert_eq!(worker.transfers.len(), 2, "no client waits");
        assert_eq!(ask(&mut worker, 20_000, later), None);
        assert!(!worker.transfers.contains_key(&0) && worker.transfers.contains_key(&1));
        assert_eq!(worker.shared.counters.snapshot(0).outcome(Outcome::TimedOut), 1);
    }

    #[test]
    fn client_at_its_own_limit_loses_its_slow_transfer() {
        let limits = Limits { sessions_per_client: 2, ..Limits::default() };
        let (mut worker, now) = (worker_with(limits), Instant::now());
        let clients = [client(&mut worker, now), client(&mut worker, now)];
        for (mark, client) in (0..).zip(&clients) {
            acknowledge(&mut worker, mark, (&client.0, client.1), 1, now);
        }
        for (mark, client) in (0..).zip(&clients) {
            trickle(&mut worker, mark, client, now);
        }
        let peer = SocketAddr::from(([127, 0, 0, 1], 20_000));
        let later = now + Duration::from_secs(12);
        assert_eq!(worker.arrive(peer, LOCALHOST, b"\0\x01file\0octet\0", later), None);
        assert!(!worker.transfers.contains_key(&0) && worker.transfers.contains_key(&1));
    }

    #[test]
    fn a_transfer_over_a_lossy_network_is_kept_while_no_client_waits() {
        let now = Instant::now();
        let (mut worker, [(socket, port), _]) = two_clients(3, now);
        let later = now + Duration::from_secs(6);
        assert_eq!(ask(&mut worker, 20_000, later), None);
        acknowledge(&mut worker, 0, (&socket, port), 2, later);
        assert_eq!(worker.transfers.len(), 3);
    }

    #[test]
    fn a_client_that_has_its_share_costs_others_nothing() {
        let limits = Limits { sessions: 3, sessions_per_client: 2, ..Limits::default() };
        let (mut worker, now) = (worker_with(limits), Instant::now());
        let (_socket, _port) = client(&mut worker, now);
        for port in 20_000..20_010 {
            assert_eq!(ask(&mut worker, port, now), None);
        }
        assert!(worker.transfers.contains_key(&0), "the first of all, and another client's");
        assert_eq!(worker.transfers.len(), 3);
    }

    #[test]
    fn a_flood_at_one_transfers_port_does_not_hold_up_another() {
        let (mut worker, now) = (worker(), Instant::now());
        let (flooder, flooded) = client(&mut worker, now);
        let (other, port) = client(&mut worker, now);
        let stranger = UdpSocket::bind((LOCALHOST, 0)).expect("loopback");
        for _ in 0..50 {
            flooder.send_to(b"\0", flooded).expect("loopback");
            stranger.send_to(b"\0", flooded).expect("loopback");
        }
        other.send_to(&[0, 4, 0, 1], port).expect("loopback");
        // Transfers are marked in the order of their beginning.
        assert!(worker.hear(0, now), "there is more");
        let counts = worker.shared.counters.snapshot(0);
        let heard = counts.malformed(Malformed::Short) + counts.refusal(Refusal::Stranger);
        assert_eq!(heard, TRANSFER_BATCH as u64);
        assert!(worker.hear(1, now));
        block(&other, 2);
    }
}
