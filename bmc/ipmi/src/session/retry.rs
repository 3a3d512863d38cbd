//! Pure: when an unanswered packet is sent again, and when it is given up.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::time::{Duration, Instant};

/// When an unanswered packet is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How long the first answer is awaited; each further one twice as long.
    pub first: Duration,
    /// How long one is awaited at most.
    pub most: Duration,
    /// How often it is sent in all, at least 1.
    pub attempts: u32,
}

impl Default for Retry {
    /// 0.5, 1, 2, 4 and 4 seconds: given up after 11.5.
    fn default() -> Self {
        Self { first: Duration::from_millis(500), most: Duration::from_secs(4), attempts: 5 }
    }
}

impl Retry {
    /// How long the answers to all attempts are awaited together.
    pub(crate) fn whole(&self) -> Duration {
        (1..=self.attempts.max(1)).fold(Duration::ZERO, |whole, sent| whole.saturating_add(self.wait(sent)))
    }

    /// How long the answer to the packet sent for the `sent`th time is awaited.
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

/// `now + wait`; a time that cannot be told is now.
pub(super) fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or(now)
}
