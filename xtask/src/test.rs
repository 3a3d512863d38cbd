//! `cargo xtask test`: builds, checks and tests as one graph of jobs; ends with the failures, the times, and the count.
//!
//! Cheap results come first: format, lints and unit tests run before the release is built. A job that cannot run because something is
//! missing is a failure.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::programs::{self, Program, Tier};
use crate::runner::{self, Finished, Job, Kind};
use crate::table::{Table, Times};
use crate::times::Recorder;
use crate::{fuzz, progress, setup, soak, steps};

/// Steps and checks of a full run, in addition to those that the test programs need.
const CHECKS: &[&str] = &["fmt", "deny", "agent-size", "fuzz-programs"];
/// Steps that start first: those with the earliest verdicts, and those that wait for the network.
const FIRST_STEPS: &[&str] = &["test-programs", "fmt", "debian", "redfish-emulator", "cloud-init"];
/// Time that each fuzz target runs, in seconds.
const FUZZ_SECONDS: u64 = 5;

/// Options of the command.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Options<'a> {
    /// Only this tier.
    pub(crate) tier: Option<Tier>,
    /// Only tests whose name contains this text; no checks.
    pub(crate) filter: Option<&'a str>,
    /// Writes tests/times.toml at the end.
    pub(crate) record: bool,
}

/// Results of the jobs.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    passed: u32,
    failed: u32,
    ignored: u32,
    failures: Vec<String>,
}

/// Result of one test program.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    passed: u32,
    failed: u32,
    ignored: u32,
    /// Names of the failed tests.
    names: Vec<String>,
}

impl Outcome {
    /// Reads what libtest printed: the counts, and the names in the list that follows `failures:`.
    fn read(output: &str) -> Self {
        let mut outcome = Self::default();
        let mut in_list = false;
        for line in output.lines() {
            if line == "failures:" {
                in_list = true;
                continue;
            }
            in_list &= line.starts_with("    ");
            let name = line.trim();
            if in_list && !name.contains(' ') && !outcome.names.iter().any(|known| known == name) {
                outcome.names.push(name.to_owned());
            }
            let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
            else {
                continue;
            };
            for part in counts.split("; ") {
                let mut words = part.split_whitespace();
                let Some(number) = words.next().and_then(|word| word.parse::<u32>().ok()) else { continue };
                match words.next() {
                    Some("passed") => outcome.passed += number,
                    Some("failed") => outcome.failed += number,
                    Some("ignored") => outcome.ignored += number,
                    _ => {}
                }
            }
        }
        outcome
    }
}

impl Totals {
    /// Counts a job. `tests` has the names of the tests of a program.
    pub(crate) fn add(&mut self, finished: &Finished, filtered: bool, tests: impl Fn() -> Vec<String>) {
        if matches!(finished.kind, Kind::Step | Kind::Check) || is_fuzz_or_mutants(&finished.name) {
            self.add_step(finished);
        } else {
            self.add_program(finished, filtered, tests);
        }
    }

    /// Counts a step or check. A failed one is a failure; a check that succeeded counts as passed.
    fn add_step(&mut self, finished: &Finished) {
        match &finished.error {
            Some(error) => self.fail(format!("{}: {error:#}", finished.name)),
            None if finished.kind == Kind::Step => {}
            None => self.passed += 1,
        }
    }

    /// Counts a test program. A program that failed without a failed test counts as a failed test.
    fn add_program(&mut self, finished: &Finished, filtered: bool, tests: impl Fn() -> Vec<String>) {
        let outcome = Outcome::read(&finished.output);
        self.passed += outcome.passed;
        self.ignored += outcome.ignored;
        self.failed += outcome.failed;
        self.failures.extend(outcome.names.iter().map(|test| format!("{}: {test}", finished.name)));
        let unnamed = usize::try_from(outcome.failed).unwrap_or(usize::MAX) > outcome.names.len();
        match &finished.error {
            Some(error) if outcome.failed == 0 || unnamed => {
                let unfinished = unfinished(&finished.output, &tests());
                self.failures.push(format!("{}: {error:#}{unfinished}", finished.name));
                self.failed += u32::from(outcome.failed == 0);
            }
            None if outcome.passed == 0 && !filtered => {
                self.fail(format!("{}: no test was run", finished.name));
            }
            _ => {}
        }
    }

    /// Number of failures so far.
    pub(crate) fn failures(&self) -> u32 {
        self.failed
    }

    /// Counts a failure that is not a job.
    pub(crate) fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }
}

/// Returns true for soak tasks that are not test programs.
fn is_fuzz_or_mutants(name: &str) -> bool {
    name.starts_with("fuzz-") || name.starts_with("mutants-")
}

/// Maximum number of unfinished tests that a failure names.
const MAX_UNFINISHED: usize = 5;

