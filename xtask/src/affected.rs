//! `cargo xtask check`: format, lints, and the unit tests of the crates that changed and of those that depend on them.
//!
//! The tests of the whole system (`tests/tests`) are not run, except for `tidy`; those that changed themselves are compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::progress;
use crate::runner;
use crate::table::{Table, Times};
use crate::test::{Totals, show, summary};
use crate::times::Recorder;
use crate::{build, host, programs, setup, steps};

/// Folders whose files a crate compiles in, by the folder of that crate.
const COMPILED_IN: [(&str, &str); 3] = [("deploy", "cli"), ("systemd", "tests"), ("images", "tests")];
/// Folder of the tests of the whole system.
const SYSTEM: &str = "tests";
/// The test of that folder that needs nothing but the source.
const TIDY: &str = "tidy";

/// The crates of the workspace, by folder.
#[derive(Debug, Default, PartialEq)]
struct Workspace {
    members: BTreeMap<String, Member>,
}

#[derive(Debug, Default, PartialEq)]
struct Member {
    /// Folders of the crates that it depends on, for its tests too.
    needs: BTreeSet<String>,
    /// Names of its test programs.
    tests: BTreeSet<String>,
}

impl Workspace {
    /// Asks Cargo.
    fn read() -> Result<Self> {
        let output =
            build::cargo().args(["metadata", "--locked", "--no-deps", "--format-version", "1"]).output();
        let output = output.context("cannot run cargo metadata")?;
        ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata is not valid")?;
        Ok(Self::parse(&metadata))
    }

    fn parse(metadata: &Value) -> Self {
        let folder = |path: &Value| {
            let path = path.as_str()?.trim_end_matches("/Cargo.toml");
            path.rsplit('/').next().map(str::to_owned)
        };
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut members = BTreeMap::new();
        for package in list(&metadata["packages"]) {
            let Some(name) = folder(&package["manifest_path"]) else { continue };
            let needs =
                list(&package["dependencies"]).iter().filter_map(|need| folder(&need["path"])).collect();
            let tests = list(&package["targets"])
                .iter()
                .filter(|target| list(&target["kind"]).iter().any(|kind| kind == "test"))
                .filter_map(|target| target["name"].as_str().map(str::to_owned))
                .collect();
            members.insert(name, Member { needs, tests });
        }
        Self { members }
    }

    /// Folders of the crates that these files change, and of all that depend on them.
    fn affected(&self, files: &[String]) -> BTreeSet<String> {
        let mut affected = BTreeSet::new();
        for file in files {
            let folder = file.split('/').next().unwrap_or_default();
            let compiled_in = COMPILED_IN.iter().find(|(from, _)| *from == folder).map(|(_, into)| *into);
            let is_root = !file.contains('/') && (file.ends_with(".toml") || file == "Cargo.lock");
            if is_root {
                return self.members.keys().cloned().collect();
            }
            affected.extend([folder, compiled_in.unwrap_or(folder)].map(str::to_owned));
        }
        affected.retain(|folder| self.members.contains_key(folder));
        loop {
            let more: Vec<String> = self
                .members
                .iter()
                .filter(|(name, member)| !affected.contains(*name) && !member.needs.is_disjoint(&affected))
                .map(|(name, _)| name.clone())
                .collect();
            if more.is_empty() {
                return affected;
            }
            affected.extend(more);
        }
    }

    /// Arguments of `cargo test` that select what is compiled.
    fn selection(&self, affected: &BTreeSet<String>, files: &[String]) -> Vec<String> {
        let mut tests: BTreeSet<&str> = BTreeSet::from([TIDY]);
        for (folder, member) in self.members.iter().filter(|(folder, _)| affected.contains(*folder)) {
            let changed = |test: &&String| {
                folder != SYSTEM || files.iter().any(|file| file.starts_with(&format!("tests/tests/{test}")))
            };
            tests.extend(member.tests.iter().filter(changed).map(String::as_str));
        }
        let mut selection = ["--lib", "--bins", "--examples"].map(str::to_owned).to_vec();
        selection.extend(tests.into_iter().flat_map(|test| ["--test".to_owned(), test.to_owned()]));
        selection
    }
}

