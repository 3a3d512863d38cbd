//! Next act of an operation in progress, from its object, this process's memory and the BMC's answers (docs/design/rules.md,
//! O1, O7).
//!
//! ```text
//! powerOn     take -> [On]: request on until the BMC reports On                                  -> Complete
//! powerOff    take -> [GracefulOff]: ask once --grace over, or not supported--> [Off]            -> Complete
//!             take -> [Off] (forced): request forced off until the BMC reports Off               -> Complete
//! powerCycle  take -> [Off]: request forced off until Off -> [On]: rest, request on until On     -> Complete
//!             take, and it is off: [On]
//! reset       take -> [Reset]: ask once -> accepted, or a boot started since                     -> Complete
//! ```
//!
//! `[Step]` is written to the object before the first request of that step, and taking the operation writes too. So
//! the successor after a crash or a change of leader knows the step, and the API server rejects a write that is based
//! on an old object. On and forced off may be repeated, as the step says which one it is; GracefulOff and Reset are
//! sent only by the process that wrote the step.
//!
//! Pure: no clock, no socket. Caller: `worker`.

use bedplate_api::machine::PowerState;
use bedplate_api::operation::StepName;
use bedplate_api::reason::operation::PowerOutcome;
use bedplate_bmc::{BmcFault, PowerRequest};
use jiff::{SignedDuration, Timestamp};

pub use super::attempts::{Failure, Memory, Sent, Trouble};
use super::breaker::later;
use super::parameters::{Boot, Kind, Off, Order};
use crate::power::progress::Written;

/// Interval between power state requests while a change is pending.
pub(crate) const PENDING_POLL_INTERVAL: SignedDuration = SignedDuration::from_secs(2);
/// Delay before an accepted request is repeated: some BMCs report the old state for a while.
const REQUEST_REPEAT_DELAY: SignedDuration = SignedDuration::from_secs(30);
/// Period after pxed's own last act in which a contradicting state is not believed.
const STALE_STATE_PERIOD: SignedDuration = SignedDuration::from_secs(15);
/// Clocks of a site's pxed differ by less; what is said to have been done later than that was said by a clock set back since.
pub const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// An object keeps whole seconds.
const TIMESTAMP_RESOLUTION: SignedDuration = SignedDuration::from_secs(1);
/// Off time of a power cycle: power supplies keep their voltage for a while, and a board that never lost its power
/// may come up in the state that hung it.
const POWER_CYCLE_OFF_TIME: SignedDuration = SignedDuration::from_secs(5);
/// Period for which transient failures are retried.
const TRANSIENT_FAILURE_TIMEOUT: SignedDuration = SignedDuration::from_secs(45);

/// Power state that the BMC reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Reported state.
    pub state: PowerState,
    /// The time.
    pub at: Timestamp,
}

/// Last power action of pxed on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastAct {
    /// True if the action leaves the machine on.
    pub leaves_on: bool,
    /// The time.
    pub at: Timestamp,
}

impl LastAct {
    /// Returns the time until which this reading is not believed because it contradicts the last action.
    pub(crate) fn doubts(&self, reading: &Reading) -> Option<Timestamp> {
        let contradicts = match reading.state {
            PowerState::On => !self.leaves_on,
            PowerState::Off => self.leaves_on,
            PowerState::PoweringOn | PowerState::PoweringOff | PowerState::Unknown => false,
        };
        let until = later(self.at, STALE_STATE_PERIOD);
        (contradicts && reading.at < until && self.at <= later(reading.at, MAX_CLOCK_SKEW)).then_some(until)
    }
}

/// Observed state of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// The newest reading.
    pub reading: Option<Reading>,
    /// Time at which the seed of the latest boot left pxed. Packets alone do not prove a boot: any client on the network can send them.
    pub seed_taken: Option<Timestamp>,
    /// Last power action of pxed, for another operation or by its own plan.
    pub last: Option<LastAct>,
}

/// Result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// True if the operation was carried out.
    pub complete: bool,
    /// Reason of the operation.
    pub reason: PowerOutcome,
    /// Text for users.
    pub message: String,
}

