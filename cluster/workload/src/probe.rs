//! Pure: decides from the outcomes of probes if a workload cluster can be reached.
//!
//! A single failure changes nothing: API servers restart during upgrades. It sends no request and reads no clock. `now` is the time since any
//! fixed start, by a monotonic clock. Called by `bedplate-cluster`.

use std::time::Duration;

use crate::RequestError;

/// Interval between probes of a cluster.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of consecutive failures after which a cluster counts as unreachable.
const MAX_FAILURES: u32 = 5;

/// State of the connection to a workload cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Reachability {
    /// There were too few probes to decide.
    #[default]
    Unknown,
    /// The API server answers.
    Reachable {
        /// Time of the first success.
        since: Duration,
    },
    /// The API server does not answer.
    Unreachable {
        /// Time of the first of the consecutive failures.
        since: Duration,
        /// Last failure.
        reason: RequestError,
    },
}

/// Outcomes of the probes of one cluster.
#[derive(Debug, Clone, Default)]
pub struct Probe {
    reachability: Reachability,
    failures: u32,
    failing_since: Option<Duration>,
}

impl Probe {
    /// Records the outcome of a probe. Returns true if the cluster has become reachable or unreachable.
    pub fn record(&mut self, outcome: Result<(), RequestError>, now: Duration) -> bool {
        let was_reachable = matches!(self.reachability, Reachability::Reachable { .. });
        let was_unreachable = matches!(self.reachability, Reachability::Unreachable { .. });
        match outcome {
            Ok(()) => {
                self.failures = 0;
                self.failing_since = None;
                if !was_reachable {
                    self.reachability = Reachability::Reachable { since: now };
                }
                !was_reachable
            }
            Err(reason) => {
                self.failures = self.failures.saturating_add(1);
                let since = *self.failing_since.get_or_insert(now);
                if self.failures < MAX_FAILURES {
                    return false;
                }
                self.reachability = Reachability::Unreachable { since, reason };
                !was_unreachable
            }
        }
    }

    /// Returns the present state.
    pub fn reachability(&self) -> &Reachability {
        &self.reachability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn four_failures_change_nothing_and_the_fifth_is_reported_once() {
        let mut probe = Probe::default();
        assert!(probe.record(Ok(()), at(0)));
        for n in 1..5 {
            assert!(!probe.record(Err(RequestError::Timeout), at(n * 10)));
            assert_eq!(probe.reachability(), &Reachability::Reachable { since: at(0) });
        }
        assert!(probe.record(Err(RequestError::Unreachable), at(50)));
        let expected = Reachability::Unreachable { since: at(10), reason: RequestError::Unreachable };
        assert_eq!(probe.reachability(), &expected);
        assert!(!probe.record(Err(RequestError::Unreachable), at(60)));
        assert_eq!(probe.reachability(), &expected);
    }

    #[test]
    fn success_starts_the_count_of_failures_again() {
        let mut probe = Probe::default();
        for n in 0..4 {
            assert!(!probe.record(Err(RequestError::Timeout), at(n * 10)));
        }
        assert_eq!(probe.reachability(), &Reachability::Unknown);
        assert!(probe.record(Ok(()), at(40)));
        for n in 5..9 {
            assert!(!probe.record(Err(RequestError::Timeout), at(n * 10)));
        }
        assert!(!probe.record(Ok(()), at(90)));
        assert_eq!(probe.reachability(), &Reachability::Reachable { since: at(40) });
    }
}
