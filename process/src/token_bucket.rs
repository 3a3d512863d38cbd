//! Pure: rate limit for one of many clients. Each has a bucket of tokens that fills steadily; one that has emptied it is refused until there is a token
//! again, and no other one notices.
//!
//! A bucket is stored as the moment at which it is full again: a full bucket is the same as none, and is forgotten when the table is full. If all
//! buckets are in use, keys that are not in the table share one. So a flood of new keys does not reset the bucket of any other key. Keys that any
//! client can make up have a table of their own. Called by pxed and by `events`.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::lock::Lock;

/// Maximum number of buckets that are not full.
const MAX_BUCKETS: usize = 16_384;

/// Rate of the shared bucket, as a multiple of one's own.
const SHARED_FACTOR: u32 = 64;

/// Interval between two searches for full buckets. A search reads all.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Maximum number of tokens.
    pub burst: u32,
    /// Time until there is one more.
    pub each: Duration,
}

impl Rate {
    /// Takes a token of a bucket that becomes full at `full`.
    ///
    /// # Errors
    /// There is no token; the time until there is one.
    fn take(self, full: Option<Instant>, now: Instant) -> Result<Option<Instant>, Duration> {
        let before = full.map_or(Duration::ZERO, |full| full.saturating_duration_since(now));
        let after = before.saturating_add(self.each);
        let over = after.saturating_sub(self.each.saturating_mul(self.burst));
        if over > Duration::ZERO {
            return Err(over);
        }
        // A moment beyond the clock's last is never reached.
        Ok(now.checked_add(after))
    }

    /// Returns the rate of the bucket that many share.
    fn shared(self) -> Self {
        let each = self.each.checked_div(SHARED_FACTOR).unwrap_or_default();
        Self { burst: self.burst.saturating_mul(SHARED_FACTOR), each }
    }
}

/// Tokens that are left, by key.
#[derive(Debug)]
pub struct Allowances<K> {
    state: Lock<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    full: HashMap<K, Instant>,
    /// The shared bucket of each rate.
    shared: HashMap<Rate, Instant>,
    searched: Option<Instant>,
}

impl<K> Default for Allowances<K> {
    fn default() -> Self {
        let state = State { full: HashMap::new(), shared: HashMap::new(), searched: None };
        Self { state: Lock::new(state) }
    }
}

impl<K: Eq + Hash> Allowances<K> {
    /// Takes a token of this key's bucket, or of the shared one if the table is full.
    ///
    /// # Errors
    /// There is no token; the time until there is one.
    pub fn take(&self, key: K, rate: Rate, now: Instant) -> Result<(), Duration> {
        // Each change is complete before the lock is released.
        let mut state = self.state.lock();
        if state.has_room(&key, now) {
            let full = rate.take(state.full.get(&key).copied(), now)?;
            state.full.extend(full.map(|full| (key, full)));
        } else {
            let full = rate.shared().take(state.shared.get(&rate).copied(), now)?;
            state.shared.extend(full.map(|full| (rate, full)));
        }
        Ok(())
    }
}

impl<K: Eq + Hash> State<K> {
    /// Returns true if the key has a bucket, or can have one. Forgets full buckets for it.
    fn has_room(&mut self, key: &K, now: Instant) -> bool {
        if self.full.len() < MAX_BUCKETS || self.full.contains_key(key) {
            return true;
        }
        let is_early = |at: Instant| now.saturating_duration_since(at) < SEARCH_INTERVAL;
        if !self.searched.is_some_and(is_early) {
            self.searched = Some(now);
            self.full.retain(|_, full| *full > now);
        }
        self.full.len() < MAX_BUCKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, each: Duration::from_millis(100) };

    fn later(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn a_burst_is_taken_then_as_much_as_fills_again_and_the_refusal_says_when() {
        let (all, start) = (Allowances::default(), Instant::now());
        let take = |millis| all.take("a", RATE, later(start, millis));
        assert_eq!([take(0), take(0), take(0)], [Ok(()); 3]);
        assert_eq!(take(0), Err(Duration::from_millis(100)));
        assert_eq!(take(60), Err(Duration::from_millis(40)), "a refusal costs nothing");
        assert_eq!([take(100), take(100).map_err(|_| Duration::ZERO)], [Ok(()), Err(Duration::ZERO)]);
        assert_eq!(all.take("b", RATE, later(start, 100)), Ok(()), "another's is its own");
        // Full again, and no fuller than that.
        let many: Vec<bool> = (0..5).map(|_| take(10_000).is_ok()).collect();
        assert_eq!(many, [true, true, true, false, false]);
    }

    #[test]
    fn caller_within_the_rate_is_never_refused() {
        let (all, start) = (Allowances::default(), Instant::now());
        for millis in (0..100_000).step_by(100) {
            assert_eq!(all.take("a", RATE, later(start, millis)), Ok(()), "{millis}");
        }
    }

    /// A table in which every bucket is in use until second 0.1.
    fn full(start: Instant) -> Allowances<usize> {
        let all = Allowances::default();
        for key in 0..MAX_BUCKETS {
            assert_eq!(all.take(key, RATE, start), Ok(()));
        }
        all
    }

    fn admitted(all: &Allowances<usize>, from: usize, now: Instant) -> usize {
        (from..from + 1000).filter(|key| all.take(*key, RATE, now).is_ok()).count()
    }

    #[test]
    fn flood_of_new_keys_fills_no_bucket_that_was_emptied() {
        let start = Instant::now();
        let all = full(start);
        assert_eq!([all.take(0, RATE, start), all.take(0, RATE, start)], [Ok(()); 2]);
        assert!(all.take(0, RATE, start).is_err());
        for round in 1..40 {
            admitted(&all, MAX_BUCKETS * round, start);
        }
        assert!(all.take(0, RATE, start).is_err(), "refused as before");
        assert_eq!(all.take(1, RATE, start), Ok(()), "others keep what is left to them");
        assert_eq!(all.state.lock().full.len(), MAX_BUCKETS);
    }

    #[test]
    fn keys_without_a_bucket_share_one_that_fills_steadily() {
        let start = Instant::now();
        let all = full(start);
        assert_eq!(admitted(&all, MAX_BUCKETS, start), 3 * 64);
        assert_eq!(admitted(&all, MAX_BUCKETS, later(start, 50)), 32, "64 in 100 ms");
        let other = Rate { burst: 1, each: Duration::from_secs(1) };
        assert_eq!(all.take(MAX_BUCKETS, other, later(start, 50)), Ok(()), "each rate has its own");
    }

    #[test]
    fn full_buckets_make_room_for_new_keys() {
        let start = Instant::now();
        let all = full(start);
        assert_eq!(all.take(MAX_BUCKETS, RATE, start), Ok(()), "shared: the search found none");
        let soon = later(start, 1000);
        assert_eq!(all.take(MAX_BUCKETS + 1, RATE, soon), Ok(()));
        assert_eq!(all.state.lock().full.len(), 1, "the others were full");
    }
}
