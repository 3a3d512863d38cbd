//! Writes how operations go: on the way, at the end, and why one is not begun. Part of `run`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::reason::operation::AgentOutcome;
use bedplate_process::backoff::Backoff;
use bedplate_process::exit::chain;
use jiff::SignedDuration;
use tokio::time::{Instant, sleep};

use super::journal::file::Note;
use super::ledger::{View, WriteOperationError};
use super::plan::{Finish, Next, Observed, Standing, later, next};
use super::progress::{self, End, executor};
use super::run::{AGAIN, Report, Runner};
use crate::metrics::METRICS;

/// Delay between two writes that fail.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Between two messages about one operation.
const TELL: SignedDuration = SignedDuration::from_secs(10);
/// After a stop so long for an answer that is being written.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Runner {
    /// Writes what is done or awaited, not too often. The message in the object is not compared: another version may word it otherwise.
    pub(super) async fn tell(&mut self, message: &str) {
        let now = self.now();
        let Some(running) = &mut self.running else { return };
        let object = Arc::clone(&running.object);
        let is_recent = |last: &Report| last.at <= now && now < later(last.at, TELL);
        if running.report.as_ref().is_some_and(|last| last.is_same(message) || is_recent(last)) {
            return;
        }
        running.report = Some(Report::of(message, now));
        self.write(&object, progress::under_way(object.status.as_ref(), message)).await;
    }

    /// Writes a status; zero if it was written, else when to look again.
    pub(super) async fn write(
        &mut self,
        object: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Option<Duration> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let held = self.write_again.and_then(|again| again.checked_duration_since(Instant::now()));
        if let Some(left) = held.filter(|left| !left.is_zero() && !self.shutdown.is_cancelled()) {
            return Some(left);
        }
        let written = self.parts.ledger.write(object, status).await;
        self.write_again = None;
        let running =
            self.running.as_mut().filter(|running| running.object.metadata.uid == object.metadata.uid);
        match written {
            Ok(object) => {
                self.unwritten = 0;
                if let Some(running) = running {
                    running.object = object;
                }
                return Some(Duration::ZERO);
            }
            Err(WriteOperationError::Conflict(now)) => {
                tracing::debug!(
                    operation = name,
                    "an operation was written by somebody else: looking at it anew"
                );
                if let Some(running) = running {
                    running.object = Arc::from(now);
                }
            }
            Err(error @ WriteOperationError::Later(_)) => {
                self.unwritten = self.unwritten.saturating_add(1);
                let wait = BACKOFF.delay(self.unwritten.saturating_add(1), rand::random());
                self.write_again = Some(Instant::now() + wait);
                let wait_seconds = wait.as_secs();
                tracing::warn!(
                    operation = name,
                    error = chain(&error),
                    wait_seconds,
                    "an operation waits to be written"
                );
                return Some(wait);
            }
            Err(error @ (WriteOperationError::Gone | WriteOperationError::Refused(_))) => {
                tracing::warn!(operation = name, error = chain(&error), "an operation cannot be written");
                self.running = None;
                return Some(AGAIN * 15);
            }
        }
        Some(AGAIN)
    }

    /// Ends an operation: the Node is given free, the end is noted, then it is told.
    pub(super) async fn finish(&mut self, finish: Finish) -> Option<Duration> {
        let running = self.running.as_mut()?;
        let object = Arc::clone(&running.object);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        running.finish = Some(finish.clone());
        let Finish { mut end, uncordon } = finish;
        if let Some(until) = uncordon
            && let Err(why) = self.uncordon(&uid).await
        {
            if self.now() < until && !self.shutdown.is_cancelled() {
                self.tell(&format!("{}; the Node is not given free yet: {why}", end.message)).await;
                return Some(AGAIN);
            }
            let node = &self.parts.machine;
            end.message =
                format!("{}; the Node may still be cordoned ({why}): `kubectl uncordon {node}`", end.message);
            if end.complete {
                end = End::failed(AgentOutcome::UncordonFailed, end.message);
            }
        }
        if let Some(running) = &mut self.running {
            running.finish = Some(Finish::plain(end.clone()));
        }
        if let Some(known) = self.notes.iter().find(|note| note.uid == uid && note.end.is_none()).cloned()
            && let Err(error) = self.keep(Note { end: Some(end.clone()), ..known }).await
        {
            tracing::warn!(
                operation = object.metadata.name,
                error = chain(&error),
                "the end of an operation is not noted"
            );
        }
        let by = executor(self.parts.machine.as_str());
        let status = progress::ended(&object, &end, &by, self.now());
        let written = self.write(&object, status).await;
        if written == Some(Duration::ZERO) {
            tracing::info!(
                operation = object.metadata.name,
                kind = object.spec.operation_name,
                complete = end.complete,
                reason = end.reason,
                message = end.message,
                "an operation has ended"
            );
            METRICS.operation(&object.spec.operation_name, end.complete);
            self.running = None;
            self.ended.insert(uid);
        }
        written
    }

    /// Those that are not begun because the Machine is paused say so.
    pub(super) async fn tell_paused(&mut self, view: &View) {
        if view.standing != Standing::Paused {
            return;
        }
        for operation in &view.operations {
            let observed = Observed {
                now: self.now(),
                machine: self.parts.machine.as_str(),
                boot_id: &self.parts.boot_id,
                standing: view.standing,
                operation,
                note: None,
                accepted: false,
            };
            if let Next::Wait { reason, message } = next(&observed) {
                self.write(operation, progress::waits(operation.status.as_ref(), reason, &message)).await;
            }
        }
    }

    /// The host goes down: what is known is told, if that is quick.
    pub(super) async fn last_words(&mut self) {
        let said = tokio::time::timeout(LAST_WORDS, async {
            while self.running.as_ref().is_some_and(|running| running.finish.is_some() || running.accepted) {
                match self.advance().await {
                    Some(Duration::ZERO) => {}
                    Some(pause) if pause <= AGAIN => sleep(pause).await,
                    Some(_) | None => break,
                }
            }
        });
        if said.await.is_err() {
            tracing::debug!("an operation's end is told by the next agent");
        }
    }
}
