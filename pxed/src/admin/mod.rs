//! The Unix socket for `bedplate`: JSON, reads, and MachineOperations that people make. Who may connect is decided by the
//! file's mode (0660) and group.
//!
//! No secrets pass here, but to who may read them in their files. Spawned by `run`.

mod conceal;
mod configuration;
mod group;
mod operation;
mod route;
mod token;

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

pub use self::route::{AdminState, Explain, router};

/// The socket cannot be made.
#[derive(Debug, Error)]
pub enum BindSocketError {
    /// Something else lies at its path.
    #[error("{path} is there and is not a socket: remove it or choose another path")]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// Another pxed answers on it.
    #[error("another pxed serves {path}: stop it, or choose another path")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The group does not exist.
    #[error(
        "socket-group {group:?} is not a group in /etc/group; create it with `groupadd --system {group}`, or set its number"
    )]
    NoGroup {
        /// The group.
        group: String,
    },
    /// A user gives files only to groups of its own.
    #[error(
        "cannot give {path} to socket-group {group:?}: pxed's own user has to belong to it (SupplementaryGroups={group} in its unit)"
    )]
    Group {
        /// The path.
        path: PathBuf,
        /// The group.
        group: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file system refused.
    #[error("cannot make the socket {path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
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
        let Some(found) = found else { return Err(BindSocketError::NoGroup { group: group.to_owned() }) };
        std::os::unix::fs::chown(path, None, Some(found)).map_err(|source| BindSocketError::Group {
            path: path.to_owned(),
            group: group.to_owned(),
            source,
        })?;
    }
    Ok(listener)
}

/// Serves until `shutdown`, then takes the socket away.
///
/// # Errors
/// The listening socket broke.
pub async fn serve(
    listener: UnixListener,
    path: PathBuf,
    state: AdminState,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let router = router(state).into_make_service_with_connect_info::<configuration::Caller>();
    let served = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let result = tokio::select! {
        result = served.into_future() => result,
        // An open connection that asks nothing must not hold up the drain.
        () = async { shutdown.cancelled().await; tokio::time::sleep(LINGER).await } => Ok(()),
    };
    if let Err(error) = std::fs::remove_file(&path) {
        tracing::debug!(path = %path.display(), %error, "socket not removed");
    }
    result
}

/// How long a connection may go on after the stop.
const LINGER: std::time::Duration = std::time::Duration::from_secs(1);

#[cfg(test)]
mod tests;
