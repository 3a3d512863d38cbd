//! A worker says how its BMC and its machine do: breaker, conditions, Events.
//!
//! Decides nothing about power. Part of `worker`.

use bedplate_api::machine::PowerState;
use bedplate_bmc::Reason;
use jiff::Timestamp;

use super::worker::Worker;
use crate::power::bmc::connection::{Line, NoAnswer};
use crate::power::plan::breaker::Breaker;
use crate::power::plan::{Leave, Plan};
use crate::power::status;
use crate::status::EventReason;

/// What a BMC says of a request, and not of itself.
const SILENT: [Reason; 3] = [Reason::TimedOut, Reason::NotSupported, Reason::Refused];

impl Worker {
    pub(crate) fn answered(&mut self, state: Option<PowerState>, now: Timestamp) {
        let mut breaker = self.breaker.clone();
        breaker.succeeded();
        self.set_breaker(breaker);
        let insecure = self.line.as_ref().is_some_and(Line::insecure);
        let mut back = false;
        self.update(|status| {
            status::observed(status, state, now);
            back = status::reachable(status, insecure, now);
        });
        if state.is_some() && !self.assignment.departing {
            self.shared.registry.observed_power(&self.assignment.machine.name, now);
        }
        if back {
            self.event(EventReason::BMCReachable, "the BMC answers again".to_owned());
        }
    }

    /// The BMC, or the way to it, is not as it should be.
    pub(crate) fn failed(&mut self, why: &NoAnswer, now: Timestamp) {
        let failure = why.failure();
        let mut breaker = self.breaker.clone();
        match why {
            NoAnswer::Bmc(error) => breaker.failed(error.reason(), now, self.shared.jitter()),
            NoAnswer::Credentials(_) | NoAnswer::Withheld(_) | NoAnswer::Contested(_) => {
                breaker = Breaker::Held { until: None };
            }
        }
        let next = breaker.next_try();
        let open = matches!(breaker, Breaker::Open { .. });
        let silent = matches!(breaker, Breaker::Closed(_));
        self.set_breaker(breaker);
        if let Some(line) = self.line.as_mut().filter(|_| open) {
            line.forget();
        }
        // Refused or not supported: it answers. A lost answer is not told before the third in a row.
        if silent {
            return;
        }
        let mut begun = false;
        self.update(|status| {
            status::observed(status, None, now);
            begun = status::unreachable(status, &failure, next, now);
        });
        let awaited = self.assignment.is_going() && self.switches_off();
        let leave = if awaited { Leave::DepartureAwaited } else { Leave::NotReadable };
        self.tell(&Plan::Leave(leave));
        if begun {
            self.event(event_of(failure.reason), failure.message);
        }
    }

    pub(crate) fn tell(&mut self, plan: &Plan) {
        let (now, state) = (self.shared.now(), self.reading.map(|reading| reading.state));
        let paused = self.assignment.machine.machine.spec.paused;
        if paused && self.assignment.is_going() && self.switches_off() {
            self.update(|status| status::departure_paused(status, state, now));
            self.event(EventReason::PowerOffAwaited, status::DEPARTURE_PAUSED.to_owned());
            return;
        }
        let mut exhausted = false;
        self.update(|status| exhausted = status::awaits(status, plan, state, now));
        if exhausted {
            let message = "it was switched on 5 times and its host did not stay up; look at its console";
            self.event(EventReason::PowerOnAttemptsExhausted, message.to_owned());
        }
        if *plan == Plan::Leave(Leave::DepartureAwaited) {
            self.event(EventReason::PowerOffAwaited, status::DEPARTURE_AWAITED.to_owned());
        }
    }
}

/// The Event of a condition's reason, in the same word. Who gives no answer in time, or one that only tells that there will be none,
/// is away.
fn event_of(reason: &str) -> EventReason {
    let own = [
        EventReason::DuplicateBMC,
        EventReason::CredentialsNotAvailable,
        EventReason::CredentialsNotForThisAddress,
        EventReason::InsecureNotAllowed,
    ];
    let bmc = Reason::ALL.into_iter().filter(|reason| !SILENT.contains(reason)).map(EventReason::Bmc);
    let told = own.into_iter().chain(bmc).find(|event| event.as_str() == reason);
    told.unwrap_or(EventReason::Bmc(Reason::BmcUnreachable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_trouble_as_the_condition_does() {
        for reason in Reason::ALL.into_iter().filter(|reason| !SILENT.contains(reason)) {
            assert_eq!(event_of(reason.as_str()).as_str(), reason.as_str());
        }
        for own in
            ["CredentialsNotAvailable", "CredentialsNotForThisAddress", "InsecureNotAllowed", "DuplicateBMC"]
        {
            assert_eq!(event_of(own).as_str(), own);
        }
        let away = EventReason::Bmc(Reason::BmcUnreachable);
        assert!(SILENT.iter().all(|reason| event_of(reason.as_str()) == away));
    }
}
