//! In-memory state of an operation: requests sent, and current failures. A crash forgets it; state that must survive
//! is in the object (`progress`).
//!
//! Pure: no clock, no socket. Callers: `operation`, `worker`.

use bedplate_bmc::{BmcFault, PowerRequest};
use jiff::{SignedDuration, Timestamp};

use super::breaker::later;
use super::operation::PENDING_POLL_INTERVAL;
use bedplate_api::operation::StepName;

/// Failure of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The fault.
    pub fault: BmcFault,
    /// Text for users, with the remedy.
    pub message: String,
    /// True if the failure is temporary.
    pub transient: bool,
    /// True if the BMC may have carried out the request nevertheless.
    pub sent: bool,
}

/// Failure that is being retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Since when.
    pub since: Timestamp,
    /// Time at which it is tried again.
    pub again: Timestamp,
    /// True if the failed call was a request, not a read.
    pub asking: bool,
    /// The newest failure.
    pub failure: Failure,
}

/// A request that the BMC has, or may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Request that fails.
    pub request: PowerRequest,
    /// The time.
    pub at: Timestamp,
    /// The BMC has accepted it.
    pub accepted: bool,
}

/// Memory of an operation since this process took it. A crash forgets it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// This process has taken it, and when.
    pub taken: Option<Timestamp>,
    /// The step that this process has written itself.
    pub wrote: Option<StepName>,
    /// The last request of this step.
    pub sent: Option<Sent>,
    /// The BMC has no graceful power-off.
    pub no_graceful: bool,
    /// Current failure.
    pub trouble: Option<Trouble>,
}

/// Longest pause before something is tried again, and how far it is moved by chance, in seconds.
const PAUSE: (f64, f64) = (3.0, 1.5);

impl Memory {
    /// The step was written.
    pub(crate) fn stepped(&mut self, step: StepName) {
        *self = Self { taken: self.taken, wrote: Some(step), ..Self::default() };
    }

    /// Records that the BMC reported its state.
    pub fn looked(&mut self) {
        if self.trouble.as_ref().is_some_and(|trouble| !trouble.asking) {
            self.trouble = None;
        }
    }

    /// Records that the BMC did not report its state. `jitter` is from -1 to 1.
    pub(crate) fn blind(&mut self, failure: Failure, now: Timestamp, jitter: f64) {
        self.fails(failure, false, now, jitter);
    }

    /// The BMC has accepted a request.
    pub fn asked(&mut self, request: PowerRequest, now: Timestamp) {
        self.sent = Some(Sent { request, at: now, accepted: true });
        self.trouble = None;
    }

    /// A request failed. `jitter` is from -1 to 1.
    pub fn refused(&mut self, request: PowerRequest, failure: Failure, now: Timestamp, jitter: f64) {
        match request {
            PowerRequest::GracefulOff if failure.fault == BmcFault::NotSupported => self.no_graceful = true,
            PowerRequest::GracefulOff | PowerRequest::Reset | PowerRequest::Cycle if failure.sent => {
                self.sent = Some(Sent { request, at: now, accepted: false });
            }
            PowerRequest::On
            | PowerRequest::ForceOff
            | PowerRequest::GracefulOff
            | PowerRequest::Reset
            | PowerRequest::Cycle => self.fails(failure, true, now, jitter),
        }
    }

    fn fails(&mut self, failure: Failure, asking: bool, now: Timestamp, jitter: f64) {
        let before = self.trouble.take();
        let since = before.as_ref().map_or(now, |trouble| trouble.since);
        let asking = asking || before.is_some_and(|trouble| trouble.asking);
        let pause = PAUSE.0 + PAUSE.1 * jitter.clamp(-1.0, 1.0);
        let pause = SignedDuration::try_from_secs_f64(pause).unwrap_or(PENDING_POLL_INTERVAL);
        self.trouble = Some(Trouble { since, again: later(now, pause), asking, failure });
    }
}
