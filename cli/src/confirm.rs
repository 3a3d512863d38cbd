//! Confirmation by a user before a change, and the error of a change that another writer has overtaken.
//!
//! Callers: `configuration`, `claim`.

use std::borrow::Cow;

use thiserror::Error;

use crate::backend::cluster::AskClusterError;
use crate::error::RunError;
use crate::output::Page;

/// Cause of a change that was not made.
#[derive(Debug, Error)]
pub(crate) enum ConfirmError {
    #[error("confirmation is required, and there is no terminal")]
    NoTerminal,
    #[error("not confirmed: nothing was changed")]
    Declined,
    #[error("{what} was changed by another writer meanwhile; nothing was written")]
    Changed { what: String },
}

impl From<ConfirmError> for RunError {
    fn from(error: ConfirmError) -> Self {
        let hint = match &error {
            ConfirmError::NoTerminal => Some("use --yes to skip the question"),
            ConfirmError::Changed { .. } => {
                Some("check the object, and repeat the command if it still applies")
            }
            ConfirmError::Declined => None,
        };
        let is_usage = matches!(error, ConfirmError::NoTerminal);
        Self::of_command(error, hint.map(Cow::from), is_usage)
    }
}

/// Asks the user, unless `yes`.
///
/// # Errors
/// The user declines, or there is no terminal.
pub(crate) fn confirm(page: &Page<'_>, yes: bool, question: &str) -> Result<(), RunError> {
    if yes {
        return Ok(());
    }
    match page.ask(question) {
        Some(true) => Ok(()),
        Some(false) => Err(ConfirmError::Declined.into()),
        None => Err(ConfirmError::NoTerminal.into()),
    }
}

/// Converts the error of a bound write. A failed test of a JSON patch, or of a precondition, is a change by another writer.
pub(crate) fn changed(error: AskClusterError, what: &str) -> RunError {
    let is_test = matches!(&error, AskClusterError::Refused { code: 409, .. })
        || matches!(&error, AskClusterError::Refused { code: 422, message, .. } if message.contains("test operation") || message.contains("testing"));
    if is_test { ConfirmError::Changed { what: what.to_owned() }.into() } else { error.into() }
}
