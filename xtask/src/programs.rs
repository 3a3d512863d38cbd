//! The test programs: built by one `cargo test --no-run`, so that nothing is compiled twice, and sorted into tiers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::pool::Job;
use crate::{Tier, build, demo, host, progress};

/// Those that take longest begin first, so that none of them is waited for alone at the end.
const FIRST: [&str; 11] = [
    "agent_control_plane",
    "kubernetes_faults",
    "agent_rollout",
    "power_faults",
    "kubernetes_enrol",
    "kubernetes_failover",
    "kubernetes_power",
    "bmc_simulator",
    "boot_faults",
    "boot_power",
    "boot_bmc",
];
/// How many of its tests a program runs at once if it is not as many as there are cores: these only wait.
const THREADS: [(&str, &str); 1] = [("power_faults", "16")];
/// Twenty machines at once are load enough.
const ALONE: [&str; 1] = ["boot_many"];
/// How many tests of a program that boots machines run at once; how many machines do is `GuestSlot`'s business.
const BOOTS_AT_ONCE: &str = "2";
/// A node is several times the work of a boot, and has what its deadlines count upon when it is alone.
const NODES_AT_ONCE: &str = "1";

/// A test program that is built.
#[derive(Debug, PartialEq)]
pub(crate) struct Program {
    name: String,
    tier: Tier,
    file: PathBuf,
    package: PathBuf,
}

/// Builds the test programs that the tiers want and lists them, those that take long first.
pub(crate) fn build(units: bool) -> Result<Vec<Program>> {
    let cargo = || {
        let mut command = build::cargo();
        command.args(["test", "--no-run", "--locked"]);
        command.args(if units { &["--workspace"][..] } else { &["-p", "bedplate-tests"] });
        command
    };
    progress::step("test programs", |step| step.run(&mut cargo()))?;
    let output =
        cargo().arg("--message-format=json").output().context("cannot ask cargo for its programs")?;
    ensure!(
        output.status.success(),
        "cargo does not say where its programs are: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(sorted(listed(&String::from_utf8_lossy(&output.stdout))))
}

/// The programs of cargo's messages.
fn listed(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let file = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        let name = message["target"]["name"].as_str()?;
        let of = package.file_name()?.to_string_lossy();
        let whole =
            message["target"]["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == "test"));
        let name = match (whole, &*of) {
            (true, "tests") => name.to_owned(),
            (true, of) => format!("{of}-{name}"),
            (false, _) => format!("{name}-units"),
        };
        Some(Program { tier: tier(&name), name, file: file.into(), package: package.to_owned() })
    };
    messages.lines().filter_map(program).collect()
}

/// By its name; see `test`.
fn tier(name: &str) -> Tier {
    match name.split('_').next() {
        Some("boot") => Tier::B,
        Some("whole") => Tier::C,
        _ => Tier::A,
    }
}

fn sorted(mut programs: Vec<Program>) -> Vec<Program> {
    let place = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    programs.sort_by_key(|program| (place(&program.name), !program.name.starts_with("kubernetes_")));
    programs
}

/// What runs the programs of a tier.
pub(crate) fn jobs(programs: &[Program], tier: Tier, filter: Option<&str>) -> Vec<Job> {
    let of_tier = programs.iter().filter(|program| program.tier == tier);
    of_tier.map(|program| job(program, filter)).collect()
}

fn job(program: &Program, filter: Option<&str>) -> Job {
    let mut command = Command::new(&program.file);
    command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package).args(filter);
    let threads = THREADS.iter().find_map(|(name, threads)| (*name == program.name).then_some(*threads));
    let threads = threads.or(match program.tier {
        Tier::A => None,
        Tier::B => Some(BOOTS_AT_ONCE),
        Tier::C => Some(NODES_AT_ONCE),
    });
    if let Some(threads) = threads {
        command.args(["--test-threads", threads]);
    }
    demo::environment(&mut command);
    let alone = program.tier == Tier::C || ALONE.contains(&&*program.name);
    Job { alone, name: program.name.clone(), command }
}

/// The examples in the documentation of the crates, which rustdoc builds and runs.
pub(crate) fn documentation(filter: Option<&str>) -> Job {
    let mut command = build::cargo();
    command.args(["test", "--locked", "--no-fail-fast", "--workspace", "--doc"]).args(filter);
    Job { name: "documentation".to_owned(), command, alone: false }
}

/// How many programs run at once: one more than there are cores, because most of them wait.
pub(crate) fn at_once() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) + 1
}

/// Whether there is a program of tier c.
pub(crate) fn has_whole_machines() -> Result<bool> {
    let directory = host::root().join("tests/tests");
    let entries =
        std::fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    Ok(names.any(|name| name.starts_with("whole_") && name.ends_with(".rs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(package: &str, kind: &str, name: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "manifest_path": format!("/repository/{package}/Cargo.toml"),
            "target": { "kind": [kind], "name": name }, "profile": { "test": true },
            "executable": format!("/target/debug/deps/{name}-0123"),
        })
        .to_string()
    }

    #[test]
    fn programs_have_a_name_of_their_own_and_a_tier_and_the_long_ones_come_first() {
        let messages = [
            "{}".to_owned(),
            message("bmc", "lib", "bedplate_bmc"),
            message("bmc", "test", "redfish"),
            message("tests", "test", "boot_faults"),
            message("tests", "test", "power_faults"),
        ];
        let programs = sorted(listed(&messages.join("\n")));
        let seen: Vec<_> = programs.iter().map(|program| (&*program.name, program.tier)).collect();
        assert_eq!(
            seen,
            [
                ("power_faults", Tier::A),
                ("boot_faults", Tier::B),
                ("bedplate_bmc-units", Tier::A),
                ("bmc-redfish", Tier::A)
            ]
        );
        assert_eq!(programs[3].package, Path::new("/repository/bmc"));
    }
}
