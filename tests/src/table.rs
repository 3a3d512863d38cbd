//! Table of the demonstration: a row for each server, drawn again over the last one on a terminal, and elsewhere a line for
//! each change.
//!
//! Rows are made of objects as the API server has them, by what `kubectl get` shows too.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use serde_json::Value;

use crate::nodes::{condition, is_ready};
use crate::timeline;

/// The stages of a boot in order, as in `status.boot.timeline`.
const STAGES: [&str; 10] = [
    "Discover",
    "Offered",
    "Acknowledged",
    "Loader",
    "Script",
    "Kernel",
    "Initrd",
    "RootFS",
    "Userspace",
    "Enrolled",
];
/// Mark of a stage that the boot has reached.
const REACHED: char = '●';
/// Mark of an earlier stage that the boot has not reported.
const SKIPPED: char = '○';
/// Mark of a stage that is still to come.
const MISSING: char = '·';
/// Heading of the columns of [`Row::line`].
const HEAD: &str = "SERVER    POWER  BOOT       PHASE                VERSION  NODE             WAITING";
/// Maximum number of characters of the pending step in a line of a log.
const MAX_LOGGED_CHARS: usize = 76;
/// Maximum number of columns of a row of the table, without its indentation.
const MAX_ROW_CHARS: usize = 128;

/// A server as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    name: String,
    power: String,
    /// A mark for each stage of its boot.
    boot: String,
    /// The stage that its boot has come to.
    stage: String,
    phase: String,
    /// `1`, and `1 > 2` while another one is selected than applied.
    version: String,
    node: String,
    waiting: String,
}

impl Row {
    /// A server's, with its Node if it has one.
    pub fn of(machine: &Value, node: Option<&Value>) -> Self {
        let text = |path: &str| machine.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |path: &str| machine.pointer(path).and_then(Value::as_i64);
        let version = match (number("/status/applied/version"), number("/status/selected/version")) {
            (Some(applied), Some(selected)) if applied != selected => format!("{applied} > {selected}"),
            (None, Some(selected)) => format!("> {selected}"),
            (applied, _) => applied.map(|applied| applied.to_string()).unwrap_or_default(),
        };
        let node = node.map_or("", |node| match (is_ready(node), node["spec"]["unschedulable"] == true) {
            (true, false) => "Ready",
            (true, true) => "Ready, cordoned",
            (false, false) => "not Ready",
            (false, true) => "not Ready, cordoned",
        });
        let ready = condition(machine, "Ready");
        let pending = ready["message"].as_str().filter(|_| ready["status"] != "True").unwrap_or_default();
        let reached = timeline::of(machine);
        Self {
            name: text("/metadata/name"),
            power: text("/status/power/state"),
            boot: marks(&reached),
            stage: reached.last().map(|last| last.stage.to_lowercase()).unwrap_or_default(),
            phase: text("/status/phase"),
            version,
            node: node.to_owned(),
            waiting: cut(pending, MAX_LOGGED_CHARS),
        }
    }

    /// Returns true if this is the phase of the Machine.
    pub fn is_in(&self, phase: &str) -> bool {
        self.phase == phase
    }

    /// Returns true if the server is switched on.
    pub fn is_on(&self) -> bool {
        self.power == "On"
    }

    /// Returns true if the latest boot has reached this stage.
    pub fn has_reached(&self, stage: &str) -> bool {
        let mark =
            STAGES.iter().position(|known| *known == stage).and_then(|index| self.boot.chars().nth(index));
        mark.is_some_and(|mark| mark != MISSING)
    }

    /// Returns true if its Node is cordoned.
    pub fn is_cordoned(&self) -> bool {
        self.node.ends_with("cordoned")
    }

    fn line(&self) -> String {
        let or = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let Self { name, boot, .. } = self;
        let (power, phase, version, node) =
            (or(&self.power), or(&self.phase), or(&self.version), or(&self.node));
        let start = format!("{name:<9} {power:<6} {boot} {phase:<20} {version:<8} {node:<16} ");
        let waiting = cut(&self.waiting, MAX_ROW_CHARS.saturating_sub(start.chars().count()).max(1));
        start + &waiting
    }

    /// The news of a row: a number that only counts on is not part of it.
    fn news(&self) -> String {
        let waiting: String = self.waiting.chars().filter(|sign| !sign.is_ascii_digit()).collect();
        format!("{}|{}|{}|{}|{waiting}", self.stage, self.phase, self.version, self.node)
    }

    /// As a line of its own.
    fn log_line(&self) -> String {
        let mut text = self.name.clone();
        if self.phase.is_empty() || self.phase == "Booting" {
            let _ = write!(text, "  {}", self.stage);
        }
        let version =
            if self.version.is_empty() { String::new() } else { format!("version {}", self.version) };
        let node = if self.node.is_empty() { String::new() } else { format!("Node {}", self.node) };
        for part in [&self.phase, &version, &node, &self.waiting].into_iter().filter(|part| !part.is_empty())
        {
            let _ = write!(text, "  {part}");
        }
        text
    }
}

