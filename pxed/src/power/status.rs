//! Power in a Machine's status: `power`, `hardware.bmc`, the conditions `BMCReachable` and `PoweredOn`.
//!
//! An unchanged status causes no write. So only `observedTime` changes with time alone, at most every five minutes.
//! Memory only. Caller: `worker`.

use bedplate_api::machine::{
    Hardware, HardwareBmc, MOST_POWER_ON_ATTEMPTS, MachineStatus, PowerAction, PowerActionKind, PowerState,
    PowerStatus, Time, condition_type,
};
use bedplate_api::reason::machine::{BmcReachableReason, PoweredOnReason};
use bedplate_bmc::Identity;
use jiff::{SignedDuration, Timestamp};

use super::plan::operation::Failure;
use super::plan::{Leave, Plan, Takeover};
use super::progress::Ended;
use crate::status::conditions::{ConditionState, condition, observe_generation};
use crate::status::project::Part;
use crate::status::set_condition;

/// Maximum age of `observedTime` while nothing changes.
const MAX_OBSERVED_AGE: SignedDuration = SignedDuration::from_mins(5);
/// Longest message of an action.
const MAX_MESSAGE_LENGTH: usize = 1024;

/// Message of a departing machine whose power state is unknown.
pub(crate) const DEPARTURE_AWAITED: &str = "the Machine is deleted with deletionPolicy PowerOff, and its BMC does \
                                     not report whether it is off; repair the BMC, or set deletionPolicy to \
                                     Retain to delete it without powering it off";

/// Message of a departing machine that is paused.
pub(crate) const DEPARTURE_PAUSED: &str = "the Machine is deleted with deletionPolicy PowerOff, and it is paused; \
                                    unpause it to power it off, or set deletionPolicy to Retain to delete it \
                                    without powering it off";

fn power(status: &mut MachineStatus) -> &mut PowerStatus {
    status.power.get_or_insert(PowerStatus {
        state: PowerState::Unknown,
        observed_time: None,
        last_action: None,
        last_switch_time: None,
        attempts: None,
        next_attempt_time: None,
        takeover_token: None,
    })
}

/// Records the power state; `None` if the BMC does not answer.
pub fn observed(status: &mut MachineStatus, state: Option<PowerState>, now: Timestamp) {
    let power = power(status);
    let new = state.unwrap_or(PowerState::Unknown);
    let old = power.observed_time.as_ref().is_none_or(|time| now.duration_since(time.0) >= MAX_OBSERVED_AGE);
    if power.state != new || (state.is_some() && old) {
        power.state = new;
        power.observed_time = Some(Time(now));
    }
}

/// Records a change of the power.
pub fn acted(status: &mut MachineStatus, action: PowerActionKind, message: &str, now: Timestamp) {
    let message = Some(message.chars().take(MAX_MESSAGE_LENGTH).collect());
    power(status).last_action = Some(PowerAction { action, time: Time(now), message });
}

/// Records that a request which changes the power was sent (`heard` asks for it).
pub fn switched(status: &mut MachineStatus, now: Timestamp) {
    power(status).last_switch_time = Some(Time(now));
}

/// Records the result of the newest finished operation if its executor was killed before it stored the result. A
/// Machine whose power was never observed is new, so no operation was for it.
pub(crate) fn recalled(status: &mut MachineStatus, ended: &Ended) {
    let Some(power) = &status.power else { return };
    let is_recorded = power.last_action.as_ref().is_some_and(|last| {
        let same = last.action == ended.kind.action() && ended.began.is_none_or(|began| last.time.0 >= began);
        same || last.time.0.as_second() > ended.at.as_second()
    });
    if !is_recorded {
        settled(status);
        acted(status, ended.kind.action(), &ended.message, ended.at);
    }
}

/// Records that the machine's agent has shut it down, unless a later action is known.
pub fn shut_down(status: &mut MachineStatus, message: &str, since: Timestamp) {
    let last = status.power.as_ref().and_then(|power| power.last_action.as_ref());
    if last.is_none_or(|last| last.time.0 < since) {
        settled(status);
        acted(status, PowerActionKind::Shutdown, message, since);
    }
}

