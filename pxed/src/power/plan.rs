//! Automatic power control: decides the next act from the observed state (docs/design/rules.md, H2).
//!
//! An error in reading state never causes a power change: if the state is unknown or unreadable, or the machine runs,
//! nothing is done.
//!
//! Pure: no clock, no socket. Caller: `worker`, when no operation is in progress.

pub mod attempts;
pub(crate) mod breaker;
pub mod claim;
pub mod operation;
pub mod parameters;
pub mod queue;

use std::fmt;
use std::time::Duration;

use bedplate_api::machine::{
    BootSource, DeletionPolicy, MOST_POWER_ON_ATTEMPTS, MachineSpec, MachineStatus, PROVIDER_PXE,
    PowerActionKind, PowerPolicy, PowerState, PowerStatus,
};
use bedplate_api::wire::Stage;
use bedplate_bmc::PowerRequest;
use bedplate_process::backoff::{Backoff, NO_JITTER};
use jiff::{SignedDuration, Timestamp};

use super::plan::breaker::later;
use super::plan::claim::Demand;
use super::plan::operation::{LastAct, MAX_CLOCK_SKEW, Reading};
use crate::status::leaves_on;

/// Period after pxed's last act after which a machine that reached user space counts as up, so that the count of
/// attempts restarts.
const STEADY_PERIOD: SignedDuration = SignedDuration::from_secs(600);
/// Period that a departing machine has to shut down.
const SHUTDOWN_GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(120);
/// Delay before a forced power-off that the BMC accepted is repeated.
const POWER_OFF_REPEAT_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// Requests that were sent to a departing machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Departure {
    /// Time at which its operating system was asked to shut down.
    pub asked: Option<Timestamp>,
    /// Time at which it was forced off.
    pub forced: Option<Timestamp>,
    /// The BMC cannot ask its operating system.
    pub no_graceful: bool,
}

/// Observed state.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// Desired state.
    pub spec: &'a MachineSpec,
    /// The power state of this very look; `None`: it could not be read.
    pub reading: Option<Reading>,
    /// Power in the status: the last action, attempts.
    pub power: Option<&'a PowerStatus>,
    /// Start of the latest boot that has reached the host's user space.
    pub up: Option<Timestamp>,
    /// Start of the latest boot in which the Machine's agent enrolled. No other client can report that.
    pub enrolled: Option<Timestamp>,
    /// Time at which the BMC last reported Off.
    pub seen_off: Option<Timestamp>,
    /// True if the machine took the seed of its latest boot, or if its agent has enrolled at some time. Packets alone
    /// do not prove a boot.
    pub booted: bool,
    /// State of the takeover token.
    pub takeover: Takeover,
    /// Time since which the machine should be off because its agent was asked to shut it down.
    pub shut_down: Option<Timestamp>,
    /// True if an operation is in progress.
    pub operation: bool,
    /// The object is being deleted, or its manifest is gone; and what was done about it.
    pub departure: Option<Departure>,
    /// Demand of claims, for `powerPolicy: OnClaim`.
    pub demand: Demand,
    /// Requests to switch off a host that no claim holds.
    pub idle: Departure,
    /// Now.
    pub now: Timestamp,
}

/// State of `spec.pxe.takeover`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Takeover {
    /// No token is set.
    #[default]
    NotAllowed,
    /// The token was not used yet.
    Allowed,
    /// The token was used.
    Used,
    /// An agent has enrolled as an earlier Machine of this name: the server may run its node.
    NameEnrolled,
    /// bedplate-controller has not reported yet whether there is a Node of this name.
    NodeUnknown,
    /// There is a Node of this name, which the server may run.
    NodeExists,
}

/// Reason for doing nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// `spec.paused`.
    Paused,
    /// An operation is under way.
    Operation,
    /// The power state is not known.
    PowerStateUnknown,
    /// The machine is on.
    Running {
        /// The machine has stayed on.
        settled: bool,
    },
    /// A user switched on a machine that was held off.
    SwitchedOn {
        /// Start of the boot that proves it.
        since: Timestamp,
    },
    /// The machine has run since before pxed knew it.
    FoundRunning(Takeover),
    /// The power is changing, or the BMC reports an old state.
    Changing,
    /// `powerPolicy: Unmanaged`, or a provider other than `pxe`.
    Unmanaged,
    /// An operation has switched it off or shut it down.
    PoweredOffByOperation,
    /// The next attempt is later.
    Spaced {
        /// Then.
        until: Timestamp,
    },
    /// The power-on attempts are exhausted.
    Exhausted,
    /// No claim holds the host, and `powerPolicy` is `OnClaim`.
    ClaimPending {
        /// True if the MachineClaims were read.
        is_known: bool,
    },
    /// No claim holds the host, and it has time to shut down.
    ShuttingDownIdle {
        /// Deadline of the shutdown.
        until: Timestamp,
    },
    /// The Machine is deleted, and its power is not changed.
    Retained,
    /// Departing machine whose power state is unknown.
    DeparturePending,
    /// The Machine is deleted, and its host has time to shut down.
    ShuttingDown {
        /// Time at which it ends.
        until: Timestamp,
    },
}

