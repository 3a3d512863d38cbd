//! State of one connection's stream, as its place needs it: read or not, bytes taken, and the time since which the client does not take
//! what there is.
//!
//! Written by `socket` for each read and write, read by `seat`. It takes no lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Interval without anything to take after which the client has caught up. A body arrives in chunks, and each one that is sent leaves
/// nothing to take for a moment.
const CAUGHT_UP: Duration = Duration::from_secs(1);

/// State of one stream.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    was_read: AtomicBool,
    taken: AtomicU64,
    /// Milliseconds from `start` to the start of the wait, plus 1. 0: there is nothing to take.
    blocked: AtomicU64,
    /// Start of the latest wait, in the same form.
    last_blocked: AtomicU64,
    /// End of the latest wait, in the same form.
    freed: AtomicU64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            was_read: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            last_blocked: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }
}

impl Progress {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Notes that all bytes were read that had arrived.
    pub(super) fn read(&self) {
        self.was_read.store(true, Ordering::Relaxed);
    }

    /// Notes bytes that the client has taken.
    pub(super) fn took(&self, count: u64) {
        self.taken.fetch_add(count, Ordering::Relaxed);
    }

    /// Notes that the client does not take what there is.
    pub(super) fn block(&self) {
        let now = self.now();
        let (last, freed) = (self.last_blocked.load(Ordering::Relaxed), self.freed.load(Ordering::Relaxed));
        let is_new = last == 0 || Duration::from_millis(now.saturating_sub(freed)) >= CAUGHT_UP;
        let since = if is_new { now } else { last };
        self.last_blocked.store(since, Ordering::Relaxed);
        self.blocked.store(since, Ordering::Relaxed);
    }

    /// Notes that the client has taken all there was.
    pub(super) fn free(&self) {
        self.freed.store(self.now(), Ordering::Relaxed);
        self.blocked.store(0, Ordering::Relaxed);
    }

    /// Returns true if all bytes that had arrived were read at least once.
    pub(super) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that the client has taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the time since which the client has not caught up. `None`: there is nothing to take.
    pub(super) fn blocked_at(&self) -> Option<Instant> {
        let blocked = self.blocked.load(Ordering::Relaxed).checked_sub(1)?;
        self.start.checked_add(Duration::from_millis(blocked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pass(millis: u64) {
        tokio::time::advance(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_between_two_chunks_does_not_end_the_wait() {
        let progress = Progress::default();
        pass(5000).await;
        assert_eq!(progress.blocked_at(), None);
        progress.block();
        let since = Instant::now();
        pass(9000).await;
        progress.free();
        assert_eq!(progress.blocked_at(), None, "nothing to take");
        pass(500).await;
        progress.block();
        assert_eq!(progress.blocked_at(), Some(since), "the next chunk");
        progress.free();
        pass(1000).await;
        progress.block();
        assert_eq!(progress.blocked_at(), Some(Instant::now()), "it had caught up");
    }
}
