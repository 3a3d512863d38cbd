//! `tests/tests.toml`: needs and budget of each test program; `tests/times.toml`: recorded times of each program and build step.
//!
//! The first file is written by hand, the second by `cargo xtask test --record`. Deadlines, the order of jobs and the expected times
//! come from the second. Pure, except for `read` and `Times::write`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::host;

/// Deadline of a job in multiples of its recorded time: other jobs and a busy machine make it several times slower.
const DEADLINE_FACTOR: f64 = 8.0;
/// Minimum deadline of a job.
const DEADLINE_MIN: Duration = Duration::from_secs(300);
/// Deadline of a job without a recorded time.
const DEADLINE_UNKNOWN: Duration = Duration::from_secs(1200);
/// Expected time of a job without a recorded time.
const EXPECTED_UNKNOWN: Duration = Duration::from_secs(30);

/// Content of `tests/tests.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// Budgets.
    pub(crate) limits: Limits,
    /// Programs that differ from the default, by name.
    #[serde(default)]
    pub(crate) programs: BTreeMap<String, Program>,
}

/// Budgets of the tests.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// CPU seconds of a program that the table does not list with a budget of its own.
    pub(crate) program_cpu_seconds: u64,
    /// CPU minutes of all tests together.
    pub(crate) total_cpu_minutes: u64,
}

/// Needs and budget of a test program.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    /// Number of the program's tests that run concurrently; by default the number of cores.
    pub(crate) threads: Option<u32>,
    /// Number of Linux guests that the program boots concurrently; for programs of tier b by default the number of threads.
    pub(crate) guests: Option<u32>,
    /// True if the program runs kubelets in namespaces of this machine.
    #[serde(default)]
    pub(crate) nodes: bool,
    /// True if nothing else may run concurrently.
    #[serde(default)]
    pub(crate) alone: bool,
    /// CPU seconds that the program may use, if more than the limit.
    pub(crate) cpu_seconds: Option<u64>,
    /// Reason for the larger budget.
    pub(crate) reason: Option<String>,
}

/// Recorded times of a job in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Took {
    /// Time from start to end.
    pub(crate) wall: f64,
    /// CPU time of all processes of the job.
    pub(crate) cpu: f64,
}

impl Took {
    /// Returns the mean number of busy cores.
    pub(crate) fn load(self) -> f64 {
        if self.wall > 0.0 { (self.cpu / self.wall).clamp(0.1, 4.0) } else { 0.1 }
    }
}

/// Content of `tests/times.toml`.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Times {
    /// Build steps from scratch.
    #[serde(default)]
    pub(crate) steps: BTreeMap<String, Took>,
    /// Test programs.
    #[serde(default)]
    pub(crate) programs: BTreeMap<String, Took>,
}

impl Times {
    /// Returns the recorded times of the job.
    pub(crate) fn of(&self, name: &str) -> Option<Took> {
        self.steps.get(name).or_else(|| self.programs.get(name)).copied()
    }

    /// Returns the time that the job needs on an idle machine.
    pub(crate) fn expected(&self, name: &str) -> Duration {
        self.of(name).map_or(EXPECTED_UNKNOWN, |took| Duration::from_secs_f64(took.wall.max(0.0)))
    }

    /// Returns the time after which the job is killed.
    pub(crate) fn deadline(&self, name: &str) -> Duration {
        let of = |took: Took| Duration::from_secs_f64(took.wall.max(0.0) * DEADLINE_FACTOR).max(DEADLINE_MIN);
        self.of(name).map_or(DEADLINE_UNKNOWN, of)
    }

    /// Reads the file; empty if it does not exist yet.
    ///
    /// # Errors
    /// The file cannot be read or is not valid.
    pub(crate) fn read() -> Result<Self> {
        let path = times_path();
        if path.exists() { read(&path) } else { Ok(Self::default()) }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self) -> Result<()> {
        let mut text = String::from(
            "# Seconds that each build step (from scratch) and test program needed on two idle cores, and its CPU time with children.\n\
             # Written by `cargo xtask test --record`.\n",
        );
        for (section, rows) in [("steps", &self.steps), ("programs", &self.programs)] {
            text.push_str(&format!("\n[{section}]\n"));
            for (name, took) in rows {
                text.push_str(&format!("{name} = {{ wall = {:.1}, cpu = {:.1} }}\n", took.wall, took.cpu));
            }
        }
        let path = times_path();
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn times_path() -> PathBuf {
    host::root().join("tests/times.toml")
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))
}

