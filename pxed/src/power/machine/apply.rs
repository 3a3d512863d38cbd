//! A worker does what was planned.
//!
//! Decides nothing: that is `plan`'s. Part of `worker`.

use bedplate_api::machine::{DeletionPolicy, PowerActionKind};
use bedplate_api::reason::event::PxedEvent;
use bedplate_bmc::{BmcFault, BootMode, PowerRequest};
use jiff::Timestamp;

use super::worker::Worker;
use crate::power::bmc::boot_mode::boot_mode;
use crate::power::bmc::connection::{Answer, NoAnswer, Question};
use crate::power::bmc::limits::For;
use crate::power::plan::breaker::later;
use crate::power::plan::operation::{Failure, PENDING_POLL_INTERVAL};
use crate::power::plan::{Departure, Leave, Plan, departure_action, departure_message, idle_message};
use crate::power::status;

impl Worker {
    /// Carries out the plan, reports it, and returns the time of the next look.
    pub(crate) async fn apply(&mut self, plan: Plan) -> Timestamp {
        let name = self.assignment.machine.name.clone();
        match plan {
            Plan::PowerOn { boot, attempt, next } => {
                tracing::info!(machine = %name, %plan, "changing power");
                self.power_on(boot, attempt, next).await;
            }
            Plan::PowerOff(request) | Plan::PowerOffIdle(request) => {
                tracing::info!(machine = %name, %plan, "changing power");
                self.power_off(request).await;
            }
            Plan::TakeOver => {
                tracing::info!(machine = %name, %plan, "changing power");
                self.take_over().await;
            }
            Plan::Depart => self.depart().await,
            // Each claim has its own attempts.
            Plan::Leave(Leave::Running { settled: true } | Leave::ClaimPending { .. }) => {
                self.update(status::settled);
            }
            Plan::Leave(Leave::PoweredOffByOperation) => self.keep_shut_down(),
            Plan::Leave(Leave::SwitchedOn { since }) => self.end_hold(since),
            Plan::Leave(_) => {}
        }
        self.tell(&plan);
        let now = self.shared.now();
        match plan {
            Plan::PowerOn { .. }
            | Plan::TakeOver
            | Plan::PowerOff(_)
            | Plan::PowerOffIdle(_)
            | Plan::Leave(Leave::Changing) => later(now, PENDING_POLL_INTERVAL),
            Plan::Leave(Leave::ShuttingDown { until } | Leave::ShuttingDownIdle { until }) => {
                later(now, PENDING_POLL_INTERVAL).min(until)
            }
            Plan::Leave(Leave::Spaced { until }) => later(now, self.poll()).min(until),
            Plan::Depart if !self.departed => later(now, PENDING_POLL_INTERVAL),
            Plan::Depart | Plan::Leave(_) => later(now, self.poll()),
        }
    }

    async fn power_on(&mut self, boot: bedplate_bmc::BootSource, attempt: i32, next: Timestamp) {
        let mode = self.boot_mode();
        let Some(line) = &mut self.line else { return };
        let mut answer = line.ask(Question::Boot(boot, mode), For::Polling).await;
        let prepared = answer.is_ok() || is_not_supported(&answer);
        if prepared {
            answer = line.ask(Question::Request(PowerRequest::On), For::Polling).await;
        }
        let now = self.shared.now();
        let failure = answer.as_ref().err().map(NoAnswer::failure);
        if let Err(why) = &answer {
            self.failed(why, now);
        }
        // A request that never reached the BMC is not an attempt: the breaker spaces those.
        if failure.as_ref().is_some_and(|failure| failure.transient && !(failure.sent && prepared)) {
            return;
        }
        let sent = failure.as_ref().is_none_or(|failure| failure.sent && prepared);
        let came = failure.map_or_else(String::new, |failure| format!(", which failed: {}", failure.message));
        let message = format!("powered on by pxed because it should run, attempt {attempt}{came}");
        self.update(|status| {
            status::attempted(status, attempt, next);
            status::acted(status, PowerActionKind::PowerOn, &message, now);
            if sent {
                status::switched(status, now);
            }
        });
        self.event(PxedEvent::PowerChanged, message);
    }

