//! `cargo xtask test`: checks, then the tests tier by tier, each step with its time, the totals at the end.
//!
//! Tiers by the name of the test program in `tests/tests`: `boot_*` is tier b, `whole_*` tier c, all else tier a, with
//! the unit tests of every crate. What cannot run because something is missing has failed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::pool::{self, Finished, Job};
use crate::progress::{self, Step};
use crate::{Tier, build, check, deb, image, programs, setup};

/// So many of the programs that took longest are in the summary.
const SLOWEST: usize = 10;

/// What ran and how it ended.
#[derive(Default)]
struct Totals {
    passed: u32,
    failed: u32,
    ignored: u32,
    failures: Vec<String>,
    times: Vec<(Duration, String)>,
}

impl Totals {
    /// Takes in one line of a test program's output.
    fn read(&mut self, program: &str, line: &str) -> u32 {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(format!("{program}: {name}"));
        }
        let Some(counts) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return 0;
        };
        let mut failed = 0;
        for part in counts.1.split("; ") {
            let mut words = part.split_whitespace();
            let Some(number) = words.next().and_then(|word| word.parse::<u32>().ok()) else { continue };
            match words.next() {
                Some("passed") => self.passed += number,
                Some("failed") => failed += number,
                Some("ignored") => self.ignored += number,
                _ => {}
            }
        }
        self.failed += failed;
        failed
    }

    /// Takes in a program; one that ended badly without a failed test counts as one itself.
    fn take(&mut self, step: &Step, finished: &Finished) {
        let Finished { name, said, time, error } = finished;
        let failed: u32 = said.lines().map(|line| self.read(name, line)).sum();
        said.lines().filter_map(|line| worth_a_line(name, line, *time)).for_each(|line| step.say(&line));
        if let Some(error) = error {
            told(said).for_each(|line| step.say(&format!("      {line}")));
            step.say(&format!("      {error:#}"));
            if failed == 0 {
                self.fail(name);
            }
        }
        self.times.push((*time, name.clone()));
    }

    fn fail(&mut self, what: &str) {
        self.failed += 1;
        self.failures.push(what.to_owned());
    }
}

/// Runs what was asked for; an error if anything failed.
pub(crate) fn run(tier: Option<Tier>, filter: Option<&str>) -> Result<()> {
    let started = Instant::now();
    let whole_machines = programs::has_whole_machines()?;
    if tier == Some(Tier::C) && !whole_machines {
        println!("no tests in tier c yet");
        return Ok(());
    }
    let mut totals = Totals::default();
    let wants = |one: Tier| tier.is_none_or(|only| only == one);
    setup::run(setup::Need::Tests)?;
    progress::heading("Build");
    build::run()?;
    if wants(Tier::B) || wants(Tier::C) {
        image::host()?;
    }
    image::node::ensure()?;
    if wants(Tier::A) {
        deb::package()?;
    }
    if filter.is_none() && wants(Tier::A) {
        progress::heading("Checks");
        for (name, work) in check::ALL {
            match progress::step(name, work) {
                Ok(()) => totals.passed += 1,
                Err(error) => {
                    println!("      {error:#}");
                    totals.fail(name);
                }
            }
        }
    }
    progress::heading("Tests");
    match programs::build(wants(Tier::A)) {
        Ok(programs) => {
            for (one, name) in [
                (Tier::A, "tier a: unit, protocol, API server"),
                (Tier::B, "tier b: real firmware, from power-on to enrolled"),
                (Tier::C, "tier c: whole machines"),
            ] {
                let mut jobs = programs::jobs(&programs, one, filter);
                if one == Tier::A {
                    jobs.push(programs::documentation(filter));
                }
                if wants(one) && !jobs.is_empty() {
                    tests(&mut totals, name, jobs);
                }
            }
        }
        Err(error) => {
            println!("      {error:#}");
            totals.fail("test programs");
        }
    }
    summary(&mut totals, started)
}

/// Runs the programs of a tier and counts.
fn tests(totals: &mut Totals, name: &str, jobs: Vec<Job>) {
    // A failure is in the totals; the step itself tells it by its colour.
    let _ = progress::step(name, |step| {
        let before = totals.failed;
        pool::run(step, jobs, programs::at_once(), |finished| totals.take(step, &finished));
        if totals.failed > before {
            bail!("{} failed", totals.failed - before);
        }
        Ok(())
    });
}

fn summary(totals: &mut Totals, started: Instant) -> Result<()> {
    totals.times.sort_by(|a, b| b.cmp(a));
    if totals.times.len() > SLOWEST {
        progress::heading("Slowest programs");
        for (time, name) in totals.times.iter().take(SLOWEST) {
            println!("  {:>12}  {name}", progress::seconds(*time));
        }
    }
    progress::heading(&format!("Total, {}", progress::seconds(started.elapsed())));
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
        bail!("no test has that name");
    }
    Ok(())
}

/// What of the tests' output is worth a line of its own: each program's result, each failure, each boot's stage times.
fn worth_a_line(program: &str, line: &str, time: Duration) -> Option<String> {
    if let Some(result) = line.strip_prefix("test result: ") {
        if result.contains(" 0 passed; 0 failed") {
            return None;
        }
        let counts: Vec<&str> = result.split("; ").take(2).collect();
        let counts = counts.join(", ");
        let counts = counts.trim_start_matches("ok. ");
        return Some(format!("      {program}: {counts}, {}", progress::seconds(time)));
    }
    (line.ends_with(" ... FAILED") || line.starts_with("boot ")).then(|| format!("      {line}"))
}

/// What a failed program said, but for what is shown already and what went well.
fn told(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter(|line| {
        let test = line.starts_with("test ") && (line.ends_with(" ... ok") || line.ends_with(" ... FAILED"));
        !test && !line.starts_with("boot ") && !line.trim().is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_test_programs_add_up() {
        let mut totals = Totals::default();
        totals.read(
            "a",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
        );
        totals.read("b", "test x::y ... FAILED");
        totals.read("b", "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!((totals.passed, totals.failed, totals.ignored), (13, 1, 1));
        assert_eq!(totals.failures, ["b: x::y"]);
    }

    #[test]
    fn what_failed_is_told_whole_and_what_went_well_is_not() {
        let said = "test a ... ok\nboot a: discover 1.2 s\nfailures:\n\n---- a::b stdout ----\nleft: 1\n";
        assert_eq!(told(said).collect::<Vec<_>>(), ["failures:", "---- a::b stdout ----", "left: 1"]);
    }

    #[test]
    fn a_programs_result_is_a_line_with_its_time() {
        let line =
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        let shown = worth_a_line("boot_bmc", line, Duration::from_secs(75)).unwrap();
        assert_eq!(shown.trim(), "boot_bmc: 3 passed, 0 failed, 1 min 15 s");
        assert_eq!(worth_a_line("a", "test a ... ok", Duration::ZERO), None);
    }
}
