//! The test programs: compiled and linted by one Cargo, listed in a file, sorted into tiers, and made into jobs.
//!
//! The tier comes from the name of the program: `boot_*` is tier b, `whole_*` tier c, `soak_*` runs in `cargo xtask soak` only, and
//! all others are tier a, with the unit tests of every crate.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::runner::{Job, Kind};
use crate::schedule::{Lane, Requirements};
use crate::table::{Table, Times};
use crate::{build, host, progress};

/// Number of tests of a program of tier b that run concurrently.
const BOOTS: u32 = 2;
/// Package with the tests of the whole system.
const SYSTEM: &str = "tests";
/// Steps that the tests of the whole system need.
pub(crate) const SYSTEM_NEEDS: &[&str] = &[
    "packages",
    "debian",
    "redfish-emulator",
    "kubernetes",
    "etcd",
    "crictl",
    "release",
    "host-image",
    "node-image",
    "agent-package",
];
/// Steps that the tests of one crate need.
const CRATE_NEEDS: &[&str] = &["packages", "debian", "redfish-emulator"];

/// Tier of a test program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Tier {
    /// Without virtual machines.
    A,
    /// Boots of real firmware.
    B,
    /// Whole machines.
    C,
    /// Long tests, run by `cargo xtask soak`.
    #[value(skip)]
    Soak,
}

impl Tier {
    /// Group of its programs in the summary.
    fn kind(self) -> Kind {
        match self {
            Self::A => Kind::TierA,
            Self::B => Kind::TierB,
            Self::C => Kind::TierC,
            Self::Soak => Kind::Soak,
        }
    }
}

/// A test program that is built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Name in the summary.
    pub(crate) name: String,
    /// Its tier.
    pub(crate) tier: Tier,
    /// The executable.
    file: PathBuf,
    /// Folder of its package.
    package: PathBuf,
}

impl Program {
    /// Name of the folder of its package.
    pub(crate) fn folder(&self) -> String {
        self.package.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Steps that must have succeeded before it runs.
    pub(crate) fn needs(&self) -> &'static [&'static str] {
        if self.folder() == SYSTEM { SYSTEM_NEEDS } else { CRATE_NEEDS }
    }

    /// Names of its tests.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn tests(&self, filter: Option<&str>) -> Result<Vec<String>> {
        let output = self.command().arg("--list").args(filter).output();
        let output = output.with_context(|| format!("cannot start {}", self.file.display()))?;
        ensure!(output.status.success(), "{} --list ended with {}", self.name, output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        environment(&mut command);
        command
    }

    /// The job that runs it. `due` has the names of the steps of this run.
    pub(crate) fn job(&self, filter: Option<&str>, due: &[String], table: &Table, times: &Times) -> Job {
        let row = table.of(&self.name);
        let threads = row.threads.or(match self.tier {
            Tier::A | Tier::Soak => None,
            Tier::B => Some(BOOTS),
            Tier::C => Some(1),
        });
        let guests = row.guests.unwrap_or(match self.tier {
            Tier::A | Tier::Soak => 0,
            Tier::B | Tier::C => threads.unwrap_or(1),
        });
        let mut command = self.command();
        command.args(filter);
        if let Some(threads) = threads {
            command.args(["--test-threads", &threads.to_string()]);
        }
        let lanes = [(Lane::Guest, guests), (Lane::Node, u32::from(row.nodes))];
        let needs = self.needs().iter().filter(|need| due.iter().any(|name| name == *need));
        Job {
            name: self.name.clone(),
            kind: self.tier.kind(),
            command,
            requirements: Requirements {
                needs: needs.map(|need| (*need).to_owned()).collect(),
                lanes: lanes.into_iter().filter(|(_, places)| *places > 0).collect(),
                load: times.of(&self.name).map_or(0.7, crate::table::Took::load),
                expected: times.expected(&self.name),
                is_step: false,
                alone: row.alone,
            },
            deadline: times.deadline(&self.name),
        }
    }
}

/// Sets the variables that tell the programs of `tests` where things are.
pub(crate) fn environment(command: &mut Command) -> &mut Command {
    // A failed test says enough by itself, without a page of frames.
    command.env("RUST_BACKTRACE", "0").env("RUST_LIB_BACKTRACE", "0");
    if let Ok(xtask) = std::env::current_exe() {
        command.env("BEDPLATE_XTASK", xtask);
    }
    command.env("BEDPLATE_CACHE", host::cache()).env("BEDPLATE_BIN_DIR", build::release())
}

/// List of the test programs that were built last.
fn list_path() -> PathBuf {
    host::target().join("xtask/programs.json")
}

/// Compiles and lints the test programs that `selection`, arguments of `cargo test`, names (all if it is empty), and writes their list.
/// A warning is a failure.
///
/// # Errors
/// Something does not compile, or has a warning.
pub(crate) fn build(selection: &[String]) -> Result<()> {
    let programs = compile(selection)?;
    let text = serde_json::to_vec(&programs).context("cannot write the list of test programs")?;
    std::fs::write(list_path(), text).with_context(|| format!("cannot write {}", list_path().display()))
}

fn compile(selection: &[String]) -> Result<Vec<Program>> {
    let driver = build::clippy()?;
    progress::step("build of the test programs, with clippy", |step| {
        let mut messages = Messages::default();
        let mut command = build::cargo_tests("test", &driver);
        command.args(["--no-run", "--workspace", "--message-format=json"]).args(selection);
        let result = step.run_watched(&mut command, |line| messages.read(line));
        messages.diagnostics.iter().for_each(|text| step.say(text));
        result?;
        let count = messages.diagnostics.len();
        ensure!(count == 0, "{count} warnings; a warning is a failure");
        Ok(messages.programs)
    })
}

