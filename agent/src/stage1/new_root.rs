//! Builds the new root from image and state, and starts its init.
//!
//! Mounts, all below /run so that they move along: `/run/bedplate/rootfs` the image, `/run/bedplate/memory`
//! the writable state if there is no state disk, `/run/bedplate/state` the state disk. Called by the driver.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_api::id::{Digest, MachineName};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::console::say;
use super::error::{StageError, chain};
use super::loop_device;

/// Mount point of the image.
pub const IMAGE: &str = "/run/bedplate/rootfs";
/// Mount point of the state disk.
pub const STATE: &str = "/run/bedplate/state";
/// Directory in which the new root is assembled.
pub(crate) const NEW_ROOT: &str = "/sysroot";
const MEMORY: &str = "/run/bedplate/memory";
const INITS: [&str; 4] = ["/sbin/init", "/lib/systemd/systemd", "/usr/lib/systemd/systemd", "/bin/init"];
/// Directories outside of the overlay, on the state disk or in memory, because the overlays of a slot and of
/// containerd cannot be on an overlay. On a disk they outlive a new image.
const KEPT: [&str; 3] = ["bedplate", "machines", "containerd"];
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// Mounts /proc, /sys, /dev and /run for all later steps. Existing mounts stay.
pub(crate) fn mount_basics() -> Result<(), StageError> {
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    for (kind, target, flags, data) in [
        ("proc", "/proc", safe, ""),
        ("sysfs", "/sys", safe, ""),
        ("devtmpfs", "/dev", MsFlags::MS_NOSUID, "mode=0755"),
        ("tmpfs", "/run", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "mode=0755,size=20%"),
    ] {
        fs::create_dir_all(target).map_err(StageError::system("make", target))?;
        if !is_mount_point(Path::new(target)) {
            mount_new(kind, Path::new(target), kind, flags, data)?;
        }
    }
    // Firmware variables have the state of Secure Boot. A BIOS machine has none.
    if Path::new("/sys/firmware/efi/efivars").is_dir()
        && !is_mount_point(Path::new("/sys/firmware/efi/efivars"))
    {
        let _ = mount_new("efivarfs", Path::new("/sys/firmware/efi/efivars"), "efivarfs", safe, "");
    }
    fs::create_dir_all("/run/bedplate").map_err(StageError::system("make", "/run/bedplate"))
}

fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    // A missing path is not a mount point.
    device(path).is_some_and(|own| path.parent().and_then(device).is_some_and(|parent| own != parent))
}

fn mount_new(source: &str, target: &Path, kind: &str, flags: MsFlags, data: &str) -> Result<(), StageError> {
    fs::create_dir_all(target).map_err(StageError::system("make", target.display()))?;
    let mounted = mount(Some(source), target, Some(kind), flags, Some(data).filter(|data| !data.is_empty()));
    mounted.map_err(StageError::system("mount", target.display()))
}

/// A memory file system for the image, no larger than the image needs; gives the path of the file to fetch into.
pub(crate) fn mount_fetch_area(size: u64) -> Result<PathBuf, StageError> {
    let target = Path::new("/run/bedplate/fetch");
    if !is_mount_point(target) {
        let data = format!("mode=0700,size={}k", size.div_ceil(1024).saturating_add(64));
        mount_new("tmpfs", target, "tmpfs", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, &data)?;
    }
    Ok(target.join("image"))
}

