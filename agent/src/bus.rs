//! D-Bus: systemd, machined and logind of the host, and systemd of a slot. No systemctl, no machinectl.
//!
//! ```text
//!   Bus ── one connection to <root>/run/dbus/system_bus_socket, made on first use, again after it broke
//!    ├─ Manager  (Units)     jobs until JobRemoved, states, commands in units of their own, changes as they happen
//!    ├─ Machined (Machines)  containers: leader, terminate; `units` is a Manager at /proc/<leader>/root
//!    └─ Logind   (Power)     reboot, power off, what blocks them
//! ```
//! Each call has a deadline. Nothing polls: states come with signals, and an unused
//! connection costs nothing. A feature that this release of systemd lacks is a value
//! (`None`), not an error. Callers must not depend on a trait's implementation: `fake`
//! replaces all three. Not here: the desired units (`node`), files of units (`slot`).

mod changes;
mod command;
mod error;
#[cfg(test)]
pub mod fake;
pub mod journal;
#[cfg(test)]
pub(crate) mod kill_points;
mod link;
mod login;
mod machines;
mod name;
mod sandbox;
mod state;
mod systemd;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use changes::Changes;
pub use command::{Exit, MAX_OUTPUT_BYTES, Output, Ran, Setting, TransientCommand};
pub use error::BusError;
use link::Link;
pub use login::{Inhibitor, Logind};
pub use machines::{Container, Leader, Machined};
pub use name::{ContainerName, ContainerNameError, UnitName, UnitNameError};
pub use sandbox::sandbox;
pub use state::{ActiveState, JobResult, LoadState, MainExit, UnitState};
pub use systemd::Manager;

/// systemd, of the host or of a slot.
#[async_trait]
pub trait Units: Send + Sync {
    /// Starts a unit and waits, at most `limit`, for the end of that job.
    async fn start(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError>;
    /// Stops a unit and waits. A unit that is not loaded counts as stopped.
    async fn stop(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError>;
    /// Restarts a unit, or starts it, and waits.
    async fn restart(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError>;
    /// Reloads the configuration of a unit and waits.
    async fn reload(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError>;
    /// Makes systemd read the files of all units again.
    async fn daemon_reload(&self) -> Result<(), BusError>;
    /// Resets the failure and the start count of a unit.
    async fn reset_failed(&self, unit: &UnitName) -> Result<(), BusError>;
    /// Sends a signal to every process of a unit.
    async fn kill(&self, unit: &UnitName, signal: i32) -> Result<(), BusError>;
    /// Returns the state of a unit. A missing unit is a state too.
    async fn state(&self, unit: &UnitName) -> Result<UnitState, BusError>;
    /// Runs a command in a separate unit until it exits. Dropping the future kills it.
    async fn run(&self, command: &TransientCommand) -> Result<Ran, BusError>;
    /// Reports changes of `units` from now on.
    async fn changes(&self, units: &BTreeSet<UnitName>) -> Result<Changes, BusError>;
}

/// Containers of machined.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Returns a container, if it runs.
    async fn get(&self, name: &ContainerName) -> Result<Option<Container>, BusError>;
    /// Ends all processes of a container. Returns true if it existed.
    async fn terminate(&self, name: &ContainerName) -> Result<bool, BusError>;
    /// systemd inside the container of this leader. Nothing is connected before its first use.
    fn units(&self, leader: Leader) -> Arc<dyn Units>;
}

/// The power of the host.
#[async_trait]
pub trait Power: Send + Sync {
    /// Returns an inhibitor that blocks a shutdown, if there is one.
    async fn blocker(&self) -> Result<Option<Inhibitor>, BusError>;
    /// Starts a reboot, unless an inhibitor blocks it. Returns before it is finished.
    async fn reboot(&self) -> Result<(), BusError>;
    /// Starts a power-off, unless an inhibitor blocks it. Returns before it is finished.
    async fn power_off(&self) -> Result<(), BusError>;
}

/// The system bus of a host.
#[derive(Debug, Clone)]
pub struct Bus {
    link: Arc<Link>,
    root: PathBuf,
}

impl Bus {
    /// The bus of the host that this runs on.
    pub fn host() -> Self {
        Self::at(Path::new("/"))
    }

    /// The bus of the host whose root directory is `root`.
    pub fn at(root: &Path) -> Self {
        Self { link: Arc::new(Link::host(root)), root: root.to_owned() }
    }

    /// Returns systemd of this bus.
    pub fn manager(&self) -> Manager {
        Manager::new(Arc::clone(&self.link))
    }

    /// Returns machined of this bus.
    pub fn machined(&self) -> Machined {
        Machined::new(Arc::clone(&self.link), self.root.clone())
    }

    /// Returns logind of this bus.
    pub fn logind(&self) -> Logind {
        Logind::new(Arc::clone(&self.link))
    }
}
