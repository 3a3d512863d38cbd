//! Pure: the delay after which a failed object is reconciled again, and the decision whether the failure is logged.
//!
//! Each object has its own delay. Consecutive failures of one sort double it, up to a limit, with jitter, so that many objects do not
//! return concurrently. If the API server names a time, the object is not reconciled before it. A failure is logged when its reason
//! changes. Conflicts are usual, and are logged only if they persist. Called by `work`.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_process::backoff::Backoff as Delays;

use crate::write::WriteError;

/// Number of consecutive conflicts after which one is logged: no watch is that far behind.
const LOGGED_CONFLICTS: u32 = 6;

/// Maximum delay that the API server may name.
const MAX_NAMED_DELAY: Duration = Duration::from_secs(120);

/// Objects of one kind whose last reconciliation failed, by their full names.
#[derive(Debug, Default)]
pub(crate) struct Backoff(BTreeMap<String, Failure>);

#[derive(Debug)]
struct Failure {
    sort: Sort,
    reason: String,
    /// Number of consecutive failures of this sort.
    times: u32,
}

/// Decision about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retry {
    /// Delay of the next reconciliation.
    pub(crate) after: Duration,
    /// True if the failure is logged.
    pub(crate) is_logged: bool,
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
            WriteError::Later { .. } | WriteError::Forbidden { .. } => Self::Later,
            WriteError::Refused { .. } => Self::Refused,
            WriteError::Deposed => Self::Deposed,
        }
    }

    /// Delays between two attempts.
    fn delays(self) -> Delays {
        match self {
            // The watch returns the changed object.
            Self::Conflict => Delays::new(Duration::from_millis(200), Duration::from_secs(10)),
            Self::Later => Delays::new(Duration::from_secs(1), Duration::from_secs(60)),
            // Only a user can correct the object, usually by an edit, which the watch returns.
            Self::Refused => Delays::new(Duration::from_secs(30), Duration::from_secs(300)),
            // A Lease that lapsed for a moment is soon held again. Another controller may hold it for long.
            Self::Deposed => Delays::new(Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

/// Returns the delay that the API server names.
fn named(error: &WriteError) -> Duration {
    match error {
        WriteError::Later { again, .. } => again.unwrap_or_default(),
        WriteError::Conflict { .. }
        | WriteError::Forbidden { .. }
        | WriteError::Refused { .. }
        | WriteError::Deposed => Duration::ZERO,
    }
}

impl Backoff {
    /// Records a failure of an object. `random` is at least 0 and less than 1.
    pub(crate) fn failed(&mut self, object: &str, error: &WriteError, random: f64) -> Retry {
        let (sort, reason) = (Sort::of(error), error.to_string());
        let before = self.0.remove(object).filter(|before| before.sort == sort);
        let times = before.as_ref().map_or(1, |before| before.times.saturating_add(1));
        let is_logged = match sort {
            Sort::Conflict => times == LOGGED_CONFLICTS,
            Sort::Later | Sort::Refused => before.is_none_or(|before| before.reason != reason),
            Sort::Deposed => false,
        };
        self.0.insert(object.to_owned(), Failure { sort, reason, times });
        let own = sort.delays().delay(times, random);
        // Later than the named time, by different delays.
        let named = named(error).min(MAX_NAMED_DELAY).mul_f64(1.0 + random / 4.0);
        Retry { after: own.max(named), is_logged }
    }

    /// Forgets an object that is reconciled or deleted.
    pub(crate) fn done(&mut self, object: &str) {
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
    fn each_object_doubles_its_delay_up_to_a_limit() {
        let mut backoff = Backoff::default();
        let seconds = |retry: Retry| retry.after.as_secs_f64();
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
        assert_eq!(seconds(backoff.failed("c", &later("away"), NO_JITTER)), 1.0, "another sort starts again");
    }

    #[test]
    fn delay_that_the_api_server_names_is_kept_and_bounded() {
        let mut backoff = Backoff::default();
        let mut after = |seconds: u64, random| {
            let again = Some(Duration::from_secs(seconds));
            let (what, why) = ("Machine a".to_owned(), "429".to_owned());
            let error = WriteError::Later { what, why, again };
            backoff.done("a");
            backoff.failed("a", &error, random).after.as_secs_f64()
        };
        assert_eq!(after(30, 0.0), 30.0, "never before");
        assert!((30.0..=37.5).contains(&after(30, 0.999)), "not all concurrently");
        assert_eq!(after(0, NO_JITTER), 1.0);
        assert_eq!(after(u64::from(u32::MAX), 0.0), 120.0);
    }

    #[test]
    fn reason_is_logged_once_until_it_changes() {
        let mut backoff = Backoff::default();
        let mut logged = |error: &WriteError| backoff.failed("a", error, NO_JITTER).is_logged;
        assert!(logged(&later("503")));
        assert!(!logged(&later("503")));
        assert!(logged(&later("403")));
        assert!(!logged(&WriteError::Deposed));
        let refused = WriteError::Refused { what: "Machine a".to_owned(), why: "422".to_owned() };
        assert_eq!([logged(&refused), logged(&refused)], [true, false]);
    }

    #[test]
    fn conflicts_are_logged_once_if_they_persist() {
        let mut backoff = Backoff::default();
        let logged = |_: &u32| backoff.failed("a", &conflict(), NO_JITTER).is_logged;
        let logged: Vec<u32> = (1..100).filter(logged).collect();
        assert_eq!(logged, [LOGGED_CONFLICTS]);
    }
}
