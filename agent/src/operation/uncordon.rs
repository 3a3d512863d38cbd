//! Gives the Node free that is cordoned for an operation of ours that is over. Part of `run`.
//!
//! Whoever ends an operation gives the Node free himself. This is for what comes in between: the operation was removed or given up while nobody
//! could uncordon, or the agent was killed in a drain. What a person has cordoned stays so, and what a shutdown has, as long as it is known.

use std::time::Duration;

use bedplate_process::exit::chain;

use super::ledger::View;
use super::plan::Standing;
use super::run::Runner;

/// Before it is tried again.
const AGAIN: Duration = Duration::from_secs(60);

impl Runner {
    /// Looks once after each operation and at the start; when again, if it has not worked.
    pub(super) async fn sweep(&mut self, view: &View) -> Option<Duration> {
        if self.beside.is_some() || !self.sweep || !view.complete || view.standing == Standing::Unknown {
            return None;
        }
        let node = &self.parts.node;
        let seen = match node.node().await {
            Ok(Some(seen)) => seen,
            // No slot has joined: looked at again when something changes.
            Ok(None) => return None,
            Err(error) => {
                tracing::debug!(error = chain(&error), "whether the Node is cordoned is not known yet");
                return Some(AGAIN);
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
                tracing::info!(
                    uid = by,
                    "the Node was cordoned for an operation that is over: it is given free"
                );
                self.sweep = false;
                None
            }
            Err(error) => {
                tracing::warn!(uid = by, error = chain(&error), "the Node is not given free yet");
                Some(AGAIN)
            }
        }
    }
}
