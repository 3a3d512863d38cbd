//! Retry times of a BMC that does not answer.
//!
//! ```text
//! closed --3 failures in a row--> open --time--> half-open --success--> closed
//!    |                             ^                 |
//!    |                             +----failure------+   (back-off 5 s, doubled up to 5 min, +-25 %)
//!    +--wrong password, certificate, address--> held --other credentials or spec, certificates: an hour--> closed
//! ```
//!
//! Only polling asks it. An operation of a user is always tried. Pure: no clock, no randomness. Caller: `worker`.

use std::time::Duration;

use bedplate_bmc::BmcFault;
use bedplate_process::backoff::Backoff;
use jiff::{SignedDuration, Timestamp};

/// Failures in a row until it opens.
const MOST_FAILURES: u32 = 3;
/// Pauses after failures in a row.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));
/// Delay before a held BMC is tried again, because a user may have fixed the BMC.
const HELD_FOR: SignedDuration = SignedDuration::from_hours(1);

/// State of the breaker of one BMC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Breaker {
    /// The BMC is asked. The value counts consecutive failures.
    Closed(u32),
    /// The BMC is not asked.
    Open {
        /// Failures in a row.
        failures: u32,
        /// Time at which it is tried again.
        until: Timestamp,
    },
    /// The BMC is asked once.
    HalfOpen(u32),
    /// The BMC is not asked until a user corrects the configuration.
    Held {
        /// Time at which it is tried again although nothing was; `None`: never.
        until: Option<Timestamp>,
    },
}

/// State of the breaker in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Asked.
    Closed,
    /// Requests are suspended for a while.
    Open,
    /// Being tried.
    HalfOpen,
    /// Requests are suspended until a user corrects the configuration.
    Held,
}

impl Shown {
    /// Every one.
    pub(crate) const ALL: [Self; 4] = [Self::Closed, Self::Open, Self::HalfOpen, Self::Held];

    /// Word of the state in `/metrics`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "probing",
            Self::Held => "blocked",
        }
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed(0)
    }
}

impl Breaker {
    /// Returns the state for metrics.
    pub(crate) const fn shown(&self) -> Shown {
        match self {
            Self::Closed(_) => Shown::Closed,
            Self::Open { .. } => Shown::Open,
            Self::HalfOpen(_) => Shown::HalfOpen,
            Self::Held { .. } => Shown::Held,
        }
    }

    /// Returns true if polling may ask now. An open breaker whose delay has passed admits one attempt.
    pub(crate) fn admits(&mut self, now: Timestamp) -> bool {
        match self {
            Self::Closed(_) | Self::HalfOpen(_) => true,
            Self::Open { failures, until } if *until <= now => {
                *self = Self::HalfOpen(*failures);
                true
            }
            Self::Held { until: Some(until) } if *until <= now => {
                *self = Self::HalfOpen(MOST_FAILURES);
                true
            }
            Self::Open { .. } | Self::Held { .. } => false,
        }
    }

    /// Time at which polling may ask again. `None`: now, or only after a correction.
    pub(crate) const fn next_try(&self) -> Option<Timestamp> {
        match self {
            Self::Open { until, .. } => Some(*until),
            Self::Held { until } => *until,
            Self::Closed(_) | Self::HalfOpen(_) => None,
        }
    }

