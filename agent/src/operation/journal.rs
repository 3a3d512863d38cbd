//! The loop's notes on started and finished operations. Part of `run`; stored by `file`.

pub mod file;

use bedplate_api::reason::operation::AgentOutcome;
use bedplate_process::exit::chain;
use bedplate_process::file::FileError;

use super::journal::file::{Note, outdated};
use super::ledger::View;
use super::run::Runner;

impl Runner {
    /// Returns true if a note records that this operation has shut the host down.
    pub(super) fn has_shut_down(&self, uid: &str) -> bool {
        let end = self.notes.iter().find(|note| note.uid == uid).and_then(|note| note.end.as_ref());
        end.is_some_and(|end| end.complete && end.reason == AgentOutcome::ShutDown.as_str())
    }

    /// Returns true if a note records that the current operation was started.
    pub(super) fn is_started(&self) -> bool {
        let uid = self.running.as_ref().and_then(|running| running.object.metadata.uid.as_deref());
        self.notes.iter().any(|note| Some(note.uid.as_str()) == uid)
    }

    /// Notes that the current operation is started. An existing note is not changed.
    pub(super) async fn note_started(&mut self) -> Result<(), FileError> {
        let Some(running) = &self.running else { return Ok(()) };
        if self.is_started() {
            return Ok(());
        }
        let metadata = &running.object.metadata;
        let note = Note {
            uid: metadata.uid.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            boot_id: self.parts.boot_id.clone(),
            started: self.now(),
            end: None,
        };
        self.keep(note).await
    }

    /// Stores a note on disk and in memory.
    pub(super) async fn keep(&mut self, note: Note) -> Result<(), FileError> {
        self.parts.notes.put(&note).await?;
        self.notes.retain(|known| known.uid != note.uid);
        self.notes.push(note);
        Ok(())
    }

    /// Removes old notes whose objects do not exist.
    pub(super) async fn forget(&mut self, view: &View) {
        if !view.complete || self.notes.is_empty() {
            return;
        }
        let open = view.operations.iter().filter_map(|one| one.metadata.uid.as_deref());
        let objects: Vec<&str> = open.chain(view.ended.keys().map(String::as_str)).collect();
        for uid in outdated(&self.notes, &objects, self.now()) {
            match self.parts.notes.remove(&uid).await {
                Ok(()) => self.notes.retain(|note| note.uid != uid),
                Err(error) => {
                    tracing::warn!(uid, error = chain(&error), "failed to remove the note on an operation");
                }
            }
        }
    }
}
