//! `cargo xtask demo` and `cargo xtask bench`: prepare everything, then hand over to the programs in `tests`.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{build, host, image, kubernetes, progress, setup};

/// The benches that need neither a cluster nor the node image.
const WITHOUT_NODES: [&str; 6] = ["size", "memory", "power", "tftp", "http", "dhcp"];
/// Those that need a cluster alone.
const WITH_CLUSTER: [&str; 1] = ["controller"];
/// Those that need both.
const WITH_NODES: [&str; 2] = ["unpack", "agent"];

/// Everything that two servers of the rack and their cluster need: packages, static binaries, Kubernetes' programs, both images.
fn prepare() -> Result<()> {
    setup::run(setup::Need::Cluster)?;
    progress::heading("Build");
    build::run()?;
    image::host()?;
    image::node::ensure()
}

/// What tells the programs in `tests` where things are.
pub(crate) fn environment(command: &mut Command) -> &mut Command {
    // A failed test says enough by itself, without a page of frames.
    command.env("RUST_BACKTRACE", "0").env("RUST_LIB_BACKTRACE", "0");
    command.env("BEDPLATE_CACHE", host::cache()).env("BEDPLATE_BIN_DIR", build::release())
}

/// Has two virtual servers switched on and shows them become Nodes, of one version and then of the next.
pub(crate) fn run(keep: bool) -> Result<()> {
    prepare()?;
    let program = program("bedplate-demo", false)?;
    progress::heading("Rack");
    let mut command = Command::new(program);
    hand_over(environment(command.args(keep.then_some("--keep"))))
}

/// Measures pxed and the agent against their peers.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    let names = |benches: &[&str]| arguments.iter().any(|argument| benches.contains(&argument.as_str()));
    // None named: all of them.
    let all = ![&WITHOUT_NODES[..], &WITH_CLUSTER, &WITH_NODES].into_iter().any(names);
    let nodes = all || names(&WITH_NODES);
    let cluster = nodes || names(&WITH_CLUSTER);
    setup::run(match (nodes, cluster) {
        (true, _) => setup::Need::Tests,
        (false, true) => setup::Need::Cluster,
        (false, false) => setup::Need::Rack,
    })?;
    progress::heading("Build");
    build::run()?;
    if nodes {
        image::node::ensure()?;
    }
    if all || arguments.iter().any(|argument| argument == "controller") {
        // A peer that cannot be had is left out, and the bench says so.
        if let Err(error) = kubernetes::build_peers() {
            println!("without tink-controller: {error:#}");
        }
    }
    // Beside it: what is measured against must not be a part of it.
    program("bedplate-bmc-simulator", true)?;
    let program = program("bedplate-bench", true)?;
    progress::heading("Bench");
    // Nobody logs while they are measured.
    hand_over(environment(Command::new(program).args(arguments)).env("BEDPLATE_LOG", "warn"))
}

fn program(name: &str, release: bool) -> Result<std::path::PathBuf> {
    progress::step(&format!("build {name}"), |step| {
        let mut command = build::cargo();
        command.args(["build", "--locked", "-p", "bedplate-tests", "--bin", name]);
        step.run(command.args(release.then_some("--release")))
    })?;
    Ok(host::target().join(if release { "release" } else { "debug" }).join(name))
}

/// Becomes the program, so that Ctrl-C reaches it alone and its exit code is ours.
fn hand_over(command: &mut Command) -> Result<()> {
    let error = std::os::unix::process::CommandExt::exec(command.current_dir(host::root()));
    Err(error).with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))
}