/// Names the tests of a program that its output does not report as ended, for a program that was killed or has crashed.
fn unfinished(output: &str, all: &[String]) -> String {
    let is_end = |line: &str| [" ... ok", " ... FAILED", " ... ignored"].iter().any(|end| line.contains(end));
    let ended: Vec<&str> = output
        .lines()
        .filter(|line| is_end(line))
        .filter_map(|line| line.strip_prefix("test ")?.split(" ... ").next())
        .collect();
    let names: Vec<&str> = all.iter().map(String::as_str).filter(|name| !ended.contains(name)).collect();
    match names.len() {
        0 => String::new(),
        count if count > MAX_UNFINISHED => format!("; {count} tests had not ended, such as {}", names[0]),
        _ => format!("; not ended: {}", names.join(", ")),
    }
}

/// Runs the selected checks and tests.
///
/// # Errors
/// Something failed, or no test has the name.
pub(crate) fn run(options: Options<'_>) -> Result<()> {
    let Options { tier, filter, record } = options;
    // The time of a part of a program would be the deadline of the whole.
    ensure!(
        !record || (tier.is_none() && filter.is_none()),
        "--record needs a whole run: omit --tier and the text"
    );
    let mut recorder = Recorder::start("cargo xtask test");
    let (table, mut times) = (Table::read()?, Times::read()?);
    setup::announce(setup::Need::Tests)?;
    soak::print_last();
    let whole = filter.is_none() && tier.is_none_or(|tier| tier == Tier::A);
    let first = steps::jobs(if whole { FIRST_STEPS } else { &["test-programs"] }, &times)?;
    // A step whose work is done is not among them, and nothing may wait for it.
    let started: Vec<String> = first.iter().map(|job| job.name.clone()).collect();
    let mut totals = Totals::default();
    let mut selected: Vec<Program> = Vec::new();
    progress::heading("Build, checks and tests");
    progress::step("jobs", |step| {
        runner::run(step, first, |step, finished| {
            recorder.add(&finished);
            show(step, &recorder, &finished);
            totals.add(&finished, filter.is_some(), || {
                let program = selected.iter().find(|program| program.name == finished.name);
                program.and_then(|program| program.tests(filter).ok()).unwrap_or_default()
            });
            if finished.name != "test-programs" || finished.error.is_some() {
                return Vec::new();
            }
            match rest(options, whole, &table, &times, &started) {
                Ok((programs, jobs)) => {
                    selected = programs;
                    jobs
                }
                Err(error) => {
                    totals.fail(format!("{error:#}"));
                    Vec::new()
                }
            }
        })
    })?;
    recorder.finish()?;
    if whole && tier.is_none() && totals.failed == 0 {
        check_tables(&table, &recorder, &programs::read()?, &mut totals);
        let new: Vec<&str> = recorder.names().filter(|name| times.of(name).is_none()).collect();
        if !record && !new.is_empty() {
            println!("  without a recorded time: {}; run `cargo xtask test --record`", new.join(", "));
        }
    }
    if record && totals.failed == 0 {
        recorder.record(&mut times);
        times.write()?;
    }
    summary(&totals, recorder.elapsed())
}

/// Counts each budget that was exceeded, and each row of the table without a program, as a failure.
fn check_tables(table: &Table, recorder: &Recorder, programs: &[Program], totals: &mut Totals) {
    for over in table.over_budget(&recorder.tests()) {
        totals.fail(over);
    }
    for name in table.programs.keys().filter(|name| !programs.iter().any(|program| program.name == **name)) {
        totals.fail(format!("tests/tests.toml: no test program is named {name}"));
    }
}

/// Returns the jobs that follow the build of the test programs: the programs, and the steps that they and the checks need.
fn rest(
    options: Options<'_>,
    whole: bool,
    table: &Table,
    times: &Times,
    started: &[String],
) -> Result<(Vec<Program>, Vec<Job>)> {
    let mut programs = programs::read()?;
    programs.retain(|program| match options.tier {
        Some(tier) => program.tier == tier,
        None => program.tier != Tier::Soak,
    });
    if options.filter.is_some() {
        let mut matching = Vec::new();
        for program in programs {
            if !program.tests(options.filter)?.is_empty() {
                matching.push(program);
            }
        }
        programs = matching;
    }
    let mut names: Vec<&str> = programs.iter().flat_map(|program| program.needs().iter().copied()).collect();
    if whole {
        names.extend(CHECKS);
    }
    let mut jobs = steps::jobs(&names, times)?;
    jobs.retain(|job| !started.contains(&job.name));
    let due: Vec<String> = jobs.iter().map(|job| job.name.clone()).chain(started.iter().cloned()).collect();
    jobs.extend(programs.iter().map(|program| program.job(options.filter, &due, table, times)));
    if whole {
        jobs.extend(fuzz::jobs(Kind::Check, FUZZ_SECONDS)?);
    }
    if options.tier.is_none_or(|tier| tier == Tier::A) && options.filter.is_none() {
        jobs.push(programs::documentation(options.filter, times)?);
    }
    steps::check_names(&jobs)?;
    Ok((programs, jobs))
}

