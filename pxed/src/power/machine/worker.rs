//! Worker for one Machine with a BMC: observe -> plan -> apply -> report. Operations of users have priority.
//!
//! ```text
//! operation there --yes--> its next act (`carry`) --> repeat until it is finished
//!        |no
//!        v
//! breaker admits --> observe --> plan --> apply --> report --> wait (2 s while a change is pending, otherwise the poll interval)
//!        |no (an operation that arrives interrupts observing)
//!        v
//! wait; other credentials close the breaker
//! ```
//!
//! Stops when it is asked to, or when this pxed no longer leads. The act in progress is dropped then; its step is in
//! the object. Spawned by `supervisor`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::machine::{MachineStatus, PowerState};
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::wire::Stage;
use bedplate_bmc::BmcFault;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::takeover::{self, Enrolled};
use crate::power::bmc::connection::{Answer, Line, NoAnswer, Question};
use crate::power::bmc::limits::For;
use crate::power::fleet::assignment::{Assignment, Shared};
use crate::power::plan::breaker::{Breaker, later};
use crate::power::plan::claim::{Absence, Demand};
use crate::power::plan::operation::{Failure, Memory, PENDING_POLL_INTERVAL, Reading};
use crate::power::plan::{Departure, Observed, Plan, boot_that_came_to, plan};
use crate::power::{Operation, OperationKey, Tenure, status};

/// Interval between BMC identity checks.
const IDENTITY_CHECK_INTERVAL: SignedDuration = SignedDuration::from_hours(1);
/// Interval between checks for other credentials while the BMC rejects the known ones; randomized.
const CREDENTIALS_CHECK_INTERVAL: SignedDuration = SignedDuration::from_secs(45);

/// Over a longer wait no connection is kept: a BMC has few to give, and to pxed each is memory.
const MAX_WAIT_WITH_CONNECTION: Duration = Duration::from_secs(4);

/// The operation that is under way.
pub(crate) struct Running {
    pub(crate) operation: Operation,
    pub(crate) memory: Memory,
    /// True if another writer changed the object of the operation.
    pub(crate) overtaken: bool,
}

impl Running {
    fn new(operation: Operation) -> Self {
        Self { operation, memory: Memory::default(), overtaken: false }
    }

    /// Returns the operation with its current object; starts over if another writer changed its status. Changes next
    /// to the status (a label, say) keep the memory.
    fn goes_on(mut self, wanted: &[Operation]) -> Option<Self> {
        let now = wanted.iter().find(|operation| operation.key == self.operation.key)?;
        if !self.overtaken || now.version == self.operation.version {
            return Some(self);
        }
        if now.object.status != self.operation.object.status {
            return Some(Self::new(now.clone()));
        }
        (self.operation, self.overtaken) = (now.clone(), false);
        Some(self)
    }
}

