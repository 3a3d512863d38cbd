//! Unpacks one layer: the members of its archive become a directory that overlayfs uses as a lower one.
//!
//! The order of whiteouts does not matter: removed entries are known by name, so a whiteout may precede or
//! follow the layer's own entry. Of several members with one name, the last counts.
//!
//! Not here: the source of the bytes (`stream`), paths (`place`). Caller: `stream`.

use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::archive::{Archive, Member};
use super::error::UnpackLayerError;
use super::place::{self, Attributes, Directory, Place, failed, refused};
use super::tar::{Kind, clean};

/// Marks what lower layers have under the name that follows as removed (OCI image specification, "Whiteouts").
const WHITEOUT: &[u8] = b".wh.";
/// Marks everything that lower layers have in this directory as removed.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Number of written bytes between two checks of the free space.
const LOOK_EVERY: u64 = 16 << 20;
/// Estimated bytes of a member in addition to its content: inode and directory entry.
const MEMBER_OVERHEAD_BYTES: u64 = 1024;

/// Limits of one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Members.
    pub(crate) members: u64,
    /// Bytes that stay free on the file system.
    pub(crate) reserve: u64,
}

/// Result of unpacking a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// Members.
    pub(crate) members: u64,
    /// Bytes of content.
    pub(crate) bytes: u64,
    /// Directories that no member named, from the layer's root.
    pub(crate) implied: Vec<PathBuf>,
    /// True if it hides everything below it.
    pub(crate) opaque_root: bool,
}

struct Unpacker {
    place: Place,
    bounds: Bounds,
    opaque_root: bool,
    members: u64,
    bytes: u64,
    /// Bytes written since the last check of the free space.
    unlooked: u64,
}

/// Unpacks an archive into an empty directory, reads its source to the end, and returns the source.
pub(crate) fn unpack<R: BufRead>(
    source: R,
    into: OwnedFd,
    bounds: Bounds,
) -> Result<(Unpacked, R), UnpackLayerError> {
    let mut archive = Archive::new(source);
    let mut unpacker =
        Unpacker { place: Place::new(into), bounds, opaque_root: false, members: 0, bytes: 0, unlooked: 0 };
    let unpacked = unpacker.members(&mut archive);
    // A full file system has no space to report.
    let source = unpacked.and_then(|()| Ok(archive.finish()?)).map_err(|error| match error {
        UnpackLayerError::NoRoom { .. } => {
            UnpackLayerError::NoRoom { free: unpacker.free().unwrap_or_default() }
        }
        error => error,
    })?;
    let Unpacker { place, members, bytes, opaque_root, .. } = unpacker;
    Ok((Unpacked { members, bytes, implied: place.finish()?, opaque_root }, source))
}

impl Unpacker {
    fn members<R: BufRead>(&mut self, archive: &mut Archive<R>) -> Result<(), UnpackLayerError> {
        while let Some(member) = archive.next_member()? {
            self.members += 1;
            if self.members > self.bounds.members {
                let (what, limit) = ("files", self.bounds.members);
                return Err(UnpackLayerError::TooMuch { what, limit });
            }
            self.write_down(MEMBER_OVERHEAD_BYTES)?;
            self.member(&member, archive)?;
        }
        Ok(())
    }

