//! Files and sockets in a slot's root, which comes from an untrusted image: no link in the root leads out of it.
//!
//! Every path is resolved by the kernel below the root (`openat2(2)`, `RESOLVE_IN_ROOT`), as the node itself would resolve it.
//! Called by `store`, and by `bus`, `cri` and `health_gate` of `node` for sockets.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use tokio::net::UnixStream;

use super::contents::{SlotFile, SlotLink};

/// Maximum number of bytes read from a file.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// Maximum number of bytes that are read of a text.
const MAX_TEXT: u64 = 1 << 20;
/// Permissions of a file that names none.
const DEFAULT_MODE: u32 = 0o644;
/// Permissions of a directory that is made for a file.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// A mounted root.
#[derive(Debug)]
pub(crate) struct Inside {
    root: OwnedFd,
}

/// Error of a write into a slot.
#[derive(Debug, thiserror::Error)]
pub enum WriteInsideError {
    /// The file system refused.
    #[error("cannot {act} {path} in the slot")]
    Act {
        /// Attempted act.
        act: &'static str,
        /// Path in the slot.
        path: String,
        /// Cause.
        source: io::Error,
    },
    /// A name that the slot does not know.
    #[error(
        "{path} must belong to {owner}, but the node image has no such {kind}; add it to the image, or \
         correct the MachineConfiguration"
    )]
    Owner {
        /// Path of the file.
        path: String,
        /// The owner as it was written.
        owner: String,
        /// `user` or `group`.
        kind: &'static str,
    },
}

fn failed(act: &'static str, path: &str) -> impl FnOnce(rustix::io::Errno) -> WriteInsideError {
    let path = path.to_owned();
    move |errno| WriteInsideError::Act { act, path, source: errno.into() }
}

