//! Fair queue of root images. A place in it is sent, waits, or loses its permit to a client that waits.
//!
//! ```text
//!   enter ──a permit is free──▶ Sending ──dropped──▶ (left)
//!     │                          ▲   │
//!     └──▶ Waiting ──first come──┘   │ while others wait: too little progress, or more permits than its share
//!             ▲                      │
//!             └──────────────────────┘ at the end of the queue; its connection stays
//! ```
//!
//! While permits are free, none is revoked and no client is limited to its share. A permit that is in use costs two atomic accesses a chunk. Called by
//! `content` (enter) and `body` (poll).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bedplate_process::lock::Lock;
use tokio::time::Instant;

use super::counters::Counters;
use crate::boot::Owner;

/// Bytes that a client must take within [`PROGRESS_TIME`] to keep its permit while others wait: 105 kB/s, a tenth of a 10 Mbit/s line.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Time in which a client must take [`PROGRESS_BYTES`].
const PROGRESS_TIME: Duration = Duration::from_secs(10);

/// Divisor of the permits: one Machine, or one client address, may have this part of them while others wait.
const SHARE_DIVISOR: usize = 8;

/// Interval between two searches for permits that can be revoked. A search reads every permit.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Receiver of a root image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Owner of its boot.
    pub owner: Owner,
    /// The address.
    pub address: IpAddr,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    limit: usize,
    counters: Arc<Counters>,
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    sending: BTreeMap<u64, Sending>,
    /// Waiting places by the order of their arrival.
    waiting: BTreeMap<u64, Waiting>,
    by_owner: HashMap<Owner, usize>,
    by_address: HashMap<IpAddr, usize>,
    searched: Option<Instant>,
}

#[derive(Debug)]
struct Sending {
    client: Client,
    pass: Arc<Pass>,
    /// Bytes taken at `marked_at`.
    mark: u64,
    marked_at: Instant,
}

#[derive(Debug)]
struct Waiting {
    client: Client,
    pass: Arc<Pass>,
    waker: Option<Waker>,
}

/// The part of a place that is read for each chunk.
#[derive(Debug, Default)]
struct Pass {
    is_sending: AtomicBool,
    taken: AtomicU64,
}

/// A place in the queue, released when it is dropped.
#[derive(Debug)]
pub struct Place {
    queue: Arc<Queue>,
    client: Client,
    number: u64,
    pass: Arc<Pass>,
}

impl Queue {
    /// Makes a queue with this number of permits.
    pub fn new(limit: usize, counters: Arc<Counters>) -> Self {
        Self { limit, counters, state: Lock::default() }
    }

    /// Takes a permit if one is free, otherwise a place at the end of the queue.
    pub fn enter(self: &Arc<Self>, client: Client) -> Place {
        let pass = Arc::<Pass>::default();
        let number = self.change(|state| self.wait(state, client.clone(), pass.clone(), None));
        Place { queue: self.clone(), client, number, pass }
    }

    /// Returns the number of permits that are not in use.
    pub fn free(&self) -> usize {
        self.limit.saturating_sub(self.state.lock().sending.len())
    }