/// The list that [`build`] has written.
///
/// # Errors
/// It is missing or not valid.
pub(crate) fn read() -> Result<Vec<Program>> {
    let path = list_path();
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let programs: Vec<Program> =
        serde_json::from_slice(&text).with_context(|| format!("{} is not valid", path.display()))?;
    if programs.is_empty() {
        bail!("{} lists no program", path.display());
    }
    Ok(programs)
}

/// What Cargo says in JSON (the Cargo book, "External tools").
#[derive(Debug, Default)]
struct Messages {
    programs: Vec<Program>,
    /// Warnings and errors as the compiler shows them, each once.
    diagnostics: BTreeSet<String>,
}

impl Messages {
    fn read(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return };
        match message["reason"].as_str() {
            Some("compiler-artifact") => self.programs.extend(program(&message)),
            Some("compiler-message") => {
                let message = &message["message"];
                let is_summary = message["spans"].as_array().is_none_or(Vec::is_empty);
                if matches!(message["level"].as_str(), Some("warning" | "error")) && !is_summary {
                    self.diagnostics.extend(message["rendered"].as_str().map(str::to_owned));
                }
            }
            _ => {}
        }
    }
}

/// The test program of an artifact.
fn program(message: &Value) -> Option<Program> {
    let file = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let name = message["target"]["name"].as_str()?;
    let of = package.file_name()?.to_string_lossy();
    let kinds = message["target"]["kind"].as_array();
    let whole = kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"));
    let name = match (whole, &*of) {
        (true, SYSTEM) => name.to_owned(),
        (true, of) => format!("{of}-{name}"),
        (false, _) => format!("{name}-units"),
    };
    Some(Program { tier: tier(&name), name, file: file.into(), package: package.to_owned() })
}

fn tier(name: &str) -> Tier {
    match name.split('_').next() {
        Some("boot") => Tier::B,
        Some("whole") => Tier::C,
        Some("soak") => Tier::Soak,
        _ => Tier::A,
    }
}

/// The job that compiles and runs the examples in the documentation of the crates.
///
/// # Errors
/// clippy is not installed.
pub(crate) fn documentation(filter: Option<&str>, times: &Times) -> Result<Job> {
    let name = "documentation";
    let mut command = build::cargo_tests("test", &build::clippy()?);
    command.env("RUSTDOCFLAGS", build::FLAGS).args(["--no-fail-fast", "--workspace", "--doc"]).args(filter);
    Ok(Job {
        name: name.to_owned(),
        kind: Kind::TierA,
        command,
        requirements: Requirements {
            lanes: vec![(Lane::Cargo, 1)],
            load: times.of(name).map_or(1.5, crate::table::Took::load),
            expected: times.expected(name),
            ..Requirements::default()
        },
        deadline: times.deadline(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(package: &str, kind: &str, name: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "manifest_path": format!("/repository/{package}/Cargo.toml"),
            "target": { "kind": [kind], "name": name }, "profile": { "test": true },
            "executable": format!("/target/release/deps/{name}-0123"),
        })
        .to_string()
    }

    fn listed(lines: &[String]) -> Messages {
        let mut messages = Messages::default();
        lines.iter().for_each(|line| messages.read(line));
        messages
    }

    #[test]
    fn programs_have_a_name_of_their_own_and_a_tier() {
        let programs = listed(&[
            "{}".to_owned(),
            message("bmc", "lib", "bedplate_bmc"),
            message("bmc", "test", "redfish"),
            message("tests", "test", "boot_faults"),
            message("tests", "test", "soak_image"),
        ])
        .programs;
        let seen: Vec<_> = programs.iter().map(|program| (&*program.name, program.tier)).collect();
        assert_eq!(
            seen,
            [
                ("bedplate_bmc-units", Tier::A),
                ("bmc-redfish", Tier::A),
                ("boot_faults", Tier::B),
                ("soak_image", Tier::Soak),
            ]
        );
        assert_eq!(programs[1].package, Path::new("/repository/bmc"));
        assert_eq!((programs[1].needs(), programs[2].needs()), (CRATE_NEEDS, SYSTEM_NEEDS));
    }

    #[test]
    fn warning_is_kept_once_and_a_summary_is_not() {
        let warning = |level: &str, spans: Value| {
            serde_json::json!({"reason": "compiler-message",
                "message": {"level": level, "rendered": "unused", "spans": spans}})
            .to_string()
        };
        let spans = serde_json::json!([{"file_name": "a.rs"}]);
        let messages = listed(&[
            warning("warning", spans.clone()),
            warning("warning", spans),
            warning("warning", serde_json::json!([])),
        ]);
        assert_eq!(messages.diagnostics.len(), 1);
    }

    #[test]
    fn table_decides_about_threads_guests_and_nodes() {
        let text = "[limits]\nprogram_cpu_seconds = 1\ntotal_cpu_minutes = 1\n[programs.whole_node]\nguests = 2\nnodes = true\n";
        let table: Table = toml::from_str(text).unwrap();
        let program = listed(&[message("tests", "test", "whole_node")]).programs.remove(0);
        let job = program.job(None, &["release".to_owned()], &table, &Times::default());
        assert_eq!(job.requirements.lanes, [(Lane::Guest, 2), (Lane::Node, 1)]);
        assert_eq!(job.requirements.needs, ["release"]);
        assert!(job.command.get_args().any(|argument| argument == "--test-threads"));
    }
}