impl Inside {
    /// The root at `path`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(path: &Path) -> Result<Self, WriteInsideError> {
        let shown = path.display().to_string();
        Self::open_root(path).map_err(|source| WriteInsideError::Act { act: "open", path: shown, source })
    }

    /// Opens the root at `path`. Returns the kernel's own error.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open_root(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Returns true if this is the directory at `path`.
    ///
    /// # Errors
    /// One of them cannot be looked up.
    pub(crate) fn is(&self, path: &Path) -> io::Result<bool> {
        let (own, other) = (rustix::fs::fstat(&self.root)?, rustix::fs::stat(path)?);
        Ok((own.st_dev, own.st_ino) == (other.st_dev, other.st_ino))
    }

    /// Connects to the Unix socket at `path`. A link in the slot leads to a socket of the slot or nowhere: an absolute link behind
    /// `/proc/<pid>/root` would otherwise lead to the socket of that name on the host.
    ///
    /// # Errors
    /// There is no socket, or no server listens on it.
    pub(crate) async fn connect(&self, path: &str) -> io::Result<UnixStream> {
        let socket = self.at(path, OFlags::PATH, 0)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{path} in the slot is not a socket"),
            ));
        }
        // The number names this very file as long as `socket` is open.
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
    }

    fn at(&self, path: &str, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
        let relative = path.trim_start_matches('/');
        let relative = if relative.is_empty() { "." } else { relative };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, relative, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), resolve)
    }

    /// Opens the directory of `path`, and creates it and its parents if they
    /// are missing. Returns it with the last name of `path`.
    fn parent<'p>(&self, path: &'p str) -> Result<(OwnedFd, &'p str), WriteInsideError> {
        let (above, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
        if name.is_empty() || name == "." || name == ".." {
            return Err(failed("write", path)(rustix::io::Errno::INVAL));
        }
        let mut directory = String::from("/");
        for part in above.split('/').filter(|part| !part.is_empty()) {
            let inner = PathBuf::from(&directory).join(part).to_string_lossy().into_owned();
            match self.at(&inner, OFlags::PATH | OFlags::DIRECTORY, 0) {
                Ok(_) => {}
                Err(rustix::io::Errno::NOENT) => {
                    let outer = self.at(&directory, OFlags::PATH | OFlags::DIRECTORY, 0);
                    let outer = outer.map_err(failed("open", &directory))?;
                    rustix::fs::mkdirat(&outer, part, DIRECTORY_MODE).map_err(failed("make", &inner))?;
                    open_to_all(&outer, part).map_err(failed("make", &inner))?;
                }
                Err(errno) => return Err(failed("open", &inner)(errno)),
            }
            directory = inner;
        }
        let parent = self.at(&directory, OFlags::PATH | OFlags::DIRECTORY, 0);
        Ok((parent.map_err(failed("open", &directory))?, name))
    }

    /// Writes a file with its owner and permissions. A file that is appended to keeps
    /// its own where the new part has the defaults. An entry of this name that is not a
    /// regular file is replaced, so that no write follows a link or reaches a device.
    ///
    /// # Errors
    /// The owner is not known in the slot, or the file system refuses.
    pub(crate) fn write(&self, file: &SlotFile) -> Result<(), WriteInsideError> {
        self.write_as(file, self)
    }

    /// Writes a file with owners as the root `users` knows them. This root may
    /// be a directory that is bound over `users`.
    ///
    /// # Errors
    /// The owner is not known there, or the file system refuses.
    pub(crate) fn write_as(&self, file: &SlotFile, users: &Self) -> Result<(), WriteInsideError> {
        let mut owner = users.owner(file)?;
        let mut mode = file.mode;
        let io = |act| {
            let path = file.path.clone();
            move |source: io::Error| WriteInsideError::Act { act, path, source }
        };
        let mut before = Vec::new();
        if file.append
            && let Some(there) = self.open_file(&file.path)?
        {
            let metadata = there.metadata().map_err(io("read"))?;
            // An appended line must not open the file to others.
            if owner == (0, 0) {
                owner = (metadata.uid(), metadata.gid());
            }
            if mode == DEFAULT_MODE {
                mode = metadata.mode() & 0o7777;
            }
            before = content(there, &file.path)?;
        }
        let (parent, name) = self.parent(&file.path)?;
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(failed("replace", &file.path)(errno)),
        }
        // Readable by root only until it is complete and has its owner.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o600));
        let mut written = File::from(opened.map_err(failed("make", &file.path))?);
        written.write_all(&before).and_then(|()| written.write_all(&file.content)).map_err(io("write"))?;
        let (user, group) = owner;
        std::os::unix::fs::fchown(&written, Some(user), Some(group)).map_err(io("change the owner of"))?;
        // After the owner: a change of owner takes set-user-id away.
        rustix::fs::fchmod(&written, Mode::from_raw_mode(mode))
            .map_err(failed("change the permissions of", &file.path))?;
        Ok(())
    }

    /// Writes a file so that it has its former content or this one, complete and on disk, after a kill or a power cut. `append` is ignored.
    ///
    /// # Errors
    /// The owner is not known in the slot, or the file system refuses.
    pub(crate) fn write_atomic(&self, file: &SlotFile) -> Result<(), WriteInsideError> {
        let temporary = SlotFile { path: format!("{}.new", file.path), append: false, ..file.clone() };
        self.write(&temporary)?;
        self.flush(&temporary.path)?;
        let (parent, name) = self.parent(&file.path)?;
        let renamed = rustix::fs::renameat(&parent, format!("{name}.new"), &parent, name);
        renamed.map_err(failed("replace", &file.path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&parent, ".", flags, Mode::empty());
        directory.and_then(rustix::fs::fsync).map_err(failed("write", &file.path))
    }

    /// Waits until a regular file's content is on disk. An absent file is not an error.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn flush(&self, path: &str) -> Result<(), WriteInsideError> {
        let Some(file) = self.open_file(path)? else { return Ok(()) };
        file.sync_all().map_err(|source| WriteInsideError::Act {
            act: "write",
            path: path.to_owned(),
            source,
        })
    }

    /// Makes a symbolic link. An existing entry of its name is replaced.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn link(&self, link: &SlotLink) -> Result<(), WriteInsideError> {
        let (parent, name) = self.parent(&link.path)?;
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(failed("replace", &link.path)(errno)),
        }
        rustix::fs::symlinkat(&link.target, &parent, name).map_err(failed("make", &link.path))
    }

    /// Removes a file or a link. A missing one is not an error.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn remove(&self, path: &str) -> Result<(), WriteInsideError> {
        let (parent, name) = self.parent(path)?;
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("remove", path)(errno)),
        }
    }

    /// A regular file's content, none if there is no such file.
    ///
    /// # Errors
    /// It cannot be read, or has more than 8 MiB.
    pub(crate) fn read(&self, path: &str) -> Result<Option<Vec<u8>>, WriteInsideError> {
        self.open_file(path)?.map(|file| content(file, path)).transpose()
    }

    /// Returns the last component of a link's target. None: there is no such link.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let link = self.at(path, OFlags::PATH | OFlags::NOFOLLOW, 0).ok()?;
        let target = rustix::fs::readlinkat(&link, "", Vec::new()).ok()?.into_string().ok()?;
        target.rsplit('/').next().filter(|name| !matches!(*name, "" | "." | "..")).map(str::to_owned)
    }

    /// Opens a regular file for reading, none if there is no such file. A device or a FIFO is not waited for.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open_file(&self, path: &str) -> Result<Option<File>, WriteInsideError> {
        let Some(file) = self.open_any(path).map_err(failed("open", path))? else { return Ok(None) };
        let io = |source| WriteInsideError::Act { act: "read", path: path.to_owned(), source };
        Ok(file.metadata().map_err(io)?.is_file().then_some(file))
    }

    /// Reads the text of a regular file. Returns `None` if there is no such file. A FIFO or a device, which a Pod may have put there, is an
    /// error and is not waited for.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file.
    pub(crate) fn read_text(&self, path: &str) -> io::Result<Option<String>> {
        let Some(file) = self.open_any(path)? else { return Ok(None) };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut text = String::new();
        file.take(MAX_TEXT).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    /// Opens a file of any type for reading, without waiting for another process.
    fn open_any(&self, path: &str) -> rustix::io::Result<Option<File>> {
        match self.at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, 0) {
            Err(rustix::io::Errno::NOENT) => Ok(None),
            opened => opened.map(|file| Some(File::from(file))),
        }
    }

    /// The numbers of a file's owner, by the slot's own `/etc/passwd` and `/etc/group`.
    fn owner(&self, file: &SlotFile) -> Result<(u32, u32), WriteInsideError> {
        let (user, group) = file.owner.split_once(':').unwrap_or((&file.owner, "root"));
        let number = |name: &str, list: &str, kind| {
            if let Ok(number) = name.parse() {
                return Ok(number);
            }
            if name == "root" {
                return Ok(0);
            }
            let text = self.read(list)?.unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let found = text.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
            });
            found.ok_or_else(|| WriteInsideError::Owner {
                path: file.path.clone(),
                owner: file.owner.clone(),
                kind,
            })
        };
        Ok((number(user, "/etc/passwd", "user")?, number(group, "/etc/group", "group")?))
    }
}

