//! How long a trial has lasted, less what is not its fault: times in which the API server was away or the Machine held, and leaps of
//! the clock.
//!
//! What a killed agent has counted is lost: the next one begins with what the clock says.
//!
//! Pure: the caller says what time it is. Called by `run`.

use std::time::{Duration, Instant};

use bedplate_api::machine::SlotName;
use jiff::{SignedDuration, Timestamp};

use super::model::Api;

/// The time of the trial at hand.
#[derive(Debug, Default)]
pub(super) struct TrialTime(Option<Counted>);

#[derive(Debug)]
struct Counted {
    trial: (SlotName, Timestamp),
    lasted: Duration,
    looked: Instant,
    /// Whether the trial could go on then.
    api: Api,
}

impl TrialTime {
    /// Looks at the trial that is on, told by its slot and since when; `api` is live while it can go on. By how much its time-out is later than the clock would have it;
    /// less than zero if the clock was set back.
    pub(super) fn look(
        &mut self,
        trial: Option<(SlotName, Timestamp)>,
        api: Api,
        clock: Timestamp,
        now: Instant,
    ) -> SignedDuration {
        let Some(trial) = trial else {
            self.0 = None;
            return SignedDuration::ZERO;
        };
        let by_clock = clock.duration_since(trial.1);
        let counted = self.0.take().filter(|counted| counted.trial == trial).map(|counted| {
            let passed = now.saturating_duration_since(counted.looked);
            // A change wakes the loop at once: until then it was as it was at the last look, however long ago that is.
            let lasted = if counted.api == Api::Live { counted.lasted + passed } else { counted.lasted };
            Counted { lasted, looked: now, api, ..counted }
        });
        let lasted = Duration::try_from(by_clock).unwrap_or_default();
        let begun = || Counted { trial, lasted, looked: now, api };
        let counted = self.0.insert(counted.unwrap_or_else(begun));
        by_clock - SignedDuration::try_from(counted.lasted).unwrap_or(SignedDuration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn ten_minutes_without_the_api_server_are_not_counted() {
        let (mut time, start) = (TrialTime::default(), Instant::now());
        let trial = Some((SlotName::A, at(0)));
        let mut later = SignedDuration::ZERO;
        for second in 0..=800 {
            let api = if (100..700).contains(&second) { Api::Away } else { Api::Live };
            let now = start + Duration::from_secs(second.try_into().unwrap());
            later = time.look(trial, api, at(second), now);
        }
        assert_eq!(later.as_secs(), 600);
        assert_eq!(time.look(None, Api::Live, at(801), start), SignedDuration::ZERO);
    }

    #[test]
    fn a_clock_that_leaps_neither_ends_a_trial_nor_prolongs_it() {
        let (mut time, start) = (TrialTime::default(), Instant::now());
        let trial = Some((SlotName::A, at(0)));
        let mut look = |second: u64, clock: i64| {
            time.look(trial, Api::Live, at(clock), start + Duration::from_secs(second)).as_secs()
        };
        assert_eq!(look(0, 0), 0);
        assert_eq!(look(10, 10), 0);
        assert_eq!(look(20, 7220), 7200, "two hours ahead");
        assert_eq!(look(30, -3570), -3600, "an hour back");
    }

    #[test]
    fn what_lies_between_two_looks_counts_as_it_was_at_the_first() {
        let (mut time, start) = (TrialTime::default(), Instant::now());
        let trial = Some((SlotName::A, at(0)));
        let mut look = |second: u64, api: Api| {
            let clock = at(second.try_into().unwrap());
            time.look(trial, api, clock, start + Duration::from_secs(second)).as_secs()
        };
        look(0, Api::Live);
        look(10, Api::Away);
        // Nothing had it look meanwhile.
        assert_eq!(look(910, Api::Live), 900);
        assert_eq!(look(920, Api::Live), 900);
    }

    #[test]
    fn an_agent_that_begins_in_a_trial_goes_by_the_clock() {
        let (mut time, start) = (TrialTime::default(), Instant::now());
        assert_eq!(time.look(Some((SlotName::A, at(0))), Api::Live, at(90), start), SignedDuration::ZERO);
        let another = time.look(Some((SlotName::B, at(100))), Api::Live, at(90), start);
        assert_eq!(another.as_secs(), -10, "a clock that was set back meanwhile");
    }
}
