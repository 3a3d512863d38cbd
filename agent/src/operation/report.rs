//! Writes the progress of operations, their results, and why one does not start. Part of `run`.

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
use super::run::{RETRY_DELAY, Report, Runner};
use crate::metrics::METRICS;

/// Delay between two writes that fail.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Minimum interval between two messages about one operation.
const MIN_REPORT_INTERVAL: SignedDuration = SignedDuration::from_secs(10);
/// Time after a stop for finishing a pending write.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Runner {
    /// Writes the current step, rate limited. The message in the object is not compared, because another
    /// agent version may have another wording.
    pub(super) async fn tell(&mut self, message: &str) {
        let now = self.now();
        let Some(running) = &mut self.running else { return };
        let object = Arc::clone(&running.object);
        let is_recent = |last: &Report| last.at <= now && now < later(last.at, MIN_REPORT_INTERVAL);
        if running.report.as_ref().is_some_and(|last| last.is_same(message) || is_recent(last)) {
            return;
        }
        running.report = Some(Report::of(message, now));
        self.write(&object, progress::under_way(object.status.as_ref(), message)).await;
    }

    /// Writes a status. Returns zero if it was written, otherwise the delay before the next turn.
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
                    "operation was changed by another writer; reading it again"
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
                    "failed to write an operation, retrying"
                );
                return Some(wait);
            }
            Err(error @ (WriteOperationError::Gone | WriteOperationError::Refused(_))) => {
                tracing::warn!(
                    operation = name,
                    error = chain(&error),
                    "failed to write an operation, abandoned"
                );
                self.running = None;
                return Some(RETRY_DELAY * 15);
            }
        }
        Some(RETRY_DELAY)
    }

    /// Ends an operation: uncordons the Node, notes the result, then reports it.
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
                self.tell(&format!("{}; waiting to uncordon the Node: {why}", end.message)).await;
                return Some(RETRY_DELAY);
            }
            let node = self.parts.node.name().await;
            let remedy =
                node.map_or("`kubectl uncordon` it".to_owned(), |name| format!("`kubectl uncordon {name}`"));
            end.message = format!("{}; the Node may still be cordoned ({why}): {remedy}", end.message);
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
                "failed to store the result of an operation"
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
                "operation finished"
            );
            METRICS.operation(&object.spec.operation_name, end.complete);
            self.running = None;
            self.ended.insert(uid);
        }
        written
    }

    /// Reports on operations that do not start because the Machine is paused.
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

    /// Reports known results before the host goes down, within a short time.
    pub(super) async fn last_words(&mut self) {
        let said = tokio::time::timeout(LAST_WORDS, async {
            while self.running.as_ref().is_some_and(|running| running.finish.is_some() || running.accepted) {
                match self.advance().await {
                    Some(Duration::ZERO) => {}
                    Some(pause) if pause <= RETRY_DELAY => sleep(pause).await,
                    Some(_) | None => break,
                }
            }
        });
        if said.await.is_err() {
            tracing::debug!("pending reports timed out, leaving them to the next agent");
        }
    }
}
