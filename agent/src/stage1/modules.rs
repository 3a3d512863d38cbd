//! Loads kernel modules: those for the devices that are present, for file
//! systems, and on request of the kernel.
//!
//! Files are below /lib/modules/<release>, with `modules.dep` and `modules.alias` (both from depmod). A
//! missing file leaves the device without a driver. Files are uncompressed, because some kernels cannot
//! decompress them. /etc/bedplate/modules may name more, one per line; `#` starts a comment. Selection and
//! order: `module_index`. Called by the driver, and by the kernel itself through /proc/sys/kernel/modprobe.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use super::error::{StageError, chain};
use super::module_index::{ModuleIndex, module_name};
use crate::hardware::{names_in, read_text};

/// Always loaded, because no device requests them.
const ALWAYS: [&str; 9] = [
    "crc32c_generic",
    "loop",
    "squashfs",
    "overlay",
    "ext4",
    "virtio_pci",
    "virtio_net",
    "virtio_blk",
    "af_packet",
];
/// File with the program that the kernel runs to request a module.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";
const MAX_DEPTH: usize = 24;

/// The modules of the running release.
#[derive(Debug, Default)]
pub struct Modules {
    directory: PathBuf,
    index: ModuleIndex,
    tried: HashSet<String>,
    seen_aliases: HashSet<String>,
}

/// Result of a pass.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Modules that were loaded in this pass.
    pub count: usize,
    /// Modules that could not be loaded, with the reason. The boot continues without them.
    pub failures: Vec<String>,
}

impl Modules {
    /// Reads the index of the running kernel's release; empty if the initramfs has none (everything is built in).
    pub fn open() -> Result<Self, StageError> {
        let release =
            nix::sys::utsname::uname().map_err(StageError::system("ask for", "the kernel's release"))?;
        let directory = Path::new("/lib/modules").join(release.release());
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let index = ModuleIndex::parse(&text("modules.dep"), &text("modules.alias"));
        Ok(Self { directory, index, tried: HashSet::new(), seen_aliases: HashSet::new() })
    }

    /// Loads the fixed modules, the list of /etc/bedplate/modules, and those of devices, until no pass finds
    /// more. A bus driver adds devices.
    pub(crate) fn load_all(&mut self) -> Loaded {
        let mut loaded = Loaded::default();
        let list = fs::read_to_string("/etc/bedplate/modules").unwrap_or_default();
        let listed =
            list.lines().map(|line| line.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty());
        for module in listed.chain(ALWAYS) {
            self.load(module, &mut loaded);
        }
        self.load_for_devices(&mut loaded);
        loaded
    }

    /// Loads modules of devices that appeared since the last pass.
    pub(crate) fn load_for_devices(&mut self, loaded: &mut Loaded) {
        for _ in 0..8 {
            let mut aliases = Vec::new();
            find_aliases(Path::new("/sys/devices"), 0, &mut aliases);
            aliases.retain(|alias| self.seen_aliases.insert(alias.clone()));
            if aliases.is_empty() {
                return;
            }
            for alias in aliases {
                let modules: Vec<String> =
                    self.index.modules_for(&alias).into_iter().map(str::to_owned).collect();
                modules.iter().for_each(|module| self.load(module, loaded));
            }
        }
    }

    fn load(&mut self, module: &str, loaded: &mut Loaded) {
        for file in self.index.load_order(module) {
            if self.tried.insert(file.to_owned()) {
                match insert(&self.directory.join(file)) {
                    Ok(true) => loaded.count = loaded.count.saturating_add(1),
                    Ok(false) => {}
                    Err(error) => loaded.failures.push(chain(&error)),
                }
            }
        }
    }
}

/// Loads one file. Returns `false` if it was loaded before, or is not in the initramfs.
fn insert(path: &Path) -> Result<bool, StageError> {
    let Ok(file) = File::open(path) else { return Ok(false) };
    let compressed = path.extension().is_some_and(|extension| extension != "ko");
    let flags = if compressed { ModuleInitFlags::from_bits_retain(4) } else { ModuleInitFlags::empty() };
    match finit_module(&file, c"", flags) {
        Ok(()) => Ok(true),
        // ENODEV: the driver found no device, such as a driver of another processor.
        Err(Errno::EEXIST | Errno::ENODEV) => Ok(false),
        Err(errno) => Err(StageError::system("load module", module_name(&path.to_string_lossy()))(errno)),
    }
}

/// Finds all `modalias` files below `directory`. Links are not followed:
/// /sys/devices contains each device once.
fn find_aliases(directory: &Path, depth: usize, aliases: &mut Vec<String>) {
    aliases.extend(read_text(&directory.join("modalias")));
    for name in names_in(directory) {
        let path = directory.join(name);
        if depth < MAX_DEPTH && fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            find_aliases(&path, depth + 1, aliases);
        }
    }
}

/// Sets this program as the kernel's modprobe (ext4 requests its checksum, mount its file system), or
/// restores the root image's modprobe.
pub(crate) fn answer_kernel_requests(own: bool) -> Result<(), StageError> {
    let program = if own { "/init" } else { "/sbin/modprobe" };
    fs::write(MODPROBE, program).map_err(StageError::system("write", MODPROBE))
}

/// Returns the alias if the kernel started this program for a module: it calls `<program> -q -- <alias>`.
pub(crate) fn kernel_request(arguments: &[String]) -> Option<&str> {
    match arguments {
        [_, quiet, end, alias] if quiet == "-q" && end == "--" => Some(alias),
        _ => None,
    }
}

/// Loads the module that the kernel requested. Returns true if a file existed.
pub(crate) fn serve_kernel_request(alias: &str) -> bool {
    let Ok(mut modules) = Modules::open() else { return false };
    let names: Vec<String> = modules.index.modules_for(alias).into_iter().map(str::to_owned).collect();
    let mut loaded = Loaded::default();
    names.iter().for_each(|name| modules.load(name, &mut loaded));
    loaded.count > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_of_the_kernel_is_distinguished_from_all_others() {
        let call = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            kernel_request(&words).map(str::to_owned)
        };
        assert_eq!(call(&["/init", "-q", "--", "fs-ext4"]), Some("fs-ext4".to_owned()));
        assert_eq!(call(&["/init"]), None);
        assert_eq!(call(&["bedplate-agent", "run"]), None);
        assert_eq!(call(&["/init", "-q", "--"]), None);
    }

    #[test]
    fn every_modalias_below_devices_is_found_once() {
        let root = tempfile::tempdir().unwrap();
        crate::hardware::fixture::write(
            root.path(),
            &[
                ("pci0/modalias", "pci:a\n"),
                ("pci0/virtio0/modalias", "virtio:b\n"),
                ("pci0/virtio0/net/eth0/address", "x"),
            ],
        );
        std::os::unix::fs::symlink("..", root.path().join("pci0/virtio0/subsystem")).unwrap();
        let mut aliases = Vec::new();
        find_aliases(root.path(), 0, &mut aliases);
        assert_eq!(aliases, ["pci:a", "virtio:b"]);
    }
}
