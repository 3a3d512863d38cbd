//! Execution of an operation by a worker: `operation::next` decides the act, this module carries it out.
//!
//! The step is durable before its request is sent. If a worker is dropped in between, its successor finds the step.
//! Part of `worker`.

use bedplate_api::operation::MachineOperationStatus;
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::reason::operation::PowerOutcome;
use bedplate_bmc::{BmcFault, PowerRequest};
use jiff::{SignedDuration, Timestamp};

use super::worker::Worker;
use crate::power::WriteOperationError;
use crate::power::bmc::connection::{Answer, NoAnswer, Question};
use crate::power::bmc::limits::For;
use crate::power::counters::OperationResult;
use crate::power::plan::breaker::later;
use crate::power::plan::last_act;
use crate::power::plan::operation::{Act, End, Memory, Seen, next};
use crate::power::plan::parameters::{Boot, Kind, Order};
use crate::power::progress::{self, Written};
use crate::power::status;

/// Delay before a write is retried after a conflict or an error of the API server.
const WRITE_RETRY_DELAY: SignedDuration = SignedDuration::from_secs(2);

impl Worker {
    /// The next act of the operation that is under way; when the one after it is due.
    pub(crate) async fn carry(&mut self) -> Timestamp {
        let now = self.shared.now();
        let Some(running) = &self.running else { return now };
        let object = running.operation.object.clone();
        let Some(kind) = Kind::of(&object.spec.operation_name) else { return now };
        let order = match Order::parse(kind, &object.spec, &self.assignment.machine.machine.spec) {
            Ok(order) => order,
            Err(problem) => {
                let end = End { complete: false, reason: PowerOutcome::InvalidParameters, message: problem };
                return self.finish(kind, &end).await;
            }
        };
        let status = self.status();
        let seen = Seen {
            reading: self.reading,
            seed_taken: status.boot.as_ref().and_then(|boot| boot.seed_time.as_ref()).map(|time| time.0),
            last: status.power.as_ref().and_then(last_act),
        };
        let written = Written::of(object.status.as_ref(), now);
        match next(&order, written.as_ref(), &running.memory, &seen, now) {
            Act::Take => {
                let status = progress::taken(object.status.as_ref(), &self.shared.instance, now);
                self.write(status, |memory| *memory = Memory { taken: Some(now), ..Memory::default() }).await
            }
            Act::WriteStep(step) => {
                let status = progress::with_step(object.status.as_ref(), step, now);
                self.write(status, |memory| memory.stepped(step)).await
            }
            Act::Read => self.read().await,
            Act::Ask(request, boot) => self.request(kind, request, boot).await,
            Act::Wait(until) => until,
            Act::Finish(end) => self.finish(kind, &end).await,
        }
    }

    async fn read(&mut self) -> Timestamp {
        let looked = self.look(For::Operation).await;
        let (now, jitter) = (self.shared.now(), self.shared.jitter());
        if let Some(running) = &mut self.running {
            match looked {
                Some(Err(failure)) => running.memory.blind(failure, now, jitter),
                Some(Ok(())) | None => running.memory.looked(),
            }
        }
        now
    }

    async fn request(&mut self, kind: Kind, request: PowerRequest, boot: Boot) -> Timestamp {
        let set = self.set_boot(boot).await;
        let prepared = set.is_ok();
        let answer = match set {
            Ok(()) => self.put(Question::Request(request)).await,
            Err(why) => Err(why),
        };
        let (now, jitter) = (self.shared.now(), self.shared.jitter());
        let mut failure = answer.as_ref().err().map(NoAnswer::failure);
        if let Some(failure) = &mut failure {
            // Whatever became of the next boot's source, the power was not changed.
            failure.sent &= prepared;
        }
        if let Err(why) = &answer {
            self.failed(why, now);
        }
        if failure.as_ref().is_none_or(|failure| failure.sent) {
            self.acted(kind, request, now);
        }
        if let Some(running) = &mut self.running {
            match failure {
                None => running.memory.asked(request, now),
                Some(failure) => running.memory.refused(request, failure, now, jitter),
            }
        }
        now
    }