    /// Changes the state, then grants and revokes permits, and wakes those that were granted one.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let mut wakers = Vec::new();
        self.grant_free(&mut state, Instant::now(), &mut wakers);
        self.revoke(&mut state, Instant::now(), &mut wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    fn wait(&self, state: &mut State, client: Client, pass: Arc<Pass>, waker: Option<Waker>) -> u64 {
        let number = state.next;
        state.next = number.saturating_add(1);
        state.waiting.insert(number, Waiting { client, pass, waker });
        self.counters.queued.up();
        number
    }

    fn leave(&self, state: &mut State, number: u64) {
        if state.waiting.remove(&number).is_some() {
            self.counters.queued.down();
        }
        self.stop_sending(state, number);
    }

    /// Returns the maximum number of permits of one owner or address while others wait.
    fn share(&self) -> usize {
        self.limit.checked_div(SHARE_DIVISOR).unwrap_or_default().max(1)
    }

    fn grant_free(&self, state: &mut State, now: Instant, wakers: &mut Vec<Waker>) {
        while state.sending.len() < self.limit {
            let Some(number) = state.first_under(self.share()).or_else(|| state.first()) else { return };
            self.grant(state, number, now, wakers);
        }
    }

    fn grant(&self, state: &mut State, number: u64, now: Instant, wakers: &mut Vec<Waker>) {
        let Some(Waiting { client, pass, waker }) = state.waiting.remove(&number) else { return };
        self.counters.queued.down();
        self.counters.sending.up();
        *state.by_owner.entry(client.owner.clone()).or_default() += 1;
        *state.by_address.entry(client.address).or_default() += 1;
        pass.is_sending.store(true, Ordering::Release);
        let mark = pass.taken.load(Ordering::Relaxed);
        state.sending.insert(number, Sending { client, pass, mark, marked_at: now });
        wakers.extend(waker);
    }

    fn stop_sending(&self, state: &mut State, number: u64) {
        let Some(Sending { client, pass, .. }) = state.sending.remove(&number) else { return };
        self.counters.sending.down();
        pass.is_sending.store(false, Ordering::Release);
        one_less(&mut state.by_owner, &client.owner);
        one_less(&mut state.by_address, &client.address);
    }

    /// Gives permits of clients with too little progress to the first waiting place. Gives permits beyond a client's share to the first waiting
    /// client whose share is not used up.
    fn revoke(&self, state: &mut State, now: Instant, wakers: &mut Vec<Waker>) {
        let is_early = |at: Instant| now.saturating_duration_since(at) < SEARCH_INTERVAL;
        if state.waiting.is_empty() || state.searched.is_some_and(is_early) {
            return;
        }
        state.searched = Some(now);
        let share = self.share();
        for slow in state.slow(now) {
            let Some(next) = state.first_under(share).or_else(|| state.first()) else { return };
            self.stop_sending(state, slow);
            self.grant(state, next, now, wakers);
        }
        while let Some(next) = state.first_under(share)
            && let Some(greedy) = state.greedy(share)
        {
            self.stop_sending(state, greedy);
            self.grant(state, next, now, wakers);
        }
    }
}

impl State {
    fn is_under(&self, client: &Client, share: usize) -> bool {
        held(&self.by_owner, &client.owner) < share && held(&self.by_address, &client.address) < share
    }

    fn is_over(&self, client: &Client, share: usize) -> bool {
        held(&self.by_owner, &client.owner) > share || held(&self.by_address, &client.address) > share
    }

    fn first(&self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }

    /// Returns the first waiting place of a client whose share is not used up.
    fn first_under(&self, share: usize) -> Option<u64> {
        let mut waiting = self.waiting.iter();
        waiting.find(|(_, waiting)| self.is_under(&waiting.client, share)).map(|(number, _)| *number)
    }

    /// Returns the newest permit of a client that has more than its share.
    fn greedy(&self, share: usize) -> Option<u64> {
        let mut sending = self.sending.iter().rev();
        sending.find(|(_, sending)| self.is_over(&sending.client, share)).map(|(number, _)| *number)
    }

