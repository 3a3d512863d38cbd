//! Elapsed time of a trial. It excludes times in which the API server was
//! unreachable or the Machine held, and jumps of the clock.
//!
//! The count is stored in `/run`, so that the next agent continues it: a time
//! without an agent does not count either. Without the stored count, the clock
//! decides. A boot deletes the file, and a trial starts again with a boot.
//!
//! Only that file is read and written: the caller passes the time. Called by `run`.

use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_api::machine::SlotName;
use bedplate_process::file::{FileError, read_json, write_json};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::Api;

/// The note, below `/run/bedplate`.
const FILE: &str = "trial.json";
/// Minimum increase of the count before it is stored again.
const STORE_INTERVAL: Duration = Duration::from_secs(1);

/// The time of the trial at hand.
#[derive(Debug, Default)]
pub(super) struct TrialTime {
    counted: Option<Counted>,
    /// Last stored count, of this agent or the one before.
    noted: Option<Lasted>,
}

/// Elapsed time of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lasted {
    slot: SlotName,
    since: Timestamp,
    milliseconds: u64,
}

impl Lasted {
    fn time(&self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }
}

#[derive(Debug)]
struct Counted {
    trial: (SlotName, Timestamp),
    lasted: Duration,
    looked: Instant,
    /// Reachability at the last call: the trial could continue if it was live.
    api: Api,
}

impl TrialTime {
    /// Goes on from the note of the agent before, if there is one of this boot.
    pub(super) fn read(run_directory: &Path) -> Self {
        Self { counted: None, noted: read_json(&run_directory.join(FILE)).ok().flatten() }
    }

    /// Notes what was counted, if that is more than what was noted last.
    pub(super) fn write(&mut self, run_directory: &Path) -> Result<(), FileError> {
        let Some(Counted { trial: (slot, since), lasted, .. }) = self.counted else { return Ok(()) };
        let noted = self.noted.as_ref().filter(|noted| (noted.slot, noted.since) == (slot, since));
        if noted.is_some_and(|noted| lasted < noted.time() + STORE_INTERVAL) {
            return Ok(());
        }
        let milliseconds = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
        let lasted = Lasted { slot, since, milliseconds };
        write_json(&run_directory.join(FILE), &lasted, 0o600)?;
        self.noted = Some(lasted);
        Ok(())
    }

    /// Counts the time of the current trial, named by its slot and start. `api`
    /// is live while the trial can continue. Returns by how much its timeout is
    /// later than by the clock; negative if the clock was set back.
    pub(super) fn look(
        &mut self,
        trial: Option<(SlotName, Timestamp)>,
        api: Api,
        clock: Timestamp,
        now: Instant,
    ) -> SignedDuration {
        let Some(trial) = trial else {
            self.counted = None;
            return SignedDuration::ZERO;
        };
        let by_clock = clock.duration_since(trial.1);
        let counted = self.counted.take().filter(|counted| counted.trial == trial).map(|counted| {
            let passed = now.saturating_duration_since(counted.looked);
            // A change wakes the loop immediately. So the state of the last call held until now.
            let lasted = if counted.api == Api::Live { counted.lasted + passed } else { counted.lasted };
            Counted { lasted, looked: now, api, ..counted }
        });
        let noted = self.noted.as_ref().filter(|noted| (noted.slot, noted.since) == trial).map(Lasted::time);
        let lasted = noted.unwrap_or_else(|| Duration::try_from(by_clock).unwrap_or_default());
        let started = || Counted { trial, lasted, looked: now, api };
        let counted = self.counted.insert(counted.unwrap_or_else(started));
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
    fn time_between_two_calls_counts_by_the_state_of_the_first() {
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
    fn next_agent_continues_the_count_of_a_trial() {
        let (directory, start) = (tempfile::tempdir().unwrap(), Instant::now());
        let trial = Some((SlotName::B, at(0)));
        let mut time = TrialTime::read(directory.path());
        let look = |time: &mut TrialTime, second: u64, api: Api| {
            let now = start + Duration::from_secs(second);
            let later = time.look(trial, api, at(second.try_into().unwrap()), now).as_secs();
            time.write(directory.path()).unwrap();
            later
        };
        look(&mut time, 0, Api::Live);
        look(&mut time, 60, Api::Away);
        assert_eq!(look(&mut time, 900, Api::Live), 840, "paused, or without the API server");
        // Killed; the next one begins after ten minutes.
        let mut next = TrialTime::read(directory.path());
        assert_eq!(look(&mut next, 1500, Api::Live), 1440, "60 s were counted");
        assert_eq!(look(&mut next, 1530, Api::Live), 1440, "and 30 s more");
        let mut third = TrialTime::read(directory.path());
        assert_eq!(look(&mut third, 1531, Api::Live), 1441);
        let later = third.look(Some((SlotName::B, at(1600))), Api::Live, at(1605), start);
        assert_eq!(later, SignedDuration::ZERO, "another trial of the same slot");
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        assert_eq!(TrialTime::read(directory.path()).noted, None);
    }

    #[test]
    fn an_agent_that_finds_no_note_of_a_trial_goes_by_the_clock() {
        let (mut time, start) = (TrialTime::default(), Instant::now());
        assert_eq!(time.look(Some((SlotName::A, at(0))), Api::Live, at(90), start), SignedDuration::ZERO);
        let another = time.look(Some((SlotName::B, at(100))), Api::Live, at(90), start);
        assert_eq!(another.as_secs(), -10, "a clock that was set back meanwhile");
    }
}
