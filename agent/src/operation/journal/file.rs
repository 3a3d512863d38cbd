//! The agent's own notes on operations: one small file each, written
//! atomically, in `/var/lib/bedplate/operations`.
//!
//! The start is noted before the act, and the result before it is reported. So
//! neither a kill nor an API server that is restored from a backup repeats an
//! operation. Notes are kept for thirty days. Called by `run`.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bedplate_process::exit::chain;
use bedplate_process::file::{FileError, read_json, remove_optional, write_json};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::hardware::names_in;
use crate::operation::progress::End;

/// Age at which a note without an object is deleted. No restored backup is expected to be older.
const NOTE_RETENTION: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Maximum number of notes that are kept.
const MAX_NOTES: usize = 256;

/// Note on a started operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// UID of the object.
    pub uid: String,
    /// Name of the object, for users.
    pub name: String,
    /// Boot ID of the kernel at the start.
    pub boot_id: String,
    /// Time of the start.
    pub started: Timestamp,
    /// Result of the operation; none: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// Store of the notes.
#[async_trait]
pub trait Notes: Send + Sync {
    /// Returns all notes. Damaged ones are skipped and logged.
    async fn read(&self) -> Result<Vec<Note>, FileError>;
    /// Stores a note. On return it is on disk.
    async fn put(&self, note: &Note) -> Result<(), FileError>;
    /// Removes a note.
    async fn remove(&self, uid: &str) -> Result<(), FileError>;
}

/// Notes in a directory.
#[derive(Debug, Clone)]
pub struct NoteDirectory(PathBuf);

impl NoteDirectory {
    /// Creates the store in this directory, which is made when it is needed.
    pub fn new(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    fn place(&self, uid: &str) -> PathBuf {
        let plain =
            !uid.is_empty() && uid.len() <= 64 && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let stem = if plain {
            uid.to_owned()
        } else {
            Sha256::digest(uid).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        self.0.join(format!("{stem}.json"))
    }
}

/// Runs blocking file work on its own thread.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[async_trait]
impl Notes for NoteDirectory {
    async fn read(&self) -> Result<Vec<Note>, FileError> {
        let directory = self.0.clone();
        on_disk(move || {
            let mut notes = Vec::new();
            for name in names_in(&directory).into_iter().filter(|name| name.ends_with(".json")) {
                let path = directory.join(&name);
                match read_json(&path) {
                    Ok(note) => notes.extend(note),
                    Err(error) if error.is_damaged() => {
                        tracing::warn!(error = chain(&error), "skipping a damaged note on an operation");
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(notes)
        })
        .await
    }

    async fn put(&self, note: &Note) -> Result<(), FileError> {
        let (directory, path) = (self.0.clone(), self.place(&note.uid));
        let note = note.clone();
        on_disk(move || {
            std::fs::create_dir_all(&directory).map_err(FileError::at("create", &directory))?;
            write_json(&path, &note, 0o600)
        })
        .await
    }

    async fn remove(&self, uid: &str) -> Result<(), FileError> {
        let path = self.place(uid);
        on_disk(move || remove_optional(&path)).await
    }
}

/// Returns the UIDs of notes to remove: their object is not in `objects`, which is the complete list, and
/// they are thirty days old. Beyond 256 notes, the oldest ones are removed earlier.
pub fn outdated(notes: &[Note], objects: &[&str], now: Timestamp) -> Vec<String> {
    let mut gone: Vec<&Note> = notes.iter().filter(|note| !objects.contains(&note.uid.as_str())).collect();
    gone.sort_by_key(|note| note.started);
    let over = notes.len().saturating_sub(MAX_NOTES);
    let old = |note: &Note| now.duration_since(note.started) > NOTE_RETENTION;
    let outdated = gone.iter().enumerate().filter(|(place, note)| *place < over || old(note));
    outdated.map(|(_, note)| note.uid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::operation::AgentOutcome;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn note(uid: &str, started: i64) -> Note {
        Note { uid: uid.into(), name: "n".into(), boot_id: "b".into(), started: at(started), end: None }
    }

    #[tokio::test]
    async fn a_note_is_read_back_and_a_strange_uid_stays_in_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let notes = NoteDirectory::new(&directory.path().join("operations"));
        assert_eq!(notes.read().await.unwrap(), []);
        let mut ended = note("../../x", 1);
        ended.end = Some(End::done(AgentOutcome::Rebooted, "done"));
        for one in [&note("3f2a-1", 2), &ended] {
            notes.put(one).await.unwrap();
        }
        assert_eq!(notes.read().await.unwrap().len(), 2);
        std::fs::write(directory.path().join("operations/bad.json"), "{").unwrap();
        notes.remove("3f2a-1").await.unwrap();
        notes.remove("3f2a-1").await.unwrap();
        assert_eq!(notes.read().await.unwrap(), [ended]);
    }

    #[test]
    fn a_note_outlives_its_object_by_thirty_days_and_there_are_never_many() {
        let month = 30 * 24 * 3600;
        let notes = [note("old", 0), note("new", month), note("held", 0)];
        assert_eq!(outdated(&notes, &["held"], at(month + 1)), ["old"]);
        let many: Vec<Note> = (0..300).map(|number| note(&number.to_string(), number)).collect();
        assert_eq!(outdated(&many, &["0"], at(300)).len(), 44);
    }
}
