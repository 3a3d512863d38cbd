//! How long something is so, by this program's own monotonic clock. The clock of a host may be anything, and the own wall clock may leap: what
//! was written of a beginning counts once, where this program has not seen it begin, and then between nothing and all of its time.
//!
//! Kept in memory alone. Asked by `rollout` for agents and drains, by `deletion` for deletions.

use std::collections::HashMap;

use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// So many beginnings are remembered, at most: of what was given up otherwise nobody says that it is over.
const REMEMBERED: usize = 10_000;

/// Since when something is so.
#[derive(Debug, Clone, Copy)]
pub struct Lasting {
    before: SignedDuration,
    since: Instant,
}

impl Lasting {
    /// It begins.
    pub fn begun() -> Self {
        Self { before: SignedDuration::ZERO, since: Instant::now() }
    }

    /// It is found to be so, since `written` by somebody's clock; longer than `most` it is not taken to be.
    pub fn found(written: Timestamp, now: Timestamp, most: SignedDuration) -> Self {
        let before = now.duration_since(written).clamp(SignedDuration::ZERO, most.max(SignedDuration::ZERO));
        Self { before, since: Instant::now() }
    }

    /// How long.
    pub fn time(&self) -> SignedDuration {
        let here = SignedDuration::try_from(self.since.elapsed()).unwrap_or(SignedDuration::MAX);
        self.before.saturating_add(here)
    }
}

/// Beginnings, by whose they are and by what was written of them.
#[derive(Debug, Default)]
pub struct Beginnings(Lock<HashMap<String, (Timestamp, Lasting)>>);

impl Beginnings {
    /// How long that is so for `whose` which has begun at `written`, as it stands there.
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

    /// It begins, and this is written of it.
    pub fn begins(&self, whose: &str, written: Timestamp) {
        remember(&mut self.0.lock(), whose, written, Lasting::begun());
    }

    /// Whether it was seen, with this written of it.
    pub fn knows(&self, whose: &str, written: Timestamp) -> bool {
        self.0.lock().get(whose).is_some_and(|(known, _)| *known == written)
    }

    /// It is over.
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
    if all.len() >= REMEMBERED {
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
    async fn what_was_seen_to_begin_lasts_by_the_own_clock_whatever_the_wall_clock_does() {
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
    async fn what_is_found_begins_with_what_was_written_of_it_within_its_limit() {
        for (now, lasted) in [(-60, 0), (0, 0), (60, 60), (86_400, 600)] {
            let all = Beginnings::default();
            assert_eq!(all.lasted("n1", at(0), at(now), LIMIT).as_secs(), lasted, "{now}");
            tokio::time::advance(Duration::from_secs(7)).await;
            assert_eq!(all.lasted("n1", at(0), at(99_999), LIMIT).as_secs(), lasted + 7, "{now}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_beginning_is_another_one() {
        let all = Beginnings::default();
        all.begins("n1", at(0));
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(all.lasted("n1", at(90), at(100), LIMIT).as_secs(), 10, "by who led in between");
    }
}
