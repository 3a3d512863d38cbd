//! Pure: `spec.bootstrap.data`, the bootstrap data that a user writes into the Machine itself (M3).
//!
//! ```text
//! unset -> wait;   "" -> dataSecretName "", no data is needed;   text -> Secret NAME-user-data -> dataSecretName
//! ```
//! Providers know Secrets only. A Secret with this name that is not the Machine's own is never written. Once `dataSecretName` is set, the
//! Secret is not written again. Called by `plan`, `references` and `condition`.

use bedplate_api::cluster::full::Machine;
use kube::ResourceExt;

/// Ending of the name of the Secret.
const SUFFIX: &str = "-user-data";
/// Maximum number of characters of the name of a Secret.
const MAX_NAME: usize = 253;

/// State of the Secret that holds `spec.bootstrap.data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataSecret {
    /// It was not read: it is not needed, or the watch is not synced.
    #[default]
    NotRead,
    /// It does not exist.
    Absent,
    /// The Machine owns it.
    Own {
        /// True if it holds the present data.
        is_current: bool,
    },
    /// Another object has it, or no object.
    Foreign,
}

/// State of `spec.bootstrap.data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// It has no meaning: `configRef` or `dataSecretName` is set.
    NotUsed,
    /// It is not set. The Machine waits.
    Nothing,
    /// It is empty: the machine needs no data.
    Empty,
    /// It has a text for the Secret with this name.
    Text(String),
    /// It has a text, and the name of the Machine is too long for the name of a Secret.
    NameTooLong,
}

/// Returns the state of `spec.bootstrap.data`.
pub fn given(machine: &Machine) -> Given {
    let bootstrap = &machine.spec.bootstrap;
    if bootstrap.config_ref.is_some() || bootstrap.data_secret_name.is_some() {
        return Given::NotUsed;
    }
    match bootstrap.data.as_deref() {
        None => Given::Nothing,
        Some("") => Given::Empty,
        Some(_) => {
            let name = format!("{}{SUFFIX}", machine.name_any());
            if name.len() <= MAX_NAME { Given::Text(name) } else { Given::NameTooLong }
        }
    }
}

/// Returns the name of the Secret that must be written.
pub fn write(machine: &Machine, secret: DataSecret) -> Option<String> {
    let Given::Text(name) = given(machine) else { return None };
    let is_due = match secret {
        DataSecret::Absent | DataSecret::Own { is_current: false } => true,
        DataSecret::NotRead | DataSecret::Own { is_current: true } | DataSecret::Foreign => false,
    };
    is_due.then_some(name)
}

/// Returns `dataSecretName`, once the Secret holds the data.
pub fn name(machine: &Machine, secret: DataSecret) -> Option<String> {
    match given(machine) {
        Given::Empty => Some(String::new()),
        Given::Text(name) if secret == DataSecret::Own { is_current: true } => Some(name),
        Given::Text(_) | Given::NotUsed | Given::Nothing | Given::NameTooLong => None,
    }
}