/// Shows a job that has ended: a line, the stage times of boots, and the end of the output of one that failed.
pub(crate) fn show(step: &progress::Step, recorder: &Recorder, finished: &Finished) {
    let Finished { name, output, usage, error, .. } = finished;
    let outcome = Outcome::read(output);
    let counts = if outcome.passed + outcome.failed + outcome.ignored > 0 {
        format!(": {} passed, {} failed", outcome.passed, outcome.failed)
    } else {
        String::new()
    };
    let elapsed = recorder.elapsed().as_secs();
    step.say(&format!(
        "{:>3}:{:02} {} {name}{counts} ({}, {} CPU)",
        elapsed / 60,
        elapsed % 60,
        runner::mark(error.is_none()),
        progress::seconds(usage.wall),
        progress::seconds(usage.cpu)
    ));
    output
        .lines()
        .filter(|line| line.starts_with("boot ") || line.starts_with("note: "))
        .for_each(|line| step.say(&format!("        {line}")));
    if let Some(error) = error {
        details(output).for_each(|line| step.say(&format!("        {line}")));
        step.say(&format!("        {name}: {error:#}"));
    }
}

/// Returns the output of a failed job without passed tests and without lines that are already shown.
fn details(output: &str) -> impl Iterator<Item = &str> {
    progress::tail(output).filter(|line| {
        let test = line.starts_with("test ") && (line.ends_with(" ... ok") || line.ends_with(" ... FAILED"));
        !test && !line.starts_with("boot ")
    })
}

/// Prints the failures and the count.
///
/// # Errors
/// Something failed, or nothing ran.
pub(crate) fn summary(totals: &Totals, elapsed: Duration) -> Result<()> {
    progress::heading(&format!("Total, {}", progress::seconds(elapsed)));
    for failure in &totals.failures {
        println!("  {} {failure}", progress::bad("failed"));
    }
    let ignored = if totals.ignored > 0 { format!(", {} ignored", totals.ignored) } else { String::new() };
    let line = format!("{} passed, {} failed{ignored}", totals.passed, totals.failed);
    println!("{}", if totals.failed == 0 { progress::good(&line) } else { progress::bad(&line) });
    if totals.failed > 0 {
        bail!("{} failed", totals.failed);
    }
    if totals.passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Usage;

    fn finished(output: &str, error: Option<&str>) -> Finished {
        Finished {
            name: "program".to_owned(),
            kind: Kind::TierC,
            output: output.to_owned(),
            usage: Usage::default(),
            overdue: false,
            error: error.map(|error| anyhow::anyhow!("{error}")),
        }
    }

    #[test]
    fn results_of_test_programs_add_up() {
        let mut totals = Totals::default();
        let line =
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        totals.add_program(&finished(line, None), false, Vec::new);
        let line = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        totals.add_program(&finished(line, Some("exit status: 101")), false, Vec::new);
        assert_eq!((totals.passed, totals.failed, totals.ignored), (13, 1, 1));
    }

    /// With one test thread, libtest prints the name before the test runs, and the test's own lines follow.
    #[test]
    fn failed_test_is_named_if_other_output_splits_its_line() {
        let output = "test c4_rollout ... boot server-1: offered 1.2 s\nFAILED\n\nfailures:\n\n---- c4_rollout stdout ----\n\
            Error: no\n\nfailures:\n    c4_rollout\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored";
        let mut totals = Totals::default();
        totals.add_program(&finished(output, Some("exit status: 101")), false, Vec::new);
        assert_eq!(totals.failures, ["program: c4_rollout"]);
        assert_eq!(totals.failed, 1);
    }

    #[test]
    fn killed_program_and_program_without_tests_are_failures() {
        let mut totals = Totals::default();
        let tests = || ["a::b", "a::c"].map(str::to_owned).to_vec();
        totals.add_program(&finished("test a::b ... ok\n", Some("killed at its deadline")), false, tests);
        assert_eq!(totals.failures, ["program: killed at its deadline; not ended: a::c"]);
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        totals.add_program(&finished(none, None), false, Vec::new);
        assert_eq!(totals.failed, 2);
        totals.add_program(&finished(none, None), true, Vec::new);
        assert_eq!(totals.failed, 2, "a filter may leave a program without tests");
    }

    #[test]
    fn failure_output_omits_passed_tests() {
        let output = "test a ... ok\nboot a: discover 1.2 s\nfailures:\n\n---- a::b stdout ----\nleft: 1\n";
        assert_eq!(details(output).collect::<Vec<_>>(), ["failures:", "---- a::b stdout ----", "left: 1"]);
    }

    #[test]
    fn run_without_a_test_fails() {
        assert!(summary(&Totals::default(), Duration::ZERO).is_err());
    }
}
