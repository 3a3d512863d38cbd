//! The Unix socket for `bedplate`: JSON, reads, and the operations and tokens that operators make. The file's mode (0660) and group give
//! the right to read, `caller` all others.
//!
//! Only users who may read the manifest files get their contents, and only users who may make tokens get them. Spawned by `run`.

mod caller;
mod configuration;
mod group;
mod operation;
mod permission;
mod route;
mod token;

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_process::listen::{self, Limits, Listening};
use bedplate_process::liveness::Pulse;
use thiserror::Error;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use self::caller::DEFAULT_ADMIN_GROUP;
pub use self::caller::Rights;
pub use self::route::{AdminState, Explain, router};

/// The socket cannot be made.
#[derive(Debug, Error)]
pub enum BindSocketError {
    /// The path exists and is not a socket.
    #[error("{path} exists and is not a socket; remove it, or choose another path")]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// Another pxed answers on it.
    #[error("another pxed serves {path}; stop it, or choose another path")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The group does not exist.
    #[error(
        "{key} {group:?} is not a group in /etc/group; create it with `groupadd --system {group}`, or set its number"
    )]
    NoGroup {
        /// The key of the configuration.
        key: &'static str,
        /// The group.
        group: String,
    },
    /// A user gives files only to groups of its own.
    #[error(
        "cannot set the group of {path} to socket-group {group:?}; add pxed's own user to it (SupplementaryGroups={group} in its unit)"
    )]
    Group {
        /// The path.
        path: PathBuf,
        /// The group.
        group: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The file system refused.
    #[error("cannot create the socket {path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

/// Makes the socket; one that a killed pxed left behind is replaced.
///
/// # Errors
/// [`BindSocketError`]
pub fn bind(path: &Path, group: Option<&str>) -> Result<UnixListener, BindSocketError> {
    let failed = |source| BindSocketError::Io { path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindSocketError::Occupied { path: path.to_owned() });
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(BindSocketError::InUse { path: path.to_owned() });
        }
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    if let Some(group) = group {
        let found = group::find(group).map_err(failed)?;
        let key = "socket-group";
        let Some(found) = found else {
            return Err(BindSocketError::NoGroup { key, group: group.to_owned() });
        };
        std::os::unix::fs::chown(path, None, Some(found)).map_err(|source| BindSocketError::Group {
            path: path.to_owned(),
            group: group.to_owned(),
            source,
        })?;
    }
    Ok(listener)
}

/// Looks up the users who may do more than read: the members of the configured group, or of [`DEFAULT_ADMIN_GROUP`] if there is one.
///
/// # Errors
/// There is no configured group, or `/etc/group` cannot be read.
pub fn rights(configured: Option<&str>) -> Result<Rights, BindSocketError> {
    let group = configured.unwrap_or(DEFAULT_ADMIN_GROUP).to_owned();
    let found =
        group::find(&group).map_err(|source| BindSocketError::Io { path: group::GROUPS.into(), source })?;
    if configured.is_some() && found.is_none() {
        return Err(BindSocketError::NoGroup { key: "socket-admin-group", group });
    }
    Ok(Rights::new(group, found))
}

/// Serves until `shutdown`, then removes the socket.
pub async fn serve(
    listener: UnixListener,
    path: PathBuf,
    state: AdminState,
    pulse: Pulse,
    shutdown: CancellationToken,
) {
    let how = Listening { name: "socket", limits: Limits::LOCAL, counters: Arc::default(), pulse };
    listen::serve_router(listener, how, router(state), shutdown).await;
    if let Err(error) = std::fs::remove_file(&path) {
        tracing::debug!(path = %path.display(), %error, "socket not removed");
    }
}

mod redact;
#[cfg(test)]
mod tests;