/// Decision about power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Leave(Leave),
    /// The next boot is set, and it is switched on.
    PowerOn {
        /// From where it boots.
        boot: BootSource,
        /// Number of the attempt.
        attempt: i32,
        /// The next one is not before.
        next: Timestamp,
    },
    /// The machine runs, and a token allows pxed to switch it off once and on again from the network.
    TakeOver,
    /// Power the machine off: the Machine is deleted.
    PowerOff(PowerRequest),
    /// No claim holds the host, and it is switched off.
    PowerOffIdle(PowerRequest),
    /// Release the Machine: the machine is off.
    Depart,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leave(why) => write!(f, "leave as it is: {why:?}"),
            Self::PowerOn { boot, attempt, .. } => write!(f, "power on from {boot:?}, attempt {attempt}"),
            Self::TakeOver => f.write_str("force off once, for the takeover"),
            Self::PowerOff(request) => write!(f, "{request}, it is deleted"),
            Self::PowerOffIdle(request) => write!(f, "{request}, no claim holds the host"),
            Self::Depart => f.write_str("release it, it is off"),
        }
    }
}

/// Decides the next act.
pub fn plan(observed: &Observed<'_>) -> Plan {
    if observed.operation {
        return Plan::Leave(Leave::Operation);
    }
    if observed.spec.paused {
        return Plan::Leave(Leave::Paused);
    }
    match (&observed.departure, observed.spec.deletion_policy) {
        (Some(departure), DeletionPolicy::PowerOff) => plan_departure(observed, departure),
        (Some(_), DeletionPolicy::Retain | DeletionPolicy::Drain) => Plan::Leave(Leave::Retained),
        (None, _) => plan_running(observed),
    }
}

fn plan_running(observed: &Observed<'_>) -> Plan {
    let last = observed.power.and_then(last_act);
    let Some(reading) = observed.reading else { return Plan::Leave(Leave::PowerStateUnknown) };
    if reading.state == PowerState::On && is_found_running(observed) {
        return plan_found_running(observed);
    }
    if reading.state == PowerState::On && is_idle(observed) {
        return plan_idle(observed);
    }
    let leave = match reading.state {
        PowerState::Unknown => Some(Leave::PowerStateUnknown),
        PowerState::PoweringOn | PowerState::PoweringOff => Some(Leave::Changing),
        PowerState::On => Some(match switched_on(observed) {
            Some(since) => Leave::SwitchedOn { since },
            None => Leave::Running { settled: has_stayed_up(observed) },
        }),
        PowerState::Off if last.and_then(|last| last.doubts(&reading)).is_some() => Some(Leave::Changing),
        PowerState::Off if !is_managed(observed.spec) => Some(Leave::Unmanaged),
        PowerState::Off if is_held_off(observed) => Some(Leave::PoweredOffByOperation),
        PowerState::Off if lacks_claim(observed) => {
            Some(Leave::ClaimPending { is_known: observed.demand != Demand::Unknown })
        }
        PowerState::Off => None,
    };
    leave.map_or_else(|| plan_on(observed), Plan::Leave)
}

/// Returns true for a machine that runs and that pxed has neither switched on nor booted.
fn is_found_running(observed: &Observed<'_>) -> bool {
    let last = observed.power.and_then(|power| power.last_action.as_ref());
    let untouched = last.is_none_or(|last| last.action == PowerActionKind::Takeover);
    observed.spec.provider == PROVIDER_PXE && !observed.booted && untouched
}

fn plan_found_running(observed: &Observed<'_>) -> Plan {
    match observed.takeover {
        Takeover::Allowed if is_managed(observed.spec) => Plan::TakeOver,
        takeover => Plan::Leave(Leave::FoundRunning(takeover)),
    }
}

fn follows_claims(spec: &MachineSpec) -> bool {
    is_managed(spec) && spec.power_policy == PowerPolicy::OnClaim
}

fn lacks_claim(observed: &Observed<'_>) -> bool {
    follows_claims(observed.spec) && observed.demand != Demand::Needed
}

fn is_idle(observed: &Observed<'_>) -> bool {
    follows_claims(observed.spec) && observed.demand == Demand::Idle
}

/// A host that runs without a claim: it is asked to shut down, then forced off.
fn plan_idle(observed: &Observed<'_>) -> Plan {
    match next_power_off(observed.now, &observed.idle) {
        Ok(request) => Plan::PowerOffIdle(request),
        Err(Leave::ShuttingDown { until }) => Plan::Leave(Leave::ShuttingDownIdle { until }),
        Err(leave) => Plan::Leave(leave),
    }
}

