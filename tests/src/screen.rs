//! Standard output of the demonstration, and transcripts of parts of it as text files.
//!
//! A transcript has what a user sees: commands, their output, and the table at a few moments.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::table::{self, Row, bold};

/// A state of the table that belongs into a transcript.
pub type Moment = fn(&[Row]) -> bool;

/// Standard output and transcripts.
#[derive(Debug, Default)]
pub struct Screen {
    /// Folder of the transcripts, if they are stored.
    folder: Option<PathBuf>,
    transcripts: RefCell<Transcripts>,
}

#[derive(Debug, Default)]
struct Transcripts {
    /// Name of the transcript that is written to.
    current: Option<&'static str>,
    texts: BTreeMap<&'static str, String>,
}

impl Transcripts {
    /// Adds lines to the current transcript, after an empty line if they start a paragraph.
    fn add(&mut self, text: &str, is_paragraph: bool) {
        let Some(current) = self.current else { return };
        let transcript = self.texts.entry(current).or_default();
        if is_paragraph && !transcript.is_empty() {
            transcript.push('\n');
        }
        for line in text.lines() {
            transcript.push_str(line.trim_end());
            transcript.push('\n');
        }
    }
}

impl Screen {
    /// Creates a screen that stores its transcripts in this folder.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, transcripts: RefCell::default() }
    }

    /// Starts a transcript, or continues it. `None` ends the current one.
    pub fn record(&self, name: Option<&'static str>) {
        self.transcripts.borrow_mut().current = name;
    }

    /// Shows a command.
    pub fn command(&self, line: &str) {
        let line = format!("$ {line}");
        println!("\n{}", bold(&line));
        self.transcripts.borrow_mut().add(&line, true);
    }

    /// Shows the output of a command.
    pub fn output(&self, text: &str) {
        print!("{text}");
        self.transcripts.borrow_mut().add(text, false);
    }

    /// Adds the table to the transcript. The table itself draws on standard output.
    pub fn table(&self, rows: &[Row], elapsed: Duration) {
        self.transcripts.borrow_mut().add(&table::lines(rows, elapsed).join("\n"), true);
    }

    /// Writes the transcripts into the folder.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn store(&self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for (name, text) in &self.transcripts.borrow().texts {
            let path = folder.join(name).with_extension("txt");
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        println!("\n  transcripts are in {}; `cargo xtask pictures` draws them", folder.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcript_has_commands_output_and_tables_of_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let screen = Screen::new(Some(folder.path().join("demo")));
        screen.command("kubectl version");
        screen.record(Some("boot"));
        screen.command("kubectl apply -f a.yaml");
        screen.output("machine.bedplate.dev/a created   \n");
        screen.record(Some("other"));
        screen.command("bedplate machine list");
        screen.record(Some("boot"));
        screen.table(&[], Duration::from_secs(2));
        screen.record(None);
        screen.output("end\n");
        screen.store().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join("demo").join(name)).unwrap();
        let boot = read("boot.txt");
        let table =
            boot.strip_prefix("$ kubectl apply -f a.yaml\nmachine.bedplate.dev/a created\n\n").unwrap();
        assert!(table.starts_with("  SERVER ") && table.ends_with("  2.0 s\n"), "{table:?}");
        assert_eq!(read("other.txt"), "$ bedplate machine list\n");
    }
}
