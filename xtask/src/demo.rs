//! `cargo xtask demo` and `cargo xtask bench`: prepare everything, then hand over to the programs in `tests`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::runner::Job;
use crate::table::Times;
use crate::{build, host, image, kubernetes, programs, progress, runner, setup, steps};

/// The benches that need neither a cluster nor the node image.
const WITHOUT_NODES: [&str; 6] = ["size", "memory", "power", "tftp", "http", "dhcp"];
/// Those that need a cluster alone.
const WITH_CLUSTER: [&str; 1] = ["controller"];
/// Those that need both.
const WITH_NODES: [&str; 2] = ["unpack", "agent"];
/// Steps of the demo before its rack is set up.
const DEMO_STEPS: &[&str] =
    &["release", "kubernetes", "etcd", "crictl", "host-image", "node-image", "demo-program"];

/// Switches two virtual servers on and shows them become Nodes, of one version and then of the next.
///
/// # Errors
/// A step fails. The demo itself ends this process with its exit code.
pub(crate) fn run(keep: bool) -> Result<()> {
    setup::announce(setup::Need::Cluster)?;
    let times = Times::read()?;
    let jobs = steps::jobs(DEMO_STEPS, &times)?;
    let story = times.expected("demo");
    let expected = expected(&jobs, &times);
    println!(
        "{} steps, about {} from nothing; then the demo, about {}",
        jobs.len(),
        progress::seconds(expected),
        progress::seconds(story)
    );
    runner::run_all("preparation", jobs, |_| {})?;
    progress::heading("Rack");
    let mut command = Command::new(build::demo_path());
    hand_over(programs::environment(command.args(keep.then_some("--keep"))))
}

/// Time that the jobs need from nothing: their CPU time on all cores.
fn expected(jobs: &[Job], times: &Times) -> Duration {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let cores = f64::from(u32::try_from(cores).unwrap_or(u32::MAX));
    let cpu = |job: &Job| times.of(&job.name).map_or(10.0, |took| took.cpu.max(took.wall));
    Duration::from_secs_f64(jobs.iter().map(cpu).sum::<f64>() / cores)
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
        // A peer that cannot be built is left out, and the bench says so.
        if let Err(error) = kubernetes::build_peers() {
            println!("without tink-controller: {error:#}");
        }
    }
    // A program of its own: the measured program must not contain what measures it.
    build::measuring("bedplate-bmc-simulator")?;
    let program = build::measuring("bedplate-bench")?;
    progress::heading("Bench");
    // No program logs while it is measured.
    hand_over(programs::environment(Command::new(program).args(arguments)).env("BEDPLATE_LOG", "warn"))
}

/// Becomes the program, so that Ctrl-C reaches it alone and its exit code is ours.
fn hand_over(command: &mut Command) -> Result<()> {
    let error = std::os::unix::process::CommandExt::exec(command.current_dir(host::root()));
    Err(error).with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))
}
