//! machined on the host's bus: which containers run, who their process 1 is, how they are ended.
//!
//! Called by `node` through the trait `Machines`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use zbus::OwnedObjectPath;

use super::error::BusError;
use super::link::{Link, Object, Service, leader_root};
use super::name::{ContainerName, UnitName};
use super::state::time;
use super::systemd::Manager;
use super::{Machines, Units};
use crate::slot::confined_writer::Inside;

const SERVICE: Service = Service { name: "org.freedesktop.machine1", package: Some("systemd-container") };
const MANAGER: Object<'static> = Object {
    service: SERVICE,
    path: "/org/freedesktop/machine1",
    interface: "org.freedesktop.machine1.Manager",
};
const NO_MACHINE: &str = "org.freedesktop.machine1.NoSuchMachine";

/// Process 1 of a container, as the host numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leader(u32);

impl Leader {
    /// Returns the leader with this process ID. None for 0 and 1, which belong to the host.
    pub fn new(pid: u32) -> Option<Self> {
        (pid > 1).then_some(Self(pid))
    }

    /// Returns the process ID.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Opens the root directory of the container, below the root directory `host` of its host. The process ID may have been reused, by a
    /// process of the host too. Nothing that is meant for a slot may reach the host's own root.
    ///
    /// # Errors
    /// The directory cannot be opened, is the host's own, or cannot be compared with the host's own.
    pub fn open_root(self, host: &Path) -> io::Result<Inside> {
        open_apart(&leader_root(host, self), host)
    }
}

/// Opens the root directory at `path`, unless it is `host`.
fn open_apart(path: &Path, host: &Path) -> io::Result<Inside> {
    let inside = Inside::open_root(path)?;
    if inside.is(host)? {
        return Err(io::Error::other(
            "the process is not the first one of a container: it is one of the host",
        ));
    }
    Ok(inside)
}

impl fmt::Display for Leader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Name of the container.
    pub name: ContainerName,
    /// Process 1 of the container.
    pub leader: Leader,
    /// State: `opening`, `running` or `closing`. machined reports `running` as
    /// soon as systemd-nspawn has registered it.
    pub state: String,
    /// The unit that it runs in.
    pub unit: Option<UnitName>,
    /// Time of its registration.
    pub since: Option<Timestamp>,
}

/// machined of the host.
#[derive(Debug, Clone)]
pub struct Machined {
    link: Arc<Link>,
    root: PathBuf,
}

impl Machined {
    pub(super) fn new(link: Arc<Link>, root: PathBuf) -> Self {
        Self { link, root }
    }

    async fn describe(&self, name: &ContainerName, path: &str) -> Result<Option<Container>, BusError> {
        let act = format!("read state of container {name}");
        let object = Object { service: SERVICE, path, interface: "org.freedesktop.machine1.Machine" };
        let (leader, state, unit, since) = tokio::try_join!(
            self.link.property::<u32>(&act, object, "Leader"),
            self.link.property::<String>(&act, object, "State"),
            self.link.property::<String>(&act, object, "Unit"),
            self.link.property::<u64>(&act, object, "Timestamp"),
        )?;
        // The container has ended between the two requests.
        let Some(leader) = leader.and_then(Leader::new) else { return Ok(None) };
        Ok(Some(Container {
            name: name.clone(),
            leader,
            state: state.unwrap_or_default(),
            unit: unit.and_then(|unit| unit.parse().ok()),
            since: time(since),
        }))
    }
}

/// Returns true if the container existed.
fn existed(result: Result<(), BusError>) -> Result<bool, BusError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.refusal() == Some(NO_MACHINE) => Ok(false),
        Err(error) => Err(error),
    }
}

#[async_trait]
impl Machines for Machined {
    async fn get(&self, name: &ContainerName) -> Result<Option<Container>, BusError> {
        let act = format!("read state of container {name}");
        let path = self.link.call::<_, OwnedObjectPath>(&act, MANAGER, "GetMachine", &name.as_str()).await;
        match path {
            Ok(path) => self.describe(name, path.as_str()).await,
            Err(error) if error.refusal() == Some(NO_MACHINE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self) -> Result<Vec<Container>, BusError> {
        type Listed = Vec<(String, String, String, OwnedObjectPath)>;
        let listed: Listed = self.link.call("list of containers", MANAGER, "ListMachines", &()).await?;
        let mut containers = Vec::new();
        for (name, class, _, path) in listed {
            // `.host` is the host itself.
            let Ok(name) = name.parse::<ContainerName>() else { continue };
            if class == "container" {
                containers.extend(self.describe(&name, path.as_str()).await?);
            }
        }
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(containers)
    }

    async fn terminate(&self, name: &ContainerName) -> Result<bool, BusError> {
        let act = format!("end of container {name}");
        existed(self.link.call(&act, MANAGER, "TerminateMachine", &name.as_str()).await)
    }

    async fn kill(&self, name: &ContainerName, signal: i32) -> Result<bool, BusError> {
        let act = format!("signal {signal} to container {name}");
        existed(self.link.call(&act, MANAGER, "KillMachine", &(name.as_str(), "leader", signal)).await)
    }

    fn units(&self, leader: Leader) -> Arc<dyn Units> {
        Arc::new(Manager::new(Arc::new(Link::container(&self.root, leader))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_the_host_or_one_that_cannot_be_compared_is_refused() {
        let host = tempfile::tempdir().unwrap();
        for leader in ["proc/7/root", "proc/9"] {
            std::fs::create_dir_all(host.path().join(leader)).unwrap();
        }
        std::os::unix::fs::symlink(host.path(), host.path().join("proc/9/root")).unwrap();
        let open = |pid| Leader::new(pid).unwrap().open_root(host.path());
        open(7).unwrap();
        let error = open(9).unwrap_err();
        assert!(error.to_string().contains("one of the host"), "{error}");
        assert_eq!(open(8).unwrap_err().kind(), io::ErrorKind::NotFound);
        let slot = host.path().join("proc/7/root");
        assert!(open_apart(&slot, &host.path().join("nothing")).is_err());
    }
}