fn plan_on(observed: &Observed<'_>) -> Plan {
    let attempts = observed.power.and_then(|power| power.attempts).unwrap_or(0).max(0);
    if attempts >= MOST_POWER_ON_ATTEMPTS {
        return Plan::Leave(Leave::Exhausted);
    }
    let next = observed.power.and_then(|power| power.next_attempt_time.as_ref()).map(|time| time.0);
    // A later time than was ever written is of a clock that was set back.
    let latest = later(observed.now, pause_after(attempts));
    if let Some(until) = next.filter(|next| attempts > 0 && observed.now < *next && *next <= latest) {
        return Plan::Leave(Leave::Spaced { until });
    }
    let boot = observed.spec.bmc.as_ref().map(|bmc| bmc.boot_source).unwrap_or_default();
    let attempt = attempts.saturating_add(1);
    Plan::PowerOn { boot, attempt, next: later(observed.now, pause_after(attempt)) }
}

/// Pauses between two attempts to power on.
const POWER_ON_BACKOFF: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(16 * 60));

/// Returns the pause between this attempt and the next one. It has no jitter: `status` shows the time of the next attempt.
fn pause_after(attempt: i32) -> SignedDuration {
    let pause = POWER_ON_BACKOFF.delay(u32::try_from(attempt).unwrap_or(0), NO_JITTER);
    SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX)
}

fn plan_departure(observed: &Observed<'_>, departure: &Departure) -> Plan {
    let Some(reading) = observed.reading else { return Plan::Leave(Leave::DeparturePending) };
    let last = observed.power.and_then(last_act);
    match reading.state {
        PowerState::Unknown => Plan::Leave(Leave::DeparturePending),
        PowerState::Off if last.and_then(|last| last.doubts(&reading)).is_some() => {
            Plan::Leave(Leave::Changing)
        }
        PowerState::Off => Plan::Depart,
        PowerState::On | PowerState::PoweringOn | PowerState::PoweringOff => {
            let departure = with_last_action(observed, departure);
            next_power_off(observed.now, &departure).map_or_else(Plan::Leave, Plan::PowerOff)
        }
    }
}

/// Returns the next request to switch a machine off, or why there is none now.
fn next_power_off(now: Timestamp, departure: &Departure) -> Result<PowerRequest, Leave> {
    match *departure {
        Departure { forced: Some(forced), .. } if now < later(forced, POWER_OFF_REPEAT_DELAY) => {
            Err(Leave::Changing)
        }
        Departure { no_graceful: true, .. } => Ok(PowerRequest::ForceOff),
        Departure { asked: Some(asked), .. } if now >= later(asked, SHUTDOWN_GRACE_PERIOD) => {
            Ok(PowerRequest::ForceOff)
        }
        Departure { asked: Some(asked), .. } => {
            Err(Leave::ShuttingDown { until: later(asked, SHUTDOWN_GRACE_PERIOD) })
        }
        Departure { asked: None, .. } => Ok(PowerRequest::GracefulOff),
    }
}

/// Adds the graceful power-off that the previous power leader requested: the status has it.
fn with_last_action(observed: &Observed<'_>, departure: &Departure) -> Departure {
    let last = observed.power.and_then(|power| power.last_action.as_ref());
    let asked = last.filter(|last| last.action == PowerActionKind::GracefulPowerOff);
    // A later time than now was recorded before the clock was set back.
    let asked = asked.map(|last| last.time.0).filter(|time| *time <= later(observed.now, MAX_CLOCK_SKEW));
    Departure { asked: departure.asked.or(asked), ..*departure }
}

/// Action of a request to a machine that is deleted.
pub(crate) fn departure_action(request: PowerRequest) -> PowerActionKind {
    match request {
        PowerRequest::GracefulOff => PowerActionKind::GracefulPowerOff,
        PowerRequest::On | PowerRequest::ForceOff | PowerRequest::Cycle | PowerRequest::Reset => {
            PowerActionKind::PowerOff
        }
    }
}

/// Message about a request to a machine that is deleted.
pub(crate) fn departure_message(request: PowerRequest) -> String {
    format!("{request} by pxed because the Machine is deleted with deletionPolicy PowerOff")
}

/// Message about a request to a host that no claim holds.
pub(crate) fn idle_message(request: PowerRequest) -> String {
    format!("{request} by pxed because no claim holds the host (powerPolicy OnClaim)")
}

/// Returns true if an operation has switched the machine off or shut it down, and it was not switched on since: by pxed, or by
/// a user ([`switched_on`]). No report from the boot network ends that: people may be working in the machine.
fn is_held_off(observed: &Observed<'_>) -> bool {
    latest_act(observed).is_some_and(|last| !last.leaves_on) && !is_idle_off(observed)
}

