//! Mutation testing of the pure modules with cargo-mutants, as tasks of `cargo xtask soak`.
//!
//! `tests/mutants.toml` lists the modules; `.cargo/mutants.toml` names each mutant that no test can kill, with the reason.
//! A copy of the repository in the cache is mutated, never the working tree.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::runner::{Job, Kind};
use crate::schedule::Requirements;
use crate::tool::Tool;
use crate::{build, host, progress};

const TOOL: Tool = Tool { name: "cargo-mutants", version: "27.1.0" };
/// Deadline of a module.
const DEADLINE: Duration = Duration::from_secs(4 * 3600);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    module: Vec<Module>,
}

/// A pure module whose mutants the tests of its package must find.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Module {
    /// Name of the task.
    name: String,
    /// The package whose tests run.
    package: String,
    /// Files that are mutated, as globs.
    files: Vec<String>,
}

fn copy() -> PathBuf {
    host::cache().join("mutants/tree")
}

/// Installs cargo-mutants and copies the commit that is checked out.
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

/// A task for each module.
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
    let mut command = Command::new(TOOL.program());
    command.current_dir(copy()).env("CARGO_TARGET_DIR", host::target()).env("RUSTFLAGS", build::FLAGS);
    command.env("AWS_LC_SYS_CFLAGS", build::SMALL_TLS);
    command.args([
        "mutants",
        "--in-place",
        "--no-shuffle",
        "--colors",
        "never",
        "--package",
        &module.package,
    ]);
    command.args(["--output", &host::cache().join("mutants").join(&module.name).display().to_string()]);
    command.args(module.files.iter().flat_map(|file| ["--file", file]));
    Job {
        name: format!("mutants-{}", module.name),
        kind: Kind::Soak,
        command,
        requirements: Requirements { load: 2.0, ..Requirements::default() },
        deadline: DEADLINE,
    }
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