/// Records that a token is used: the machine is switched off, to be switched on from the network.
pub(crate) fn taken_over(status: &mut MachineStatus, token: &str, now: Timestamp) {
    power(status).takeover_token = Some(token.to_owned());
    acted(status, PowerActionKind::Takeover, "power cycle allowed by spec.pxe.takeover", now);
}

/// Records why a takeover did not switch the machine off.
pub(crate) fn takeover_failed(status: &mut MachineStatus, why: &str) {
    if let Some(last) = status.power.as_mut().and_then(|power| power.last_action.as_mut()) {
        last.message =
            Some(format!("the power cycle failed: {why}").chars().take(MAX_MESSAGE_LENGTH).collect());
    }
}

/// An attempt of pxed's own to switch it on.
pub(crate) fn attempted(status: &mut MachineStatus, attempt: i32, next: Timestamp) {
    let power = power(status);
    power.attempts = Some(attempt);
    power.next_attempt_time = (attempt < MOST_POWER_ON_ATTEMPTS).then_some(Time(next));
}

/// Restarts the count of attempts.
pub fn settled(status: &mut MachineStatus) {
    if let Some(power) = &mut status.power {
        power.attempts = None;
        power.next_attempt_time = None;
    }
}

/// The BMC answers. Whether that is news after it did not.
pub fn reachable(
    status: &mut MachineStatus,
    insecure: bool,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let before = condition(status, condition_type::BMC_REACHABLE).is_some_and(|c| c.status == "False");
    let (reason, message) = if insecure {
        let message = "the BMC answers; its certificate is not verified (bmc.redfish.tls.mode Insecure); any host that answers at its address \
                       gets the password";
        (BmcReachableReason::CertificateNotVerified, message)
    } else {
        (BmcReachableReason::Reachable, "the BMC answers")
    };
    set_condition(status, true, reason, message, generation, now);
    before
}

/// The BMC does not answer, or not usefully; tried again then. Whether that is news.
pub fn unreachable(
    status: &mut MachineStatus,
    failure: &Failure,
    next: Option<Timestamp>,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let before = condition(status, condition_type::BMC_REACHABLE)
        .filter(|c| c.status == "False")
        .map(|c| (c.reason.clone(), c.last_transition_time.0));
    let reason = BmcReachableReason::from(failure.fault);
    let since = before.as_ref().map_or(now, |(_, since)| *since);
    let next = match next {
        Some(next) => format!("next try at {}", next.strftime("%FT%TZ")),
        None => "retried when its credentials or spec.bmc change".to_owned(),
    };
    let message = format!("{}; since {}, {next}", failure.message, since.strftime("%FT%TZ"));
    set_condition(status, false, reason, &message, generation, now);
    before.is_none_or(|(before, _)| before != reason)
}

/// Records the identity that the BMC reports of itself and its machine.
pub fn identified(status: &mut MachineStatus, identity: &Identity, mut quirks: Vec<String>) {
    quirks.truncate(32);
    let bmc = HardwareBmc {
        vendor: identity.vendor.clone(),
        model: identity.controller.clone().or_else(|| identity.product.clone()),
        firmware: identity.firmware.clone(),
        quirks,
    };
    status.hardware.get_or_insert_with(Hardware::default).bmc = Some(bmc);
}

/// Records condition PoweredOn of a plan. Returns true if the attempts have just been exhausted.
pub(crate) fn record_powered_on(
    status: &mut MachineStatus,
    plan: &Plan,
    state: Option<PowerState>,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let (on, reason, message) = describe(status, plan, state);
    let exhausted = reason == PoweredOnReason::PowerOnAttemptsExhausted
        && condition(status, condition_type::POWERED_ON).is_none_or(|c| c.reason != reason);
    set_condition(status, on, reason, &message, generation, now);
    exhausted
}

/// Records that the conditions also hold for a later generation of the Machine.
pub fn observed_generation(status: &mut MachineStatus, generation: Option<i64>) {
    observe_generation(status, &Part::Power.conditions(), generation);
}

