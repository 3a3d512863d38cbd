//! Test programs: one Cargo run compiles and lints them and writes their list; each has a tier and becomes a job.
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
use crate::schedule::{Lane, Rank, Requirements};
use crate::table::{Table, Times};
use crate::{build, host, progress};

/// Number of tests of a program of tier b that run concurrently.
const BOOT_JOBS: u32 = 2;
/// Folder of the tests of the whole system.
pub(crate) const SYSTEM: &str = "tests";
/// The test of that folder that reads the sources and needs nothing else.
pub(crate) const TIDY: &str = "tidy";
/// End of the name of a program with the unit tests of a crate.
const UNITS: &str = "-units";
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
/// Further steps that the tests of the tier soak need.
pub(crate) const SOAK_NEEDS: &[&str] = &["cluster-api"];
/// Steps that the tests of one crate need, by its folder.
const CRATE_NEEDS: [(&str, &[&str]); 3] = [
    ("bmc", &["packages", "redfish-emulator"]),
    ("bootstrap", &["packages", "cloud-init"]),
    ("oci", &["packages", "debian"]),
];
/// Steps for which those tests wait whose verdict comes first.
pub(crate) const FIRST: [&str; 4] = ["packages", "debian", "redfish-emulator", "cloud-init"];

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
    /// Returns the group of the tier's programs in the summary.
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
    /// Tier of the program.
    pub(crate) tier: Tier,
    /// Path of the executable.
    file: PathBuf,
    /// Folder of the program's package.
    package: PathBuf,
}

impl Program {
    /// Returns the folder of the program's package, relative to the repository: `pxed/dhcp`.
    pub(crate) fn folder(&self) -> String {
        self.package.strip_prefix(host::root()).unwrap_or(&self.package).to_string_lossy().into_owned()
    }

    /// Returns the steps that must have succeeded before the program runs.
    pub(crate) fn needs(&self) -> &'static [&'static str] {
        if self.is_early() {
            let folder = self.folder();
            CRATE_NEEDS.iter().find(|(of, _)| *of == folder).map_or(&["packages"], |(_, needs)| *needs)
        } else {
            SYSTEM_NEEDS
        }
    }

    /// Returns true if its verdict needs none of the released programs: unit tests, tests of one crate, and `tidy`.
    pub(crate) fn is_early(&self) -> bool {
        self.folder() != SYSTEM || self.name == TIDY || self.name.ends_with(UNITS)
    }

    /// Returns the names of the program's tests.
    ///
    /// # Errors
    /// The program cannot be started.
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

    /// Returns the job that runs the program. `due` has the names of the steps of this run.
    pub(crate) fn job(&self, filter: Option<&str>, due: &[String], table: &Table, times: &Times) -> Job {
        let row = table.of(&self.name);
        let threads = row.threads.or(match self.tier {
            Tier::A | Tier::Soak => None,
            Tier::B => Some(BOOT_JOBS),
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
                rank: if self.is_early() { Rank::First } else { Rank::Test },
                alone: row.alone,
            },
            deadline: times.deadline(&self.name),
        }
    }
}

/// Sets the variables with the paths that the programs of `tests` need.
pub(crate) fn environment(command: &mut Command) -> &mut Command {
    // The message of a failed test is sufficient without a backtrace.
    command.env("RUST_BACKTRACE", "0").env("RUST_LIB_BACKTRACE", "0");
    if let Ok(xtask) = std::env::current_exe() {
        command.env("BEDPLATE_XTASK", xtask);
    }
    command.env("BEDPLATE_CACHE", host::cache()).env("BEDPLATE_BIN_DIR", build::release())
}

/// Returns the path of the list of the test programs that were built last.
fn list_path() -> PathBuf {
    host::target().join("xtask/programs.json")
}

/// Compiles and lints test programs and writes their list. `selection` has the arguments of `cargo test` that select them; if it is
/// empty, all are built. A warning is a failure.
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
        if result.is_err() {
            progress::tail(&messages.other).for_each(|line| step.say(line));
        }
        result?;
        let count = messages.diagnostics.len();
        ensure!(count == 0, "{count} warnings; a warning is a failure");
        Ok(messages.programs)
    })
}

/// Reads the list that [`build`] has written.
///
/// # Errors
/// The list is missing or not valid.
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

