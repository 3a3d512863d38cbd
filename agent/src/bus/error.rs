//! Errors of a bus, with the remedy for the operator. Called by all modules of `bus`.

use std::path::PathBuf;
use std::time::Duration;

use super::name::UnitName;

/// Error of an act on a bus. An act reads like "start of kubelet.service".
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The bus does not listen, or the connection broke. Temporary if D-Bus comes back.
    #[error(
        "{act}: D-Bus is unavailable at {}; see `systemctl status dbus.service` there, retrying", socket.display()
    )]
    Away {
        /// Requested act.
        act: String,
        /// Path of the bus socket.
        socket: PathBuf,
        /// Error of the kernel or the bus.
        #[source]
        source: zbus::Error,
    },
    /// The agent may not look into the root of a container.
    #[error(
        "{act}: permission denied for {}; the agent needs CAP_SYS_PTRACE for /proc/<leader>/root, and a \
         unit without ProtectProc=", path.display()
    )]
    NoAccess {
        /// Requested act.
        act: String,
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// The leader's process has exited, or its ID belongs to another process now.
    #[error("{act}: process {leader} is no longer the first process of a container")]
    NotALeader {
        /// Requested act.
        act: String,
        /// The process.
        leader: u32,
    },
    /// The reply timed out.
    #[error("{act}: no answer within {} s; the service or D-Bus hangs, see `systemctl list-jobs` there", limit.as_secs())]
    NoAnswer {
        /// Requested act.
        act: String,
        /// Timeout that passed.
        limit: Duration,
    },
    /// A job was accepted and does not finish. It stays queued, and a second request waits for the same job.
    #[error("{act}: the job has not finished within {} s; see `systemctl list-jobs` and `systemctl status \
             {unit}` there", limit.as_secs())]
    JobHangs {
        /// Requested act.
        act: String,
        /// Unit of the act.
        unit: UnitName,
        /// Timeout that passed.
        limit: Duration,
    },
    /// systemd has no such unit.
    #[error("{act}: unit {unit} not found; its file is missing, or systemd needs `systemctl daemon-reload`")]
    NoUnit {
        /// Requested act.
        act: String,
        /// The unit.
        unit: UnitName,
    },
    /// The service is not installed or cannot be started.
    #[error("{act}: {service} is not available; install Debian's package {package}")]
    NoService {
        /// Requested act.
        act: String,
        /// The name on the bus.
        service: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// An inhibitor blocks the act.
    #[error("{act}: blocked by {who} ({why}); see `systemd-inhibit --list`")]
    Inhibited {
        /// Requested act.
        act: String,
        /// Holder of the inhibitor.
        who: String,
        /// Reason, in the holder's words.
        why: String,
    },
    /// The service has refused.
    #[error("{act}: refused: {message} ({name})")]
    Refused {
        /// Requested act.
        act: String,
        /// Name of the error on the bus.
        name: String,
        /// Message of the service.
        message: String,
    },
    /// The reply is unexpected, or the request was not sent.
    #[error("{act}: unexpected answer")]
    Unexpected {
        /// Requested act.
        act: String,
        /// Cause.
        #[source]
        source: zbus::Error,
    },
}

impl BusError {
    /// Returns true if a retry may succeed without an action.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Away { .. } | Self::NoAnswer { .. } | Self::JobHangs { .. } | Self::NotALeader { .. }
        )
    }

    /// Name of the bus error that a service has refused with.
    pub(super) fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { name, .. } => Some(name),
            _ => None,
        }
    }
}