/// Records a deleted Machine that is paused: its power is not changed.
pub(crate) fn departure_paused(
    status: &mut MachineStatus,
    state: Option<PowerState>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let (on, reason, _) = by_state(state, "");
    set_condition(status, on, reason, DEPARTURE_PAUSED, generation, now);
}

/// Message about a machine that is off and that pxed does not switch on.
const UNMANAGED: &str = "the machine is off, and pxed powers it on only by an operation: powerPolicy is Unmanaged, or the provider is not pxe";

fn describe(
    status: &MachineStatus,
    plan: &Plan,
    state: Option<PowerState>,
) -> (ConditionState, PoweredOnReason, String) {
    let off = ConditionState::False;
    let last = status.power.as_ref().and_then(|power| power.last_action.as_ref());
    let since = last.map(|last| format!(" since {}", last.time.0.strftime("%FT%TZ"))).unwrap_or_default();
    let why = last.and_then(|last| last.message.clone()).unwrap_or_default();
    let text = |text: &str| text.to_owned();
    if let Some(takeover) = describe_takeover(plan, last, state) {
        return takeover;
    }
    match plan {
        Plan::Leave(Leave::PowerStateUnknown) => (
            ConditionState::Unknown,
            PoweredOnReason::PowerStateUnknown,
            text("the BMC does not report the power state; pxed changes nothing"),
        ),
        Plan::Leave(Leave::DeparturePending) => {
            (ConditionState::Unknown, PoweredOnReason::PowerStateUnknown, DEPARTURE_AWAITED.to_owned())
        }
        Plan::Leave(Leave::PoweredOffByOperation) => (
            off,
            PoweredOnReason::PoweredOffByOperation,
            format!("{why}; the machine stays off{since} until an operation powerOn or powerCycle"),
        ),
        Plan::Leave(Leave::ClaimPending { is_known }) => {
            (off, PoweredOnReason::ClaimPending, claim_pending(*is_known).to_owned())
        }
        Plan::PowerOffIdle(_) | Plan::Leave(Leave::ShuttingDownIdle { .. }) => {
            shutting_down("no claim holds the host (powerPolicy OnClaim)", &since)
        }
        Plan::Leave(Leave::Exhausted) => (off, PoweredOnReason::PowerOnAttemptsExhausted, exhausted()),
        Plan::Leave(Leave::Spaced { until }) => (off, PoweredOnReason::PoweringOn, spaced(status, *until)),
        Plan::PowerOn { attempt, .. } => (off, PoweredOnReason::PoweringOn, switched_on(&since, *attempt)),
        Plan::PowerOff(_) | Plan::Leave(Leave::ShuttingDown { .. }) => {
            shutting_down("deleted with deletionPolicy PowerOff", &since)
        }
        Plan::Leave(Leave::Changing) if state == Some(PowerState::Off) => {
            (off, PoweredOnReason::PoweringOn, format!("powered on{since}; waiting for the BMC to report On"))
        }
        Plan::Leave(Leave::Unmanaged) => (off, PoweredOnReason::PoweredOff, text(UNMANAGED)),
        Plan::Leave(
            Leave::Paused
            | Leave::Operation
            | Leave::Retained
            | Leave::Changing
            | Leave::FoundRunning(_)
            | Leave::SwitchedOn { .. }
            | Leave::Running { .. },
        )
        | Plan::TakeOver
        | Plan::Depart => by_state(state, &since),
    }
}

const fn claim_pending(is_known: bool) -> &'static str {
    if is_known {
        "no MachineClaim holds the host, and powerPolicy is OnClaim"
    } else {
        "powerPolicy is OnClaim, and pxed has not read MachineClaims yet"
    }
}

fn shutting_down(cause: &str, since: &str) -> (ConditionState, PoweredOnReason, String) {
    let message = format!("{cause}; asked to shut down{since}, waiting for the BMC to report Off");
    (ConditionState::True, PoweredOnReason::PoweringOff, message)
}

