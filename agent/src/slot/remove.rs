//! Removes directory trees that Pods have made: any depth, any file flags, with a bounded stack and number of file descriptors.
//!
//! ```text
//!   trash/a ──► 0 ──► upper ──► ... MAX_LEVELS ──► d      d is renamed to trash/a/1, and removed from there
//! ```
//! No symbolic link is followed, and no mount point is entered: a volume that is still mounted keeps its files. Blocking calls only.
//! Called by `trash`.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Maximum number of levels below the trash that one walk descends: each takes a file descriptor and a stack frame.
const MAX_LEVELS: usize = 64;
/// Maximum number of characters of a path in a message.
const MAX_SHOWN_PATH: usize = 400;

/// A file or directory that cannot be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove {path}; {remedy}")]
pub(crate) struct RemoveTreeError {
    /// Path on the host, shortened at its end.
    pub path: String,
    /// Command or action for the operator.
    pub remedy: String,
    /// Cause.
    pub source: io::Error,
}

/// State of one walk through a directory.
struct Walk<'a> {
    directory: &'a Path,
    top: BorrowedFd<'a>,
    stop: &'a (dyn Fn() -> bool + 'a),
    /// Names from `directory` to the entry at hand.
    names: Vec<CString>,
    /// Next name that a subtree may be renamed to.
    next: u64,
    failure: Option<RemoveTreeError>,
}

/// Removes everything in `directory`, but not `directory` itself. Continues after a failure and returns the first one. `stop` is called
/// before each entry. If it returns true, the other entries stay.
///
/// # Errors
/// An entry cannot be removed, or the directory cannot be opened.
pub(crate) fn empty_directory(directory: &Path, stop: &dyn Fn() -> bool) -> Result<(), RemoveTreeError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = match rustix::fs::openat(CWD, directory, flags, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failure(directory, errno)),
    };
    let mut walk = Walk { directory, top: top.as_fd(), stop, names: Vec::new(), next: 0, failure: None };
    let opened = Dir::read_from(&top).map_err(|errno| failure(directory, errno))?;
    walk.clear(opened);
    walk.failure.map_or(Ok(()), Err)
}

impl Walk<'_> {
    /// Removes the entries of one directory. Reads it again until a pass removes nothing: entries may be skipped or added while others are removed.
    fn clear(&mut self, mut directory: Dir) {
        loop {
            directory.rewind();
            let mut removed = false;
            while let Some(entry) = directory.read() {
                if (self.stop)() {
                    return;
                }
                let (name, is_directory) = match &entry {
                    Ok(entry) => (entry.file_name(), entry.file_type() == FileType::Directory),
                    Err(errno) => return self.note(*errno),
                };
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                let Ok(parent) = directory.fd() else { return };
                self.names.push(name.to_owned());
                match self.remove(parent, name, is_directory) {
                    Ok(()) => removed = true,
                    Err(errno) => self.note(errno),
                }
                self.names.pop();
            }
            if !removed {
                return;
            }
        }
    }

    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr, is_directory: bool) -> rustix::io::Result<()> {
        if !is_directory {
            match unflagged(parent, name, || rustix::fs::unlinkat(parent, name, AtFlags::empty())) {
                Err(Errno::ISDIR) => {}
                done => return done,
            }
        }
        if self.names.len() >= MAX_LEVELS {
            return self.lift(parent, name);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let child = rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)?;
        self.clear(Dir::new(child)?);
        unflagged(parent, name, || rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
    }

    /// Renames a subtree to the top. Renaming onto an empty directory replaces that directory, so a name may be in use.
    fn lift(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
        loop {
            let to = self.next.to_string();
            self.next += 1;
            match unflagged(parent, name, || rustix::fs::renameat(parent, name, self.top, &to)) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                done => return done,
            }
        }
    }

    /// Records the first failure. A directory that is not empty follows from another failure. An absent entry is not a failure.
    fn note(&mut self, errno: Errno) {
        if self.failure.is_none() && !matches!(errno, Errno::NOTEMPTY | Errno::NOENT) {
            let names = self.names.iter().map(|name| name.to_string_lossy().into_owned());
            let path: PathBuf =
                std::iter::once(self.directory.to_path_buf()).chain(names.map(PathBuf::from)).collect();
            self.failure = Some(failure(&path, errno));
        }
    }
}

/// Acts on an entry; if the kernel does not permit it, clears the flags that forbid it on the entry and its directory, and acts again.
fn unflagged(
    parent: BorrowedFd<'_>,
    name: &CStr,
    act: impl Fn() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let done = act();
    if done != Err(Errno::PERM) {
        return done;
    }
    // Errors show in the second attempt.
    let _ = clear_flags(parent);
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    // Other types have no flags, and opening a device could act on it.
    if matches!(FileType::from_raw_mode(stat.st_mode), FileType::Directory | FileType::RegularFile) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(parent, name, flags, Mode::empty());
        let _ = entry.and_then(|entry| clear_flags(entry.as_fd()));
    }
    act()
}

/// Clears the immutable and append-only flags (ioctl_iflags(2)); needs CAP_LINUX_IMMUTABLE if one is set.
fn clear_flags(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let fixed = IFlags::IMMUTABLE | IFlags::APPEND;
    let flags = rustix::fs::ioctl_getflags(file)?;
    if flags.intersects(fixed) { rustix::fs::ioctl_setflags(file, flags - fixed) } else { Ok(()) }
}