    fn member<R: BufRead>(
        &mut self,
        member: &Member,
        archive: &mut Archive<R>,
    ) -> Result<(), UnpackLayerError> {
        let path = member.path.as_path();
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return self.root(member);
        };
        if above.iter().any(|part| part.as_bytes().starts_with(WHITEOUT)) {
            return Err(refused(path, "names that start with .wh. are reserved for whiteouts"));
        }
        let above = self.place.directory(above)?;
        if name.as_bytes().starts_with(WHITEOUT) {
            return self.whiteout(&above, name, member);
        }
        let attributes = attributes(member)?;
        match member.kind {
            Kind::File => self.file(&above, name, &attributes, archive),
            Kind::Directory => self.place.make_directory(&above, name, Some(attributes)),
            Kind::HardLink => self.hard_link(&above, name, &member.link),
            Kind::Symlink => {
                let target = OsStr::from_bytes(&member.link);
                self.make(&above, name, "make a symbolic link", |above| {
                    rustix::fs::symlinkat(target, &above.fd, name)
                })?;
                describe(&above, name, &attributes, true)
            }
            Kind::CharacterDevice | Kind::BlockDevice | Kind::Fifo => {
                self.node(&above, name, member, &attributes)
            }
        }
    }

    /// The layer's own directory.
    fn root(&mut self, member: &Member) -> Result<(), UnpackLayerError> {
        if member.kind != Kind::Directory {
            return Err(refused(&member.path, "the root of a layer can only be a directory"));
        }
        self.place.remember(PathBuf::new(), Some(attributes(member)?))
    }

    fn whiteout(
        &mut self,
        above: &Rc<Directory>,
        name: &OsStr,
        member: &Member,
    ) -> Result<(), UnpackLayerError> {
        // Docker's old layers have whiteouts that are hard links.
        if !matches!(member.kind, Kind::File | Kind::HardLink) {
            return Err(refused(&member.path, "a whiteout can only be a file"));
        }
        if name.as_bytes() == OPAQUE {
            self.opaque_root |= above.path.as_os_str().is_empty();
            return place::set_opaque(&above.fd, &above.path);
        }
        let hidden = name.as_bytes().get(WHITEOUT.len()..).unwrap_or_default();
        if hidden.starts_with(WHITEOUT) || matches!(hidden, b"" | b"." | b"..") {
            return Err(refused(&member.path, "a whiteout without a name"));
        }
        let hidden = OsStr::from_bytes(hidden);
        self.place.remember_removed(above.path.join(hidden))?;
        match rustix::fs::statat(&above.fd, hidden, AtFlags::SYMLINK_NOFOLLOW) {
            // An entry of this layer replaces one of a lower layer; only directories would be merged.
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                self.place.make_opaque(above, hidden)
            }
            Ok(_) => Ok(()),
            Err(Errno::NOENT) => {
                rustix::fs::mknodat(&above.fd, hidden, FileType::CharacterDevice, Mode::empty(), 0)
                    .map_err(failed(&member.path, "make a whiteout (needs root)"))
            }
            Err(errno) => Err(failed(&member.path, "read its attributes")(errno)),
        }
    }

    fn file<R: BufRead>(
        &mut self,
        above: &Directory,
        name: &OsStr,
        attributes: &Attributes,
        archive: &mut Archive<R>,
    ) -> Result<(), UnpackLayerError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let fd =
            self.make(above, name, "make a file", |above| rustix::fs::openat(&above.fd, name, flags, mode))?;
        let path = above.path.join(name);
        loop {
            let bytes = archive.content()?;
            if bytes.is_empty() {
                break;
            }
            let written = match rustix::io::write(&fd, bytes) {
                Err(Errno::INTR) => 0,
                written => written.map_err(failed(&path, "write it"))?,
            };
            archive.consume(written);
            self.bytes += written as u64;
            self.write_down(written as u64)?;
        }
        place::set_attributes(&fd, &path, attributes)
    }

    fn hard_link(&mut self, above: &Directory, name: &OsStr, link: &[u8]) -> Result<(), UnpackLayerError> {
        let path = above.path.join(name);
        let target = clean(link).map_err(|problem| refused(&path, format!("a hard link: {problem}")))?;
        let missing = || refused(&path, "a hard link whose target is not earlier in this layer");
        let (Some(target_above), Some(target_name)) = (target.parent(), target.file_name()) else {
            return Err(refused(&path, "a hard link to a directory"));
        };
        let target_above = self.place.find(target_above)?.ok_or_else(missing)?;
        if target_above.path.join(target_name) == path {
            return Err(refused(&path, "a hard link to itself"));
        }
        let stat = match rustix::fs::statat(&target_above.fd, target_name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(missing()),
            stat => stat.map_err(failed(&path, "read its target"))?,
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(refused(&path, "a hard link to a directory"));
        }
        if place::is_whiteout(&stat) {
            return Err(missing());
        }
        self.make(above, name, "make a hard link", |above| {
            // Without AT_SYMLINK_FOLLOW: a link to a symbolic link is one to that, not to where it leads.
            rustix::fs::linkat(&target_above.fd, target_name, &above.fd, name, AtFlags::empty())
        })
    }

    fn node(
        &mut self,
        above: &Directory,
        name: &OsStr,
        member: &Member,
        attributes: &Attributes,
    ) -> Result<(), UnpackLayerError> {
        let (major, minor) = member.device;
        let kind = match member.kind {
            Kind::CharacterDevice if (major, minor) == (0, 0) => {
                return Err(refused(&member.path, "a device 0:0, which overlayfs treats as a whiteout"));
            }
            Kind::CharacterDevice => FileType::CharacterDevice,
            Kind::BlockDevice => FileType::BlockDevice,
            _ => FileType::Fifo,
        };
        let device = rustix::fs::makedev(major, minor);
        self.make(above, name, "make a device (needs root)", |above| {
            rustix::fs::mknodat(&above.fd, name, kind, Mode::from_raw_mode(0o600), device)
        })?;
        describe(above, name, attributes, false)
    }

    /// Makes an entry. An existing one of its name is removed.
    fn make<T>(
        &mut self,
        above: &Directory,
        name: &OsStr,
        act: &'static str,
        make: impl Fn(&Directory) -> Result<T, Errno>,
    ) -> Result<T, UnpackLayerError> {
        match make(above) {
            Err(Errno::EXIST) => {
                self.place.remove(above, name)?;
                make(above)
            }
            made => made,
        }
        .map_err(failed(&above.path.join(name), act))
    }

    /// Checks the free space at intervals: a machine with full memory or disk is worse than a missing image.
    fn write_down(&mut self, bytes: u64) -> Result<(), UnpackLayerError> {
        self.unlooked += bytes;
        if self.unlooked < LOOK_EVERY {
            return Ok(());
        }
        self.unlooked = 0;
        let free = self.free().map_err(failed(Path::new(""), "read the free space"))?;
        if free < self.bounds.reserve { Err(UnpackLayerError::NoRoom { free }) } else { Ok(()) }
    }

    fn free(&self) -> Result<u64, Errno> {
        place::room(&self.place.root().fd)
    }
}