fn exhausted() -> String {
    format!(
        "the machine was powered on {MOST_POWER_ON_ATTEMPTS} times, and its host did not stay up; check its console, then create an operation powerOn"
    )
}

fn switched_on(since: &str, attempt: i32) -> String {
    format!(
        "powered on{since}, attempt {attempt} of {MOST_POWER_ON_ATTEMPTS}; waiting for the BMC to report On"
    )
}

/// Returns true if the action switched a running machine off to boot it from the network.
fn is_takeover(last: &PowerAction) -> bool {
    last.action == PowerActionKind::Takeover
}

/// Describes a machine that was on before pxed knew it; none of any other.
fn describe_takeover(
    plan: &Plan,
    last: Option<&PowerAction>,
    state: Option<PowerState>,
) -> Option<(ConditionState, PoweredOnReason, String)> {
    let is_off = state == Some(PowerState::Off);
    match plan {
        Plan::Leave(Leave::FoundRunning(takeover)) => {
            Some((ConditionState::True, PoweredOnReason::FoundRunning, found_running(last, *takeover)))
        }
        Plan::TakeOver => {
            let message = "powering off for spec.pxe.takeover".to_owned();
            Some((ConditionState::True, PoweredOnReason::PoweringOff, message))
        }
        Plan::Leave(Leave::Changing) if is_off && last.is_some_and(is_takeover) => {
            let message = "powered off for spec.pxe.takeover; powering on next".to_owned();
            Some((ConditionState::False, PoweredOnReason::PoweringOn, message))
        }
        Plan::Leave(_) | Plan::PowerOn { .. } | Plan::PowerOff(_) | Plan::PowerOffIdle(_) | Plan::Depart => {
            None
        }
    }
}

fn found_running(last: Option<&PowerAction>, takeover: Takeover) -> String {
    let remedy = "run `bedplate power cycle` for this Machine";
    if let Some(last) = last.filter(|last| is_takeover(last)) {
        let (message, time) = (last.message.as_deref().unwrap_or_default(), last.time.0.strftime("%FT%TZ"));
        return format!(
            "the machine is on, and has not booted from pxed since its takeover at {time} ({message}); {remedy}"
        );
    }
    match takeover {
        Takeover::Used => format!(
            "the machine was on before pxed knew it, and its takeover token was used before; to boot it from \
             the network, {remedy}, or set another token"
        ),
        Takeover::NameEnrolled => format!(
            "the machine was on before pxed knew it, and an agent has enrolled as an earlier Machine of this \
             name, so pxed uses no takeover token; to boot it from the network, {remedy}"
        ),
        Takeover::NodeUnknown => format!(
            "the machine was on before pxed knew it; its takeover waits for bedplate-controller to report \
             whether a Node of its name exists (status.observedNode); to boot it from the network now, \
             {remedy}"
        ),
        Takeover::NodeExists => format!(
            "the machine was on before pxed knew it, and may run the Node of its name, so pxed uses no \
             takeover token; if the Node belongs to another host, delete it or give the Machine another \
             name; to boot the machine from the network now, {remedy}"
        ),
        Takeover::NotAllowed | Takeover::Allowed => format!(
            "the machine was on before pxed knew it, and continues to run; to boot it from the network, \
             {remedy}, or set spec.pxe.takeover"
        ),
    }
}

fn spaced(status: &MachineStatus, until: Timestamp) -> String {
    let attempts = status.power.as_ref().and_then(|power| power.attempts).unwrap_or(0);
    let until = until.strftime("%FT%TZ");
    format!("powered on {attempts} times and off again; the next attempt is at {until}")
}

