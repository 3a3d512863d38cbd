//! Pure: minimum rate of a client that takes an answer. It counts only while another client needs the place.
//!
//! The time in which pxed itself sends nothing does not count. Called by `seat`.

use std::time::{Duration, Instant};

/// Minimum rate: these bytes within this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinRate {
    /// Bytes.
    pub bytes: u64,
    /// Time.
    pub within: Duration,
}

impl MinRate {
    /// 13 kB/s: less than any firmware on a boot network takes, for example blocks of 512 bytes with a round trip of 10 ms.
    pub(crate) const DEFAULT: Self = Self { bytes: 128 << 10, within: Duration::from_secs(10) };

    /// Every answer that the client does not take immediately is too slow.
    pub(crate) const IMMEDIATE: Self = Self { bytes: u64::MAX, within: Duration::ZERO };
}

/// Start of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    taken: u64,
    at: Instant,
}

impl Mark {
    /// Starts at the beginning of a connection.
    pub(super) fn new(at: Instant) -> Self {
        Self { taken: 0, at }
    }

    /// Returns the time since which a client has been too slow. `taken`: all bytes that it has taken. `blocked_at`: time since which there
    /// has been something to take. Starts a new measurement when enough was taken.
    pub(super) fn slow_since(
        &mut self,
        (taken, blocked_at): (u64, Instant),
        rate: MinRate,
        now: Instant,
    ) -> Option<Instant> {
        if taken.saturating_sub(self.taken) >= rate.bytes {
            *self = Self { taken, at: now };
        }
        let since = self.at.max(blocked_at);
        (now.saturating_duration_since(since) >= rate.within).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: MinRate = MinRate { bytes: 1000, within: Duration::from_secs(10) };

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn client_is_slow_after_the_time_without_enough_bytes() {
        let start = Instant::now();
        let mut mark = Mark::new(start);
        let mut slow = |taken, seconds| mark.slow_since((taken, start), RATE, at(start, seconds));
        assert_eq!(slow(999, 9), None, "it has its time");
        assert_eq!(slow(999, 10), Some(start));
        assert_eq!(slow(1000, 11), None, "enough, and the measurement starts again");
        assert_eq!((slow(1999, 20), slow(1999, 21)), (None, Some(at(start, 11))));
    }

    #[test]
    fn time_in_which_there_is_nothing_to_take_does_not_count() {
        let start = Instant::now();
        let mut mark = Mark::new(start);
        assert_eq!(mark.slow_since((0, at(start, 95)), RATE, at(start, 104)), None);
        assert_eq!(mark.slow_since((0, at(start, 95)), RATE, at(start, 105)), Some(at(start, 95)));
    }

    #[test]
    fn slowest_plausible_firmware_keeps_to_the_rate() {
        let start = Instant::now();
        let mut mark = Mark::new(start);
        // Blocks of 512 bytes with a round trip of 10 ms.
        for second in 1..100 {
            let taken = second * 100 * 512;
            assert_eq!(mark.slow_since((taken, start), MinRate::DEFAULT, at(start, second)), None);
        }
    }

    #[test]
    fn immediate_rate_is_missed_by_every_client_that_does_not_take_all() {
        let start = Instant::now();
        assert_eq!(Mark::new(start).slow_since((1 << 40, start), MinRate::IMMEDIATE, start), Some(start));
    }
}
