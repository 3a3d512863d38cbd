//! The plain listener: accepts, limits connections in all and for each address, hands requests to `route`.
//!
//! Owns the socket. Bounds: connections, time for a request's head and between requests, stalled writes. The number for
//! one address only protects the others: an address identifies nobody.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::route::{self, Peer, Routes};
use super::socket::{Completions, Guarded};

/// Limits of the listener.
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

/// Counts connections; each is given back when its [`Seat`] is dropped.
#[derive(Debug, Default)]
pub struct Seats {
    taken: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

/// A place for one connection.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    address: IpAddr,
}

impl Seats {
    /// A place, if there is one.
    pub fn take(self: &Arc<Self>, address: IpAddr, limits: &Limits) -> Option<Seat> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, by_address) = &mut *taken;
        let of_address = by_address.get(&address).copied().unwrap_or_default();
        if *all >= limits.connections || of_address >= limits.connections_per_address {
            return None;
        }
        *all += 1;
        by_address.insert(address, of_address + 1);
        Some(Seat { seats: self.clone(), address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, by_address) = &mut *taken;
        *all = all.saturating_sub(1);
        if let Some(count) = by_address.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// Serves until `shutdown`; then connections end after the answer that they are sending, and this returns when all have.
pub async fn serve(listener: TcpListener, routes: Arc<Routes>, limits: Limits, shutdown: CancellationToken) {
    let seats = Arc::new(Seats::default());
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or a client that was gone at once: neither ends the listener.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Some(seat) = seats.take(peer.ip(), &limits) else {
            tracing::debug!(%peer, "connection refused: too many");
            continue;
        };
        connections.spawn(connection(stream, peer, routes.clone(), limits, seat, shutdown.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Arc<Routes>,
    limits: Limits,
    seat: Seat,
    shutdown: CancellationToken,
) {
    // Best effort: without it, an answer may wait for the one before to be acknowledged.
    let _ = stream.set_nodelay(true);
    let completions = Arc::new(Completions::default());
    let peer = Peer { address: peer.ip().to_canonical(), completions: completions.clone() };
    let service = service_fn(move |request| {
        let (routes, peer) = (routes.clone(), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(route::answer(&routes, &peer, request).await) }
    });
    let io = TokioIo::new(Guarded::new(stream, completions, limits.stall));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(64 << 10)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended");
    }
    drop(seat);
}
