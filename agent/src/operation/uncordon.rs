//! Uncordons the Node that is cordoned for a finished operation of this agent. Part of `run`.
//!
//! A writer that ends an operation uncordons the Node itself. This module covers the other
//! cases. The operation was deleted or timed out while uncordoning was not possible, or the
//! agent was killed in a drain. A Node that a user cordoned stays cordoned. A Node that a
//! shutdown cordoned stays so too, as long as that operation is known.

use std::time::Duration;

use bedplate_process::exit::chain;

use super::ledger::View;
use super::plan::Standing;
use super::run::Runner;

/// Delay before the next attempt.
const RETRY_DELAY: Duration = Duration::from_secs(60);

impl Runner {
    /// Checks once after each operation and at the start. Returns the delay
    /// before the next attempt after a failure.
    pub(super) async fn sweep(&mut self, view: &View) -> Option<Duration> {
        if self.concurrent.is_some() || !self.sweep || !view.complete || view.standing == Standing::Unknown {
            return None;
        }
        let node = &self.parts.node;
        let seen = match node.node().await {
            Ok(Some(seen)) => seen,
            // No slot has joined: checked again when something changes.
            Ok(None) => return None,
            Err(error) => {
                tracing::debug!(
                    error = chain(&error),
                    "failed to read whether the Node is cordoned, retrying"
                );
                return Some(RETRY_DELAY);
            }
        };
        let Some(by) = &seen.cordoned_by else {
            self.sweep = false;
            return None;
        };
        if view.operations.iter().any(|one| one.metadata.uid.as_deref() == Some(by)) {
            return None;
        }
        if view.ended.get(by) == Some(&true) || self.has_shut_down(by) {
            self.sweep = false;
            return None;
        }
        match node.cordon(&seen, None).await {
            Ok(()) => {
                tracing::info!(uid = by, "uncordoned the Node of a finished operation");
                self.sweep = false;
                None
            }
            Err(error) => {
                tracing::warn!(uid = by, error = chain(&error), "failed to uncordon the Node, retrying");
                Some(RETRY_DELAY)
            }
        }
    }
}
