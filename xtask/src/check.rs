//! The checks of `cargo xtask test` that are not tests: format, lints, generated files, licences, units, fuzzing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::progress::Step;
use crate::{build, host, licence};

/// How long each fuzz target runs; more by `BEDPLATE_FUZZ_SECONDS`.
const FUZZ_SECONDS: &str = "10";

/// A check by its name.
pub(crate) type Check = (&'static str, fn(&Step) -> Result<()>);

/// All checks, the quick ones first.
pub(crate) const ALL: [Check; 6] = [
    ("cargo fmt --check", format),
    ("licences and origins of dependencies", dependencies),
    ("cargo clippy -D warnings", clippy),
    ("custom resource definitions are as generated", crd_drift),
    ("units pass systemd-analyze", units),
    ("fuzz targets, bounded", fuzz),
];

fn format(step: &Step) -> Result<()> {
    step.run(build::cargo().args(["fmt", "--all", "--check"]))
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

fn dependencies(step: &Step) -> Result<()> {
    let has_deny = Command::new("cargo-deny").arg("--version").output().is_ok_and(|o| o.status.success());
    if !has_deny {
        return licence::check();
    }
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let mut what = vec!["licenses", "bans", "sources"];
    if home.join("advisory-dbs").is_dir() {
        what.push("advisories");
    }
    step.run(build::cargo().args(["deny", "--offline", "check"]).args(what))
}

fn read_files(directory: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.insert(path, text);
        }
    }
    Ok(files)
}

/// Generates the CRDs anew, compares, and puts back what was there.
fn crd_drift(step: &Step) -> Result<()> {
    let directory = host::root().join("api/crds");
    let before = read_files(&directory)?;
    let generated = step.run(build::cargo().args([
        "run",
        "--quiet",
        "--locked",
        "-p",
        "bedplate-api",
        "--example",
        "crds",
    ]));
    let after = read_files(&directory)?;
    if before == after {
        return generated;
    }
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let mut names: Vec<String> =
        before.keys().chain(after.keys()).filter(differs).map(|path| path.display().to_string()).collect();
    names.dedup();
    for path in after.keys().filter(|path| !before.contains_key(*path)) {
        std::fs::remove_file(path)?;
    }
    for (path, text) in &before {
        std::fs::write(path, text)?;
    }
    generated?;
    bail!("out of date: {}; refresh with `cargo xtask crds` and commit", names.join(", "))
}

/// Verifies every unit under `systemd/` and `images/`. A program that is not installed here is replaced by `true`, which
/// is all that verification wants of it.
fn units(step: &Step) -> Result<()> {
    let mut units = Vec::new();
    for folder in ["systemd", "images"] {
        find_units(&host::root().join(folder), &mut units)?;
    }
    if units.is_empty() {
        bail!("no unit found under systemd/");
    }
    let place = host::target().join("xtask/units");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let mut copies = Vec::new();
    for unit in &units {
        let text =
            std::fs::read_to_string(unit).with_context(|| format!("cannot read {}", unit.display()))?;
        let copy = place.join(unit.file_name().unwrap_or_default());
        std::fs::write(&copy, with_programs_that_exist(&text))?;
        copies.push(copy);
    }
    let mut complaints = Vec::new();
    let mine = place.display().to_string();
    let verified = step.run_watched(
        Command::new("systemd-analyze").args(["verify", "--man=no", "--recursive-errors=no"]).args(&copies),
        |line| complaints.extend(line.contains(&mine).then(|| line.to_owned())),
    );
    if !complaints.is_empty() {
        bail!("systemd-analyze verify complains:\n  {}", complaints.join("\n  "));
    }
    verified?;
    let pxed = place.join("pxed.service");
    step.run(Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=30"]).arg(pxed))
        .context("pxed.service is more exposed than 3.0")
}

fn find_units(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            find_units(&path, found)?;
        } else if path
            .extension()
            .is_some_and(|e| ["service", "socket", "timer", "mount"].iter().any(|k| e == *k))
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

fn with_programs_that_exist(unit: &str) -> String {
    let lines = unit.lines().map(|line| {
        let Some((key, value)) = line.split_once('=').filter(|(key, _)| key.starts_with("Exec")) else {
            return line.to_owned();
        };
        let start = value.find('/').unwrap_or(value.len());
        let (prefix, rest) = value.split_at(start);
        let program = rest.split_whitespace().next().unwrap_or_default();
        if program.is_empty() || Path::new(program).exists() {
            return line.to_owned();
        }
        format!("{key}={prefix}/bin/true{}", &rest[program.len()..])
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// Builds the fuzz targets as cargo-fuzz does without a sanitizer (only `-C` flags, so a stable compiler is enough) and
/// runs each for a bounded time.
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
    command.env("RUSTFLAGS", FLAGS).args(["build", "--release", "--target", TARGET, "--manifest-path"]);
    step.run(command.arg(&manifest).arg("--target-dir").arg(&out).arg("--bins"))?;
    let seconds = std::env::var("BEDPLATE_FUZZ_SECONDS").unwrap_or_else(|_| FUZZ_SECONDS.to_owned());
    for target in targets {
        let corpus = out.join("corpus").join(target);
        let artifacts = out.join("artifacts").join(target);
        for place in [&corpus, &artifacts] {
            std::fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
        }
        let mut command = Command::new(out.join(TARGET).join("release").join(target));
        command
            .current_dir(&out)
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=10", "-rss_limit_mb=2048"]);
        command.arg(format!("-artifact_prefix={}/", artifacts.display())).arg(&corpus);
        let seeds = host::root().join("fuzz/seeds").join(target);
        command.args(seeds.is_dir().then_some(seeds));
        step.run(&mut command).with_context(|| format!("fuzz target {target}"))?;
    }
    Ok(())
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
    fn missing_program_is_replaced_and_prefix_and_arguments_stay() {
        let unit = "[Service]\nExecStart=-/usr/bin/not-there run --config X\nExecReload=/bin/true now\n";
        let wanted = "[Service]\nExecStart=-/bin/true run --config X\nExecReload=/bin/true now\n";
        assert_eq!(with_programs_that_exist(unit), wanted);
    }

    #[test]
    fn fuzz_targets_are_the_manifests_binaries() {
        let manifest =
            "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"a\"\npath = \"a.rs\"\n[[bin]]\nname = \"b\"\n";
        assert_eq!(binaries(manifest), ["a", "b"]);
    }
}
