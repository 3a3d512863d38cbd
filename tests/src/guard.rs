//! Removes what a run created, and nothing else, at any end of the run: return, panic, Ctrl-C, kill -9, kill of its control group.
//!
//! Each process, namespace and directory is announced to a reaper process first. The reaper reads a pipe whose other end only
//! this process holds; when that end closes, it kills the processes by pid and start time, then removes the namespaces
//! and directories. In the ordinary case the `Drop`s here have done all that before.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::{cgroup, wait};

/// Signals are ignored there so that Ctrl-C on a terminal cannot end the reaper before its work. A pid counts only with
/// its start time (field 22 of /proc/PID/stat): the number may belong to another process by then.
///
/// The reaper moves from the control group of the test to the root group (`$1`). Otherwise a kill of the test's group would end it too.
const REAPER: &str = r#"
trap '' HUP INT QUIT TERM
if [ -n "$1" ]; then echo $$ > "$1/cgroup.procs"; fi
list=$(cat)
each() { printf '%s\n' "$list" | while read -r kind what start; do if [ "$kind" = "$1" ]; then "$2" "$what" "$start"; fi; done; }
end_pid() { set -- "$1" "$2" $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null); if [ "${22}" = "$2" ]; then kill -9 "$1"; fi; }
end_netns() { if [ -e "/run/netns/$1" ]; then ip netns pids "$1" | xargs -r kill -9; ip netns del "$1"; fi; }
end_cgroup() {
  echo 1 > "$1/cgroup.kill"
  for _ in $(seq 200); do find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; [ -d "$1" ] || break; sleep 0.05; done
}
end_dir() { rm -rf -- "$1"; }
each pid end_pid; each netns end_netns; each cgroup end_cgroup; each dir end_dir
"#;

/// Maximum time for the start of a program that a test needs. A start normally takes a fraction of a second.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

static REAPER_PIPE: OnceLock<Mutex<Option<Child>>> = OnceLock::new();

/// This process' part in the names of all that it makes: six hex digits, so that runs do not disturb each other.
pub fn run_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let mut bytes = [0_u8; 3];
        let drawn = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        if drawn.is_err() {
            let [.., a, b, c] = std::process::id().to_be_bytes();
            bytes = [a, b, c];
        }
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    })
}

/// Tells the reaper what to remove when this process has ended: `pid N START`, `netns NAME`, `cgroup PATH` or `dir PATH`.
fn remember(line: &str) -> Result<()> {
    let pipe = REAPER_PIPE.get_or_init(Mutex::default);
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    if pipe.is_none() {
        let child = Command::new("sh")
            .args(["-c", REAPER, "reaper"])
            .arg(cgroup::mount_point().unwrap_or_default())
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the reaper")?;
        *pipe = Some(child);
    }
    let stdin = pipe.as_mut().and_then(|child| child.stdin.as_mut()).context("the reaper has no pipe")?;
    writeln!(stdin, "{line}").context("cannot write to the reaper")
}

/// Has a network namespace of this name removed after this process, with all processes in it.
///
/// # Errors
/// The reaper cannot be started or reached.
pub fn remember_namespace(name: &str) -> Result<()> {
    remember(&format!("netns {name}"))
}

/// Has a control group (cgroup2) removed after this process, with all processes in it and all groups below.
///
/// # Errors
/// The reaper cannot be started or reached.
pub fn remember_cgroup(path: &Path) -> Result<()> {
    remember(&format!("cgroup {}", path.display()))
}

/// A directory of this run, removed with all that is in it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes a new directory below /tmp whose name has `label` and the run's id.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(label: &str) -> Result<Self> {
        Self::within(std::env::temp_dir(), label)
    }

    /// Makes such a directory below `place`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn within(place: impl AsRef<Path>, label: &str) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("bedplate-{}-{label}-", run_id()))
            .tempdir_in(place)
            .context("cannot make a temporary directory")?;
        remember(&format!("dir {}", directory.path().display()))?;
        Ok(Self { path: directory.keep() })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// State and start time (clock ticks since boot) of a process; `None` when there is none of that pid.
fn state_and_start(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after = stat.rsplit_once(") ")?.1;
    let mut fields = after.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A process of this run; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program in a process group of its own (Ctrl-C goes to the test, not to it), its output in `log`.
    ///
    /// # Errors
    /// The log cannot be written or the program not started.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot share a log file")?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        let process = Self { name: name.to_owned(), child, log: log.to_owned() };
        if let Some((_, start)) = state_and_start(process.pid()) {
            remember(&format!("pid {} {start}", process.pid()))?;
        }
        Ok(process)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if it runs. A zombie does not: it takes seconds until a killed QEMU has freed its memory.
    pub fn is_running(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(Some(_)))
            && state_and_start(self.pid()).is_some_and(|(state, _)| state != 'Z')
    }

    /// Kills it immediately (SIGKILL).
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It is not there.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(self.pid().try_into().context("pid out of range")?);
        nix::sys::signal::kill(pid, signal).with_context(|| format!("no {signal} to {}", self.name))
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// It runs on after `limit`.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait_ended(limit)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It runs on after `limit`.
    pub fn wait_ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait::until(&what, limit, || Ok(self.child.try_wait()?))
    }

    /// All that it has said so far.
    pub fn said(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until its output has `marker`.
    ///
    /// # Errors
    /// The deadline has passed or it has ended; its last lines are in the message.
    pub fn wait_said(&mut self, marker: &str, limit: Duration) -> Result<()> {
        let what = format!("{marker:?} from {}", self.name);
        wait::until(&what, limit, || {
            if self.said().contains(marker) {
                return Ok(Some(()));
            }
            if !self.is_running() {
                bail!("{} has ended: {}", self.name, last_lines(&self.said(), 20));
            }
            Ok(None)
        })
        .with_context(|| last_lines(&self.said(), 20))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `count` lines of a text.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started or ends with a failure; what it said is in the message.
pub fn run(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
