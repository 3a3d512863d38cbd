//! Places for connections: limits in all and for each client. Where there is no place, the connection that has been idle for longest loses
//! its own: a client that connects and asks for nothing, or for nothing more, must not keep out one that asks. A connection is idle from its
//! beginning to its first request, and from the end of an answer to the next request.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::accept::Client;
use super::socket::Completions;
use super::{Counters, Cut, Limits};

/// The places.
#[derive(Debug)]
pub(super) struct Seats {
    counters: Arc<Counters>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    by_client: HashMap<Client, usize>,
    /// The oldest first.
    seated: BTreeMap<u64, Seated>,
}

#[derive(Debug)]
struct Seated {
    client: Client,
    /// Requests whose answers are not sent yet. A client may send the next request before that.
    requests: usize,
    /// Time of the last answer, or of the connection.
    since: Instant,
    end: CancellationToken,
}

/// A place for one connection, released when it is dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    number: u64,
    /// Calls for the end of an answer.
    pub(super) completions: Arc<Completions>,
    /// Canceled when the connection has lost its place.
    pub(super) end: CancellationToken,
}

/// A request that is being answered: its connection keeps its place until the answer is with the kernel.
#[derive(Debug)]
pub(super) struct Busy(Arc<Seat>);

impl Seats {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { counters, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before the lock is released.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, if necessary from a silent connection.
    ///
    /// # Errors
    /// The limit that was met.
    pub(super) fn take(self: &Arc<Self>, client: Client, limits: &Limits) -> Result<Seat, Cut> {
        let (mut state, now) = (self.lock(), Instant::now());
        let of_client = state.by_client.get(&client).copied().unwrap_or_default();
        if of_client >= limits.connections_per_client {
            let silent =
                state.silent(now, limits.silence, |seated| seated.client == client).ok_or(Cut::OfAddress)?;
            self.evict(&mut state, silent);
        } else if state.seated.len() >= limits.connections {
            let silent = state.silent(now, limits.silence, |_| true).ok_or(Cut::Connections)?;
            self.evict(&mut state, silent);
        }
        let (number, end) = (state.next, CancellationToken::new());
        state.next = number.saturating_add(1);
        *state.by_client.entry(client).or_default() += 1;
        state.seated.insert(number, Seated { client, requests: 0, since: now, end: end.clone() });
        self.counters.open.up();
        Ok(Seat { seats: self.clone(), number, completions: Arc::default(), end })
    }

    fn evict(&self, state: &mut State, number: u64) {
        if let Some(seated) = self.remove(state, number) {
            seated.end.cancel();
            self.counters.cut.one(Cut::Silent);
        }
    }

    fn remove(&self, state: &mut State, number: u64) -> Option<Seated> {
        let seated = state.seated.remove(&number)?;
        self.counters.open.down();
        if let Some(count) = state.by_client.get_mut(&seated.client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.by_client.remove(&seated.client);
            }
        }
        Some(seated)
    }

    /// Ends every connection.
    pub(super) fn end(&self) {
        self.lock().seated.values().for_each(|seated| seated.end.cancel());
    }
}

impl State {
    /// Returns the connection of these that has been idle for longest, if that is the time `least`.
    fn silent(&self, now: Instant, least: Duration, of: impl Fn(&Seated) -> bool) -> Option<u64> {
        let is_silent =
            |seated: &Seated| seated.requests == 0 && now.saturating_duration_since(seated.since) >= least;
        let silent = self.seated.iter().filter(|(_, seated)| is_silent(seated) && of(seated));
        silent.min_by_key(|(_, seated)| seated.since).map(|(number, _)| *number)
    }
}

