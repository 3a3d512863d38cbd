//! Pure: who may open one more transfer: limits of sessions (all, each client address) and of requests a second of each client.
//!
//! Bounded in memory by [`MAX_CLIENTS`]. Knows nothing of packets; the driver asks before it opens a session and says when one ends.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Most client addresses remembered.
pub const MAX_CLIENTS: usize = 16_384;

/// The limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Transfers at once.
    pub sessions: usize,
    /// Transfers at once of one client address.
    pub sessions_per_client: usize,
    /// Requests a second of one client address, on average.
    pub requests_per_second: u32,
    /// Requests of one client address at once, after a pause.
    pub request_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions: 2048, sessions_per_client: 64, requests_per_second: 50, request_burst: 200 }
    }
}

/// Which limit was met. A closed set: the label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Limited {
    /// Requests of this client come too fast.
    #[error("too many requests from this address")]
    Rate,
    /// Too many transfers of this client.
    #[error("too many transfers to this address")]
    ClientSessions,
    /// Too many transfers.
    #[error("too many transfers")]
    Sessions,
    /// Too many client addresses within seconds.
    #[error("too many clients")]
    Clients,
}

#[derive(Debug)]
struct Client {
    sessions: usize,
    tokens: f64,
    filled: Instant,
}

/// The present counts.
#[derive(Debug, Default)]
pub struct Gate {
    sessions: usize,
    clients: HashMap<IpAddr, Client>,
    tidied: Option<Instant>,
}

impl Gate {
    /// A request came. `Ok` takes one from the client's allowance.
    ///
    /// # Errors
    /// The limit met; nothing is to be sent, or a flood of forged requests would be doubled.
    pub fn request(&mut self, address: IpAddr, limits: &Limits, now: Instant) -> Result<(), Limited> {
        let burst = f64::from(limits.request_burst.max(1));
        if !self.clients.contains_key(&address) && self.clients.len() >= MAX_CLIENTS {
            self.forget_idle(limits, now);
            if self.clients.len() >= MAX_CLIENTS {
                return Err(Limited::Clients);
            }
        }
        let fresh = Client { sessions: 0, tokens: burst, filled: now };
        let client = self.clients.entry(address).or_insert(fresh);
        let passed = now.saturating_duration_since(client.filled).as_secs_f64();
        client.tokens = (client.tokens + passed * f64::from(limits.requests_per_second)).min(burst);
        client.filled = now;
        if client.tokens < 1.0 {
            return Err(Limited::Rate);
        }
        client.tokens -= 1.0;
        Ok(())
    }

    /// A transfer is to open; each `Ok` is followed by one [`Self::close`].
    ///
    /// # Errors
    /// The limit met.
    pub fn open(&mut self, address: IpAddr, limits: &Limits) -> Result<(), Limited> {
        let client = self.clients.get_mut(&address).ok_or(Limited::Clients)?;
        // First: a client that has its share must not cost others theirs.
        if client.sessions >= limits.sessions_per_client {
            return Err(Limited::ClientSessions);
        }
        if self.sessions >= limits.sessions {
            return Err(Limited::Sessions);
        }
        client.sessions += 1;
        self.sessions += 1;
        Ok(())
    }

    /// A transfer ended.
    pub fn close(&mut self, address: IpAddr) {
        self.sessions = self.sessions.saturating_sub(1);
        if let Some(client) = self.clients.get_mut(&address) {
            client.sessions = client.sessions.saturating_sub(1);
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
        self.clients
            .retain(|_, client| client.sessions > 0 || now.saturating_duration_since(client.filled) < refill);
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
            assert_eq!(gate.request(address(1), &LIMITS, now), Ok(()));
        }
        assert_eq!(gate.request(address(1), &LIMITS, now), Err(Limited::Rate));
        assert_eq!(gate.request(address(2), &LIMITS, now), Ok(()), "others are not held up");
        let later = now + Duration::from_millis(101);
        assert_eq!(gate.request(address(1), &LIMITS, later), Ok(()));
        assert_eq!(gate.request(address(1), &LIMITS, later), Err(Limited::Rate));
    }

    #[test]
    fn sessions_are_bounded_for_each_and_for_all() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        for last in 1..=3 {
            gate.request(address(last), &LIMITS, now).expect("first request");
        }
        assert_eq!(gate.open(address(1), &LIMITS), Ok(()));
        assert_eq!(gate.open(address(1), &LIMITS), Ok(()));
        assert_eq!(gate.open(address(1), &LIMITS), Err(Limited::ClientSessions));
        assert_eq!(gate.open(address(2), &LIMITS), Ok(()));
        assert_eq!(gate.open(address(3), &LIMITS), Err(Limited::Sessions));
        assert_eq!(gate.open(address(1), &LIMITS), Err(Limited::ClientSessions), "it has its share");
        gate.close(address(1));
        assert_eq!(gate.open(address(3), &LIMITS), Ok(()));
        assert_eq!(gate.sessions(), 3);
    }

    #[test]
    fn memory_is_bounded_under_forged_addresses() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        gate.request(address(0), &LIMITS, now).expect("first request");
        gate.open(address(0), &LIMITS).expect("open");
        for last in 1..40_000 {
            let _ = gate.request(address(last), &LIMITS, now);
        }
        assert_eq!(gate.clients.len(), MAX_CLIENTS);
        assert_eq!(gate.request(address(50_000), &LIMITS, now), Err(Limited::Clients));
        let later = now + Duration::from_secs(1);
        assert_eq!(gate.request(address(50_000), &LIMITS, later), Ok(()));
        assert_eq!(gate.clients.len(), 2, "the one with a transfer stays");
    }
}
