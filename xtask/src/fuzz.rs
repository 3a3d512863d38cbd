//! Fuzz targets: built once with coverage of our crates, each run for a bounded time.
//!
//! Only our crates are instrumented: `fuzz/rustc` adds the flags of cargo-fuzz, without a sanitizer so that a stable compiler is
//! enough. The dependencies are those of the release. Called by `steps`, `test` (seconds) and `soak` (minutes).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::runner::{Job, Kind};
use crate::schedule::Requirements;
use crate::{build, host, progress};

/// Time that a fuzz target needs to start and to end, in addition to its run time.
const START_MARGIN: Duration = Duration::from_secs(120);

/// Builds all fuzz targets.
///
/// # Errors
/// Cargo fails.
pub(crate) fn build() -> Result<()> {
    let wrapper = host::root().join("fuzz/rustc");
    let manifest = manifest()?;
    let targets = binaries(&manifest).into_iter().flat_map(|target| ["--bin", target]);
    progress::step("build of the fuzz targets", |step| {
        // Features are unified over the whole workspace, as for the tests.
        step.run(build::cargo_tests("build", &wrapper).arg("--workspace").args(targets))
    })
}

/// Returns a job for each fuzz target. Each target has seeds, and a corpus that stays in the target directory.
///
/// # Errors
/// There is no target, one has no seeds, or the input that ended one before is still there.
pub(crate) fn jobs(kind: Kind, seconds: u64) -> Result<Vec<Job>> {
    let manifest = manifest()?;
    binaries(&manifest).into_iter().map(|target| job(target, kind, seconds)).collect()
}

/// Returns the text of `fuzz/Cargo.toml`, which has at least one target.
fn manifest() -> Result<String> {
    let path = host::root().join("fuzz/Cargo.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if binaries(&text).is_empty() {
        bail!("{} has no [[bin]]", path.display());
    }
    Ok(text)
}

fn job(target: &str, kind: Kind, seconds: u64) -> Result<Job> {
    // The inputs that a soak has found are worth more than a target directory.
    let out = if kind == Kind::Soak { host::cache() } else { host::target() }.join("fuzz");
    let (corpus, artifacts) = (out.join("corpus").join(target), out.join("artifacts").join(target));
    for place in [&corpus, &artifacts] {
        std::fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    }
    if let Some(found) = first_file(&artifacts)? {
        bail!(
            "{} ended fuzz target {target} before; mend that, add the input to fuzz/seeds/{target}, and remove the file",
            found.display()
        );
    }
    let seeds = host::root().join("fuzz/seeds").join(target);
    if !seeds.is_dir() {
        bail!("fuzz target {target} has no seeds in fuzz/seeds/{target}");
    }
    let mut command = Command::new(build::built().join(target));
    command
        .current_dir(out)
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=2048"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args([&corpus, &seeds]);
    let time = Duration::from_secs(seconds);
    Ok(Job {
        name: format!("fuzz-{target}"),
        kind,
        command,
        requirements: Requirements {
            needs: vec!["fuzz-programs".to_owned()],
            load: 1.0,
            expected: time,
            ..Requirements::default()
        },
        deadline: time + START_MARGIN,
    })
}

/// A file in a directory, if there is one.
fn first_file(directory: &Path) -> Result<Option<PathBuf>> {
    let mut entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    Ok(entries.next().transpose()?.map(|entry| entry.path()))
}

/// Returns the names of the `[[bin]]` sections.
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
    fn input_that_ended_a_target_is_not_forgotten() {
        let place = std::env::temp_dir().join(format!("bedplate-xtask-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        assert_eq!(first_file(&place).unwrap(), None);
        std::fs::write(place.join("crash-1"), "").unwrap();
        assert_eq!(first_file(&place).unwrap(), Some(place.join("crash-1")));
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn fuzz_targets_are_the_manifests_binaries() {
        let manifest =
            "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"a\"\npath = \"a.rs\"\n[[bin]]\nname = \"b\"\n";
        assert_eq!(binaries(manifest), ["a", "b"]);
    }
}
