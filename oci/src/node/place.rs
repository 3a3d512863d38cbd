//! The directory that a layer is unpacked into: every path of the archive is resolved below it by the kernel (`openat2`), so that
//! neither `..` nor a link, planted before or not, leads out of it.
//!
//! Links inside the layer are followed as if the layer were the root of a file system. Directories that no member names are
//! made; what they are like is settled when the image is put together (`merge`). A directory's mode, owner and time are set at
//! the end, since writing into it changes them.
//!
//! Not here: what members mean (`unpack`). Caller: `unpack`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::error::UnpackLayerError;
use super::tar::shown;

/// Open directories that are kept for the next member.
const MOST_OPEN: usize = 64;
/// Type of a tmpfs in statfs(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Maximum depth of a directory. Links could build trees that are too deep to be removed.
const MAX_DEPTH: usize = 256;
/// Maximum bytes of names and attributes of directories that are remembered until the end.
const MOST_REMEMBERED: u64 = 64 << 20;
/// Maximum number of lookups that are repeated because of a concurrent rename.
const MOST_LOOKUPS: usize = 128;
/// Attribute by which overlayfs marks a directory that hides those below it.
const OPAQUE: &str = "trusted.overlay.opaque";

/// Owner of the files that this process makes; saves one system call per file.
static OWN: LazyLock<(u32, u32)> =
    LazyLock::new(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));

/// Mode, owner and time of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: (i64, u32),
    /// Checked by the caller.
    pub(crate) xattrs: Vec<(OsString, Vec<u8>)>,
}

impl Default for Attributes {
    fn default() -> Self {
        Self { mode: 0o755, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new() }
    }
}

impl Attributes {
    pub(crate) fn timestamps(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.mtime.0, tv_nsec: self.mtime.1.into() };
        Timestamps { last_access: time, last_modification: time }
    }
}

/// An open directory of the layer.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Path from the layer's root, without links.
    pub(crate) path: PathBuf,
    pub(crate) fd: OwnedFd,
}

/// Cached state of a directory.
#[derive(Debug)]
struct Remembered {
    attributes: Attributes,
    /// True if no member named it.
    implied: bool,
}

/// The directory of one layer.
#[derive(Debug)]
pub(crate) struct Place {
    root: Rc<Directory>,
    open: HashMap<PathBuf, Rc<Directory>>,
    directories: BTreeMap<PathBuf, Remembered>,
    /// Paths that whiteouts of this layer name.
    removed: HashSet<PathBuf>,
    remembered: u64,
}

/// An error of the system while something was done to a path.
pub(crate) fn failed(path: &Path, act: &'static str) -> impl FnOnce(Errno) -> UnpackLayerError {
    move |errno| match errno {
        Errno::NOSPC | Errno::DQUOT => UnpackLayerError::NoRoom { free: 0 },
        _ => UnpackLayerError::Write { path: shown(path), act, source: errno.into() },
    }
}

pub(crate) fn refused(path: &Path, problem: impl Into<String>) -> UnpackLayerError {
    UnpackLayerError::Refused { path: shown(path), problem: problem.into() }
}

