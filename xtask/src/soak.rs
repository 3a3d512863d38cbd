//! `cargo xtask soak`: long tests that need not run each time. Resumable: the task that ran longest ago runs first.
//!
//! The results are stored in `<cache>/soak.json`; `cargo xtask test` prints their age and the failures.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::programs::{self, Program, Tier};
use crate::runner::{self, Job, Kind};
use crate::table::{Table, Times};
use crate::test::{Totals, show, summary};
use crate::times::Recorder;
use crate::{fuzz, host, mutants, progress, setup, steps};

/// Time that each fuzz target runs, in seconds.
const FUZZ_SECONDS: u64 = 600;
/// Deadline of a task that was never run on this machine.
const TASK_TIMEOUT: Duration = Duration::from_secs(3 * 3600);
/// Age at which the results are shown as a failure.
const MAX_AGE: Duration = Duration::from_secs(14 * 24 * 3600);

/// Last result of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    /// End, in seconds since 1970.
    finished: u64,
    /// Length in seconds.
    seconds: u64,
    /// True if it succeeded.
    ok: bool,
    /// The commit that was tested.
    commit: String,
}

type Records = BTreeMap<String, Record>;

/// Options of the command.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Minutes after which no further task starts.
    pub(crate) minutes: Option<u64>,
    /// Only tasks whose name contains this text.
    pub(crate) filter: Option<String>,
    /// Prints the tasks with their last results and does nothing else.
    pub(crate) list: bool,
}

fn path() -> PathBuf {
    host::cache().join("soak.json")
}

fn read() -> Records {
    let text = std::fs::read(path()).unwrap_or_default();
    // A file of another version is ignored, so all tasks run again.
    serde_json::from_slice(&text).unwrap_or_default()
}

