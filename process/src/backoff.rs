//! Pure: the delay after failures in a row. It doubles up to a limit, with jitter, so that many clients do not return concurrently.
//!
//! The caller counts the failures and draws the random number. Called by `reconcile` and by loops that retry several things.

use std::time::Duration;

/// The random number without jitter.
pub const NO_JITTER: f64 = 0.5;

/// First and longest delay, before jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// Delays that double from `first` to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// Returns the delay after this many failures in a row, 1 for the first. `random` is at least 0 and less than 1.
    pub fn delay(self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1);
        let base = self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.max);
        jittered(base, random)
    }

    /// Returns the longest delay, with jitter.
    pub fn longest(self) -> Duration {
        jittered(self.max, 1.0)
    }
}

/// Returns the duration, moved by up to a quarter to either side.
pub(crate) fn jittered(duration: Duration, random: f64) -> Duration {
    moved(duration, 0.25, random)
}

/// Returns the interval of a periodic act, moved by up to a tenth to either side, so that many hosts do not act in step.
pub fn spread(interval: Duration, random: f64) -> Duration {
    moved(interval, 0.1, random)
}

fn moved(duration: Duration, share: f64, random: f64) -> Duration {
    let factor = 1.0 + share * (2.0 * random.clamp(0.0, 1.0) - 1.0);
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

    #[test]
    fn delay_doubles_up_to_its_limit_and_is_never_zero() {
        let delays =
            [0, 1, 2, 3, 9, 10, u32::MAX].map(|failures| BACKOFF.delay(failures, NO_JITTER).as_secs());
        assert_eq!(delays, [1, 1, 2, 4, 256, 300, 300]);
        assert_eq!(BACKOFF.longest().as_secs(), 375);
    }

    #[test]
    fn jitter_moves_a_delay_by_a_quarter_and_an_interval_by_a_tenth() {
        let minute = Duration::from_secs(60);
        assert_eq!([0.0, 0.5, 1.0].map(|random| jittered(minute, random).as_secs()), [45, 60, 75]);
        assert_eq!([0.0, 0.5, 1.0].map(|random| spread(minute, random).as_secs()), [54, 60, 66]);
        assert_eq!(jittered(Duration::MAX, 1.0), Duration::MAX);
        assert_eq!([-1.0, 2.0].map(|random| jittered(minute, random).as_secs()), [45, 75]);
    }
}
