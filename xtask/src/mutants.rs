//! Mutation testing of the pure modules with cargo-mutants, as tasks of `cargo xtask soak`.
//!
//! `tests/mutants.toml` lists the modules; `.cargo/mutants.toml` names each mutant that no test can catch, with the reason.
//! A copy of the repository in the cache is mutated, never the working tree.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::runner::{Job, Kind};
use crate::schedule::Requirements;
use crate::tool::Tool;
use crate::{host, progress};

const TOOL: Tool = Tool { name: "cargo-mutants", version: "27.1.0" };
/// Start of the names of the tasks.
const PREFIX: &str = "mutants-";
/// Deadline of a module.
const MODULE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    module: Vec<Module>,
}

/// Pure module whose mutants the tests of its package must catch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Module {
    /// Name of the task.
    name: String,
    /// Package whose tests run.
    package: String,
    /// Files that are mutated, as globs.
    files: Vec<String>,
    /// Arguments of `cargo test` that select its tests; all of the package if empty.
    #[serde(default)]
    tests: Vec<String>,
}

fn copy() -> PathBuf {
    host::cache().join("mutants/tree")
}

/// Installs cargo-mutants and copies the checked-out commit.
///
/// # Errors
/// The tool cannot be installed, or git fails.
pub(crate) fn prepare() -> Result<()> {
    TOOL.install()?;
    progress::step("copy for mutants", |step| {
        let tree = copy();
        if !tree.join(".git").exists() {
            let parent = tree.parent().context("the copy has a parent")?;
            std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
            step.run(Command::new("git").args(["clone", "--no-checkout"]).arg(host::root()).arg(&tree))?;
        }
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.current_dir(&tree).args(arguments);
            command
        };
        step.run(git(&["fetch", "--force"]).arg(host::root()).arg("HEAD"))?;
        step.run(&mut git(&["checkout", "--force", "--detach", "FETCH_HEAD"]))
    })
}

/// Returns a task for each module.
///
/// # Errors
/// The list of modules is not valid.
pub(crate) fn jobs() -> Result<Vec<Job>> {
    let path = host::root().join("tests/mutants.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))?;
    ensure!(!table.module.is_empty(), "{} lists no module", path.display());
    Ok(table.module.iter().map(job).collect())
}

fn job(module: &Module) -> Job {
    let place = host::cache().join("mutants");
    let mut command = Command::new(TOOL.program());
    // The target directory belongs to the copy alone: Cargo would take a mutant's artifacts for those of the working tree.
    command.current_dir(copy()).env("CARGO_TARGET_DIR", place.join("target"));
    // Each mutant is linked once: without debug information that takes half the time.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "1");
    // Few cases per property, because the tests run once for each mutant.
    command.env("PROPTEST_CASES", "64");
    command.args(["mutants", "--in-place", "--no-shuffle", "--colors", "never"]);
    command.args(["--package", &module.package]);
    command.arg("--output").arg(place.join(&module.name));
    command.args(module.files.iter().flat_map(|file| ["--file", file]));
    // An option selects what is compiled as well; the text after `--` only what is run.
    let (options, names): (Vec<&String>, Vec<&String>) =
        module.tests.iter().partition(|argument| argument.starts_with('-'));
    command.args(options.iter().map(|option| format!("--cargo-arg={option}")));
    command.arg("--").args(names);
    Job {
        name: format!("{PREFIX}{}", module.name),
        kind: Kind::Soak,
        command,
        requirements: Requirements { load: 2.0, ..Requirements::default() },
        deadline: MODULE_TIMEOUT,
    }
}

/// Result of cargo-mutants: `mutants.out/outcomes.json` (the cargo-mutants book, "The mutants.out directory").
#[derive(Debug, Deserialize)]
struct Outcomes {
    total_mutants: u32,
    caught: u32,
    missed: u32,
    timeout: u32,
    unviable: u32,
}

/// Shows the counts of a task of this module; other tasks have none.
///
/// # Errors
/// No mutant was tested: cargo-mutants succeeds if the files have none or if none compiles.
pub(crate) fn examine(step: &progress::Step, task: &str) -> Result<()> {
    let Some(name) = task.strip_prefix(PREFIX) else { return Ok(()) };
    let path = host::cache().join("mutants").join(name).join("mutants.out/outcomes.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let found: Outcomes =
        serde_json::from_slice(&text).with_context(|| format!("{} is not valid", path.display()))?;
    step.say(&format!(
        "        {} mutants: {} caught, {} missed, {} timed out, {} do not compile",
        found.total_mutants, found.caught, found.missed, found.timeout, found.unviable
    ));
    ensure!(found.caught > 0, "{name}: no mutant was caught; see {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_module_names_files_that_exist() {
        let text = std::fs::read_to_string(host::root().join("tests/mutants.toml")).unwrap();
        let table: Table = toml::from_str(&text).unwrap();
        for module in table.module {
            for file in module.files {
                let plain = file.split('*').next().unwrap_or_default();
                assert!(host::root().join(plain).exists(), "{}: {file}", module.name);
            }
        }
    }
}
