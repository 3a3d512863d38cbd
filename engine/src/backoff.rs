//! Pure: when an object is tried again that failed, and whether that is worth a line in the log.
//!
//! Failures of one sort in a row double the wait, up to a limit, each object for itself and with some chance in it, so that many do not
//! come back at once. An API server that names a time is not asked before it. A reason is told when it is another one; a conflict, which is usual, when it does not end. Asked by `engine`.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_process::backoff::Backoff as Delays;

use crate::write::WriteError;

/// Conflicts in a row after which one is told: no watch is that far behind.
const CONFLICTS_TOLD: u32 = 6;

/// The longest time that the API server may name.
const LONGEST_NAMED: Duration = Duration::from_secs(120);

/// Objects of one kind that failed when they were looked at last.
#[derive(Debug, Default)]
pub struct Backoff(BTreeMap<String, Failure>);

#[derive(Debug)]
struct Failure {
    sort: Sort,
    reason: String,
    /// In a row.
    times: u32,
}

/// What comes after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    /// It is tried again after this time.
    pub after: Duration,
    /// It is to be told.
    pub told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Conflict,
    Later,
    Refused,
    Deposed,
}

impl Sort {
    fn of(error: &WriteError) -> Self {
        match error {
            WriteError::Conflict { .. } => Self::Conflict,
            WriteError::Later { .. } => Self::Later,
            WriteError::Refused { .. } => Self::Refused,
            WriteError::Deposed => Self::Deposed,
        }
    }

    /// Delays between two attempts.
    fn delays(self) -> Delays {
        match self {
            // The watch brings what has changed.
            Self::Conflict => Delays::new(Duration::from_millis(200), Duration::from_secs(10)),
            Self::Later => Delays::new(Duration::from_secs(1), Duration::from_secs(60)),
            // Only a person can change it, and mostly by an edit, which comes by the watch.
            Self::Refused => Delays::new(Duration::from_secs(30), Duration::from_secs(300)),
            // A lease that lapsed for a moment is there again soon; who waits for another controller's end waits for long.
            Self::Deposed => Delays::new(Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

/// What the API server has said of when to come again.
fn named(error: &WriteError) -> Duration {
    match error {
        WriteError::Later { again, .. } => again.unwrap_or_default(),
        WriteError::Conflict { .. } | WriteError::Refused { .. } | WriteError::Deposed => Duration::ZERO,
    }
}

impl Backoff {
    /// An object has failed; `random` is at least 0 and less than 1.
    pub fn failed(&mut self, object: &str, error: &WriteError, random: f64) -> Again {
        let (sort, reason) = (Sort::of(error), error.to_string());
        let before = self.0.remove(object).filter(|before| before.sort == sort);
        let times = before.as_ref().map_or(1, |before| before.times.saturating_add(1));
        let told = match sort {
            Sort::Conflict => times == CONFLICTS_TOLD,
            Sort::Later | Sort::Refused => before.is_none_or(|before| before.reason != reason),
            Sort::Deposed => false,
        };
        self.0.insert(object.to_owned(), Failure { sort, reason, times });
        let own = sort.delays().delay(times, random);
        // Not before it, and not all of them just then.
        let named = named(error).min(LONGEST_NAMED).mul_f64(1.0 + random / 4.0);
        Again { after: own.max(named), told }
    }

    /// An object is as it ought to be, or gone.
    pub fn done(&mut self, object: &str) {
        self.0.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use bedplate_process::backoff::NO_JITTER;

    use super::*;

    fn later(why: &str) -> WriteError {
        WriteError::Later { what: "Machine a".to_owned(), why: why.to_owned(), again: None }
    }

    fn conflict() -> WriteError {
        WriteError::Conflict { what: "Machine a".to_owned() }
    }

    #[test]
    fn who_fails_again_waits_twice_as_long_up_to_a_limit_and_each_object_for_itself() {
        let mut backoff = Backoff::default();
        let seconds = |again: Again| again.after.as_secs_f64();
        let waits: Vec<f64> =
            (0..8).map(|_| seconds(backoff.failed("a", &later("away"), NO_JITTER))).collect();
        assert_eq!(waits, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
        assert_eq!(seconds(backoff.failed("b", &later("away"), NO_JITTER)), 1.0);
        backoff.done("a");
        assert_eq!(seconds(backoff.failed("a", &later("away"), 0.0)), 0.75);
        for _ in 0..40 {
            let wait = seconds(backoff.failed("c", &conflict(), 0.999));
            assert!(wait <= 12.5, "{wait}");
        }
        assert_eq!(seconds(backoff.failed("c", &later("away"), NO_JITTER)), 1.0, "another sort begins anew");
    }

    #[test]
    fn what_an_api_server_says_of_when_to_come_again_is_honoured_and_bounded() {
        let mut backoff = Backoff::default();
        let mut after = |seconds: u64, random| {
            let again = Some(Duration::from_secs(seconds));
            let (what, why) = ("Machine a".to_owned(), "429".to_owned());
            let error = WriteError::Later { what, why, again };
            backoff.done("a");
            backoff.failed("a", &error, random).after.as_secs_f64()
        };
        assert_eq!(after(30, 0.0), 30.0, "never before");
        assert!((30.0..=37.5).contains(&after(30, 0.999)), "not all at once");
        assert_eq!(after(0, NO_JITTER), 1.0);
        assert_eq!(after(u64::from(u32::MAX), 0.0), 120.0);
    }

    #[test]
    fn a_reason_is_told_once_until_it_is_another_one() {
        let mut backoff = Backoff::default();
        let mut told = |error: &WriteError| backoff.failed("a", error, NO_JITTER).told;
        assert!(told(&later("503")));
        assert!(!told(&later("503")));
        assert!(told(&later("403")));
        assert!(!told(&WriteError::Deposed));
        let refused = WriteError::Refused { what: "Machine a".to_owned(), why: "422".to_owned() };
        assert_eq!([told(&refused), told(&refused)], [true, false]);
    }

    #[test]
    fn conflicts_are_told_once_when_they_do_not_end() {
        let mut backoff = Backoff::default();
        let told: Vec<u32> = (1..100).filter(|_| backoff.failed("a", &conflict(), NO_JITTER).told).collect();
        assert_eq!(told, [CONFLICTS_TOLD]);
    }
}
