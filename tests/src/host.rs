//! A systemd 252 host in namespaces: no virtual machine, multi-user in well under a second, several concurrently.
//!
//! ```text
//!   test ── unshare (killed by pid) ── systemd, process 1 of its own pid namespace ── units, containers
//!             root = overlay: memory over `files` over the host image's Debian tree
//!             own mounts, cgroup (a group below the test's, seen as the root), network, hostname, boot ID
//! ```
//! The kernel is the machine's own: no module is loaded, /proc/sys is read-only but for the network's, /sys is read-only,
//! there is no udev and no device. The only controller of cgroup version 2 may be hugetlb: limits are not tested here.
//! Everything is gone when the `Host` is dropped, and by the guard if the test is killed.

mod builder;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cgroup::Cgroup;
use crate::guard::{self, Directory, Process, last_lines};
pub use builder::Builder;

/// Search path of systemd for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";

/// End of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It has asked the kernel for a reboot.
    Reboot,
    /// It has switched itself off.
    PowerOff,
}

/// A running host. Its processes, mounts, control groups and files end with it.
#[derive(Debug)]
pub struct Host {
    // Dropped in this order.
    process: Process,
    cgroup: Cgroup,
    leader: u32,
    boot_id: String,
    directory: Directory,
}

impl Host {
    /// Starts a host of this name and waits until systemd has started everything of multi-user.target.
    ///
    /// # Errors
    /// The Debian tree is missing (the message has the remedy), this is not root, or systemd does not get there.
    pub fn start(name: &str) -> Result<Self> {
        Self::prepare(name)?.start()
    }

    /// A host that is not started yet, to be given files, programs and a network.
    ///
    /// # Errors
    /// No directory can be made for it.
    pub fn prepare(name: &str) -> Result<Builder> {
        Builder::new(name)
    }

    /// Process 1 of the host, as the test sees its pid.
    pub fn leader_pid(&self) -> u32 {
        self.leader
    }

    /// The host's root directory as the test sees it. Beware of absolute links in it: they lead into the test's own root; `put`
    /// and `read` follow them as the host does.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.leader))
    }

    /// The boot ID that programs inside read.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// A command that will run in the host, in all of its namespaces, in none of its units. What shall run on while the host reboots
    /// is better started by `systemd-run`: nsenter would stop with its child and never let the host end.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.leader));
        // Not --all: that would also enter the user namespace, which is the test's own.
        command.args(["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--", program]);
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C.UTF-8").env("SYSTEMD_PAGER", "");
        command
    }

    /// Runs a command in the host to its end and gives what it wrote.
    ///
    /// # Errors
    /// It has failed; what it said is in the message.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        guard::run(self.command(program).args(arguments))
    }

    /// Runs a command in all namespaces of a machine of systemd-nspawn, and returns its output.
    ///
    /// # Errors
    /// The machine does not run, or the command failed; its output is in the message.
    pub fn run_in_machine(&self, machine: &str, words: &[&str]) -> Result<String> {
        let leader = self.run("machinectl", &["show", machine, "--property=Leader", "--value"])?;
        let target = format!("--target={}", leader.trim());
        let namespaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--"];
        self.run("nsenter", &[&[&*target], &namespaces[..], words].concat())
    }

    /// Writes a file in the host; folders above it are made. `mode` as of chmod.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let mut command = self.command("install");
        command.arg("-D").arg(format!("--mode={mode:04o}")).args(["/dev/stdin", path]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start nsenter")?;
        child.stdin.take().context("no pipe")?.write_all(bytes).with_context(|| format!("no {path}"))?;
        let output = child.wait_with_output().context("install does not end")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot write {path}: {}", said.trim());
        Ok(())
    }

    /// The text of a file in the host.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, path: &str) -> Result<String> {
        self.run("cat", &["--", path])
    }

    /// Journal of a unit, messages only, oldest first.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn journal(&self, unit: &str) -> Result<String> {
        self.run("journalctl", &["--sync"])?;
        self.run("journalctl", &["--no-pager", "--quiet", "--output=cat", "--unit", unit])
    }

    /// Makes everything of a container but its start: a tree of its own (the host's Debian over which it writes in memory),
    /// mounted by a unit, and an `.nspawn` file that shares the host's network. `systemd-nspawn@NAME.service` then starts it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_container(&self, name: &str) -> Result<()> {
        let state = format!("/var/lib/bedplate/test-{name}");
        let etc = format!("{state}/upper/etc");
        let masks = builder::MASKED.map(|unit| format!("{etc}/systemd/system/{unit}"));
        self.run("mkdir", &["-p", &format!("{state}/work"), &format!("{etc}/systemd/system")])?;
        for mask in &masks {
            self.run("ln", &["-s", "/dev/null", mask])?;
        }
        self.put(&format!("{etc}/hostname"), format!("{name}\n").as_bytes(), 0o644)?;
        let mount = format!(
            "[Mount]\nWhat=overlay\nWhere=/var/lib/machines/{name}\nType=overlay\n\
             Options=lowerdir=/run/host/tree,upperdir={state}/upper,workdir={state}/work\n"
        );
        let escaped = name.replace('-', "\\x2d");
        self.put(&format!("/run/systemd/system/var-lib-machines-{escaped}.mount"), mount.as_bytes(), 0o644)?;
        let nspawn = "[Exec]\nPrivateUsers=no\n[Network]\nVirtualEthernet=no\n";
        self.put(&format!("/run/systemd/nspawn/{name}.nspawn"), nspawn.as_bytes(), 0o644)?;
        self.run("systemctl", &["daemon-reload"]).map(drop)
    }

    /// Waits until the host has ended by itself.
    ///
    /// # Errors
    /// It runs on after `limit`, or has neither rebooted nor switched itself off.
    pub fn wait_ended(&mut self, limit: Duration) -> Result<End> {
        // reboot(2) in a pid namespace kills its process 1: by SIGHUP for a restart, by SIGINT for an end; unshare dies of the same.
        let status = self.process.wait_ended(limit)?;
        let signal = status.signal().or_else(|| status.code().map(|code| code - 128));
        match signal {
            Some(nix::libc::SIGHUP) => Ok(End::Reboot),
            Some(nix::libc::SIGINT) => Ok(End::PowerOff),
            _ => bail!("the host has ended with {status}: {}", last_lines(&self.process.said(), 10)),
        }
    }

    /// Cuts the power: everything in the host ends immediately.
    pub fn kill(&mut self) {
        self.cgroup.kill();
        self.process.kill();
    }

    /// Directory, on the test's side, of the paths that the host mounted nothing over.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}
