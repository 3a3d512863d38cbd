//! Control groups (cgroup2) of this run, created below the group of the test process itself.
//!
//! A measurement or a kill of a test program's group therefore includes all that the program started. No controller is enabled, so
//! the kernel accepts processes in an inner group. Called by `host`, by `guard` and by tests of both.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{guard, wait};

/// Maximum time from the kill of a group's processes until the group is empty.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(20);

/// Control group with all groups below it. On drop, its processes are killed and the group is removed.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a group of this name below the group of this process.
    ///
    /// # Errors
    /// cgroup2 is not mounted, or the group cannot be created.
    pub fn new(name: &str) -> Result<Self> {
        let path = own()?.join(name);
        guard::remember_cgroup(&path)?;
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    /// Returns the directory of the group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs in the group. The shell that enters the group becomes the program, so the PID is the program's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"", "sh"]);
        command.arg(&self.path).arg(program);
        command
    }

    /// Kills all processes in the group and in the groups below it.
    pub fn kill(&self) {
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.kill();
        let _ = wait::until("an empty control group", EMPTY_TIMEOUT, || Ok(remove(&self.path).then_some(())));
    }
}

/// Returns the directory of this process's group.
///
/// # Errors
/// cgroup2 is not mounted, or the mount does not show the group.
pub fn own() -> Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").context("cannot read the control groups")?;
    let own = locate(&mounts, &groups)
        .context("cgroup2 is not mounted; run `mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified`")?;
    ensure!(own.is_dir(), "the cgroup2 mount does not show {}, the group of this process", own.display());
    Ok(own)
}

/// Returns the mount point of cgroup2: /sys/fs/cgroup, or a directory in it next to the version 1 hierarchies.
pub(crate) fn mount_point() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount(&mounts).map(|(_, place)| place.into())
}

/// Returns root and mount point of the cgroup2 mount in the text of /proc/self/mountinfo.
fn mount(mounts: &str) -> Option<(&str, &str)> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(3);
        (kind.split(' ').next() == Some("cgroup2")).then_some((words.next()?, words.next()?))
    })
}

/// Returns the path of this process's group, from the texts of /proc/self/mountinfo and /proc/self/cgroup.
fn locate(mounts: &str, groups: &str) -> Option<PathBuf> {
    let (root, place) = mount(mounts)?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path));
    Some(Path::new(place).join(below.strip_prefix("/").unwrap_or(below)))
}

/// Removes a group after the groups below it. Returns true if the group does not exist afterwards.
fn remove(path: &Path) -> bool {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    std::fs::remove_dir(path).is_ok() || !path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_group_is_found_next_to_version_1() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = |groups| locate(mounts, groups);
        let unified = |path| Some(Path::new("/sys/fs/cgroup/unified").join(path));
        assert_eq!(own("1:cpu:/other\n0::/\n"), unified(""));
        assert_eq!(own("0::/bedplate-1/boot\n"), unified("bedplate-1/boot"));
        assert_eq!(locate("22 1 0:20 / /proc rw shared:5 - proc proc rw\n", "0::/\n"), None);
    }

    #[test]
    fn own_group_is_found_where_a_part_is_mounted() {
        let mounts = "41 31 0:38 /pods/one /sys/fs/cgroup rw master:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(locate(mounts, "0::/pods/one/test\n"), Some(PathBuf::from("/sys/fs/cgroup/test")));
    }
}
