//! Counts recent attempts of a step, and computes the earliest time of the next one, and of the next trial.
//!
//! A step that succeeded and is planned again did not hold, which counts as a
//! failure. Both are delayed by 1 s, doubling to 5 min.
//! Pure: the caller passes the time. Called by `run`, `observe` and `apply`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bedplate_process::backoff::Backoff;
use jiff::{SignedDuration, Timestamp};

use crate::model::Step;
use crate::slot::store::Ledger;

/// Delay between two tries of a step, and between trials that fail with no slot to roll back to.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// Age at which an attempt no longer counts.
const FORGET_AFTER: Duration = Duration::from_secs(900);

#[derive(Debug, Clone, Copy)]
struct Tried {
    times: u32,
    ended: Instant,
    wait: Duration,
}

/// Recent attempts.
#[derive(Debug, Default)]
pub(super) struct Attempts(BTreeMap<String, Tried>);

/// Returns the key of a step: kind, slot and version.
pub(super) fn key(step: &Step, template: &str) -> String {
    format!("{} {:?} {template}", step.act.name(), step.slot)
}

/// Returns the earliest time of the next trial. A time beyond the maximum
/// backoff is ignored: it was written by a wrong clock.
pub(super) fn not_before(ledger: &Ledger, now: Timestamp) -> Timestamp {
    let longest = SignedDuration::try_from(BACKOFF.longest()).unwrap_or(SignedDuration::ZERO);
    let latest = now.saturating_add(longest).unwrap_or(Timestamp::MAX);
    ledger.not_before.filter(|time| *time <= latest).unwrap_or(Timestamp::MIN)
}

impl Attempts {
    /// Returns the time until which this step is delayed; none: it may run now.
    pub(super) fn held(&mut self, key: &str, now: Instant) -> Option<Instant> {
        self.0.retain(|_, tried| now.saturating_duration_since(tried.ended) < FORGET_AFTER);
        let tried = self.0.get(key)?;
        let until = tried.ended + tried.wait;
        (now < until).then_some(until)
    }

    /// Records an attempt.
    pub(super) fn tried(&mut self, key: &str, now: Instant, random: f64) {
        self.tried_within(key, now, random, Duration::MAX);
    }

    /// Records an attempt, after which the next one waits at most `limit`.
    pub(super) fn tried_within(&mut self, key: &str, now: Instant, random: f64, limit: Duration) {
        let times = self.0.get(key).map_or(0, |tried| tried.times).saturating_add(1);
        let wait = BACKOFF.delay(times, random).min(limit);
        self.0.insert(key.to_owned(), Tried { times, ended: now, wait });
    }

    /// Returns the number of recent attempts.
    pub(super) fn times(&self, key: &str) -> u32 {
        self.0.get(key).map_or(0, |tried| tried.times)
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::SlotName;
    use bedplate_process::backoff::NO_JITTER;

    use super::*;
    use crate::model::Act;

    #[test]
    fn a_step_waits_longer_each_time_and_is_forgiven_after_a_while() {
        let (start, mut attempts) = (Instant::now(), Attempts::default());
        let start_slot = Step { slot: SlotName::A, act: Act::StartSlot };
        let step = key(&start_slot, "t");
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert_eq!(attempts.held(&step, now), None);
            attempts.tried(&step, now, NO_JITTER);
            let until = attempts.held(&step, now).unwrap();
            waits.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(attempts.times(&step), 12);
        assert_eq!(attempts.held(&key(&start_slot, "other"), start), None);
        assert_eq!(attempts.held(&step, now + FORGET_AFTER), None);
        attempts.tried(&step, now + FORGET_AFTER, NO_JITTER);
        assert_eq!(attempts.times(&step), 1);
    }
}
