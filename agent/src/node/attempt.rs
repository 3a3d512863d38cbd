//! How often a step was tried of late, and when it may be tried again.
//!
//! A step that succeeded and is planned again did not hold, which is as good as a failure: both wait, 1 s doubling to 5 min.
//! Pure: the caller says what time it is. Called by `run`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bedplate_process::backoff::Backoff;

use crate::model::Step;

/// Delay between two tries.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// What was tried last before that is not held against it any more.
const FORGOTTEN: Duration = Duration::from_secs(900);

#[derive(Debug, Clone, Copy)]
struct Tried {
    times: u32,
    ended: Instant,
    wait: Duration,
}

/// What was tried of late.
#[derive(Debug, Default)]
pub(super) struct Attempts(BTreeMap<String, Tried>);

/// What counts as the same step: of the same kind, on the same slot, for the same version.
pub(super) fn key(step: &Step, template: &str) -> String {
    format!("{} {:?} {template}", step.name(), step.slot())
}

impl Attempts {
    /// Until when this has to wait; none: it may be tried.
    pub(super) fn held(&mut self, key: &str, now: Instant) -> Option<Instant> {
        self.0.retain(|_, tried| now.saturating_duration_since(tried.ended) < FORGOTTEN);
        let tried = self.0.get(key)?;
        let until = tried.ended + tried.wait;
        (now < until).then_some(until)
    }

    /// It was tried.
    pub(super) fn tried(&mut self, key: &str, now: Instant, random: f64) {
        self.tried_within(key, now, random, Duration::MAX);
    }

    /// Notes a try, after which the next one waits for `limit` at most.
    pub(super) fn tried_within(&mut self, key: &str, now: Instant, random: f64, limit: Duration) {
        let times = self.0.get(key).map_or(0, |tried| tried.times).saturating_add(1);
        let wait = BACKOFF.delay(times, random).min(limit);
        self.0.insert(key.to_owned(), Tried { times, ended: now, wait });
    }

    /// How often it was tried of late.
    pub(super) fn times(&self, key: &str) -> u32 {
        self.0.get(key).map_or(0, |tried| tried.times)
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::SlotName;
    use bedplate_process::backoff::NO_JITTER;

    use super::*;

    #[test]
    fn a_step_waits_longer_each_time_and_is_forgiven_after_a_while() {
        let (start, mut attempts) = (Instant::now(), Attempts::default());
        let step = key(&Step::StartSlot { slot: SlotName::A }, "t");
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
        assert_eq!(attempts.held(&key(&Step::StartSlot { slot: SlotName::A }, "other"), start), None);
        assert_eq!(attempts.held(&step, now + FORGOTTEN), None);
        attempts.tried(&step, now + FORGOTTEN, NO_JITTER);
        assert_eq!(attempts.times(&step), 1);
    }
}