    /// Sets the next boot. A boot that cannot be set is an error only if the operation names it.
    async fn set_boot(&mut self, boot: Boot) -> Result<(), NoAnswer> {
        let (source, needed) = match boot {
            Boot::Default => return Ok(()),
            Boot::Network(source) => (source, false),
            Boot::OnlyNetwork(source) => (source, true),
        };
        match self.put(Question::Boot(source, self.boot_mode())).await {
            Err(why) if !needed && why.failure().fault == BmcFault::NotSupported => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn put(&mut self, question: Question) -> Result<Answer, NoAnswer> {
        match &mut self.line {
            Some(line) => line.ask(question, For::Operation).await,
            None => std::future::pending().await,
        }
    }

    /// Records the request in the Machine's status, even if it fails.
    fn acted(&mut self, kind: Kind, request: PowerRequest, now: Timestamp) {
        let Some(running) = &self.running else { return };
        let message = format!("{request} for operation {}", running.operation.key.name);
        self.update(|status| {
            status::settled(status);
            status::acted(status, kind.action(), &message, now);
            status::switched(status, now);
        });
    }

    /// Writes the status of the operation; after a conflict the operation is read again first.
    async fn write(&mut self, status: MachineOperationStatus, then: impl FnOnce(&mut Memory)) -> Timestamp {
        let Some(running) = &mut self.running else { return self.shared.now() };
        let written = self.shared.writer.write(&running.operation, status).await;
        let now = self.shared.now();
        match written {
            Ok(operation) => {
                running.operation = operation;
                then(&mut running.memory);
                now
            }
            Err(WriteOperationError::Later(why)) => {
                tracing::debug!(
                    operation = running.operation.key.name,
                    why,
                    "operation status write postponed"
                );
                later(now, WRITE_RETRY_DELAY)
            }
            Err(error @ WriteOperationError::Conflict) => {
                tracing::debug!(operation = running.operation.key.name, %error, "operation was changed by another writer, reading it again");
                running.overtaken = true;
                later(now, WRITE_RETRY_DELAY)
            }
            Err(error @ (WriteOperationError::Gone | WriteOperationError::Refused(_))) => {
                let operation = running.operation.key.clone();
                tracing::warn!(operation = operation.name, %error, "operation abandoned");
                self.done.insert(operation);
                self.running = None;
                now
            }
        }
    }

    async fn finish(&mut self, kind: Kind, end: &End) -> Timestamp {
        let now = self.shared.now();
        let Some(running) = &self.running else { return now };
        let (key, object) = (running.operation.key.clone(), running.operation.object.clone());
        let status = progress::ended(&object, end, &self.shared.instance, now);
        let mut ended = false;
        let next = self.write(status, |_| ended = true).await;
        if !ended {
            return next;
        }
        tracing::info!(
            machine = %self.assignment.machine.name, operation = key.name, kind = kind.as_str(),
            reason = %end.reason, message = end.message, "operation finished"
        );
        let result = if end.complete { OperationResult::Complete } else { OperationResult::Failed };
        self.shared.counters.operation(kind, result);
        let message = format!("{} by operation {}: {}", kind.as_str(), key.name, end.message);
        // Also if nothing was done, or the executor was killed before it stored the result: a machine stays as the
        // user wants it.
        let asked = progress::has_step(object.status.as_ref());
        let start = object.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        self.update(|status| {
            let last = status.power.as_ref().and_then(|power| power.last_action.as_ref());
            let known = last.is_some_and(|last| last.action == kind.action() && Some(last.time.0) >= start);
            if end.complete {
                status::settled(status);
            }
            if !known && (end.complete || asked) {
                status::acted(status, kind.action(), &message, now);
            }
        });
        if end.complete {
            self.event(PxedEvent::PowerChanged, message);
        } else {
            let message =
                format!("{} by operation {}: {}: {}", kind.as_str(), key.name, end.reason, end.message);
            self.event(PxedEvent::OperationFailed, message);
        }
        self.done.insert(key);
        self.running = None;
        self.reading = None;
        next
    }
}
