//! Steps that install or build something, and checks, each with its name and its needs. `cargo xtask step NAME` runs one.
//!
//! `runner` starts each as a separate process, so that it is measured, has a deadline, and is killed with its children.
//! The work itself is in the module of each step.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::runner::{Job, Kind};
use crate::schedule::{Lane, Rank, Requirements};
use crate::table::Times;
use crate::{
    build, check, cloud_init, cluster_api, deb, deny, fuzz, image, kubernetes, programs, python, setup,
};

/// Step or check.
pub(crate) struct Step {
    /// Name: the argument of `cargo xtask step`, and the name of the log and of the row in the times.
    pub(crate) name: &'static str,
    /// True for a check, for which no other step waits.
    is_check: bool,
    /// Steps that must run before this one.
    needs: &'static [&'static str],
    /// Lane in which the step runs.
    lane: Option<Lane>,
    /// Returns true if there is something to do. Build steps always return true and check for themselves.
    is_due: fn() -> bool,
    /// Performs the step.
    work: fn() -> Result<()>,
}

const ALWAYS: fn() -> bool = || true;

/// All steps, in a valid sequential order.
const ALL: &[Step] = &[
    step("packages", &[], Some(Lane::Packages), setup::packages_missing, setup::install_packages),
    step("fmt", &["packages"], None, ALWAYS, check::format).check(),
    step("test-programs", &["packages"], Some(Lane::Cargo), ALWAYS, || programs::build(&[])),
    step("debian", &["packages"], None, ALWAYS, image::tree),
    step("redfish-emulator", &["packages"], None, || python::missing().is_some(), python::install),
    step("cloud-init", &["packages"], None, || cloud_init::missing().is_some(), cloud_init::fetch),
    step("release", &["packages", "test-programs"], Some(Lane::Cargo), ALWAYS, build::run),
    step("kubernetes", &["packages"], None, kubernetes::is_missing, kubernetes::build_kubernetes),
    step("etcd", &["packages"], None, kubernetes::is_etcd_missing, kubernetes::build_etcd),
    step("crictl", &["packages"], None, kubernetes::is_crictl_missing, kubernetes::build_crictl),
    step(
        "cluster-api",
        &["packages", "kubernetes"],
        None,
        || !cluster_api::missing().is_empty(),
        cluster_api::build,
    ),
    step("cargo-deny", &["packages"], None, || deny::TOOL.missing().is_some(), || deny::TOOL.install()),
    step("cargo-deb", &["packages"], None, || deb::TOOL.missing().is_some(), || deb::TOOL.install()),
    step("demo-program", &["packages", "release"], Some(Lane::Cargo), ALWAYS, build::demo),
    step("host-image", &["debian", "release"], None, ALWAYS, image::host),
    step("node-image", &["packages", "kubernetes", "crictl"], None, ALWAYS, image::node::ensure),
    step("agent-package", &["release", "cargo-deb"], Some(Lane::Cargo), ALWAYS, || deb::package().map(drop)),
    step("fuzz-programs", &["packages", "test-programs"], Some(Lane::Cargo), ALWAYS, fuzz::build).check(),
    step("deny", &["cargo-deny"], None, ALWAYS, deny::check).check(),
    step("agent-size", &["release"], None, ALWAYS, check::size).check(),
];

const fn step(
    name: &'static str,
    needs: &'static [&'static str],
    lane: Option<Lane>,
    is_due: fn() -> bool,
    work: fn() -> Result<()>,
) -> Step {
    Step { name, is_check: false, needs, lane, is_due, work }
}

impl Step {
    const fn check(self) -> Self {
        Self { is_check: true, ..self }
    }
}

fn find(name: &str) -> Result<&'static Step> {
    let known = || ALL.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
    ALL.iter()
        .find(|step| step.name == name)
        .with_context(|| format!("unknown step {name:?}; the steps are {}", known()))
}

/// Runs the named step in this process. Only `test-programs` takes arguments: those of `cargo test` that select targets.
///
/// # Errors
/// The name is unknown, or the step fails.
pub(crate) fn run(name: &str, arguments: &[String]) -> Result<()> {
    let step = find(name)?;
    match (name, arguments) {
        (_, []) => (step.work)(),
        ("test-programs", selection) => programs::build(selection),
        _ => bail!("step {name} takes no arguments"),
    }
}

/// Returns jobs for the named steps that have something to do, and for the steps that these need.
///
/// # Errors
/// A name is unknown.
pub(crate) fn jobs(names: &[&str], times: &Times) -> Result<Vec<Job>> {
    let mut wanted: Vec<&'static Step> = Vec::new();
    for name in names {
        add(find(name)?, &mut wanted)?;
    }
    wanted.retain(|step| (step.is_due)());
    let due: Vec<&str> = wanted.iter().map(|step| step.name).collect();
    wanted.iter().map(|step| job(step, &due, times)).collect()
}

fn add(step: &'static Step, wanted: &mut Vec<&'static Step>) -> Result<()> {
    if wanted.iter().any(|other| other.name == step.name) {
        return Ok(());
    }
    for need in step.needs {
        // A step needs `test-programs` only for the order: the cheap build comes first. That is not a reason to build it.
        if *need != "test-programs" {
            add(find(need)?, wanted)?;
        }
    }
    wanted.push(step);
    Ok(())
}

fn job(step: &Step, due: &[&str], times: &Times) -> Result<Job> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["step", step.name]);
    let load = times.of(step.name).map_or(1.5, crate::table::Took::load);
    Ok(Job {
        name: step.name.to_owned(),
        kind: if step.is_check { Kind::Check } else { Kind::Step },
        command,
        requirements: Requirements {
            needs: step
                .needs
                .iter()
                .filter(|need| due.contains(need))
                .map(|need| (*need).to_owned())
                .collect(),
            lanes: step.lane.map(|lane| (lane, 1)).into_iter().collect(),
            load,
            expected: times.expected(step.name),
            rank: match step {
                _ if programs::FIRST.contains(&step.name) => Rank::First,
                // No step waits for a check. A check that used Cargo once delayed the last step that all system tests need.
                Step { is_check: true, .. } => Rank::Test,
                _ => Rank::Step,
            },
            alone: false,
        },
        deadline: times.deadline(step.name),
    })
}

/// Rejects a plan in which a name occurs twice, because the end of the second job would not be noticed.
///
/// # Errors
/// Names the job.
pub(crate) fn check_names(jobs: &[Job]) -> Result<()> {
    for (index, job) in jobs.iter().enumerate() {
        if jobs[..index].iter().any(|other| other.name == job.name) {
            bail!("two jobs are named {}", job.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_after_their_needs_and_have_unique_names() {
        for (index, step) in ALL.iter().enumerate() {
            for need in step.needs {
                assert!(ALL[..index].iter().any(|before| before.name == *need), "{} needs {need}", step.name);
            }
            assert!(ALL[..index].iter().all(|other| other.name != step.name), "{} occurs twice", step.name);
        }
    }

    #[test]
    fn wanted_step_brings_its_needs_but_not_the_tests() {
        let mut wanted = Vec::new();
        add(find("host-image").unwrap(), &mut wanted).unwrap();
        let names: Vec<_> = wanted.iter().map(|step| step.name).collect();
        assert_eq!(names, ["packages", "debian", "release", "host-image"]);
        assert!(find("nonsense").err().unwrap().to_string().contains("the steps are packages"));
    }
}
