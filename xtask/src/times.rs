//! `target/times.json`: wall time, CPU time and peak memory of every job of the last run, and their summary on the screen.
//!
//! Callers: `test`, `check`, `soak`, `demo`.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::host;
use crate::progress;
use crate::runner::{Finished, Kind};
use crate::table::{Times, Took};

/// Number of jobs that the summary lists.
const MAX_LISTED_JOBS: usize = 12;

/// Job in the file.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// Name of the job.
    name: String,
    /// Group of the job.
    kind: &'static str,
    /// Seconds from the start of the run to the start of the job.
    started: f64,
    /// Seconds from start to end.
    wall: f64,
    /// CPU seconds of all processes of the job.
    cpu: f64,
    /// Maximum resident memory of all processes of the job, in MiB.
    peak_mib: u64,
    /// Seconds in which its processes waited for a core and none had one.
    stalled: f64,
    /// True if the job succeeded.
    ok: bool,
}

impl Row {
    /// Returns the time that the job would take if no other job ran: without the time in which it waited for a core.
    fn idle_wall(&self) -> f64 {
        (self.wall - self.stalled).max(self.cpu / f64::from(cores())).max(0.0)
    }
}

/// Content of the file.
#[derive(Debug, Serialize)]
struct File<'a> {
    command: &'a str,
    /// Seconds since 1970.
    finished: u64,
    cores: u32,
    wall: f64,
    /// CPU seconds of the jobs.
    cpu: f64,
    /// Share of the machine's CPU time that nothing used, from 0 to 1.
    idle: f64,
    jobs: &'a [Row],
}

/// Times of the jobs of a run.
#[derive(Debug)]
pub(crate) struct Recorder {
    command: &'static str,
    begin: Instant,
    machine: Machine,
    rows: Vec<Row>,
}

/// CPU time of the machine since its boot, in ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Machine {
    idle: u64,
    all: u64,
}

impl Machine {
    fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Reads the first line of `/proc/stat` (proc_stat(5)). Waiting for a disk counts as idle.
    fn parse(text: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // The guest times that follow are part of the user time.
        let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|tick| tick.parse().ok()).collect();
        Self { idle: ticks.iter().skip(3).take(2).sum(), all: ticks.iter().sum() }
    }

    /// Returns the idle share since an earlier moment.
    fn idle_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        if all == 0 { 0.0 } else { ratio(self.idle.saturating_sub(before.idle), all) }
    }
}

fn ratio(part: u64, all: u64) -> f64 {
    Duration::from_millis(part).as_secs_f64() / Duration::from_millis(all).as_secs_f64()
}

/// Number of cores.
fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores).unwrap_or(u32::MAX)
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Step => "build steps",
        Kind::Check => "checks",
        Kind::TierA => "tier a",
        Kind::TierB => "tier b",
        Kind::TierC => "tier c",
        Kind::Soak => "soak",
    }
}

impl Recorder {
    /// Starts to record a run of this command.
    pub(crate) fn start(command: &'static str) -> Self {
        Self { command, begin: Instant::now(), machine: Machine::now(), rows: Vec::new() }
    }

    /// Returns the time since the start of the run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Adds a job that has ended. The times of a job that never started are zero.
    pub(crate) fn add(&mut self, finished: &Finished) {
        let usage = finished.usage;
        self.rows.push(Row {
            name: finished.name.clone(),
            kind: kind_name(finished.kind),
            started: self.begin.elapsed().saturating_sub(usage.wall).as_secs_f64(),
            wall: usage.wall.as_secs_f64(),
            cpu: usage.cpu.as_secs_f64(),
            peak_mib: usage.peak >> 20,
            stalled: usage.stalled.as_secs_f64(),
            ok: finished.error.is_none(),
        });
    }

    /// Returns the CPU seconds of each test program.
    pub(crate) fn tests(&self) -> Vec<(String, f64)> {
        let tests = self.rows.iter().filter(|row| row.kind.starts_with("tier"));
        tests.map(|row| (row.name.clone(), row.cpu)).collect()
    }