/// Mounts the verified image read-only. The area that it was fetched into is detached, and its memory belongs
/// to the image.
pub(crate) fn mount_image(image: &File) -> Result<(), StageError> {
    let target = Path::new(IMAGE);
    if is_mount_point(target) {
        return Ok(());
    }
    let (device, keep) = loop_device::attach(image)?;
    mount_new(&device.display().to_string(), target, "squashfs", MsFlags::MS_RDONLY | MsFlags::MS_NODEV, "")?;
    drop(keep);
    let _ = umount2("/run/bedplate/fetch", MntFlags::MNT_DETACH);
    // Programs of the image work on the state disk, and need its device node.
    mount(Some("/dev"), &target.join("dev"), None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(StageError::system("bind", "/dev into the root image"))
}

/// Assembles the new root: the image, and above it the state disk or memory. Existing mounts stay.
pub(crate) fn mount_root(on_disk: bool, image: &Digest) -> Result<(), StageError> {
    let _ = umount2(&Path::new(IMAGE).join("dev"), MntFlags::MNT_DETACH);
    if !is_mount_point(Path::new(NEW_ROOT)) {
        mount_overlay(on_disk, image)?;
    }
    bind_kept(Path::new(if on_disk { STATE } else { MEMORY }))
}

fn mount_overlay(on_disk: bool, image: &Digest) -> Result<(), StageError> {
    let above = if on_disk { overlay_on_disk(image)? } else { overlay_in_memory()? };
    for name in ["upper", "work"] {
        let path = above.join(name);
        fs::create_dir_all(&path).map_err(StageError::system("make", path.display()))?;
    }
    let above = above.display();
    let data = format!("lowerdir={IMAGE},upperdir={above}/upper,workdir={above}/work");
    mount_new("bedplate", Path::new(NEW_ROOT), "overlay", MsFlags::empty(), &data)?;
    let init = INITS.iter().any(|init| fs::symlink_metadata(format!("{NEW_ROOT}{init}")).is_ok());
    if !init {
        let _ = umount2(NEW_ROOT, MntFlags::MNT_DETACH);
        return Err(StageError::NoInit);
    }
    Ok(())
}

fn overlay_in_memory() -> Result<PathBuf, StageError> {
    let target = PathBuf::from(MEMORY);
    if !is_mount_point(&target) {
        mount_new("tmpfs", &target, "tmpfs", MsFlags::MS_NODEV, "mode=0755,size=50%")?;
    }
    Ok(target)
}

/// Returns the overlay of an image, and removes those of others, because changes above one image must not be
/// above another.
fn overlay_on_disk(image: &Digest) -> Result<PathBuf, StageError> {
    let all = Path::new(STATE).join("overlay");
    let name = image.hex().chars().take(16).collect::<String>();
    for other in crate::hardware::names_in(&all).into_iter().filter(|other| *other != name) {
        let path = all.join(other);
        fs::remove_dir_all(&path).map_err(StageError::system("remove", path.display()))?;
    }
    Ok(all.join(name))
}

fn bind_kept(below: &Path) -> Result<(), StageError> {
    for name in KEPT {
        let (from, to) = (below.join(name), Path::new(NEW_ROOT).join("var/lib").join(name));
        if is_mount_point(&to) {
            continue;
        }
        for path in [&from, &to] {
            fs::create_dir_all(path).map_err(StageError::system("make", path.display()))?;
        }
        mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(StageError::system("bind", to.display()))?;
    }
    Ok(())
}

/// Writes the host's name and, unless the image manages it (a link), resolv.conf.
pub(crate) fn write_identity(machine: &MachineName, resolv_conf: &str) -> Result<(), StageError> {
    nix::unistd::sethostname(machine.as_str()).map_err(StageError::system("set", "the host name"))?;
    let etc = Path::new(NEW_ROOT).join("etc");
    let write = |name: &str, text: &str| {
        let path = etc.join(name);
        fs::write(&path, text).map_err(StageError::system("write", path.display()))
    };
    write("hostname", &format!("{machine}\n"))?;
    match fs::symlink_metadata(etc.join("resolv.conf")) {
        Ok(metadata) if metadata.is_symlink() => Ok(()),
        _ => write("resolv.conf", resolv_conf),
    }
}

/// Starts the new root's init, and does not return. The first moved mount cannot be undone, so a failure is
/// logged and retried.
pub fn switch() -> Result<std::convert::Infallible, StageError> {
    for name in ["dev", "proc", "sys", "run"] {
        let to = Path::new(NEW_ROOT).join(name);
        fs::create_dir_all(&to).map_err(StageError::system("make", to.display()))?;
    }
    let root = fs::metadata("/").map_err(StageError::system("read", "/"))?;
    let magic = statfs("/").map_err(StageError::system("read", "/"))?.filesystem_type();
    for name in ["dev", "proc", "sys", "run"] {
        let (from, to) = (Path::new("/").join(name), Path::new(NEW_ROOT).join(name));
        if is_mount_point(&from) {
            mount(Some(&from), &to, None::<&str>, MsFlags::MS_MOVE, None::<&str>)
                .map_err(StageError::system("move", from.display()))?;
        }
    }
    // Only files in memory are deleted, never those of another root.
    if magic == TMPFS_MAGIC || magic.0 == RAMFS_MAGIC {
        remove_contents(Path::new("/"), root.dev());
    }
    nix::unistd::chdir(NEW_ROOT).map_err(StageError::system("enter", NEW_ROOT))?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .map_err(StageError::system("move", NEW_ROOT))?;
    nix::unistd::chroot(".").map_err(StageError::system("change root to", NEW_ROOT))?;
    nix::unistd::chdir("/").map_err(StageError::system("enter", "the new root"))?;
    Err(StageError::system("start", "/sbin/init")(start_init()))
}

fn start_init() -> io::Error {
    use std::os::unix::process::CommandExt;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for init in INITS {
        if Path::new(init).exists() {
            last = Command::new(init).exec();
            say(&format!("cannot start {init}: {}", chain(&last)));
        }
    }
    last
}

/// Removes everything on the same file system. Failures are of no consequence: the files only take memory.
fn remove_contents(directory: &Path, device: u64) {
    for name in crate::hardware::names_in(directory) {
        let path = directory.join(name);
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.dev() != device {
            continue;
        }
        if metadata.is_dir() {
            remove_contents(&path, device);
            let _ = fs::remove_dir(&path);
        } else {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_on_another_file_system_is_a_mount_point() {
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/self")));
        assert!(!is_mount_point(Path::new("/no/such/directory")));
        assert!(!is_mount_point(Path::new("/")));
    }

    /// Runs `work` on a thread that has an empty memory file system of its own as its root.
    fn in_empty_root(work: impl FnOnce() + Send) {
        use nix::sched::{CloneFlags, unshare};
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
                mount_new("tmpfs", root.path(), "tmpfs", MsFlags::empty(), "").unwrap();
                nix::unistd::chroot(root.path()).unwrap();
                nix::unistd::chdir("/").unwrap();
                work();
            });
        });
    }

    #[test]
    fn with_state_in_memory_overlay_of_a_slot_is_next_to_the_root() {
        in_empty_root(|| {
            fs::create_dir_all(Path::new(IMAGE).join("sbin")).unwrap();
            fs::write(Path::new(IMAGE).join("sbin/init"), "").unwrap();
            let digest = "sha256:".to_owned() + &"0".repeat(64);
            mount_root(false, &digest.parse().unwrap()).unwrap();
            for name in KEPT {
                let kept = Path::new(NEW_ROOT).join("var/lib").join(name);
                assert_eq!(statfs(&kept).unwrap().filesystem_type(), TMPFS_MAGIC, "{name}");
                for directory in ["lower", "upper", "work", "merged"] {
                    fs::create_dir(kept.join(directory)).unwrap();
                }
                let at = kept.display();
                let data = format!("lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work");
                mount_new("slot", &kept.join("merged"), "overlay", MsFlags::empty(), &data).unwrap();
                fs::write(kept.join("merged/file"), "").unwrap();
                assert!(Path::new(MEMORY).join(name).join("upper/file").exists(), "{name}");
            }
            // A second try, after another step has failed, changes nothing.
            mount_root(false, &digest.parse().unwrap()).unwrap();
            umount2(&Path::new(NEW_ROOT).join("var/lib/machines"), MntFlags::MNT_DETACH).unwrap();
            mount_root(false, &digest.parse().unwrap()).unwrap();
            assert!(Path::new(NEW_ROOT).join("var/lib/machines/upper").exists(), "a bind that was missing");
        });
    }
}