/// Content of Cargo's JSON messages (the Cargo book, "External tools").
#[derive(Debug, Default)]
struct Messages {
    programs: Vec<Program>,
    /// Warnings and errors as the compiler shows them, each once.
    diagnostics: BTreeSet<String>,
    /// Lines that are not JSON: what Cargo itself writes.
    other: String,
}

impl Messages {
    fn read(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            self.other.push_str(line);
            self.other.push('\n');
            return;
        };
        match message["reason"].as_str() {
            Some("compiler-artifact") => self.programs.extend(program(&message)),
            Some("compiler-message") => {
                let message = &message["message"];
                let text = message["message"].as_str().unwrap_or_default();
                let is_summary = text.ends_with(" emitted") || text.starts_with("aborting due to ");
                if matches!(message["level"].as_str(), Some("warning" | "error")) && !is_summary {
                    self.diagnostics.extend(message["rendered"].as_str().map(str::to_owned));
                }
            }
            _ => {}
        }
    }
}

/// Returns the test program of an artifact.
fn program(message: &Value) -> Option<Program> {
    let file = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    // `--bins` selects these as well.
    if message["target"]["test"] == false {
        return None;
    }
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let name = message["target"]["name"].as_str()?;
    let of = package.file_name()?.to_string_lossy();
    let kinds = message["target"]["kind"].as_array();
    let whole = kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"));
    let name = match (whole, &*of) {
        (true, SYSTEM) => name.to_owned(),
        (true, of) => format!("{of}-{name}"),
        (false, _) => format!("{name}{UNITS}"),
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

/// Returns the job that compiles and runs the examples in the documentation of the crates.
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
            "reason": "compiler-artifact", "manifest_path": host::root().join(package).join("Cargo.toml"),
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
    fn programs_have_unique_names_and_a_tier() {
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
        assert_eq!(programs[1].package, host::root().join("bmc"));
        assert_eq!((programs[1].needs(), programs[2].needs()), (CRATE_NEEDS[0].1, SYSTEM_NEEDS));
    }

    #[test]
    fn binary_without_tests_is_no_test_program() {
        let with_tests = message("cli", "bin", "bedplate");
        let without = with_tests.replace("\"kind\"", "\"test\":false,\"kind\"");
        assert_eq!(listed(&[with_tests]).programs.len(), 1);
        assert_eq!(listed(&[without]).programs, []);
    }

    #[test]
    fn program_is_known_by_the_whole_path_of_its_crate() {
        let programs = listed(&[message("pxed/dhcp", "lib", "bedplate_dhcp")]).programs;
        assert_eq!(programs[0].folder(), "pxed/dhcp");
    }

    #[test]
    fn unit_tests_of_the_harness_need_no_released_program() {
        let programs = listed(&[message(SYSTEM, "lib", "bedplate_tests")]).programs;
        assert!(programs[0].is_early());
        assert_eq!(programs[0].needs(), ["packages"]);
    }

    #[test]
    fn crates_with_their_own_needs_exist() {
        for (folder, _) in CRATE_NEEDS {
            assert!(host::root().join(folder).join("Cargo.toml").is_file(), "{folder}");
        }
    }

    #[test]
    fn warning_is_kept_once_and_a_summary_is_not() {
        let message = |level: &str, text: &str| {
            serde_json::json!({"reason": "compiler-message",
                "message": {"level": level, "message": text, "rendered": text}})
            .to_string()
        };
        let messages = listed(&[
            message("warning", "unused variable"),
            message("warning", "unused variable"),
            message("warning", "1 warning emitted"),
            message("error", "linking with `cc` failed"),
            message("error", "aborting due to 1 previous error"),
            "error: the lock file needs to be updated".to_owned(),
        ]);
        assert_eq!(messages.diagnostics.len(), 2);
        assert_eq!(messages.other, "error: the lock file needs to be updated\n");
    }

    #[test]
    fn table_sets_threads_guests_and_nodes() {
        let text = "[limits]\nprogram_cpu_seconds = 1\ntotal_cpu_minutes = 1\n[programs.whole_node]\nguests = 2\nnodes = true\n";
        let table: Table = toml::from_str(text).unwrap();
        let program = listed(&[message("tests", "test", "whole_node")]).programs.remove(0);
        let job = program.job(None, &["release".to_owned()], &table, &Times::default());
        assert_eq!(job.requirements.lanes, [(Lane::Guest, 2), (Lane::Node, 1)]);
        assert_eq!(job.requirements.needs, ["release"]);
        assert!(job.command.get_args().any(|argument| argument == "--test-threads"));
    }
}
