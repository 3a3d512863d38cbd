//! Pure: admission of transfers: limits of sessions (all, each client address) and of requests a second of each client.
//!
//! Bounded in memory by [`MAX_CLIENTS`] and the number of sessions. While the table is full, all addresses that are not in it share one
//! allowance: a flood of forged sources takes a part of their requests, and not all. Knows nothing of packets; the driver asks before it opens
//! a session and says when one ends.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Maximum number of client addresses that have an allowance of their own.
pub(crate) const MAX_CLIENTS: usize = 16_384;

/// Allowance of all other addresses together, as a multiple of one client's.
const SHARED_FACTOR: u32 = 20;

/// The limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of concurrent transfers.
    pub sessions: usize,
    /// Maximum number of concurrent transfers of one client address.
    pub sessions_per_client: usize,
    /// Requests a second of one client address, on average.
    pub requests_per_second: u32,
    /// Maximum number of requests of one client address in a burst.
    pub request_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions: 2048, sessions_per_client: 64, requests_per_second: 50, request_burst: 200 }
    }
}

/// Exceeded limit. A closed set: the label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Limited {
    /// This client sends too many requests.
    #[error("too many requests from this address")]
    Rate,
    /// Too many transfers of this client.
    #[error("too many transfers to this address")]
    ClientSessions,
    /// Too many transfers.
    #[error("too many transfers")]
    Sessions,
    /// Too many client addresses within seconds, and too many requests of all that are not in the table.
    #[error("too many clients")]
    Clients,
}

/// Allowance that a request was taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// The client's own.
    Own,
    /// Shared allowance of all addresses that are not in the full table.
    Shared,
}

#[derive(Debug)]
struct Client {
    sessions: usize,
    bucket: Bucket,
}

/// Requests that are left, as of a time.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn full(limits: &Limits, factor: u32, now: Instant) -> Self {
        Self { tokens: burst(limits, factor), filled: now }
    }

    /// Takes one request. Returns false if none is left.
    fn take(&mut self, limits: &Limits, factor: u32, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        let filled = passed * f64::from(limits.requests_per_second) * f64::from(factor);
        self.tokens = (self.tokens + filled).min(burst(limits, factor));
        self.filled = now;
        let is_left = self.tokens >= 1.0;
        if is_left {
            self.tokens -= 1.0;
        }
        is_left
    }
}

fn burst(limits: &Limits, factor: u32) -> f64 {
    f64::from(limits.request_burst.max(1)) * f64::from(factor)
}

/// The present counts.
#[derive(Debug, Default)]
pub struct Gate {
    sessions: usize,
    clients: HashMap<IpAddr, Client>,
    shared: Option<Bucket>,
    tidied: Option<Instant>,
}

impl Gate {
    /// Takes one request from an allowance: the client's own, or the shared one if the table is full.
    ///
    /// # Errors
    /// The limit that was met. Nothing may be sent then, or a flood of forged requests would be doubled.
    pub fn request(&mut self, address: IpAddr, limits: &Limits, now: Instant) -> Result<Allowance, Limited> {
        if !self.clients.contains_key(&address) && self.clients.len() >= MAX_CLIENTS {
            self.forget_idle(limits, now);
            if self.clients.len() >= MAX_CLIENTS {
                let shared = self.shared.get_or_insert_with(|| Bucket::full(limits, SHARED_FACTOR, now));
                let is_left = shared.take(limits, SHARED_FACTOR, now);
                return if is_left { Ok(Allowance::Shared) } else { Err(Limited::Clients) };
            }
        }
        let client = self.clients.entry(address).or_insert_with(|| Client::new(limits, now));
        if client.bucket.take(limits, 1, now) { Ok(Allowance::Own) } else { Err(Limited::Rate) }
    }

    /// Opens a transfer, after a request was admitted; each `Ok` is followed by one [`Self::close`].
    ///
    /// # Errors
    /// The limit that was met.
    pub fn open(&mut self, address: IpAddr, limits: &Limits, now: Instant) -> Result<(), Limited> {
        let of_client = self.clients.get(&address).map_or(0, |client| client.sessions);
        // First: a client that has its share must not cost others theirs.
        if of_client >= limits.sessions_per_client {
            return Err(Limited::ClientSessions);
        }
        if self.sessions >= limits.sessions {
            return Err(Limited::Sessions);
        }
        // A client of the shared allowance is in the table as long as it has a transfer.
        let client = self.clients.entry(address).or_insert_with(|| Client::new(limits, now));
        client.sessions += 1;
        self.sessions += 1;
        Ok(())
    }

    /// Notes the end of a transfer.
    pub fn close(&mut self, address: IpAddr) {
        self.sessions = self.sessions.saturating_sub(1);
        let Some(client) = self.clients.get_mut(&address) else { return };
        client.sessions = client.sessions.saturating_sub(1);
        if client.sessions == 0 && self.clients.len() > MAX_CLIENTS {
            self.clients.remove(&address);
        }
    }

    /// Transfers at present.
    pub fn sessions(&self) -> usize {
        self.sessions
    }

