//! What is carried out beside a drain, which may take hours: services are restarted and packets captured meanwhile. Part of `run`.
//!
//! ```text
//!   reboot, shutdown   cordon ── evict, wait for Pods ──── drained ─┬─ the host goes down
//!   beside it            restartService, packetCapture, one by one ─┘ what was begun is awaited, no more is begun
//! ```
//! Another reboot or shutdown waits, for there is one end of a boot; so does applyConfiguration, which restarts the kubelet whose right the
//! drain uses. Whoever does not want to wait deletes the operation that drains.

use bedplate_rules::drain::Drain;
use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::outcome::Outcome;
use super::plan::{goes_beside, is_begun, is_ours};
use super::run::{Runner, pause};

impl Runner {
    /// Until no Pod is left that has to leave, and nothing runs beside that.
    pub(super) async fn drain_and_others(&mut self, drain: &Drain, deadline: Timestamp) -> Outcome {
        let drained = CancellationToken::new();
        let mut beside = self.beside(drained.clone());
        let draining = async {
            let outcome = self.drain(drain, deadline).await;
            drained.cancel();
            if let Some(name) = self.others() {
                self.tell(&format!("the Pods have left; waiting for the end of operation {name}")).await;
            }
            outcome
        };
        let (outcome, ()) = tokio::join!(draining, beside.go_on());
        // What it has begun or ended is not begun anew.
        (self.notes, self.ended) = (beside.notes, beside.ended);
        // Too late by now: the plan says so.
        let late = matches!(outcome, Outcome::Ready) && self.now() >= deadline;
        if late { Outcome::Interrupted } else { outcome }
    }

    /// Carries out what goes beside a drain until that is over.
    fn beside(&self, drained: CancellationToken) -> Self {
        Self {
            parts: self.parts.clone(),
            views: self.views.clone(),
            shutdown: self.shutdown.clone(),
            notes: self.notes.clone(),
            ended: self.ended.clone(),
            running: None,
            beside: Some(drained),
            sweep: false,
            unwritten: 0,
            write_again: None,
            beat: self.beat.clone(),
        }
    }

    /// Until the drain is over, and what was taken before. Boxed, because a turn may be a drain.
    fn go_on(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let drained = self.beside.clone().unwrap_or_default();
            // At least one turn: an agent that was killed may have begun something.
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
                    // The drain beats as long as it goes on.
                    never = self.beat.beating(), if drained.is_cancelled() => match never {},
                };
                if changed.is_err() {
                    break;
                }
            }
            self.last_words().await;
        })
    }

    /// The operation that was taken beside the one under way.
    fn others(&self) -> Option<String> {
        let machine = self.parts.machine.as_str();
        let view = self.views.borrow();
        let taken =
            view.operations.iter().find(|one| goes_beside(one) && is_begun(one) && is_ours(one, machine));
        taken.and_then(|one| one.metadata.name.clone())
    }
}