impl Place {
    /// Takes an empty directory.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let root = Remembered { attributes: Attributes::default(), implied: true };
        Self {
            root: Rc::new(Directory { path: PathBuf::new(), fd }),
            open: HashMap::new(),
            directories: BTreeMap::from([(PathBuf::new(), root)]),
            removed: HashSet::new(),
            remembered: 0,
        }
    }

    pub(crate) fn root(&self) -> &Rc<Directory> {
        &self.root
    }

    /// Returns the directory at this path. `None`: it does not exist.
    pub(crate) fn find(&mut self, path: &Path) -> Result<Option<Rc<Directory>>, UnpackLayerError> {
        if path.as_os_str().is_empty() {
            return Ok(Some(self.root.clone()));
        }
        if let Some(directory) = self.open.get(path) {
            return Ok(Some(directory.clone()));
        }
        let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let directory = match self.lookup(path, strict) {
            Ok(fd) => Directory { path: path.to_owned(), fd },
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::LOOP) => {
                let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
                match self.lookup(path, inside) {
                    Ok(fd) => Directory { path: self.place_of(&fd, path)?, fd },
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                    Err(errno) => return Err(failed(path, "open it")(errno)),
                }
            }
            Err(errno) => return Err(failed(path, "open it")(errno)),
        };
        let directory = Rc::new(directory);
        if self.open.len() >= MOST_OPEN {
            self.open.clear();
        }
        self.open.insert(path.to_owned(), directory.clone());
        Ok(Some(directory))
    }

    fn lookup(&self, path: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for _ in 0..MOST_LOOKUPS {
            match rustix::fs::openat2(&self.root.fd, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Returns the path of an open directory, with links resolved.
    fn place_of(&self, fd: &OwnedFd, path: &Path) -> Result<PathBuf, UnpackLayerError> {
        let read = |fd: &OwnedFd| {
            let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
            link.map(|link| PathBuf::from(OsString::from_vec(link.into_bytes())))
        };
        let (root, found) =
            read(&self.root.fd).and_then(|root| Ok((root, read(fd)?))).map_err(failed(path, "follow it"))?;
        let inside =
            found.strip_prefix(&root).map_err(|_| refused(path, "the path leads out of the layer"))?;
        Ok(inside.to_owned())
    }

    /// The directory at this path, made with those above it if it is missing.
    pub(crate) fn directory(&mut self, path: &Path) -> Result<Rc<Directory>, UnpackLayerError> {
        if let Some(directory) = self.find(path)? {
            return Ok(directory);
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(self.root.clone());
        };
        let above = self.directory(above)?;
        self.make_directory(&above, name, None)?;
        self.find(path)?.ok_or_else(|| refused(path, "the path leads through a dangling link of this layer"))
    }

    /// Makes a directory, or takes the one that is there; implied unless it comes with attributes.
    pub(crate) fn make_directory(
        &mut self,
        above: &Directory,
        name: &OsStr,
        attributes: Option<Attributes>,
    ) -> Result<(), UnpackLayerError> {
        let path = above.path.join(name);
        let implied = attributes.is_none();
        if above.path.iter().count() >= MAX_DEPTH {
            return Err(refused(&path, "deeper than 256 directories"));
        }
        match rustix::fs::mkdirat(&above.fd, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let stat = rustix::fs::statat(&above.fd, name, AtFlags::SYMLINK_NOFOLLOW);
                let stat = stat.map_err(failed(&path, "read its attributes"))?;
                let is_there = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                if implied && !is_there && !is_whiteout(&stat) {
                    return Err(refused(&path, "it is not a directory, but a later member is below it"));
                }
                if !is_there {
                    self.remove(above, name)?;
                    rustix::fs::mkdirat(&above.fd, name, Mode::from_raw_mode(0o700))
                        .map_err(failed(&path, "make a directory"))?;
                }
            }
            Err(errno) => return Err(failed(&path, "make a directory")(errno)),
        }
        // It replaces what lower layers have there, and is not merged with it.
        if self.removed.contains(&path) {
            self.make_opaque(above, name)?;
        }
        self.remember(path, attributes)
    }

    /// Records the attributes of a directory.
    pub(crate) fn remember(
        &mut self,
        path: PathBuf,
        attributes: Option<Attributes>,
    ) -> Result<(), UnpackLayerError> {
        let implied = attributes.is_none();
        let attributes = attributes.unwrap_or_default();
        if implied && self.directories.contains_key(&path) {
            return Ok(());
        }
        let xattrs: usize = attributes.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.count(path.as_os_str().len() + xattrs + size_of::<Remembered>())?;
        self.directories.insert(path, Remembered { attributes, implied });
        Ok(())
    }

    /// Remembers that a whiteout names this path.
    pub(crate) fn remember_removed(&mut self, path: PathBuf) -> Result<(), UnpackLayerError> {
        self.count(path.as_os_str().len() + size_of::<PathBuf>())?;
        self.removed.insert(path);
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), UnpackLayerError> {
        self.remembered += bytes as u64;
        if self.remembered > MOST_REMEMBERED {
            let (what, limit) = ("bytes of directories' and whiteouts' names", MOST_REMEMBERED);
            return Err(UnpackLayerError::TooMuch { what, limit });
        }
        Ok(())
    }

    /// Marks a directory as opaque: it hides all entries of lower layers.
    pub(crate) fn make_opaque(&mut self, above: &Directory, name: &OsStr) -> Result<(), UnpackLayerError> {
        let path = above.path.join(name);
        let act = "mark it as opaque (needs root)";
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&above.fd, name, flags, Mode::empty()).map_err(failed(&path, act))?;
        set_opaque(&fd, &path)
    }

    /// Removes whatever has this name, with everything below it.
    pub(crate) fn remove(&mut self, above: &Directory, name: &OsStr) -> Result<(), UnpackLayerError> {
        let path = above.path.join(name);
        // Open directories may be reached through it.
        self.open.clear();
        match rustix::fs::unlinkat(&above.fd, name, AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(failed(&path, "replace it")(errno)),
        }
        std::fs::remove_dir_all(entry_path(above, name)).map_err(|source| UnpackLayerError::Write {
            path: shown(&path),
            act: "replace it",
            source,
        })?;
        let gone: Vec<PathBuf> = self
            .directories
            .range(path.clone()..)
            .take_while(|(below, _)| below.starts_with(&path))
            .map(|(below, _)| below.clone())
            .collect();
        for below in gone {
            self.directories.remove(&below);
        }
        Ok(())
    }

    /// Sets the attributes of every directory, the deepest first. Returns those that no member named.
    pub(crate) fn finish(mut self) -> Result<Vec<PathBuf>, UnpackLayerError> {
        let mut implied = Vec::new();
        for (path, remembered) in std::mem::take(&mut self.directories).into_iter().rev() {
            let directory =
                self.find(&path)?.ok_or_else(|| refused(&path, "the directory has disappeared"))?;
            set_attributes(&directory.fd, &path, &remembered.attributes)?;
            if remembered.implied {
                implied.push(path);
            }
        }
        implied.reverse();
        Ok(implied)
    }
}

