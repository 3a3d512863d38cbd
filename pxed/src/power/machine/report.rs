//! Reports of a worker on its BMC and its machine: breaker, conditions, Events.
//!
//! Decides nothing about power. Part of `worker`.

use bedplate_api::machine::PowerState;
use bedplate_api::reason::event::PxedEvent;
use bedplate_bmc::BmcFault;
use jiff::Timestamp;

use super::worker::Worker;
use crate::power::bmc::connection::{Line, NoAnswer};
use crate::power::plan::breaker::Breaker;
use crate::power::plan::{Leave, Plan};
use crate::power::status;

/// Faults that concern the request, not the BMC.
const SILENT: [BmcFault; 3] = [BmcFault::TimedOut, BmcFault::NotSupported, BmcFault::Refused];

impl Worker {
    pub(crate) fn answered(&mut self, state: Option<PowerState>, now: Timestamp) {
        let mut breaker = self.breaker.clone();
        breaker.succeeded();
        self.set_breaker(breaker);
        let insecure = self.line.as_ref().is_some_and(Line::insecure);
        let generation = self.generation();
        let mut back = false;
        self.update(|status| {
            status::observed(status, state, now);
            back = status::reachable(status, insecure, generation, now);
        });
        if state.is_some() && !self.assignment.departing {
            self.shared.registry.observed_power(&self.assignment.machine.name, now);
        }
        if back {
            self.event(PxedEvent::BmcReachable, "the BMC answers again".to_owned());
        }
    }

    /// The BMC, or the way to it, is not as it should be.
    pub(crate) fn failed(&mut self, why: &NoAnswer, now: Timestamp) {
        let failure = why.failure();
        let mut breaker = self.breaker.clone();
        breaker.failed(failure.fault, now, self.shared.jitter());
        if !matches!(why, NoAnswer::Bmc(_)) {
            self.shared.counters.failures.one(failure.fault);
        }
        let next = breaker.next_try();
        let open = matches!(breaker, Breaker::Open { .. });
        let silent = matches!(breaker, Breaker::Closed(_));
        self.set_breaker(breaker);
        if let Some(line) = self.line.as_mut().filter(|_| open) {
            line.forget();
        }
        // A refused or unsupported request is an answer. A lost answer is reported only after the third in a row.
        if silent {
            return;
        }
        let (mut has_started, generation) = (false, self.generation());
        self.update(|status| {
            status::observed(status, None, now);
            has_started = status::unreachable(status, &failure, next, generation, now);
        });
        let pending = self.assignment.is_going() && self.switches_off();
        let leave = if pending { Leave::DeparturePending } else { Leave::PowerStateUnknown };
        self.tell(&Plan::Leave(leave));
        if has_started {
            self.event(event_of(failure.fault), failure.message);
        }
    }

    pub(crate) fn tell(&mut self, plan: &Plan) {
        let (now, state) = (self.shared.now(), self.reading.map(|reading| reading.state));
        let paused = self.assignment.machine.machine.spec.paused;
        let generation = self.generation();
        if paused && self.assignment.is_going() && self.switches_off() {
            self.update(|status| status::departure_paused(status, state, generation, now));
            self.event(PxedEvent::PowerOffPending, status::DEPARTURE_PAUSED.to_owned());
            return;
        }
        let mut exhausted = false;
        self.update(|status| exhausted = status::record_powered_on(status, plan, state, generation, now));
        if exhausted {
            let message =
                "the machine was powered on 5 times, and its host did not stay up; check its console";
            self.event(PxedEvent::PowerOnAttemptsExhausted, message.to_owned());
        }
        if *plan == Plan::Leave(Leave::DeparturePending) {
            self.event(PxedEvent::PowerOffPending, status::DEPARTURE_AWAITED.to_owned());
        }
    }
}

/// Event of a fault. A BMC that does not answer in time, or only reports that it cannot, counts as unreachable.
fn event_of(fault: BmcFault) -> PxedEvent {
    if SILENT.contains(&fault) { PxedEvent::BmcUnreachable } else { fault.into() }
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::Reason;

    use super::*;

    #[test]
    fn an_event_has_the_word_of_the_condition() {
        for fault in BmcFault::ALL.iter().copied().filter(|fault| !SILENT.contains(fault)) {
            assert_eq!(event_of(fault).as_str(), fault.as_str());
        }
        assert!(SILENT.iter().all(|fault| event_of(*fault) == PxedEvent::BmcUnreachable));
    }
}
