//! Paths of a slot on the host.
//!
//! Pure: names only.

use std::path::{Path, PathBuf};

use bedplate_api::machine::SlotName;

/// Directories of the slots. Tests use another root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// `/var/lib/bedplate`: on the state disk, or in memory. Never on an overlay.
    pub state: PathBuf,
    /// `/run`.
    pub run: PathBuf,
    /// `/var/lib/machines`.
    pub machines: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self { state: "/var/lib/bedplate".into(), run: "/run".into(), machines: "/var/lib/machines".into() }
    }
}

/// The slot's letter.
pub fn letter(slot: SlotName) -> &'static str {
    match slot {
        SlotName::A => "a",
        SlotName::B => "b",
    }
}

/// The name of the slot's machine.
pub fn machine(slot: SlotName) -> String {
    format!("bedplate-{}", letter(slot))
}

/// The unit that runs the slot.
pub fn service(slot: SlotName) -> String {
    format!("systemd-nspawn@{}.service", machine(slot))
}

impl Places {
    /// The slot's own directory: `record.json`, `filled.json`, `upper`, `work`, `l`, `state`.
    pub fn slot(&self, slot: SlotName) -> PathBuf {
        self.state.join("slots").join(letter(slot))
    }

    /// Returns the path of the record.
    pub fn record(&self, slot: SlotName) -> PathBuf {
        self.slot(slot).join("record.json")
    }

    /// Returns the path of the content record.
    pub fn filled(&self, slot: SlotName) -> PathBuf {
        self.slot(slot).join("filled.json")
    }

    /// Returns the overlay's upper directory, for writes above the layers.
    pub fn upper(&self, slot: SlotName) -> PathBuf {
        self.slot(slot).join("upper")
    }

    /// Returns the work directory of overlayfs.
    pub fn work(&self, slot: SlotName) -> PathBuf {
        self.slot(slot).join("work")
    }

    /// Returns the link to a layer. Its name is short, because the options of a mount must fit into 4096
    /// bytes.
    pub fn layer(&self, slot: SlotName, number: usize) -> PathBuf {
        self.slot(slot).join("l").join(number.to_string())
    }

    /// Returns a directory that outlives the slot's root: `kubelet`, `containerd`, `log`.
    pub fn kept(&self, slot: SlotName, name: &str) -> PathBuf {
        self.slot(slot).join("state").join(name)
    }

    /// The mount point of its root.
    pub fn root(&self, slot: SlotName) -> PathBuf {
        self.machines.join(machine(slot))
    }

    /// Returns the directory with `/var/log` of the last failed trial in the slot.
    pub(crate) fn failed_log(&self, slot: SlotName) -> PathBuf {
        self.state.join("slots").join(format!("{}.log.failed", letter(slot)))
    }

    /// Returns the directory of the former contents of the slot, on the file system of the slot.
    pub fn trash(&self, slot: SlotName) -> PathBuf {
        self.state.join("trash").join(letter(slot))
    }

    /// Returns the directory of the former contents of [`Self::shared`].
    pub(crate) fn shared_trash(&self, slot: SlotName) -> PathBuf {
        self.run.join("bedplate/trash").join(letter(slot))
    }

    /// Returns the directory in memory that the slot shares with the agent: the credential of its join.
    pub fn shared(&self, slot: SlotName) -> PathBuf {
        self.run.join("bedplate/slots").join(letter(slot))
    }

    /// Key of its kubelet, while a certificate is requested for it. In memory, and not shared with the slot.
    pub(crate) fn kubelet_key(&self, slot: SlotName) -> PathBuf {
        self.run.join(format!("bedplate/kubelet-{}.key", letter(slot)))
    }

    /// The unit that mounts its root.
    pub(crate) fn mount_unit(&self, slot: SlotName) -> String {
        format!("{}.mount", escaped(&self.root(slot)))
    }
}

/// A path as systemd names its mount unit (systemd.unit(5), "string escaping for inclusion in unit names").
fn escaped(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = text.trim_matches('/');
    let mut name = String::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => name.push(char::from(byte)),
            _ => name.push_str(&format!("\\x{byte:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_unit_is_named_as_systemd_escapes_its_path() {
        let places = Places::default();
        assert_eq!(places.mount_unit(SlotName::A), "var-lib-machines-bedplate\\x2da.mount");
        assert_eq!(escaped(Path::new("/tmp/.x/y z")), "tmp-.x-y\\x20z");
        assert_eq!(escaped(Path::new("/.x")), "\\x2ex");
    }
}