    /// Forgets clients without transfers whose allowance is full again: to forget them changes nothing.
    /// Looks through all, so at most once a second: a flood of forged addresses must not cost more than their packets.
    fn forget_idle(&mut self, limits: &Limits, now: Instant) {
        if self.tidied.is_some_and(|at| now.saturating_duration_since(at) < Duration::from_secs(1)) {
            return;
        }
        self.tidied = Some(now);
        let refill = f64::from(limits.request_burst) / f64::from(limits.requests_per_second.max(1));
        let refill = Duration::try_from_secs_f64(refill).unwrap_or(Duration::from_secs(60));
        let is_full = |client: &Client| now.saturating_duration_since(client.bucket.filled) >= refill;
        self.clients.retain(|_, client| client.sessions > 0 || !is_full(client));
    }
}

impl Client {
    fn new(limits: &Limits, now: Instant) -> Self {
        Self { sessions: 0, bucket: Bucket::full(limits, 1, now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { sessions: 3, sessions_per_client: 2, requests_per_second: 10, request_burst: 5 };

    fn address(last: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + last))
    }

    #[test]
    fn burst_passes_then_the_rate_holds() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        for _ in 0..5 {
            assert_eq!(gate.request(address(1), &LIMITS, now), Ok(Allowance::Own));
        }
        assert_eq!(gate.request(address(1), &LIMITS, now), Err(Limited::Rate));
        assert_eq!(gate.request(address(2), &LIMITS, now), Ok(Allowance::Own), "others are not held up");
        let later = now + Duration::from_millis(101);
        assert_eq!(gate.request(address(1), &LIMITS, later), Ok(Allowance::Own));
        assert_eq!(gate.request(address(1), &LIMITS, later), Err(Limited::Rate));
    }

    #[test]
    fn sessions_are_bounded_for_each_and_for_all() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        for last in 1..=3 {
            gate.request(address(last), &LIMITS, now).expect("first request");
        }
        assert_eq!(gate.open(address(1), &LIMITS, now), Ok(()));
        assert_eq!(gate.open(address(1), &LIMITS, now), Ok(()));
        assert_eq!(gate.open(address(1), &LIMITS, now), Err(Limited::ClientSessions));
        assert_eq!(gate.open(address(2), &LIMITS, now), Ok(()));
        assert_eq!(gate.open(address(3), &LIMITS, now), Err(Limited::Sessions));
        assert_eq!(gate.open(address(1), &LIMITS, now), Err(Limited::ClientSessions), "it has its share");
        gate.close(address(1));
        assert_eq!(gate.open(address(3), &LIMITS, now), Ok(()));
        assert_eq!(gate.sessions(), 3);
    }

    /// A gate whose table is full. Address 0 has a transfer.
    fn full(now: Instant) -> Gate {
        let mut gate = Gate::default();
        gate.request(address(0), &LIMITS, now).expect("first request");
        gate.open(address(0), &LIMITS, now).expect("open");
        for last in 1..16_384 {
            assert_eq!(gate.request(address(last), &LIMITS, now), Ok(Allowance::Own));
        }
        gate
    }

    #[test]
    fn memory_is_bounded_under_forged_addresses() {
        let now = Instant::now();
        let mut gate = full(now);
        for last in 20_000..40_000 {
            let _ = gate.request(address(last), &LIMITS, now);
            let _ = gate.open(address(last), &LIMITS, now);
        }
        // The transfers of addresses that are not in the table.
        assert_eq!((gate.clients.len(), gate.sessions()), (MAX_CLIENTS + 2, 3));
        gate.close(address(20_000));
        gate.close(address(20_001));
        assert_eq!((gate.clients.len(), gate.sessions()), (MAX_CLIENTS, 1));
        let later = now + Duration::from_secs(1);
        assert_eq!(gate.request(address(50_000), &LIMITS, later), Ok(Allowance::Own));
        assert_eq!(gate.clients.len(), 2, "the one with a transfer stays");
    }

    #[test]
    fn unknown_addresses_share_an_allowance_while_the_table_is_full() {
        let now = Instant::now();
        let mut gate = full(now);
        let admitted = |gate: &mut Gate, from: u32, now| {
            (from..from + 1000).filter(|last| gate.request(address(*last), &LIMITS, now).is_ok()).count()
        };
        assert_eq!(admitted(&mut gate, 20_000, now), 100, "twenty times the burst of one");
        assert_eq!(gate.request(address(50_000), &LIMITS, now), Err(Limited::Clients));
        // Clients in the table keep their allowances, in use before the table could be purged.
        let soon = now + Duration::from_millis(100);
        assert_eq!(gate.request(address(5), &LIMITS, soon), Ok(Allowance::Own));
        assert_eq!(admitted(&mut gate, 30_000, soon), 20, "twenty times the rate of one");
        let again = soon + Duration::from_millis(10);
        assert_eq!(gate.request(address(50_000), &LIMITS, again), Ok(Allowance::Shared));
        assert_eq!(gate.open(address(50_000), &LIMITS, again), Ok(()), "a real client gets its transfer");
        assert_eq!(gate.request(address(50_000), &LIMITS, again), Ok(Allowance::Own), "and its allowance");
    }
}
