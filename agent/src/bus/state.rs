//! States of units and jobs, as types. A word that this release does not know is kept, not refused.
//!
//! Pure: text and numbers in, values out. Called by `systemd` and `command`.

use jiff::Timestamp;

/// Result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobResult {
    /// The job succeeded.
    Done,
    /// Another job replaced it, or it was canceled.
    Canceled,
    /// The job's own time-out (JobTimeoutSec=).
    Timeout,
    /// The unit has failed, a time-out of the unit's own included.
    Failed,
    /// A unit that it needs has failed.
    Dependency,
    /// There was nothing to do, or a condition was not met.
    Skipped,
    /// Anything else, in systemd's word.
    Other(String),
}

impl JobResult {
    /// Parses systemd's word in JobRemoved.
    pub(super) fn from_word(word: &str) -> Self {
        match word {
            "done" => Self::Done,
            "canceled" => Self::Canceled,
            "timeout" => Self::Timeout,
            "failed" => Self::Failed,
            "dependency" => Self::Dependency,
            "skipped" => Self::Skipped,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns true if the job succeeded.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// systemd's word.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Done => "done",
            Self::Canceled => "canceled",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
            Self::Dependency => "dependency",
            Self::Skipped => "skipped",
            Self::Other(word) => word,
        }
    }
}

/// Load state of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadState {
    /// The unit file was read.
    Loaded,
    /// There is no unit file.
    NotFound,
    /// The unit file is a link to /dev/null.
    Masked,
    /// The unit file is invalid (`bad-setting`, `error`), or another word of systemd.
    Bad(String),
}

impl LoadState {
    pub(super) fn from_word(word: &str) -> Self {
        match word {
            "loaded" => Self::Loaded,
            "not-found" => Self::NotFound,
            "masked" => Self::Masked,
            other => Self::Bad(other.to_owned()),
        }
    }
}

/// Active state of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActiveState {
    /// The unit runs.
    Active,
    /// The unit reads its configuration again.
    Reloading,
    /// The unit does not run, without a failure.
    Inactive,
    /// The unit has failed.
    Failed,
    /// The unit is being started.
    Activating,
    /// The unit is being stopped.
    Deactivating,
    /// Anything else, in systemd's word (`maintenance`; `refreshing` since 257).
    Other(String),
}

impl ActiveState {
    pub(super) fn from_word(word: &str) -> Self {
        match word {
            "active" => Self::Active,
            "reloading" => Self::Reloading,
            "inactive" => Self::Inactive,
            "failed" => Self::Failed,
            "activating" => Self::Activating,
            "deactivating" => Self::Deactivating,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns true if no process of the unit runs and systemd will not start one automatically.
    pub fn is_down(&self) -> bool {
        matches!(self, Self::Inactive | Self::Failed)
    }
}

/// Exit of a service's main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MainExit {
    /// Exit code.
    Code(i32),
    /// Signal that ended the process.
    Signal(i32),
}

impl MainExit {
    /// Parses `ExecMainCode` (si_code of SIGCHLD: 1 exited, 2 killed, 3 killed
    /// with a core dump) and `ExecMainStatus`.
    pub(super) fn from_numbers(code: Option<i32>, status: Option<i32>) -> Option<Self> {
        match (code?, status?) {
            (1, status) => Some(Self::Code(status)),
            (2 | 3, signal) => Some(Self::Signal(signal)),
            _ => None,
        }
    }
}

/// State of a unit. Properties that this systemd or this kind of unit does not have are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitState {
    /// Load state of its file.
    pub load: LoadState,
    /// Active state.
    pub active: ActiveState,
    /// The finer state of its kind: `running`, `exited`, `auto-restart`, `mounted`.
    pub sub: String,
    /// Result of the last run: `success`, `exit-code`, `timeout`, `oom-kill`, `watchdog`.
    pub result: Option<String>,
    /// Exit of its main process, if it has exited.
    pub main_exit: Option<MainExit>,
    /// Main process.
    pub main_pid: Option<u32>,
    /// Number of automatic restarts since the last explicit start.
    pub restarts: Option<u32>,
    /// Status line that the unit sends by sd_notify.
    pub status_text: Option<String>,
    /// Time of the last state change.
    pub changed: Option<Timestamp>,
    /// Time at which it last became active.
    pub active_since: Option<Timestamp>,
    /// A job is queued or runs for it.
    pub has_job: bool,
    /// True if its file has changed since systemd read it.
    pub needs_reload: Option<bool>,
}

impl UnitState {
    /// Returns true if it runs and no job is queued.
    pub fn is_up(&self) -> bool {
        self.active == ActiveState::Active && !self.has_job
    }
}

/// A point in time from systemd's microseconds since 1970; 0 is never.
pub(super) fn time(microseconds: Option<u64>) -> Option<Timestamp> {
    let microseconds = microseconds.filter(|us| *us != 0 && *us != u64::MAX)?;
    Timestamp::from_microsecond(i64::try_from(microseconds).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_newer_systemd_are_kept() {
        assert_eq!(JobResult::from_word("frozen"), JobResult::Other("frozen".to_owned()));
        assert_eq!(ActiveState::from_word("refreshing"), ActiveState::Other("refreshing".to_owned()));
        assert_eq!(LoadState::from_word("bad-setting"), LoadState::Bad("bad-setting".to_owned()));
        for word in ["done", "canceled", "timeout", "failed", "dependency", "skipped", "invalid"] {
            assert_eq!(JobResult::from_word(word).as_str(), word);
        }
    }

    #[test]
    fn a_process_that_has_not_ended_has_no_exit() {
        assert_eq!(MainExit::from_numbers(Some(0), Some(0)), None);
        assert_eq!(MainExit::from_numbers(None, Some(0)), None);
        assert_eq!(MainExit::from_numbers(Some(1), Some(7)), Some(MainExit::Code(7)));
        assert_eq!(MainExit::from_numbers(Some(3), Some(11)), Some(MainExit::Signal(11)));
    }

    #[test]
    fn no_time_is_none() {
        assert_eq!(time(Some(0)), None);
        assert_eq!(time(Some(u64::MAX)), None);
        assert_eq!(time(Some(1_000_000)), Some(Timestamp::from_second(1).unwrap()));
    }
}
