//! Brings the node to the selected version. Part of `run`; what has to be done, `configuration` decides.
//!
//! Each turn looks anew, so that it goes on after a kill, and after the reboot of the host. A repave is asked for once: a version that
//! fails then is not tried a second time for the same operation.

use async_trait::async_trait;
use bedplate_api::machine::VersionRef;
use bedplate_bootstrap::diff::InPlace;
use bedplate_process::exit::chain;
use jiff::{SignedDuration, Timestamp};

use super::configuration::{Decision, Standing, decide};
use super::order::Drain;
use super::progress::End;
use super::run::{Outcome, Runner};

/// A repave ends what runs: Pods are asked to leave first, and their budgets are honoured, for so long.
const DRAIN: Drain =
    Drain { limit: SignedDuration::from_secs(600), grace: None, delete_empty_dir: true, force: true };

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// This agent, or this host, cannot make it.
    #[error("{0}")]
    NotSupported(String),
    /// It was made and does not hold: it is not made again by itself.
    #[error("{0}")]
    Broken(String),
    /// A person has to change taints.
    #[error("{0}")]
    Taints(String),
    /// It was tried in vain; it may be tried again.
    #[error("{0}")]
    Failed(String),
}

/// The node's configuration. Implemented by `node`.
#[async_trait]
pub trait Configuration: Send + Sync {
    /// What is to run and what runs; the error is for a person, and may pass.
    async fn standing(&self) -> Result<Standing, String>;
    /// Makes these changes to the running node, and keeps that the selected version is applied. May be done twice.
    async fn change(&self, changes: &[InPlace]) -> Result<(), ApplyError>;
    /// Whether that is possible; also has a version that failed here be tried again, because a person asks.
    async fn may_repave(&self, version: &VersionRef) -> Result<(), ApplyError>;
    /// Has the node be paved anew with this version, also if it failed before: its Node is removed. May be asked for twice.
    async fn repave(&self, version: &VersionRef) -> Result<(), ApplyError>;
}

impl Runner {
    pub(super) async fn apply(&mut self, disruption: bool, deadline: Timestamp) -> Outcome {
        let standing = match self.parts.configuration.standing().await {
            Ok(standing) => standing,
            Err(why) => return Outcome::Later(why),
        };
        match decide(&standing, disruption, self.is_begun()) {
            Decision::End(end) => Outcome::End(end),
            Decision::Wait(what) => Outcome::Later(what),
            Decision::InPlace(changes) => {
                let names: Vec<String> = changes.iter().map(ToString::to_string).collect();
                match self.parts.configuration.change(&changes).await {
                    Ok(()) if names.is_empty() => {
                        Outcome::End(End::done("Applied", "nothing differs but the version's name"))
                    }
                    Ok(()) => Outcome::End(End::done("Applied", names.join("; "))),
                    Err(error) => refused(&error),
                }
            }
            Decision::Repave(version) => {
                if let Err(error) = self.parts.configuration.may_repave(&version).await {
                    return refused(&error);
                }
                let drained = self.drain(&DRAIN, deadline).await;
                if !matches!(drained, Outcome::Ready) {
                    return drained;
                }
                if let Err(error) = self.note_begun().await {
                    return Outcome::Later(format!("the agent's note cannot be kept: {}", chain(&error)));
                }
                match self.parts.configuration.repave(&version).await {
                    Ok(()) => {
                        let name = format!("{}-v{}", version.name, version.version);
                        Outcome::Later(format!("the Node was removed, so that it is paved with {name}"))
                    }
                    Err(error) => refused(&error),
                }
            }
        }
    }
}

fn refused(error: &ApplyError) -> Outcome {
    match error {
        ApplyError::NotSupported(why) => Outcome::End(End::failed("NotSupported", why)),
        ApplyError::Broken(why) => Outcome::End(End::failed("ChangeFailed", why)),
        ApplyError::Taints(why) => Outcome::End(End::failed("NeedsTaints", why)),
        ApplyError::Failed(why) => Outcome::Later(why.clone()),
    }
}
