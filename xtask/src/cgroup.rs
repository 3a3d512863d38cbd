//! Control groups (cgroup2), one for each job: measure the CPU time and memory of all its processes, and kill them together.
//!
//! Called by `runner`. A group is below the group of this process, so that runs can be nested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Prefix of the group of one run; the process ID and the number of the run follow.
const PREFIX: &str = "bedplate-run-";
/// Number of runs of this process.
static RUNS: AtomicU32 = AtomicU32::new(0);
/// Moves the shell into the group `$0`, then becomes the program in a session of its own, whose priority is `$1`. The kernel divides the
/// cores among sessions (sched(7), "The autogroup feature"), so a job with a hundred threads does not starve a guest with two.
const ENTER: &str = r#"echo 0 > "$0/cgroup.procs" &&
    exec setsid sh -c 'echo "$0" 2>/dev/null >/proc/self/autogroup; exec "$@"' "$@""#;
/// Kills the group `$0` when the process at the other end of the standard input has ended, however it ended. More than once: a job that
/// just starts enters the group a moment later.
const WATCH: &str = r#"read -r _
for _ in 1 2 3; do
    [ -e "$0/cgroup.kill" ] || exit 0
    echo 1 2>/dev/null >"$0/cgroup.kill"
    sleep 1
done"#;
/// Interval between two checks of a group whose processes are ending.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time until killed processes have left their group.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// Group of one run. On drop, its remaining processes are killed and the group is removed.
#[derive(Debug)]
pub(crate) struct Run {
    path: PathBuf,
    /// Kills the jobs if this process is killed: they are in other sessions, so Ctrl-C does not reach them.
    watchdog: Child,
}

impl Run {
    /// Creates the group of this run and removes those of runs that were killed.
    ///
    /// # Errors
    /// cgroup2 is not mounted, or the mount is read-only.
    pub(crate) fn create() -> Result<Self> {
        let parent = own_group()?;
        for path in left_over(&parent) {
            Group { path }.end();
        }
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut watchdog = Command::new("setsid");
        watchdog.args(["sh", "-c", WATCH]).arg(&path);
        watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let watchdog = watchdog.spawn().context("cannot start setsid")?;
        Ok(Self { path, watchdog })
    }

    /// Creates the group of one job. `name` is a valid file name.
    ///
    /// # Errors
    /// The kernel refuses to create the group.
    pub(crate) fn group(&self, name: &str) -> Result<Group> {
        let path = self.path.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Group { path })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        Group { path: self.path.clone() }.end();
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// Group of one job.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// Returns a command that runs `command` inside the group, with the same arguments, environment and directory.
    /// `priority` is a nice value from -20 to 19 (sched(7)).
    pub(crate) fn enter(&self, command: &Command, priority: i8) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", ENTER]).arg(&self.path).arg(priority.to_string());
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            inside.current_dir(directory);
        }
        inside
    }

    /// Returns the CPU time of all processes of the group so far, including those that have ended.
    ///
    /// # Errors
    /// The kernel does not measure it. A budget that is compared with nothing would hold always.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let path = self.path.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        Ok(Duration::from_micros(usage.with_context(|| format!("{} has no usage_usec", path.display()))?))
    }

    /// Returns the time in which processes of the group waited for a core and none had one (PSI, Documentation/accounting/psi.rst). Zero
    /// on a kernel that does not measure it.
    pub(crate) fn stalled(&self) -> Duration {
        let text = fs::read_to_string(self.path.join("cpu.pressure")).unwrap_or_default();
        Duration::from_micros(parse_pressure(&text).unwrap_or(0))
    }

    /// Returns the current resident memory of all processes of the group in bytes. Shared memory counts for each process.
    pub(crate) fn resident(&self) -> u64 {
        processes(&self.path).into_iter().filter_map(resident_of).sum()
    }

    /// Returns true if a process of the group is alive.
    fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    /// Waits until no process of the group is alive. Returns false after `limit`.
    pub(crate) fn wait_empty(&self, limit: Duration) -> bool {
        let started = Instant::now();
        while self.is_populated() {
            if started.elapsed() > limit {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Kills all processes of the group.
    pub(crate) fn kill(&self) {
        if fs::write(self.path.join("cgroup.kill"), "1").is_err() {
            // A kernel before 5.14. Called again each second until the group is empty, so no child escapes for long.
            let pids: Vec<String> = processes(&self.path).iter().map(u32::to_string).collect();
            let _ = Command::new("kill").arg("-KILL").args(pids).status();
        }
    }

    /// Kills the remaining processes and removes the group.
    pub(crate) fn end(&self) {
        self.kill();
        self.wait_empty(KILL_TIMEOUT);
        remove(&self.path);
    }
}

/// Returns the path of this process's group in the cgroup2 mount.
fn own_group() -> Result<PathBuf> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let mount = mount_point(&read("/proc/mounts")?)
        .context("cgroup2 is not mounted; run `mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified`")?;
    let groups = read("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Ok(mount.join(own))
}

/// Reads the total of the line `full` in microseconds.
fn parse_pressure(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("full "))?.split("total=").nth(1)?.trim().parse().ok()
}

fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// Returns the groups of runs whose process no longer exists.
fn left_over(parent: &Path) -> Vec<PathBuf> {
    let dead = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(dead).collect()
}

/// Returns the groups directly below `path`.
fn children(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Returns the process IDs in a group and in all groups below it.
fn processes(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    children(path).for_each(|below| all.extend(processes(&below)));
    all
}

fn resident_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    resident.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

/// Removes a group after the groups below it.
fn remove(path: &Path) {
    children(path).for_each(|below| remove(&below));
    let _ = fs::remove_dir(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_time_is_the_total_of_full() {
        let text = "some avg10=1.00 avg60=2.00 avg300=3.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse_pressure(text), Some(7));
        assert_eq!(parse_pressure(""), None);
    }

    #[test]
    fn cgroup2_is_found_next_to_version_1() {
        let mounts =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("proc /proc proc rw 0 0\n"), None);
    }

    /// The end of this process closes the pipe to the watchdog, also if it is killed.
    #[test]
    fn watchdog_kills_the_jobs_of_a_run_that_was_killed() {
        let mut run = Run::create().unwrap();
        let group = run.group("left").unwrap();
        let mut command = Command::new("sleep");
        command.arg("600");
        let mut child = group.enter(&command, 0).spawn().unwrap();
        drop(run.watchdog.stdin.take());
        assert!(!child.wait().unwrap().success());
        assert!(group.wait_empty(KILL_TIMEOUT));
    }

    #[test]
    fn group_measures_and_kills_detached_children() {
        let run = Run::create().unwrap();
        let group = run.group("detached").unwrap();
        let script = "setsid sleep 600 & i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        assert!(group.enter(&command, 0).status().unwrap().success());
        assert!(group.is_populated(), "the detached child is in the group");
        assert!(group.cpu().unwrap() > Duration::ZERO);
        assert!(group.resident() > 0);
        group.end();
        assert!(!group.path.exists());
    }
}