/// Returns true if pxed has switched the machine off because no claim held it, and no later act is known.
fn is_idle_off(observed: &Observed<'_>) -> bool {
    let last = observed.power.and_then(|power| power.last_action.as_ref());
    let idle = last.filter(|last| last.action == PowerActionKind::IdlePowerOff);
    idle.is_some_and(|idle| observed.shut_down.is_none_or(|shut_down| shut_down <= idle.time.0))
}

/// Returns the latest act, of pxed or of the machine's agent.
fn latest_act(observed: &Observed<'_>) -> Option<LastAct> {
    let own = observed.power.and_then(last_act);
    let shut_down = observed.shut_down.map(|at| LastAct { leaves_on: false, at });
    match (own, shut_down) {
        (Some(own), Some(shut_down)) if shut_down.at > own.at => Some(shut_down),
        (own, shut_down) => own.or(shut_down),
    }
}

/// Returns the start of the boot that proves that a user switched on a machine that is held off. Its agent enrolled in that boot, the boot
/// began after the BMC said Off last, and the BMC says On ten minutes later. A client that forges a boot meanwhile does not switch the
/// machine on, and a host that is still going down is off by then.
fn switched_on(observed: &Observed<'_>) -> Option<Timestamp> {
    let held = latest_act(observed).filter(|last| !last.leaves_on)?;
    // A time later than now was noted by a clock that was set back since.
    let off = observed.seen_off.filter(|off| *off <= observed.now);
    let boot = observed.enrolled.filter(|boot| *boot > held.at.max(off.unwrap_or(held.at)))?;
    (observed.now >= later(boot, STEADY_PERIOD)).then_some(boot)
}

fn is_managed(spec: &MachineSpec) -> bool {
    let is_driven = match spec.power_policy {
        PowerPolicy::Managed | PowerPolicy::OnClaim => true,
        PowerPolicy::Unmanaged => false,
    };
    spec.provider == PROVIDER_PXE && is_driven
}

/// Returns true if the host has reached user space since pxed's last power action, and has stayed up long enough.
fn has_stayed_up(observed: &Observed<'_>) -> bool {
    let last = observed.power.and_then(|power| power.last_action.as_ref()).map(|action| action.time.0);
    let steady = |last: Timestamp| observed.now >= later(last, STEADY_PERIOD);
    observed.up.is_some_and(|up| last.is_none_or(|last| up >= last && steady(last)))
}

/// Returns the last action of the status.
pub(crate) fn last_act(power: &PowerStatus) -> Option<LastAct> {
    let action = power.last_action.as_ref()?;
    Some(LastAct { leaves_on: leaves_on(action), at: action.time.0 })
}

