//! Network namespaces with bridges, taps and veth pairs. All test traffic stays in them.
//!
//! Devices live inside a namespace only, so that removing it removes them; the host's network is never touched.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::guard;

/// A network namespace of this run.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace with its loopback up. The name has the run's id, a number and `label`.
    ///
    /// # Errors
    /// Not root, or no iproute2.
    pub fn new(label: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("bedplate-{}-{number}-{label}", guard::run_id());
        guard::remember_namespace(&name)?;
        guard::run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name, for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// `ip ARGUMENTS` inside, the arguments separated by spaces.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        guard::run(Command::new("ip").args(["-n", &self.name]).args(arguments.split_whitespace()))
    }

    /// A command that will run inside. `nsenter` becomes the program, so its pid is the program's; `ip netns exec` would
    /// mount /sys again.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    /// Runs `work` on a thread of its own inside the namespace, for instance to open a socket there.
    ///
    /// # Errors
    /// The namespace cannot be entered, `work` failed or panicked.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = std::fs::File::open(self.path()).with_context(|| format!("no namespace {}", self.name))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET)
                    .context("cannot enter the namespace")?;
                work()
            });
            match thread.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread in namespace {} panicked", self.name),
            }
        })
    }

    /// Makes a bridge that forwards immediately (no spanning tree: its 30 s are longer than firmware waits).
    ///
    /// # Errors
    /// What `ip` says.
    pub fn add_bridge(&self, bridge: &str, address: Option<(Ipv4Addr, u8)>) -> Result<()> {
        self.ip(&format!("link add name {bridge} type bridge stp_state 0 forward_delay 0"))?;
        if let Some((address, prefix)) = address {
            self.ip(&format!("address add {address}/{prefix} brd + dev {bridge}"))?;
        }
        self.ip(&format!("link set dev {bridge} up")).map(drop)
    }

    /// Makes a tap on a bridge.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn add_tap(&self, tap: &str, bridge: &str) -> Result<()> {
        self.ip(&format!("tuntap add dev {tap} mode tap"))?;
        self.ip(&format!("link set dev {tap} master {bridge} up")).map(drop)
    }

    /// Joins two namespaces by a pair of devices, both up.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn add_veth(&self, device: &str, peer: &Self, peer_device: &str) -> Result<()> {
        self.ip(&format!("link add name {device} type veth peer name {peer_device} netns {}", peer.name))?;
        self.ip(&format!("link set dev {device} up"))?;
        peer.ip(&format!("link set dev {peer_device} up")).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Ok(pids) = guard::run(Command::new("ip").args(["netns", "pids", &self.name])) {
            for pid in pids.lines().filter_map(|line| line.trim().parse().ok()) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
        let _ = guard::run(Command::new("ip").args(["netns", "del", &self.name]));
    }
}