    /// Names of the jobs.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.name.as_str())
    }

    /// Takes the times of this whole run into the recorded ones. The larger time of a step stays: one that finds its work done takes
    /// none. A job that does not exist any more loses its time.
    pub(crate) fn record(&self, times: &mut Times) {
        let is_known = |name: &str| self.rows.iter().any(|row| row.name == name);
        times.programs.retain(|name, _| is_known(name));
        for row in self.rows.iter().filter(|row| row.ok) {
            let took = Took { wall: row.idle_wall(), cpu: row.cpu };
            if row.kind == kind_name(Kind::Step) || row.kind == kind_name(Kind::Check) {
                let before = times.steps.get(&row.name).map_or(0.0, |before| before.cpu);
                if took.cpu > before {
                    times.steps.insert(row.name.clone(), took);
                }
            } else {
                times.programs.insert(row.name.clone(), took);
            }
        }
    }

    /// Writes `target/times.json` and prints a summary.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn finish(&self) -> Result<()> {
        let wall = self.begin.elapsed();
        let idle = Machine::now().idle_since(self.machine);
        self.print(idle);
        let path = self.path();
        let file = File {
            command: self.command,
            finished: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            cores: cores(),
            wall: wall.as_secs_f64(),
            cpu: self.rows.iter().map(|row| row.cpu).sum(),
            idle,
            jobs: &self.rows,
        };
        let text = serde_json::to_string_pretty(&file).context("cannot write times as JSON")?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Each command has a file of its own: `times.json` for `test`, `times-check.json` for `check`.
    fn path(&self) -> PathBuf {
        let name = match self.command.rsplit(' ').next() {
            None | Some("test") => "times.json".to_owned(),
            Some(name) => format!("times-{name}.json"),
        };
        host::target().join(name)
    }

    fn print(&self, idle: f64) {
        progress::heading("Times");
        let row = |name: &str, wall: f64, cpu: f64, peak: Option<u64>| {
            let text = |seconds: f64| progress::seconds(Duration::from_secs_f64(seconds));
            let peak = peak.map_or(String::new(), |peak| format!("  {peak:>6} MiB"));
            println!("  {:>12}  {:>12} CPU{peak}  {name}", text(wall), text(cpu));
        };
        let kinds =
            [Kind::Step, Kind::Check, Kind::TierA, Kind::TierB, Kind::TierC, Kind::Soak].map(kind_name);
        for kind in kinds {
            let of: Vec<&Row> = self.rows.iter().filter(|row| row.kind == kind).collect();
            if !of.is_empty() {
                let sum = |value: fn(&Row) -> f64| of.iter().map(|row| value(row)).sum();
                let first = of.iter().map(|row| row.started).fold(f64::MAX, f64::min);
                let last = of.iter().map(|row| row.started + row.wall).fold(0.0, f64::max);
                row(
                    &format!("{kind}: {} jobs, from first to last", of.len()),
                    last - first,
                    sum(|row| row.cpu),
                    None,
                );
            }
        }
        let mut longest: Vec<&Row> = self.rows.iter().collect();
        longest.sort_by(|a, b| b.wall.total_cmp(&a.wall));
        println!("  longest:");
        for one in longest.iter().take(MAX_LISTED_JOBS) {
            row(&one.name, one.wall, one.cpu, Some(one.peak_mib));
        }
        println!(
            "  the machine was idle for {:.0} % of the time; all times: {}",
            idle * 100.0,
            self.path().display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_time_is_that_of_an_idle_machine() {
        let row = |stalled, cpu| Row {
            name: "a".to_owned(),
            kind: "tier a",
            started: 0.0,
            wall: 100.0,
            cpu,
            peak_mib: 0,
            stalled,
            ok: true,
        };
        assert!((row(60.0, 10.0).idle_wall() - 40.0).abs() < 1e-9);
        let cpu = 100.0 * f64::from(cores());
        assert!((row(60.0, cpu).idle_wall() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn idle_share_counts_disk_waits_and_not_guests_twice() {
        let before = Machine::parse("cpu  0 0 0 0 0 0 0 0 0 0\n");
        let after = Machine::parse("cpu  50 0 10 30 10 0 0 0 50 0\ncpu0 1 1 1 1\n");
        assert!((after.idle_since(before) - 0.4).abs() < 1e-9);
        assert!((before.idle_since(before)).abs() < 1e-9);
    }

    #[test]
    fn recorded_step_keeps_its_larger_time_and_a_failed_job_none() {
        let mut recorder = Recorder::start("test");
        let row = |name: &str, kind, cpu, ok| Row {
            name: name.to_owned(),
            kind: kind_name(kind),
            started: 0.0,
            wall: cpu,
            cpu,
            peak_mib: 0,
            stalled: 0.0,
            ok,
        };
        recorder.rows = vec![
            row("release", Kind::Step, 1.0, true),
            row("boot_many", Kind::TierB, 1.0, true),
            row("dhcp_clients", Kind::TierA, 1.0, false),
        ];
        let mut times = Times::default();
        times.steps.insert("release".to_owned(), Took { wall: 9.0, cpu: 9.0 });
        times.programs.insert("boot_many".to_owned(), Took { wall: 9.0, cpu: 9.0 });
        times.programs.insert("removed".to_owned(), Took { wall: 9.0, cpu: 9.0 });
        recorder.record(&mut times);
        assert_eq!(times.steps["release"].cpu, 9.0);
        assert_eq!(times.programs["boot_many"].cpu, 1.0);
        assert!(!times.programs.contains_key("dhcp_clients") && !times.programs.contains_key("removed"));
    }
}
