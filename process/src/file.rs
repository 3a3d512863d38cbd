//! Small files of a program: each is complete or absent, however the host dies, and each error names path, action and cause.
//!
//! Only regular files in directories of the program's own. Blocking. Called by the agent and by its stage-1.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum size of a file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Action of an error about the content of a file.
const PARSE: &str = "parse";

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct FileError {
    /// Action that failed: a verb.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Cause.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// Returns a function that adds action and path to a cause, for `map_err`.
    pub fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }

    /// Returns true if the file was read, and its content is not what this program writes.
    pub fn is_damaged(&self) -> bool {
        self.action == PARSE
    }
}

impl From<FileError> for io::Error {
    /// Drops action and path, for callers that name them in another way.
    fn from(error: FileError) -> Self {
        error.source
    }
}

/// Writes `content` to `path` with `mode`: to a neighbor first, flushed, then renamed over, then the directory flushed.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    write_flushed(path, content, mode, File::sync_all).map_err(FileError::at("write", path))
}

/// Writes a value as JSON, in the manner of [`write_atomic`].
pub fn write_json(path: &Path, value: &impl Serialize, mode: u32) -> Result<(), FileError> {
    let bytes = serde_json::to_vec(value).map_err(|error| FileError::at("write", path)(error.into()))?;
    write_atomic(path, &bytes, mode)
}

/// Reads a value that [`write_json`] wrote. `None`: there is no such file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let parsed = read_optional(path)?.map(|bytes| serde_json::from_slice(&bytes)).transpose();
    parsed.map_err(|error| FileError::at(PARSE, path)(error.into()))
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
    let neighbor = directory.join(name);
    match fs::remove_file(&neighbor) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&neighbor)?;
    // The agent's own umask would close the file to its reader: networkd has its own user.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    flush(&file)?;
    fs::rename(&neighbor, path)?;
    flush(&File::open(directory)?)
}

/// Flushes a directory, so that the names in it survive a power cut.
pub fn sync_directory(path: &Path) -> Result<(), FileError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(FileError::at("flush", path))
}

/// Reads a file. `None`: there is no such file.
pub fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match File::open(path).and_then(read_bounded) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::at("read", path)(error)),
    }
}

fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE_BYTES + 1), &mut content)?;
    if read as u64 > MAX_FILE_BYTES { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(content) }
}

/// Removes a file. It is not an error if there is none.
pub fn remove_optional(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::at("remove", path)(error)),
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
    fn file_is_replaced_with_its_mode_despite_an_old_neighbor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        fs::write(directory.path().join("key.pem.new"), "half").unwrap();
        write_atomic(&path, b"one", 0o600).unwrap();
        write_atomic(&path, b"two", 0o600).unwrap();
        assert_eq!(read_optional(&path).unwrap().unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["key.pem"]);
        // As no usual umask leaves it: what is asked for counts.
        write_atomic(&path, b"three", 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        remove_optional(&path).unwrap();
        remove_optional(&path).unwrap();
        assert_eq!(read_optional(&path).unwrap(), None);
    }

    #[test]
    fn json_is_read_as_written_and_damage_differs_from_absence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), None);
        write_json(&path, &[1, 2], 0o600).unwrap();
        assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), Some(vec![1, 2]));
        fs::write(&path, "[1,").unwrap();
        let error = read_json::<Vec<u32>>(&path).unwrap_err();
        assert!(error.is_damaged());
        let text = crate::exit::chain(&error);
        assert!(text.starts_with(&format!("cannot parse {}: EOF", path.display())), "{text}");
    }

    #[test]
    fn error_names_action_path_and_cause() {
        let directory = tempfile::tempdir().unwrap();
        let (path, below) = (directory.path().join("file"), directory.path().join("file/below"));
        fs::write(&path, "").unwrap();
        for (action, failed) in [
            ("write", write_atomic(&below, b"x", 0o600)),
            ("read", read_optional(&below).map(drop)),
            ("remove", remove_optional(&below)),
            ("flush", sync_directory(&below)),
        ] {
            let error = failed.unwrap_err();
            assert!(!error.is_damaged());
            let expected = format!("cannot {action} {}: Not a directory (os error 20)", below.display());
            assert_eq!(crate::exit::chain(&error), expected);
        }
    }

    #[test]
    fn file_above_the_limit_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        for (size, read) in [(MAX_FILE_BYTES, true), (MAX_FILE_BYTES + 1, false)] {
            File::create(&path).unwrap().set_len(size).unwrap();
            assert_eq!(read_optional(&path).is_ok(), read);
        }
    }
}