    /// Returns the permits of clients that have taken too little.
    fn slow(&mut self, now: Instant) -> Vec<u64> {
        let mut slow = Vec::new();
        for (number, sending) in &mut self.sending {
            let taken = sending.pass.taken.load(Ordering::Relaxed);
            if taken.saturating_sub(sending.mark) >= PROGRESS_BYTES {
                (sending.mark, sending.marked_at) = (taken, now);
            } else if now.saturating_duration_since(sending.marked_at) >= PROGRESS_TIME {
                slow.push(*number);
            }
        }
        slow
    }
}

fn held<K: Eq + Hash>(counts: &HashMap<K, usize>, key: &K) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Place {
    /// Returns `Ready` while the permit is held. `Pending`: the place waits, or was moved to the end of the queue.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_sending() {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let queue = self.queue.clone();
        queue.change(|state| match state.waiting.get_mut(&self.number) {
            Some(waiting) => waiting.waker = Some(waker),
            None if state.sending.contains_key(&self.number) => {}
            None => self.number = queue.wait(state, self.client.clone(), self.pass.clone(), Some(waker)),
        });
        if self.is_sending() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Counts bytes that the client has taken.
    pub fn took(&self, bytes: u64) {
        self.pass.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_sending(&self) -> bool {
        self.pass.is_sending.load(Ordering::Acquire)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (queue, number) = (self.queue.clone(), self.number);
        queue.change(|state| queue.leave(state, number));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;

    use bedplate_api::id::MacAddress;

    use super::*;

    pub(in crate::http) fn client(owner: u32, address: u32) -> Client {
        let [_, _, c, d] = owner.to_be_bytes();
        let owner = Owner::Unknown { mac: MacAddress::new([0x52, 0x54, 0, 0, c, d]) };
        Client { owner, address: Ipv4Addr::from_bits(0x0a00_0000 + address).into() }
    }

    fn queue(limit: usize) -> Arc<Queue> {
        Arc::new(Queue::new(limit, Arc::default()))
    }

    /// Polls each place, and returns how many are being sent.
    fn sending(places: &mut [Place]) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        places.iter_mut().filter_map(|place| place.poll(&mut context).is_ready().then_some(())).count()
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    fn take_all(places: &[Place]) {
        places.iter().for_each(|place| place.took(PROGRESS_BYTES));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_many_boots_leaves_places_for_others() {
        let of_machine: fn(u32) -> Client = |n| client(1, n);
        let of_address: fn(u32) -> Client = |n| client(n, 1);
        for greedy in [of_machine, of_address] {
            let queue = queue(64);
            let mut places: Vec<_> = (0..100).map(|n| queue.enter(greedy(n))).collect();
            assert_eq!(sending(&mut places), 64, "no other client waits: every permit is used");
            let mut others: Vec<_> = (0..56).map(|n| queue.enter(client(1000 + n, 1000 + n))).collect();
            pass(1).await;
            sending(&mut others);
            assert_eq!((sending(&mut others), sending(&mut places)), (56, 8), "an eighth stays");
            // Further clients are served in turn, and none of the eight is lost.
            let mut last = vec![queue.enter(client(2000, 2000))];
            take_all(&places);
            take_all(&others);
            pass(1).await;
            assert_eq!((sending(&mut last), sending(&mut places)), (0, 8));
            others.pop();
            assert_eq!((sending(&mut last), sending(&mut places)), (1, 8));
            drop((others, last));
            assert_eq!(sending(&mut places), 64, "no other client waits any more");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_loses_its_permit_while_others_wait_and_waits_in_its_turn() {
        let queue = queue(2);
        let mut slow = [queue.enter(client(1, 1)), queue.enter(client(2, 2))];
        pass(100).await;
        assert_eq!(sending(&mut slow), 2, "no client waits");
        let mut waiting = [queue.enter(client(3, 3))];
        assert_eq!((sending(&mut waiting), sending(&mut slow)), (1, 1));
        // The first slow client has its turn again, and the second one waits behind a further client.
        pass(2).await;
        let mut further = [queue.enter(client(4, 4))];
        assert_eq!((sending(&mut further), sending(&mut slow)), (0, 1));
        drop(waiting);
        assert_eq!((sending(&mut further), sending(&mut slow)), (1, 1));
        drop(further);
        assert_eq!(sending(&mut slow), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_enough_keeps_its_permit() {
        let queue = queue(1);
        let mut first = [queue.enter(client(1, 1))];
        let mut second = [queue.enter(client(2, 2))];
        for _ in 0..50 {
            take_all(&first);
            pass(9).await;
            assert_eq!((sending(&mut second), sending(&mut first)), (0, 1));
        }
        pass(10).await;
        assert_eq!((sending(&mut second), sending(&mut first)), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_clients_are_served_in_the_order_of_asking() {
        let queue = queue(1);
        let mut places: Vec<_> = (0..20).map(|n| queue.enter(client(n, n))).collect();
        for n in 0..20_usize {
            assert_eq!(sending(&mut places[..1]), 1, "{n}");
            assert_eq!(sending(&mut places[1..]), 0, "{n}");
            places.remove(0);
        }
        assert_eq!((queue.free(), queue.counters.queued.now(), queue.counters.sending.now()), (1, 0, 0));
        let state = queue.state.lock();
        assert!(state.by_owner.is_empty() && state.by_address.is_empty());
    }
}
