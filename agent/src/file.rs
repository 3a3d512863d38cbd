//! Files that are whole or not there, however the host dies.
//!
//! Only regular files in directories of our own. Called by the agent's state and by stage-1.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Writes `content` to `path` with `mode`: to a neighbour first, flushed, then renamed over, then the directory flushed.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write_flushed(path, content, mode, File::sync_all)
}

/// Implements [`write_atomic`]; calls `flush` for each of the two flushes.
fn write_flushed(
    path: &Path,
    content: &[u8],
    mode: u32,
    flush: impl Fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(".new");
    let neighbour = directory.join(name);
    match fs::remove_file(&neighbour) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&neighbour)?;
    // The agent's own umask would close it to those whom it is for: networkd is a user of its own.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    flush(&file)?;
    fs::rename(&neighbour, path)?;
    flush(&File::open(directory)?)
}

/// Flushes a directory, so that the names in it survive a power cut.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A file's content, `None` if there is no such file. At most 1 MiB.
pub fn read_optional(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, 1 << 20), &mut content)?;
    Ok(Some(content))
}

/// Removes a file; that it is gone already is as good.
pub fn remove_optional(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn content_is_flushed_before_its_rename_and_the_directory_after() {
        let directory = tempfile::tempdir().unwrap();
        let (path, neighbor) = (directory.path().join("state"), directory.path().join("state.new"));
        let is = |file: &File, path: &Path| {
            fs::metadata(path).is_ok_and(|found| found.ino() == file.metadata().unwrap().ino())
        };
        write_atomic(&path, b"old", 0o600).unwrap();
        let flushed = RefCell::new(Vec::new());
        let flush = |file: &File| {
            let content = (fs::read(&neighbor).ok(), fs::read(&path).unwrap());
            flushed.borrow_mut().push((is(file, &neighbor), is(file, directory.path()), content));
            Ok(())
        };
        write_flushed(&path, b"new", 0o600, flush).unwrap();
        let before = (true, false, (Some(b"new".to_vec()), b"old".to_vec()));
        let after = (false, true, (None, b"new".to_vec()));
        assert_eq!(*flushed.borrow(), [before, after]);
    }

    #[test]
    fn write_fails_if_either_flush_fails() {
        for (fails, left) in [(0, "old"), (1, "new")] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state");
            write_atomic(&path, b"old", 0o600).unwrap();
            let flushes = std::cell::Cell::new(0);
            let flush = |_: &File| match flushes.replace(flushes.get() + 1) {
                number if number == fails => Err(io::Error::other("the disk is broken")),
                _ => Ok(()),
            };
            assert!(write_flushed(&path, b"new", 0o600, flush).is_err(), "{fails}");
            assert_eq!(fs::read_to_string(&path).unwrap(), left, "{fails}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_with_its_mode_and_a_left_over_neighbour_does_no_harm() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        fs::write(directory.path().join("key.pem.new"), "half").unwrap();
        write_atomic(&path, b"one", 0o600).unwrap();
        write_atomic(&path, b"two", 0o600).unwrap();
        assert_eq!(read_optional(&path).unwrap().unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(crate::hardware::names_in(directory.path()), ["key.pem"]);
        // As no usual umask leaves it: what is asked for counts.
        write_atomic(&path, b"three", 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        remove_optional(&path).unwrap();
        remove_optional(&path).unwrap();
        assert_eq!(read_optional(&path).unwrap(), None);
    }
}