impl Table {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, is not valid, or grants a budget without a reason.
    pub(crate) fn read() -> Result<Self> {
        let path = host::root().join("tests/tests.toml");
        let table: Self = read(&path)?;
        table.check().with_context(|| format!("{} is not valid", path.display()))?;
        Ok(table)
    }

    fn check(&self) -> Result<()> {
        for (name, program) in &self.programs {
            let reason = program.reason.as_ref().is_some_and(|reason| !reason.trim().is_empty());
            ensure!(program.cpu_seconds.is_some() == reason, "{name}: cpu_seconds and reason go together");
            let more = program.cpu_seconds.is_none_or(|budget| budget > self.limits.program_cpu_seconds);
            ensure!(more, "{name}: cpu_seconds is not more than the limit; remove it");
        }
        Ok(())
    }

    /// Returns the needs of the program.
    pub(crate) fn of(&self, name: &str) -> Program {
        self.programs.get(name).cloned().unwrap_or_default()
    }

    /// Lists the exceeded budgets. `used` has the CPU seconds of each program.
    pub(crate) fn over_budget(&self, used: &[(String, f64)]) -> Vec<String> {
        let mut over = Vec::new();
        for (name, cpu) in used {
            let budget = self.of(name).cpu_seconds.unwrap_or(self.limits.program_cpu_seconds);
            if *cpu > seconds(budget) {
                over.push(format!(
                    "{name} used {cpu:.0} CPU seconds; its budget is {budget} (tests/tests.toml)"
                ));
            }
        }
        let total: f64 = used.iter().map(|(_, cpu)| cpu).sum();
        let budget = self.limits.total_cpu_minutes;
        if total > seconds(budget * 60) {
            over.push(format!("all tests used {:.1} CPU minutes; their budget is {budget}", total / 60.0));
        }
        over
    }
}

/// Returns a number of seconds as a floating-point number.
fn seconds(count: u64) -> f64 {
    Duration::from_secs(count).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "[limits]\nprogram_cpu_seconds = 100\ntotal_cpu_minutes = 5\n\
        [programs.big]\ncpu_seconds = 150\nreason = \"three kubelets\"\n";

    #[test]
    fn rows_name_programs_that_exist() {
        for name in Table::read().unwrap().programs.keys() {
            let source = host::root().join(format!("tests/tests/{name}.rs"));
            assert!(source.exists(), "tests/tests.toml: {name}: {} is not there", source.display());
        }
    }

    #[test]
    fn budget_applies_to_each_program_and_to_the_sum() {
        let table: Table = toml::from_str(TABLE).unwrap();
        table.check().unwrap();
        let used = |name: &str, cpu| (name.to_owned(), cpu);
        assert!(table.over_budget(&[used("big", 149.0), used("small", 99.0)]).is_empty());
        let over = table.over_budget(&[used("big", 151.0), used("small", 101.0), used("other", 60.0)]);
        assert_eq!(over.len(), 3, "{over:?}");
        assert!(over[2].contains("5.2 CPU minutes"), "{over:?}");
    }

    #[test]
    fn exception_needs_a_reason_and_a_larger_budget() {
        for wrong in ["reason = \"three kubelets\"", "cpu_seconds = 150"] {
            let table: Table = toml::from_str(&TABLE.replace(wrong, "")).unwrap();
            assert!(table.check().is_err(), "without {wrong}");
        }
        let table: Table = toml::from_str(&TABLE.replace("150", "50")).unwrap();
        assert!(table.check().is_err());
    }

    #[test]
    fn deadline_and_order_come_from_recorded_times() {
        let times: Times = toml::from_str("[programs]\nslow = { wall = 100.0, cpu = 150.0 }\n").unwrap();
        assert_eq!(times.deadline("slow"), Duration::from_secs(800));
        assert_eq!(times.expected("slow"), Duration::from_secs(100));
        assert_eq!(times.deadline("new"), DEADLINE_UNKNOWN);
        assert!((times.of("slow").unwrap().load() - 1.5).abs() < 1e-9);
    }
}
