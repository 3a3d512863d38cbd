//! Brings the node to the selected version. Part of `run`; `configuration`
//! decides which changes are necessary.
//!
//! Each turn reads the state again, so that it continues after a kill and after a reboot of the host. A
//! repave is requested once. If the version fails then, the same operation does not retry it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::machine::VersionRef;
use bedplate_api::reason::operation::AgentOutcome;
use bedplate_bootstrap::diff::InPlace;
use bedplate_process::exit::chain;
use bedplate_rules::drain::Drain;
use jiff::{SignedDuration, Timestamp};

use super::configuration::{Decision, Standing, decide};
use super::outcome::Outcome;
use super::progress::{self, End};
use super::run::Runner;

/// Drain before a repave: Pods are evicted, and their budgets are honored, up to this limit.
const DRAIN: Drain =
    Drain { limit: SignedDuration::from_secs(600), grace: None, delete_empty_dir: true, force: true };

/// Reason for not making a change.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// This agent or host does not support the change.
    #[error("{0}")]
    NotSupported(String),
    /// The change was made and failed. It is not repeated automatically.
    #[error("{0}")]
    Broken(String),
    /// A claim manages the Node.
    #[error("{0}")]
    Claimed(String),
    /// A user must change taints.
    #[error("{0}")]
    Taints(String),
    /// The change failed; it may be retried.
    #[error("{0}")]
    Failed(String),
}

/// The node's configuration. Implemented by `node`.
#[async_trait]
pub trait Configuration: Send + Sync {
    /// Returns the selected and the applied version. The error is human-readable and may be temporary.
    async fn standing(&self) -> Result<Standing, String>;
    /// Makes these changes to the running node, and records that the selected version is applied. May be
    /// repeated.
    async fn change(&self, changes: &[InPlace]) -> Result<(), ApplyError>;
    /// Checks that a repave is possible and the version is prepared; until then no Pod is evicted. Also
    /// allows a version that failed here again, because a user requested it.
    async fn may_repave(&self, version: &VersionRef) -> Result<(), ApplyError>;
    /// Requests a repave with this version once its Node is deleted, even if
    /// the version failed before. May be repeated.
    async fn repave(&self, version: &VersionRef) -> Result<(), ApplyError>;
}

impl Runner {
    pub(super) async fn apply(&mut self, disruption: bool, deadline: Timestamp) -> Outcome {
        let standing = match self.parts.configuration.standing().await {
            Ok(standing) => standing,
            Err(why) => return Outcome::Later(why),
        };
        match decide(&standing, disruption, self.is_started()) {
            Decision::End(end) => Outcome::End(end),
            Decision::Wait(what) => Outcome::Later(what),
            Decision::InPlace(changes) => {
                let names: Vec<String> = changes.iter().map(ToString::to_string).collect();
                match self.parts.configuration.change(&changes).await {
                    Ok(()) if names.is_empty() => {
                        Outcome::End(End::done(AgentOutcome::Applied, "only the name of the version differs"))
                    }
                    Ok(()) => Outcome::End(End::done(AgentOutcome::Applied, names.join("; "))),
                    Err(error) => refused(&error),
                }
            }
            Decision::Repave(version) => self.repave(&version, deadline).await,
        }
    }

    /// Drains the Node, and records that it may be deleted.
    async fn repave(&mut self, version: &VersionRef, deadline: Timestamp) -> Outcome {
        let name = version.version_name();
        let pending = format!(
            "the Node is drained; bedplate-controller deletes the Node to repave the host with {name} or a \
             newer version"
        );
        let running = self.running.as_ref().map(|running| Arc::clone(&running.object));
        let Some(object) = running else { return Outcome::Interrupted };
        if progress::is_drained(object.status.as_ref()) {
            return Outcome::Later(pending);
        }
        if let Err(error) = self.parts.configuration.may_repave(version).await {
            return refused(&error);
        }
        // The time until the version was prepared does not count.
        let since = progress::cordoned_at(object.status.as_ref(), self.now());
        let drained = self.drain_since(since, &DRAIN, deadline).await;
        if !matches!(drained, Outcome::Ready) {
            return drained;
        }
        if let Some(outcome) = self.decided_again(version).await {
            return outcome;
        }
        if let Err(error) = self.note_started().await {
            return Outcome::Later(format!("failed to store the agent's note: {}", chain(&error)));
        }
        match self.parts.configuration.repave(version).await {
            Ok(()) => self.allow_deletion(&pending).await,
            Err(error) => refused(&error),
        }
    }

    /// Decides again after a drain, which may have taken long. Returns an outcome if the repave is no longer
    /// needed. After that, the Node is deleted.
    async fn decided_again(&self, version: &VersionRef) -> Option<Outcome> {
        let standing = match self.parts.configuration.standing().await {
            Ok(standing) => standing,
            Err(why) => return Some(Outcome::Later(why)),
        };
        match decide(&standing, true, self.is_started()) {
            Decision::Repave(now) if now == *version => None,
            Decision::End(end) => Some(Outcome::End(end)),
            Decision::Wait(what) => Some(Outcome::Later(what)),
            Decision::InPlace(_) | Decision::Repave(_) => {
                Some(Outcome::Later("another version is selected now".to_owned()))
            }
        }
    }

    /// Reports that the Node may be deleted.
    async fn allow_deletion(&mut self, pending: &str) -> Outcome {
        // The object after the drain, which has written its status.
        let running = self.running.as_ref().map(|running| Arc::clone(&running.object));
        let Some(object) = running else { return Outcome::Interrupted };
        let status = progress::drained(&object, pending, self.now());
        match self.write(&object, status).await {
            Some(Duration::ZERO) => Outcome::Later(pending.to_owned()),
            _ => Outcome::Interrupted,
        }
    }
}

fn refused(error: &ApplyError) -> Outcome {
    match error {
        ApplyError::NotSupported(why) => Outcome::End(End::failed(AgentOutcome::NotSupported, why)),
        ApplyError::Claimed(why) => Outcome::End(End::failed(AgentOutcome::Claimed, why)),
        ApplyError::Broken(why) => Outcome::End(End::failed(AgentOutcome::ChangeFailed, why)),
        ApplyError::Taints(why) => Outcome::End(End::failed(AgentOutcome::TaintChangeRequired, why)),
        ApplyError::Failed(why) => Outcome::Later(why.clone()),
    }
}
