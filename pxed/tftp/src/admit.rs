//! From a request to a transfer, or to the reason why not: limits, name, content, options. Called by the worker for each request.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    channel::{Channel, block_size_of_path},
    content::{Files, OpenError, Outcome, Request},
    counters::{Counters, Refusal},
    gate::{Allowance, Gate, Limited, MAX_CLIENTS},
    name,
    negotiate::{Grant, negotiate},
    netascii,
    session::{Session, Transmit},
    settings::Settings,
    wire::{self, ErrorCode, Malformed, Mode, Packet, ReadRequest},
    worker::Transfer,
};

/// Error text for clients whose transfer is stopped.
pub(crate) const STOPPING: &str = "server is stopping";

/// Interval between two warnings that the table of client addresses is full.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// The error to answer, if anything is answered.
pub(crate) type Answer = Option<(ErrorCode, &'static str)>;

/// State that the workers share. No lock of it is held over a system call.
pub(crate) struct Shared {
    files: Arc<dyn Files>,
    settings: RwLock<Arc<Settings>>,
    gate: Mutex<Gate>,
    hurry: AtomicBool,
    /// Time of the latest warning that the table of client addresses is full.
    warned: Mutex<Option<Instant>>,
    /// Time at which each worker last came round, by its number.
    rounds: Mutex<Vec<Instant>>,
    pub(crate) counters: Counters,
    pub(crate) spin: Duration,
}

impl Shared {
    pub(crate) fn new(settings: Settings, files: Arc<dyn Files>) -> Self {
        Self {
            files,
            spin: settings.spin,
            settings: RwLock::new(Arc::new(settings)),
            gate: Mutex::default(),
            hurry: AtomicBool::new(false),
            warned: Mutex::default(),
            rounds: Mutex::default(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace_settings(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn active(&self) -> usize {
        self.gate().sessions()
    }

    /// Records that a worker is alive; first before it starts.
    pub(crate) fn came_round(&self, worker: usize, now: Instant) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        match rounds.get_mut(worker) {
            Some(at) => *at = now,
            None => rounds.push(now),
        }
    }

    /// For how long each worker has not come round.
    pub(crate) fn silences(&self, now: Instant) -> Vec<Duration> {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.iter().map(|at| now.saturating_duration_since(*at)).collect()
    }

    /// Cuts the drain short.
    pub(crate) fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    pub(crate) fn hurries(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    /// Decides if anything at all is done for a packet from this address. Beyond the rate there is no answer either: the source may be
    /// forged, and its owner would get our errors.
    pub(crate) fn admit_packet(&self, address: IpAddr, now: Instant) -> Result<(), Answer> {
        let settings = self.settings();
        let admitted = self.gate().request(address, &settings.limits, now);
        match admitted {
            Ok(Allowance::Own) => return Ok(()),
            Ok(Allowance::Shared) => self.counters.shared(),
            Err(limited) => self.counters.refused(Refusal::Limit(limited)),
        }
        if matches!(admitted, Ok(Allowance::Shared) | Err(Limited::Clients)) {
            self.warn_of_flood(now);
        }
        if admitted.is_ok() { Ok(()) } else { Err(None) }
    }

    /// Logs once a minute that the table of client addresses is full.
    fn warn_of_flood(&self, now: Instant) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| now.saturating_duration_since(at) >= WARN_AGAIN) {
            *warned = Some(now);
            let addresses = MAX_CLIENTS;
            tracing::warn!(addresses, "too many TFTP client addresses, new ones share one allowance");
        }
    }

    pub(crate) fn refuse_malformed(&self, malformed: Malformed) -> Answer {
        self.counters.malformed(malformed);
        match malformed {
            Malformed::Short => None,
            Malformed::Operation => Some((ErrorCode::IllegalOperation, "unknown operation")),
            Malformed::Mode => Some((ErrorCode::IllegalOperation, "mode is neither octet nor netascii")),
            Malformed::Long => Some((ErrorCode::IllegalOperation, "request too long")),
            Malformed::Unterminated | Malformed::OptionValue => {
                Some((ErrorCode::IllegalOperation, "malformed request"))
            }
        }
    }

    /// Anything but a read request on the request port.
    pub(crate) fn refuse_stray(&self, packet: &Packet<'_>) -> Answer {
        match packet {
            Packet::Write => {
                self.counters.refused(Refusal::Write);
                Some((ErrorCode::AccessViolation, "this server is read-only"))
            }
            Packet::Data(..) | Packet::Acknowledge(_) | Packet::OptionAcknowledge(_) => {
                self.counters.refused(Refusal::Stray);
                Some((ErrorCode::UnknownTransferId, "unknown transfer identifier"))
            }
            Packet::Read(_) | Packet::Error(_) => None,
        }
    }

    /// Opens a transfer and returns its first packet. `make_room` ends a transfer of a silent client if a limit is met; it returns false if
    /// there is none.
    pub(crate) fn open(
        &self,
        (peer, local): (SocketAddr, IpAddr),
        asked: &ReadRequest<'_>,
        packet: &[u8],
        now: Instant,
        mut make_room: impl FnMut(Limited) -> bool,
    ) -> Result<(Transfer, Transmit), Answer> {
        let settings = self.settings();
        let (name, content) = self.content(peer, local, asked)?;
        let request = Request { peer, local, name };
        // Not with the lock held: a transfer that ends takes it.
        let place = || self.gate().open(peer.ip(), &settings.limits, now);
        let mut placed = place();
        while let Err(limited) = placed
            && make_room(limited)
        {
            placed = place();
        }
        if let Err(limited) = placed {
            self.files.refused(&request, &limited);
            self.files.finished(&request, Outcome::Stopped, 0);
            return Err(self.refuse(Refusal::Limit(limited)));
        }
        let mut channel = Channel::open(peer, local).map_err(|error| {
            self.files.refused(&request, &error);
            self.gate().close(peer.ip());
            self.files.finished(&request, Outcome::Stopped, 0);
            self.refuse(Refusal::Busy)
        })?;
        let block_size = settings.max_block_size.unwrap_or_else(|| block_size_of_path(peer, local));
        let grant = Grant { block_size, window: settings.max_window };
        let length = content.len() as u64;
        let agreed = negotiate(&asked.options, length, grant);
        channel.segment(agreed.block_size, agreed.window);
        let (session, first) = Session::start(&agreed, length, settings.retry, now);
        self.counters.opened();
        let (block_size, window) = (agreed.block_size, agreed.window);
        tracing::debug!(%peer, file = name::file(name), length, block_size, window, "transfer opened");
        let transfer = Transfer {
            rings_at: session.deadline(),
            session,
            channel,
            content,
            name: name.to_owned(),
            peer,
            local,
            asked: packet.into(),
            offer: wire::option_acknowledge(&agreed.acknowledged),
            heard_at: now,
        };
        Ok((transfer, first))
    }

    /// The checked name and its content.
    fn content<'a>(
        &self,
        peer: SocketAddr,
        local: IpAddr,
        asked: &ReadRequest<'a>,
    ) -> Result<(&'a str, Bytes), Answer> {
        let name = name::check(asked.name).map_err(|reason| {
            tracing::debug!(%peer, name = %asked.name.escape_ascii(), %reason, "name refused");
            self.refuse(Refusal::Name)
        })?;
        let content = self.files.open(&Request { peer, local, name }).map_err(|error| {
            tracing::debug!(%peer, file = name::file(name), ?error, "file refused");
            self.refuse(match error {
                OpenError::NotFound => Refusal::NotFound,
                OpenError::AccessViolation => Refusal::AccessViolation,
                OpenError::Busy => Refusal::Busy,
            })
        })?;
        let content = match asked.mode {
            Mode::Octet => content,
            Mode::Netascii => netascii::translate(&content).ok_or_else(|| {
                self.files.finished(&Request { peer, local, name }, Outcome::Stopped, 0);
                self.refuse(Refusal::Netascii)
            })?,
        };
        Ok((name, content))
    }

    fn refuse(&self, refusal: Refusal) -> Answer {
        self.counters.refused(refusal);
        match refusal {
            Refusal::Name => Some((ErrorCode::AccessViolation, "name not allowed")),
            Refusal::NotFound => Some((ErrorCode::NotFound, "file not found")),
            Refusal::AccessViolation => Some((ErrorCode::AccessViolation, "access violation")),
            Refusal::Busy | Refusal::Limit(Limited::Sessions | Limited::ClientSessions) => {
                Some((ErrorCode::Undefined, "server is busy, try again"))
            }
            Refusal::Netascii => Some((ErrorCode::Undefined, "too long for netascii, use octet")),
            Refusal::Write => Some((ErrorCode::AccessViolation, "this server is read-only")),
            Refusal::Stray | Refusal::Stranger => {
                Some((ErrorCode::UnknownTransferId, "unknown transfer identifier"))
            }
            Refusal::Limit(Limited::Rate | Limited::Clients) => None,
        }
    }

    /// Accounts for a transfer that ended.
    pub(crate) fn close(&self, transfer: &Transfer, outcome: Outcome) {
        let bytes = transfer.session.acknowledged_bytes();
        self.gate().close(transfer.peer.ip());
        self.counters.ended(outcome, bytes);
        tracing::debug!(peer = %transfer.peer, file = name::file(&transfer.name), outcome = outcome.label(), bytes, "transfer ended");
        self.files.finished(&Request::from(transfer), outcome, bytes);
    }
}