    /// The BMC has answered.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::Closed(0);
    }

    /// The BMC has not, or not usefully. `jitter` is from -1 to 1.
    pub(crate) fn failed(&mut self, reason: BmcFault, now: Timestamp, jitter: f64) {
        *self = match reason {
            // Only a user can correct these: a change of the Machine, its Secret or the other Machine ends the hold.
            BmcFault::AuthenticationFailed
            | BmcFault::CredentialsUnavailable
            | BmcFault::CredentialsNotForThisAddress
            | BmcFault::InsecureNotAllowed
            | BmcFault::DuplicateBmc => Self::Held { until: None },
            BmcFault::CertificateChanged
            | BmcFault::CertificateUntrusted
            | BmcFault::AmbiguousSystem
            | BmcFault::SystemNotFound
            | BmcFault::AddressNotAllowed => Self::Held { until: Some(later(now, HELD_FOR)) },
            // The BMC answers: an unsupported request does not prevent other requests.
            BmcFault::NotSupported => Self::Closed(0),
            BmcFault::BmcUnreachable | BmcFault::TimedOut | BmcFault::Refused | BmcFault::ProtocolError => {
                self.missed(now, jitter)
            }
        };
    }

    fn missed(&self, now: Timestamp, jitter: f64) -> Self {
        // A user's operation tried it nevertheless. Repeated operations do not postpone polling.
        if let Self::Open { until, .. } = self
            && now < *until
        {
            return self.clone();
        }
        let failures = match self {
            Self::Closed(failures) | Self::HalfOpen(failures) | Self::Open { failures, .. } => *failures,
            Self::Held { .. } => MOST_FAILURES - 1,
        };
        let failures = failures.saturating_add(1);
        if failures < MOST_FAILURES {
            return Self::Closed(failures);
        }
        let pause = BACKOFF.delay(failures - MOST_FAILURES + 1, f64::midpoint(jitter, 1.0));
        let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::from_secs(300));
        Self::Open { failures, until: later(now, pause) }
    }
}

/// `now` moved by `by`, at most to the end of time.
pub(crate) fn later(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn opens_after_three_failures_and_doubles_pauses_up_to_five_minutes() {
        let mut breaker = Breaker::default();
        let mut now = at(0);
        let mut pauses = Vec::new();
        for failure in 1..=12 {
            assert!(breaker.admits(now), "failure {failure}");
            breaker.failed(BmcFault::BmcUnreachable, now, 0.0);
            if let Some(next) = breaker.next_try() {
                assert!(!breaker.admits(now));
                pauses.push(next.duration_since(now).as_secs());
                now = next;
            }
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300, 300]);
        assert!(breaker.admits(now));
        assert_eq!(breaker.shown(), Shown::HalfOpen);
        breaker.succeeded();
        assert_eq!(breaker, Breaker::Closed(0));
    }

    #[test]
    fn tries_of_an_operation_do_not_put_off_polling() {
        let mut breaker = Breaker::Closed(2);
        breaker.failed(BmcFault::BmcUnreachable, at(0), 0.0);
        let next = breaker.next_try();
        for second in 1..5 {
            breaker.failed(BmcFault::BmcUnreachable, at(second), 0.0);
        }
        assert_eq!((next, breaker.next_try()), (Some(at(5)), Some(at(5))));
        breaker.failed(BmcFault::BmcUnreachable, at(5), 0.0);
        assert_eq!(breaker.next_try(), Some(at(15)));
    }

    #[test]
    fn jitter_moves_a_pause_by_a_quarter_at_most() {
        for (jitter, seconds) in [(-1.0, 3.75), (0.0, 5.0), (1.0, 6.25), (9.0, 6.25)] {
            let mut breaker = Breaker::Closed(2);
            breaker.failed(BmcFault::TimedOut, at(0), jitter);
            let pause = breaker.next_try().unwrap().duration_since(at(0)).as_secs_f64();
            assert!((pause - seconds).abs() < 1e-6, "{jitter}: {pause}");
        }
    }

    #[test]
    fn a_wrong_password_is_held_for_ever_and_a_certificate_for_an_hour() {
        let mut breaker = Breaker::default();
        breaker.failed(BmcFault::AuthenticationFailed, at(0), 0.0);
        assert!(!breaker.admits(at(1_000_000)));
        for reason in [BmcFault::CertificateChanged, BmcFault::AddressNotAllowed, BmcFault::SystemNotFound] {
            let mut breaker = Breaker::default();
            breaker.failed(reason, at(0), 0.0);
            assert!(!breaker.admits(at(3599)), "{reason}");
            assert!(breaker.admits(at(3600)), "{reason}");
            breaker.failed(BmcFault::BmcUnreachable, at(3600), 0.0);
            assert_eq!(breaker.shown(), Shown::Open);
        }
    }

    #[test]
    fn unsupported_request_does_not_block_other_requests() {
        let mut breaker = Breaker::Closed(2);
        breaker.failed(BmcFault::NotSupported, at(0), 0.0);
        assert_eq!(breaker, Breaker::Closed(0));
    }
}