/// Returns the number of bytes that may be written. In memory it is at most the available memory: a tmpfs
/// would permit more, and processes of the host would have none left.
pub(crate) fn room(fd: impl AsFd) -> Result<u64, Errno> {
    let free = free(&rustix::fs::fstatvfs(&fd)?);
    let is_memory = u64::try_from(rustix::fs::fstatfs(&fd)?.f_type).is_ok_and(|kind| kind == TMPFS_MAGIC);
    Ok(if is_memory {
        free.min(std::fs::read_to_string("/proc/meminfo").map_or(u64::MAX, |text| available(&text)))
    } else {
        free
    })
}

/// Returns the free bytes. A tmpfs without a limit reports no blocks.
fn free(stat: &rustix::fs::StatVfs) -> u64 {
    if stat.f_blocks == 0 { u64::MAX } else { stat.f_bavail.saturating_mul(stat.f_frsize) }
}

/// Returns the bytes of memory that are available without swapping, from `/proc/meminfo`.
fn available(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib =
        line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

/// Marks an open directory as opaque: it hides all entries of lower layers.
pub(crate) fn set_opaque(fd: impl AsFd, path: &Path) -> Result<(), UnpackLayerError> {
    rustix::fs::fsetxattr(fd, OPAQUE, b"y", XattrFlags::empty())
        .map_err(failed(path, "mark it as opaque (needs root)"))
}

/// Returns true if overlayfs interprets it as a whiteout.
pub(crate) fn is_whiteout(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// A name in an open directory, for calls that take no directory.
pub(crate) fn entry_path(above: &Directory, name: &OsStr) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", above.fd.as_raw_fd())).join(name)
}

/// Sets everything of an open file. The owner first: changing it clears setuid and capabilities.
pub(crate) fn set_attributes(
    fd: impl AsFd,
    path: &Path,
    attributes: &Attributes,
) -> Result<(), UnpackLayerError> {
    let (uid, gid) = owner(attributes);
    if (attributes.uid, attributes.gid) != *OWN {
        rustix::fs::fchown(&fd, uid, gid).map_err(failed(path, "set its owner (needs root)"))?;
    }
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(attributes.mode)).map_err(failed(path, "set its mode"))?;
    for (name, value) in &attributes.xattrs {
        let set = rustix::fs::fsetxattr(&fd, name.as_os_str(), value, XattrFlags::empty());
        accept_missing_support(path, name, set)?;
    }
    rustix::fs::futimens(&fd, &attributes.timestamps()).map_err(failed(path, "set its time"))
}

pub(crate) fn owner(attributes: &Attributes) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (Some(rustix::fs::Uid::from_raw(attributes.uid)), Some(rustix::fs::Gid::from_raw(attributes.gid)))
}

/// Before Linux 6.6, tmpfs does not support `user.*`. Attributes that only
/// describe a file are dropped there; a capability or an ACL is not.
pub(crate) fn accept_missing_support(
    path: &Path,
    name: &OsStr,
    set: Result<(), Errno>,
) -> Result<(), UnpackLayerError> {
    match set {
        Err(Errno::OPNOTSUPP) if name.as_encoded_bytes().starts_with(b"user.") => {
            tracing::debug!(path = %shown(path), name = %name.display(), "file system does not support an extended attribute");
            Ok(())
        }
        set => set.map_err(failed(path, "set an extended attribute")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_available_bounds_what_a_tmpfs_promises() {
        let text = "MemTotal:        8000000 kB\nMemFree:          100 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(text), 2 << 20);
        assert_eq!(available("nothing known"), u64::MAX);
        let memory = std::fs::File::open("/dev/shm").or_else(|_| std::fs::File::open("/run")).unwrap();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        // Memory moves while this runs.
        assert!(room(&memory).unwrap() <= available(&meminfo).saturating_mul(2));
    }
}
