//! A control group of its own for one host, directly below the machine's cgroup2 mount, wherever that is.
//!
//! Nothing outside of it is touched. Called by `host`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{guard, wait};

/// How long the kernel may take until killed processes have left their group.
const EMPTY: Duration = Duration::from_secs(20);

/// A control group with all that is below; when dropped, what runs in it is killed and it is removed.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes one of this name.
    pub(super) fn new(name: &str) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
        let path = mount_point(&mounts)
            .context("no cgroup2 is mounted: `mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified`")?
            .join(name);
        guard::remember_cgroup(&path)?;
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Kills all that runs in it.
    pub(super) fn kill(&self) {
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.kill();
        let _ = wait::until("an empty control group", EMPTY, || Ok(remove(&self.path).then_some(())));
    }
}

/// Where the machine has cgroup2: /sys/fs/cgroup, or beside version 1 below it.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// Removes a group after those below it; whether it is gone.
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
    fn cgroup2_is_found_beside_version_1() {
        let mounts =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("proc /proc proc rw 0 0\n"), None);
    }
}
