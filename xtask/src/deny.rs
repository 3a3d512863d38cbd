//! cargo-deny: licenses, bans and origins of all dependencies, and their advisories, against deny.toml.
//!
//! The advisory database is a git repository on the internet. Without a copy the check prints that advisories
//! were skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::tool::Tool;
use crate::{host, progress};

/// Wants Rust 1.88, which is older than ours.
pub(crate) const TOOL: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// Checks licenses, bans and origins, and the advisories if a copy of their database exists.
///
/// # Errors
/// A dependency breaks a rule of deny.toml.
pub(crate) fn check() -> Result<()> {
    progress::step("cargo deny check", check_all)
}

fn check_all(step: &progress::Step) -> Result<()> {
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(TOOL.program());
        command.current_dir(host::root()).args(["--locked", "--color", "never"]).args(arguments);
        step.run(&mut command)
    };
    deny(&["check", "licenses", "bans", "sources"])?;
    let databases = cargo_home()?.join("advisory-dbs");
    if has_database(&databases) {
        return deny(&["--offline", "check", "advisories"]).context("advisories");
    }
    // The summary of `cargo xtask test` shows a line that starts with this word.
    step.say(&format!(
        "note: advisories were not checked: {} has no copy of the RustSec database; with the internet at hand, \
         `{} fetch db` gets it",
        databases.display(),
        TOOL.program().display()
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
