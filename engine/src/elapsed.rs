//! Durations of states by the monotonic clock of this process. Clocks of hosts are not trusted, and the wall clock may leap.
//!
//! A start time that another program wrote is used once, if this process has not seen the start itself. It counts between zero and the
//! limit of the caller. Kept in memory only. Called by reconcilers that wait for agents, drains and deletions.

use std::collections::HashMap;

use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Maximum number of starts that are remembered. The end of some states is never reported.
const MAX_REMEMBERED: usize = 10_000;

/// Returns the time that is `by` after another one.
pub fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// Start of a state.
#[derive(Debug, Clone, Copy)]
pub struct Lasting {
    before: SignedDuration,
    since: Instant,
}

impl Lasting {
    /// Starts now.
    pub fn started() -> Self {
        Self { before: SignedDuration::ZERO, since: Instant::now() }
    }

    /// Started at `written` by the clock of another program, at most `most` ago.
    pub fn found(written: Timestamp, now: Timestamp, most: SignedDuration) -> Self {
        let before = now.duration_since(written).clamp(SignedDuration::ZERO, most.max(SignedDuration::ZERO));
        Self { before, since: Instant::now() }
    }

    /// Returns the duration until now.
    pub fn time(&self) -> SignedDuration {
        let here = SignedDuration::try_from(self.since.elapsed()).unwrap_or(SignedDuration::MAX);
        self.before.saturating_add(here)
    }
}

/// Starts, each by its owner and by the time that was written of it.
#[derive(Debug, Default)]
pub struct Beginnings(Lock<HashMap<String, (Timestamp, Lasting)>>);

impl Beginnings {
    /// Returns the duration of the state of `whose` that started at `written`, at most `most` before this process saw it.
    pub fn lasted(
        &self,
        whose: &str,
        written: Timestamp,
        now: Timestamp,
        most: SignedDuration,
    ) -> SignedDuration {
        let mut all = self.0.lock();
        if let Some((_, lasting)) = all.get(whose).filter(|(known, _)| *known == written) {
            return lasting.time();
        }
        let found = Lasting::found(written, now, most);
        remember(&mut all, whose, written, found);
        found.time()
    }

    /// Records a start that this process has seen, with the time that it writes.
    pub fn begins(&self, whose: &str, written: Timestamp) {
        remember(&mut self.0.lock(), whose, written, Lasting::started());
    }

    /// Returns true if the start with this written time is known.
    pub fn knows(&self, whose: &str, written: Timestamp) -> bool {
        self.0.lock().get(whose).is_some_and(|(known, _)| *known == written)
    }

    /// Forgets a state that has ended.
    pub fn ends(&self, whose: &str) {
        self.0.lock().remove(whose);
    }
}

fn remember(
    all: &mut HashMap<String, (Timestamp, Lasting)>,
    whose: &str,
    written: Timestamp,
    lasting: Lasting,
) {
    if all.len() >= MAX_REMEMBERED {
        all.clear();
    }
    all.insert(whose.to_owned(), (written, lasting));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: SignedDuration = SignedDuration::from_secs(600);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn leap_of_the_wall_clock_does_not_change_a_duration() {
        let all = Beginnings::default();
        all.begins("n1", at(0));
        tokio::time::advance(Duration::from_secs(5)).await;
        for leap in [-86_400, 0, 5, 86_400] {
            assert_eq!(all.lasted("n1", at(0), at(leap), LIMIT).as_secs(), 5, "{leap}");
        }
        assert!(all.knows("n1", at(0)) && !all.knows("n1", at(1)));
        all.ends("n1");
        assert!(!all.knows("n1", at(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn written_start_counts_within_its_limit() {
        for (now, lasted) in [(-60, 0), (0, 0), (60, 60), (86_400, 600)] {
            let all = Beginnings::default();
            assert_eq!(all.lasted("n1", at(0), at(now), LIMIT).as_secs(), lasted, "{now}");
            tokio::time::advance(Duration::from_secs(7)).await;
            assert_eq!(all.lasted("n1", at(0), at(99_999), LIMIT).as_secs(), lasted + 7, "{now}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_written_start_is_another_state() {
        let all = Beginnings::default();
        all.begins("n1", at(0));
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(all.lasted("n1", at(90), at(100), LIMIT).as_secs(), 10, "by another leader");
    }
}