fn write(records: &Records) -> Result<()> {
    let text = serde_json::to_vec_pretty(records).context("cannot write the results as JSON")?;
    let (path, next) = (path(), path().with_extension("next"));
    std::fs::write(&next, text)
        .and_then(|()| std::fs::rename(&next, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Prints the line about the last results for `cargo xtask test`.
pub(crate) fn print_last() {
    println!("{}", last(&read(), now()));
}

/// Returns the age of the results and the failed tasks.
fn last(records: &Records, now: u64) -> String {
    let Some(oldest) = records.values().map(|record| record.finished).min() else {
        return "soak: never run on this machine; run `cargo xtask soak`".to_owned();
    };
    let failed: Vec<&str> =
        records.iter().filter(|(_, record)| !record.ok).map(|(name, _)| name.as_str()).collect();
    let days = now.saturating_sub(oldest) / (24 * 3600);
    let age =
        if now.saturating_sub(oldest) > MAX_AGE.as_secs() { "; run `cargo xtask soak` again" } else { "" };
    let result =
        if failed.is_empty() { "all succeeded".to_owned() } else { format!("failed: {}", failed.join(", ")) };
    format!("soak: {} tasks were run, the oldest result is {days} days old{age}; {result}", records.len())
}

/// Orders the tasks: never run first, then the oldest result.
fn order(names: &mut [String], records: &Records) {
    names.sort_by_key(|name| records.get(name).map_or(0, |record| record.finished));
}

/// Runs the tasks.
///
/// # Errors
/// A task failed, or no task has the name.
pub(crate) fn run(options: &Options) -> Result<()> {
    let begin = Instant::now();
    let mut recorder = Recorder::start("cargo xtask soak");
    let (table, times) = (Table::read()?, Times::read()?);
    if !options.list {
        prepare(&mut recorder, &times)?;
    }
    let programs = programs::read().context("run `cargo xtask soak` once without --list")?;
    let mut jobs = tasks(&programs, &table, &times)?;
    let mut records = read();
    records.retain(|name, _| jobs.contains_key(name));
    let mut names: Vec<String> = jobs.keys().cloned().collect();
    names.retain(|name| options.filter.as_ref().is_none_or(|filter| name.contains(filter)));
    ensure!(!names.is_empty(), "no task has that name; see `cargo xtask soak --list`");
    order(&mut names, &records);
    if options.list {
        names.iter().for_each(|name| println!("{}", line(name, records.get(name), now())));
        return Ok(());
    }
    let limit = options.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let commit = commit();
    let (mut totals, mut started) = (Totals::default(), 0_u32);
    for name in names {
        let known = records.get(&name).map_or(0, |record| record.seconds);
        let rest = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
        if rest.is_some_and(|rest| rest <= Duration::from_secs(known)) {
            println!("  not started, it takes longer than the minutes that are left: {name}");
            continue;
        }
        let Some(job) = jobs.remove(&name) else { continue };
        started += 1;
        if let Some(record) = run_task(job, rest, &programs, &mut recorder, &mut totals)? {
            records.insert(name, Record { commit: commit.clone(), ..record });
            write(&records)?;
        }
    }
    recorder.finish()?;
    ensure!(started > 0, "no task fits into the minutes; see `cargo xtask soak --list`");
    summary(&totals, recorder.elapsed())
}

/// Builds what the tasks need.
fn prepare(recorder: &mut Recorder, times: &Times) -> Result<()> {
    setup::announce(setup::Need::Soak)?;
    let mut needs = vec!["test-programs", "fuzz-programs"];
    needs.extend(programs::SYSTEM_NEEDS.iter().chain(programs::SOAK_NEEDS));
    runner::run_all("preparation", steps::jobs(&needs, times)?, |finished| recorder.add(finished))?;
    mutants::prepare()
}

/// Runs one task for at most `rest`. Returns its record; none if the task needs more time than that.
fn run_task(
    mut job: Job,
    rest: Option<Duration>,
    programs: &[Program],
    recorder: &mut Recorder,
    totals: &mut Totals,
) -> Result<Option<Record>> {
    let is_cut = rest.is_some_and(|rest| rest < job.deadline);
    job.deadline = rest.map_or(job.deadline, |rest| rest.min(job.deadline));
    let mut record = None;
    progress::step(&job.name.clone(), |step| {
        runner::run(step, vec![job], |step, mut finished| {
            recorder.add(&finished);
            if finished.overdue && is_cut {
                step.say(&format!("  {} needs more than the minutes that were left", finished.name));
                return Vec::new();
            }
            if finished.error.is_none() {
                finished.error = mutants::examine(step, &finished.name).err();
            }
            show(step, recorder, &finished);
            let failures = totals.failures();
            totals.add(&finished, false, || {
                let program = programs.iter().find(|program| program.name == finished.name);
                program.and_then(|program| program.tests(None).ok()).unwrap_or_default()
            });
            record = Some(Record {
                finished: now(),
                seconds: finished.usage.wall.as_secs(),
                ok: totals.failures() == failures,
                commit: String::new(),
            });
            Vec::new()
        })
    })?;
    Ok(record)
}

/// Returns a line of `--list`.
fn line(name: &str, record: Option<&Record>, now: u64) -> String {
    match record {
        None => format!("{name}: never run"),
        Some(record) => format!(
            "{name}: {}, {} hours ago, commit {}, took {}",
            if record.ok { "succeeded" } else { "failed" },
            now.saturating_sub(record.finished) / 3600,
            record.commit,
            progress::seconds(Duration::from_secs(record.seconds))
        ),
    }
}

fn commit() -> String {
    let output =
        Command::new("git").current_dir(host::root()).args(["describe", "--always", "--dirty"]).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Returns all tasks by name.
fn tasks(programs: &[Program], table: &Table, times: &Times) -> Result<BTreeMap<String, Job>> {
    let mut jobs: Vec<Job> = programs
        .iter()
        .filter(|program| program.tier == Tier::Soak)
        .map(|program| program.job(None, &[], table, times))
        .collect();
    jobs.extend(fuzz::jobs(Kind::Soak, FUZZ_SECONDS)?);
    jobs.extend(mutants::jobs()?);
    for job in &mut jobs {
        job.kind = Kind::Soak;
        // Each task runs alone, after all steps.
        job.requirements.needs.clear();
        job.deadline = job.deadline.max(TASK_TIMEOUT);
    }
    Ok(jobs.into_iter().map(|job| (job.name.clone(), job)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(finished: u64, ok: bool) -> Record {
        Record { finished, seconds: 60, ok, commit: "abc".to_owned() }
    }

    #[test]
    fn task_without_a_result_runs_first_then_the_oldest() {
        let records =
            Records::from([("new".to_owned(), record(9, true)), ("old".to_owned(), record(3, false))]);
        let mut names = ["new", "never", "old"].map(str::to_owned);
        order(&mut names, &records);
        assert_eq!(names, ["never", "old", "new"]);
    }

    #[test]
    fn last_run_is_stated_with_its_age_and_failures() {
        let day = 24 * 3600;
        assert!(last(&Records::new(), 0).contains("never run"));
        let mut records = Records::from([("a".to_owned(), record(day, true))]);
        assert_eq!(
            last(&records, 4 * day),
            "soak: 1 tasks were run, the oldest result is 3 days old; all succeeded"
        );
        records.insert("b".to_owned(), record(2 * day, false));
        let old = last(&records, 30 * day);
        assert!(old.contains("failed: b") && old.contains("again"), "{old}");
    }
}
