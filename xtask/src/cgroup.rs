//! Control groups (cgroup2), one for each job: measure the CPU time and memory of all its processes, and kill them together.
//!
//! Called by `runner`. A group lies below the group of this process, so that runs can be nested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Prefix of the group of one run; the process ID and the number of the run follow.
const PREFIX: &str = "bedplate-run-";
/// Number of runs of this process.
static RUNS: AtomicU32 = AtomicU32::new(0);
/// Moves the shell into the group `$0`, then becomes the program.
const ENTER: &str = r#"echo 0 > "$0/cgroup.procs" && exec "$@""#;
/// Delay between two looks at a group that is emptying.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time until killed processes have left their group.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// The group of one run. Dropping it kills what is left in it and removes it.
#[derive(Debug)]
pub(crate) struct Run {
    path: PathBuf,
}

impl Run {
    /// Creates the group of this process and removes those of runs that were killed.
    ///
    /// # Errors
    /// No cgroup2 file system is mounted, or it is read-only.
    pub(crate) fn create() -> Result<Self> {
        let parent = own_group()?;
        for path in left_over(&parent) {
            Group { path }.end();
        }
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    /// Creates the group of one job. `name` is a valid file name.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn group(&self, name: &str) -> Result<Group> {
        let path = self.path.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Group { path })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        Group { path: self.path.clone() }.end();
    }
}

/// The group of one job.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// Returns a command that runs `command` inside the group, with the same arguments, environment and directory.
    pub(crate) fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", ENTER]).arg(&self.path).arg(command.get_program()).args(command.get_args());
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

    /// CPU time of all processes of the group so far, including those that have ended.
    pub(crate) fn cpu(&self) -> Duration {
        let text = fs::read_to_string(self.path.join("cpu.stat")).unwrap_or_default();
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        Duration::from_micros(usage.unwrap_or(0))
    }

    /// Resident memory of all processes of the group now, in bytes. Memory that processes share counts for each.
    pub(crate) fn resident(&self) -> u64 {
        processes(&self.path).into_iter().filter_map(resident_of).sum()
    }

    /// Returns true if a process of the group is alive.
    pub(crate) fn is_populated(&self) -> bool {
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
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Kills what is left and removes the group.
    pub(crate) fn end(&self) {
        self.kill();
        self.wait_empty(KILL_TIMEOUT);
        remove(&self.path);
    }
}

/// The group of this process, as a path below the cgroup2 mount.
fn own_group() -> Result<PathBuf> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let mount = mount_point(&read("/proc/mounts")?)
        .context("no cgroup2 is mounted; run `mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified`")?;
    let groups = read("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Ok(mount.join(own))
}

fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// Groups of runs whose process is gone.
fn left_over(parent: &Path) -> Vec<PathBuf> {
    let dead = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(dead).collect()
}

/// Groups directly below `path`.
fn children(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Process IDs in a group and in all groups below it.
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

/// Removes a group after those below it.
fn remove(path: &Path) {
    children(path).for_each(|below| remove(&below));
    let _ = fs::remove_dir(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_next_to_version_1() {
        let mounts =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn group_measures_and_kills_detached_children() {
        let run = Run::create().unwrap();
        let group = run.group("detached").unwrap();
        let script = "setsid sleep 600 & i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        assert!(group.enter(&command).status().unwrap().success());
        assert!(group.is_populated(), "the detached child is in the group");
        assert!(group.cpu() > Duration::ZERO);
        assert!(group.resident() > 0);
        group.end();
        assert!(!group.path.exists());
    }
}
