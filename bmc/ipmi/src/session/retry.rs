//! Pure: times at which an unanswered packet is repeated, and at which it has failed.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::time::{Duration, Instant};

/// Time at which an unanswered packet is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Timeout of the first answer; each further one is twice as long.
    pub first: Duration,
    /// Maximum timeout of one answer.
    pub most: Duration,
    /// Maximum number of transmissions, at least 1.
    pub attempts: u32,
}

impl Default for Retry {
    /// Timeouts of 0.5, 1, 2, 4 and 4 seconds: failed after 11.5.
    fn default() -> Self {
        Self { first: Duration::from_millis(500), most: Duration::from_secs(4), attempts: 5 }
    }
}

impl Retry {
    /// Returns the sum of the timeouts of all attempts.
    pub(crate) fn whole(&self) -> Duration {
        (1..=self.attempts.max(1)).fold(Duration::ZERO, |whole, sent| whole.saturating_add(self.wait(sent)))
    }

    /// Returns the timeout of the answer to the `sent`th transmission.
    pub(crate) fn wait(&self, sent: u32) -> Duration {
        let doubled = 1_u32.checked_shl(sent.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.most)
    }
}

/// When what was sent last is sent again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) sent: u32,
    pub(super) until: Instant,
}

impl Attempt {
    pub(super) fn first(retry: &Retry, now: Instant) -> Self {
        Self { sent: 1, until: later(now, retry.wait(1)) }
    }

    /// The first and last, with the time of all.
    pub(super) fn only(retry: &Retry, now: Instant) -> Self {
        Self { sent: retry.attempts.max(1), until: later(now, retry.whole()) }
    }

    /// The next attempt, unless this was the last.
    pub(super) fn next(self, retry: &Retry, now: Instant) -> Option<Self> {
        let sent = self.sent.checked_add(1).filter(|sent| *sent <= retry.attempts)?;
        Some(Self { sent, until: later(now, retry.wait(sent)) })
    }
}

/// Returns `now + wait`, or `now` if the sum overflows.
pub(super) fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or(now)
}
