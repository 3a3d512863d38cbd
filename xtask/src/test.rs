//! `cargo xtask test`: checks, then the tests tier by tier, each step with its time, the totals at the end.
//!
//! Tiers by the name of the test program in `tests/tests`: `boot_*` is tier b, `whole_*` tier c, all else tier a, with
//! the unit tests of every crate. What cannot run because something is missing has failed.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::progress::{self, Step};
use crate::{Tier, build, check, demo, host, image, setup};

/// How many tests of a program run at once; each boots machines, and the guests share two cores.
const BOOTS_AT_ONCE: &str = "2";

/// Lines of one failed test's output that are shown.
const SHOWN: usize = 30;

/// What ran and how it ended.
#[derive(Default)]
struct Totals {
    passed: u32,
    failed: u32,
    ignored: u32,
    failures: Vec<String>,
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

    fn fail(&mut self, what: &str) {
        self.failed += 1;
        self.failures.push(what.to_owned());
    }
}

/// Runs what was asked for; an error if anything failed.
pub(crate) fn run(tier: Option<Tier>, filter: Option<&str>) -> Result<()> {
    let started = Instant::now();
    if tier == Some(Tier::C) && programs(Tier::C)?.is_empty() {
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
    if wants(Tier::A) {
        progress::heading("Tier a: unit, protocol, API server");
        let mut units = build::cargo();
        units.args(["test", "--locked", "--no-fail-fast", "--workspace", "--exclude", "bedplate-tests"]);
        tests(&mut totals, "unit tests", units, filter, &[]);
        tier_step(&mut totals, "tests without machines", Tier::A, filter)?;
    }
    if wants(Tier::B) {
        progress::heading("Tier b: real firmware, from power-on to enrolled");
        tier_step(&mut totals, "boots", Tier::B, filter)?;
    }
    if wants(Tier::C) && !programs(Tier::C)?.is_empty() {
        progress::heading("Tier c: whole machines");
        tier_step(&mut totals, "whole machines", Tier::C, filter)?;
    }
    summary(&totals, started)
}

fn summary(totals: &Totals, started: Instant) -> Result<()> {
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

/// The test programs of a tier.
fn programs(tier: Tier) -> Result<Vec<String>> {
    let directory = host::root().join("tests/tests");
    let mut names = Vec::new();
    for entry in
        std::fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    names.retain(|name| {
        let of = match name.split('_').next() {
            Some("boot") => Tier::B,
            Some("whole") => Tier::C,
            _ => Tier::A,
        };
        of == tier
    });
    Ok(names)
}

fn tier_step(totals: &mut Totals, name: &str, tier: Tier, filter: Option<&str>) -> Result<()> {
    let programs = programs(tier)?;
    let mut command = build::cargo();
    command.args(["test", "--locked", "--no-fail-fast", "-p", "bedplate-tests"]);
    if tier == Tier::A {
        command.args(["--lib", "--bins"]);
    }
    for program in &programs {
        command.args(["--test", program]);
    }
    let threads: &[&str] = if tier == Tier::A { &[] } else { &["--test-threads", BOOTS_AT_ONCE] };
    tests(totals, name, command, filter, threads);
    Ok(())
}

/// Runs `cargo test` and counts; a program that does not even build or start counts as one failed test.
fn tests(totals: &mut Totals, name: &str, mut command: Command, filter: Option<&str>, arguments: &[&str]) {
    command.args(filter).arg("--").args(arguments);
    demo::environment(&mut command);
    let mut program = name.to_owned();
    let mut failed = 0;
    let mut why = Why::default();
    let result = progress::step(name, |step| {
        step.run_watched(&mut command, |line| {
            if let Some(running) = line.trim_start().strip_prefix("Running ") {
                program = short_name(running);
            }
            failed += totals.read(&program, line);
            why.read(line);
            show(step, &program, line);
        })
    });
    if let Err(error) = result {
        why.lines.iter().for_each(|line| println!("      {line}"));
        println!("      {error:#}");
        if failed == 0 {
            totals.fail(name);
        }
    }
}

/// Why tests failed: the beginning of what each has printed, and what the compiler has against them.
#[derive(Default)]
struct Why {
    lines: Vec<String>,
    /// Lines of the section at hand that are still taken.
    left: usize,
    /// All is compiled: what looks like a compiler's error from now on is a test's own output.
    running: bool,
}

impl Why {
    fn read(&mut self, line: &str) {
        let begins = line.starts_with("---- ") && line.ends_with(" stdout ----");
        self.running |= line.trim_start().starts_with("Running ");
        if begins || (!self.running && line.starts_with("error")) {
            self.left = SHOWN;
        } else if line.starts_with("failures:") || line.starts_with("test result:") {
            self.left = 0;
        }
        if self.left > 0 {
            self.left -= 1;
            self.lines.push(line.to_owned());
        }
    }
}

/// `tests/boot_bios.rs (target/debug/deps/boot_bios-0123)` is `boot_bios`; `unittests src/lib.rs (.../pxed-0123)` is `pxed`.
fn short_name(running: &str) -> String {
    let file = running.rsplit('/').next().unwrap_or(running).trim_end_matches(')');
    file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned()
}

/// What of the tests' output is worth a line of its own: each program's result, each failure, each boot's stage times.
fn show(step: &Step, program: &str, line: &str) {
    if let Some(result) = line.strip_prefix("test result: ") {
        if !result.contains(" 0 passed; 0 failed") {
            let counts: Vec<&str> = result.split("; ").take(2).collect();
            step.say(&format!("      {program}: {}", counts.join(", ").trim_start_matches("ok. ")));
        }
    } else if line.ends_with(" ... FAILED") || line.starts_with("boot ") {
        step.say(&format!("      {line}"));
    }
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
    fn only_what_failed_tests_printed_is_shown() {
        let mut why = Why::default();
        let output = [
            "     Running tests/a.rs (target/debug/deps/a-0123)",
            "error: said by a test that wants it",
            "test a ... ok",
            "failures:",
            "---- a::b stdout ----",
            "left: 1",
            "failures:",
            "    a::b",
        ];
        output.iter().for_each(|line| why.read(line));
        assert_eq!(why.lines, ["---- a::b stdout ----", "left: 1"]);
    }

    #[test]
    fn program_is_named_without_path_and_hash() {
        assert_eq!(short_name("tests/boot_bios.rs (target/debug/deps/boot_bios-0123abcd)"), "boot_bios");
        assert_eq!(short_name("unittests src/lib.rs (target/debug/deps/bedplate_api-0123)"), "bedplate_api");
    }
}
