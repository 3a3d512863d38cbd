//! Places for connections: limits in all and for each client. Where there is no place, the connection that has been of no use for longest loses
//! its own: a client that connects and asks for nothing, or for nothing more, or that takes an answer too slowly, must not keep out one that
//! asks. A connection is idle from its beginning to its first request, and from the end of an answer to the next request.
//!
//! A connection whose request may have arrived already is never evicted before it was read once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::accept::Client;
use super::pace::Mark;
use super::progress::Progress;
use super::socket::Completions;
use super::{Counters, Cut, Limits};
use crate::lock::Lock;

/// Interval between two attempts to find a place while connections wait to be read for the first time.
const READ_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum number of these attempts. The tasks of the connections need at most as long to run once.
const READ_ATTEMPTS: u32 = 20;

/// Age from which a connection counts as read.
const MAX_UNREAD: Duration = Duration::from_secs(1);

/// The places.
#[derive(Debug)]
pub(super) struct Seats {
    counters: Arc<Counters>,
    state: Lock<State>,
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
    progress: Arc<Progress>,
    /// Measurement of the client's rate.
    mark: Mark,
    end: CancellationToken,
}

/// A place for one connection, released when it is dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    number: u64,
    /// Calls for the end of an answer.
    pub(super) completions: Arc<Completions>,
    /// State of its stream.
    pub(super) progress: Arc<Progress>,
    /// Canceled when the connection has lost its place.
    pub(super) end: CancellationToken,
}

/// The limit that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) cut: Cut,
    /// True if a connection that was not read yet may make room.
    pub(super) has_unread: bool,
}

/// A request that is being answered: its connection keeps its place until the answer is with the kernel.
#[derive(Debug)]
pub(super) struct Busy(Arc<Seat>);

impl Seats {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { counters, state: Lock::default() }
    }

    /// Takes a place, if necessary from another connection. Waits for connections that were not read yet if only these could make room.
    ///
    /// # Errors
    /// The limit that was met.
    pub(super) async fn admit(self: &Arc<Self>, client: Client, limits: &Limits) -> Result<Seat, Cut> {
        for _ in 0..READ_ATTEMPTS {
            match self.take(client, limits) {
                Err(Full { has_unread: true, .. }) => tokio::time::sleep(READ_INTERVAL).await,
                Err(Full { cut, .. }) => return Err(cut),
                Ok(seat) => return Ok(seat),
            }
        }
        self.take(client, limits).map_err(|full| full.cut)
    }

    /// Takes a place, if necessary from a connection that is idle or slow.
    ///
    /// # Errors
    /// The limit that was met.
    pub(super) fn take(self: &Arc<Self>, client: Client, limits: &Limits) -> Result<Seat, Full> {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let of_client = state.by_client.get(&client).copied().unwrap_or_default();
        if of_client >= limits.connections_per_client {
            let victim = state.victim(now, limits, |seated| seated.client == client);
            self.evict(&mut state, victim.map_err(|has_unread| Full { cut: Cut::OfAddress, has_unread })?);
        } else if state.seated.len() >= limits.connections {
            let victim = state.victim(now, limits, |_| true);
            self.evict(&mut state, victim.map_err(|has_unread| Full { cut: Cut::Connections, has_unread })?);
        }
        let (number, end) = (state.next, CancellationToken::new());
        state.next = number.saturating_add(1);
        *state.by_client.entry(client).or_default() += 1;
        let progress = Arc::<Progress>::default();
        let seated = Seated {
            client,
            requests: 0,
            since: now,
            progress: progress.clone(),
            mark: Mark::new(now.into_std()),
            end: end.clone(),
        };
        state.seated.insert(number, seated);
        self.counters.open.up();
        Ok(Seat { seats: self.clone(), number, completions: Arc::default(), progress, end })
    }

    fn evict(&self, state: &mut State, number: u64) {
        if let Some(seated) = self.remove(state, number) {
            seated.end.cancel();
            self.counters.cut.one(if seated.requests == 0 { Cut::Silent } else { Cut::Slow });
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
        self.state.lock().seated.values().for_each(|seated| seated.end.cancel());
    }
}

impl State {
    /// Returns the connection of these that has been of no use for longest.
    ///
    /// # Errors
    /// None is idle or slow; true if one was not read yet and may be idle.
    fn victim(&mut self, now: Instant, limits: &Limits, of: impl Fn(&Seated) -> bool) -> Result<u64, bool> {
        let mut has_unread = false;
        let mut victim: Option<(Instant, u64)> = None;
        for (number, seated) in self.seated.iter_mut().filter(|(_, seated)| of(seated)) {
            if seated.is_unread(now) {
                // For a listener with a minimum idle time it comes too early in either case.
                has_unread |= limits.silence.is_zero();
            } else if let Some(since) = seated.useless_since(now, limits)
                && victim.is_none_or(|(longest, _)| since < longest)
            {
                victim = Some((since, *number));
            }
        }
        victim.map(|(_, number)| number).ok_or(has_unread)
    }
}

impl Seated {
    /// Returns true if a request may have arrived that was not read yet.
    fn is_unread(&self, now: Instant) -> bool {
        !self.progress.was_read() && now.saturating_duration_since(self.since) < MAX_UNREAD
    }

    /// Returns the time since which the connection is idle, or its client too slow.
    fn useless_since(&mut self, now: Instant, limits: &Limits) -> Option<Instant> {
        if self.requests == 0 {
            let is_idle = now.saturating_duration_since(self.since) >= limits.silence;
            return is_idle.then_some(self.since);
        }
        let seen = (self.progress.taken(), self.progress.blocked_at()?.into_std());
        self.mark.slow_since(seen, limits.rate, now.into_std()).map(Instant::from_std)
    }
}