/// The worker of one Machine.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tenure: Tenure,
    pub(crate) wanted: watch::Receiver<Assignment>,
    pub(crate) assignment: Assignment,
    pub(crate) line: Option<Line>,
    pub(crate) breaker: Breaker,
    pub(crate) reading: Option<Reading>,
    pub(crate) running: Option<Running>,
    /// Finished operations that may still be in the assignment.
    pub(crate) done: HashSet<OperationKey>,
    pub(crate) departure: Departure,
    pub(crate) departed: bool,
    /// Requests to switch off a host that no claim holds.
    pub(crate) idle: Departure,
    /// Absence of its MachineClaim.
    absence: Absence,
    /// Enrollments that are known of the Machine's name.
    enrolled: Enrolled,
    /// Time at which the BMC last reported Off.
    seen_off: Option<Timestamp>,
    identified: Option<Timestamp>,
    /// Newest shutdown, and the time from which the machine should be off.
    shut_down: Option<(OperationKey, Timestamp)>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, mut wanted: watch::Receiver<Assignment>) -> Self {
        let assignment = wanted.borrow_and_update().clone();
        let bmc = assignment.machine.machine.spec.bmc.clone();
        let line = bmc.map(|bmc| Line::new(shared.clone(), bmc, assignment.contested.clone()));
        let breaker = Breaker::default();
        shared.counters.breaker(None, Some(breaker.shown()));
        Self {
            tenure: shared.tenure.clone(),
            shared,
            wanted,
            assignment,
            line,
            breaker,
            reading: None,
            running: None,
            done: HashSet::new(),
            departure: Departure::default(),
            departed: false,
            idle: Departure::default(),
            absence: Absence::default(),
            enrolled: Enrolled::Never,
            seen_off: None,
            identified: None,
            shut_down: None,
        }
    }

    /// Works until `stop`, or until this pxed no longer leads; then ends the session at the BMC.
    /// On the heap, and not in its task: there it would stand twice, thousands of times.
    pub(crate) async fn run(mut self: Box<Self>, stop: CancellationToken) {
        let mut tenure = self.tenure.clone();
        Box::pin(self.recall()).await;
        loop {
            let until = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tenure.lost() => break,
                // On the heap only while it is under way: most workers of thousands wait.
                until = Box::pin(self.turn()) => until,
            };
            if self.departed && self.assignment.departing {
                break;
            }
            let wait = until.duration_since(self.shared.now());
            let wait = Duration::try_from(wait).unwrap_or(Duration::ZERO);
            if wait > MAX_WAIT_WITH_CONNECTION
                && let Some(line) = &mut self.line
            {
                line.rest();
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tenure.lost() => break,
                changed = self.wanted.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(wait) => {}
            }
        }
        if let Some(line) = &mut self.line {
            Box::pin(line.close()).await;
        }
    }

    /// Takes up what others know of the Machine, and what outlives its status.
    async fn recall(&mut self) {
        if let Some(ended) = self.assignment.ended.clone() {
            self.update(|status| status::recalled(status, &ended));
        }
        let (machine, own) = (self.assignment.machine.clone(), self.status());
        let object = machine.machine.status.as_ref();
        let named = takeover::named(&own).or_else(|| takeover::named(object?));
        self.shared.tokens.keep(&machine, named).await;
        self.enrolled = Enrolled::read(&self.shared.store, &machine).await;
        let power = own.power.filter(|power| power.state == PowerState::Off);
        self.seen_off = power.and_then(|power| power.observed_time).map(|time| time.0);
    }

    /// One act; when the next one is due.
    async fn turn(&mut self) -> Timestamp {
        Box::pin(self.follow()).await;
        self.choose();
        if self.running.is_some() {
            // The rare branch is boxed: thousands of workers wait in `look` concurrently, and each is as large as its
            // largest branch.
            return Box::pin(self.carry()).await;
        }
        let now = self.shared.now();
        if self.departed || self.line.is_none() {
            return later(now, self.poll());
        }
        if !self.admits(now) {
            return Box::pin(self.wait_for_the_breaker(now)).await;
        }
        match self.look(For::Polling).await {
            None => self.shared.now(),
            Some(Ok(())) => {
                let plan = Box::pin(self.plan()).await;
                Box::pin(self.apply(plan)).await
            }
            // One lost answer is soon asked for again.
            Some(Err(_)) => {
                self.breaker.next_try().unwrap_or_else(|| later(self.shared.now(), PENDING_POLL_INTERVAL))
            }
        }
    }

    /// Applies the newest assignment. Another BMC resets the state.
    async fn follow(&mut self) {
        let new = self.wanted.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.assignment, new);
        let spec = &self.assignment.machine.machine.spec;
        if before.machine.machine.spec != *spec {
            self.update(status::settled);
        }
        if !self.assignment.is_going() {
            (self.departure, self.departed) = (Departure::default(), false);
        }
        self.follow_shut_down();
        let spec = &self.assignment.machine.machine.spec;
        let contested = self.assignment.contested.as_ref();
        let same = match (&self.line, &spec.bmc) {
            (Some(line), Some(bmc)) => line.is_to(bmc, contested),
            (line, bmc) => line.is_none() && bmc.is_none(),
        };
        if !same {
            let line = spec.bmc.clone().map(|bmc| Line::new(self.shared.clone(), bmc, contested.cloned()));
            let old = std::mem::replace(&mut self.line, line);
            (self.reading, self.identified) = (None, None);
            self.set_breaker(Breaker::default());
            if let Some(mut old) = old {
                old.close().await;
            }
        } else if before.machine.machine.metadata.generation != self.generation() {
            // The BMC is the same one, so its conditions hold. They may be set again only after the breaker's wait.
            let generation = self.generation();
            self.update(|status| status::observed_generation(status, generation));
        }
    }

    /// Generation of the Machine that this worker acts on.
    pub(crate) fn generation(&self) -> Option<i64> {
        self.assignment.machine.machine.metadata.generation
    }

    /// Records the time at which a shutdown was seen first.
    fn follow_shut_down(&mut self) {
        let known = self.shut_down.take();
        let Some(shut_down) = &self.assignment.shut_down else { return };
        let since = known.filter(|(key, _)| *key == shut_down.key).map(|(_, since)| since);
        let since = since.unwrap_or_else(|| shut_down.since(self.shared.now()));
        self.shut_down = Some((shut_down.key.clone(), since));
        if shut_down.complete {
            self.keep_shut_down();
        }
    }

    /// Stores the shutdown in the Machine's status: its operation may be deleted, and the machine stays off.
    pub(crate) fn keep_shut_down(&self) {
        if let (Some(shut_down), Some((_, since))) = (&self.assignment.shut_down, &self.shut_down) {
            self.update(|status| status::shut_down(status, &shut_down.message(), *since));
        }
    }

    /// The oldest operation that has not ended.
    fn choose(&mut self) {
        let wanted = &self.assignment.operations;
        self.done.retain(|key| wanted.iter().any(|operation| operation.key == *key));
        let running = self.running.take();
        self.running = running.and_then(|running| running.goes_on(wanted));
        if self.running.is_none() {
            let next = wanted.iter().find(|operation| !self.done.contains(&operation.key));
            self.running = next.cloned().map(Running::new);
        }
    }

    /// Reads the power state. `None`: an event with a higher priority has arrived.
    pub(crate) async fn look(&mut self, whom: For) -> Option<Result<(), Failure>> {
        let line = self.line.as_mut()?;
        let answer = match whom {
            For::Operation => line.ask(Question::State, whom).await,
            For::Polling => tokio::select! {
                biased;
                answer = line.ask(Question::State, whom) => answer,
                Ok(()) = self.wanted.changed() => {
                    self.wanted.mark_changed();
                    return None;
                }
            },
        };
        let now = self.shared.now();
        Some(match answer {
            Ok(Answer::State(state)) => {
                self.reading = Some(Reading { state, at: now });
                if state == PowerState::Off {
                    self.seen_off = Some(now);
                }
                self.answered(Some(state), now);
                self.identify(now).await;
                Ok(())
            }
            // A BMC that does not report its power state is still reachable.
            Err(NoAnswer::Bmc(error)) if error.reason() == BmcFault::NotSupported => {
                self.reading = Some(Reading { state: PowerState::Unknown, at: now });
                self.answered(Some(PowerState::Unknown), now);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(why) => {
                self.reading = None;
                self.failed(&why, now);
                Err(why.failure())
            }
        })
    }

    /// Reads the identity from time to time. No decision depends on it.
    async fn identify(&mut self, now: Timestamp) {
        let due = self.identified.is_none_or(|last| now.duration_since(last) >= IDENTITY_CHECK_INTERVAL);
        let Some(line) = self.line.as_mut().filter(|_| due && self.running.is_none()) else { return };
        self.identified = Some(now);
        let answer = tokio::select! {
            biased;
            answer = line.ask(Question::Identity, For::Polling) => answer,
            Ok(()) = self.wanted.changed() => {
                self.wanted.mark_changed();
                self.identified = None;
                return;
            }
        };
        if let Ok(Answer::Identity(identity)) = answer {
            let quirks = self.line.as_ref().map(Line::quirks).unwrap_or_default();
            self.update(|status| status::identified(status, &identity, quirks));
        }
    }

    /// Returns the token of `spec.pxe.takeover` if it was not used yet.
    pub(crate) async fn unused_token(&mut self) -> Option<String> {
        let machine = self.assignment.machine.clone();
        let token = takeover::unused(&machine.machine.spec, &self.status(), &machine.machine)?;
        let is_used = self.shared.tokens.is_used(&machine.name, token).await;
        (!is_used).then(|| token.to_owned())
    }

    async fn plan(&mut self) -> Plan {
        let token = self.unused_token().await;
        let own = self.status();
        let machine = &self.assignment.machine.machine;
        // Another pxed of the site may have booted the host.
        let statuses = || [Some(&own), machine.status.as_ref()].into_iter().flatten();
        if statuses().any(takeover::names_agent) {
            self.enrolled = Enrolled::ThisMachine;
        }
        let node = self.shared.tokens.observed_node(machine);
        let takeover = takeover::state(machine, token.is_some(), self.enrolled, node);
        let demand = self.absence.demand(machine, self.assignment.claim);
        if demand != Demand::Idle || self.reading.is_some_and(|reading| reading.state == PowerState::Off) {
            self.idle = Departure::default();
        }
        let took_seed =
            |status: &MachineStatus| status.boot.as_ref().is_some_and(|boot| boot.seed_time.is_some());
        let latest = |least| statuses().filter_map(|status| boot_that_came_to(status, least)).max();
        plan(&Observed {
            spec: &machine.spec,
            reading: self.reading,
            power: own.power.as_ref(),
            up: latest(Stage::Userspace),
            enrolled: latest(Stage::Enrolled),
            seen_off: self.seen_off,
            booted: self.enrolled == Enrolled::ThisMachine || statuses().any(took_seed),
            takeover,
            shut_down: self.shut_down.as_ref().map(|(_, since)| *since),
            operation: false,
            departure: self.assignment.is_going().then_some(self.departure),
            demand,
            idle: self.idle,
            now: self.shared.now(),
        })
    }

    fn admits(&mut self, now: Timestamp) -> bool {
        let mut breaker = self.breaker.clone();
        let admits = breaker.admits(now);
        self.set_breaker(breaker);
        admits
    }

    /// Other credentials close it.
    async fn wait_for_the_breaker(&mut self, now: Timestamp) -> Timestamp {
        let held = matches!(self.breaker, Breaker::Held { .. });
        if let Some(line) = self.line.as_mut().filter(|_| held)
            && line.has_other_credentials().await
        {
            line.forget();
            self.set_breaker(Breaker::default());
            return now;
        }
        let recheck = CREDENTIALS_CHECK_INTERVAL.mul_f64(1.0 + self.shared.jitter() / 3.0);
        let next = self.breaker.next_try();
        if held {
            next.map_or(later(now, recheck), |next| next.min(later(now, recheck)))
        } else {
            next.unwrap_or(now)
        }
    }

    pub(crate) fn set_breaker(&mut self, breaker: Breaker) {
        self.shared.counters.breaker(Some(self.breaker.shown()), Some(breaker.shown()));
        self.breaker = breaker;
    }

    /// Interval between polls of an idle machine.
    pub(crate) fn poll(&self) -> SignedDuration {
        let poll = SignedDuration::try_from(self.shared.limits.poll).unwrap_or(SignedDuration::from_secs(60));
        poll.mul_f64(1.0 + 0.2 * self.shared.jitter())
    }

    pub(crate) fn status(&self) -> MachineStatus {
        self.shared.registry.get(&self.assignment.machine.name).unwrap_or_default()
    }

    /// The status of a deleted Machine is not updated any more.
    pub(crate) fn update(&self, change: impl FnOnce(&mut MachineStatus)) {
        if !self.assignment.departing {
            self.shared.registry.update(&self.assignment.machine.name, change);
        }
    }

    pub(crate) fn event(&self, reason: PxedEvent, message: String) {
        self.shared.registry.event(&self.assignment.machine.name, reason, message);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.counters.breaker(Some(self.breaker.shown()), None);
    }
}