/// Sets the attributes of an entry that cannot be opened.
fn describe(
    above: &Directory,
    name: &OsStr,
    attributes: &Attributes,
    is_link: bool,
) -> Result<(), UnpackLayerError> {
    let path = above.path.join(name);
    let (uid, gid) = place::owner(attributes);
    rustix::fs::chownat(&above.fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(failed(&path, "set its owner (needs root)"))?;
    if !is_link {
        // Follows links, but this entry is not a link: no other process writes here.
        rustix::fs::chmodat(&above.fd, name, Mode::from_raw_mode(attributes.mode), AtFlags::empty())
            .map_err(failed(&path, "set its mode"))?;
    }
    for (attribute, value) in &attributes.xattrs {
        let at = place::entry_path(above, name);
        let set = rustix::fs::lsetxattr(at, attribute.as_os_str(), value, XattrFlags::empty());
        place::accept_missing_support(&path, attribute, set)?;
    }
    rustix::fs::utimensat(&above.fd, name, &attributes.timestamps(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(failed(&path, "set its time"))
}

/// A member's attributes, its extended ones reduced to those that are kept.
fn attributes(member: &Member) -> Result<Attributes, UnpackLayerError> {
    let mut xattrs = Vec::new();
    for (name, value) in &member.xattrs {
        if name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.") {
            return Err(refused(&member.path, "an attribute that controls overlayfs"));
        }
        // Labels of other security modules are those of the machine that the image was built on.
        let kept: &[Kind] = match name.as_slice() {
            b"security.capability" => &[Kind::File],
            b"system.posix_acl_access" | b"system.posix_acl_default" => &[Kind::File, Kind::Directory],
            // Linux takes them on files and directories only.
            name if name.starts_with(b"user.") => &[Kind::File, Kind::Directory],
            _ => &[],
        };
        if kept.contains(&member.kind) {
            xattrs.push((OsString::from_vec(name.clone()), value.clone()));
        }
    }
    let Member { mode, uid, gid, mtime, .. } = *member;
    Ok(Attributes { mode, uid, gid, mtime, xattrs })
}
