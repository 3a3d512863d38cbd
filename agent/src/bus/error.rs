//! What can go wrong on a bus, in words that a person at 3 a.m. can act upon. Called by everything in `bus`.

use std::path::PathBuf;
use std::time::Duration;

use super::name::UnitName;

/// Why an act on a bus failed. An act is put like "start of kubelet.service".
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// Nobody listens, or the connection broke. Goes away by itself if D-Bus comes back.
    #[error(
        "{act}: D-Bus is away at {}; see `systemctl status dbus.service` there, it is tried again", socket.display()
    )]
    Away {
        /// What was wanted.
        act: String,
        /// Where the bus was looked for.
        socket: PathBuf,
        /// What the kernel or the bus said.
        #[source]
        source: zbus::Error,
    },
    /// The agent may not look into the root of a container.
    #[error(
        "{act}: no access to {}: the agent needs CAP_SYS_PTRACE for /proc/<leader>/root, and a unit without ProtectProc", path.display()
    )]
    NoAccess {
        /// What was wanted.
        act: String,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The leader's process is gone, or its number belongs to another process by now.
    #[error("{act}: process {leader} is not the first one of a container: it has ended meanwhile")]
    NotALeader {
        /// What was wanted.
        act: String,
        /// The process.
        leader: u32,
    },
    /// No reply in time.
    #[error("{act}: not answered within {} s: the service or D-Bus hangs; see `systemctl list-jobs` there", limit.as_secs())]
    NoAnswer {
        /// What was wanted.
        act: String,
        /// How long was waited.
        limit: Duration,
    },
    /// A job was accepted and does not end. It stays queued: asking again waits for the same job.
    #[error("{act}: the job has not ended within {} s; see `systemctl list-jobs` and `systemctl status {unit}` there", limit.as_secs())]
    JobHangs {
        /// What was wanted.
        act: String,
        /// Of which unit.
        unit: UnitName,
        /// How long was waited.
        limit: Duration,
    },
    /// systemd has no such unit.
    #[error(
        "{act}: there is no unit {unit}: its file is missing, or systemd has not read it yet (daemon-reload)"
    )]
    NoUnit {
        /// What was wanted.
        act: String,
        /// The unit.
        unit: UnitName,
    },
    /// The service is not installed or cannot be started.
    #[error("{act}: nobody provides {service}; it comes with Debian's package {package}")]
    NoService {
        /// What was wanted.
        act: String,
        /// The name on the bus.
        service: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// Somebody blocks it.
    #[error("{act}: blocked by {who} ({why}); see `systemd-inhibit --list`")]
    Inhibited {
        /// What was wanted.
        act: String,
        /// Who blocks.
        who: String,
        /// Why, in the blocker's words.
        why: String,
    },
    /// The service has refused.
    #[error("{act}: refused: {message} ({name})")]
    Refused {
        /// What was wanted.
        act: String,
        /// Name of the error on the bus.
        name: String,
        /// What the service said.
        message: String,
    },
    /// The reply is none that was expected, or something could not be sent.
    #[error("{act}: the answer cannot be used")]
    Unexpected {
        /// What was wanted.
        act: String,
        /// Why not.
        #[source]
        source: zbus::Error,
    },
}

impl BusError {
    /// Whether trying again later may help without anybody doing anything.
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