fn failure(path: &Path, errno: Errno) -> RemoveTreeError {
    let path: String = path.display().to_string().chars().take(MAX_SHOWN_PATH).collect();
    let remedy = match errno {
        Errno::XDEV | Errno::BUSY => format!("unmount the file system there: `umount {path}`"),
        Errno::PERM => {
            format!(
                "clear its flags: `chattr -R -i -a {path}`, or compare the agent's unit with the packaged one"
            )
        }
        _ => format!("remove it on the host: `rm -rf {path}`"),
    };
    RemoveTreeError { path, remedy, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Makes a chain of directories this deep below `top`, as a Pod does: by descending.
    fn deepen(top: &Path, levels: u32) {
        let mut directory =
            rustix::fs::openat(CWD, top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&directory, "d", Mode::from_raw_mode(0o700)).unwrap();
            directory =
                rustix::fs::openat(&directory, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                    .unwrap();
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn tree_of_20000_levels_is_removed_with_1024_descriptors_and_little_stack() {
        use rustix::process::{Resource, getrlimit};
        let before = getrlimit(Resource::Nofile);
        // The limit is one of the process, and so of the tests that run concurrently.
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "slot::remove::tests::child_that_removes_deep_trees"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        assert_eq!(getrlimit(Resource::Nofile), before);
    }

    #[test]
    #[ignore = "the child process of tree_of_20000_levels_is_removed_with_1024_descriptors_and_little_stack"]
    fn child_that_removes_deep_trees() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let directory = tempfile::tempdir().unwrap();
        // The default of systemd for a service.
        let limit = Rlimit { current: Some(1024), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        for levels in [1, 63, 64, 65, 128, 5_000, 20_000] {
            std::fs::create_dir(directory.path().join("0")).unwrap();
            deepen(&directory.path().join("0"), levels);
            let path = directory.path().to_owned();
            // Half of the stack of a thread that waits for disks.
            let thread = std::thread::Builder::new().stack_size(1 << 20);
            thread.spawn(move || empty_directory(&path, &|| false)).unwrap().join().unwrap().unwrap();
            assert_eq!(names(directory.path()), [""; 0], "{levels}");
        }
    }

    #[test]
    fn wide_tree_with_links_is_removed_and_nothing_outside() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("kept"), "x").unwrap();
        let directory = tempfile::tempdir().unwrap();
        for number in 0..3000 {
            let below = directory.path().join(format!("0/{}", number % 7));
            std::fs::create_dir_all(&below).unwrap();
            std::fs::write(below.join(number.to_string()), "x").unwrap();
        }
        symlink(outside.path(), directory.path().join("0/out")).unwrap();
        symlink(outside.path().join("kept"), directory.path().join("0/file")).unwrap();
        empty_directory(directory.path(), &|| false).unwrap();
        assert_eq!(names(directory.path()), [""; 0]);
        assert_eq!(names(outside.path()), ["kept"]);
    }

    #[test]
    fn immutable_and_append_only_entries_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("0/d");
        std::fs::create_dir_all(&inner).unwrap();
        for name in ["fixed", "log"] {
            std::fs::write(inner.join(name), "x").unwrap();
        }
        let set = |path: &Path, flag: IFlags| {
            let file = std::fs::File::open(path).unwrap();
            rustix::fs::ioctl_getflags(&file)
                .and_then(|flags| rustix::fs::ioctl_setflags(&file, flags | flag))
        };
        set(&inner.join("fixed"), IFlags::IMMUTABLE).expect("root, and a file system with flags");
        set(&inner.join("log"), IFlags::APPEND).unwrap();
        set(&inner, IFlags::IMMUTABLE).unwrap();
        assert!(std::fs::remove_dir_all(directory.path().join("0")).is_err());
        empty_directory(directory.path(), &|| false).unwrap();
        assert_eq!(names(directory.path()), [""; 0]);
    }

    #[test]
    fn stopped_walk_leaves_the_rest_and_the_next_one_removes_it() {
        let directory = tempfile::tempdir().unwrap();
        deepen(directory.path(), 300);
        for after in [1, 2, 70, 100] {
            let asked = AtomicU32::new(0);
            empty_directory(directory.path(), &|| asked.fetch_add(1, Ordering::Relaxed) >= after).unwrap();
            assert_ne!(names(directory.path()), [""; 0], "{after}");
        }
        empty_directory(directory.path(), &|| false).unwrap();
        assert_eq!(names(directory.path()), [""; 0]);
    }

    #[test]
    fn directory_that_is_absent_is_empty() {
        empty_directory(Path::new("/nonexistent/trash"), &|| false).unwrap();
    }

    /// Runs `work` on a thread with a mount namespace of its own. Other threads do not see its mounts, which end with it.
    fn with_own_mounts(work: impl FnOnce() + Send) {
        use nix::mount::{MsFlags, mount};
        use nix::sched::{CloneFlags, unshare};
        let none = None::<&str>;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).expect("root, who may make a mount namespace");
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
                work();
            });
        });
    }

    #[test]
    fn mount_point_is_not_entered_and_the_message_names_it() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        let directory = tempfile::tempdir().unwrap();
        let (volume, other) = (directory.path().join("0/volume"), directory.path().join("0/other"));
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::write(&other, "x").unwrap();
        with_own_mounts(|| {
            mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).expect("root, who may mount");
            std::fs::write(volume.join("data"), "x").unwrap();
            let error = empty_directory(directory.path(), &|| false).unwrap_err();
            assert_eq!(std::fs::read(volume.join("data")).unwrap(), b"x");
            assert!(error.to_string().contains(&format!("`umount {}`", volume.display())), "{error}");
            assert!(!other.exists(), "the rest is removed");
            unmount(&volume, UnmountFlags::empty()).unwrap();
        });
        empty_directory(directory.path(), &|| false).unwrap();
        assert_eq!(names(directory.path()), [""; 0]);
    }
}
