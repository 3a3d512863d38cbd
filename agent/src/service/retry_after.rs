//! Until when the agent's acts are held back: by a clock that nobody sets.
//!
//! Told to the plan as times of the host's clock as it is now, so that a clock that is set meanwhile neither holds an act back for longer nor
//! lets it go earlier. Called by `run`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::plan::NotBefore;

/// For enrollment, renewal and report, in this order.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct HeldBack([Option<Instant>; 3]);

impl HeldBack {
    /// From now on for so long.
    pub(super) fn hold(&mut self, act: usize, wait: Duration) {
        if let Some(until) = self.0.get_mut(act) {
            *until = Some(Instant::now() + wait);
        }
    }

    /// No longer.
    pub(super) fn free(&mut self, act: usize) {
        if let Some(until) = self.0.get_mut(act) {
            *until = None;
        }
    }

    /// The same by a clock that says `now`.
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
