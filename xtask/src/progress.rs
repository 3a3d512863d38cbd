//! Progress on the screen: one line per step with its time. A terminal shows a spinner and color, other
//! outputs plain lines.
//!
//! Programs that a step runs write into a log file; the screen has their last line, and the log's end if they fail.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// Interval between progress lines of a long step without a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum age of a program's line that is shown. An older one does not describe current work: `go build`
/// names its downloads, then compiles for minutes.
const MAX_LINE_AGE: Duration = Duration::from_secs(10);
/// Maximum number of lines of a failed program's output that are shown.
const MAX_TAIL_LINES: usize = 60;

/// One step while it runs.
pub(crate) struct Step {
    name: String,
    started: Instant,
    bar: Option<ProgressBar>,
    /// True once a program of the step has written its log.
    logged: Cell<bool>,
}

/// Formats a duration for users: `0.4 s`, `38 s`, `4 min 46 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let all = duration.as_secs();
    if all >= 60 {
        format!("{} min {:02} s", all / 60, all % 60)
    } else if all >= 10 {
        format!("{all} s")
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

fn paint(code: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// A heading between steps.
pub(crate) fn heading(text: &str) {
    println!("\n{}", paint("1", text));
}

/// Returns text in the color of success.
pub(crate) fn good(text: &str) -> String {
    paint("32", text)
}

/// Returns text in the color of failure.
pub(crate) fn bad(text: &str) -> String {
    paint("31;1", text)
}

/// Runs `work` as a step and says how it went and how long it took.
pub(crate) fn step<T>(name: &str, work: impl FnOnce(&Step) -> Result<T>) -> Result<T> {
    let terminal = std::io::stdout().is_terminal();
    let bar = terminal.then(|| {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed:>4} {wide_msg:.dim}") {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    });
    if !terminal {
        println!("  ... {name}");
    }
    let step = Step { name: name.to_owned(), started: Instant::now(), bar, logged: Cell::new(false) };
    let result = work(&step);
    if let Some(bar) = &step.bar {
        bar.finish_and_clear();
    }
    let mark = if result.is_ok() { good(" ok ") } else { bad("FAIL") };
    println!(" {mark} {name} ({})", seconds(step.started.elapsed()));
    let _ = std::io::stdout().flush();
    result
}

/// Returns the last lines of an output, which are shown after a failure.
pub(crate) fn tail(output: &str) -> impl Iterator<Item = &str> {
    let lines = output.lines().filter(|line| !line.trim().is_empty());
    let count = lines.clone().count();
    lines.skip(count.saturating_sub(MAX_TAIL_LINES))
}

impl Step {
    /// Shows a line above the running step and keeps it.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => println!("{line}"),
        }
    }

    /// Shows the current activity: on a terminal behind the spinner; otherwise as a line if `aloud`.
    pub(crate) fn now(&self, what: &str, aloud: bool) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None if aloud => println!("      {}: {what}", seconds(self.started.elapsed())),
            None => {}
        }
    }

    /// Runs a program to its end, its output in the step's log file.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        let mut tail = VecDeque::new();
        let result = self.run_watched(command, |line| {
            tail.push_back(line.to_owned());
            if tail.len() > MAX_TAIL_LINES {
                tail.pop_front();
            }
        });
        if result.is_err() {
            tail.iter().for_each(|line| self.say(&format!("      {line}")));
        }
        result
    }

    /// Runs a command like [`Step::run`], but passes each line of output to `watch`. The screen does not show
    /// the last lines.
    pub(crate) fn run_watched(&self, command: &mut Command, mut watch: impl FnMut(&str)) -> Result<()> {
        let (path, mut log) = self.log()?;
        let _ = writeln!(log, "$ {command:?}");
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let (sender, lines) = mpsc::channel();
        let pipes: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|p| Box::new(p) as _), child.stderr.take().map(|p| Box::new(p) as _)];
        for pipe in pipes.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || forward(pipe, &sender));
        }
        drop(sender);
        let mut last = String::new();
        let mut heard = Instant::now();
        let mut spoken = Instant::now();
        loop {
            match lines.recv_timeout(MAX_LINE_AGE) {
                Ok(line) => {
                    let _ = writeln!(log, "{line}");
                    watch(&line);
                    heard = Instant::now();
                    // Cargo's JSON messages are for programs.
                    if !line.starts_with('{') {
                        if let Some(bar) = &self.bar {
                            bar.set_message(line.clone());
                        }
                        last = line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(bar) = &self.bar {
                        bar.set_message("");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.bar.is_none() && spoken.elapsed() >= PROGRESS_INTERVAL {
                let said = if heard.elapsed() < MAX_LINE_AGE { format!(": {last}") } else { String::new() };
                println!("      {} {}{said}", self.name, seconds(self.started.elapsed()));
                spoken = Instant::now();
            }
        }
        let status = child.wait().with_context(|| format!("cannot wait for {program}"))?;
        if status.success() {
            return Ok(());
        }
        bail!("{program} ended with {status}; all it said is in {}", path.display())
    }

    /// The log file. Programs of one step share it; that of an earlier run is emptied.
    fn log(&self) -> Result<(PathBuf, File)> {
        let path = log_path(&self.name)?;
        let is_first = !self.logged.replace(true);
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(is_first)
            .append(!is_first)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok((path, file))
    }
}

/// Returns the path of the log of a step or a program.
pub(crate) fn log_path(name: &str) -> Result<PathBuf> {
    let directory = crate::host::target().join("xtask");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(plain).collect();
    Ok(directory.join(format!("{name}.log")))
}

/// Passes a program's output on line by line; a carriage return, as progress bars send it, ends a line too.
fn forward(pipe: Box<dyn Read + Send>, sender: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(pipe);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&bytes);
        for line in text.split(['\r', '\n']).filter(|line| !line.trim().is_empty()) {
            if sender.send(line.to_owned()).is_err() {
                return;
            }
        }
        bytes.clear();
    }
}