/// Files that differ from `since`, with those that git does not track.
fn changed_files(since: &str) -> Result<Vec<String>> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(host::root()).args(arguments).output();
        let output = output.context("cannot run git")?;
        ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok::<_, anyhow::Error>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut files = git(&["diff", "--name-only", since])?;
    files.push_str(&git(&["ls-files", "--others", "--exclude-standard"])?);
    Ok(files.lines().map(str::to_owned).collect())
}

/// Checks what differs from `since`.
///
/// # Errors
/// Something is not formatted, has a warning, or fails.
pub(crate) fn run(since: &str) -> Result<()> {
    let mut recorder = Recorder::start("cargo xtask check");
    let (table, times) = (Table::read()?, Times::read()?);
    setup::announce(setup::Need::Rack)?;
    let files = changed_files(since)?;
    if files.is_empty() {
        bail!("nothing differs from {since}; name an older commit with --since");
    }
    let workspace = Workspace::read()?;
    let affected = workspace.affected(&files);
    println!(
        "{} files differ from {since}: {}",
        files.len(),
        affected.iter().cloned().collect::<Vec<_>>().join(", ")
    );
    let mut jobs = steps::jobs(&["fmt", "test-programs"], &times)?;
    for job in jobs.iter_mut().filter(|job| job.name == "test-programs") {
        job.command.args(workspace.selection(&affected, &files));
    }
    let mut totals = Totals::default();
    progress::step("check", |step| {
        runner::run(step, jobs, |step, finished| {
            recorder.add(&finished);
            show(step, &recorder, &finished);
            totals.add(&finished, false, Vec::new);
            if finished.name != "test-programs" || finished.error.is_some() {
                return Vec::new();
            }
            match programs::read() {
                Ok(programs) => programs
                    .iter()
                    .filter(|program| affected.contains(&program.folder()) || program.name == TIDY)
                    .filter(|program| {
                        program.folder() != SYSTEM || program.name == TIDY || program.name.ends_with("-units")
                    })
                    .map(|program| program.job(None, &[], &table, &times))
                    .collect(),
                Err(error) => {
                    totals.fail(format!("{error:#}"));
                    Vec::new()
                }
            }
        })
    })?;
    recorder.finish()?;
    summary(&totals, recorder.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Workspace {
        let package = |name: &str, needs: &[&str], tests: &[&str]| {
            serde_json::json!({
                "manifest_path": format!("/r/{name}/Cargo.toml"),
                "dependencies": needs.iter().map(|need| serde_json::json!({"path": format!("/r/{need}")})).collect::<Vec<_>>(),
                "targets": tests.iter().map(|test| serde_json::json!({"kind": ["test"], "name": test})).collect::<Vec<_>>(),
            })
        };
        Workspace::parse(&serde_json::json!({"packages": [
            package("api", &[], &["crds"]),
            package("dhcp", &[], &["history"]),
            package("pxed", &["api", "dhcp"], &["serve"]),
            package("cli", &["api"], &[]),
            package("tests", &["api"], &["boot_many", "tidy"]),
        ]}))
    }

    fn affected(files: &[&str]) -> Vec<String> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        workspace().affected(&files).into_iter().collect()
    }

    #[test]
    fn change_reaches_all_crates_that_depend_on_it() {
        assert_eq!(affected(&["dhcp/src/lib.rs"]), ["dhcp", "pxed"]);
        assert_eq!(affected(&["api/src/lib.rs"]), ["api", "cli", "pxed", "tests"]);
        assert_eq!(affected(&["deploy/role.yaml"]), ["cli"]);
        assert_eq!(affected(&["docs/boot.md"]), Vec::<String>::new());
        assert_eq!(affected(&["Cargo.lock"]).len(), 5);
    }

    #[test]
    fn system_tests_are_compiled_only_if_they_changed() {
        let files = ["api/src/lib.rs".to_owned(), "tests/tests/boot_many.rs".to_owned()];
        let all = workspace().affected(&files);
        let of = |files: &[String]| workspace().selection(&all, files).join(" ");
        assert!(!of(&files[..1]).contains("boot_many"));
        assert!(of(&files[..1]).contains("--test crds") && of(&files[..1]).contains("--test tidy"));
        assert!(of(&files).contains("--test boot_many"));
    }
}