/// Next act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Write that this process carries it out.
    Take,
    /// Write the step.
    WriteStep(StepName),
    /// Read the power state.
    Read,
    /// Send a request; before it the source of the next boot is set.
    Ask(PowerRequest, Boot),
    /// Do nothing until this time.
    Wait(Timestamp),
    /// Write how it ended.
    Finish(End),
}

/// Decides the next act of this operation.
pub fn next(order: &Order, written: Option<&Written>, memory: &Memory, seen: &Seen, now: Timestamp) -> Act {
    let (Some(written), Some(taken)) = (written, memory.taken) else { return Act::Take };
    let case = Case { order, written, memory, seen, now, deadline: later(written.start, order.timeout) };
    if case.needs_evidence() {
        return case.evidence();
    }
    if let Some(trouble) = &memory.trouble {
        if !trouble.failure.transient || now >= case.gives_up(trouble) {
            if case.forces_instead(trouble) {
                return Act::WriteStep(StepName::Off);
            }
            return case.fail(trouble.failure.fault.into(), trouble.failure.message.clone());
        }
        if now < trouble.again {
            return Act::Wait(trouble.again.min(case.deadline));
        }
    }
    let since = memory.sent.map_or(taken, |sent| sent.at.max(taken));
    // A clock that was set back would make every reading older than what was asked, or one fresh for hours.
    let fresh = |reading: &Reading| {
        let after = since > now || reading.at >= since;
        after && reading.at <= now && now < later(reading.at, PENDING_POLL_INTERVAL)
    };
    let Some(reading) = seen.reading.filter(fresh) else { return Act::Read };
    match case.judge(&reading) {
        done @ Act::Finish(_) => done,
        _ if now >= case.deadline => case.timed_out(&reading),
        Act::Wait(until) => Act::Wait(until.min(case.deadline)),
        act => act,
    }
}

struct Case<'a> {
    order: &'a Order,
    written: &'a Written,
    memory: &'a Memory,
    seen: &'a Seen,
    now: Timestamp,
    deadline: Timestamp,
}

