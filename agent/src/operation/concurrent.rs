//! Operations that run during a drain, which may take hours: services are
//! restarted and packets are captured. Part of `run`.
//!
//! ```text
//!   reboot, shutdown   cordon ── evict, wait for Pods ──── drained ─┬─ the host goes down
//!   concurrently         restartService, packetCapture, one by one ─┘ wait for the running one, start no more
//! ```
//! Another reboot or shutdown waits, because a boot ends only once.
//! applyConfiguration waits too, because it restarts the kubelet whose credential
//! the drain uses. To stop waiting, a user deletes the draining operation.

use bedplate_rules::drain::Drain;
use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::outcome::Outcome;
use super::plan::{is_ours, is_started, runs_concurrently};
use super::run::{Runner, pause};

impl Runner {
    /// Drains until no Pod is left to evict, and no concurrent operation runs.
    pub(super) async fn drain_and_others(&mut self, drain: &Drain, deadline: Timestamp) -> Outcome {
        let drained = CancellationToken::new();
        let mut concurrent = self.concurrent(drained.clone());
        let draining = async {
            let outcome = self.drain(drain, deadline).await;
            drained.cancel();
            if let Some(name) = self.others() {
                self.tell(&format!("the Node is drained; waiting for operation {name} to finish")).await;
            }
            outcome
        };
        let (outcome, ()) = tokio::join!(draining, concurrent.go_on());
        // Operations that the concurrent loop started or finished must not start again.
        (self.notes, self.ended) = (concurrent.notes, concurrent.ended);
        // The deadline has passed by now, which the plan reports.
        let late = matches!(outcome, Outcome::Ready) && self.now() >= deadline;
        if late { Outcome::Interrupted } else { outcome }
    }

    /// Returns the loop that runs operations during a drain.
    fn concurrent(&self, drained: CancellationToken) -> Self {
        Self {
            parts: self.parts.clone(),
            views: self.views.clone(),
            shutdown: self.shutdown.clone(),
            notes: self.notes.clone(),
            ended: self.ended.clone(),
            running: None,
            concurrent: Some(drained),
            sweep: false,
            unwritten: 0,
            write_again: None,
            beat: self.beat.clone(),
        }
    }

    /// Runs until the drain ends and the operations taken before are finished.
    /// Boxed, because a turn may be a drain.
    fn go_on(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let drained = self.concurrent.clone().unwrap_or_default();
            // At least one turn: a killed agent may have started an operation.
            loop {
                let again = self.advance().await;
                if self.shutdown.is_cancelled() || drained.is_cancelled() && self.running.is_none() {
                    break;
                }
                let changed = tokio::select! {
                    () = pause(again) => Ok(()),
                    changed = self.views.changed() => changed,
                    () = drained.cancelled(), if !drained.is_cancelled() => Ok(()),
                    () = self.shutdown.cancelled() => Ok(()),
                    // During the drain, the drain itself sends the pulse.
                    never = self.beat.beating(), if drained.is_cancelled() => match never {},
                };
                if changed.is_err() {
                    break;
                }
            }
            self.last_words().await;
        })
    }

    /// Returns the operation that was taken concurrently with the current one.
    fn others(&self) -> Option<String> {
        let machine = self.parts.machine.as_str();
        let view = self.views.borrow();
        let taken = view
            .operations
            .iter()
            .find(|one| runs_concurrently(one) && is_started(one) && is_ours(one, machine));
        taken.and_then(|one| one.metadata.name.clone())
    }
}
