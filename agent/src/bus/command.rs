//! A command that systemd runs in a separate unit, with its own control group and deadline. It is killed when
//! its caller stops waiting, and leaves no unit behind.
//!
//! ```text
//!   StartTransientUnit (oneshot, pinned by our connection) ── job ends ── StopUnit: children too ── exit code ── unpinned
//!        output: a pipe whose end is kept here; standard output may go into a file that systemd opens
//! ```
//! systemd itself ends the command at its deadline, even if the agent was killed before. Called by `systemd`.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bedplate_process::lock::Lock;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zbus::{Fd, Variant};

use super::Units;
use super::error::BusError;
use super::name::UnitName;
use super::state::MainExit;
use super::systemd::{MANAGER, Manager};

/// Maximum bytes kept of a command's output, from its end.
pub const MAX_OUTPUT_BYTES: usize = 16 * 1024;
/// Time from the deadline, which is systemd's SIGTERM, to its SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(5);
/// Additional time for systemd after both.
const SYSTEMD_MARGIN: Duration = Duration::from_secs(30);
/// Timeout for the last bytes of a pipe whose writers have exited.
const PIPE_TIMEOUT: Duration = Duration::from_secs(2);

/// Destination of a command's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Only the end of the output is kept.
    Tail,
    /// Standard output into a file, which is emptied first; of standard error the end is kept. The path is in the root directory of that systemd,
    /// which follows symbolic links.
    Split(PathBuf),
}

/// A value of a setting of units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// Yes or no.
    Flag(bool),
    /// A word.
    Word(&'static str),
    /// A text.
    Text(String),
    /// A number, or a set of bits.
    Number(u64),
    /// Words.
    List(Vec<&'static str>),
    /// Only these values.
    Only(Vec<&'static str>),
    /// All values of an earlier setting of the same name, except these.
    AllBut(Vec<&'static str>),
}

impl Setting {
    fn value(&self) -> Variant<'static> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
        match self {
            Self::Flag(flag) => Variant::new(*flag),
            Self::Word(word) => Variant::new((*word).to_owned()),
            Self::Text(text) => Variant::new(text.clone()),
            Self::Number(number) => Variant::new(*number),
            Self::List(words) => Variant::new(owned(words)),
            Self::Only(words) => Variant::new((true, owned(words))),
            Self::AllBut(words) => Variant::new((false, owned(words))),
        }
    }
}

/// Command that runs in a separate unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransientCommand {
    /// Name of the unit, a service. A running unit of this name is stopped first, because a killed agent left
    /// it.
    pub unit: UnitName,
    /// Description for `systemctl status`.
    pub description: String,
    /// Absolute path of the program, and arguments.
    pub argv: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Standard output and standard error.
    pub output: Output,
    /// Timeout of the command.
    pub limit: Duration,
    /// Restrictions of the command, by their names on the bus.
    pub settings: Vec<(&'static str, Setting)>,
}

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The command exited with this code. systemd's own codes start at 200; 203: the program is missing.
    Code(i32),
    /// A signal ended the command.
    Signal(i32),
    /// The command exceeded its timeout.
    TimedOut,
    /// The command did not run, or had another end: systemd's word
    /// (`resources`, `oom-kill`, or a job's `dependency`, `canceled`).
    Other(String),
}

/// Result of a finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Result of the command.
    pub exit: Exit,
    /// End of the output, at most `MAX_OUTPUT_BYTES` bytes. Bytes that are not UTF-8 are replaced.
    pub output: String,
    /// True if the start of the output was dropped.
    pub cut: bool,
}

/// The end of a stream of bytes.
#[derive(Debug, Default)]
struct Tail {
    bytes: VecDeque<u8>,
    cut: bool,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(MAX_OUTPUT_BYTES);
        self.cut |= over > 0;
        self.bytes.drain(..over);
    }

    /// Returns the bytes as text. A truncated first character is dropped.
    fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let start =
            if self.cut { bytes.iter().take(3).take_while(|byte| *byte & 0xc0 == 0x80).count() } else { 0 };
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }
}

/// Output of a command.
struct Collected {
    tail: Arc<Lock<Tail>>,
    reader: JoinHandle<()>,
}

/// Guard that stops the unit if its caller did not wait for the end.
struct Leash {
    manager: Manager,
    unit: UnitName,
    ended: bool,
}

impl Drop for Leash {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.ended {
            return;
        }
        let (manager, unit) = (self.manager.clone(), self.unit.clone());
        runtime.spawn(async move {
            // Killed first, because it may ignore SIGTERM and its result is not needed.
            let killed = manager.kill(&unit, nix::libc::SIGKILL).await;
            let stopped = manager.stop(&unit, KILL_DELAY + SYSTEMD_MARGIN).await;
            if let (Err(error), _) | (Ok(()), Err(error)) = (killed, stopped)
                && !matches!(error, BusError::NoUnit { .. })
            {
                let error = bedplate_process::exit::chain(&error);
                tracing::warn!(%unit, error, "failed to stop a canceled command");
            }
        });
    }
}

