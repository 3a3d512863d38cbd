//! Delays of the agent's acts, by a monotonic clock.
//!
//! The plan gets them as times of the host's current clock. So setting the
//! clock neither lengthens nor shortens a delay. Called by `run`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::plan::NotBefore;

/// Delays of enrollment, renewal and report, in this order.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct HeldBack([Option<Instant>; 3]);

impl HeldBack {
    /// Delays an act by this time from now on.
    pub(super) fn hold(&mut self, act: usize, wait: Duration) {
        if let Some(until) = self.0.get_mut(act) {
            *until = Some(Instant::now() + wait);
        }
    }

    /// Removes the delay of an act.
    pub(super) fn free(&mut self, act: usize) {
        if let Some(until) = self.0.get_mut(act) {
            *until = None;
        }
    }

    /// Returns the earliest times of the acts, by a clock that shows `now`.
    pub(super) fn not_before(&self, now: Timestamp) -> NotBefore {
        let [enroll, renew, report] = self.0.map(|until| {
            let left = until.and_then(|until| until.checked_duration_since(Instant::now()));
            let left = left.filter(|left| !left.is_zero()).map(SignedDuration::try_from);
            left.map_or(Timestamp::MIN, |left| {
                now.saturating_add(left.unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
            })
        });
        NotBefore { enroll, renew, report }
    }
}