/// Opens a new directory to the slot's users, which the agent's own umask keeps out. Root in a slot that runs may have replaced the
/// directory by a link since: no link is followed.
fn open_to_all(outer: &OwnedFd, part: &str) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let made = rustix::fs::openat2(outer, part, flags, Mode::empty(), resolve)?;
    rustix::fs::fchmod(&made, DIRECTORY_MODE)
}

/// Reads the complete content of a file.
fn content(file: File, path: &str) -> Result<Vec<u8>, WriteInsideError> {
    let mut content = Vec::new();
    let io = |source: io::Error| WriteInsideError::Act { act: "read", path: path.to_owned(), source };
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content).map_err(io)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        let problem = format!("the file has more than {MAX_FILE_BYTES} bytes");
        return Err(io(io::Error::new(io::ErrorKind::FileTooLarge, problem)));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::slot::contents::text;

    fn root() -> (tempfile::TempDir, Inside) {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("root");
        std::fs::create_dir_all(inside.join("usr/lib")).unwrap();
        std::fs::create_dir_all(inside.join("etc")).unwrap();
        std::fs::write(inside.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nkube:x:64:65::/:/bin/false\n")
            .unwrap();
        std::fs::write(inside.join("etc/group"), "root:x:0:\nkube:x:65:\n").unwrap();
        symlink("usr/lib", inside.join("lib")).unwrap();
        let opened = Inside::open(&inside).unwrap();
        (directory, opened)
    }

    #[test]
    fn a_link_of_the_image_is_followed_inside_and_never_out() {
        let (directory, inside) = root();
        let outside = directory.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        symlink(&outside, directory.path().join("root/out")).unwrap();
        symlink("../../../../outside", directory.path().join("root/up")).unwrap();
        symlink(outside.join("file"), directory.path().join("root/etc/file")).unwrap();
        inside.write(&text("/lib/systemd/x", 0o644, "x")).unwrap();
        assert!(directory.path().join("root/usr/lib/systemd/x").exists());
        for path in ["/out/file", "/up/file"] {
            // The link leads to a directory that is not there inside.
            assert!(inside.write(&text(path, 0o644, "x")).is_err(), "{path}");
        }
        inside.write(&text("/etc/file", 0o644, "x")).unwrap();
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        assert!(directory.path().join("root/etc/file").symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn paths_without_a_name_or_with_dots_are_refused() {
        let (_directory, inside) = root();
        for path in ["/", "/etc/", "/etc/..", "/."] {
            if path == "/etc/" {
                continue;
            }
            assert!(inside.write(&text(path, 0o644, "x")).is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_has_its_owner_and_permissions_and_is_added_to() {
        let (directory, inside) = root();
        let mut file = text("/etc/deep/er/file", 0o4750, "one");
        file.owner = "kube:kube".to_owned();
        inside.write(&file).unwrap();
        file.append = true;
        inside.write(&file).unwrap();
        let path = directory.path().join("root/etc/deep/er/file");
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.permissions().mode() & 0o7777),
            (64, 65, 0o4750)
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"oneone");
        file.owner = "nobody-here:kube".to_owned();
        let error = inside.write(&file).unwrap_err().to_string();
        assert!(error.contains("no such user"), "{error}");
    }

    #[test]
    fn appended_file_keeps_its_owner_and_mode_unless_others_are_named() {
        let (directory, inside) = root();
        let path = directory.path().join("root/etc/shadow");
        std::fs::write(&path, "root:*\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(&path, Some(64), Some(65)).unwrap();
        let mut file = text("/etc/shadow", 0o644, "kube:*\n");
        file.append = true;
        let is = |owner: (u32, u32), mode: u32| {
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(((metadata.uid(), metadata.gid()), metadata.mode() & 0o7777), (owner, mode));
        };
        inside.write(&file).unwrap();
        is((64, 65), 0o640);
        file.mode = 0o600;
        inside.write(&file).unwrap();
        is((64, 65), 0o600);
        (file.mode, file.owner) = (0o644, "0:kube".to_owned());
        inside.write(&file).unwrap();
        is((0, 65), 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), b"root:*\nkube:*\nkube:*\nkube:*\n");
        let mut new = text("/etc/new", 0o644, "x");
        new.append = true;
        inside.write(&new).unwrap();
        assert_eq!(std::fs::metadata(directory.path().join("root/etc/new")).unwrap().mode() & 0o7777, 0o644);
    }

    #[test]
    fn append_keeps_the_complete_file_or_changes_nothing() {
        let (directory, inside) = root();
        let path = directory.path().join("root/etc/ca.crt");
        std::fs::write(&path, vec![b'x'; 3 << 20]).unwrap();
        let mut file = text("/etc/ca.crt", 0o644, "one more");
        file.append = true;
        inside.write(&file).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), (3 << 20) + 8);
        std::fs::write(&path, vec![b'x'; 9 << 20]).unwrap();
        assert!(inside.write(&file).is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 9 << 20);
    }

    #[tokio::test]
    async fn socket_behind_a_link_is_one_of_the_slot_or_none() {
        let (directory, inside) = root();
        let outside = directory.path().join("host.sock");
        let host = tokio::net::UnixListener::bind(&outside).unwrap();
        let run = directory.path().join("root/run");
        std::fs::create_dir(&run).unwrap();
        symlink(&outside, run.join("absolute.sock")).unwrap();
        symlink("../../../../host.sock", run.join("relative.sock")).unwrap();
        symlink(directory.path(), run.join("directory")).unwrap();
        symlink("/proc/self/root", run.join("magic")).unwrap();
        let magic = format!("/run/magic{}", outside.display());
        for path in ["/run/absolute.sock", "/run/relative.sock", "/run/directory/host.sock", &magic] {
            assert!(inside.connect(path).await.is_err(), "{path}");
        }
        let reached = tokio::time::timeout(std::time::Duration::from_millis(50), host.accept()).await;
        assert!(reached.is_err(), "a socket of the host was reached");
        std::fs::write(run.join("file.sock"), "x").unwrap();
        let error = inside.connect("/run/file.sock").await.unwrap_err();
        assert!(error.to_string().contains("is not a socket"), "{error}");
        let missing = inside.connect("/run/none.sock").await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);

        let own = tokio::net::UnixListener::bind(run.join("own.sock")).unwrap();
        symlink("/run/own.sock", run.join("link.sock")).unwrap();
        for path in ["/run/own.sock", "run/link.sock"] {
            let (connected, accepted) = tokio::join!(inside.connect(path), own.accept());
            assert!(connected.is_ok() && accepted.is_ok(), "{path}");
        }
    }

    #[test]
    fn new_directory_replaced_by_a_link_leaves_its_target_as_it_is() {
        let (directory, inside) = root();
        let outside = directory.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o700)).unwrap();
        let etc = inside.at("/etc", OFlags::PATH | OFlags::DIRECTORY, 0).unwrap();
        for target in [outside.as_path(), Path::new("../../outside"), Path::new("/usr")] {
            symlink(target, directory.path().join("root/etc/new")).unwrap();
            assert!(open_to_all(&etc, "new").is_err(), "{}", target.display());
            std::fs::remove_file(directory.path().join("root/etc/new")).unwrap();
        }
        assert_eq!(std::fs::metadata(&outside).unwrap().permissions().mode() & 0o7777, 0o700);
        let new = directory.path().join("root/etc/new");
        std::fs::create_dir(&new).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o700)).unwrap();
        open_to_all(&etc, "new").unwrap();
        assert_eq!(std::fs::metadata(&new).unwrap().permissions().mode() & 0o7777, 0o755);
    }

    #[test]
    fn text_behind_a_link_is_one_of_the_slot_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("var/pki")).unwrap();
        std::fs::write(root.join("var/pki/client-1.pem"), "inside").unwrap();
        symlink("/var/pki/client-1.pem", root.join("var/pki/current.pem")).unwrap();
        symlink("../../../../etc/hostname", root.join("up")).unwrap();
        let inside = Inside::open(root).unwrap();
        assert_eq!(inside.read_text("/var/pki/current.pem").unwrap().as_deref(), Some("inside"));
        assert_eq!(inside.read_text("up").unwrap(), None);
        assert_eq!(inside.read_text("/nothing").unwrap(), None);
    }

    #[test]
    fn fifo_in_a_slot_is_not_waited_for() {
        let (directory, inside) = root();
        let path = directory.path().join("root/kubelet.conf");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
        let (tell, read) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(inside.read_text("/kubelet.conf")).unwrap());
        let read = read.recv_timeout(std::time::Duration::from_secs(20)).expect("it is not waited for");
        assert!(read.unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn fifo_of_the_image_does_not_block_the_writer() {
        let (directory, inside) = root();
        let fifo = directory.path().join("root/etc/fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert_eq!(inside.read("/etc/fifo").unwrap(), None);
        let mut file = text("/etc/fifo", 0o644, "x");
        file.append = true;
        inside.write(&file).unwrap();
        assert_eq!(inside.read("/etc/fifo").unwrap().unwrap(), b"x");
    }
}
