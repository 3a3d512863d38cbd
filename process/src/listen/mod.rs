//! Accept loop of every HTTP listener, over TCP, TLS and Unix sockets: limits connections in total and for each client, counts them, and
//! closes the connection of a client that reads nothing. While others wait, one that reads too slowly loses its place (`pace`).
//!
//! Owns the socket; what a connection is for is its caller's. The number for one address only protects the others: an address
//! is not an identity. Called by pxed's listeners and by `health`.

pub mod accept;
pub mod pace;
mod peer_groups;
pub mod progress;
mod seat;
pub mod socket;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use self::accept::{Accept, Peer as _};
use self::pace::MinRate;
pub use self::seat::Seat;
use self::seat::{Busy, Seats};
use self::socket::{Completions, Guarded};
use crate::counter::{By, Level, labels, one};
use crate::liveness::Pulse;
use crate::log_pace::LogPace;

/// hyper's own buffer for one connection, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Delay after a failed accept: the lack of file descriptors lasts for some time.
const ERROR_DELAY: Duration = Duration::from_millis(20);

/// Limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of concurrent connections.
    pub connections: usize,
    /// Maximum number of concurrent connections of one address, which several machines may share behind NAT, or of one local user.
    pub connections_per_client: usize,
    /// Time limit for a request's head, and for the next request on a kept connection.
    pub head: Duration,
    /// Time without a request after which a connection may lose its place to another one.
    pub silence: Duration,
    /// Rate below which a client that takes an answer may lose its place to another one.
    pub rate: MinRate,
    /// Time after which a client that reads nothing is cut off.
    pub stall: Duration,
    /// True if a connection may send another request after an answer.
    pub keep_alive: bool,
    /// Time for which connections stay open after the stop. `None`: until their answers are sent.
    pub linger: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_client: 64,
            head: Duration::from_secs(20),
            silence: Duration::from_secs(1),
            rate: MinRate::DEFAULT,
            stall: Duration::from_secs(30),
            keep_alive: true,
            linger: None,
        }
    }
}

impl Limits {
    /// Limits of a listener for a few local programs and users, each of which sends one request at a time.
    pub const LOCAL: Self = Self {
        connections: 64,
        connections_per_client: 16,
        // Immediately: local programs send their request with the connection, and all of them may have one address.
        silence: Duration::ZERO,
        // Their answers fit into the socket's buffer, all but those of a few large ones.
        rate: MinRate::IMMEDIATE,
        head: Duration::from_secs(10),
        stall: Duration::from_secs(10),
        // A connection that is kept would keep its place.
        keep_alive: false,
        linger: Some(Duration::from_secs(1)),
    };
}

labels! {
    /// Reason that a connection was refused or cut off.
    pub enum Cut {
        /// Too many connections in total.
        Connections => "too_many_connections",
        /// Too many connections of one address, or of one local user.
        OfAddress => "too_many_of_address",
        /// The client read nothing for too long.
        Stalled => "stalled",
        /// The connection had no request for a while, and another client needed its place.
        Silent => "idle",
        /// The client took an answer too slowly, and another client needed its place.
        Slow => "slow",
        /// The TLS handshake failed.
        NoTls => "tls_failed",
    }
}

/// Counters of a listener.
#[derive(Debug, Default)]
pub struct Counters {
    /// Accepted connections, including those that were refused immediately.
    pub accepted: AtomicU64,
    /// Current number of connections.
    pub open: Level,
    /// Connections refused or cut off.
    pub cut: By<Cut>,
    /// Bytes handed to the kernel: heads and TLS included.
    pub sent_bytes: AtomicU64,
}

impl Counters {
    fn sent(&self, count: usize) {
        self.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Settings of a listener.
pub struct Listening {
    /// Name for the log.
    pub name: &'static str,
    /// Limits of its connections.
    pub limits: Limits,
    /// Counters.
    pub counters: Arc<Counters>,
    /// Liveness pulse.
    pub pulse: Pulse,
}

/// A connection with its place.
pub struct Accepted<A: Accept> {
    /// The stream.
    pub stream: Guarded<A::Stream>,
    /// Callbacks for sent bodies.
    pub completions: Arc<Completions>,
    /// The other end.
    pub peer: A::Peer,
    /// The place.
    pub seat: Arc<Seat>,
}

/// Accepts connections until `shutdown` and serves each of them. Returns when all have ended.
pub async fn listen<A, F, S>(listener: A, how: Listening, shutdown: CancellationToken, serve: F)
where
    A: Accept,
    F: Fn(Accepted<A>) -> S,
    S: Future<Output = ()> + Send + 'static,
{
    let (name, counters) = (how.name, &how.counters);
    let (seats, log) = (Arc::new(Seats::new(counters.clone())), LogPace::default());
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            never = how.pulse.beating() => match never {},
            accepted = listener.accept_one() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too few file descriptors, or a client that has disconnected already: neither ends the listener.
                if let Some(omitted) = log.admit("AcceptFailed", None, Instant::now()) {
                    tracing::warn!(listener = name, %error, omitted, "failed to accept a connection, retrying");
                }
                tokio::time::sleep(ERROR_DELAY).await;
                continue;
            }
        };
        one(&counters.accepted);
        let seat = match seats.admit(peer.client(), &how.limits).await {
            Ok(seat) => Arc::new(seat),
            Err(cut) => {
                counters.cut.one(cut);
                tracing::debug!(listener = name, ?peer, reason = ?cut, "connection refused");
                continue;
            }
        };
        let completions = seat.completions.clone();
        let place = (completions.clone(), seat.progress.clone());
        let stream = Guarded::new(stream, place, how.limits.stall, counters.clone());
        let connection = serve(Accepted { stream, completions, peer, seat: seat.clone() });
        connections.spawn(async move {
            tokio::select! {
                () = seat.end.cancelled() => {}
                () = connection => {}
            }
        });
    }
    drop(listener);
    connections.close();
    if let Some(linger) = how.limits.linger
        && tokio::time::timeout(linger, connections.wait()).await.is_err()
    {
        seats.end();
    }
    connections.wait().await;
}

/// Serves a router until `shutdown`. Its handlers may extract `ConnectInfo` of the other end.
pub async fn serve_router<A: Accept>(
    listener: A,
    how: Listening,
    router: Router,
    shutdown: CancellationToken,
) {
    let limits = how.limits;
    listen(listener, how, shutdown.clone(), |Accepted { stream, peer, seat, .. }| {
        let (router, client) = (router.clone(), peer.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(client.clone()));
            router.clone().oneshot(request.map(axum::body::Body::new))
        });
        converse(stream, service, (limits, seat), peer, shutdown.clone())
    })
    .await;
}

/// An answer's body, which keeps its connection's place while it is sent.
struct Keeping<B> {
    body: Pin<Box<B>>,
    _busy: Busy,
}

impl<B: Body> Body for Keeping<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.body.as_mut().poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves HTTP until the client disconnects, or after `shutdown` until the current answer is sent.
pub async fn converse<I, S, B>(
    stream: I,
    service: S,
    (limits, seat): (Limits, Arc<Seat>),
    peer: impl Debug,
    shutdown: CancellationToken,
) where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (busy, answer) = (seat.busy(), service.call(request));
        async move {
            answer.await.map(|response| response.map(|body| Keeping { body: Box::pin(body), _busy: busy }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(BUFFER_BYTES)
        .keep_alive(limits.keep_alive)
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
        tracing::debug!(?peer, %error, "connection ended");
    }
}