/// Runs the command until it exits.
pub(super) async fn run(manager: &Manager, command: &TransientCommand) -> Result<Ran, BusError> {
    let act = format!("run of {}", command.unit);
    let limit = command.limit + KILL_DELAY + SYSTEMD_MARGIN;
    let mut leash = Leash { manager: manager.clone(), unit: command.unit.clone(), ended: true };
    let (mut collected, started) = start(manager, &act, command, limit, &mut leash).await?;
    let result = match started {
        Err(error) if error.refusal() == Some("org.freedesktop.systemd1.UnitExists") => {
            manager.stop(&command.unit, KILL_DELAY + SYSTEMD_MARGIN).await?;
            manager.reset_failed(&command.unit).await?;
            let (again, started) = start(manager, &act, command, limit, &mut leash).await?;
            collected = again;
            started?
        }
        other => other?,
    };
    // A oneshot's job ends with its main process; its children end here.
    manager.stop(&command.unit, KILL_DELAY + SYSTEMD_MARGIN).await?;
    let (exit, why) = tokio::try_join!(manager.main_exit(&command.unit), manager.state(&command.unit))?;
    leash.ended = true;
    let unpinned = manager.link().call::<_, ()>(&act, MANAGER, "UnrefUnit", &command.unit.as_str()).await;
    if let Err(error) = unpinned {
        tracing::debug!(unit = %command.unit, error = %error, "failed to unpin a unit");
    }
    let exit = match (why.result.as_deref(), exit) {
        (Some("timeout"), _) => Exit::TimedOut,
        (_, Some(MainExit::Code(code))) => Exit::Code(code),
        (_, Some(MainExit::Signal(signal))) => Exit::Signal(signal),
        (Some(word), None) if word != "success" => Exit::Other(word.to_owned()),
        (_, None) => Exit::Other(result.as_str().to_owned()),
    };
    let (output, cut) = collected.finish().await;
    Ok(Ran { exit, output, cut })
}

type Started = (Collected, Result<super::JobResult, BusError>);

/// Starts the unit and waits for the end of its job. The inner result is systemd's, the outer one that of the
/// request.
async fn start(
    manager: &Manager,
    act: &str,
    command: &TransientCommand,
    limit: Duration,
    leash: &mut Leash,
) -> Result<Started, BusError> {
    let mut properties = properties(command);
    let collected = match &command.output {
        Output::Split(path) => {
            properties.push(("StandardOutputFileToTruncate", path.to_string_lossy().into_owned().into()));
            let (error, collected) = pipe_end(act)?;
            properties.push(("StandardErrorFileDescriptor", Variant::Fd(Fd::Owned(error))));
            collected
        }
        Output::Tail => {
            let (write, collected) = pipe_end(act)?;
            let error = write.try_clone().map_err(|error| unexpected(act, error))?;
            properties.push(("StandardOutputFileDescriptor", Variant::Fd(Fd::Owned(write))));
            properties.push(("StandardErrorFileDescriptor", Variant::Fd(Fd::Owned(error))));
            collected
        }
    };
    let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
    let body = (command.unit.as_str(), "fail", properties, auxiliary);
    leash.ended = false;
    let result = manager.job(act, &command.unit, limit, "StartTransientUnit", &body).await;
    if result.as_ref().is_err_and(|error| error.refusal().is_some()) {
        leash.ended = true;
    }
    Ok((collected, result))
}

fn unexpected(act: &str, error: std::io::Error) -> BusError {
    BusError::Unexpected { act: act.to_owned(), source: error.into() }
}

/// Returns the writing end of a pipe for a command, and the reader of its output.
fn pipe_end(act: &str) -> Result<(OwnedFd, Collected), BusError> {
    let (sender, receiver) = pipe::pipe().map_err(|error| unexpected(act, error))?;
    let write = sender.into_blocking_fd().map_err(|error| unexpected(act, error))?;
    Ok((write, Collected::of(receiver)))
}

fn properties(command: &TransientCommand) -> Vec<(&'static str, Variant<'static>)> {
    let program = command.argv.first().cloned().unwrap_or_default();
    let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let settings = command.settings.iter().map(|(name, setting)| (*name, setting.value()));
    let properties = vec![
        ("Description", command.description.clone().into()),
        ("Type", "oneshot".into()),
        // systemd does not expand `$NAME` and `%n` here.
        ("ExecStartEx", vec![(program, command.argv.clone(), vec!["no-env-expand".to_owned()])].into()),
        ("Environment", command.environment.clone().into()),
        ("TimeoutStartUSec", microseconds(command.limit).into()),
        ("TimeoutStopUSec", microseconds(KILL_DELAY).into()),
        // Our connection pins the unit so that its exit code can be read. Without
        // a pin, systemd unloads a finished unit immediately.
        ("AddRef", true.into()),
        ("CollectMode", "inactive-or-failed".into()),
    ];
    properties.into_iter().chain(settings).collect()
}

impl Collected {
    fn of(mut receiver: pipe::Receiver) -> Self {
        let tail = Arc::<Lock<Tail>>::default();
        let reader = tokio::spawn({
            let tail = Arc::clone(&tail);
            async move {
                let mut buffer = vec![0_u8; 4096];
                while let Ok(length @ 1..) = receiver.read(&mut buffer).await {
                    tail.lock().push(&buffer[..length]);
                }
            }
        });
        Self { tail, reader }
    }

    async fn finish(mut self) -> (String, bool) {
        // systemd closes its copy once the unit is unpinned; by then all is in the pipe.
        if timeout(PIPE_TIMEOUT, &mut self.reader).await.is_err() {
            self.reader.abort();
        }
        let tail = self.tail.lock();
        (tail.text(), tail.cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_long_output_is_kept_and_begins_with_a_whole_character() {
        let mut tail = Tail::default();
        tail.push("ä".repeat(MAX_OUTPUT_BYTES).as_bytes());
        tail.push(b"end!!");
        let text = tail.text();
        assert!(
            tail.cut && text.starts_with('ä') && text.ends_with("end!!") && text.len() <= MAX_OUTPUT_BYTES
        );
    }

    #[test]
    fn short_output_is_whole() {
        let mut tail = Tail::default();
        tail.push(b"one\n");
        tail.push(b"two\n");
        assert_eq!((tail.text().as_str(), tail.cut), ("one\ntwo\n", false));
    }
}