/// Returns the text, or its start and an ellipsis if it has more than `most` characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Returns the heading and the rows, without colors.
pub fn lines(rows: &[Row], elapsed: Duration) -> Vec<String> {
    let head = format!("{HEAD:<100} {:>5.1} s", elapsed.as_secs_f64());
    let lines = [head].into_iter().chain(rows.iter().map(Row::line));
    lines.map(|line| format!("  {}", line.trim_end())).collect()
}

/// Returns a mark for each stage. A card with iPXE in it skips the loader.
fn marks(reached: &[timeline::Reached]) -> String {
    let there = |stage: &str| reached.iter().any(|r| r.stage == stage && r.failure.is_none());
    let last = STAGES.iter().rposition(|stage| there(stage));
    let mark = |(index, stage): (usize, &&str)| {
        if there(stage) {
            REACHED
        } else if last.is_some_and(|last| index < last) {
            SKIPPED
        } else {
            MISSING
        }
    };
    STAGES.iter().enumerate().map(mark).collect()
}

/// The rows on standard output.
#[derive(Debug, Default)]
pub struct Table {
    /// Number of its lines on the terminal.
    drawn: usize,
    shown: Vec<String>,
}

impl Table {
    /// Shows the rows.
    pub fn show(&mut self, rows: &[Row], elapsed: Duration) {
        if std::io::stdout().is_terminal() {
            self.draw(rows, elapsed);
        } else {
            self.tell(rows, elapsed.as_secs_f64());
        }
        let _ = std::io::stdout().flush();
    }

    /// Draws the table over its last state. A narrow terminal cuts the rows: with a wrapped row, the next table would start too low.
    fn draw(&mut self, rows: &[Row], elapsed: Duration) {
        const NO_WRAP: &str = "\x1b[?7l";
        const WRAP: &str = "\x1b[?7h";
        let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        let lines = lines(rows, elapsed);
        self.drawn = lines.len();
        print!("{up}{NO_WRAP}");
        for (number, line) in lines.into_iter().enumerate() {
            println!("\x1b[2K{}", if number == 0 { bold(&line) } else { line });
        }
        print!("{WRAP}");
    }

    fn tell(&mut self, rows: &[Row], seconds: f64) {
        self.shown.resize(rows.len(), String::new());
        for (row, shown) in rows.iter().zip(&mut self.shown) {
            let news = row.news();
            if *shown != news && news != Row::default().news() {
                println!("  {seconds:>5.1} s  {}", row.log_line());
                *shown = news;
            }
        }
    }
}

/// For a heading, on a terminal.
pub fn bold(text: &str) -> String {
    color("1", text)
}

/// In a color, on a terminal that supports colors.
pub fn color(code: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn row_shows_applied_next_and_pending_versions() {
        let machine = json!({"metadata": {"name": "server-1"}, "status": {
            "phase": "Repaving", "power": {"state": "On"}, "applied": {"version": 1}, "selected": {"version": 2},
            "boot": {"timeline": [{"stage": "Discover", "time": "2026-01-01T00:00:01Z"},
                {"stage": "Acknowledged", "time": "2026-01-01T00:00:02Z"}]},
            "conditions": [{"type": "Ready", "status": "False", "message": "kubeadm joins for 12 s"}]}});
        let node = json!({"spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let row = Row::of(&machine, Some(&node));
        assert_eq!(
            row.line(),
            "server-1  On     ●○●······· Repaving             1 > 2    Ready, cordoned  kubeadm joins for 12 s"
        );
        assert_eq!(
            row.log_line(),
            "server-1  Repaving  version 1 > 2  Node Ready, cordoned  kubeadm joins for 12 s"
        );
        let later = Row { waiting: "kubeadm joins for 13 s".to_owned(), ..row.clone() };
        assert_eq!(later.news(), row.news(), "a number that counts on is no news");
    }

    #[test]
    fn table_has_at_most_130_columns() {
        let waiting =
            "waiting for the root file system since 00:09:08, which the host image should have".to_owned();
        let row = Row { name: "server-1".to_owned(), boot: marks(&[]), waiting, ..Row::default() };
        let lines = lines(&[row], Duration::from_secs(12));
        assert_eq!(lines[1].chars().count(), 130, "{}", lines[1]);
        assert!(lines[0].ends_with("  12.0 s") && lines[1].ends_with('…'), "{lines:?}");
    }

    #[test]
    fn a_machine_that_is_not_there_yet_has_an_empty_row() {
        assert_eq!(Row::of(&Value::Null, None), Row { boot: "··········".to_owned(), ..Row::default() });
    }
}
