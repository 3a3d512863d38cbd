//! `cargo xtask check`: format, lints, and the unit tests of the crates that changed and of those that depend on them.
//!
//! The tests of the whole system (`tests/tests`) are not run, except for `tidy`; those that changed themselves are compiled, and all
//! of them if the library that they share has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::programs::{SYSTEM, TIDY};
use crate::progress;
use crate::runner;
use crate::table::{Table, Times};
use crate::test::{Totals, show, summary};
use crate::times::Recorder;
use crate::{build, host, programs, setup, steps};

/// Folder of Cargo's own settings, which hold for every crate.
const CARGO: &str = ".cargo";

/// Crates of the workspace, by folder.
#[derive(Debug, Default, PartialEq)]
struct Workspace {
    members: BTreeMap<String, Member>,
}

#[derive(Debug, Default, PartialEq)]
struct Member {
    /// Folders of the crates that the crate and its tests depend on.
    needs: BTreeSet<String>,
    /// Names of the crate's test programs.
    tests: BTreeSet<String>,
    /// Files and folders of the repository's root that its sources name, outside of the crate itself.
    reads: BTreeSet<String>,
}

impl Workspace {
    /// Reads the crates from `cargo metadata`.
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
        let mut workspace = Self::parse(&metadata);
        workspace.find_readers()?;
        Ok(workspace)
    }

    /// Finds what the sources of each crate read or compile in from outside of it.
    fn find_readers(&mut self) -> Result<()> {
        let files = lines(&git(&["ls-files", "-z"])?);
        let roots: BTreeSet<&str> = files.iter().map(|file| root_of(file)).collect();
        let folders: BTreeSet<String> = self.members.keys().cloned().collect();
        for file in files.iter().filter(|file| file.ends_with(".rs")) {
            let owner = self.folder_of(file).to_owned();
            let Some(member) = self.members.get_mut(&owner) else { continue };
            // A deleted file contains no names.
            let text = std::fs::read_to_string(host::root().join(file)).unwrap_or_default();
            let named = roots.iter().filter(|root| **root != root_of(file) && names(&text, root, &folders));
            member.reads.extend(named.map(|root| (*root).to_owned()));
        }
        Ok(())
    }

    fn parse(metadata: &Value) -> Self {
        let root = metadata["workspace_root"].as_str().unwrap_or_default();
        let folder = |path: &Value| {
            let path = path.as_str()?.strip_prefix(root)?.strip_prefix('/')?;
            Some(path.trim_end_matches("/Cargo.toml").to_owned())
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
            members.insert(name, Member { needs, tests, reads: BTreeSet::new() });
        }
        Self { members }
    }

    /// Returns the folder of the crate that a file belongs to, which may be below another crate's; for other files as [`root_of`].
    fn folder_of<'a>(&self, file: &'a str) -> &'a str {
        let ends = file.rmatch_indices('/').map(|(end, _)| &file[..end]);
        ends.into_iter().find(|folder| self.members.contains_key(*folder)).unwrap_or_else(|| root_of(file))
    }

    /// Returns the folders of the crates that these files change, and of all crates that depend on them.
    fn affected(&self, files: &[String]) -> BTreeSet<String> {
        let mut affected = BTreeSet::new();
        for file in files {
            let root = root_of(file);
            let is_setting = !file.contains('/') && (file.ends_with(".toml") || file == "Cargo.lock");
            if is_setting || root == CARGO {
                return self.members.keys().cloned().collect();
            }
            let readers = self.members.iter().filter(|(_, member)| member.reads.contains(root));
            affected.extend(readers.map(|(name, _)| name.clone()));
            affected.insert(self.folder_of(file).to_owned());
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

    /// Returns the arguments of `cargo test` that select the targets.
    fn selection(&self, affected: &BTreeSet<String>, files: &[String]) -> Vec<String> {
        let mut tests: BTreeSet<&str> = BTreeSet::from([TIDY]);
        for (folder, member) in self.members.iter().filter(|(folder, _)| affected.contains(*folder)) {
            let own = |file: &str, test: &str| {
                let rest = file.strip_prefix("tests/tests/").and_then(|rest| rest.strip_prefix(test));
                rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            };
            // A source file that belongs to no test belongs to all.
            let shared = files.iter().any(|file| {
                self.folder_of(file) == SYSTEM
                    && file.ends_with(".rs")
                    && !member.tests.iter().any(|test| own(file, test))
            });
            let is_selected =
                |test: &&String| folder != SYSTEM || shared || files.iter().any(|file| own(file, test));
            tests.extend(member.tests.iter().filter(is_selected).map(String::as_str));
        }
        let mut selection = ["--lib", "--bins", "--examples"].map(str::to_owned).to_vec();
        selection.extend(tests.into_iter().flat_map(|test| ["--test".to_owned(), test.to_owned()]));
        selection
    }
}

/// The first part of a path: a folder or file of the repository's root.
fn root_of(file: &str) -> &str {
    file.split('/').next().unwrap_or_default()
}

/// Returns true if a source names a file below `root`. The folders of crates are common words, so only a path that leads out of the
/// own crate counts for them.
fn names(text: &str, root: &str, folders: &BTreeSet<String>) -> bool {
    text.contains(&format!("../{root}")) || (!folders.contains(root) && text.contains(&format!("\"{root}")))
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(host::root()).args(arguments).output();
    let output = output.context("cannot run git")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The paths of a list that ends each with a NUL character.
fn lines(text: &str) -> Vec<String> {
    text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

/// Files that differ from `since`, with those that git does not track. A renamed file counts under both names.
fn changed_files(since: &str) -> Result<Vec<String>> {
    let mut files = lines(&git(&["diff", "--name-only", "--no-renames", "-z", since])?);
    files.extend(lines(&git(&["ls-files", "--others", "--exclude-standard", "-z"])?));
    Ok(files)
}

/// Checks the crates that differ from `since`.
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
            unit_tests(&affected, &table, &times).unwrap_or_else(|error| {
                totals.fail(format!("{error:#}"));
                Vec::new()
            })
        })
    })?;
    recorder.finish()?;
    summary(&totals, recorder.elapsed())
}