impl Seat {
    /// Notes that a request has come. The connection keeps its place while the returned value lives, and until what was buffered
    /// by then is sent: a client that is slow to take an answer is not idle.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.change(|seated| seated.requests = seated.requests.saturating_add(1));
        Busy(self.clone())
    }

    fn answered(&self) {
        self.change(|seated| {
            seated.requests = seated.requests.saturating_sub(1);
            seated.since = Instant::now();
        });
    }

    fn change(&self, change: impl FnOnce(&mut Seated)) {
        if let Some(seated) = self.seats.lock().seated.get_mut(&self.number) {
            change(seated);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Weak: a connection that ends before its answer is sent releases its place.
        let seat = Arc::downgrade(&self.0);
        self.0.completions.push(Box::new(move || {
            if let Some(seat) = seat.upgrade() {
                seat.answered();
            }
        }));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.remove(&mut self.seats.lock(), self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);

    fn client(n: u32) -> Client {
        Client::Address(Ipv4Addr::from_bits(n).into())
    }

    fn seats() -> (Arc<Seats>, Arc<Counters>, Limits) {
        let counters = Arc::<Counters>::default();
        let limits = Limits { connections: 4, connections_per_client: 2, ..Limits::default() };
        (Arc::new(Seats::new(counters.clone())), counters, limits)
    }

    fn take(seats: &Arc<Seats>, n: u32, limits: &Limits) -> Result<Arc<Seat>, Cut> {
        seats.take(client(n), limits).map(Arc::new)
    }

    /// A request comes and its answer is sent.
    fn ask(seat: &Arc<Seat>) {
        drop(seat.busy());
        seat.completions.run();
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_lose_their_place_and_those_that_asked_do_not() {
        let (seats, counters, limits) = seats();
        let held: Vec<_> = (0..4).map(|n| take(&seats, n / 2, &limits).unwrap()).collect();
        assert_eq!(take(&seats, 9, &limits).unwrap_err(), Cut::Connections, "each has its time");
        tokio::time::advance(SILENCE_TIMEOUT).await;
        let asked = held[0].busy();
        let new = take(&seats, 9, &limits).unwrap();
        let ended: Vec<_> = held.iter().map(|seat| seat.end.is_cancelled()).collect();
        assert_eq!(ended, [false, true, false, false], "the oldest silent one");
        assert_eq!((counters.open.now(), counters.cut.get(Cut::Silent)), (4, 1));
        // At its own limit a client only loses its own.
        let new_asked = new.busy();
        let other = take(&seats, 1, &limits).unwrap();
        assert!(held[2].end.is_cancelled() && !held[3].end.is_cancelled());
        let others_asked = (other.busy(), held[3].busy());
        assert_eq!(take(&seats, 1, &limits).unwrap_err(), Cut::OfAddress);
        assert_eq!(take(&seats, 7, &limits).unwrap_err(), Cut::Connections);
        drop((held, new, other, asked, new_asked, others_asked));
        assert_eq!(counters.open.now(), 0);
        assert!(seats.lock().by_client.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_are_kept_and_idle_lose_their_place_to_one_that_asks() {
        let (seats, counters, limits) = seats();
        let held: Vec<_> = (0..4).map(|n| take(&seats, n / 2, &limits).unwrap()).collect();
        held.iter().for_each(ask);
        tokio::time::advance(SILENCE_TIMEOUT / 2).await;
        held.iter().skip(1).for_each(ask);
        tokio::time::advance(SILENCE_TIMEOUT / 2).await;
        let _new = take(&seats, 9, &limits).unwrap();
        assert!(held[0].end.is_cancelled(), "the one that has been idle for longest");
        assert_eq!(take(&seats, 8, &limits).unwrap_err(), Cut::Connections, "the others asked just now");
        // Two requests one after the other: the first answer does not make the connection idle.
        let (first, second) = (held[1].busy(), held[1].busy());
        drop(first);
        held[1].completions.run();
        tokio::time::advance(SILENCE_TIMEOUT).await;
        assert_eq!(seats.lock().silent(Instant::now(), SILENCE_TIMEOUT, |_| true), Some(held[2].number));
        drop(second);
        tokio::time::advance(SILENCE_TIMEOUT).await;
        assert!(seats.take(client(0), &limits).is_ok(), "client 0 has one connection");
        assert!(held[2].end.is_cancelled() && !held[1].end.is_cancelled(), "its answer is not sent yet");
        assert_eq!(counters.cut.get(Cut::Silent), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_local_client_that_connects_again_and_again_keeps_no_probe_out() {
        let seats = Arc::new(Seats::new(Arc::default()));
        let limits = &Limits::LOCAL;
        let held: Vec<_> =
            (0..limits.connections_per_client).map(|_| take(&seats, 1, limits).unwrap()).collect();
        // No connection is a second old, and the probe has the address of the others.
        let probe = take(&seats, 1, limits).unwrap();
        assert!(held[0].end.is_cancelled() && !held[1].end.is_cancelled(), "the oldest one");
        let asked = probe.busy();
        let more: Vec<_> = (0..100).map(|_| take(&seats, 1, limits).unwrap()).collect();
        assert!(!probe.end.is_cancelled(), "its answer is not sent yet");
        drop((asked, more));
    }
}
