//! A host before its start: what lies in its files, what is bound into it, which network it is in; and the start itself.
//!
//! Called by `host`.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Host;
use crate::cgroup::Cgroup;
use crate::guard::{self, Directory, Process, last_lines};
use crate::netns::Namespace;
use crate::pxed::cache;
use crate::wait;

/// Mounts and starts; see there.
const BOOT: &str = include_str!("boot.sh");
/// Maximum time from nothing to multi-user on a busy machine; 0.4 s on an idle one.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// Units that look for devices and kernel modules that a host in namespaces has not, or have no place in a test.
pub(super) const MASKED: [&str; 22] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "console-getty.service",
    "dev-hugepages.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "modprobe@configfs.service",
    "modprobe@dm_mod.service",
    "modprobe@dm-mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "modprobe@loop.service",
    "modprobe@tun.service",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-update-utmp-runlevel.service",
];

/// A host that is not started yet.
#[derive(Debug)]
pub struct Builder {
    name: String,
    directory: Directory,
    network: Option<String>,
    /// Lines `source target rw|ro` for boot.sh.
    binds: String,
}

impl Builder {
    pub(super) fn new(name: &str) -> Result<Self> {
        let directory = Directory::new("host")?;
        for folder in ["root", "upper", "files/etc/systemd/system"] {
            std::fs::create_dir_all(directory.path().join(folder))
                .context("cannot make a host's directory")?;
        }
        let builder = Self { name: name.to_owned(), directory, network: None, binds: String::new() };
        let units = builder.directory.path().join("files/etc/systemd/system");
        for unit in MASKED {
            std::os::unix::fs::symlink("/dev/null", units.join(unit)).context("cannot mask a unit")?;
        }
        std::os::unix::fs::symlink("/usr/lib/systemd/system/multi-user.target", units.join("default.target"))
            .context("cannot choose the default target")?;
        builder.file("/etc/hostname", format!("{name}\n").as_bytes(), 0o644)
    }

    /// Puts a file into the host from the start. A process in the host that changes it changes a copy.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn file(self, path: &str, bytes: &[u8], mode: u32) -> Result<Self> {
        let place = self.directory.path().join("files").join(path.trim_start_matches('/'));
        let folder = place.parent().with_context(|| format!("{path} has no folder"))?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::write(&place, bytes).with_context(|| format!("cannot write {}", place.display()))?;
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot set the mode of {}", place.display()))?;
        Ok(self)
    }

    /// Shows a file or folder of the machine in the host, read-only: programs under test, for instance. Neither path has spaces.
    #[must_use]
    pub fn bind(self, source: &Path, target: &str) -> Self {
        self.bound(source, target, "ro")
    }

    /// Shows a folder of the machine in the host, writable. At /var/lib/bedplate it is the state disk, which outlives the host.
    #[must_use]
    pub fn bind_writable(self, source: &Path, target: &str) -> Self {
        self.bound(source, target, "rw")
    }

    fn bound(mut self, source: &Path, target: &str, access: &str) -> Self {
        let _ = writeln!(self.binds, "{} {target} {access}", source.display());
        self
    }

    /// Puts the host into a network namespace of the test; otherwise it has an empty one of its own.
    #[must_use]
    pub fn network(mut self, namespace: &Namespace) -> Self {
        self.network = Some(namespace.name().to_owned());
        self
    }

    /// Starts it and waits until systemd has started everything of multi-user.target.
    ///
    /// # Errors
    /// The Debian tree is missing, this is not root, or systemd does not get there; what it said is in the message.
    pub fn start(self) -> Result<Host> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let tree = tree()?;
        let boot_id = drawn("8-4-4-4-12")?;
        let path = self.directory.path().to_owned();
        std::fs::write(path.join("boot_id"), format!("{boot_id}\n")).context("cannot write a boot id")?;
        let machine_id = drawn("32")?;
        let this = self.file("/etc/machine-id", format!("{machine_id}\n").as_bytes(), 0o444)?;
        let notify = UnixDatagram::bind(path.join("notify")).context("cannot make a socket for READY=1")?;
        notify.set_read_timeout(Some(Duration::from_millis(100))).context("no time-out for a socket")?;

        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let cgroup = Cgroup::new(&format!("bedplate-{}-{number}-{}", guard::run_id(), this.name))?;
        let log = path.join("log");
        let mut process = Process::spawn(&this.name, &mut this.command(&cgroup, &tree), &log)?;
        wait_ready(&notify, &mut process)?;
        let leader = child_of(process.pid())?;
        Ok(Host { process, cgroup, leader, boot_id, directory: this.directory })
    }

    /// If `unshare` is killed, its child is killed too.
    fn command(&self, cgroup: &Cgroup, tree: &Path) -> Command {
        let mut command = match &self.network {
            Some(network) => {
                let mut command = cgroup.command("nsenter");
                command.args([&format!("--net=/run/netns/{network}"), "--", "unshare"]);
                command
            }
            None => {
                let mut command = cgroup.command("unshare");
                command.arg("--net");
                command
            }
        };
        command.args(["--mount", "--uts", "--ipc", "--cgroup", "--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", BOOT, "boot"]).arg(self.directory.path()).arg(tree).arg(&self.binds);
        command
    }
}

/// The Debian of the host image, unpacked.
fn tree() -> Result<PathBuf> {
    let link = cache()?.join("images/tree");
    let tree = link.canonicalize();
    tree.with_context(|| format!("{} is missing: run `cargo xtask setup`", link.display()))
}

/// Waits for systemd's own READY=1.
fn wait_ready(notify: &UnixDatagram, process: &mut Process) -> Result<()> {
    let started = Instant::now();
    let mut datagram = [0_u8; 4096];
    while started.elapsed() < BOOT_TIMEOUT {
        if let Ok(length) = notify.recv(&mut datagram)
            && String::from_utf8_lossy(&datagram[..length]).lines().any(|line| line == "READY=1")
        {
            return Ok(());
        }
        ensure!(process.is_running(), "the host has ended: {}", last_lines(&process.said(), 20));
    }
    bail!("the host is not ready after {} s: {}", BOOT_TIMEOUT.as_secs(), last_lines(&process.said(), 20))
}

/// The only child of a process.
fn child_of(pid: u32) -> Result<u32> {
    wait::until("the host's process 1", Duration::from_secs(5), || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .context("cannot see the children of a process")?;
        Ok(children.split_whitespace().next().and_then(|child| child.parse().ok()))
    })
}

/// Random hex digits in groups of these lengths.
fn drawn(groups: &str) -> Result<String> {
    let mut groups_drawn = Vec::new();
    for group in groups.split('-') {
        let length: usize = group.parse().context("a group is a number of digits")?;
        groups_drawn
            .push((0..length).map(|_| format!("{:x}", rand::random_range(0..16_u8))).collect::<String>());
    }
    Ok(groups_drawn.join("-"))
}
