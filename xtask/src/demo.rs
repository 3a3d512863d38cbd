//! `cargo xtask demo` and `cargo xtask bench`: prepare everything, then hand over to the programs in `tests`.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::table::Times;
use crate::times::Recorder;
use crate::{
    build, cluster_api, host, image, kubernetes, pictures, programs, progress, runner, setup, steps,
};

/// The benches that need neither a cluster nor the node image.
const WITHOUT_NODES: [&str; 6] = ["size", "memory", "power", "tftp", "http", "dhcp"];
/// Demos that need only a cluster.
const WITH_CLUSTER: [&str; 4] = ["claims", "controller", "core", "shortage"];
/// Demos that need a cluster and nodes.
const WITH_NODES: [&str; 2] = ["unpack", "agent"];
/// Time that the demo took after its steps, on two cores that also did other work.
const DEMO_DURATION: Duration = Duration::from_secs(390);
/// Steps of the demo before its rack is set up.
const DEMO_STEPS: &[&str] =
    &["release", "kubernetes", "etcd", "crictl", "host-image", "node-image", "demo-program"];

/// Options of the demo.
pub(crate) struct Options {
    /// True if the rack stays until Ctrl-C.
    pub(crate) keep: bool,
    /// True if transcripts for the documents are stored.
    pub(crate) record: bool,
}

/// Switches two virtual servers on and shows how they become Nodes of one version and then of the next.
///
/// # Errors
/// A step fails. The demo itself ends this process with its exit code.
pub(crate) fn run(options: &Options) -> Result<()> {
    let started = SystemTime::now();
    let mut recorder = Recorder::start("cargo xtask demo");
    setup::announce(setup::Need::Cluster)?;
    let jobs = steps::jobs(DEMO_STEPS, &Times::read()?)?;
    println!(
        "{} steps, at most about {}; then the demo, about {}",
        jobs.len(),
        progress::seconds(runner::expected(&jobs)),
        progress::seconds(DEMO_DURATION)
    );
    runner::run_all("preparation", jobs, |finished| recorder.add(finished))?;
    recorder.finish()?;
    progress::heading("Rack");
    let mut command = Command::new(build::demo_path());
    let since = started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    command.args(options.keep.then_some("--keep"));
    if options.record {
        command.arg("--record").arg(pictures::folder());
    }
    command.env("BEDPLATE_DEMO_STARTED", since.to_string());
    hand_over(programs::environment(&mut command))
}

/// Measures pxed and the agent against their peers.
///
/// # Errors
/// A step fails. The bench itself ends this process with its exit code.
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
        // A peer that cannot be built is skipped, and the bench reports that.
        if let Err(error) = kubernetes::build_peers() {
            println!("without tink-controller: {error:#}");
        }
    }
    if (all || arguments.iter().any(|argument| argument == "core"))
        && let Err(error) = cluster_api::build()
    {
        println!("without upstream's core: {error:#}");
    }
    // A separate program, because the measured program must not contain the code that measures it.
    build::measuring("bedplate-tests", "bedplate-bmc-simulator")?;
    let program = build::measuring("bedplate-bench", "bedplate-bench")?;
    progress::heading("Bench");
    // No program logs while it is measured.
    hand_over(programs::environment(Command::new(program).args(arguments)).env("BEDPLATE_LOG", "warn"))
}

/// Becomes the program, so that Ctrl-C reaches it alone and its exit code is ours.
fn hand_over(command: &mut Command) -> Result<()> {
    let error = std::os::unix::process::CommandExt::exec(command.current_dir(host::root()));
    Err(error).with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))
}
