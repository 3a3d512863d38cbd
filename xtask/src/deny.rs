//! cargo-deny: licences, bans and origins of all dependencies, and their advisories, against deny.toml. Built once and
//! cached by its version.
//!
//! Not optimised, because it runs for seconds: so its build takes 100 s of processor time, once. Its database of
//! advisories is a git repository on the internet; without a copy the check says that advisories were left out.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::progress::{self, Step};
use crate::{build, host};

/// Wants Rust 1.88, which is older than ours.
const VERSION: &str = "0.20.2";

/// Its place below the cache.
fn place() -> PathBuf {
    host::cache().join(format!("tools/cargo-deny-{VERSION}"))
}

fn program() -> PathBuf {
    place().join("bin/cargo-deny")
}

/// What `setup` says before it installs it; `None`: it is there.
pub(crate) fn missing() -> Option<String> {
    let plan =
        || format!("into {}: cargo-deny {VERSION} (about a minute on 2 cores, once)", place().display());
    (!program().is_file()).then(plan)
}

/// Where it is built by the process of this id.
const WORK: &str = ".cargo-deny-";

/// Removes what builds left that were killed.
pub(crate) fn remove_left_over() {
    for path in left_over(&host::cache().join("tools")) {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// The work directories of processes that are gone.
fn left_over(tools: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(tools).into_iter().flatten().flatten();
    let dead = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_prefix(WORK).and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    entries.map(|entry| entry.path()).filter(dead).collect()
}

/// Builds it unless it is there.
pub(crate) fn install() -> Result<()> {
    if missing().is_none() {
        return Ok(());
    }
    progress::step(&format!("cargo install cargo-deny {VERSION}"), |step| {
        let work = host::cache().join(format!("tools/{WORK}{}", std::process::id()));
        let mut command = build::cargo();
        command.env("CARGO_TARGET_DIR", &work).args(["install", "cargo-deny", "--locked", "--debug"]);
        command.args(["--version", &format!("={VERSION}"), "--config", "profile.dev.debug=false"]);
        let result = step.run(command.arg("--root").arg(place()));
        let _ = std::fs::remove_dir_all(&work);
        result
    })
}

/// The check of `cargo xtask test`.
pub(crate) fn check(step: &Step) -> Result<()> {
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(program());
        command.current_dir(host::root()).args(["--locked", "--color", "never"]).args(arguments);
        step.run(&mut command)
    };
    deny(&["check", "licenses", "bans", "sources"])?;
    let databases = cargo_home()?.join("advisory-dbs");
    if has_database(&databases) {
        return deny(&["--offline", "check", "advisories"]).context("advisories");
    }
    step.say(&format!(
        "      advisories were not checked: {} has no copy of the RustSec database; with the internet at hand, \
         `{} fetch db` gets it",
        databases.display(),
        program().display()
    ));
    Ok(())
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}

/// A clone, not only the lock file that cargo-deny leaves when it could not get one.
fn has_database(databases: &Path) -> bool {
    let entries = std::fs::read_dir(databases).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.join(".git").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_processes_that_are_gone_is_left_over_and_nothing_else() {
        let place = std::env::temp_dir().join(format!("bedplate-xtask-left-over-{}", std::process::id()));
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let gone = place.join(format!("{WORK}{}", child.id()));
        let running = place.join(format!("{WORK}{}", std::process::id()));
        for path in [&gone, &running, &place.join("cargo-deny-0.0.1"), &place.join(format!("{WORK}x"))] {
            std::fs::create_dir_all(path).unwrap();
        }
        assert_eq!(left_over(&place), [gone]);
        std::fs::remove_dir_all(&place).unwrap();
        assert!(left_over(&place).is_empty());
    }

    #[test]
    fn lock_file_alone_is_no_database_of_advisories() {
        let place = std::env::temp_dir().join(format!("bedplate-xtask-deny-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("db.lock"), "").unwrap();
        assert!(!has_database(&place));
        std::fs::create_dir_all(place.join("advisory-db-0/.git")).unwrap();
        assert!(has_database(&place));
        std::fs::remove_dir_all(&place).unwrap();
        assert!(!has_database(&place));
    }
}