    /// Uses the token, then forces the machine off. The machine is then switched on from the network like any machine that is off.
    async fn take_over(&mut self) {
        let Some(token) = self.unused_token().await else { return };
        let machine = self.assignment.machine.clone();
        let now = self.shared.now();
        let mut status = self.status();
        status::taken_over(&mut status, &token, now);
        if let Err(error) = self.shared.tokens.record(&machine, &token, &status).await {
            tracing::debug!(machine = %machine.name, error, "failed to record the takeover, retrying");
            return;
        }
        self.update(|status| status::taken_over(status, &token, now));
        let Some(line) = &mut self.line else { return };
        let answer = line.ask(Question::Request(PowerRequest::ForceOff), For::Polling).await;
        let message = match &answer {
            Ok(_) => {
                self.update(|status| status::switched(status, now));
                "forced off by pxed because spec.pxe.takeover allows it".to_owned()
            }
            Err(why) => {
                let message = why.failure().message;
                self.failed(why, self.shared.now());
                self.update(|status| status::takeover_failed(status, &message));
                format!("takeover failed: {message}")
            }
        };
        self.event(PxedEvent::PowerChanged, message);
    }

    /// Stores that a user switched the machine on: it is managed again, also after a restart.
    fn end_hold(&self, since: Timestamp) {
        tracing::info!(machine = %self.assignment.machine.name, "powered on by a user, pxed manages its power again");
        self.update(|status| {
            status::settled(status);
            let message = "powered on by a user; its host has enrolled since";
            status::acted(status, PowerActionKind::PowerOn, message, since);
        });
    }

    /// Returns the boot mode to request.
    pub(crate) fn boot_mode(&self) -> Option<BootMode> {
        boot_mode(&self.assignment.machine.machine.spec, &self.status())
    }

    /// Requests of the reason for which the machine is switched off: its Machine is deleted, or no claim holds its host.
    fn requested(&mut self) -> &mut Departure {
        if self.assignment.is_going() { &mut self.departure } else { &mut self.idle }
    }

    async fn power_off(&mut self, request: PowerRequest) {
        let Some(line) = &mut self.line else { return };
        let answer = line.ask(Question::Request(request), For::Polling).await;
        let now = self.shared.now();
        match (&answer, request) {
            (Err(NoAnswer::Bmc(error)), PowerRequest::GracefulOff)
                if error.reason() == BmcFault::NotSupported =>
            {
                self.requested().no_graceful = true;
                return;
            }
            (Ok(_), PowerRequest::GracefulOff) => self.requested().asked = Some(now),
            (Ok(_), _) => self.requested().forced = Some(now),
            (Err(why), request) => {
                self.failed(why, now);
                let Failure { sent, fault, .. } = why.failure();
                // Also if the BMC refused the request: the delay before the forced power-off starts.
                if request == PowerRequest::GracefulOff && (sent || fault == BmcFault::Refused) {
                    self.requested().asked.get_or_insert(now);
                }
                if !sent {
                    return;
                }
            }
        }
        let (action, message) = if self.assignment.is_going() {
            (departure_action(request), departure_message(request))
        } else {
            (PowerActionKind::IdlePowerOff, idle_message(request))
        };
        self.update(|status| {
            status::acted(status, action, &message, now);
            status::switched(status, now);
        });
        self.event(PxedEvent::PowerChanged, message);
    }

    /// Releases a machine that is off.
    async fn depart(&mut self) {
        let machine = self.assignment.machine.clone();
        self.departed = self.shared.release(&machine).await;
        if self.departed {
            tracing::info!(machine = %machine.name, "machine powered off, finalizer removed");
        }
    }

    /// Returns true if the machine is switched off when its Machine is deleted.
    pub(crate) fn switches_off(&self) -> bool {
        self.assignment.machine.machine.spec.deletion_policy == DeletionPolicy::PowerOff
    }
}

fn is_not_supported(answer: &Result<Answer, NoAnswer>) -> bool {
    matches!(answer, Err(NoAnswer::Bmc(error)) if error.reason() == BmcFault::NotSupported)
}
