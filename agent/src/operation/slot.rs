//! The slot that runs: its systemd, and files in its root as its own programs would read them.
//!
//! A slot's links are followed inside its root, never into the host's. Called by `restart` and `kubelet`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_api::machine::SlotName;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use crate::bus::{BusError, Container, Leader, Machines, Units};
use crate::slot::places::machine;

/// Most that is read of a file.
const MOST: u64 = 1 << 20;

/// The container of the slot that runs, if one does. Two never do: one is stopped before the other is started.
pub async fn running(machines: &dyn Machines) -> Result<Option<Container>, BusError> {
    for slot in [SlotName::A, SlotName::B] {
        let Ok(name) = machine(slot).parse() else { continue };
        if let Some(container) = machines.get(&name).await? {
            return Ok(Some(container));
        }
    }
    Ok(None)
}

/// systemd of the slot that runs.
pub async fn units(machines: &dyn Machines) -> Result<Option<Arc<dyn Units>>, BusError> {
    Ok(running(machines).await?.map(|container| machines.units(container.leader)))
}

/// The root directory of a container, below the host's `root`.
pub fn root_of(root: &Path, leader: Leader) -> PathBuf {
    root.join("proc").join(leader.to_string()).join("root")
}

/// The text of a regular file below `root`, links followed as if `root` were `/`; none if there is no such file. A FIFO or a device, which
/// a Pod may have put there, is an error and not waited for.
pub fn read_inside(root: &Path, path: &str) -> io::Result<Option<String>> {
    let directory = File::open(root)?;
    let path = path.trim_start_matches('/');
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = openat2(&directory, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let file = match opened {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slots_links_lead_nowhere_but_into_the_slot() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("var/pki")).unwrap();
        std::fs::write(root.join("var/pki/client-1.pem"), "inside").unwrap();
        std::os::unix::fs::symlink("/var/pki/client-1.pem", root.join("var/pki/current.pem")).unwrap();
        std::os::unix::fs::symlink("../../../../etc/hostname", root.join("up")).unwrap();
        assert_eq!(read_inside(root, "/var/pki/current.pem").unwrap().as_deref(), Some("inside"));
        assert_eq!(read_inside(root, "up").unwrap(), None);
        assert_eq!(read_inside(root, "/nothing").unwrap(), None);
    }

    #[test]
    fn a_fifo_in_a_slot_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet.conf");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let root = directory.path().to_owned();
        std::thread::spawn(move || tell.send(read_inside(&root, "/kubelet.conf")).unwrap());
        let read = told.recv_timeout(std::time::Duration::from_secs(20)).expect("it is not waited for");
        assert!(read.unwrap_err().to_string().contains("no regular file"));
    }
}
