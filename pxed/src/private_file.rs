//! Reader of secret files: below one directory, owned by root or pxed's own user, not readable by others, of limited
//! length.
//!
//! The content is zeroized when it is dropped; messages contain none of it. The kernel refuses links that lead out of
//! the directory. Called by `standalone::bmc_secrets` and `standalone::node_secrets`, on threads that may block.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use zeroize::Zeroizing;

/// Content of a file.
pub(crate) struct Private {
    /// Content of the file.
    pub(crate) bytes: Zeroizing<Vec<u8>>,
    /// Tells this content from another, as far as the file system does.
    pub(crate) stamp: String,
}

/// Reason why a file was not read, for users; contains none of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// There is none.
    Missing(String),
    /// The file exists, and cannot or must not be read.
    Unusable(String),
}

impl Problem {
    /// The words.
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::Missing(text) | Self::Unusable(text) => text,
        }
    }
}

/// Returns true if `name` is a single path component that stays in the directory.
pub(crate) fn is_step(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

/// Reads `below` in `directory`: at most `most` bytes, and one more where there are more.
pub(crate) fn read(directory: &Path, below: &Path, most: usize) -> Result<Private, Problem> {
    let path = directory.join(below);
    let shown = path.display();
    let unusable = |text: String| Err(Problem::Unusable(text));
    let file = match open(directory, below) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => {
            let why = std::io::Error::from(rustix::io::Errno::NOENT);
            return Err(Problem::Missing(format!("{shown} cannot be opened: {why}")));
        }
        Err(rustix::io::Errno::XDEV) => {
            return unusable(format!(
                "{shown} is a link that leads out of {}; copy the file",
                directory.display()
            ));
        }
        Err(error) => return unusable(format!("{shown} cannot be opened: {error}")),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return unusable(format!("{shown} cannot be examined: {error}")),
    };
    if !metadata.is_file() {
        return unusable(format!("{shown} is not a regular file"));
    }
    let (owner, own) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != 0 && owner != own {
        return unusable(format!(
            "{shown} belongs to user {owner}; change its owner to root or to pxed's own user"
        ));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & !0o600 != 0 {
        return unusable(format!("{shown} has mode {mode:04o}; change it to 0600 (chmod 600)"));
    }
    // Never more room than was asked for at first: to grow is to move, which leaves a copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(most.saturating_add(1)));
    if let Err(error) = file.take((most as u64).saturating_add(1)).read_to_end(&mut bytes) {
        return unusable(format!("{shown} cannot be read: {error}"));
    }
    let stamp = format!(
        "{}.{}.{}.{}.{}",
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime_nsec()
    );
    Ok(Private { bytes, stamp })
}

fn open(directory: &Path, below: &Path) -> Result<File, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = openat(CWD, directory, flags | OFlags::DIRECTORY, Mode::empty())?;
    // Not blocking: a pipe would hold the thread for ever.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&directory, below, flags | OFlags::NONBLOCK, Mode::empty(), resolve).map(File::from)
}
