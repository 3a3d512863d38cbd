//! Pure: how often one of many may ask. Each has a bucket of tokens that fills steadily; who has emptied it is refused until there is a token again,
//! and nobody else notices.
//!
//! A bucket is kept as the moment at which it is full again: one that is full already is the same as none, so that those are forgotten
//! when there are too many. Called by `enroll` and `http`.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Buckets that are not full, at most. Of more nobody is refused: all begin anew.
const MOST: usize = 16_384;

/// How much is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At once.
    pub burst: u32,
    /// How long it takes until there is one more.
    pub each: Duration,
}

/// What is left to each; by whatever tells one from the other.
#[derive(Debug)]
pub struct Allowances<K> {
    full: Mutex<HashMap<K, Instant>>,
}

impl<K> Default for Allowances<K> {
    fn default() -> Self {
        Self { full: Mutex::default() }
    }
}

impl<K: Eq + Hash> Allowances<K> {
    /// Takes a token of this one's.
    ///
    /// # Errors
    /// There is none; how long it takes until there is.
    pub fn take(&self, key: K, rate: Rate, now: Instant) -> Result<(), Duration> {
        // Every change is whole before the lock is let go.
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let before = full.get(&key).map_or(Duration::ZERO, |full| full.saturating_duration_since(now));
        let after = before.saturating_add(rate.each);
        let over = after.saturating_sub(rate.each.saturating_mul(rate.burst));
        if over > Duration::ZERO {
            return Err(over);
        }
        if full.len() >= MOST && !full.contains_key(&key) {
            full.retain(|_, full| *full > now);
            if full.len() >= MOST {
                full.clear();
            }
        }
        // A moment beyond the clock's last is never reached.
        if let Some(at) = now.checked_add(after) {
            full.insert(key, at);
        }
        Ok(())
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
    fn who_keeps_to_the_rate_is_never_refused() {
        let (all, start) = (Allowances::default(), Instant::now());
        for millis in (0..100_000).step_by(100) {
            assert_eq!(all.take("a", RATE, later(start, millis)), Ok(()), "{millis}");
        }
    }

    #[test]
    fn however_many_ask_only_so_many_are_remembered() {
        let (all, start) = (Allowances::default(), Instant::now());
        for key in 0..MOST * 3 {
            assert_eq!(all.take(key, RATE, start), Ok(()));
            assert!(all.full.lock().unwrap().len() <= MOST);
        }
        // Those that are full are forgotten first: who has emptied his stays refused.
        let all = Allowances::default();
        for key in 1..MOST {
            assert_eq!(all.take(key, RATE, start), Ok(()));
        }
        let soon = later(start, 100);
        for _ in 0..3 {
            assert_eq!(all.take(0, RATE, soon), Ok(()));
        }
        assert_eq!(all.take(MOST, RATE, soon), Ok(()));
        assert!(all.take(0, RATE, soon).is_err());
        assert_eq!(all.full.lock().unwrap().len(), 2);
    }
}
