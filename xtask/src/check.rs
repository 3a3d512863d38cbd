//! The checks of `cargo xtask test` that are not tests: format, lints, dependencies, size, fuzzing.
//!
//! Not here: generated files (api/tests/crds.rs) and units (tests/tests/systemd_units.rs), which are tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::pool::{self, Job};
use crate::progress::Step;
use crate::{build, deny, host};

/// How long each fuzz target runs; more by `BEDPLATE_FUZZ_SECONDS`.
const FUZZ_SECONDS: &str = "5";

/// The agent is fetched by every host at every boot, and waits all the time: so many bytes at most.
const LARGEST_AGENT: u64 = 20_000_000;

/// A check by its name.
pub(crate) type Check = (&'static str, fn(&Step) -> Result<()>);

/// All checks, the quick ones first.
pub(crate) const ALL: [Check; 5] = [
    ("cargo fmt --check", format),
    ("cargo deny check", deny::check),
    ("size of the static agent", size),
    ("cargo clippy -D warnings", clippy),
    ("fuzz targets, bounded", fuzz),
];

fn format(step: &Step) -> Result<()> {
    step.run(build::cargo().args(["fmt", "--all", "--check"]))
}

/// Of the binary that goes out; `test::run` has built it.
fn size(step: &Step) -> Result<()> {
    let path = build::release().join("bedplate-agent");
    let size = std::fs::metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?.len();
    step.say(&format!("      {size} bytes"));
    ensure!(
        size < LARGEST_AGENT,
        "{} has {size} bytes, at most {LARGEST_AGENT} are wanted: `cargo tree -d -p bedplate-agent`, `nm --size-sort`",
        path.display()
    );
    Ok(())
}

fn clippy(step: &Step) -> Result<()> {
    step.run(build::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Builds the fuzz targets as cargo-fuzz does without a sanitizer (only `-C` flags, so a stable compiler is enough) and
/// runs each for a bounded time, as many at once as there are cores.
fn fuzz(step: &Step) -> Result<()> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=on -Coverflow-checks=on -Ccodegen-units=1";
    let manifest = host::root().join("fuzz/Cargo.toml");
    let text =
        std::fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let targets = binaries(&text);
    if targets.is_empty() {
        bail!("{} has no [[bin]]", manifest.display());
    }
    let out = host::target().join("fuzz");
    let mut command = build::cargo();
    command.env("RUSTFLAGS", FLAGS).args([
        "build",
        "--release",
        "--locked",
        "--target",
        TARGET,
        "--manifest-path",
    ]);
    step.run(command.arg(&manifest).arg("--target-dir").arg(&out).arg("--bins"))?;
    let programs = out.join(TARGET).join("release");
    let jobs =
        targets.into_iter().map(|target| fuzz_job(target, &out, &programs)).collect::<Result<Vec<_>>>()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    pool::run(step, jobs, cores, |finished| {
        if let Some(error) = finished.error {
            finished.said.lines().for_each(|line| step.say(&format!("      {line}")));
            failed.push(format!("{error:#}"));
        }
    });
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(())
}

/// One fuzz target with its corpus, which stays, and its seeds.
fn fuzz_job(target: &str, out: &Path, programs: &Path) -> Result<Job> {
    let seconds = std::env::var("BEDPLATE_FUZZ_SECONDS").unwrap_or_else(|_| FUZZ_SECONDS.to_owned());
    let corpus = out.join("corpus").join(target);
    let artifacts = out.join("artifacts").join(target);
    for place in [&corpus, &artifacts] {
        std::fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    }
    let seeds = host::root().join("fuzz/seeds").join(target);
    if !seeds.is_dir() {
        bail!("fuzz target {target} has no seeds in fuzz/seeds/{target}");
    }
    let mut command = Command::new(programs.join(target));
    command
        .current_dir(out)
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=2048"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args([&corpus, &seeds]);
    Ok(Job { name: format!("fuzz-{target}"), command, alone: false })
}

/// Names of the `[[bin]]` sections.
fn binaries(manifest: &str) -> Vec<&str> {
    let sections = manifest.split("[[bin]]").skip(1);
    sections
        .filter_map(|section| section.lines().find_map(|l| l.strip_prefix("name = "))?.split('"').nth(1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_targets_are_the_manifests_binaries() {
        let manifest =
            "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"a\"\npath = \"a.rs\"\n[[bin]]\nname = \"b\"\n";
        assert_eq!(binaries(manifest), ["a", "b"]);
    }
}