/// The tests of these crates that need no released program, `tidy`, and the steps that they need.
fn unit_tests(affected: &BTreeSet<String>, table: &Table, times: &Times) -> Result<Vec<runner::Job>> {
    let mut programs = programs::read()?;
    programs.retain(|program| {
        program.name == TIDY || (program.is_early() && affected.contains(&program.folder()))
    });
    let needs: Vec<&str> = programs.iter().flat_map(|program| program.needs().iter().copied()).collect();
    let mut jobs = steps::jobs(&needs, times)?;
    let due: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    jobs.extend(programs.iter().map(|program| program.job(None, &due, table, times)));
    Ok(jobs)
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
        Workspace::parse(&serde_json::json!({"workspace_root": "/r", "packages": [
            package("api", &[], &["crds"]),
            package("pxed/dhcp", &[], &["history"]),
            package("pxed", &["api", "pxed/dhcp"], &["serve"]),
            package("cli", &["api"], &[]),
            package("tests", &["api"], &["boot_many", "tidy"]),
            package("tests/bench", &["tests"], &[]),
        ]}))
    }

    fn affected(files: &[&str]) -> Vec<String> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        let mut workspace = workspace();
        for (member, root) in [("cli", "deploy"), ("pxed", "docs"), ("api", "docs")] {
            workspace.members.get_mut(member).unwrap().reads.insert(root.to_owned());
        }
        workspace.affected(&files).into_iter().collect()
    }

    #[test]
    fn change_reaches_all_crates_that_depend_on_it() {
        assert_eq!(affected(&["pxed/dhcp/src/lib.rs"]), ["pxed", "pxed/dhcp"]);
        assert_eq!(affected(&["pxed/src/lib.rs"]), ["pxed"]);
        assert_eq!(affected(&["api/src/lib.rs"]), ["api", "cli", "pxed", "tests", "tests/bench"]);
        assert_eq!(affected(&["Cargo.lock"]).len(), 6);
        assert_eq!(affected(&[".cargo/config.toml"]).len(), 6);
    }

    #[test]
    fn change_outside_of_the_crates_reaches_those_that_read_it() {
        assert_eq!(affected(&["deploy/role.yaml"]), ["cli"]);
        assert_eq!(
            affected(&["docs/troubleshooting/boot.md"]),
            ["api", "cli", "pxed", "tests", "tests/bench"]
        );
        assert_eq!(affected(&["LICENSE"]), Vec::<String>::new());
    }

    /// The files that the tests of these crates read today.
    #[test]
    fn readers_are_found_in_the_sources() {
        let workspace = Workspace::read().unwrap();
        let reads = |member: &str, root: &str| workspace.members[member].reads.contains(root);
        for (member, root) in [
            ("agent", "docs"),
            ("agent", "images"),
            ("api", "docs"),
            ("cli", "README.md"),
            ("cli", "deploy"),
            ("pxed", "docs"),
            ("reconciler", "docs"),
            ("tests", "systemd"),
            ("xtask", "docs"),
            ("xtask", "oci"),
        ] {
            assert!(reads(member, root), "{member} reads {root}");
        }
        assert!(!reads("pxed/dhcp", "docs"));
    }

    #[test]
    fn system_tests_are_compiled_only_if_they_or_what_they_share_changed() {
        let selected = |file: &str| {
            let files = [file.to_owned()];
            workspace().selection(&workspace().affected(&files), &files).join(" ")
        };
        assert!(!selected("api/src/lib.rs").contains("boot_many"));
        for test in ["crds", "serve", "tidy"] {
            assert!(selected("api/src/lib.rs").contains(&format!("--test {test}")));
        }
        assert!(selected("tests/tests/boot_many.rs").contains("--test boot_many"));
        assert!(selected("tests/tests/boot_many/load.rs").contains("--test boot_many"));
        assert!(!selected("tests/tests/tidy.rs").contains("--test boot_many"));
        assert!(!selected("tests/bench/src/main.rs").contains("--test boot_many"));
        assert!(selected("tests/src/rack.rs").contains("--test boot_many"));
        assert!(selected("tests/tests/shared/site.rs").contains("--test boot_many"));
    }
}
