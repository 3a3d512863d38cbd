//! The one accept loop, of the plain listener and of that for agents: limits connections in all and for each address, counts
//! them, and cuts off who takes nothing.
//!
//! Owns the socket; what a connection is for is its caller's. The number for one address only protects the others: an address
//! identifies nobody.

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bedplate_process::liveness::Pulse;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::socket::{Completions, Guarded};
use crate::counter::{By, Level, labels, one};

/// hyper's own buffer for one connection, in bytes.
const BUFFER: usize = 64 << 10;

/// After an accept that failed: out of file descriptors does not pass at once.
const AFTER_ERROR: Duration = Duration::from_millis(20);

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Connections at once of one address. Several machines may share one behind a relay's NAT.
    pub connections_per_address: usize,
    /// For a request's head, and for the next request on a connection that is kept.
    pub head: Duration,
    /// A client that takes nothing for so long is cut off.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_address: 64,
            head: Duration::from_secs(20),
            stall: Duration::from_secs(30),
        }
    }
}

labels! {
    /// Why a connection was refused or cut off.
    pub enum Cut {
        /// Too many connections in all.
        Connections => "too-many-connections",
        /// Too many connections of one address.
        OfAddress => "too-many-of-address",
        /// Its client took nothing for too long.
        Stalled => "stalled",
        /// No TLS came about.
        NoTls => "no-tls",
    }
}

/// What a listener counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted, those refused at once included.
    pub accepted: AtomicU64,
    /// Connections now.
    pub open: Level,
    /// Connections refused or cut off.
    pub cut: By<Cut>,
    /// Bytes handed to the kernel: heads and TLS included.
    pub sent_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn sent(&self, count: usize) {
        self.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// How a listener is run.
pub struct Listening {
    /// Its name for the log.
    pub name: &'static str,
    /// Its limits.
    pub limits: Limits,
    /// What it counts.
    pub counters: Arc<Counters>,
    /// Its signs of life.
    pub pulse: Pulse,
}

/// A connection with its place.
pub struct Accepted {
    /// The stream.
    pub stream: Guarded<TcpStream>,
    /// Who is told when a body was sent.
    pub completions: Arc<Completions>,
    /// Our address.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
}

/// Counts connections; each is given back when its [`Seat`] is dropped.
struct Seats {
    counters: Arc<Counters>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// A place for one connection.
struct Seat {
    seats: Arc<Seats>,
    address: IpAddr,
}

impl Seats {
    /// A place, if there is one.
    fn take(self: &Arc<Self>, address: IpAddr, limits: &Limits) -> Result<Seat, Cut> {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = by_address.get(&address).copied().unwrap_or_default();
        let all = usize::try_from(self.counters.open.now()).unwrap_or(usize::MAX);
        if all >= limits.connections {
            return Err(Cut::Connections);
        }
        if of_address >= limits.connections_per_address {
            return Err(Cut::OfAddress);
        }
        by_address.insert(address, of_address + 1);
        self.counters.open.up();
        Ok(Seat { seats: self.clone(), address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut by_address = self.seats.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        self.seats.counters.open.down();
        if let Some(count) = by_address.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// Accepts until `shutdown` and has each connection served; returns when all have ended.
pub async fn listen<F, S>(listener: TcpListener, how: Listening, shutdown: CancellationToken, serve: F)
where
    F: Fn(Accepted) -> S,
    S: Future<Output = ()> + Send + 'static,
{
    let (name, counters) = (how.name, &how.counters);
    let seats = Arc::new(Seats { counters: counters.clone(), by_address: Mutex::default() });
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            never = how.pulse.beating() => match never {},
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or a client that was gone at once: neither ends the listener.
                tracing::warn!(listener = name, %error, "a connection could not be accepted");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        one(&counters.accepted);
        let seat = match seats.take(peer.ip(), &how.limits) {
            Ok(seat) => seat,
            Err(cut) => {
                counters.cut.one(cut);
                tracing::debug!(listener = name, %peer, reason = ?cut, "connection refused");
                continue;
            }
        };
        let Ok(local) = stream.local_addr() else { continue };
        // Best effort: without it, an answer may wait for the one before to be acknowledged.
        let _ = stream.set_nodelay(true);
        let completions = Arc::new(Completions::default());
        let stream = Guarded::new(stream, completions.clone(), how.limits.stall, counters.clone());
        let connection = serve(Accepted { stream, completions, local, peer });
        connections.spawn(async move {
            connection.await;
            drop(seat);
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Speaks HTTP until the client goes, or after `shutdown` until the answer that is being sent is out.
pub async fn converse<I, S>(
    stream: I,
    service: S,
    limits: Limits,
    peer: SocketAddr,
    shutdown: CancellationToken,
) where
    I: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}
