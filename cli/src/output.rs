//! Output: answers go to standard output, as text or JSON. Progress goes to standard error: on a terminal as
//! one line that changes, otherwise as one line for each change.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::arguments::Output;
use crate::error::RunError;
use crate::render::Look;

/// Width of a terminal that does not report one, in columns.
const DEFAULT_COLUMNS: usize = 80;

/// Standard output, or a buffer of tests.
pub(crate) struct Page<'a> {
    out: &'a mut dyn Write,
    output: Output,
}

impl<'a> Page<'a> {
    /// Makes a page of this form.
    pub(crate) fn new(out: &'a mut dyn Write, output: Output) -> Self {
        Self { out, output }
    }

    /// Returns true if JSON was requested.
    pub(crate) fn is_json(&self) -> bool {
        self.output == Output::Json
    }

    /// Returns the parameters of text output.
    pub(crate) fn look(&self) -> Look {
        let color = std::io::stdout().is_terminal()
            && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Look { now: Timestamp::now(), color }
    }

    /// Prints a text, or its JSON.
    pub(crate) fn print(&mut self, text: impl AsRef<[u8]>) -> Result<(), RunError> {
        self.out.write_all(text.as_ref()).and_then(|()| self.out.flush()).map_err(RunError::Print)
    }

    /// Asks the user to confirm. Returns `None` if there is no terminal, or if the answer must be JSON.
    pub(crate) fn ask(&self, question: &str) -> Option<bool> {
        let stdin = std::io::stdin();
        if self.is_json() || !stdin.is_terminal() || !std::io::stderr().is_terminal() {
            return None;
        }
        write!(std::io::stderr(), "{} [y/N] ", crate::render::clean(question)).ok()?;
        let mut answer = String::new();
        stdin.read_line(&mut answer).ok()?;
        Some(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// Prints JSON over several lines.
    pub(crate) fn json(&mut self, answer: &impl Serialize) -> Result<(), RunError> {
        let text = serde_json::to_string_pretty(answer).map_err(RunError::Answer)?;
        self.print(text + "\n")
    }

    /// Prints JSON on one line.
    pub(crate) fn json_line(&mut self, answer: &impl Serialize) -> Result<(), RunError> {
        let text = serde_json::to_string(answer).map_err(RunError::Answer)?;
        self.print(text + "\n")
    }
}

/// Progress display on standard error.
pub(crate) struct Progress {
    /// Columns of the terminal. None: there is no terminal.
    width: Option<usize>,
    shown: String,
}

impl Progress {
    /// Makes a progress line, which changes if standard error is a terminal that supports it.
    pub(crate) fn new() -> Self {
        let stderr = std::io::stderr();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let width = (stderr.is_terminal() && !dumb).then(|| {
            let size = rustix::termios::tcgetwinsize(&stderr);
            size.ok()
                .map(|size| usize::from(size.ws_col))
                .filter(|columns| *columns > 0)
                .unwrap_or(DEFAULT_COLUMNS)
        });
        Self { width, shown: String::new() }
    }

    /// Returns true if progress is shown as a line that changes. Otherwise small steps are not printed.
    pub(crate) fn is_terminal(&self) -> bool {
        self.width.is_some()
    }

    /// Shows the progress after the elapsed time. Errors of a closed standard error are ignored.
    pub(crate) fn show(&mut self, line: &str, after: Duration) {
        let text = drawn(line, after, self.width, &self.shown);
        let _ = std::io::stderr().write_all(text.as_bytes());
        line.clone_into(&mut self.shown);
    }

    /// Prints a separate line, such as a note.
    pub(crate) fn note(&mut self, line: &str) {
        self.clear();
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    /// Removes the progress line.
    pub(crate) fn clear(&mut self) {
        if self.width.is_some() && !self.shown.is_empty() {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
        self.shown.clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the characters that show `line`. Pure.
fn drawn(line: &str, after: Duration, width: Option<usize>, shown: &str) -> String {
    let Some(width) = width else {
        return if line == shown { String::new() } else { format!("{line}\n") };
    };
    let time = format!("  {}s", after.as_secs());
    let room = width.saturating_sub(time.len()).saturating_sub(1);
    let kept: String = line.chars().take(room).collect();
    format!("\r\x1b[K{kept}{time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_each_change_is_a_line_and_nothing_else() {
        let after = Duration::from_secs(3);
        assert_eq!(drawn("a", after, None, ""), "a\n");
        assert_eq!(drawn("a", after, None, "a"), "");
        assert_eq!(drawn("b", after, None, "a"), "b\n");
    }

    #[test]
    fn on_a_terminal_one_line_is_drawn_again_and_never_wraps() {
        let after = Duration::from_secs(3);
        assert_eq!(drawn("abc", after, Some(80), "abc"), "\r\u{1b}[Kabc  3s");
        assert_eq!(drawn("abcdefghij", after, Some(10), ""), "\r\u{1b}[Kabcde  3s");
        assert_eq!(drawn("abc", after, Some(2), ""), "\r\u{1b}[K  3s");
    }
}