fn by_state(state: Option<PowerState>, since: &str) -> (ConditionState, PoweredOnReason, String) {
    match state {
        Some(PowerState::On) => {
            (ConditionState::True, PoweredOnReason::PoweredOn, "the BMC reports On".to_owned())
        }
        Some(PowerState::Off) => {
            (ConditionState::False, PoweredOnReason::PoweredOff, "the BMC reports Off".to_owned())
        }
        Some(PowerState::PoweringOn) => (
            ConditionState::False,
            PoweredOnReason::PoweringOn,
            format!("waiting for the BMC to report On{since}"),
        ),
        Some(PowerState::PoweringOff) => (
            ConditionState::True,
            PoweredOnReason::PoweringOff,
            format!("waiting for the BMC to report Off{since}"),
        ),
        Some(PowerState::Unknown) | None => (
            ConditionState::Unknown,
            PoweredOnReason::PowerStateUnknown,
            "the BMC does not report the power state".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::plan::parameters::Kind;
    use bedplate_bmc::BmcFault;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn a_look_that_sees_nothing_new_writes_nothing_for_five_minutes() {
        let mut status = MachineStatus::default();
        observed(&mut status, Some(PowerState::On), at(0));
        reachable(&mut status, false, None, at(0));
        record_powered_on(
            &mut status,
            &Plan::Leave(Leave::Running { settled: true }),
            Some(PowerState::On),
            None,
            at(0),
        );
        let before = status.clone();
        for second in [60, 299] {
            observed(&mut status, Some(PowerState::On), at(second));
            assert!(!reachable(&mut status, false, None, at(second)));
            record_powered_on(
                &mut status,
                &Plan::Leave(Leave::Running { settled: true }),
                Some(PowerState::On),
                None,
                at(second),
            );
            assert_eq!(status, before, "{second}");
        }
        observed(&mut status, Some(PowerState::On), at(300));
        assert_ne!(status, before);
        observed(&mut status, Some(PowerState::Off), at(301));
        assert_eq!(status.power.unwrap().observed_time, Some(Time(at(301))));
    }

    #[test]
    fn an_unreachable_bmc_says_why_since_when_and_when_it_is_tried_again() {
        let mut status = MachineStatus::default();
        let failure = Failure {
            fault: BmcFault::BmcUnreachable,
            message: "no answer".to_owned(),
            transient: true,
            sent: false,
        };
        assert!(unreachable(&mut status, &failure, Some(at(5)), None, at(0)));
        assert!(!unreachable(&mut status, &failure, Some(at(15)), None, at(5)));
        let message = &status.conditions[0].message;
        assert_eq!(message, "no answer; since 2023-11-14T22:13:20Z, next try at 2023-11-14T22:13:35Z");
        let held = Failure { fault: BmcFault::AuthenticationFailed, ..failure };
        assert!(unreachable(&mut status, &held, None, None, at(6)));
        assert!(reachable(&mut status, true, None, at(7)));
        assert_eq!(status.conditions[0].reason, BmcReachableReason::CertificateNotVerified);
    }

    #[test]
    fn operation_result_is_reported_although_it_was_not_stored() {
        use PowerActionKind::{PowerCycle, PowerOff, PowerOn};
        let ended =
            Ended { kind: Kind::PowerOff, began: Some(at(10)), at: at(12), message: "off".to_owned() };
        let mut new = MachineStatus::default();
        recalled(&mut new, &ended);
        assert_eq!(new.power, None, "the power state was not observed yet");
        for (action, second, expected) in [
            (PowerCycle, 9, (PowerOff, 12)),
            (PowerCycle, 12, (PowerOff, 12)),
            (PowerOff, 9, (PowerOff, 12)),
            (PowerOff, 11, (PowerOff, 11)),
            (PowerOn, 13, (PowerOn, 13)),
        ] {
            let mut status = MachineStatus::default();
            acted(&mut status, action, "", at(second));
            recalled(&mut status, &ended);
            let last = status.power.unwrap().last_action.unwrap();
            assert_eq!((last.action, last.time.0), (expected.0, at(expected.1)), "{action:?} {second}");
        }
    }

    #[test]
    fn end_of_attempts_is_reported_once() {
        let mut status = MachineStatus::default();
        let plan = Plan::Leave(Leave::Exhausted);
        assert!(record_powered_on(&mut status, &plan, Some(PowerState::Off), None, at(0)));
        assert!(!record_powered_on(&mut status, &plan, Some(PowerState::Off), None, at(60)));
    }
}
