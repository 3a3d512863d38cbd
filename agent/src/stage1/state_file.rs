//! Reads small files of a state disk. A former tenant of the host may have written the disk. So only regular files are read, and no link is
//! followed.
//!
//! Called by `state_disk`.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use serde::de::DeserializeOwned;

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a regular file. None: it does not exist.
///
/// # Errors
/// It is not a regular file, is too large, or cannot be read.
pub(super) fn read_regular(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A pipe without a writer would block.
    let opened = fs::OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    let mut content = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut content)?;
    if read as u64 > MAX_BYTES { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(Some(content)) }
}

/// Reads a regular file with JSON. None: it does not exist.
///
/// # Errors
/// As for [`read_regular`], or the content is invalid.
pub(super) fn read_regular_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let parsed = read_regular(path)?.map(|bytes| serde_json::from_slice(&bytes)).transpose();
    parsed.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn d7_pipe_link_or_directory_in_place_of_a_request_is_ignored() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        assert_eq!(read_regular(&path("absent")).unwrap(), None);
        fs::write(path("file"), "{}").unwrap();
        assert_eq!(read_regular(&path("file")).unwrap().as_deref(), Some(&b"{}"[..]));
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        fs::create_dir(path("directory")).unwrap();
        mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        fs::File::create(path("large")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for name in ["link", "directory", "pipe", "large"] {
            assert!(read_regular(&path(name)).is_err(), "{name}");
        }
        fs::write(path("text"), "text").unwrap();
        assert!(read_regular_json::<serde_json::Value>(&path("text")).is_err());
    }
}