impl Seat {
    /// Notes that a request has come. The connection keeps its place while the returned value lives, and until what was buffered
    /// by then is sent: a client that is slow to take an answer is not idle.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        // The request may have arrived with the first read.
        self.progress.read();
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
        if let Some(seated) = self.seats.state.lock().seated.get_mut(&self.number) {
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
        self.seats.remove(&mut self.seats.state.lock(), self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::pace::MinRate;
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
        let seat = seats.take(client(n), limits).map_err(|full| full.cut)?;
        seat.progress.read();
        Ok(Arc::new(seat))
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
        assert!(seats.state.lock().by_client.is_empty());
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
        assert_eq!(seats.state.lock().victim(Instant::now(), &limits, |_| true), Ok(held[2].number));
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

    /// A request comes, and its client does not take the answer.
    fn block(seat: &Arc<Seat>) -> Busy {
        seat.progress.block();
        seat.busy()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_loses_its_place_only_while_another_client_waits() {
        let (seats, counters, limits) = seats();
        let mut held: Vec<_> = (0..4).map(|n| take(&seats, n, &limits).unwrap()).collect();
        let _busy: Vec<_> = held.iter().map(block).collect();
        let MinRate { bytes, within } = limits.rate;
        tokio::time::advance(within * 100).await;
        assert!(held.iter().all(|seat| !seat.end.is_cancelled()), "no client waits");
        // Two clients take enough, one of them in the moment before.
        held[0].progress.took(bytes);
        held[1].progress.took(bytes - 1);
        held[3].progress.took(bytes);
        held.push(take(&seats, 8, &limits).unwrap());
        let ended: Vec<_> = held.iter().map(|seat| seat.end.is_cancelled()).collect();
        assert_eq!(ended, [false, true, false, false, false], "the first of those that are too slow");
        assert_eq!((counters.cut.get(Cut::Slow), counters.cut.get(Cut::Silent)), (1, 0));
        let _asked = held[4].busy();
        held.push(take(&seats, 9, &limits).unwrap());
        assert!(held[2].end.is_cancelled());
        let _asked = held[5].busy();
        // The other two have taken enough of late. The last ones wait for the server, which is not their fault.
        assert_eq!(take(&seats, 7, &limits).unwrap_err(), Cut::Connections);
        tokio::time::advance(within).await;
        held[0].progress.took(bytes);
        let _last = take(&seats, 7, &limits).unwrap();
        assert!(held[3].end.is_cancelled() && !held[0].end.is_cancelled(), "too slow since then");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_readers_of_one_address_make_room_for_that_address() {
        let (seats, _, limits) = seats();
        let held = [0, 0, 1].map(|n| take(&seats, n, &limits).unwrap());
        let _busy = [&held[0], &held[1], &held[2]].map(block);
        tokio::time::advance(limits.rate.within).await;
        held[2].progress.took(1);
        let _new = take(&seats, 0, &limits).unwrap();
        let ended = held.each_ref().map(|seat| seat.end.is_cancelled());
        assert_eq!(ended, [true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn local_slow_readers_keep_no_probe_out() {
        let seats = Arc::new(Seats::new(Arc::default()));
        let limits = &Limits::LOCAL;
        let reader = |_| Arc::new(seats.take(client(1), limits).unwrap());
        let readers: Vec<_> = (0..limits.connections_per_client).map(reader).collect();
        let busy: Vec<_> = readers.iter().map(block).collect();
        tokio::time::advance(Duration::from_millis(10)).await;
        let probe = take(&seats, 1, limits).unwrap();
        assert!(readers[0].end.is_cancelled() && !readers[1].end.is_cancelled(), "the longest one");
        // Further readers evict each other, although the probe has not asked yet.
        tokio::time::advance(Duration::from_millis(10)).await;
        let more: Vec<_> = (1..readers.len()).map(|_| take(&seats, 1, limits).unwrap()).collect();
        assert!(!probe.end.is_cancelled());
        let asked = probe.busy();
        let others: Vec<_> = (0..100).map(|_| take(&seats, 1, limits).unwrap()).collect();
        assert!(!probe.end.is_cancelled(), "its answer is not sent yet");
        drop((busy, more, asked, others));
    }

    #[tokio::test(start_paused = true)]
    async fn local_connection_is_not_evicted_before_it_was_read() {
        let seats = Arc::new(Seats::new(Arc::default()));
        let limits = &Limits::LOCAL;
        let unread = || seats.take(client(1), limits);
        let held: Vec<_> = (0..limits.connections_per_client).map(|_| unread().unwrap()).collect();
        assert_eq!(unread().unwrap_err(), Full { cut: Cut::OfAddress, has_unread: true });
        held[3].progress.read();
        let waiting = tokio::spawn({
            let seats = seats.clone();
            async move { seats.admit(client(1), &Limits::LOCAL).await }
        });
        waiting.await.unwrap().unwrap();
        let ended: Vec<_> = held.iter().map(|seat| seat.end.is_cancelled()).collect();
        assert_eq!(ended.iter().position(|ended| *ended), Some(3), "the one that had nothing to read");
        // The new connection was dropped. One that waits gets the place of the next one that was read.
        let _again = unread().unwrap();
        let (admitted, ()) = tokio::join!(seats.admit(client(1), limits), async {
            tokio::time::sleep(READ_INTERVAL * 3).await;
            held[5].progress.read();
        });
        assert!(admitted.is_ok() && held[5].end.is_cancelled());
        drop(admitted);
        let _again = unread().unwrap();
        assert_eq!(seats.admit(client(1), limits).await.unwrap_err(), Cut::OfAddress, "none was read");
        tokio::time::advance(MAX_UNREAD).await;
        assert!(seats.admit(client(1), limits).await.is_ok(), "a stream that is not read at all");
    }
}