/// Returns the start of the latest boot, if it has come to this stage and its seed was taken.
pub(crate) fn boot_that_came_to(status: &MachineStatus, least: Stage) -> Option<Timestamp> {
    let boot = status.boot.as_ref()?;
    // A report of the user space is not authenticated; who took the seed has read the boot's URLs.
    let up = boot.seed_time.is_some() && boot.stage.is_some_and(|stage| stage >= least);
    boot.start_time.as_ref().filter(|_| up).map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::{PowerAction, Time};
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    fn spec(more: Value) -> MachineSpec {
        let mut spec = json!({"provider": "pxe", "pxe": {"interfaces": []}, "bmc": {"protocol": "Redfish",
            "address": "bmc", "bootSource": "HTTP", "credentialsSecretRef": {"namespace": "n", "name": "s"}}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    fn power(action: Option<(PowerActionKind, i64)>, attempts: i32, next: Option<i64>) -> PowerStatus {
        PowerStatus {
            state: PowerState::Unknown,
            observed_time: None,
            last_action: action.map(|(action, second)| PowerAction {
                action,
                time: Time(at(second)),
                message: None,
            }),
            last_switch_time: None,
            attempts: Some(attempts),
            next_attempt_time: next.map(|second| Time(at(second))),
            takeover_token: None,
        }
    }

    fn observed<'a>(
        spec: &'a MachineSpec,
        state: Option<PowerState>,
        power: Option<&'a PowerStatus>,
    ) -> Observed<'a> {
        let reading = state.map(|state| Reading { state, at: at(1000) });
        Observed {
            spec,
            reading,
            power,
            up: None,
            enrolled: None,
            seen_off: None,
            booted: true,
            takeover: Takeover::default(),
            shut_down: None,
            operation: false,
            departure: None,
            demand: Demand::default(),
            idle: Departure::default(),
            now: at(1000),
        }
    }

    /// Every state of power and demand, with what was done last.
    #[test]
    fn m6_a_machine_is_powered_on_only_for_a_claim_and_off_only_when_idle() {
        use PowerActionKind::{GracefulPowerOff, IdlePowerOff, PowerOff, PowerOn, Shutdown};
        let spec = spec(json!({"powerPolicy": "OnClaim", "claimPolicy": {"namespaces": ["n"]}}));
        let waits = |is_known| Plan::Leave(Leave::ClaimPending { is_known });
        let held = Plan::Leave(Leave::PoweredOffByOperation);
        for demand in [Demand::Unknown, Demand::Needed, Demand::Unproven, Demand::Idle] {
            for action in [
                None,
                Some(PowerOn),
                Some(IdlePowerOff),
                Some(PowerOff),
                Some(GracefulPowerOff),
                Some(Shutdown),
            ] {
                let power = action.map(|action| power(Some((action, 0)), 0, None));
                let of = |state| Observed { demand, ..observed(&spec, state, power.as_ref()) };
                let off = match (action, demand) {
                    (Some(PowerOff | GracefulPowerOff | Shutdown), _) => held,
                    (_, Demand::Needed) => on(1, 1),
                    (_, demand) => waits(demand != Demand::Unknown),
                };
                assert_eq!(plan(&of(Some(PowerState::Off))), off, "{demand:?} {action:?}");
                let running = plan(&of(Some(PowerState::On)));
                let goes_off = running == Plan::PowerOffIdle(PowerRequest::GracefulOff);
                assert_eq!(goes_off, demand == Demand::Idle, "{demand:?} {action:?} {running:?}");
                for state in [
                    None,
                    Some(PowerState::Unknown),
                    Some(PowerState::PoweringOn),
                    Some(PowerState::PoweringOff),
                ] {
                    assert!(matches!(plan(&of(state)), Plan::Leave(_)), "{demand:?} {action:?} {state:?}");
                }
                let found = Observed { booted: false, ..of(Some(PowerState::On)) };
                let is_ours = action.is_some();
                assert_eq!(matches!(plan(&found), Plan::PowerOffIdle(_)), is_ours && demand == Demand::Idle);
            }
        }
    }

    #[test]
    fn m6_an_idle_host_has_time_to_shut_down() {
        let spec = spec(json!({"powerPolicy": "OnClaim"}));
        for (asked, forced, no_graceful, expected) in [
            (None, None, true, Plan::PowerOffIdle(PowerRequest::ForceOff)),
            (Some(900), None, false, Plan::Leave(Leave::ShuttingDownIdle { until: at(1020) })),
            (Some(880), None, false, Plan::PowerOffIdle(PowerRequest::ForceOff)),
            (Some(800), Some(990), false, Plan::Leave(Leave::Changing)),
        ] {
            let idle = Departure { asked: asked.map(at), forced: forced.map(at), no_graceful };
            let observed =
                Observed { idle, demand: Demand::Idle, ..observed(&spec, Some(PowerState::On), None) };
            assert_eq!(plan(&observed), expected, "{idle:?}");
        }
    }

    #[test]
    fn m6_a_shutdown_after_an_idle_power_off_keeps_the_machine_off() {
        let spec = spec(json!({"powerPolicy": "OnClaim"}));
        let power = power(Some((PowerActionKind::IdlePowerOff, 900)), 0, None);
        for (shut_down, is_held) in [(None, false), (Some(900), false), (Some(901), true)] {
            let off = observed(&spec, Some(PowerState::Off), Some(&power));
            let observed = Observed { demand: Demand::Needed, shut_down: shut_down.map(at), ..off };
            let expected = if is_held { Plan::Leave(Leave::PoweredOffByOperation) } else { on(1, 1) };
            assert_eq!(plan(&observed), expected, "{shut_down:?}");
        }
    }

    fn on(attempt: i32, minutes: i64) -> Plan {
        Plan::PowerOn { boot: BootSource::Http, attempt, next: at(1000 + 60 * minutes) }
    }

    #[test]
    fn h2_a_new_machine_that_is_off_is_switched_on_from_the_network_at_once() {
        assert_eq!(plan(&observed(&spec(json!({})), Some(PowerState::Off), None)), on(1, 1));
    }

    #[test]
    fn unknown_unreadable_or_running_machine_is_not_touched() {
        for (state, leave) in [
            (None, Leave::PowerStateUnknown),
            (Some(PowerState::Unknown), Leave::PowerStateUnknown),
            (Some(PowerState::PoweringOn), Leave::Changing),
            (Some(PowerState::PoweringOff), Leave::Changing),
            (Some(PowerState::On), Leave::Running { settled: false }),
        ] {
            assert_eq!(plan(&observed(&spec(json!({})), state, None)), Plan::Leave(leave), "{state:?}");
        }
    }

    #[test]
    fn paused_unmanaged_and_others_machines_are_left_off() {
        for (more, leave) in [
            (json!({"paused": true}), Leave::Paused),
            (json!({"powerPolicy": "Unmanaged"}), Leave::Unmanaged),
            (json!({"provider": "manual"}), Leave::Unmanaged),
        ] {
            let spec = spec(more.clone());
            assert_eq!(plan(&observed(&spec, Some(PowerState::Off), None)), Plan::Leave(leave), "{more}");
        }
        let spec = spec(json!({}));
        let busy = Observed { operation: true, ..observed(&spec, Some(PowerState::Off), None) };
        assert_eq!(plan(&busy), Plan::Leave(Leave::Operation));
    }

    #[test]
    fn machine_switched_off_by_user_stays_off_until_user_switches_it_on() {
        for (action, expected) in [
            (PowerActionKind::PowerOff, Plan::Leave(Leave::PoweredOffByOperation)),
            (PowerActionKind::GracefulPowerOff, Plan::Leave(Leave::PoweredOffByOperation)),
            (PowerActionKind::Shutdown, Plan::Leave(Leave::PoweredOffByOperation)),
            (PowerActionKind::Unknown, Plan::Leave(Leave::PoweredOffByOperation)),
            (PowerActionKind::PowerOn, on(1, 1)),
            (PowerActionKind::PowerCycle, on(1, 1)),
            (PowerActionKind::Reset, on(1, 1)),
        ] {
            let power = power(Some((action, 0)), 0, None);
            assert_eq!(plan(&observed(&spec(json!({})), Some(PowerState::Off), Some(&power))), expected);
        }
    }

    #[test]
    fn h2_a_server_that_is_found_running_is_cycled_only_by_an_unused_token() {
        let found = |takeover| Plan::Leave(Leave::FoundRunning(takeover));
        let running = Plan::Leave(Leave::Running { settled: false });
        for (more, last, booted, takeover, expected) in [
            (json!({}), None, false, Takeover::NotAllowed, found(Takeover::NotAllowed)),
            (json!({}), None, false, Takeover::Allowed, Plan::TakeOver),
            (json!({}), None, false, Takeover::NameEnrolled, found(Takeover::NameEnrolled)),
            (json!({}), None, false, Takeover::NodeUnknown, found(Takeover::NodeUnknown)),
            (json!({}), None, false, Takeover::NodeExists, found(Takeover::NodeExists)),
            (json!({}), None, false, Takeover::Used, found(Takeover::Used)),
            (json!({}), Some(PowerActionKind::Takeover), false, Takeover::Used, found(Takeover::Used)),
            (json!({}), Some(PowerActionKind::Takeover), false, Takeover::Allowed, Plan::TakeOver),
            (json!({}), Some(PowerActionKind::PowerOn), false, Takeover::Allowed, running),
            (json!({}), None, true, Takeover::Allowed, running),
            (json!({"powerPolicy": "Unmanaged"}), None, false, Takeover::Allowed, found(Takeover::Allowed)),
            (json!({"provider": "manual"}), None, false, Takeover::NotAllowed, running),
            (json!({"paused": true}), None, false, Takeover::Allowed, Plan::Leave(Leave::Paused)),
        ] {
            let (spec, power) = (spec(more.clone()), power(last.map(|last| (last, 0)), 0, None));
            let observed = observed(&spec, Some(PowerState::On), Some(&power));
            let observed = Observed { booted, takeover, ..observed };
            assert_eq!(plan(&observed), expected, "{more} {last:?} {booted} {takeover:?}");
        }
        // Off, it is a new machine, and off for a moment after the takeover.
        let (spec, power) = (spec(json!({})), power(Some((PowerActionKind::Takeover, 990)), 0, None));
        let mut observed = observed(&spec, Some(PowerState::Off), Some(&power));
        (observed.booted, observed.takeover) = (false, Takeover::Used);
        assert_eq!(plan(&observed), Plan::Leave(Leave::Changing));
        let later = power_at(985);
        assert_eq!(plan(&Observed { power: Some(&later), ..observed }), on(1, 1));
    }

    fn power_at(second: i64) -> PowerStatus {
        power(Some((PowerActionKind::Takeover, second)), 0, None)
    }

    #[test]
    fn o4_a_shutdown_machine_stays_off_until_it_is_switched_on() {
        let held = Plan::Leave(Leave::PoweredOffByOperation);
        for (action, shut_down, up, expected) in [
            (None, Some(900), None, held),
            (Some((PowerActionKind::PowerOn, 800)), Some(900), Some(810), held),
            (Some((PowerActionKind::PowerOn, 901)), Some(900), None, on(1, 1)),
            (Some((PowerActionKind::PowerOff, 901)), Some(900), None, held),
            // The operation is deleted, its status is not.
            (Some((PowerActionKind::Shutdown, 900)), None, Some(810), held),
            // Neither a report of the user space nor an enrollment switches on what the BMC calls off.
            (Some((PowerActionKind::Shutdown, 300)), None, Some(310), held),
            (Some((PowerActionKind::PowerOn, 200)), Some(300), Some(310), held),
            (Some((PowerActionKind::PowerOff, 300)), None, Some(310), held),
        ] {
            let (spec, power) = (spec(json!({})), power(action, 0, None));
            let observed = observed(&spec, Some(PowerState::Off), Some(&power));
            let (up, shut_down) = (up.map(at), shut_down.map(at));
            let observed = Observed { shut_down, up, enrolled: up, ..observed };
            assert_eq!(plan(&observed), expected, "{action:?} {shut_down:?} {up:?}");
        }
    }

    #[test]
    fn o4_a_user_has_switched_on_what_is_on_and_enrolled_ten_minutes_ago() {
        let running = Leave::Running { settled: false };
        let switched = Leave::SwitchedOn { since: at(400) };
        for (held, off, enrolled, expected) in [
            ((PowerActionKind::Shutdown, 300), Some(390), Some(400), switched),
            ((PowerActionKind::PowerOff, 300), Some(390), Some(400), switched),
            // A restarted pxed did not see it off, or another one saw it.
            ((PowerActionKind::Shutdown, 300), None, Some(400), switched),
            // The clock was set back.
            ((PowerActionKind::Shutdown, 300), Some(5000), Some(400), switched),
            ((PowerActionKind::Shutdown, 300), Some(390), None, running),
            // It may still be going down.
            ((PowerActionKind::Shutdown, 300), None, Some(401), running),
            // Another client enrolled while the machine was off.
            ((PowerActionKind::Shutdown, 300), Some(400), Some(400), running),
            // The boot before.
            ((PowerActionKind::Shutdown, 400), None, Some(400), running),
            // Nothing is held.
            ((PowerActionKind::PowerOn, 300), Some(390), Some(400), running),
        ] {
            let (spec, power) = (spec(json!({})), power(Some(held), 0, None));
            let observed = observed(&spec, Some(PowerState::On), Some(&power));
            let observed = Observed { seen_off: off.map(at), enrolled: enrolled.map(at), ..observed };
            assert_eq!(plan(&observed), Plan::Leave(expected), "{held:?} {off:?} {enrolled:?}");
        }
    }

    #[test]
    fn attempts_are_spaced_counted_and_end() {
        for (attempts, next, expected) in [
            (1, Some(1000), on(2, 2)),
            (2, Some(999), on(3, 4)),
            (3, None, on(4, 8)),
            (4, Some(1000), on(5, 16)),
            (1, Some(1001), Plan::Leave(Leave::Spaced { until: at(1001) })),
            (5, None, Plan::Leave(Leave::Exhausted)),
            (0, Some(2000), on(1, 1)),
            (0, Some(1030), on(1, 1)),
            // The clock was set back.
            (1, Some(9000), on(2, 2)),
        ] {
            let power = power(Some((PowerActionKind::PowerOn, 0)), attempts, next);
            let spec = spec(json!({}));
            let mut observed = observed(&spec, Some(PowerState::Off), Some(&power));
            assert_eq!(plan(&observed), expected, "{attempts}");
            // That it came up in between makes no difference: it did not stay up.
            observed.up = Some(at(10));
            assert_eq!(plan(&observed), expected, "{attempts}");
        }
    }

    #[test]
    fn attempts_restart_when_machine_has_stayed_up_for_ten_minutes() {
        for (action, up, settled) in [
            (Some(400), Some(410), true),
            (Some(401), Some(410), false),
            (Some(400), Some(399), false),
            (Some(400), None, false),
            (None, Some(999), true),
        ] {
            let power = power(action.map(|second| (PowerActionKind::PowerOn, second)), 3, None);
            let spec = spec(json!({}));
            let observed = Observed { up: up.map(at), ..observed(&spec, Some(PowerState::On), Some(&power)) };
            assert_eq!(plan(&observed), Plan::Leave(Leave::Running { settled }), "{action:?} {up:?}");
        }
    }

    #[test]
    fn off_reported_just_after_power_on_is_not_believed() {
        // The last one: the clock was set back.
        for (second, expected) in [(986, Plan::Leave(Leave::Changing)), (985, on(2, 2)), (4600, on(2, 2))] {
            let power = power(Some((PowerActionKind::PowerOn, second)), 1, None);
            assert_eq!(plan(&observed(&spec(json!({})), Some(PowerState::Off), Some(&power))), expected);
        }
    }

    #[test]
    fn the_time_to_shut_down_goes_on_where_another_pxed_takes_over() {
        let gone = spec(json!({"deletionPolicy": "PowerOff"}));
        for (action, second, expected) in [
            (PowerActionKind::GracefulPowerOff, 900, Plan::Leave(Leave::ShuttingDown { until: at(1020) })),
            (PowerActionKind::GracefulPowerOff, 880, Plan::PowerOff(PowerRequest::ForceOff)),
            // An operation before the deletion, and a time of a clock that was set back since.
            (PowerActionKind::PowerOff, 900, Plan::PowerOff(PowerRequest::GracefulOff)),
            (PowerActionKind::PowerOn, 900, Plan::PowerOff(PowerRequest::GracefulOff)),
            (PowerActionKind::GracefulPowerOff, 9000, Plan::PowerOff(PowerRequest::GracefulOff)),
        ] {
            // The message of an earlier pxed decides nothing.
            for message in [None, Some("text of another version")] {
                let mut power = power(Some((action, second)), 0, None);
                power.last_action.as_mut().unwrap().message = message.map(str::to_owned);
                let departure = Some(Departure::default());
                let observed = Observed { departure, ..observed(&gone, Some(PowerState::On), Some(&power)) };
                assert_eq!(plan(&observed), expected, "{action:?} {message:?} {second}");
            }
        }
    }

    #[test]
    fn deleted_machine_departs_when_a_report_of_off_is_recent() {
        let gone = spec(json!({"deletionPolicy": "PowerOff"}));
        for (second, expected) in [(986, Plan::Leave(Leave::Changing)), (985, Plan::Depart)] {
            let power = power(Some((PowerActionKind::PowerOn, second)), 1, None);
            let departure = Some(Departure::default());
            let observed = Observed { departure, ..observed(&gone, Some(PowerState::Off), Some(&power)) };
            assert_eq!(plan(&observed), expected, "{second}");
        }
    }

    #[test]
    fn power_on_in_the_same_second_as_a_shutdown_is_the_latest_act() {
        let power = power(Some((PowerActionKind::PowerOn, 900)), 1, None);
        let spec = spec(json!({}));
        for (shut_down, held) in [(899, false), (900, false), (901, true)] {
            let shut_down = Some(at(shut_down));
            let observed = Observed { shut_down, ..observed(&spec, Some(PowerState::Off), Some(&power)) };
            assert_eq!(is_held_off(&observed), held, "{shut_down:?}");
        }
    }

    #[test]
    fn plan_and_action_are_described_for_the_log() {
        for (plan, text) in [
            (on(2, 2), "power on from Http, attempt 2"),
            (Plan::Leave(Leave::Paused), "leave as it is: Paused"),
            (Plan::TakeOver, "force off once, for the takeover"),
            (Plan::PowerOff(PowerRequest::ForceOff), "forced power off, it is deleted"),
            (Plan::Depart, "release it, it is off"),
            (Plan::PowerOffIdle(PowerRequest::ForceOff), "forced power off, no claim holds the host"),
        ] {
            assert_eq!(plan.to_string(), text);
        }
        let message = departure_message(PowerRequest::GracefulOff);
        assert!(
            message.starts_with("graceful power off by pxed because the Machine is deleted"),
            "{message}"
        );
    }

    #[test]
    fn a_deleted_machine_is_switched_off_only_where_its_policy_says_so() {
        let gone = spec(json!({"deletionPolicy": "PowerOff"}));
        let departure = |asked: Option<i64>, forced: Option<i64>, no_graceful| Departure {
            asked: asked.map(at),
            forced: forced.map(at),
            no_graceful,
        };
        for (state, departure, expected) in [
            (PowerState::On, departure(None, None, false), Plan::PowerOff(PowerRequest::GracefulOff)),
            (PowerState::On, departure(None, None, true), Plan::PowerOff(PowerRequest::ForceOff)),
            (
                PowerState::On,
                departure(Some(900), None, false),
                Plan::Leave(Leave::ShuttingDown { until: at(1020) }),
            ),
            (PowerState::On, departure(Some(880), None, false), Plan::PowerOff(PowerRequest::ForceOff)),
            (PowerState::On, departure(Some(800), Some(990), false), Plan::Leave(Leave::Changing)),
            (PowerState::On, departure(Some(800), Some(970), false), Plan::PowerOff(PowerRequest::ForceOff)),
            (PowerState::Off, departure(None, None, false), Plan::Depart),
            (PowerState::Unknown, departure(Some(1), None, false), Plan::Leave(Leave::DeparturePending)),
        ] {
            let observed = Observed { departure: Some(departure), ..observed(&gone, Some(state), None) };
            assert_eq!(plan(&observed), expected, "{state:?} {departure:?}");
        }
        let kept = spec(json!({}));
        let observed =
            Observed { departure: Some(Departure::default()), ..observed(&kept, Some(PowerState::On), None) };
        assert_eq!(plan(&observed), Plan::Leave(Leave::Retained));
    }

    #[test]
    fn report_of_the_user_space_counts_only_after_the_seed_was_taken() {
        let boot =
            |boot: Value| -> MachineStatus { serde_json::from_value(json!({ "boot": boot })).unwrap() };
        let (started, stage) = ("2026-01-01T00:00:00.000000Z", "Userspace");
        let forged = boot(json!({ "startTime": started, "stage": stage }));
        assert_eq!(boot_that_came_to(&forged, Stage::Userspace), None);
        let own = boot(json!({ "startTime": started, "seedTime": started, "stage": stage }));
        assert!(boot_that_came_to(&own, Stage::Userspace).is_some());
        assert_eq!(boot_that_came_to(&own, Stage::Enrolled), None);
    }
}
