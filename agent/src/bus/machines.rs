//! machined on the host's bus: running containers, their process 1, and their termination.
//!
//! Called by `node` through the trait `Machines`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use zbus::OwnedObjectPath;

use super::error::BusError;
use super::link::{Link, Object, Service, leader_root};
use super::name::ContainerName;
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
    pub(crate) fn open_root(self, host: &Path) -> io::Result<Inside> {
        open_apart(&leader_root(host, self), host)
    }
}

/// Opens the root directory at `path`, unless it is `host`.
fn open_apart(path: &Path, host: &Path) -> io::Result<Inside> {
    let inside = Inside::open_root(path)?;
    if inside.is(host)? {
        return Err(io::Error::other(
            "the process is not the first process of a container; it belongs to the host",
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
}

#[async_trait]
impl Machines for Machined {
    async fn get(&self, name: &ContainerName) -> Result<Option<Container>, BusError> {
        let act = format!("read state of container {name}");
        let path = self.link.call::<_, OwnedObjectPath>(&act, MANAGER, "GetMachine", &name.as_str()).await;
        let path = match path {
            Err(error) if error.refusal() == Some(NO_MACHINE) => return Ok(None),
            path => path?,
        };
        let object =
            Object { service: SERVICE, path: path.as_str(), interface: "org.freedesktop.machine1.Machine" };
        let leader = self.link.property::<u32>(&act, object, "Leader").await?;
        // Without one, the container stopped between the two requests.
        let leader = leader.and_then(Leader::new);
        Ok(leader.map(|leader| Container { name: name.clone(), leader }))
    }

    async fn terminate(&self, name: &ContainerName) -> Result<bool, BusError> {
        let act = format!("end of container {name}");
        match self.link.call::<_, ()>(&act, MANAGER, "TerminateMachine", &name.as_str()).await {
            Err(error) if error.refusal() == Some(NO_MACHINE) => Ok(false),
            ended => ended.map(|()| true),
        }
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
        assert!(error.to_string().contains("belongs to the host"), "{error}");
        assert_eq!(open(8).unwrap_err().kind(), io::ErrorKind::NotFound);
        let slot = host.path().join("proc/7/root");
        assert!(open_apart(&slot, &host.path().join("nothing")).is_err());
    }
}
