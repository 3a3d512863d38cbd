//! The error of a command, with a hint for the user and the choice of the exit code.

use std::borrow::Cow;
use std::error::Error;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::backend::cluster::AskClusterError;
use crate::backend::socket::AskPxedError;
use crate::operation;

/// Reason why a command failed.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Pxed(#[from] AskPxedError),
    /// pxed failed, and the cluster cannot answer instead.
    #[error(transparent)]
    OnlyPxed(AskPxedError),
    #[error(transparent)]
    Cluster(#[from] AskClusterError),
    #[error("this version of bedplate does not support the answer")]
    Answer(#[source] serde_json::Error),
    /// The permission was given, but for any boot.
    #[error(
        "pxed did not bind the permission for Machine {machine:?} to boot {boot}; for an hour any host may enroll"
    )]
    Unbound { machine: String, boot: String },
    #[error("cannot create the operation: {0}")]
    Selector(String),
    #[error("{name} failed: {reason}: {message}")]
    Failed { name: String, operation: String, reason: String, message: String },
    #[error("the operation has not finished after {after} s: {line}")]
    NotEnded { name: String, line: String, after: u64 },
    #[error("it is unknown whether the MachineOperation was created")]
    MaybeMade(#[source] Box<RunError>),
    #[error("MachineOperation {name:?} does not exist")]
    NoOperation { name: String },
    #[error("MachineOperation {name:?} was deleted, by a client or because its time had expired")]
    Gone { name: String },
    #[error("the cluster has ended the watch")]
    Ended,
    /// An error of one command alone.
    #[error("{error}")]
    Command {
        #[source]
        error: Box<dyn Error + Send + Sync>,
        hint: Option<Cow<'static, str>>,
        is_usage: bool,
    },
    #[error("cannot start")]
    Start(#[source] std::io::Error),
    #[error("cannot write to {}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot print")]
    Print(#[source] std::io::Error),
}

impl RunError {
    /// An error of one command alone, with its hint. `is_usage`: the command line is wrong.
    pub(crate) fn of_command(
        error: impl Error + Send + Sync + 'static,
        hint: Option<Cow<'static, str>>,
        is_usage: bool,
    ) -> Self {
        Self::Command { error: Box::new(error), hint, is_usage }
    }

    /// Returns the remedy for the caller.
    pub(crate) fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Pxed(error) => error.hint(true).map(Cow::from),
            Self::OnlyPxed(error) => error.hint(false).map(Cow::from),
            Self::Cluster(error) => error.hint(),
            Self::Command { hint, .. } => hint.clone(),
            Self::Failed { operation, reason, .. } => {
                operation::remedy_of(operation, reason).map(Cow::from)
            }
            Self::NotEnded { name, .. } => Some(
                format!("the operation continues; check that a pxed of the Machine's site runs, and follow it with `bedplate operation watch {name}`")
                    .into(),
            ),
            Self::MaybeMade(_) => Some(
                "check with `bedplate operation list` before you repeat the command; a second operation would be carried out, too".into(),
            ),
            Self::NoOperation { .. } => Some("see `bedplate operation list`".into()),
            Self::Answer(_) => {
                Some("print the unchanged answer with --output json; bedplate and pxed should have the same version".into())
            }
            Self::Unbound { .. } => Some(
                "this pxed does not support --boot; upgrade it, and check which key enrolls until then: `bedplate machine show NAME`".into(),
            ),
            Self::Selector(_)
            | Self::Gone { .. }
            | Self::Ended
            | Self::Start(_)
            | Self::Write { .. }
            | Self::Print(_) => None,
        }
    }

    /// Returns true if the command line is invalid.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::Selector(_) => true,
            Self::Command { is_usage, .. } => *is_usage,
            _ => false,
        }
    }

    /// Returns true if a retry would fail too.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Pxed(error) | Self::OnlyPxed(error) => error.is_final(),
            Self::Cluster(error) => error.is_final(),
            _ => true,
        }
    }

    /// Returns true if the cluster was asked and has not answered.
    pub(crate) fn is_unreached(&self) -> bool {
        match self {
            Self::Cluster(error) => matches!(error, AskClusterError::Reach { .. }),
            Self::MaybeMade(error) => error.is_unreached(),
            _ => false,
        }
    }

    /// Returns true if the cluster does not allow the user to read the object.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Cluster(AskClusterError::Refused { code: 403, .. }))
    }
}

/// Reads a part of an answer.
///
/// # Errors
/// It has another form: pxed has another version.
pub(crate) fn read<T: DeserializeOwned>(value: &Value) -> Result<T, RunError> {
    T::deserialize(value).map_err(RunError::Answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Error)]
    #[error("cannot read the file")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn cause_of_an_error_of_one_command_is_kept() {
        let cause = std::io::Error::other("permission denied");
        let error = RunError::of_command(Outer(cause), Some("name another".into()), true);
        let (mut causes, mut next) = (Vec::new(), error.source());
        while let Some(cause) = next {
            causes.push(cause.to_string());
            next = cause.source();
        }
        assert_eq!(
            (error.to_string().as_str(), error.hint().as_deref()),
            ("cannot read the file", Some("name another"))
        );
        assert_eq!(causes, ["cannot read the file", "permission denied"]);
        assert!(error.is_usage());
    }
}