impl Case<'_> {
    fn judge(&self, reading: &Reading) -> Act {
        match (self.order.kind, self.written.step) {
            (Kind::PowerOn | Kind::PowerCycle, Some((StepName::On, _))) => self.on(reading),
            (Kind::PowerOff | Kind::PowerCycle, Some((StepName::Off, _))) => self.off(reading),
            (Kind::PowerOff, Some((StepName::GracefulOff, since))) => self.graceful(reading, since),
            (Kind::Reset, Some((StepName::Reset, _))) => self.reset(reading),
            (_, None | Some((StepName::On | StepName::Off | StepName::GracefulOff | StepName::Reset, _))) => {
                self.begin(reading)
            }
            // A later version may have carried it out: it ends at its deadline.
            (_, Some((StepName::Unknown, _))) => self.wait(reading),
        }
    }

    /// No step is written: nothing was asked yet.
    fn begin(&self, reading: &Reading) -> Act {
        if let Some(until) = self.seen.last.and_then(|last| last.doubts(reading)) {
            return Act::Wait(until.min(later(reading.at, PENDING_POLL_INTERVAL)));
        }
        let off = match self.order.off {
            Off::Forced => StepName::Off,
            Off::Graceful(_) => StepName::GracefulOff,
        };
        match (self.order.kind, reading.state) {
            (_, PowerState::Unknown) => self.wait(reading),
            (Kind::PowerOn, PowerState::On) => self.complete("the machine was already on"),
            (Kind::PowerOn | Kind::PowerCycle, PowerState::Off) => Act::WriteStep(StepName::On),
            (Kind::PowerOff, PowerState::Off) => self.complete("the machine was already off"),
            (Kind::PowerOff, PowerState::On | PowerState::PoweringOn | PowerState::PoweringOff) => {
                Act::WriteStep(off)
            }
            (Kind::PowerCycle, PowerState::On | PowerState::PoweringOn) => Act::WriteStep(StepName::Off),
            (Kind::Reset, PowerState::On) => Act::WriteStep(StepName::Reset),
            (Kind::Reset, PowerState::Off) => self.fail(
                PowerOutcome::Refused,
                "the machine is off and cannot be reset; use powerOn".to_owned(),
            ),
            (
                Kind::PowerOn | Kind::PowerCycle | Kind::Reset,
                PowerState::PoweringOn | PowerState::PoweringOff,
            ) => self.wait(reading),
        }
    }

    fn on(&self, reading: &Reading) -> Act {
        match reading.state {
            PowerState::On if self.order.kind == Kind::PowerCycle => {
                self.complete("the BMC reports On again")
            }
            PowerState::On => self.complete("the BMC reports On"),
            PowerState::Off => match self.rests_until() {
                Some(until) => Act::Wait(until),
                None => self.ask(PowerRequest::On, self.order.boot, reading),
            },
            PowerState::PoweringOn | PowerState::PoweringOff | PowerState::Unknown => self.wait(reading),
        }
    }

    /// Returns the time until which a power-cycled machine stays off. It counts from the time of the step, so a
    /// successor neither restarts nor skips it. It never uses the time that is needed to switch the machine on.
    fn rests_until(&self) -> Option<Timestamp> {
        let (_, since) = self.written.step?;
        let until = later(later(since, POWER_CYCLE_OFF_TIME), TIMESTAMP_RESOLUTION);
        let rests = self.order.kind == Kind::PowerCycle && !self.written.began_off;
        (rests && since <= self.now && self.now < until && until < self.deadline).then_some(until)
    }

    fn off(&self, reading: &Reading) -> Act {
        match (reading.state, self.order.kind) {
            (PowerState::Off, Kind::PowerCycle) => Act::WriteStep(StepName::On),
            (PowerState::Off, _) => self.complete("the BMC reports Off"),
            (PowerState::On | PowerState::PoweringOn, _) => {
                // The boot source is set while the machine is on: a machine that cannot boot from it stays on.
                let boot = match (self.order.kind, self.order.boot) {
                    (Kind::PowerCycle, boot @ Boot::OnlyNetwork(_)) => boot,
                    _ => Boot::Default,
                };
                self.ask(PowerRequest::ForceOff, boot, reading)
            }
            (PowerState::PoweringOff | PowerState::Unknown, _) => self.wait(reading),
        }
    }

    fn graceful(&self, reading: &Reading, since: Timestamp) -> Act {
        if reading.state == PowerState::Off {
            return self.complete("the operating system has shut down, and the BMC reports Off");
        }
        let grace = match self.order.off {
            Off::Forced => Some(SignedDuration::ZERO),
            Off::Graceful(grace) => grace,
        };
        let forced_at = grace.map(|grace| later(since, grace));
        match forced_at {
            Some(_) if self.memory.no_graceful => Act::WriteStep(StepName::Off),
            Some(at) if self.now >= at => Act::WriteStep(StepName::Off),
            None if self.memory.no_graceful => self.fail(
                PowerOutcome::NotSupported,
                "the BMC cannot ask the operating system to shut down; use parameter force or gracePeriodSeconds"
                    .to_owned(),
            ),
            Some(_) | None if self.asks_once(StepName::GracefulOff) => {
                Act::Ask(PowerRequest::GracefulOff, Boot::Default)
            }
            Some(at) => Act::Wait(at.min(later(reading.at, PENDING_POLL_INTERVAL))),
            None => self.wait(reading),
        }
    }

    fn reset(&self, reading: &Reading) -> Act {
        match reading.state {
            PowerState::On if self.asks_once(StepName::Reset) => Act::Ask(PowerRequest::Reset, Boot::Default),
            PowerState::On => self.complete("the BMC accepted the reset and reports On"),
            PowerState::Off | PowerState::PoweringOn | PowerState::PoweringOff | PowerState::Unknown => {
                self.wait(reading)
            }
        }
    }

    /// Sends a repeatable request immediately, and again after [`REQUEST_REPEAT_DELAY`].
    fn ask(&self, request: PowerRequest, boot: Boot, reading: &Reading) -> Act {
        match self.memory.sent.filter(|sent| sent.request == request && sent.accepted) {
            Some(sent) if self.now < later(sent.at, REQUEST_REPEAT_DELAY) => self.wait(reading),
            Some(_) | None => Act::Ask(request, boot),
        }
    }

    /// Returns true if the request of a step that is sent once was certainly not sent yet.
    fn asks_once(&self, step: StepName) -> bool {
        self.memory.wrote == Some(step) && self.memory.sent.is_none()
    }

    /// Returns true if a reset may have been sent and was not confirmed.
    fn needs_evidence(&self) -> bool {
        let in_step = matches!(self.written.step, Some((StepName::Reset, _)));
        self.order.kind == Kind::Reset
            && in_step
            && !self.asks_once(StepName::Reset)
            && !self.memory.sent.is_some_and(|sent| sent.accepted)
    }

    fn evidence(&self) -> Act {
        let since = self.written.step.map_or(self.written.start, |(_, at)| at);
        let since = later(since, TIMESTAMP_RESOLUTION);
        if self.seen.seed_taken.is_some_and(|taken| taken > since) {
            return self.complete("the machine has booted since the reset was requested");
        }
        if self.now >= self.deadline {
            let message = "it is not known whether the machine was reset: pxed was interrupted or got no \
                           answer, and saw no boot of the machine; check its console, and create a new \
                           operation";
            return self.fail(PowerOutcome::TimedOut, message.to_owned());
        }
        Act::Wait(later(self.now, PENDING_POLL_INTERVAL).min(self.deadline))
    }

    /// Returns the time until which failures are retried. A power cycle continues while its machine is
    /// off.
    fn gives_up(&self, trouble: &Trouble) -> Timestamp {
        match (self.order.kind, self.written.step) {
            (Kind::PowerCycle, Some((StepName::On, _))) => self.deadline,
            _ => later(trouble.since, TRANSIENT_FAILURE_TIMEOUT).min(self.deadline),
        }
    }

    /// The BMC refuses to ask the operating system, as of a machine that has none yet: where force is allowed, it is used.
    fn forces_instead(&self, trouble: &Trouble) -> bool {
        let graceful = matches!(self.written.step, Some((StepName::GracefulOff, _)));
        let allowed = matches!(self.order.off, Off::Graceful(Some(_)));
        graceful && allowed && trouble.asking && trouble.failure.fault == BmcFault::Refused
    }

    fn wait(&self, reading: &Reading) -> Act {
        Act::Wait(later(reading.at, PENDING_POLL_INTERVAL))
    }

    fn complete(&self, seen: &str) -> Act {
        let reason = match self.order.kind {
            Kind::PowerOn => PowerOutcome::PoweredOn,
            Kind::PowerOff => PowerOutcome::PoweredOff,
            Kind::PowerCycle => PowerOutcome::PowerCycled,
            Kind::Reset => PowerOutcome::Reset,
        };
        let only_on = self.order.kind == Kind::PowerCycle && self.written.began_off;
        let seen = if only_on { "the machine was off and was only powered on" } else { seen };
        let took = self.now.duration_since(self.written.start).as_secs().max(0);
        Act::Finish(End { complete: true, reason, message: format!("{seen}; it took {took} s") })
    }

    fn fail(&self, reason: PowerOutcome, message: String) -> Act {
        Act::Finish(End { complete: false, reason, message })
    }

    fn timed_out(&self, reading: &Reading) -> Act {
        let hint = match (self.order.kind, self.written.step) {
            (Kind::PowerOff, Some((StepName::GracefulOff, _))) => {
                "the operating system did not shut down; use parameter force or gracePeriodSeconds"
            }
            (Kind::PowerCycle, Some((StepName::Off, _))) if reading.state == PowerState::Off => {
                "the machine was powered off, and no time was left to power it on; create an operation powerOn"
            }
            (Kind::PowerCycle, Some((StepName::On, _))) => {
                "the machine was powered off and does not power on; check the BMC's log"
            }
            (Kind::PowerOn | Kind::PowerOff | Kind::PowerCycle | Kind::Reset, _) => {
                "check the BMC's log, or increase timeoutSeconds"
            }
        };
        let limit = self.order.timeout.as_secs();
        let message = format!("after {limit} s the BMC reports {:?}: {hint}", reading.state);
        self.fail(PowerOutcome::TimedOut, message)
    }
}

#[cfg(test)]
mod tests;
